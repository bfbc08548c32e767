"""A run goes on with its own settings, text and model, or not at all."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

import torch

from mpobert_plugin.errors import CheckpointError, shorten
from mpobert_plugin.train.same_model import changes_of_model
from mpobert_plugin.train.settings import PretrainConfig

if TYPE_CHECKING:
    from transformers import PreTrainedModel

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


def check_same_run(checkpoint: Checkpoint, extra: dict[str, Any], model: PreTrainedModel) -> None:
    """Refuse a checkpoint of a run with other settings, another text or another model.

    Parameters
    ----------
    checkpoint : Checkpoint
        A whole one.
    extra : dict
        What this run keeps in its own.
    model : transformers.PreTrainedModel
        What is to go on.

    Raises
    ------
    CheckpointError
        With the names of what differs.
    """
    changed = _changed_settings(checkpoint, extra)
    if checkpoint.state.get("corpus") != extra["corpus"]:
        changed.append("another text")
    others = changes_of_model(checkpoint.folder, model)
    if others:
        changed.append(f"another model ({shorten(others)})")
    if not changed:
        return
    # Another model cannot begin with these weights.
    weights = "" if others else f", and model={checkpoint.folder} to begin with its weights"
    raise CheckpointError(
        f"the run in {checkpoint.folder.parent.parent} must go on with its own settings, text and "
        f"model, got {', '.join(changed)}. Give out= another folder for a new run{weights}."
    )


def _changed_settings(checkpoint: Checkpoint, extra: dict[str, Any]) -> list[str]:
    # A setting that did not exist yet had what is now its default.
    found = {**PretrainConfig().to_dict(), **checkpoint.state.get("config", {})}
    free = {entry.name for entry in fields(PretrainConfig) if entry.metadata["free"]}
    return [
        f"{name} {found.get(name)!r} -> {value!r}"
        for name, value in extra["config"].items()
        if name not in free and found.get(name) != value
    ]
