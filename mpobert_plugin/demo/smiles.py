"""Splits reaction SMILES into the tokens of the pre-trained model and numbers them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from mpobert_plugin.demo.errors import TokenError

# A bracket atom, a two-letter element, an atom, a bond, a branch, a ring number or the arrow.
_TOKEN = re.compile(
    r"\[[^\]]+\]|Br|Cl|>>|%[0-9]{2}|[BCNOPSFIbcnops]|[0-9]|[()=#$/\\.~:+*-]|>", re.ASCII
)
PAD, UNK, CLS, SEP, MASK = 0, 11, 12, 13, 14
FIRST_TOKEN = 15  # smaller ids are special or unused
_SPECIAL = {"[PAD]": PAD, "[UNK]": UNK, "[CLS]": CLS, "[SEP]": SEP, "[MASK]": MASK}


def tokenize(text: str) -> list[str]:
    """Return the tokens of a SMILES string; joined they are the string again.

    Parameters
    ----------
    text : str
        Molecule or reaction SMILES.

    Returns
    -------
    list of str
        Tokens in order.

    Raises
    ------
    TokenError
        When a character belongs to no token.

    Examples
    --------
    >>> tokenize("CC[Mg]Br.O=C>>CCCO")
    ['C', 'C', '[Mg]', 'Br', '.', 'O', '=', 'C', '>>', 'C', 'C', 'C', 'O']
    """
    tokens, place = [], 0
    while place < len(text):
        match = _TOKEN.match(text, place)
        if match is None:
            raise TokenError(
                f"text must be SMILES, got {text[place]!r} at position {place} of {text!r}. "
                "Write atoms, bonds, brackets, ring numbers and '>>' only."
            )
        tokens.append(match.group())
        place = match.end()
    return tokens


class SmilesTokenizer:
    """Numbers for SMILES tokens and back, from the list of tokens in the model's ``vocab.txt``.

    Parameters
    ----------
    tokens : sequence of str
        Vocabulary; the place of a token is its id.

    Raises
    ------
    TokenError
        When a special token is not where the pre-trained model has it.
    """

    def __init__(self, tokens: Sequence[str]) -> None:
        self.tokens = tuple(tokens)
        self._ids: dict[str, int] = {}
        for number, token in enumerate(self.tokens):
            self._ids.setdefault(token, number)
        for token, number in _SPECIAL.items():
            if self._ids.get(token) != number:
                raise TokenError(
                    f"tokens must have {token} at {number}, got {self._ids.get(token)}. "
                    "Use the vocab.txt that belongs to the model."
                )

    @classmethod
    def from_file(cls, path: Path) -> SmilesTokenizer:
        """Return the tokenizer of a ``vocab.txt``, one token a line."""
        return cls(path.read_text(encoding="utf-8").splitlines())

    def __len__(self) -> int:
        return len(self.tokens)

    def encode(self, text: str) -> list[int]:
        """Return the ids of ``text`` between [CLS] and [SEP]; an unknown token is [UNK]."""
        return [CLS, *(self._ids.get(token, UNK) for token in tokenize(text)), SEP]

    def decode(self, ids: Iterable[int]) -> list[str]:
        """Return the tokens of ``ids``, without [PAD], [CLS] and [SEP]."""
        return [self.tokens[i] for i in ids if i not in (PAD, CLS, SEP)]
