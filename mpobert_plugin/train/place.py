"""Where a run computes and where it writes, as users name them."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from mpobert_plugin.errors import ConfigError
from mpobert_plugin.train.processes import local_device

KINDS = ("cpu", "cuda")


def device_of(given: torch.device | str | None) -> torch.device | None:
    """Return the device that a user named.

    Parameters
    ----------
    given : torch.device, str or None
        'cpu', 'cuda', 'cuda:1'; None leaves the choice to the run. Under torchrun 'cuda' is the
        process's own GPU.

    Returns
    -------
    torch.device or None
        One that is there.

    Raises
    ------
    ConfigError
        When it is no device that a run can use, or is not there.

    Examples
    --------
    >>> device_of("cpu")
    device(type='cpu')
    """
    if given is None:
        return None
    try:
        device = torch.device(given)
    except (RuntimeError, TypeError) as error:
        raise ConfigError(f"device must be one of torch's, got {given!r}: {error}.") from error
    count = torch.cuda.device_count()
    if device.type not in KINDS or (device.type == "cuda" and (device.index or 0) >= count):
        raise ConfigError(
            f"device must be 'cpu', or one of the {count} GPUs that torch finds, got {given!r}."
        )
    if device.type == "cpu":
        return device
    return _gpu(device, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def _gpu(device: torch.device, neighbours: int) -> torch.device:
    """Return a GPU with its number; of processes on one machine each has its own."""
    named = ":" in str(device)
    if neighbours > 1 and named:
        raise ConfigError(
            f"device must be 'cuda' or be left out with {neighbours} processes on this machine, "
            f"got {str(device)!r}: each takes a GPU of its own."
        )
    if named:
        return device
    return local_device() if neighbours > 1 else torch.device("cuda", torch.cuda.current_device())


def folder_of(given: object) -> Path:
    """Return the folder that a user named.

    Parameters
    ----------
    given : path
        It need not exist.

    Returns
    -------
    Path
        The same.

    Raises
    ------
    ConfigError
        When it is no path.

    Examples
    --------
    >>> folder_of("run").name
    'run'
    """
    if not isinstance(given, str | os.PathLike):
        raise ConfigError(f"out must be the name of a folder, got {given!r}.")
    return Path(given)
