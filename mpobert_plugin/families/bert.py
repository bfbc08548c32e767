"""The BERT family: each layer a module of its own."""

from __future__ import annotations

from mpobert_plugin.families.family import Family, register_family

BERT = register_family(
    Family(
        name="bert",
        model_types=("bert",),
        layer_pattern=r"encoder\.layer\.\d+",
        embedding="embeddings.word_embeddings",
        layer_counts=("num_hidden_layers",),
        matrices={
            "query": "attention.self.query",
            "key": "attention.self.key",
            "value": "attention.self.value",
            "attention_output": "attention.output.dense",
            "ffn_in": "intermediate.dense",
            "ffn_out": "output.dense",
        },
        norms={
            "attention_norm": "attention.output.LayerNorm",
            "output_norm": "output.LayerNorm",
        },
        beside={"pooler": "pooler.dense"},
        adapter_defaults=("query", "key", "value", "attention_output", "pooler"),
    )
)
