"""Model families as data, one file each, and their registry."""

from __future__ import annotations

from mpobert_plugin.families.albert import ALBERT
from mpobert_plugin.families.bert import BERT
from mpobert_plugin.families.derived import derived_family
from mpobert_plugin.families.distilbert import DISTILBERT
from mpobert_plugin.families.electra import ELECTRA
from mpobert_plugin.families.family import (
    Family,
    family_for,
    known_model_types,
    register_family,
)
from mpobert_plugin.families.gpt2 import GPT2
from mpobert_plugin.families.llama import LLAMA
from mpobert_plugin.families.mpnet import MPNET
from mpobert_plugin.families.roberta import ROBERTA, XLM_ROBERTA_XL


def __dir__() -> list[str]:
    return sorted(__all__)


__all__ = [
    "ALBERT",
    "BERT",
    "DISTILBERT",
    "ELECTRA",
    "GPT2",
    "LLAMA",
    "MPNET",
    "ROBERTA",
    "XLM_ROBERTA_XL",
    "Family",
    "derived_family",
    "family_for",
    "known_model_types",
    "register_family",
]
