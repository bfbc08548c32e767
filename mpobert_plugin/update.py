"""How far one real optimizer step moves the output of a model, in all and by kind of tensor."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from mpobert_plugin.errors import ConfigError
from mpobert_plugin.kinds import kinds_of
from mpobert_plugin.locate import base_of, check_model

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedModel

SPLIT = ("central", "auxiliary", "adapter", "bias", "norm")


@dataclass(frozen=True)
class Update:
    """How far one optimizer step moved the last hidden states of a batch.

    Every number but the last two is a relative Frobenius norm: of the change, divided by that of
    the hidden states before.

    Parameters
    ----------
    total : float
        With the whole step applied.
    central, auxiliary, adapter, bias, norm : float
        With the step of the tensors of one kind applied alone; 0 where the model has none.
    others : dict of str to float
        The same for the kinds outside the layers: 'embedding', 'head', 'dense'.
    output_norm : float
        Frobenius norm of the hidden states before the step.
    loss : float
        The loss that the step descended.
    """

    total: float
    central: float
    auxiliary: float
    adapter: float
    bias: float
    norm: float
    others: dict[str, float]
    output_norm: float
    loss: float

    def by_kind(self) -> dict[str, float]:
        """Return the parts by kind, those of the layers first.

        Returns
        -------
        dict of str to float
            Relative Frobenius norms.
        """
        return {**{kind: getattr(self, kind) for kind in SPLIT}, **self.others}

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers as JSON can hold them.

        Returns
        -------
        dict
            By the names of the fields.
        """
        return asdict(self)

    def __str__(self) -> str:
        """Return the numbers as a table of plain text, largest part first."""
        parts = sorted(self.by_kind().items(), key=lambda part: -part[1])
        lines = [f"update of the output after one step: {self.total:.3g} of its norm"]
        return "\n".join([*lines, *(f"  {kind:<10} {size:.3g}" for kind, size in parts if size)])


def measure_update(
    model: PreTrainedModel, batch: Mapping[str, Any], optimizer: Optimizer
) -> Update:
    """Return how far one real step of an optimizer moves the output, in all and by kind.

    The loss of the batch is differentiated in evaluation mode (no dropout) and the optimizer makes
    one step. Then only the central tensors are moved as it moved them, then only the auxiliary
    ones, and so on, and each time the last hidden states of the base model are compared with
    those before. Model, gradients, optimizer and random numbers are restored bit for bit.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        A converted model, or a plain one.
    batch : mapping of str to Tensor
        What the model's forward takes, labels included.
    optimizer : torch.optim.Optimizer
        Over parameters of this model, in whatever state: at the start of a training or within it.

    Returns
    -------
    Update
        Relative Frobenius norms.

    Raises
    ------
    ModelTypeError
        When the model is of no known family.
    ConfigError
        When the optimizer has parameters of another model, or the batch gives no finite loss.

    Examples
    --------
    >>> import mpobert_plugin as mp
    >>> sizes = dict(vocab_size=9, embedding_size=4, hidden_size=8, intermediate_size=16)
    >>> model = mp.build("mpobert-12", num_layers=2, num_attention_heads=2, n=3, **sizes)
    >>> ids = torch.tensor([[1, 2, 3]])
    >>> batch = {"input_ids": ids, "labels": ids, "sentence_order_label": torch.tensor([0])}
    >>> still = measure_update(model, batch, torch.optim.SGD(model.parameters(), lr=0.0))
    >>> still.total, still.central
    (0.0, 0.0)
    """
    check_model(model)
    _check_optimizer(model, optimizer)
    if any(parameter.is_meta for parameter in model.parameters()):
        raise ConfigError("model must have values, got parameters on the meta device.")
    if not isinstance(batch, Mapping):
        raise ConfigError(
            f"batch must map the arguments of the model's forward to tensors, got "
            f"{type(batch).__name__}. Pass a dict with input_ids and labels."
        )
    with _kept(model, optimizer) as start:
        before, loss = _step(model, batch, optimizer)
        moved = {name: tensor.detach().clone() for name, tensor in model.named_parameters()}
        changes = {"total": _distance(_output(model, batch), before)}
        for kind, members in kinds_of(model).items():
            _put(model, {**start, **{name: moved[name] for name in members}})
            changes[kind] = _distance(_output(model, batch), before)
        norm = float(torch.linalg.vector_norm(before))
    relative = {kind: change / norm if norm else change for kind, change in changes.items()}
    total = relative.pop("total")
    split = {kind: relative.pop(kind, 0.0) for kind in SPLIT}
    return Update(total=total, **split, others=relative, output_norm=norm, loss=loss)


def _check_optimizer(model: PreTrainedModel, optimizer: object) -> None:
    if not isinstance(optimizer, Optimizer):
        raise ConfigError(
            f"optimizer must be a torch.optim.Optimizer, got {type(optimizer).__name__}. Make one "
            "over mpobert_plugin.param_groups(model, ...)."
        )
    own = {id(parameter) for parameter in model.parameters()}
    foreign = sum(id(p) not in own for group in optimizer.param_groups for p in group["params"])
    if foreign:
        raise ConfigError(
            f"optimizer must have parameters of this model alone, got {foreign} of another."
        )


@contextmanager
def _kept(model: PreTrainedModel, optimizer: Optimizer) -> Iterator[dict[str, Tensor]]:
    """Put the model in evaluation mode without gradients, and leave everything as it was."""
    start = {name: tensor.detach().clone() for name, tensor in model.named_parameters()}
    buffers = {name: tensor.clone() for name, tensor in model.named_buffers()}
    grads = {name: tensor.grad for name, tensor in model.named_parameters()}
    modes = {module: module.training for module in model.modules()}
    groups = [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups]
    options, states = copy.deepcopy(groups), _copied_states(optimizer)
    devices = {t.device for t in start.values() if t.device.type not in ("cpu", "meta")}
    with torch.random.fork_rng(sorted(devices, key=str)), torch.inference_mode(False):
        try:
            for tensor in model.parameters():
                tensor.grad = None
            model.eval()  # type: ignore[no-untyped-call]
            yield start
        finally:
            _put(model, start)
            for name, buffer in model.named_buffers():
                buffer.copy_(buffers[name])
            for name, tensor in model.named_parameters():
                tensor.grad = grads[name]
            for module, mode in modes.items():
                module.training = mode
            for group, kept in zip(optimizer.param_groups, options, strict=True):
                group.update(kept)
            optimizer.state.clear()
            optimizer.state.update(states)


def _copied_states(optimizer: Optimizer) -> dict[Any, Any]:
    return {
        parameter: {
            name: value.clone() if isinstance(value, Tensor) else copy.deepcopy(value)
            for name, value in state.items()
        }
        for parameter, state in optimizer.state.items()
    }


def _step(
    model: PreTrainedModel, batch: Mapping[str, Any], optimizer: Optimizer
) -> tuple[Tensor, float]:
    """Make the step; return the hidden states before it, and the loss."""
    with torch.enable_grad(), _captured(model) as seen:
        loss = getattr(model(**batch), "loss", None)
        if loss is None:
            raise ConfigError(
                f"batch must give a loss, got none from {type(model).__name__}. Use a model with a "
                "head, and put what it learns into the batch, such as labels."
            )
        if not math.isfinite(float(loss.detach())):
            raise ConfigError(f"the loss of the batch must be finite, got {float(loss.detach())}.")
        loss.backward()
    optimizer.step()
    return seen[0], float(loss.detach())


def _output(model: PreTrainedModel, batch: Mapping[str, Any]) -> Tensor:
    with torch.no_grad(), _captured(model) as seen:
        model(**batch)
    return seen[0]


@contextmanager
def _captured(model: PreTrainedModel) -> Iterator[list[Tensor]]:
    """Collect the last hidden states of the base model, in float64."""
    seen: list[Tensor] = []

    def keep(_module: nn.Module, _args: Any, output: Any) -> None:
        seen.append(output[0].detach().double())

    handle = base_of(model).register_forward_hook(keep)
    try:
        yield seen
    finally:
        handle.remove()


def _put(model: PreTrainedModel, values: Mapping[str, Tensor]) -> None:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(values[name])


def _distance(after: Tensor, before: Tensor) -> float:
    return float(torch.linalg.vector_norm(after - before))
