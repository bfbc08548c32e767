"""Models that cannot be converted as they are."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import prune
from torch.nn.utils.parametrizations import weight_norm
from transformers import BertModel, PreTrainedModel

import mpobert_plugin as mp
from mpobert_plugin.errors import ConversionError
from tests.mpobert_plugin.models import (
    assert_untouched,
    ids,
    logits,
    snapshot,
    tiny_albert,
    tiny_bert,
)

Change = Callable[[PreTrainedModel], Any]
DENSE = "bert.encoder.layer.1.output.dense"
NORM = "bert.encoder.layer.1.output.LayerNorm"


def _hook(*_args: Any) -> None:
    return None


class DoubledNorm(nn.LayerNorm):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(x)


def layer_part(model: PreTrainedModel, name: str) -> Any:
    return model.get_submodule(name)


def own_forward(module: nn.Module) -> None:
    plain = module.forward
    module.forward = lambda x: 2 * plain(x)  # type: ignore[method-assign]


def doubled_norm(model: PreTrainedModel) -> None:
    model.bert.encoder.layer[1].output.LayerNorm = DoubledNorm(32)


def accelerate_hook(model: PreTrainedModel) -> None:
    hooks = pytest.importorskip("accelerate.hooks")
    hooks.add_hook_to_module(layer_part(model, DENSE), hooks.ModelHook())


# Modules that a reader of a bank could not stand for

CHANGES: dict[str, tuple[Change, str]] = {
    "pre-hook": (lambda m: layer_part(m, DENSE).register_forward_pre_hook(_hook), DENSE),
    "hook": (lambda m: layer_part(m, DENSE).register_forward_hook(_hook), DENSE),
    "backward hook": (lambda m: layer_part(m, DENSE).register_full_backward_hook(_hook), DENSE),
    "hook of a norm": (lambda m: layer_part(m, NORM).register_forward_hook(_hook), NORM),
    "hook of a weight": (lambda m: layer_part(m, DENSE).weight.register_hook(_hook), DENSE),
    "forward": (lambda m: own_forward(layer_part(m, DENSE)), DENSE),
    "accelerate": (accelerate_hook, f"{DENSE}.*device_map"),
    "norm subclass": (doubled_norm, f"{NORM} .* got DoubledNorm"),
    "weight norm": (lambda m: weight_norm(layer_part(m, DENSE)), DENSE),
    "buffer": (lambda m: layer_part(m, DENSE).register_buffer("x", torch.ones(1)), DENSE),
    "norm without bias": (lambda m: setattr(layer_part(m, NORM), "bias", None), NORM),
    "missing": (lambda m: delattr(m.bert.encoder.layer[1].output, "dense"), "output.dense"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_module_is_refused_by_name(name: str) -> None:
    change, text = CHANGES[name]
    model = tiny_bert()
    change(model)
    before = snapshot(model)
    with pytest.raises(ConversionError, match=text):
        mp.convert(model)
    assert_untouched(model, before)


@pytest.mark.parametrize("kind", ["weight", "bias"])
@pytest.mark.parametrize("layer", [0, 1])
def test_a_pruned_module_is_refused_by_name(kind: str, layer: int) -> None:
    for path in ("dense", "LayerNorm"):
        model = tiny_bert()
        module = model.get_submodule(f"bert.encoder.layer.{layer}.output.{path}")
        prune.random_unstructured(module, kind, 0.5)
        with pytest.raises(ConversionError, match=rf"layer\.{layer}\.output\.{path} .*{kind}_orig"):
            mp.convert(model)


def test_an_adapter_is_not_put_beside_a_changed_pooler() -> None:
    model = tiny_bert(BertModel)
    model.pooler.dense.register_forward_hook(_hook)
    with pytest.raises(ConversionError, match=r"pooler\.dense must have no hooks"):
        mp.convert(model, adapter_rank=2)
    mp.convert(model, adapter_rank=2, adapter_targets=["query"])


def test_a_layer_with_a_forward_of_its_own_is_not_copied() -> None:
    albert = tiny_albert()
    own_forward(albert.albert.encoder.albert_layer_groups[0].albert_layers[0].attention)
    for attempt in (lambda: mp.convert(albert, sharing="all"), lambda: mp.from_albert(albert, 3)):
        with pytest.raises(ConversionError, match=r"albert_layers\.0\.attention must run"):
            attempt()


def test_hooks_elsewhere_stay() -> None:
    model = tiny_bert()
    seen: list[int] = []
    model.bert.encoder.layer[2].register_forward_hook(lambda *_: seen.append(2))
    model(ids(), output_hidden_states=True, output_attentions=True)
    mp.convert(model)
    output = model(ids(), output_hidden_states=True)
    assert seen == [2, 2]
    assert len(output.hidden_states) == 5


def test_recorded_hidden_states_after_expanding_layers() -> None:
    albert = tiny_albert()
    albert(ids(), output_hidden_states=True)
    model = mp.convert(albert, sharing="all")
    assert len(model(ids(), output_hidden_states=True).hidden_states) == 5


# Ties that a bank cannot keep


def test_ties_between_roles_are_refused() -> None:
    model = tiny_bert()
    attention = model.bert.encoder.layer[1].attention.self
    attention.key.weight = attention.query.weight
    with pytest.raises(ConversionError, match=r"layer\.1\.\S+query\.weight and \S+key\.weight"):
        mp.convert(model)
    mp.convert(model, targets=["value", "ffn_in"])


def test_ties_of_whole_modules_between_roles_are_refused() -> None:
    model = tiny_bert()
    attention = model.bert.encoder.layer[1].attention.self
    attention.key = attention.query
    with pytest.raises(ConversionError, match=r"query\.weight and \S+key\.weight must be two"):
        mp.convert(model)


def test_ties_with_a_head_are_refused() -> None:
    model = tiny_bert()
    query = model.bert.encoder.layer[0].attention.self.query
    model.cls.predictions.transform.dense.weight = query.weight
    with pytest.raises(ConversionError, match=r"query\.weight and cls\.predictions\.transform"):
        mp.convert(model)


def test_parameters_with_one_memory_are_ties_too() -> None:
    model = tiny_bert()
    attention = model.bert.encoder.layer[1].attention.self
    attention.key.weight.data = attention.query.weight.data
    with pytest.raises(ConversionError, match="must be two parameters"):
        mp.convert(model)


def test_ties_within_a_role_stay_shared() -> None:
    model = tiny_bert()
    layers = model.bert.encoder.layer
    layers[2].output.dense.weight = layers[0].output.dense.weight
    assert mp.convert(model).bert.mpo["ffn_out"].spec.central == (0, 1, 0, 2)


# One module in several places


def repeated() -> PreTrainedModel:
    model = tiny_bert()
    layers = model.bert.encoder.layer
    layers[1], layers[3] = layers[0], layers[2]
    return model


@pytest.mark.parametrize(
    "options",
    [
        {"sharing": "none"},
        {"adapter_rank": 2},
        {"share_bias": "none"},
        {"share_norm": "groups:3", "fit": "mean"},
    ],
)
def test_no_slice_is_stored_that_nobody_reads(options: dict[str, Any]) -> None:
    model = repeated()
    before = snapshot(model)
    with pytest.raises(ConversionError, match=r"layer\.\d and \S+layer\.\d are one module"):
        mp.convert(model, **options)
    assert_untouched(model, before)


def test_repeated_modules_may_share_more() -> None:
    model = mp.convert(repeated(), sharing="albert", share_bias="all", share_norm="all", fit="mean")
    for bank in model.bert.mpo.stacked():
        read = {k: {bank.slices()[k][r.layer] for r in bank.readers} for k in bank.tensors()}
        assert read == {k: set(range(t.shape[0])) for k, t in bank.tensors().items()}


# Frozen layers


def test_partly_frozen_layers_are_named_and_the_remedy_is_true() -> None:
    model = tiny_bert()
    for layer in model.bert.encoder.layer[:2]:
        layer.requires_grad_(False)
    with pytest.raises(ConversionError) as caught:
        mp.convert(model)
    for part in ("layer.0", "layer.1", "have False", "layer.2", "layer.3", "have True"):
        assert part in str(caught.value)
    mp.convert(model.requires_grad_(True))
    bank = model.bert.mpo["query"]
    keep = torch.tensor([0.0, 0.0, 1.0, 1.0])
    bank.central.register_hook(lambda g: g * keep.view(-1, 1, 1, 1, 1))
    old = bank.central.detach().clone()
    optimizer = torch.optim.Adam([bank.central])
    model(ids(), labels=ids()).loss.backward()
    optimizer.step()
    assert torch.equal(bank.central[:2], old[:2])
    assert not torch.equal(bank.central[2:], old[2:])


def test_a_frozen_norm_is_not_told_to_leave_the_targets() -> None:
    model = tiny_bert()
    model.bert.encoder.layer[0].output.LayerNorm.requires_grad_(False)
    with pytest.raises(ConversionError, match=r"layer\.0\.output\.LayerNorm\.weight") as caught:
        mp.convert(model, targets=["query"])
    assert "targets" not in str(caught.value)


# Inside inference mode


def test_converting_inside_inference_mode_gives_parameters_that_train() -> None:
    plain = tiny_bert()
    with torch.inference_mode():
        model = mp.convert(plain, n=3, adapter_rank=2)
        copied = mp.from_albert(tiny_albert(), 3, n=3, adapter_rank=2)
        fresh = mp.build(
            "mpobert-12",
            head="masked_lm",
            n=3,
            num_layers=2,
            hidden_size=32,
            intermediate_size=64,
            num_attention_heads=4,
            vocab_size=99,
        )
        born = mp.convert(tiny_bert(), n=3)
    torch.testing.assert_close(logits(model), logits(tiny_bert()), rtol=0, atol=1e-4)
    assert born.cls.predictions.decoder.weight is born.bert.embeddings.word_embeddings.weight
    for trained in (model, copied, fresh, born):
        trained.train()
        trained(ids(), labels=ids()).loss.backward()
        assert all(p.requires_grad for p in trained.parameters())
        assert trained.base_model.mpo["query"].central.grad.abs().sum() > 0
        torch.optim.SGD(trained.parameters(), 0.1).step()


def test_a_conversion_does_not_change_the_given_configuration() -> None:
    config = mp.MPOConfig(n=3)
    first = copy.deepcopy(config)
    mp.convert(tiny_bert(), config=config, sharing="all", fit="mean")
    assert config == first
