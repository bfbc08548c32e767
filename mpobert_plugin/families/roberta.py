"""The RoBERTa family and its relatives: BERT's layers under other names, normed before or after."""

from __future__ import annotations

from dataclasses import replace

from mpobert_plugin.families.bert import BERT
from mpobert_plugin.families.family import register_family

ROBERTA = register_family(
    replace(
        BERT,
        name="roberta",
        model_types=("roberta", "xlm-roberta", "camembert", "data2vec-text"),
    )
)

# Its layers are normed before each block, and the names say so.
XLM_ROBERTA_XL = register_family(
    replace(
        BERT,
        name="xlm-roberta-xl",
        model_types=("xlm-roberta-xl",),
        norms={
            "attention_norm": "attention.self_attn_layer_norm",
            "output_norm": "LayerNorm",
        },
    )
)
