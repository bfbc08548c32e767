"""The way to PEFT that models of transformers have: ``add_adapter``, ``load_adapter``, others."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from transformers import PreTrainedModel
from transformers.utils.import_utils import is_peft_available

from mpobert_plugin.locate import BANKS, base_of
from mpobert_plugin.peft.config import register
from mpobert_plugin.runtime import Banks

if TYPE_CHECKING:
    from collections.abc import Mapping

_MARK = "_registers_adapters"
_RENAMINGS = "_weight_conversions"


def register_adapters() -> None:
    """Let transformers register the LoRA that it gives to converted models; twice does nothing.

    It reads configurations by itself, which then do not know `MPOLinear`. Plain models get their
    adapters as ever.
    """
    for name in ("add_adapter", "load_adapter", "delete_adapter"):
        method: Any = getattr(PreTrainedModel, name)
        if not hasattr(method, _MARK):
            setattr(PreTrainedModel, name, _registering(method))


def _registering(method: Any) -> Any:
    @functools.wraps(method)
    def registered(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not (_has_banks(self) and is_peft_available()):
            return method(self, *args, **kwargs)
        from mpobert_plugin.peft.injection import registering

        known = dict(getattr(self, "peft_config", None) or {})
        names = vars(self).get(_RENAMINGS)
        try:
            with registering(register):
                result = method(self, *args, **kwargs)
            known = dict(getattr(self, "peft_config", None) or {})
            return result
        finally:
            _settle(self, known)
            _rename_as_before(self, names)

    setattr(registered, _MARK, True)
    return registered


def _settle(model: Any, known: Mapping[str, Any]) -> None:
    """Take out what is left of an adapter that was refused, or once the last one is deleted.

    Its name would be taken; a flag and empty wrappers around layers would stay, with which a model
    can neither be saved whole nor loaded again.
    """
    from mpobert_plugin.peft.unload import unload

    configs = getattr(model, "peft_config", None) or {}
    for name in set(configs) - set(known):
        del configs[name]
    if not configs:
        unload(model)
        vars(model).pop("peft_config", None)
        model._hf_peft_config_loaded = False


def _rename_as_before(model: Any, names: Any) -> None:
    """Let saving name the tensors of the model as before.

    Loading an adapter leaves how its file was renamed, which saving the model without it would undo
    for every tensor: as 'base_model.model.…' no loading finds them.
    """
    if names is None:
        vars(model).pop(_RENAMINGS, None)
    else:
        vars(model)[_RENAMINGS] = names


def _has_banks(model: PreTrainedModel) -> bool:
    # Of all models of transformers, some may have no module there.
    return isinstance(getattr(base_of(model), "_modules", {}).get(BANKS), Banks)
