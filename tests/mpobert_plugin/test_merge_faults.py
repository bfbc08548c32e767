"""What cannot be merged is refused by name, and the model stays as it was."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

import mpobert_plugin as mp
from mpobert_plugin.errors import ConfigError, ConversionError, ModelTypeError
from tests.mpobert_plugin.models import logits, stir_adapters, tiny_albert, tiny_bert

NAME = "bert.encoder.layer.0.attention.self.query"


def refused(model, message, kind=ConversionError, **options):
    with pytest.raises(kind, match=re.escape(message)):
        mp.merge(model, **options)


def test_plain_models_and_other_things():
    refused(tiny_bert(), "model must be converted, got a plain BertForMaskedLM.")
    refused(nn.Linear(2, 2), "model must be a model of transformers, got Linear.", ModelTypeError)
    wrapped = nn.DataParallel(mp.convert(tiny_bert()))
    refused(wrapped, "Pass the model inside the wrapper.", ModelTypeError)


@pytest.mark.parametrize("dtype", [torch.int8, "float16", torch.complex64, float])
def test_element_types_that_models_do_not_have(dtype):
    model = mp.convert(tiny_bert())
    refused(model, "dtype must be one of torch.float16, ", ConfigError, dtype=dtype)
    refused(model, f"got {dtype!r}.", ConfigError, dtype=dtype)


def test_an_entry_that_the_type_cannot_hold():
    model = mp.convert(tiny_bert(), targets=["query"])
    with torch.no_grad():
        model.bert.mpo["query"].central.mul_(1e8)
    message = f"dtype must hold every entry of {NAME}, got float16 with largest value 6.55e+04 for"
    refused(model, message, ConfigError, dtype=torch.float16)
    assert torch.isfinite(mp.merge(model, torch.bfloat16).get_submodule(NAME).weight).all()


def test_numbers_that_are_none():
    model = mp.convert(tiny_bert(), targets=["query"])
    with torch.no_grad():
        model.bert.mpo["query"].auxiliary_0[0, 0, 0, 0, 0] = float("nan")
    refused(model, f"the matrix of {NAME} must be finite, got")


def test_a_model_without_values():
    model = mp.build("mpobert-12", head="none", device="meta")
    refused(model, "must have values, got a tensor on the meta device.")


def test_a_model_that_accelerate_moves():
    from accelerate import dispatch_model

    model = mp.convert(tiny_bert())
    dispatch_model(model, {"": "cpu"}, force_hooks=True)
    refused(model, "with a hook of accelerate, which moves tensors.")


def test_a_configuration_that_was_changed():
    model = mp.convert(tiny_bert())
    model.config.num_hidden_layers = 2
    refused(model, "bert.encoder.layer.2.attention.self.query must have its place in a plain Bert")
    model.config.num_hidden_layers = 4
    model.config.intermediate_size = 48
    refused(model, "must have the parameters {'weight': (48, 32), 'bias': (48,)} of a plain model")


class TestM08AdapterOfOneLayerInASharedMatrix:
    def test_two_layers_of_one_matrix_keep_their_own_adapters(self):
        # I2 shared by two layers with adapters [[0, 1], [0, 0]] and [[0, 0], [1, 0]]: (1, 1)
        # becomes (2, 3); both in the shared matrix would make it (4, 4).
        from mpobert_plugin.exact import exact_values
        from mpobert_plugin.spec import BankSpec

        maps = ((0, 0), (0, 0), None)
        bank = mp.MPOBank(BankSpec("query", 2, 2, (2,), (2,), (1, 1), *maps, 1, 1.0))
        with torch.no_grad():
            bank.central.copy_(torch.eye(2).view(1, 1, 2, 2, 1))
            bank.adapter_up.copy_(torch.tensor([[[1.0], [0.0]], [[0.0], [1.0]]]))
            bank.adapter_down.copy_(torch.tensor([[[0.0, 1.0]], [[1.0, 0.0]]]))
        first, second = (exact_values(bank, layer, "query")[0] for layer in (0, 1))
        x = torch.ones(2, dtype=torch.float64)
        assert (second @ (first @ x)).tolist() == [2.0, 3.0]
        readers = [mp.MPOLinear(bank, layer) for layer in (0, 1)]
        assert readers[1](readers[0](torch.ones(2))).tolist() == [2.0, 3.0]

    @pytest.mark.parametrize("sharing", ["all", "groups:2", [[0, 2], [1, 3]]])
    def test_layers_that_share_all_but_adapters(self, sharing):
        model = mp.convert(tiny_bert(), sharing=sharing, fit="mean", adapter_rank=2)
        stir_adapters(model)
        merged = mp.merge(model)
        torch.testing.assert_close(logits(merged), logits(model), rtol=0, atol=1e-5)

    def test_one_adapter_changes_one_layer_alone(self):
        model = mp.convert(tiny_bert(), sharing="all", fit="mean", adapter_rank=2)
        before = mp.merge(model)
        with torch.no_grad():
            model.bert.mpo["query"].adapter_up[1].normal_()
        after = mp.merge(model)
        changed = {
            name
            for (name, ours), theirs in zip(
                after.named_parameters(), before.parameters(), strict=True
            )
            if not torch.equal(ours, theirs)
        }
        assert changed == {"bert.encoder.layer.1.attention.self.query.weight"}

    def test_a_matrix_beside_an_adapter_that_is_tied_to_another_is_refused(self):
        model = mp.convert(tiny_albert(), adapter_rank=2, adapter_targets=["embedding_projection"])
        layer = model.albert.encoder.embedding_hidden_mapping_in
        model.predictions.extra = nn.Linear(16, 32)
        model.predictions.extra.weight = layer.weight
        assert torch.equal(mp.merge(model).predictions.extra.weight, layer.weight)
        stir_adapters(model)
        refused(
            model,
            "the adapter of albert.encoder.embedding_hidden_mapping_in cannot be added to its "
            "matrix, which predictions.extra.weight uses as well and would change with it.",
        )
        layer.weight = nn.Parameter(layer.weight.detach().clone())
        torch.testing.assert_close(logits(mp.merge(model)), logits(model), rtol=0, atol=1e-5)
