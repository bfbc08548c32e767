"""The GPT-2 family: query, key and value are one matrix, and all are stored transposed."""

from __future__ import annotations

from mpobert_plugin.families.family import Family, register_family

GPT2 = register_family(
    Family(
        name="gpt2",
        model_types=("gpt2",),
        layer_pattern=r"h\.\d+",
        embedding="wte",
        layer_counts=("num_hidden_layers",),
        matrices={
            "query_key_value": "attn.c_attn",
            "attention_output": "attn.c_proj",
            "ffn_in": "mlp.c_fc",
            "ffn_out": "mlp.c_proj",
        },
        norms={"attention_norm": "ln_1", "ffn_norm": "ln_2"},
        adapter_defaults=("query_key_value", "attention_output"),
    )
)
