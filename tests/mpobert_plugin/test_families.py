"""Every family with every head: exact, equal to its dense twin, saved and loaded."""

from __future__ import annotations

import pytest
import torch

import mpobert_plugin as mp
from mpobert_plugin.families import family_for, known_model_types
from mpobert_plugin.locate import base_of, layer_names
from tests.mpobert_plugin.models import noisy, stir_adapters, twin_output
from tests.mpobert_plugin.zoo import (
    APART,
    TYPES,
    config_of,
    heads_of,
    language_model,
    outputs,
    tiny,
    tokens,
)


def marks_of(kind, model_type):
    """Return which heads are left out every time: one of each type is always there."""
    if kind is heads_of(model_type)[0] or model_type in ("albert", "bert", "gpt2", "llama"):
        return []
    # Relatives have the classes of another type under other names.
    if model_type not in APART:
        return [pytest.mark.nightly]
    # Tasks have one linear layer each, and conversion touches none of them.
    return [] if kind.__name__.endswith(("LM", "PreTraining")) else [pytest.mark.slow]


HEADS = [
    pytest.param(kind, model_type, id=kind.__name__, marks=marks_of(kind, model_type))
    for model_type in TYPES
    for kind in heads_of(model_type)
]
POLICIES = ["none", "all", "groups:2", [[0, 3], [1, 2]], "albert"]
# RMS norms compute in float32 whatever the model is.
TOLERANCE = {"rms": 2e-5, "layer": 1e-9}


def largest_difference(ours, theirs):
    assert len(ours) == len(theirs)
    return max(float((a - b).abs().max()) for a, b in zip(ours, theirs, strict=True))


def check_twin(model):
    """Compare outputs and the gradient of every tensor with the dense twin's."""
    atol = TOLERANCE[family_for(model.config.model_type).norm_kind]
    names, parameters = zip(*model.named_parameters(), strict=True)
    ours, mine = run(outputs(model), parameters)
    twin = [
        value
        for value in twin_output(model, input_ids=tokens(model)).to_tuple()
        if isinstance(value, torch.Tensor)
    ]
    theirs, expected = run(twin, parameters)
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=10 * atol)
    seen = 0
    for name, a, b in zip(names, mine, expected, strict=True):
        assert (a is None) == (b is None), name
        if a is not None:
            torch.testing.assert_close(a, b, rtol=1e-7, atol=atol, msg=name)
            seen += ".mpo." in f".{name}"
    assert seen == sum(".mpo." in f".{name}" for name in names)


def run(values, parameters):
    floats = [value for value in values if value.is_floating_point()]
    weights = [torch.linspace(-1, 1, v.numel(), dtype=v.dtype).view_as(v) for v in floats]
    total = sum((w * v).sum() for w, v in zip(weights, floats, strict=True))
    return total.detach(), torch.autograd.grad(total, parameters, allow_unused=True)


def test_every_type_has_a_tiny_model():
    assert set(TYPES) == set(known_model_types())
    assert len(HEADS) > 90
    assert {head.values[1] for head in HEADS if not head.marks} == set(TYPES)


@pytest.mark.parametrize(("kind", "model_type"), HEADS)
def test_every_head(kind, model_type, tmp_path):
    torch.manual_seed(0)
    plain = noisy(kind(config_of(model_type, num_hidden_layers=3))).eval().double()
    fit = None if model_type == "albert" else "first"
    model = mp.convert(plain, n=3, sharing="groups:2", fit=fit, share_bias=True, share_norm=True)
    check_twin(model)
    model.save_pretrained(tmp_path)
    loaded = kind.from_pretrained(tmp_path)
    with torch.no_grad():
        assert largest_difference(outputs(loaded), outputs(model)) == 0.0
    mp.assert_shared(loaded)
    assert mp.account(loaded) == mp.account(model)


@pytest.mark.parametrize("sharing", POLICIES, ids=str)
@pytest.mark.parametrize("model_type", APART)
def test_dense_twins(model_type, sharing):
    model = tiny(model_type).double()
    mp.convert(model, n=3, sharing=sharing, fit="mean", adapter_rank=3)
    stir_adapters(model)
    check_twin(model)


@pytest.mark.parametrize("model_type", TYPES)
def test_without_options_nothing_changes(model_type):
    model = language_model(model_type)
    with torch.no_grad():
        before = outputs(model)
        mp.convert(model)
        assert largest_difference(outputs(model), before) < 3e-6


@pytest.mark.parametrize("model_type", TYPES)
def test_all_matrices_of_the_layers_are_found(model_type):
    model = tiny(model_type)
    layer = base_of(model).get_submodule(layer_names(model)[-1])
    family = family_for(model_type)
    plain = {name for name, m in layer.named_modules() if type(m).__name__ in ("Linear", "Conv1D")}
    assert plain == set(family.matrices.values())
    norms = {name for name, m in layer.named_modules() if "Norm" in type(m).__name__}
    own = {"self_attn.q_norm", "self_attn.k_norm"} if model_type == "qwen3" else set()
    assert norms == set(family.norms.values()) | own
    assert set(family.adapter_defaults) <= {*family.matrices, *family.beside}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("model_type", APART)
def test_element_types(model_type, dtype):
    plain = tiny(model_type, num_hidden_layers=2)
    model = mp.convert(tiny(model_type, num_hidden_layers=2).to(dtype))
    assert {parameter.dtype for parameter in model.parameters()} == {dtype}
    with torch.no_grad():
        ours, theirs = outputs(model), outputs(plain)
        error = {torch.float16: 3e-2, torch.bfloat16: 3e-1, torch.float64: 1e-5}[dtype]
        assert largest_difference(ours, theirs) < error
        assert {value.dtype for value in ours} == {dtype}


# MPNet has one path of its own, which all other tests take.
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("model_type", [name for name in APART if name != "mpnet"])
def test_attention_paths(model_type, attention):
    model = tiny(model_type, num_hidden_layers=2)
    model.set_attn_implementation(attention)
    mask = torch.ones(2, 7, dtype=torch.long)
    mask[1, 4:] = 0
    with torch.no_grad():
        before = model(tokens(model), attention_mask=mask)[0]
        mp.convert(model)
        assert model.config._attn_implementation == attention
        after = model(tokens(model), attention_mask=mask)[0]
        other = {"eager": "sdpa", "sdpa": "eager"}[attention]
        model.set_attn_implementation(other)
        switched = model(tokens(model), attention_mask=mask)[0]
    torch.testing.assert_close(after, before, rtol=0, atol=3e-6)
    torch.testing.assert_close(switched[0], before[0], rtol=0, atol=3e-6)
