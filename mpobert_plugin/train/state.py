"""What a checkpoint holds: the model as transformers loads it, and the moments of the optimizer."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers.utils import logging as hf_logging

from mpobert_plugin.checkpoint import compare
from mpobert_plugin.errors import CheckpointError, shorten
from mpobert_plugin.persistence import load_state_dict

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from torch import nn
    from torch.optim import Optimizer
    from transformers import PreTrainedModel

MODEL, MOMENTS = "model.safetensors", "optimizer.safetensors"


def write_state(
    folder: Path,
    model: PreTrainedModel,
    optimizer: Optimizer,
    parameters: Mapping[str, nn.Parameter],
) -> None:
    """Write model and moments; the folder can then be loaded with ``from_pretrained``.

    Parameters
    ----------
    folder : Path
        An existing folder.
    model : transformers.PreTrainedModel
        With float32 masters.
    optimizer : torch.optim.Optimizer
        Its state consists of tensors and numbers.
    parameters : mapping of str to Parameter
        Names of what the optimizer trains.

    Raises
    ------
    OSError
        When the operating system refuses.
    """
    tensors: dict[str, Tensor] = {}
    for name, parameter in parameters.items():
        for key, value in optimizer.state.get(parameter, {}).items():
            found = value if isinstance(value, Tensor) else torch.tensor(value)
            tensors[f"{name}|{key}"] = found.detach().cpu().clone()
    try:
        # In one file whatever its size, so that it is read by one name.
        with _no_bars():
            model.save_pretrained(folder, max_shard_size="1TB")
        save_file(tensors, folder / MOMENTS)
    except SafetensorError as error:
        # The library has no class for a full disk.
        raise OSError(str(error)) from error


@contextmanager
def _no_bars() -> Iterator[None]:
    """Keep transformers from drawing a bar for each checkpoint among the lines of the run."""
    shown = hf_logging.is_progress_bar_enabled()
    hf_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        if shown:
            hf_logging.enable_progress_bar()  # type: ignore[no-untyped-call]


def read_state(
    folder: Path,
    model: PreTrainedModel,
    optimizer: Optimizer,
    parameters: Mapping[str, nn.Parameter],
) -> None:
    """Read model and moments into objects that were made in the same way.

    Parameters
    ----------
    folder : Path
        A checkpoint.
    model : transformers.PreTrainedModel
        Changed in place.
    optimizer : torch.optim.Optimizer
        Changed in place.
    parameters : mapping of str to Parameter
        Names of what the optimizer trains.

    Raises
    ------
    CheckpointError
        When the tensors do not belong to this model or optimizer.
    """
    try:
        weights, moments = load_file(folder / MODEL), load_file(folder / MOMENTS)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{folder} must hold a whole checkpoint, got: {error}.") from error
    _check_tensors(folder, model, weights)
    load_state_dict(model, weights)
    states: dict[str, dict[str, Tensor]] = {}
    for key, tensor in moments.items():
        name, _, kind = key.rpartition("|")
        states.setdefault(name, {})[kind] = tensor
    strange = sorted(set(states) - set(parameters))
    if strange or (states and set(states) != set(parameters)):
        missing = sorted(set(parameters) - set(states))
        raise CheckpointError(
            f"{folder} must hold moments of the parameters that are trained, got "
            f"{len(strange)} of others ({shorten(strange, 3)}) and none of {len(missing)} "
            f"({shorten(missing, 3)}). Continue with the model and settings of that run, or start "
            "a new one from its weights."
        )
    for name, state in states.items():
        parameter = parameters[name]
        optimizer.state[parameter] = {
            kind: _placed(name, kind, tensor, parameter) for kind, tensor in state.items()
        }


def _check_tensors(folder: Path, model: PreTrainedModel, weights: Mapping[str, Tensor]) -> None:
    """Refuse a model that was changed beyond what its configuration says."""
    found = compare(model, {name: tuple(tensor.shape) for name, tensor in weights.items()})
    if found.fits:
        return
    others = [*found.missing, *found.unexpected, *(name for name, _, _ in found.mismatched)]
    raise CheckpointError(
        f"{folder} must hold the tensors of the model that is to go on, got {len(found.missing)} "
        f"missing, {len(found.unexpected)} unexpected and {len(found.mismatched)} of another shape "
        f"({shorten(others, 3)}). Give out= another folder, or the model that the run began with."
    )


def _placed(name: str, kind: str, tensor: Tensor, parameter: nn.Parameter) -> Tensor:
    if tensor.dim() and tensor.shape != parameter.shape:
        raise CheckpointError(
            f"{kind} of {name} must have the shape {tuple(parameter.shape)}, got "
            f"{tuple(tensor.shape)}. The checkpoint belongs to another model."
        )
    return tensor.to(parameter.device)
