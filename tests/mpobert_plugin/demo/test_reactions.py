"""The textbook reactions: each once, a fixed split, known tokens, and a script makes them."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from mpobert_plugin.demo.reactions import (
    NEW_FAMILY,
    NEW_GROUP,
    TRAIN,
    split,
    textbook_reactions,
)
from mpobert_plugin.demo.smiles import UNK
from tests.mpobert_plugin.real import needs_albert, tokenizer

ROOT = Path(__file__).parents[3]
REACTIONS = textbook_reactions()


def test_parts_and_families():
    assert Counter(r.part for r in REACTIONS) == {TRAIN: 254, NEW_GROUP: 96, NEW_FAMILY: 83}
    assert len({r.family for r in REACTIONS}) >= 30
    trained = {r.family for r in REACTIONS if r.part == TRAIN}
    assert {r.family for r in REACTIONS if r.part == NEW_GROUP} <= trained
    assert not {r.family for r in REACTIONS if r.part == NEW_FAMILY} & trained


def test_no_reaction_is_there_twice_or_in_two_parts():
    assert len({r.smiles for r in REACTIONS}) == len(REACTIONS)
    train, held_out = split(REACTIONS)
    assert len(train) + len(held_out) == len(REACTIONS)
    assert not set(train) & set(held_out)


@pytest.mark.parametrize("text", ["c1ccc(Cl)cc1", "C(F)(F)F", "C(C)C)cc1", "CC(C)CBr"])
def test_groups_of_the_held_out_part_are_new(text):
    train, held_out = split(REACTIONS)
    assert any(text in smiles for smiles in held_out)
    assert not any(text in smiles for smiles in train)


def test_products_are_made_of_atoms_that_went_in():
    for reaction in REACTIONS:
        reactants, product = (atoms(side) for side in reaction.smiles.split(">>"))
        assert not product - reactants, reaction


def atoms(smiles: str) -> Counter[str]:
    """Count heavy atoms; aromatic ones are small letters."""
    found = re.findall(r"Cl|Br|Mg|Na|Li|Al|Mn|Cr|[BCNOFPSI]|[cnos]", smiles)
    return Counter(atom.capitalize() for atom in found)


def test_rings_and_brackets_are_closed():
    for reaction in REACTIONS:
        for molecule in re.split(r"\.|>>", reaction.smiles):
            bare = re.sub(r"\[[^\]]*\]", "", molecule)
            assert all(count % 2 == 0 for count in Counter(re.findall(r"\d", bare)).values())
            assert bare.count("(") == bare.count(")")


def test_the_script_composes_the_file():
    done = subprocess.run(
        [sys.executable, "-B", "scripts/compose_reactions.py", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@needs_albert
def test_the_model_knows_every_token():
    encode = tokenizer().encode
    unknown = [r.smiles for r in REACTIONS if UNK in encode(r.smiles)]
    assert not unknown
