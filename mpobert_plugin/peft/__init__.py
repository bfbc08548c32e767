"""LoRA of the PEFT library on top of converted models: configure, reload, merge."""

from __future__ import annotations

from mpobert_plugin.peft.config import lora_config, register
from mpobert_plugin.peft.whole import load, merge


def __dir__() -> list[str]:
    return sorted(__all__)


__all__ = ["load", "lora_config", "merge", "register"]
