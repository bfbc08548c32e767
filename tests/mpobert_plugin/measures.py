"""What a conversion did to matrices, measured on the dense ones."""

from __future__ import annotations

import math

import pytest
import torch

from mpobert_plugin.locate import family_of
from mpobert_plugin.parts import modules_at

SMALL = {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2}
# Two kinds of matrices are enough for most questions.
TWO = ["query", "ffn_in"]


def plan_of(model):
    return model.config.quantization_config.plan


def weights(model, role):
    modules = modules_at(model, family_of(model).matrices[role])
    return [module.weight.detach().double() for module in modules.values()]


def errors(plain, model, role):
    """Measure the relative errors of a role from the dense matrices."""
    pairs = zip(weights(plain, role), weights(model, role), strict=True)
    return [float((a - b).norm() / a.norm()) for a, b in pairs]


def total(plain, model):
    """Measure the relative error of all matrices together."""
    missing = norm = 0.0
    for role in plan_of(model).roles():
        if role not in family_of(plain).matrices:
            continue
        for a, b in zip(weights(plain, role), weights(model, role), strict=True):
            missing += float((a - b).square().sum())
            norm += float(a.square().sum())
    return math.sqrt(missing / norm)


def assert_honest(plain, model, rel=1e-5, abs=1e-7):  # noqa: A002
    """Compare the stored errors and norms with the dense matrices."""
    for spec in plan_of(model).banks:
        measured = [errors(plain, model, spec.role)[k] for k in spec.layer_numbers]
        norms = [float(weights(plain, spec.role)[k].norm()) for k in spec.layer_numbers]
        assert spec.errors == pytest.approx(measured, rel=rel, abs=abs)
        assert spec.norms == pytest.approx(norms, rel=1e-5)


def same_layers(plain):
    """Give every layer the matrices of the first one."""
    with torch.no_grad():
        for path in family_of(plain).matrices.values():
            first, *rest = modules_at(plain, path).values()
            for module in rest:
                module.weight.copy_(first.weight)
    return plain
