"""The MPNet family: BERT's layers with a position bias that all of them share."""

from __future__ import annotations

from mpobert_plugin.families.family import Family, register_family

MPNET = register_family(
    Family(
        name="mpnet",
        model_types=("mpnet",),
        layer_pattern=r"encoder\.layer\.\d+",
        embedding="embeddings.word_embeddings",
        layer_counts=("num_hidden_layers",),
        matrices={
            "query": "attention.attn.q",
            "key": "attention.attn.k",
            "value": "attention.attn.v",
            "attention_output": "attention.attn.o",
            "ffn_in": "intermediate.dense",
            "ffn_out": "output.dense",
        },
        norms={"attention_norm": "attention.LayerNorm", "output_norm": "output.LayerNorm"},
        beside={"pooler": "pooler.dense"},
        adapter_defaults=("query", "key", "value", "attention_output", "pooler"),
    )
)
