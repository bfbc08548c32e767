"""PEFT's search for the modules to adapt passes banks by, and registers what it is asked to."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeAlias

from peft.tuners.lora import LoraModel

from mpobert_plugin.linear import MPOLinear
from mpobert_plugin.peft.checks import in_bank

Register: TypeAlias = Callable[[Any, Any], Any]

_MARK = "_knows_banks"
_REGISTER: ContextVar[Register | None] = ContextVar("_REGISTER", default=None)


def know_banks() -> None:
    """Let PEFT adapt converted layers and never their banks; twice does nothing.

    The banks of a model have the names of roles, such as 'query', which a configuration means the
    layers by. Configurations that are not registered are handled as ever.
    """
    exists: Any = LoraModel._check_target_module_exists
    if hasattr(exists, _MARK):
        return

    @functools.wraps(exists)
    def exists_outside_banks(config: Any, key: str) -> Any:
        registered = MPOLinear in (getattr(config, "_custom_modules", None) or ())
        return not (registered and in_bank(key)) and exists(config, key)

    check: Any = LoraModel._check_new_adapter_config

    @functools.wraps(check)
    def registered_and_checked(self: Any, config: Any) -> None:
        register = _REGISTER.get()
        if register is not None:
            register(config, self.model)
        check(self, config)

    setattr(exists_outside_banks, _MARK, True)
    LoraModel._check_target_module_exists = staticmethod(exists_outside_banks)  # type: ignore[method-assign, assignment, unused-ignore]
    LoraModel._check_new_adapter_config = registered_and_checked  # type: ignore[method-assign, unused-ignore]


@contextmanager
def registering(register: Register) -> Iterator[None]:
    """Return a context in which every LoRA configuration is registered before it is used.

    Parameters
    ----------
    register : callable
        Takes a configuration and the model that is to be adapted.

    Yields
    ------
    None
        In this thread alone.
    """
    know_banks()
    token = _REGISTER.set(register)
    try:
        yield
    finally:
        _REGISTER.reset(token)
