"""Models whose embedding cannot be converted, and limits by role."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

import mpobert_plugin as mp
from mpobert_plugin.errors import ConversionError, TargetError
from tests.mpobert_plugin.embeddings import (
    bank_of,
    check_twin,
    with_embedding,
)
from tests.mpobert_plugin.models import (
    assert_untouched,
    snapshot,
    tiny_bert,
)
from tests.mpobert_plugin.zoo import language_model

# What is refused


def _max_norm(model):
    model.bert.embeddings.word_embeddings.max_norm = 1.0


def _sparse(model):
    model.bert.embeddings.word_embeddings.sparse = True


def _by_frequency(model):
    model.bert.embeddings.word_embeddings.scale_grad_by_freq = True


def _subclass(model):
    class Scaled(nn.Embedding):
        pass

    model.bert.embeddings.word_embeddings = Scaled(99, 32)


def _hook(model):
    model.bert.embeddings.word_embeddings.register_forward_hook(lambda *_: None)


def _head_hook(model):
    model.cls.predictions.decoder.register_forward_hook(lambda *_: None)


def _untied(model):
    decoder = model.cls.predictions.decoder
    decoder.weight = nn.Parameter(decoder.weight.detach().clone())


def _tied_elsewhere(model):
    model.bert.embeddings.position_embeddings.weight = model.bert.embeddings.word_embeddings.weight


def _not_finite(model):
    with torch.no_grad():
        model.bert.embeddings.word_embeddings.weight[3, 4] = torch.nan


WORDS = r"bert\.embeddings\.word_embeddings"


@pytest.mark.parametrize(
    ("edit", "text"),
    [
        (_max_norm, WORDS + r" must have no max_norm, .* got 1: .* set max_norm to None"),
        (_sparse, WORDS + " must have sparse=False, got True"),
        (_by_frequency, WORDS + " must have scale_grad_by_freq=False, got True"),
        (_subclass, WORDS + " must be a plain Embedding, got Scaled"),
        (_hook, WORDS + " must have no hooks, got a forward hook"),
        (_head_hook, r"cls\.predictions\.decoder must have no hooks"),
        (_untied, r"decoder\.weight must be the parameter .*tie_word_embeddings is True"),
        (_tied_elsewhere, "position_embeddings.weight must be two parameters"),
        (_not_finite, WORDS + r"\.weight must be finite, got 1 .* index \(3, 4\)"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_models_that_cannot_be_converted_are_left_alone(edit, text):
    model = tiny_bert()
    edit(model)
    before = snapshot(model)
    with pytest.raises(ConversionError, match=text):
        with_embedding(model)
    assert_untouched(model, before)
    assert "resize_token_embeddings" not in vars(model)


def test_a_head_that_is_tied_against_the_configuration_is_refused():
    model = language_model("llama", tie_word_embeddings=False)
    model.lm_head.weight = model.model.embed_tokens.weight
    with pytest.raises(ConversionError, match=r"lm_head\.weight must be two parameters, got one"):
        with_embedding(model)


def test_a_pooler_that_is_not_there_is_no_target():
    with pytest.raises(TargetError, match=r"model \(.*embedding\), .* 'pooler' is close to none"):
        mp.convert(tiny_bert(), targets=["pooler"])
    with pytest.raises(TargetError, match="Did you mean 'embedding'"):
        mp.convert(tiny_bert(), targets=["embeding"])


def test_too_many_sites():
    with pytest.raises(ConversionError, match=r"word_embeddings .* at most 32 sites, got 70"):
        with_embedding(tiny_bert(), n=70)


# Bonds and tolerances of each role


def test_bonds_by_role():
    options = {"max_bond": {"embedding": 3, "query": 4, "*": 6}}
    model = with_embedding(tiny_bert(), "query", "key", **options)
    plan = model.config.quantization_config.plan
    assert [spec.bond_dims for spec in plan.banks] == [(1, 4, 4, 1), (1, 4, 6, 1)]
    assert plan.outside[0].bond_dims == (1, 3, 3, 1)
    stored = json.loads(json.dumps(model.config.quantization_config.to_dict()))
    assert stored["max_bond"] == options["max_bond"]
    assert mp.MPOConfig.from_dict(stored) == model.config.quantization_config


def test_tolerances_by_role():
    model = with_embedding(tiny_bert(), "query", rtol={"embedding": 0.5})
    plan = model.config.quantization_config.plan
    assert 0.1 < plan.outside[0].errors[0] <= 0.5
    assert max(plan.banks[0].errors) < 1e-6


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"max_bond": {"embeding": 3}}, "max_bond must name roles .* Did you mean 'embedding'"),
        ({"max_bond": {"key": 3}}, r"roles that are converted \(query, embedding\) or '\*'"),
        ({"rtol": {"key": 0.1}}, "rtol must name roles that are converted"),
        ({"max_bond": {"embedding": 0}}, r"max_bond\['embedding'\] must be an integer >= 1, got 0"),
        ({"rtol": {"*": 2.0}}, r"rtol\['\*'\] must be a number above 0 and below 1, got 2"),
        ({"max_bond": {}}, "max_bond must name roles and their limits"),
        ({"max_bond": {3: 3}}, "max_bond must name roles and their limits"),
        ({"max_bond": {"embedding": 3}, "gauge": "identity"}, "gauge 'identity' must be exact"),
    ],
)
def test_limits_that_mean_nothing(options, text):
    model = tiny_bert()
    before = snapshot(model)
    with pytest.raises(mp.errors.ConfigError, match=text):
        with_embedding(model, "query", **options)
    assert_untouched(model, before)


def test_shapes_by_role_and_by_size():
    shapes = {"embedding": ((10, 10), (4, 8))}
    model = with_embedding(tiny_bert(), "query", shapes=shapes)
    assert bank_of(model).spec.row_dims == (10, 10)
    for wrong in (((9, 10), (4, 8)), ((10, 10), (4, 9)), ((10, 0), (4, 8)), ((10,), (4, 8))):
        with pytest.raises(ConversionError, match=r"word_embeddings \(99 x 32\) does not fit"):
            with_embedding(tiny_bert(), shapes={"embedding": wrong})
    model = with_embedding(tiny_bert(), "query", shapes={32: (4, 2, 4)})
    assert bank_of(model).spec.col_dims == (4, 2, 4)
    assert bank_of(model).spec.row_dims == (4, 5, 5)
    check_twin(model.double())
