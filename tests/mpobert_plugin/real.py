"""The real pre-trained ALBERT for tests: where it is, and masked batches of reactions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import pytest
import torch
from transformers import AlbertForMaskedLM

from mpobert_plugin.demo.errors import DemoError
from mpobert_plugin.demo.masking import Batch, evaluation_batches
from mpobert_plugin.demo.reactions import textbook_reactions
from mpobert_plugin.demo.smiles import SmilesTokenizer
from mpobert_plugin.demo.source import find_albert
from mpobert_plugin.demo.source import load_albert as _load_albert

Item = TypeVar("Item")

# USPTO-50k reactions, beside the repository where somebody put them; never part of it.
DEV_REACTIONS = Path(__file__).parents[3] / "shared" / "data" / "reactions" / "dev.tsv"


def why_absent() -> str:
    """Return why the model cannot be used, with the remedy; empty when it can."""
    try:
        find_albert()
    except DemoError as error:
        return str(error)
    return ""


ABSENT = why_absent()
NEEDS_ALBERT = [pytest.mark.real_model, pytest.mark.skipif(bool(ABSENT), reason=ABSENT)]
NEEDS_DEV_REACTIONS = [
    pytest.mark.shared_data,
    pytest.mark.skipif(not DEV_REACTIONS.is_file(), reason="the data set is not at hand"),
]


def needs_albert(item: Item) -> Item:
    """Mark a test or class as one of the real ALBERT; it is skipped, with the remedy, without."""
    return _marked(item, NEEDS_ALBERT)


def needs_dev_reactions(item: Item) -> Item:
    """Mark a test or class as one of the patent reactions; it is skipped where they are absent."""
    return _marked(item, NEEDS_DEV_REACTIONS)


def _marked(item: Item, marks: list[pytest.MarkDecorator]) -> Item:
    for mark in marks:
        item = mark(item)
    return item


def load_albert(dtype: torch.dtype = torch.float32) -> AlbertForMaskedLM:
    """Return the real ALBERT in evaluation mode, without dropout."""
    return _load_albert(dtype=dtype)


def tokenizer() -> SmilesTokenizer:
    """Return the tokenizer of the real ALBERT."""
    return SmilesTokenizer.from_file(find_albert() / "vocab.txt")


def encoded_reactions(path: Path | None = None, n: int | None = None) -> list[list[int]]:
    """Return token ids of the first ``n`` reactions of a file, or of the textbook ones."""
    if path is None:
        smiles: Sequence[str] = [reaction.smiles for reaction in textbook_reactions()]
    else:
        # Quotes inside fields are text: split on tabs, never by CSV rules.
        lines = path.read_text(encoding="utf-8").splitlines()[1:]
        smiles = [line.split("\t")[1] for line in lines]
    encode = tokenizer().encode
    return [encode(text) for text in smiles[:n]]


def reaction_batches(
    path: Path | None = None, n: int | None = None, *, size: int = 32, seed: int = 0
) -> list[Batch]:
    """Return masked batches of those reactions, the same ones in every call."""
    encoded = encoded_reactions(path, n)
    return [batch for _, batch in evaluation_batches(encoded, size=size, seed=seed)]
