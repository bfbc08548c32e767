"""Public names that are also names of submodules stay what the package says they are."""

from __future__ import annotations

import sys
from types import ModuleType


class Package(ModuleType):
    """A package in which no import puts a submodule in the place of a function of that name.

    Whatever runs a submodule sets it as an attribute of its package afterwards: Python the first
    time, and again after its entry in ``sys.modules`` was deleted; pytest for each module that it
    collects by its file. A submodule whose name is free becomes an attribute as usual.
    """

    def __setattr__(self, name: str, value: object) -> None:
        """Set an attribute, unless it is a module that would hide something else."""
        hides = isinstance(value, ModuleType) and name in vars(self)
        if not hides or isinstance(vars(self)[name], ModuleType):
            super().__setattr__(name, value)


def keep_public_names(package: str) -> None:
    """Make a package keep its functions when submodules of the same names are imported.

    Parameters
    ----------
    package : str
        Its full name; it must be in ``sys.modules``.

    Examples
    --------
    >>> sys.modules["shop"] = shop = ModuleType("shop")
    >>> keep_public_names("shop")
    >>> shop.sell = len
    >>> shop.sell = ModuleType("shop.sell")
    >>> shop.sell
    <built-in function len>
    >>> del sys.modules["shop"]
    """
    sys.modules[package].__class__ = Package
