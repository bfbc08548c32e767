"""The Llama family: gated feed-forward layers, RMS norms, and fewer keys than queries."""

from __future__ import annotations

from mpobert_plugin.families.family import Family, register_family

LLAMA = register_family(
    Family(
        name="llama",
        model_types=("llama", "mistral", "qwen2", "qwen3", "granite", "smollm3"),
        layer_pattern=r"layers\.\d+",
        embedding="embed_tokens",
        layer_counts=("num_hidden_layers",),
        matrices={
            "query": "self_attn.q_proj",
            "key": "self_attn.k_proj",
            "value": "self_attn.v_proj",
            "attention_output": "self_attn.o_proj",
            "ffn_gate": "mlp.gate_proj",
            "ffn_in": "mlp.up_proj",
            "ffn_out": "mlp.down_proj",
        },
        norms={"attention_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"},
        norm_kind="rms",
        adapter_defaults=("query", "key", "value", "attention_output"),
    )
)
