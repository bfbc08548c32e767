"""Take the modules of PEFT out of a model that has no PeftModel around it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils.other import AuxiliaryTrainingWrapper

if TYPE_CHECKING:
    from torch import nn


def unload(model: nn.Module, merge: bool = False) -> None:
    """Put what PEFT's modules stand for back in their places.

    A `PeftModel` has methods for it; a model that transformers gave adapters has none.

    Parameters
    ----------
    model : torch.nn.Module
        Any model, changed in place.
    merge : bool
        Whether active adapters are merged first, which needs plain layers; disabled ones never are.
    """
    done = ""
    for name, module in list(model.named_modules()):
        # What is inside a module that was taken out goes with it.
        if not isinstance(module, BaseTunerLayer | AuxiliaryTrainingWrapper) or (
            done and name.startswith(done)
        ):
            continue
        done = f"{name}."
        parent, _, own = name.rpartition(".")
        setattr(model.get_submodule(parent), own, _plain(module, merge))


def _plain(module: BaseTunerLayer | AuxiliaryTrainingWrapper, merge: bool) -> nn.Module:
    merge = merge and not module.disable_adapters
    if isinstance(module, BaseTunerLayer):
        if merge:
            module.merge()
        plain: nn.Module = module.get_base_layer()
    elif merge:
        plain = module.unload_and_optionally_merge_module(True, False, None)
    else:
        plain = module.original_module
    return plain
