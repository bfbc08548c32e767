"""Device maps: a bank is one piece, and lies whole on one device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from mpobert_plugin.errors import PlacementError
from mpobert_plugin.locate import BANKS, owners_of, prefix_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from mpobert_plugin.runtime import Banks

_WHOLE = ("MPOBank", "MPONormBank", "EmbeddingBank")


def keep_banks_whole(model: PreTrainedModel) -> None:
    """Make automatic device maps put each bank on one device, in place.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        A model with banks.
    """
    for owner in owners_of(model):
        owner._no_split_modules = [*_others(owner), *_WHOLE]
        # No plan splits plain matrices that are not there: each process would have whole ones.
        owner._tp_plan = {}


def forget_banks(model: PreTrainedModel) -> None:
    """Undo `keep_banks_whole` in a model that has no banks any more, in place.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        A plain model.
    """
    for owner in owners_of(model):
        owner._no_split_modules = _others(owner)


def _others(model: PreTrainedModel) -> list[str]:
    return [name for name in model._no_split_modules or () if name not in _WHOLE]


def check_device_map(model: PreTrainedModel, banks: Banks, device_map: object) -> None:
    """Refuse a device map that takes the tensors of a bank apart.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        A model with banks.
    banks : Banks
        Its banks.
    device_map : object
        What the user gave; other things than a mapping are left to transformers.

    Raises
    ------
    PlacementError
        When the tensors of one bank are on several devices; their names are told.
    """
    if not isinstance(device_map, Mapping):
        return
    for key, module in banks.items():
        bank = f"{prefix_of(model)}{BANKS}.{key}"
        places = {
            name: _place(device_map, name)
            for name, _ in module.named_parameters(prefix=bank, remove_duplicate=False)
        }
        if len(set(places.values())) > 1:
            told = ", ".join(f"{name} on {place}" for name, place in places.items())
            raise PlacementError(
                f"device_map must keep the tensors of bank {key!r} on one device, since all "
                f"layers are built from them, got {told}. Name the whole bank: "
                f"{{{bank!r}: {next(iter(places.values()))!r}}}."
            )


def _place(device_map: Mapping[str, object], name: str) -> str:
    """Return the device of a tensor: that of the longest name that it starts with."""
    while name and name not in device_map:
        name = name.rpartition(".")[0]
    return str(device_map.get(name))
