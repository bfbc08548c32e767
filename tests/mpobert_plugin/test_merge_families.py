"""Models of every family merge into what the plain class has: Conv1D, RMS norms, rotary buffers."""

from __future__ import annotations

import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
)
from transformers.pytorch_utils import Conv1D

import mpobert_plugin as mp
from tests.mpobert_plugin.models import ids, noisy, stir_adapters

SMALL = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4}
ENCODER = {**SMALL, "intermediate_size": 64, "max_position_embeddings": 40, "pad_token_id": 0}
MODELS = {
    "roberta": ENCODER,
    "xlm-roberta": ENCODER,
    "electra": {**ENCODER, "embedding_size": 16},
    "mpnet": ENCODER,
    "distilbert": {
        "vocab_size": 99,
        "dim": 32,
        "hidden_dim": 64,
        "n_layers": 3,
        "n_heads": 4,
        "max_position_embeddings": 40,
    },
    "gpt2": {"vocab_size": 99, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 40},
    "llama": {
        **SMALL,
        "intermediate_size": 64,
        "num_key_value_heads": 2,
        "max_position_embeddings": 40,
    },
    "qwen2": {
        **SMALL,
        "intermediate_size": 64,
        "num_key_value_heads": 2,
        "max_position_embeddings": 40,
        "tie_word_embeddings": True,
    },
}
CAUSAL = ("gpt2", "llama", "qwen2")


def tiny(kind, auto=None):
    torch.manual_seed(0)
    auto = auto or (AutoModelForCausalLM if kind in CAUSAL else AutoModelForMaskedLM)
    return noisy(auto.from_config(AutoConfig.for_model(kind, **MODELS[kind]))).eval()


def out(model):
    with torch.no_grad():
        return model(ids() % 90 + 5).logits


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize(
    "options",
    [{"max_bond": 4}, {"sharing": "all", "fit": "mean", "share_norm": True, "adapter_rank": 2}],
    ids=["cut", "shared"],
)
def test_every_family_merges(kind, options):
    model = mp.convert(tiny(kind), **options)
    stir_adapters(model)
    merged, report = mp.merge_with_report(model)
    torch.testing.assert_close(out(merged), out(model), rtol=0, atol=1e-5)
    fresh = type(model)(merged.config)
    assert {n: t.shape for n, t in merged.state_dict().items()} == {
        n: t.shape for n, t in fresh.state_dict().items()
    }
    for (name, ours), theirs in zip(merged.named_modules(), fresh.modules(), strict=True):
        assert type(ours) is type(theirs), name
    assert report.largest < 1e-7


@pytest.mark.parametrize("kind", MODELS)
def test_a_saved_one_loads_bit_for_bit(kind, tmp_path):
    merged = mp.merge(mp.convert(tiny(kind), max_bond=4))
    merged.save_pretrained(tmp_path)
    loaded, info = type(merged).from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values()), info
    torch.testing.assert_close(out(loaded), out(merged), rtol=0, atol=0)


@pytest.mark.parametrize("kind", CAUSAL)
def test_causal_ones_generate_the_same(kind):
    model = mp.convert(tiny(kind), max_bond=6)
    merged = mp.merge(model)
    options = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    given = {"input_ids": ids(), "attention_mask": torch.ones_like(ids())}
    assert torch.equal(merged.generate(**given, **options), model.generate(**given, **options))
    assert (merged.lm_head.weight is merged.get_input_embeddings().weight) == (kind != "llama")


def test_gpt2_gets_its_transposed_matrices_back():
    plain = tiny("gpt2")
    before = {name: p.detach().clone() for name, p in plain.named_parameters()}
    merged = mp.merge(mp.convert(plain, gauge="identity"))
    assert isinstance(merged.transformer.h[1].attn.c_proj, Conv1D)
    for name, parameter in merged.named_parameters():
        torch.testing.assert_close(parameter, before[name], rtol=0, atol=0)
        assert parameter.is_contiguous()


def test_buffers_of_rotary_embeddings_keep_their_precision():
    merged = mp.merge(mp.convert(tiny("llama"), max_bond=4), torch.bfloat16)
    assert merged.dtype == torch.bfloat16
    assert merged.model.rotary_emb.inv_freq.dtype == torch.float32
    assert torch.isfinite(out(merged)).all()


def test_a_classifier_of_each_kind_keeps_its_head():
    for kind in ("roberta", "distilbert", "gpt2", "llama"):
        model = tiny(kind, AutoModelForSequenceClassification)
        model.config.pad_token_id = 0
        mp.convert(model, max_bond=4)
        torch.testing.assert_close(out(mp.merge(model)), out(model), rtol=0, atol=1e-5)
