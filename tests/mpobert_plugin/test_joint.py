"""Layers that differ: decomposed together, adapters for what is left, and honest errors."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

import mpobert_plugin as mp
from mpobert_plugin.errors import ConfigError, ConversionError
from mpobert_plugin.init import joint as joint_file
from mpobert_plugin.parts import modules_at

from .measures import (
    SMALL,
    TWO,
    assert_honest,
    errors,
    plan_of,
    same_layers,
    total,
    weights,
)
from .models import (
    assert_untouched,
    checkpoint_layers,
    ids,
    logits,
    snapshot,
    tiny_albert,
    tiny_bert,
    twin_output,
)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("gauge", ["symmetric", "central"])
@pytest.mark.parametrize("sharing", ["all", "groups:2", "albert"])
def test_equal_layers_are_exact(dtype, gauge, sharing):
    plain = same_layers(tiny_bert(**SMALL).to(dtype))
    model = mp.convert(copy.deepcopy(plain), sharing=sharing, fit="joint", n=3, gauge=gauge)
    tolerance = {torch.float32: 1e-6, torch.float64: 1e-12}[dtype]
    assert max(max(spec.errors) for spec in plan_of(model).banks) < tolerance
    torch.testing.assert_close(
        logits(model), logits(plain), rtol=1e3 * tolerance, atol=1e2 * tolerance
    )


@pytest.mark.parametrize("sharing", ["all", "groups:2", [[0, 3], [1], [2]]])
@pytest.mark.parametrize("max_bond", [None, 6])
def test_joint_beats_the_mean_and_the_mean_beats_the_first(sharing, max_bond):
    plain = tiny_bert(**SMALL).double()
    found = {}
    for fit in ("joint", "mean", "first"):
        options = {"sharing": sharing, "fit": fit, "n": 3, "max_bond": max_bond, "targets": TWO}
        model = mp.convert(copy.deepcopy(plain), **options)
        assert_honest(plain, model)
        found[fit] = total(plain, model)
    assert found["joint"] < 0.95 * found["mean"]
    assert found["mean"] < 0.95 * found["first"]


def test_more_groups_lower_the_error():
    plain, options = tiny_bert(**SMALL), {"fit": "joint", "n": 3, "targets": TWO}
    found = [
        total(plain, mp.convert(copy.deepcopy(plain), sharing=sharing, **options))
        for sharing in ("all", "groups:2", "none")
    ]
    assert found[0] > found[1] > 0.05
    assert found[2] < 1e-6


@pytest.mark.parametrize("n", [1, 2, 3, 5])
@pytest.mark.parametrize("max_bond", [None, 5])
def test_sites_and_padding(n, max_bond):
    # 29 has no factors, so that its rows are padded.
    plain = tiny_bert(hidden_size=16, intermediate_size=29, num_attention_heads=2)
    options = {"sharing": "groups:2", "fit": "joint", "targets": ["ffn_in"], "n": n}
    model = mp.convert(copy.deepcopy(plain), **options, max_bond=max_bond)
    assert_honest(plain, model)
    mp.assert_shared(model)
    for spec in plan_of(model).banks:
        assert max(spec.bond_dims) <= (max_bond or 10**6)
        assert spec.auxiliary == (0, 1, 2, 3)


def test_the_network_is_that_of_its_dense_twin():
    options = {"sharing": "all", "fit": "joint", "n": 3, "adapter_rank": 2, "targets": TWO}
    model = mp.convert(tiny_bert(**SMALL).double(), **options)
    model.train()
    inputs = {"input_ids": ids(), "labels": ids()}
    output, twin = model(**inputs), twin_output(model, **inputs)
    torch.testing.assert_close(output.logits, twin.logits)
    names, parameters = zip(*model.named_parameters(), strict=True)
    own = torch.autograd.grad(output.loss, parameters, allow_unused=True)
    other = torch.autograd.grad(twin.loss, parameters, allow_unused=True)
    for name, a, b in zip(names, own, other, strict=True):
        assert (a is None) == (b is None), name
        if a is not None:
            torch.testing.assert_close(a, b, msg=name)


def test_gauges_are_of_the_same_matrices():
    options = {"sharing": "all", "fit": "joint", "n": 3, "targets": ["query"]}
    central, symmetric = (
        mp.convert(tiny_bert(**SMALL).double(), gauge=gauge, **options)
        for gauge in ("central", "symmetric")
    )
    for a, b in zip(weights(central, "query"), weights(symmetric, "query"), strict=True):
        torch.testing.assert_close(a, b)
    with torch.no_grad():
        # Isometric in the mean, with the norm in the central tensor.
        sides = central.base_model.mpo["query"].auxiliary_0
        gram = torch.einsum("alijr,alijs->rs", sides, sides) / 4
        torch.testing.assert_close(gram, torch.eye(len(gram), dtype=gram.dtype))
        # Half of the norm on either side of the bond: equal Gram matrices, in the mean.
        bank = symmetric.base_model.mpo["query"]
        before = torch.einsum("alijr,alijs->rs", bank.auxiliary_0, bank.auxiliary_0) / 4
        right = torch.einsum("alijr,amijr->lm", bank.auxiliary_2, bank.auxiliary_2) / 4
        seen = torch.einsum("alijr,rs->alijs", bank.central, right)
        torch.testing.assert_close(before, torch.einsum("alijr,amijr->lm", seen, bank.central))
        torch.testing.assert_close(before, torch.diag(before.diagonal()))


@pytest.mark.parametrize("fit", ["joint", "mean", "first"])
@pytest.mark.parametrize("alpha", [None, 12.0])
def test_adapters_lower_every_error(fit, alpha):
    plain = tiny_bert(**SMALL).double()
    options = {"sharing": "all", "fit": fit, "n": 3, "adapter_targets": TWO, "targets": TWO}
    given = {"adapter_rank": 3, "adapter_alpha": alpha, "adapter_fit": "residual"}
    bare = mp.convert(copy.deepcopy(plain), sharing="all", fit=fit, n=3, targets=TWO)
    model = mp.convert(copy.deepcopy(plain), **options, **given)
    assert_honest(plain, model)
    for role in TWO:
        for a, b, before, after in zip(
            weights(plain, role),
            weights(bare, role),
            errors(plain, bare, role),
            errors(plain, model, role),
            strict=True,
        ):
            # Nothing of rank 3 comes nearer to what the cores have left.
            tail = torch.linalg.svdvals(a - b)[3:]
            assert after == pytest.approx(float(tail.norm() / a.norm()), rel=1e-6, abs=1e-9)
            assert after < 0.99 * before or before < 1e-9
    bank = model.base_model.mpo["query"]
    assert bank.spec.adapter_scale == (alpha or 3.0) / 3
    # Both factors have the same singular values; the first layer may have nothing to add.
    up, down = bank.adapter_up[1:], bank.adapter_down[1:]
    torch.testing.assert_close(up.transpose(1, 2) @ up, down @ down.transpose(1, 2))


def test_adapters_of_other_matrices_start_without_effect():
    plain = tiny_bert(**SMALL)
    options = {"sharing": "all", "fit": "joint", "n": 3, "targets": TWO}
    adapters = {"adapter_rank": 2, "adapter_targets": ["query"]}
    model = mp.convert(copy.deepcopy(plain), **options, **adapters)
    bare = mp.convert(copy.deepcopy(plain), **options)
    specs = {spec.role: spec for spec in plan_of(model).banks}
    for spec in plan_of(bare).banks:
        if spec.role == "query":
            assert all(a < b for a, b in zip(specs["query"].errors, spec.errors, strict=True))
        else:
            assert specs[spec.role].errors == pytest.approx(spec.errors)
            assert not specs[spec.role].adapter_rank


def test_residuals_of_cuts_without_sharing():
    plain = tiny_bert(**SMALL)
    options = {"max_bond": 4, "n": 3, "adapter_rank": 2, "targets": TWO, "adapter_targets": TWO}
    zero = mp.convert(copy.deepcopy(plain), **options)
    fitted = mp.convert(copy.deepcopy(plain), **options, adapter_fit="residual")
    assert not zero.base_model.mpo["query"].adapter_up.any()
    assert_honest(plain, fitted)
    assert total(plain, fitted) < 0.95 * total(plain, zero)
    joint = mp.convert(copy.deepcopy(plain), sharing="all", fit="joint", **options)
    options |= {"sharing": "all", "fit": "joint", "adapter_fit": "zero"}
    asked = mp.convert(copy.deepcopy(plain), **options)
    assert joint.base_model.mpo["query"].adapter_up.any()
    assert not asked.base_model.mpo["query"].adapter_up.any()


def test_adapters_with_nothing_to_do_start_untrained():
    plain = same_layers(tiny_bert(**SMALL))
    model = mp.convert(plain, sharing="all", fit="joint", n=3, adapter_rank=4)
    bank = model.base_model.mpo["query"]
    assert not bank.adapter_up.any()
    assert float(bank.adapter_down.detach().std()) == pytest.approx(0.02, rel=0.2)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype):
    plain = tiny_bert(**SMALL).to(dtype)
    options = {"sharing": "all", "fit": "joint", "n": 3, "targets": ["query"], "adapter_rank": 2}
    model = mp.convert(copy.deepcopy(plain), **options)
    assert {p.dtype for p in model.parameters()} == {dtype}
    # The matrix of a forward is rounded once more.
    assert_honest(plain, model, rel=0.02, abs=1e-2)


def test_copies_save_and_load(tmp_path):
    plain = tiny_bert(**SMALL)
    options = {
        "sharing": "groups:2",
        "fit": "joint",
        "n": 3,
        "targets": ["query"],
        "adapter_rank": 2,
    }
    model = mp.convert(plain, **options, calibration=[ids()])
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path).eval()
    torch.testing.assert_close(logits(loaded), logits(model), rtol=0, atol=0)
    assert plan_of(loaded) == plan_of(model)
    assert plan_of(loaded).fit == "joint"
    assert all(len(spec.output_errors) == 4 for spec in plan_of(loaded).banks)
    mp.assert_shared(copy.deepcopy(loaded))


def test_biases_and_norms_are_averaged_only_when_asked():
    plain = tiny_bert(**SMALL)
    with torch.no_grad():
        for layer in plain.bert.encoder.layer:
            layer.output.LayerNorm.weight.normal_()
    options = {"sharing": "all", "fit": "joint", "n": 3, "targets": ["ffn_out"], "max_bond": 3}
    kept = mp.convert(copy.deepcopy(plain), **options)
    for k, layer in enumerate(plain.bert.encoder.layer):
        mine = kept.bert.encoder.layer[k]
        assert torch.equal(mine.output.LayerNorm.weight, layer.output.LayerNorm.weight)
        assert torch.equal(mine.output.dense.bias, layer.output.dense.bias)
    asked = mp.convert(plain, **options, share_bias=True, share_norm=True)
    biases = torch.stack([layer.output.dense.bias for layer in kept.bert.encoder.layer])
    torch.testing.assert_close(asked.bert.encoder.layer[2].output.dense.bias, biases.mean(0))


@pytest.mark.parametrize(
    ("options", "kind", "text"),
    [
        ({"gauge": "left"}, ConfigError, "gauge must be 'symmetric' or 'central' with fit='joint'"),
        ({"gauge": "identity"}, ConfigError, "gauge must be 'symmetric' or 'central'"),
        ({"rtol": 0.01}, ConversionError, r"rtol=0\.01 must hold .* fit='joint' leaves bert"),
        ({"calibration": []}, ConfigError, "calibration must hold at least one batch"),
        ({"adapter_fit": "residual"}, ConfigError, "adapter_fit needs adapter_rank >= 1"),
        (
            {"adapter_fit": "svd", "adapter_rank": 2},
            ConfigError,
            "adapter_fit must be 'residual' or 'zero', got 'svd'",
        ),
        ({"fit": "jiont"}, ConfigError, "fit must be 'joint' or 'mean' or 'first', got 'jiont'"),
    ],
)
def test_refusals_leave_the_model_as_it_was(options, kind, text):
    model = tiny_bert(**SMALL)
    before = snapshot(model)
    with pytest.raises(kind, match=text):
        mp.convert(model, **{"sharing": "all", "fit": "joint", "n": 3, **options})
    assert_untouched(model, before)


def test_a_promise_that_holds_is_kept():
    plain = tiny_bert(**SMALL)
    options = {"sharing": "all", "fit": "joint", "n": 3, "targets": TWO}
    model = mp.convert(copy.deepcopy(plain), **options, rtol=0.9)
    assert max(max(spec.errors) for spec in plan_of(model).banks) < 0.9
    exact = mp.convert(
        copy.deepcopy(plain), **options, rtol=1e-5, adapter_rank=16, adapter_targets=TWO
    )
    assert total(plain, exact) < 1e-5


def test_an_interruption_leaves_the_model_as_it_was(monkeypatch):
    model = tiny_bert(**SMALL)
    before, calls = snapshot(model), []

    def interrupted(*args, **options):
        calls.append(args)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(*args, **options)

    real = joint_file.tn.shared_mpo
    monkeypatch.setattr(joint_file.tn, "shared_mpo", interrupted)
    with pytest.raises(KeyboardInterrupt):
        mp.convert(model, sharing="all", fit="joint", n=3)
    assert_untouched(model, before)
    monkeypatch.undo()
    mp.convert(model, sharing="all", fit="joint", n=3, targets=["query"])


def test_nothing_is_printed(capfd):
    mp.convert(
        tiny_bert(**SMALL), sharing="all", fit="joint", n=3, targets=["query"], adapter_rank=2
    )
    assert capfd.readouterr() == ("", "")


def test_depth_of_an_albert():
    plain = tiny_albert(num_hidden_groups=2)
    model = mp.from_albert(plain, 4, fit="joint", n=3, adapter_rank=2, targets=["query"])
    assert plan_of(model).bank("query").central == (0, 0, 0, 0)
    assert max(plan_of(model).bank("query").errors) < 0.6
    checkpoint_layers(model.train(), reentrant=False)(ids()).logits.sum().backward()


def test_transposed_matrices():
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=99, n_embd=16, n_layer=3, n_head=2, n_positions=20)
    plain = GPT2LMHeadModel(config).eval()
    kept = [m.weight.detach().double().T for m in modules_at(plain, "attn.c_attn").values()]
    options = {"sharing": "all", "fit": "joint", "n": 3, "targets": ["query_key_value"]}
    adapters = {"adapter_rank": 3, "adapter_targets": ["query_key_value"]}
    model = mp.convert(copy.deepcopy(plain), **options, **adapters, calibration=[ids()])
    for spec in plan_of(model).banks:
        pairs = zip(kept, weights(model, spec.role), strict=True)
        measured = [float((a - b).norm() / a.norm()) for a, b in pairs]
        assert spec.errors == pytest.approx(measured, rel=1e-4)
