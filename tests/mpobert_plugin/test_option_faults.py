"""Options that cannot be followed, and those of a configuration that must be."""

from __future__ import annotations

import copy
import inspect
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import mpobert_plugin as mp
from mpobert_plugin.config import option_names
from mpobert_plugin.errors import ConfigError, ConversionError, ModelTypeError, SharingError
from tests.mpobert_plugin.models import assert_untouched, snapshot, tiny_albert, tiny_bert


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"adapter_rank": 4, "targets": ["ffn_in"]}, r"adapter_targets=\['ffn_in'\]"),
        ({"adapter_alpha": 3.0}, "adapter_alpha needs adapter_rank >= 1, got adapter_alpha 3.0"),
        ({"adapter_rank": 33}, r"at most 32 for bert\.\S+query \(32 x 32\), .* got 33"),
        ({"adapter_rank": 10**20}, "at most 32"),
        ({"shapes": {2.5: (4, 8)}}, "roles or sizes as keys, got 2.5"),
        ({"shapes": {None: (4, 8)}}, "roles or sizes as keys, got None"),
        ({"shapes": {True: (4, 8)}}, "roles or sizes as keys, got True"),
        ({"targets": 3}, "targets must list names, got 3"),
        ({"adapter_rank": 2, "adapter_targets": 3}, "adapter_targets must list names, got 3"),
        ({"gauge": ["left"]}, r"gauge must be .* got \['left'\]"),
        ({"ratios": 0.5}, "convert has no option 'ratios'. Did you mean 'ratio'"),
        ({"ratio": 1.5}, "ratio must be"),
        ({"max_params": 5}, "max_params must be at least 7,715 for this model"),
        ({"preset": "paper"}, "convert has no option 'preset'"),
        ({"plan": None}, "convert has no option 'plan'"),
    ],
)
def test_options_that_cannot_be_followed(options: dict[str, Any], text: str) -> None:
    model = tiny_bert()
    before = snapshot(model)
    with pytest.raises(ConfigError, match=text):
        mp.convert(model, **options)
    assert_untouched(model, before)


@pytest.mark.parametrize(
    "sharing", [[["a"], [0, 1, 2, 3]], [[0, "a"], [1]], [[None], [0]], b"all", np.arange(4), {0: 1}]
)
def test_sharing_of_another_kind(sharing: Any) -> None:
    with pytest.raises(SharingError, match="sharing must"):
        mp.convert(tiny_bert(), sharing=sharing)


def test_numbers_of_other_libraries() -> None:
    blocks: Any = [np.array([0, 1]).tolist(), [np.int64(2), np.int64(3)]]
    model = mp.convert(tiny_bert(), sharing=blocks, fit="first", n=np.int64(1))
    assert model.config.quantization_config.sharing == [[0, 1], [2, 3]]
    rtol = mp.convert(tiny_bert(), rtol=np.float32(0.5)).config.quantization_config.rtol
    assert (type(rtol), rtol) == (float, 0.5)
    assert mp.from_albert(tiny_albert(), np.int64(3)).config.num_hidden_layers == 3


@pytest.mark.parametrize("fit", ["mean", "first"])
def test_rtol_is_kept_after_a_fit_or_refused(fit: str) -> None:
    model = tiny_bert()
    before = snapshot(model)
    with pytest.raises(
        ConversionError, match=rf"rtol=0\.01 .* fit='{fit}' leaves bert\S+ \d\.\d+ off"
    ):
        mp.convert(model, rtol=0.01, sharing="all", fit=fit)
    assert_untouched(model, before)
    equal = tiny_bert()
    for layer in equal.bert.encoder.layer[1:]:
        layer.load_state_dict(equal.bert.encoder.layer[0].state_dict())
    converted = mp.convert(equal, rtol=0.01, sharing="all", fit=fit)
    assert max(converted.config.quantization_config.plan.bank("query").errors) <= 0.01


def test_rtol_is_compared_with_rounded_errors() -> None:
    equal = tiny_bert()
    for layer in equal.bert.encoder.layer[1:]:
        layer.load_state_dict(equal.bert.encoder.layer[0].state_dict())
    for k in range(6):
        model = copy.deepcopy(equal)
        mp.convert(model, n=2, rtol=0.3123456789 + k / 70, sharing="all", fit="mean")


def test_make_plan_checks_its_arguments() -> None:
    for model in (None, nn.Linear(2, 2)):
        with pytest.raises(ModelTypeError, match=type(model).__name__):
            mp.make_plan(model, mp.MPOConfig())  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="got dict"):
        mp.make_plan(tiny_bert(), {"n": 3})  # type: ignore[arg-type]


# from_albert and build


def test_from_albert_follows_its_configuration() -> None:
    config = mp.MPOConfig(sharing="groups:2", adapter_rank=3, share_bias=False, n=3)
    model = mp.from_albert(tiny_albert(), 4, config=config)
    plan = model.config.quantization_config.plan
    assert plan.bank("query").central == (0, 0, 1, 1)
    assert plan.bank("query").bias == (0, 1, 2, 3)
    assert plan.bank("query").adapter_rank == 3
    assert plan.norms[0].slices == (0, 0, 0, 0)
    again = mp.from_albert(tiny_albert(), 4, sharing="all", adapter_rank=0, config=config)
    assert again.config.quantization_config.plan.bank("query").central == (0, 0, 0, 0)
    assert again.config.quantization_config.plan.bank("query").adapter_rank == 0


def test_from_albert_without_configuration_shares_all() -> None:
    plan = mp.from_albert(tiny_albert(), 3, n=3).config.quantization_config.plan
    assert plan.bank("query").central == plan.bank("query").bias == (0, 0, 0)
    assert plan.bank("query").auxiliary == (0, 1, 2)
    assert plan.norms[0].slices == (0, 0, 0)
    with pytest.raises(ConfigError, match="from_albert has no option 'shareing'"):
        mp.from_albert(tiny_albert(), 3, shareing="all")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"num_hidden_layers": 4}, "'num_hidden_layers', got 4. .* num_layers="),
        ({"num_hidden_groups": 3}, "num_hidden_groups"),
        ({"inner_group_num": 2}, "inner_group_num"),
        ({"rtol": 0.1}, "rtol"),
        ({"fit": "mean"}, "fit"),
        ({"plan": None}, "build has no option 'plan'"),
        ({"gauge": "middle"}, "gauge must be 'symmetric' or 'central' or 'left'"),
        ({"num_layers": 0}, "num_layers must be an integer >= 1, got 0"),
        ({"num_layers": "4"}, "num_layers must be an integer >= 1, got '4'"),
        ({"num_layer": 4}, "Did you mean 'num_layers'"),
        ({"dtype": "int8"}, "dtype must be a floating-point type .* got 'int8'"),
        ({"device": "nope"}, "device must be one of this machine, got 'nope'"),
        ({"vocab_size": 0}, "vocab_size must be an integer >= 1, got 0"),
        ({"vocab_size": "x"}, "vocab_size"),
        ({"num_attention_heads": 7}, "multiple of num_attention_heads, got 768 and 7"),
        ({"hidden_act": 3}, "hidden_act"),
        ({"head": ["none"]}, "head must be one of"),
        ({"to_dict": 1}, "build has no option 'to_dict'"),
    ],
)
def test_build_follows_every_option_or_refuses(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        mp.build("mpobert-12", **{"device": "meta", **options})


@pytest.mark.parametrize(
    ("function", "given", "further"),
    [
        (mp.convert, (tiny_bert,), set()),
        (mp.from_albert, (tiny_albert,), set(option_names())),
        (mp.build, (lambda: "mpobert-12",), {"n", "sharing", "hidden_size", "hidden_act"}),
        (mp.MPOConfig, (), set()),
    ],
)
def test_every_option_is_among_the_known_names(function, given, further) -> None:
    parameters = [p for p in inspect.signature(function).parameters.values() if p.name != "plan"]
    named = {p.name for p in parameters if p.kind is not p.VAR_KEYWORD}
    with pytest.raises(ConfigError, match="has no option 'zzzz'") as error:
        function(*(make() for make in given), zzzz=1)
    known = str(error.value).partition("Known names: ")[2].removesuffix(".").split(", ")
    assert (named | further) - set(known) <= {"model", "albert", "name"}
    assert len(set(known)) == len(known)


def test_names_that_build_could_only_ignore_are_not_told_as_known() -> None:
    with pytest.raises(ConfigError) as error:
        mp.build("mpobert-12", zzzz=1)
    known = str(error.value).partition("Known names: ")[2].removesuffix(".").split(", ")
    assert not {"rtol", "ratio", "fit", "num_hidden_layers", "_name_or_path"} & set(known)


def test_build_refuses_what_is_no_name() -> None:
    with pytest.raises(ConfigError, match="name must be one of"):
        mp.build(["mpobert-12"])  # type: ignore[arg-type]


def test_build_with_other_sizes_sites_and_types() -> None:
    small: dict[str, Any] = {"device": "meta", "head": "none", "num_layers": np.int64(2)}
    model = mp.build("mpobert-12", n=3, **small)
    assert len(model.mpo["query"].spec.row_dims) == 3
    assert model.config.num_hidden_layers == 2
    model = mp.build("mpobert-12", hidden_size=96, **small)
    assert model.mpo["query"].spec.rows == 96
    assert model.mpo["ffn_in"].spec.row_dims == (4, 4, 8, 6, 4)
    for dtype in ("float16", torch.bfloat16, torch.float64):
        model = mp.build("mpobert-12", dtype=dtype, **small)
        assert {p.dtype for p in model.parameters()} == {model.dtype} == {model.config.dtype}
