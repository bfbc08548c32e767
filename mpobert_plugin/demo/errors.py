"""Exceptions of the demo."""

from __future__ import annotations

from mpobert_plugin.errors import MPOBertError


class DemoError(MPOBertError, ValueError):
    """Something that keeps the demo from running, with what to do about it."""


class MissingPackageError(DemoError):
    """A package that the demo needs is not installed; the message is the pip command to run."""


class TokenError(DemoError):
    """Text that the model's vocabulary cannot write."""
