"""Reads the textbook reactions that ship with the demo, and their fixed split."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files

TRAIN, NEW_GROUP, NEW_FAMILY = "train", "new-group", "new-family"


@dataclass(frozen=True)
class Reaction:
    """A textbook reaction: the part of the split it is in, its family and its SMILES."""

    part: str
    family: str
    smiles: str

    @property
    def held_out(self) -> bool:
        """Whether training never sees it."""
        return self.part != TRAIN


def textbook_reactions() -> tuple[Reaction, ...]:
    """Return all textbook reactions in the order of the file.

    Returns
    -------
    tuple of Reaction
        Training reactions, reactions with a substituent that no training family takes, and
        reactions of families that training never shows.

    Examples
    --------
    >>> reactions = textbook_reactions()
    >>> len(reactions), sum(reaction.held_out for reaction in reactions)
    (433, 179)
    >>> reactions[0].smiles
    'CCO.O=C(O)c1ccccc1>>CCOC(=O)c1ccccc1'
    """
    text = files(__package__).joinpath("reactions.txt").read_text(encoding="utf-8")
    rows = (line.split("\t") for line in text.splitlines() if line and not line.startswith("#"))
    return tuple(Reaction(part, family, smiles) for part, family, smiles in rows)


def split(reactions: tuple[Reaction, ...]) -> tuple[list[str], list[str]]:
    """Return the SMILES of the training reactions and those of the held-out ones."""
    train = [reaction.smiles for reaction in reactions if not reaction.held_out]
    return train, [reaction.smiles for reaction in reactions if reaction.held_out]
