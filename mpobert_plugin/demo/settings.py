"""The demo's settings and the material that its steps work on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from transformers import AlbertForMaskedLM

from mpobert_plugin.demo.reactions import NEW_FAMILY, NEW_GROUP, TRAIN, textbook_reactions
from mpobert_plugin.demo.smiles import SmilesTokenizer
from mpobert_plugin.demo.source import find_albert, load_albert

LOGIT_LIMIT = 5e-4  # how far logits of a converted model may be from the original's, in float32


@dataclass(frozen=True)
class Settings:
    """What the demo does; the defaults take about a minute and a half on two cores.

    ``rise`` is by how much held-out accuracy must grow; ``stride`` uses every stride-th reaction.
    """

    out: Path = Path("mpobert-demo")
    steps: int = 48
    seed: int = 0
    batch: int = 12
    learning_rate: float = 4e-5
    maskings: int = 2
    rise: float = 0.03
    stride: int = 1


@dataclass(frozen=True)
class Material:
    """The pre-trained model, its tokenizer and the encoded reactions by part."""

    albert: AlbertForMaskedLM
    tokenizer: SmilesTokenizer
    train: list[list[int]]
    held_out: dict[str, list[list[int]]]

    @property
    def n_reactions(self) -> int:
        """Number of reactions in all parts."""
        return len(self.train) + sum(map(len, self.held_out.values()))


def load_material(stride: int = 1) -> Material:
    """Return the model and the reactions."""
    folder = find_albert()
    tokenizer = SmilesTokenizer.from_file(folder / "vocab.txt")
    parts: dict[str, list[list[int]]] = {TRAIN: [], NEW_GROUP: [], NEW_FAMILY: []}
    for reaction in textbook_reactions()[::stride]:
        parts[reaction.part].append(tokenizer.encode(reaction.smiles))
    train = parts.pop(TRAIN)
    return Material(load_albert(folder), tokenizer, train, parts)
