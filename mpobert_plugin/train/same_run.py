"""A run goes on with its own settings and text, or not at all."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

import torch

from mpobert_plugin.errors import CheckpointError
from mpobert_plugin.train.settings import PretrainConfig

if TYPE_CHECKING:
    from mpobert_plugin.train.checkpoint import Checkpoint
    from mpobert_plugin.train.processes import Processes


# Of a machine's values, what each changes.
_EFFECTS = {
    "processes": "the order of sums and dropout",
    "micro_batch": "the order of sums and dropout",
    "reconstruction": "the rounding of products",
    "compile": "the rounding of products and dropout",
    "device": "the rounding of products and dropout",
    "torch": "perhaps the rounding of products",
}


def machine_of(processes: Processes) -> dict[str, Any]:
    """Return what the last bits of a run depend on besides its settings.

    Parameters
    ----------
    processes : Processes
        Who trains together.

    Returns
    -------
    dict
        What JSON can hold.

    Examples
    --------
    >>> from mpobert_plugin.train.processes import Processes
    >>> machine_of(Processes())["processes"]
    1
    """
    return {
        "processes": processes.world_size,
        "device": processes.device.type,
        "torch": str(torch.__version__),
    }


def what_is_inexact(checkpoint: Checkpoint, extra: dict[str, Any]) -> tuple[str, ...]:
    """Return a sentence when the rest of a run will not be the same bit for bit.

    Parameters
    ----------
    checkpoint : Checkpoint
        A whole one of this run.
    extra : dict
        What this run keeps in its own.

    Returns
    -------
    tuple of str
        Empty when nothing changed that matters.
    """
    before, now = (
        {**state.get("config", {}), **state.get("machine", {})}
        for state in (checkpoint.state, extra)
    )
    changed = [
        f"{name} {before[name]} -> {now[name]} changes {effect}"
        for name, effect in _EFFECTS.items()
        if name in before and before[name] != now[name]
    ]
    if not changed:
        return ()
    text = "The run goes on with the same samples, but not bit for bit as it would have before"
    return (f"{text}: {'; '.join(changed)}.",)


def check_same_run(checkpoint: Checkpoint, extra: dict[str, Any]) -> None:
    """Refuse a checkpoint of a run with other settings or text.

    Parameters
    ----------
    checkpoint : Checkpoint
        A whole one.
    extra : dict
        What this run keeps in its own.

    Raises
    ------
    CheckpointError
        With the names of what differs.
    """
    # A setting that did not exist yet had what is now its default.
    found = {**PretrainConfig().to_dict(), **checkpoint.state.get("config", {})}
    free = {entry.name for entry in fields(PretrainConfig) if entry.metadata["free"]}
    changed = [
        f"{name} {found.get(name)!r} -> {value!r}"
        for name, value in extra["config"].items()
        if name not in free and found.get(name) != value
    ]
    if checkpoint.state.get("corpus") != extra["corpus"]:
        changed.append("another text")
    if changed:
        raise CheckpointError(
            f"the run in {checkpoint.folder.parent} must go on with its own settings, got "
            f"{', '.join(changed)}. Give out= another folder, and the checkpoint as the model, to "
            "start a new run from its weights."
        )
