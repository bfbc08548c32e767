"""The ELECTRA family: BERT's layers behind an embedding that may be narrower than they are."""

from __future__ import annotations

from dataclasses import replace

from mpobert_plugin.families.bert import BERT
from mpobert_plugin.families.family import register_family

ELECTRA = register_family(
    replace(
        BERT,
        name="electra",
        model_types=("electra",),
        beside={"embedding_projection": "embeddings_project"},
        adapter_defaults=("query", "key", "value", "attention_output", "embedding_projection"),
    )
)
