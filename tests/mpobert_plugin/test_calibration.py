"""Calibration: matrices are decomposed, averaged and adapted as their inputs see them."""

from __future__ import annotations

import copy
import math

import pytest
import torch

import mpobert_plugin as mp
from mpobert_plugin.calibrate import input_metrics
from mpobert_plugin.errors import ConversionError

from .measures import SMALL, TWO, assert_honest, plan_of, total, weights
from .models import assert_untouched, ids, logits, snapshot, tiny_albert, tiny_bert


def peaked_bert():
    """Return a model whose matrices see inputs with few strong directions."""
    plain = tiny_bert(**SMALL).double()
    with torch.no_grad():
        for layer in plain.bert.encoder.layer:
            for norm in (layer.attention.output.LayerNorm, layer.output.LayerNorm):
                norm.weight.copy_(torch.logspace(0.7, -1.5, 16))
        plain.bert.embeddings.LayerNorm.weight.copy_(torch.logspace(0.7, -1.5, 16))
    return plain


def output_errors(plain, model, role, metrics):
    pairs = zip(weights(plain, role), weights(model, role), metrics, strict=True)
    return [
        math.sqrt(float(torch.trace((a - b) @ H @ (a - b).T) / torch.trace(a @ H @ a.T)))
        for a, b, H in pairs
    ]


BATCHES = [ids(8, 12), ids(3, 9)]


@pytest.mark.parametrize(
    "options",
    [
        {"max_bond": 4, "n": 3},
        {"n": 2, "max_bond": 5},
        {"max_bond": 4, "sharing": "all", "fit": "mean", "n": 3},
        {"max_bond": 6, "sharing": "albert", "fit": "mean", "n": 3},
        {"sharing": "groups:2", "fit": "mean", "n": 3},
        {"sharing": "all", "fit": "joint", "n": 3},
        pytest.param(
            {"sharing": "groups:2", "fit": "joint", "n": 3, "max_bond": 6, "gauge": "central"},
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {
                "sharing": "all",
                "fit": "joint",
                "n": 3,
                "adapter_rank": 3,
                "adapter_targets": TWO,
            },
            marks=pytest.mark.slow,
        ),
        {"max_bond": 4, "n": 3, "adapter_rank": 2, "adapter_fit": "residual"},
    ],
)
def test_calibration_lowers_the_errors_of_the_outputs(options):
    plain = peaked_bert()
    metrics = input_metrics(plain, BATCHES, TWO)
    blind = mp.convert(copy.deepcopy(plain), targets=TWO, **options)
    model = mp.convert(copy.deepcopy(plain), targets=TWO, **options, calibration=BATCHES)
    assert_honest(plain, model)
    sums = [0.0, 0.0]
    for spec in plan_of(model).banks:
        measured = output_errors(plain, model, spec.role, metrics[spec.role])
        assert spec.output_errors == pytest.approx(measured, rel=1e-4, abs=1e-9)
        sums[0] += sum(e * e for e in measured)
        sums[1] += sum(e * e for e in output_errors(plain, blind, spec.role, metrics[spec.role]))
    assert sums[0] < 0.95 * sums[1]
    assert all(not spec.output_errors for spec in plan_of(blind).banks)


@pytest.mark.parametrize("options", [{"sharing": "all"}, {"sharing": "groups:2", "max_bond": 8}])
def test_common_tensors_serve_inputs_that_were_not_shown(options):
    plain = peaked_bert()
    shown = [ids(16, 14)]
    held_out = torch.randint(1, 99, (16, 14), generator=torch.Generator().manual_seed(2))
    options = {"fit": "joint", "n": 3, "targets": ["ffn_in"], **options}
    blind = mp.convert(copy.deepcopy(plain), **options)
    seen = mp.convert(copy.deepcopy(plain), **options, calibration=shown)
    assert mp.account(seen).unique == mp.account(blind).unique
    mp.assert_shared(seen)
    with torch.no_grad():
        exact = plain.base_model(held_out)[0]
        before, after = ((m.base_model(held_out)[0] - exact).norm() for m in (blind, seen))
    assert after < 0.9 * before


def test_two_sites_are_the_whitened_svd():
    plain = peaked_bert()
    H = input_metrics(plain, BATCHES, ["ffn_in"])["ffn_in"]
    shapes = {"ffn_in": ((24, 1), (1, 16))}
    model = mp.convert(
        copy.deepcopy(plain), targets=["ffn_in"], shapes=shapes, max_bond=4, calibration=BATCHES
    )
    pairs = zip(weights(plain, "ffn_in"), weights(model, "ffn_in"), H, strict=True)
    for layer, (W, M, metric) in enumerate(pairs):
        damped = metric + 0.01 * metric.trace() / 16 * torch.eye(16)
        values, vectors = torch.linalg.eigh(damped)
        root = vectors * values.sqrt()
        best = torch.linalg.svdvals(W @ root)[4:].norm()
        torch.testing.assert_close(((W - M) @ root).norm(), best)
        # What is reported is the error on the inputs themselves.
        stored = plan_of(model).bank("ffn_in").output_errors[layer]
        values, vectors = torch.linalg.eigh(metric)
        spectrum = torch.linalg.svdvals(W @ (vectors * values.clamp_min(0).sqrt()))
        assert stored >= 0.999 * float(spectrum[4:].norm() / spectrum.norm())


def test_few_calibration_inputs_leave_no_direction_free():
    plain = tiny_bert().double()
    model = mp.convert(copy.deepcopy(plain), max_bond=6, n=3, targets=TWO, calibration=[ids(1, 3)])
    blind = mp.convert(copy.deepcopy(plain), max_bond=6, n=3, targets=TWO)
    assert total(plain, model) < 1.3 * total(plain, blind)


def test_exact_conversions_stay_exact_with_calibration():
    plain = tiny_bert(**SMALL).double()
    model = mp.convert(copy.deepcopy(plain), calibration=BATCHES)
    torch.testing.assert_close(logits(model), logits(plain))
    assert max(max(spec.output_errors) for spec in plan_of(model).banks) < 1e-12
    albert = tiny_albert().double()
    deep = mp.from_albert(albert, 4, calibration=BATCHES)
    torch.testing.assert_close(logits(deep), logits(albert))


def test_a_tolerance_is_one_of_the_outputs():
    plain = peaked_bert()
    options = {"rtol": 0.2, "n": 3, "targets": ["key"]}
    model = mp.convert(copy.deepcopy(plain), **options, calibration=BATCHES)
    blind = mp.convert(copy.deepcopy(plain), **options)
    assert max(plan_of(model).bank("key").output_errors) <= 0.2
    assert mp.account(model).unique < mp.account(blind).unique


def test_calibration_of_albert_and_of_matrices_beside_the_layers():
    albert = tiny_albert()
    options = {"max_bond": 6, "n": 3, "targets": ["value"]}
    model = mp.convert(copy.deepcopy(albert), **options, calibration=BATCHES)
    H = input_metrics(albert, BATCHES, ["value"])["value"]
    measured = output_errors(albert, model, "value", H)
    assert plan_of(model).bank("value").output_errors == pytest.approx(measured, rel=1e-4)
    targets = ["query", "embedding_projection", "embedding"]
    outside = mp.convert(albert, targets=targets, max_bond=4, n=2, calibration=BATCHES)
    found = {spec.role: spec for spec in plan_of(outside).outside}
    assert len(found["embedding_projection"].output_errors) == 1
    assert not found["embedding"].output_errors


def test_a_failing_batch_leaves_the_model_as_it_was():
    model = tiny_bert(**SMALL).train()
    before = snapshot(model)
    with pytest.raises(ConversionError, match="batch 1 of calibration"):
        mp.convert(model, max_bond=4, calibration=[ids(), torch.full((1, 3), 5000)])
    assert_untouched(model, before)
    assert model.training
