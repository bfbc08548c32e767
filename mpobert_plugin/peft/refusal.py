"""Merging by PEFT itself is refused as a whole, before any layer of it is merged."""

from __future__ import annotations

import functools
from typing import Any

from peft.tuners.lora import LoraModel

from mpobert_plugin.peft.layer import LoraMPOLinear

_MARK = "_asks_converted_layers"


def ask_before_merging() -> None:
    """Let PEFT's check of whether LoRA may be merged ask the converted layers; twice does nothing.

    PEFT goes through the layers one by one, so that a layer that refuses comes after others that
    were merged already. Models without converted layers are merged as ever.
    """
    allowed: Any = LoraModel._check_merge_allowed
    if hasattr(allowed, _MARK):
        return

    @functools.wraps(allowed)
    def asked(self: Any) -> None:
        for module in self.model.modules():
            if isinstance(module, LoraMPOLinear):
                module.merge()
        allowed(self)

    setattr(asked, _MARK, True)
    LoraModel._check_merge_allowed = asked  # type: ignore[method-assign, unused-ignore]
