"""Tiny models, inputs and dense twins for the tests of mpobert_plugin."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call
from transformers import (
    AlbertConfig,
    AlbertForMaskedLM,
    AlbertForPreTraining,
    BertConfig,
    BertForMaskedLM,
    PreTrainedModel,
)
from transformers.pytorch_utils import Conv1D

import tensornet as tn
from mpobert_plugin.adapter import AdaptedLinear
from mpobert_plugin.bank import MPOBank
from mpobert_plugin.embedding import MPOHead
from mpobert_plugin.locate import base_of, family_of, layer_names, prefix_of
from mpobert_plugin.reader import Reader
from mpobert_plugin.runtime import banks_of

SIZES: dict[str, Any] = {
    "vocab_size": 99,
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 40,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}


def tiny_bert(cls: type[PreTrainedModel] = BertForMaskedLM, **sizes: Any) -> PreTrainedModel:
    torch.manual_seed(0)
    return noisy(cls(BertConfig(**{**SIZES, **sizes}))).eval()


def tiny_albert(cls: type[PreTrainedModel] = AlbertForMaskedLM, **sizes: Any) -> PreTrainedModel:
    torch.manual_seed(0)
    config = AlbertConfig(
        **{**SIZES, "embedding_size": 16, "classifier_dropout_prob": 0.0, **sizes}
    )
    return noisy(cls(config)).eval()


def tiny_pretraining(**sizes: Any) -> PreTrainedModel:
    return tiny_albert(AlbertForPreTraining, **sizes)


def noisy(model: PreTrainedModel) -> PreTrainedModel:
    """Give biases and norms values that a mistake would show."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def checkpoint_layers(model: PreTrainedModel, reentrant: bool) -> PreTrainedModel:
    """Make the layers run again in backward; transformers has renamed the method that does it."""
    name = "activation_checkpointing_enable"
    enable = getattr(model, name, None) or getattr(model, "gradient_checkpointing_enable")  # noqa: B009
    enable({"use_reentrant": reentrant})
    return model


def ids(rows: int = 2, length: int = 7) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(1, 99, (rows, length), generator=generator)


def logits(model: PreTrainedModel, **kwargs: Any) -> Tensor:
    """Return the main output without gradient."""
    with torch.no_grad():
        return model(ids(), **kwargs)[0]


def stir_adapters(model: PreTrainedModel) -> None:
    """Give the adapters' upper halves values: at first they are zero and hide mistakes."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "adapter_up" in name:
                parameter.normal_(0.0, 0.1)


def dense_values(model: PreTrainedModel) -> dict[str, Tensor]:
    """Return the tensors of the plain architecture, differentiable in the banks' tensors."""
    base, prefix, family = base_of(model), prefix_of(model), family_of(model)
    banks = banks_of(model)
    values = {
        name: tensor
        for name, tensor in model.named_parameters(remove_duplicate=False)
        if ".mpo." not in f".{name}" and "adapter_" not in name
    }
    for layer, name in enumerate(layer_names(model)):
        for spec in banks.plan.of_layer(layer):
            bank = banks._modules.get(spec.name)
            if bank is None:
                continue
            slot = spec.slot_of(layer)
            of_layer = {k: t[bank.slices()[k][slot]] for k, t in bank.tensors().items()}
            full = f"{prefix}{name}.{ {**family.matrices, **family.norms}[spec.role] }"
            values[f"{full}.weight"] = (
                dense_matrix(bank, of_layer) if isinstance(bank, MPOBank) else of_layer["weight"]
            )
            if "bias" in of_layer:
                values[f"{full}.bias"] = of_layer["bias"]
    outside = {spec.role for spec in banks_of(model).plan.outside}
    for name, module in model.named_modules():
        if isinstance(module, Reader | MPOHead) and module.role in outside:
            of_matrix = {k: t[0] for k, t in module.bank.tensors().items()}
            values[f"{name}.weight"] = dense_matrix(module.bank, of_matrix)
            if "bias" in of_matrix:
                values[f"{name}.bias"] = of_matrix["bias"]
    for name, module in base.named_modules():
        if isinstance(module, AdaptedLinear):
            low = module.alpha / module.rank * module.adapter_up @ module.adapter_down
            values[f"{prefix}{name}.weight"] = module.weight + low
    return values


def dense_matrix(bank: MPOBank, tensors: dict[str, Tensor]) -> Tensor:
    """Contract the cores of one layer with tensornet and add the adapter."""
    spec = bank.spec
    layout = tn.MatrixLayout(spec.row_dims, spec.col_dims, spec.rows, spec.cols)
    cores = [
        tensors["central" if k == spec.central_site else f"auxiliary_{k}"]
        for k in range(len(spec.row_dims))
    ]
    matrix = tn.contract_matrix(cores, layout)
    if spec.adapter_rank:
        scale = spec.adapter_alpha / spec.adapter_rank
        matrix = matrix + scale * tensors["adapter_up"] @ tensors["adapter_down"]
    return matrix


def plain_twin(model: PreTrainedModel) -> PreTrainedModel:
    """Return a model of the plain architecture with random numbers."""
    config = copy.deepcopy(model.config)
    del config.quantization_config
    return type(model)(config).to(model.dtype).train(model.training)


def twin_output(model: PreTrainedModel, **kwargs: Any) -> Any:
    twin, values = plain_twin(model), dense_values(model)
    for name, module in twin.named_modules():
        # The twin's class says whether it stores a matrix transposed; what stayed plain is as it
        # must be.
        if isinstance(module, Conv1D) and not isinstance(model.get_submodule(name), Conv1D):
            values[f"{name}.weight"] = values[f"{name}.weight"].t()
    return functional_call(twin, values, kwargs=kwargs, tie_weights=False)


def snapshot(model: PreTrainedModel) -> Any:
    """Return what a failed conversion must leave as it was."""
    names = [(name, type(module), id(module)) for name, module in model.named_modules()]
    tensors = {name: (id(t), t._version, t.clone()) for name, t in model.named_parameters()}
    return names, tensors, model.config.to_dict()


def assert_untouched(model: PreTrainedModel, before: Any) -> None:
    names, tensors, config = before
    now_names, now_tensors, now_config = snapshot(model)
    assert now_names == names
    assert now_config == config
    assert now_tensors.keys() == tensors.keys()
    for name, (number, version, value) in tensors.items():
        assert now_tensors[name][:2] == (number, version)
        torch.testing.assert_close(now_tensors[name][2], value, rtol=0, atol=0, equal_nan=True)
    assert not model._forward_pre_hooks
