"""Pre-training: a corpus, samples, an optimizer, and the loop around them."""

from __future__ import annotations

from mpobert_plugin.train.data.masking import Masking
from mpobert_plugin.train.data.prepare import Vocabulary, prepare
from mpobert_plugin.train.data.samples import Recipe, Samples
from mpobert_plugin.train.data.store import Corpus, open_corpus
from mpobert_plugin.train.data.texts import Reading
from mpobert_plugin.train.lamb import Lamb
from mpobert_plugin.train.run import RunResult, pretrain
from mpobert_plugin.train.settings import PretrainConfig
from mpobert_plugin.train.settings_file import read_settings


def __dir__() -> list[str]:
    return sorted(__all__)


__all__ = [
    "Corpus",
    "Lamb",
    "Masking",
    "PretrainConfig",
    "Reading",
    "Recipe",
    "RunResult",
    "Samples",
    "Vocabulary",
    "open_corpus",
    "prepare",
    "pretrain",
    "read_settings",
]
