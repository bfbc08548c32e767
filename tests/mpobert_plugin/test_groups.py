"""param_groups: every parameter once, decay and rates by role, depth and optimizer."""

from __future__ import annotations

import pytest
import torch
from transformers import AlbertForPreTraining, RobertaConfig, RobertaForMaskedLM

import mpobert_plugin as mp
from mpobert_plugin.errors import ConfigError, ModelTypeError
from mpobert_plugin.kinds import KINDS, kinds_of
from tests.mpobert_plugin.models import SIZES, ids, noisy, tiny_albert, tiny_bert

OPTIMIZERS = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "lamb": mp.train.Lamb,
}


def tiny_roberta():
    torch.manual_seed(0)
    sizes = {**SIZES, "max_position_embeddings": 42}
    return noisy(RobertaForMaskedLM(RobertaConfig(**sizes)))


MODELS = {
    "bert": lambda: mp.convert(tiny_bert(), sharing="all", fit="mean", adapter_rank=2),
    "bert, own": lambda: mp.convert(tiny_bert()),
    "bert, plain": tiny_bert,
    "bert, query alone": lambda: mp.convert(tiny_bert(), targets=["query"], max_bond=3),
    "roberta": lambda: mp.convert(tiny_roberta(), sharing="groups:2", fit="first"),
    "albert": lambda: mp.from_albert(tiny_albert(), 6, adapter_rank=2, share_norm=False),
    "albert, plain": tiny_albert,
    "heads": lambda: mp.from_albert(tiny_albert(AlbertForPreTraining), 3),
    "pooler and embedding": lambda: mp.convert(
        tiny_albert(AlbertForPreTraining), targets=["query", "embedding", "pooler"]
    ),
}


class TestPartition:
    @pytest.mark.parametrize("optimizer", OPTIMIZERS)
    @pytest.mark.parametrize("name", MODELS)
    def test_m27_each_parameter_is_in_one_group(self, name, optimizer):
        model = MODELS[name]()
        groups = mp.param_groups(model, optimizer, lr=1e-3)
        listed = [id(p) for group in groups for p in group["params"]]
        assert len(set(listed)) == len(listed)
        assert set(listed) == {id(p) for p in model.parameters()}
        numbers = sum(p.numel() for group in groups for p in group["params"])
        assert numbers == mp.account(model).unique
        assert all(group["params"] for group in groups)

    @pytest.mark.parametrize("name", MODELS)
    def test_m27_no_bias_and_no_norm_decays_whatever_is_asked(self, name):
        model = MODELS[name]()
        kinds = ["central", "auxiliary", "adapter", "embedding", "head", "dense"]
        groups = mp.param_groups(model, lr=1e-3, decayed=kinds)
        decayed = {id(p) for g in groups if g["weight_decay"] for p in g["params"]}
        norms = {
            id(p)
            for module in model.modules()
            if "Norm" in type(module).__name__
            for p in module.parameters(recurse=False)
        }
        biases = {id(p) for n, p in model.named_parameters() if n.endswith("bias")}
        assert norms
        assert not decayed & (norms | biases)
        matrices = {id(p) for n, p in model.named_parameters() if p.dim() > 1} - norms - biases
        assert decayed == matrices - {id(p) for k in () for p in k}

    def test_by_default_central_tensors_and_adapters_decay(self):
        model = MODELS["albert"]()
        for group in mp.param_groups(model, lr=1e-3, weight_decay=0.1):
            assert group["weight_decay"] == (0.1 if group["kind"] in ("central", "adapter") else 0)
            kinds = kinds_of(model)[group["kind"]]
            assert {id(p) for p in group["params"]} <= {id(p) for p in kinds.values()}

    @pytest.mark.parametrize("name", OPTIMIZERS)
    def test_optimizers_take_them(self, name):
        model = MODELS["albert"]().train()
        kinds = (name, OPTIMIZERS[name], OPTIMIZERS[name](model.parameters(), lr=1.0))
        groups = [mp.param_groups(model, given, lr=1e-2) for given in kinds]
        plain = [[{**g, "params": len(g["params"])} for g in made] for made in groups]
        assert plain[0] == plain[1] == plain[2]
        optimizer = OPTIMIZERS[name](groups[0])
        before = [p.detach().clone() for p in model.parameters()]
        model(ids(), labels=ids()).loss.backward()
        optimizer.step()
        moved = [not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True)]
        assert sum(moved) > 0.9 * len(moved)
        assert [group["kind"] for group in optimizer.param_groups] == sorted(
            (group["kind"] for group in groups[0]), key=KINDS.index
        )


class TestRates:
    def rates(self, model, optimizer, **options):
        groups = mp.param_groups(model, optimizer, lr=1.0, **options)
        return {id(p): group["lr"] for group in groups for p in group["params"]}

    @pytest.mark.parametrize(
        ("optimizer", "shared", "own"),
        [("sgd", 4.0, 2.0), ("adam", 2.0, 2.0), ("adamw", 2.0, 2.0), ("lamb", 2.0, 2.0)],
    )
    def test_biases_and_norms_go_by_the_depth(self, optimizer, shared, own):
        model = mp.from_albert(tiny_albert(), 6, share_norm=False)
        rates = self.rates(model, optimizer)
        banks = model.base_model.mpo
        assert rates[id(banks["query"].bias)] == shared
        assert rates[id(banks["output_norm"].weight)] == own
        assert rates[id(banks["query"].central)] == 1.0
        assert rates[id(banks["query"].auxiliary_0)] == 1.0
        assert rates[id(model.albert.embeddings.LayerNorm.weight)] == 1.0
        assert rates[id(model.predictions.bias)] == 1.0
        assert set(self.rates(model, optimizer, depth_rates=False).values()) == {1.0}

    def test_the_usual_depth_has_the_usual_rates(self):
        model = mp.build("mpobert-12", device="meta")
        for optimizer in ("sgd", "lamb"):
            assert set(self.rates(model, optimizer).values()) == {1.0}
        assert set(self.rates(tiny_bert(), "adam").values()) == {1.0}

    @pytest.mark.parametrize("optimizer", OPTIMIZERS)
    def test_scaled_auxiliary_tensors(self, optimizer):
        model = mp.from_albert(tiny_albert(), 8, deep_init="copy_scaled", scale="per_core")
        rates = self.rates(model, optimizer)
        banks = model.base_model.mpo
        adam = optimizer.startswith("adam")
        assert rates[id(banks["value"].auxiliary_1)] == (0.5 if adam else 1.0)
        assert rates[id(banks["query"].auxiliary_1)] == 1.0
        assert rates[id(banks["value"].central)] == 1.0

    def test_factors_by_kind(self):
        model = mp.from_albert(tiny_albert(), 6)
        rates = self.rates(model, "lamb", rates={"central": 0.5, "norm": 3.0, "head": 0})
        banks = model.base_model.mpo
        assert rates[id(banks["value"].central)] == 0.5
        assert rates[id(banks["output_norm"].bias)] == 6.0
        assert rates[id(model.predictions.dense.weight)] == 0.0

    def test_lamb_is_told_what_is_stacked(self):
        model = mp.from_albert(tiny_albert(), 6, adapter_rank=2)
        stacked = {id(p) for b in model.base_model.mpo.stacked() for p in b.parameters()}
        for group in mp.param_groups(model, "lamb", lr=1.0):
            assert {id(p) in stacked for p in group["params"]} == {group["stacked"]}
            assert group["adapt"] == (
                group["kind"] not in ("bias", "norm") and group["params"][0].dim() > 1
            )
        assert "stacked" not in mp.param_groups(model, "adam", lr=1.0)[0]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"optimizer": "adan"}, "optimizer must be one of sgd, adam, adamw, lamb, got 'adan'"),
        ({"optimizer": torch.optim.RMSprop}, "got 'RMSprop'"),
        ({"optimizer": None}, "got 'NoneType'"),
        ({"lr": -1.0}, "lr must be a number >= 0, got -1.0"),
        ({"lr": "1e-3"}, "lr must be a number >= 0, got '1e-3'"),
        ({"weight_decay": float("nan")}, "weight_decay must be a number >= 0, got nan"),
        ({"decayed": ["norm"]}, "decayed must name kinds of tensors, got 'norm'"),
        ({"decayed": 3}, "decayed must name kinds of tensors, got 3"),
        ({"rates": {"centre": 1.0}}, "got 'centre'. Did you mean 'central'?"),
        ({"rates": {"central": -1}}, "rates['central'] must be a number >= 0, got -1"),
        ({"rates": 0.5}, "rates must map kinds to factors, got 0.5"),
    ],
)
def test_refusals(options, text):
    with pytest.raises(ConfigError) as caught:
        mp.param_groups(tiny_albert(), **{"lr": 1e-3, **options})
    assert text in str(caught.value)


def test_only_models():
    with pytest.raises(ModelTypeError):
        mp.param_groups(torch.nn.Linear(2, 2), lr=1e-3)
