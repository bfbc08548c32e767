"""Model families as data, one file each, and their registry."""

from __future__ import annotations

from mpobert_plugin.families.albert import ALBERT
from mpobert_plugin.families.bert import BERT
from mpobert_plugin.families.family import (
    Family,
    family_for,
    known_model_types,
    register_family,
)

__all__ = ["ALBERT", "BERT", "Family", "family_for", "known_model_types", "register_family"]
