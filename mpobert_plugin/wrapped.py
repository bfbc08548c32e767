"""Refuse models that a wrapper has taken apart or copies: shared tensors must be one tensor."""

from __future__ import annotations

from itertools import chain

from torch import nn

from mpobert_plugin.errors import ModelTypeError

# What to do instead.
TO_CONVERT = (
    "Pass the model inside the wrapper, as it was before it was sharded, and wrap the converted "
    "one: layers that share a tensor must get the same one."
)
TO_TRAIN = (
    "Pass the model inside the wrapper, as it was before it was sharded: a run started by torchrun "
    "spreads its samples itself, with the whole model in each process. The gradient of a tensor "
    "that layers share is then summed once for a step; a wrapper would sum it at each use, or give "
    "each layer a part of its own."
)

# By name, so that packages that are not installed are known too.
_WRAPPERS = (
    "DataParallel",
    "DistributedDataParallel",
    "FullyShardedDataParallel",
    "FSDPModule",
    "DeepSpeedEngine",
)
# What only parameters have that a library has cut into parts.
_CUT = {"full_tensor": "sharded over devices", "ds_id": "partitioned by DeepSpeed"}


def refuse_wrapped(model: object, remedy: str) -> None:
    """Refuse a model that is inside a wrapper, or has one, or has parameters cut into parts.

    Parameters
    ----------
    model : object
        Whatever the user gave.
    remedy : str
        A sentence that says what to do instead.

    Raises
    ------
    ModelTypeError
        With what was found.

    Examples
    --------
    >>> refuse_wrapped(nn.Linear(2, 2), "Pass the model inside the wrapper.")
    """
    if not isinstance(model, nn.Module):
        return
    for found in chain(_wrappers(model), _cut_parameters(model)):
        raise ModelTypeError(f"model must be neither wrapped nor sharded, got {found}. {remedy}")


def _wrappers(model: nn.Module) -> list[str]:
    found = []
    for path, module in model.named_modules():
        names = {kind.__name__ for kind in type(module).__mro__}
        found += [
            f"{wrapper} around {path}" if path else wrapper
            for wrapper in _WRAPPERS
            if wrapper in names
        ]
    return found


def _cut_parameters(model: nn.Module) -> list[str]:
    return [
        f"{name}, {how}"
        for name, parameter in model.named_parameters()
        for mark, how in _CUT.items()
        if hasattr(parameter, mark)
    ]
