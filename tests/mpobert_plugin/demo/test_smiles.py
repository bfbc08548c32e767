"""Tokens of reaction SMILES."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpobert_plugin.demo.errors import TokenError
from mpobert_plugin.demo.reactions import textbook_reactions
from mpobert_plugin.demo.smiles import CLS, SEP, UNK, SmilesTokenizer, tokenize
from tests.mpobert_plugin.demo.toy import VOCABULARY

PIECES = ["C", "c", "Cl", "Br", "[C@@H]", "[Na+]", "(", ")", "=", "#", "1", "%10", ".", ">>", "/"]


@given(st.lists(st.sampled_from(PIECES)))
def test_tokens_joined_are_the_text(pieces):
    text = "".join(pieces)
    assert tokenize(text) == pieces
    assert "".join(tokenize(text)) == text


@pytest.mark.parametrize(
    ("text", "place", "character"),
    [("CC!O", 2, "'!'"), ("C C", 1, "' '"), ("[Na", 0, r"'\['"), ("CX", 1, "'X'")],
)
def test_other_characters_are_named(text, place, character):
    with pytest.raises(TokenError, match=f"got {character} at position {place}"):
        tokenize(text)


def test_ids_and_back():
    tokenizer = SmilesTokenizer(VOCABULARY)
    ids = tokenizer.encode("CBr.O=C>>[Na+]N")
    assert ids[0] == CLS
    assert ids[-1] == SEP
    assert ids[-2] == UNK  # nitrogen is not in the toy vocabulary
    assert tokenizer.decode(ids) == ["C", "Br", ".", "O", "=", "C", ">>", "[Na+]", "[UNK]"]
    assert len(tokenizer) == len(VOCABULARY)


def test_the_vocabulary_must_be_the_model_s():
    with pytest.raises(TokenError, match=r"\[MASK\] at 14, got 15"):
        SmilesTokenizer([*VOCABULARY[:14], "c", "[MASK]"])


def test_a_repeated_token_keeps_its_first_id():
    assert SmilesTokenizer([*VOCABULARY, "C"]).encode("C") == [CLS, 16, SEP]


def test_every_textbook_reaction_can_be_split():
    for reaction in textbook_reactions():
        tokens = tokenize(reaction.smiles)
        assert tokens.count(">>") == 1
        assert tokens.count("(") == tokens.count(")")
