"""from_albert and build: depth, copies, and the variance of fresh weights."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import AlbertForSequenceClassification

import mpobert_plugin as mp
from mpobert_plugin.errors import ConfigError, ModelTypeError, MPOBertWarning, SharingError
from tests.mpobert_plugin.models import logits, tiny_albert, tiny_bert, tiny_pretraining

TINY = {
    "vocab_size": 99,
    "embedding_size": 16,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "max_position_embeddings": 40,
    "num_layers": 4,
    "shapes": None,
}


@pytest.mark.parametrize("make", [tiny_albert, tiny_pretraining])
@pytest.mark.parametrize("rank", [0, 4])
def test_same_depth_same_function(make, rank):
    albert = make().double()
    before = {name: tensor.clone() for name, tensor in albert.state_dict().items()}
    model = mp.from_albert(albert, 4, adapter_rank=rank)
    assert type(model) is type(albert)
    torch.testing.assert_close(logits(model), logits(albert), rtol=0, atol=1e-12)
    assert not hasattr(albert.config, "quantization_config")
    assert albert.config.num_hidden_groups == 1
    for name, tensor in albert.state_dict().items():
        assert torch.equal(tensor, before[name])
    assert not {id(p) for p in albert.parameters()} & {id(p) for p in model.parameters()}


@pytest.mark.parametrize("depth", [1, 3, 7, 12])
def test_any_depth(depth):
    albert = tiny_albert().double()
    deeper = copy.deepcopy(albert)
    deeper.config.num_hidden_layers = depth
    model = mp.from_albert(albert, depth)
    assert model.config.num_hidden_layers == model.config.num_hidden_groups == depth
    torch.testing.assert_close(logits(model), logits(deeper), rtol=0, atol=1e-12)
    central = model.albert.mpo["query"].central
    assert central.shape[0] == 1
    assert model.albert.mpo["query"].auxiliary_0.shape[0] == depth
    assert model.albert.mpo["query"].bias.shape[0] == 1
    assert model.albert.mpo["output_norm"].weight.shape[0] == 1


def test_groups_blocks_and_own_biases():
    albert = tiny_albert()
    model = mp.from_albert(albert, 6, sharing="groups:3", share_bias=False, share_norm="groups:2")
    assert model.albert.mpo["query"].central.shape[0] == 3
    assert model.albert.mpo["query"].bias.shape[0] == 6
    assert model.albert.mpo["attention_norm"].weight.shape[0] == 2
    config = mp.MPOConfig(n=3, max_bond=4)
    small = mp.from_albert(albert, 6, config=config)
    assert small.config.quantization_config.plan.banks[0].bond_dims == (1, 4, 4, 1)
    assert small.config.quantization_config.gauge == "symmetric"


def test_heads_are_kept():
    model = mp.from_albert(tiny_albert(AlbertForSequenceClassification), 3, adapter_rank=2)
    assert type(model) is AlbertForSequenceClassification
    roles = [spec.role for spec in model.config.quantization_config.plan.beside]
    assert roles == ["embedding_projection", "pooler"]


def test_sources_with_groups():
    albert = tiny_albert(num_hidden_groups=2).double()
    with pytest.raises(SharingError, match="must join equal tensors"):
        mp.from_albert(albert, 4)
    model = mp.from_albert(
        albert, 4, sharing="groups:2", share_bias="groups:2", share_norm="groups:2"
    )
    torch.testing.assert_close(logits(model), logits(albert), rtol=0, atol=1e-12)
    with pytest.warns(MPOBertWarning, match=r"groups \[1\] of the 2 groups"):
        mp.from_albert(albert, 1)
    paired = tiny_albert(inner_group_num=2)
    with pytest.raises(ConfigError, match="a multiple of the 2 layers of a group, got 5"):
        mp.from_albert(paired, 5, sharing="none")


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"num_layers": 0}, ConfigError, "num_layers must be an integer >= 1, got 0"),
        ({"num_layers": 2.0}, ConfigError, "num_layers must be an integer >= 1, got 2.0"),
        ({"deep_init": "zero"}, ConfigError, "deep_init must be one of 'copy', 'copy_scaled'"),
        ({"sharin": "all"}, ConfigError, "Did you mean 'sharing'"),
        ({"sharing": "some"}, SharingError, "got 'some'"),
    ],
)
def test_refusals(options, error, text):
    with pytest.raises(error) as caught:
        mp.from_albert(tiny_albert(), **options)
    assert text in str(caught.value)


def test_only_alberts():
    with pytest.raises(ModelTypeError, match="must be an ALBERT, got BertForMaskedLM"):
        mp.from_albert(tiny_bert(), 3)


@pytest.mark.parametrize("gauge", ["symmetric", "central", "left", "right"])
@pytest.mark.parametrize("options", [{}, {"max_bond": 9}, {"n": 3}, {"hidden_size": 60}])
def test_fresh_matrices_have_the_variance_of_the_host(gauge, options):
    torch.manual_seed(0)
    model = mp.build("mpobert-12", **{**TINY, "gauge": gauge, **options})
    for role in ("query", "ffn_in", "ffn_out"):
        stack = torch.stack(model.albert.mpo[role].weights()).detach()
        branch = 1 / 4 if role == "ffn_out" else 1.0
        assert float(stack.std()) == pytest.approx(0.02 * branch, rel=0.12)
        assert not torch.allclose(stack[0], stack[1])
    assert not model.albert.mpo["query"].bias.any()
    assert bool((model.albert.mpo["output_norm"].weight == 1).all())
    assert torch.isfinite(logits(model)).all()


def test_fresh_adapters_change_nothing_at_first():
    torch.manual_seed(0)
    model = mp.build("mpobert-12", adapter_rank=3, head="none", **TINY)
    assert not model.mpo["query"].adapter_up.any()
    assert float(model.mpo["query"].adapter_down.detach().std()) == pytest.approx(0.02, rel=0.1)
    assert model.pooler.rank == 3


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("mpobert-13",), "name must be one of mpobert-12, mpobert-24, mpobert-48, mpobert-48+"),
        (("mpobert-12", 0, "masked-lm"), "Did you mean 'masked_lm'"),
    ],
)
def test_unknown_presets(arguments, text):
    with pytest.raises(ConfigError) as caught:
        mp.build(*arguments)
    assert text in str(caught.value)
    with pytest.raises(ConfigError, match=r"build has no option 'hiden_size'. Did you mean"):
        mp.build("mpobert-12", device="meta", hiden_size=3)
