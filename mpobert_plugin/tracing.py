"""Whether operations are being traced: a trace holds no function with a backward of its own."""

from __future__ import annotations

import torch


def is_traced() -> bool:
    """Return whether ``torch.jit`` traces what runs now.

    Returns
    -------
    bool
        True inside of ``torch.jit.trace``.

    Examples
    --------
    >>> is_traced()
    False
    """
    # torch leaves this function without types.
    return torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call, no-any-return]
