"""Rates and decay by kind: each trained parameter stands in one group, whatever the conversion."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    AlbertForPreTraining,
    BertForPreTraining,
    RobertaForMaskedLM,
)

import mpobert_plugin as mp
from mpobert_plugin.kinds import kinds_of
from mpobert_plugin.train.optimizers import make_optimizer
from mpobert_plugin.train.run import pretrain
from mpobert_plugin.train.settings import PretrainConfig
from mpobert_plugin.train.setup import DECAYED, _groups
from tests.mpobert_plugin.train.tiny import ALBERT, BERT, ROBERTA
from tests.mpobert_plugin.train.tiny_run import BASE, corpus_in, fresh

HOSTS = {AlbertForPreTraining: ALBERT, BertForPreTraining: BERT, RobertaForMaskedLM: ROBERTA}
RATED = ("central", "auxiliary", "adapter", "head")
MATRICES = ["query", "value", "ffn_in", "ffn_out"]


@st.composite
def models(draw):
    """Draw a plain or a converted model, some of it frozen."""
    kind = draw(st.sampled_from(list(HOSTS)))
    torch.manual_seed(0)
    model = kind(HOSTS[kind])
    if draw(st.booleans()):
        options = {
            "n": draw(st.sampled_from([2, 3])),
            "sharing": draw(st.sampled_from(["all", "none", "groups:2"])),
            "adapter_rank": draw(st.integers(0, 2)),
            "max_bond": draw(st.sampled_from([None, 2])),
            "share_bias": draw(st.booleans()),
            "share_norm": draw(st.booleans()),
            "targets": draw(st.sampled_from([None, MATRICES, [*MATRICES, "embedding"]])),
        }
        # ALBERT's layers are one module, and share all or nothing.
        if kind is AlbertForPreTraining:
            options["sharing"] = "all"
        mp.convert(model, fit="mean", **options)
    frozen = draw(st.sets(st.sampled_from(list(kinds_of(model))), max_size=2))
    for name in frozen:
        for parameter in kinds_of(model)[name].values():
            parameter.requires_grad_(False)
    return model


factors = st.sampled_from([0.0, 0.25, 1.0, 8.0])
configs = st.builds(
    PretrainConfig,
    optimizer=st.sampled_from(["lamb", "adamw"]),
    weight_decay=st.sampled_from([0.0, 0.01]),
    **{f"lr_{kind}": factors for kind in RATED},
)


@settings(max_examples=25, deadline=None)
@given(models(), configs)
def test_m27_each_trained_parameter_stands_in_one_group_of_its_kind(model, config):
    kinds = {id(p): kind for kind, named in kinds_of(model).items() for p in named.values()}
    groups = _groups(model, config)
    listed = [id(p) for group in groups for p in group["params"]]
    assert len(listed) == len(set(listed))
    assert set(listed) == {id(p) for p in model.parameters() if p.requires_grad}
    even = config.replace(**{f"lr_{kind}": 1.0 for kind in RATED})
    usual = {id(p): g["lr_scale"] for g in _groups(model, even) for p in g["params"]}
    for group in groups:
        assert {kinds[id(p)] for p in group["params"]} == {group["kind"]}
        factor = getattr(config, f"lr_{group['kind']}") if group["kind"] in RATED else 1.0
        for parameter in group["params"]:
            assert group["lr_scale"] == pytest.approx(factor * usual[id(parameter)])
        if group["weight_decay"]:
            assert group["kind"] in DECAYED
            assert all(p.dim() > 1 for p in group["params"])
            assert group["weight_decay"] == config.weight_decay
        else:
            matrices = group["kind"] in DECAYED and any(p.dim() > 1 for p in group["params"])
            assert config.weight_decay == 0.0 or not matrices
    found = make_optimizer(groups, config).param_groups
    assert [len(group["params"]) for group in found] == [len(g["params"]) for g in groups]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return corpus_in(tmp_path_factory.mktemp("corpus"))


@pytest.mark.parametrize("optimizer", ["lamb", "adamw"])
@pytest.mark.parametrize("kind", RATED)
def test_a_rate_of_zero_keeps_a_kind_and_moves_the_others(corpus, tmp_path, optimizer, kind):
    model = fresh(adapter_rank=2)
    before = {
        name: [p.detach().clone() for p in named.values()]
        for name, named in kinds_of(model).items()
    }
    config = BASE.replace(steps=2, optimizer=optimizer, save_every=0, **{f"lr_{kind}": 0.0})
    pretrain(model, corpus, config, tmp_path / "run", device="cpu")
    for name, named in kinds_of(model).items():
        pairs = zip(before[name], named.values(), strict=True)
        stays = [torch.equal(old, new) for old, new in pairs]
        assert all(stays) if name == kind else not any(stays), name
