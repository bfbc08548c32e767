"""The DistilBERT family: BERT's layers, half as many, without a pooler."""

from __future__ import annotations

from mpobert_plugin.families.family import Family, register_family

DISTILBERT = register_family(
    Family(
        name="distilbert",
        model_types=("distilbert",),
        layer_pattern=r"transformer\.layer\.\d+",
        embedding="embeddings.word_embeddings",
        layer_counts=("num_hidden_layers",),
        matrices={
            "query": "attention.q_lin",
            "key": "attention.k_lin",
            "value": "attention.v_lin",
            "attention_output": "attention.out_lin",
            "ffn_in": "ffn.lin1",
            "ffn_out": "ffn.lin2",
        },
        norms={"attention_norm": "sa_layer_norm", "output_norm": "output_layer_norm"},
        adapter_defaults=("query", "key", "value", "attention_output"),
    )
)
