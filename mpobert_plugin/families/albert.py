"""The ALBERT family: layers in groups, run several times, and a factorized embedding."""

from __future__ import annotations

from mpobert_plugin.families.family import Family, register_family

ALBERT = register_family(
    Family(
        name="albert",
        model_types=("albert",),
        layer_pattern=r"encoder\.albert_layer_groups\.\d+\.albert_layers\.\d+",
        embedding="embeddings.word_embeddings",
        layer_counts=("num_hidden_groups", "inner_group_num"),
        matrices={
            "query": "attention.query",
            "key": "attention.key",
            "value": "attention.value",
            "attention_output": "attention.dense",
            "ffn_in": "ffn",
            "ffn_out": "ffn_output",
        },
        norms={
            "attention_norm": "attention.LayerNorm",
            "output_norm": "full_layer_layer_norm",
        },
        beside={
            "embedding_projection": "encoder.embedding_hidden_mapping_in",
            "pooler": "pooler",
        },
        adapter_defaults=(
            "query",
            "key",
            "value",
            "attention_output",
            "embedding_projection",
            "pooler",
        ),
        repeats_layers=True,
    )
)
