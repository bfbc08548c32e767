"""What merging adapters keeps aside, and where a model keeps it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor, nn

_HELD = "held"


@dataclass(frozen=True)
class Held:
    """What merging took out of a model, untouched, and what stands in its place.

    Parameters
    ----------
    originals : dict of str to torch.nn.Module
        Readers and adapted layers by full name.
    plain : dict of str to torch.nn.Module
        The plain modules in their places.
    marks : dict of str to Tensor
        Fingerprints of the plain modules as they were made.
    banks : dict of str to torch.nn.Module
        All banks of the model, in their order.
    """

    originals: dict[str, nn.Module]
    plain: dict[str, nn.Module]
    marks: dict[str, Tensor]
    banks: dict[str, Any]


def hold(banks: nn.Module, held: Held) -> None:
    """Keep aside what merging takes out of a model.

    Parameters
    ----------
    banks : Banks
        Banks of the model, changed in place.
    held : Held
        What is kept.
    """
    # Past nn.Module.__setattr__: what is kept aside is no part of the model.
    object.__setattr__(banks, _HELD, held)


def held_of(banks: nn.Module) -> Held | None:
    """Return what merging has kept aside, or None while the adapters are not merged.

    Parameters
    ----------
    banks : Banks
        Banks of a model.

    Returns
    -------
    Held or None
        What was kept.

    Examples
    --------
    >>> from torch import nn
    >>> print(held_of(nn.ModuleDict()))
    None
    """
    held = vars(banks).get(_HELD)
    return held if isinstance(held, Held) else None


def let_go(banks: nn.Module) -> None:
    """Forget what was kept aside, once it is back in the model.

    Parameters
    ----------
    banks : Banks
        Banks of a model with merged adapters, changed in place.
    """
    delattr(banks, _HELD)
