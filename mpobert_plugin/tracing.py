"""Whether operations are traced or transformed, so that more than their values counts."""

from __future__ import annotations

import torch


def is_transformed() -> bool:
    """Return whether tangents go forward with values, or ``torch.func`` transforms what runs now.

    A tensor then stands for more than the numbers in its memory, or has no memory.

    Returns
    -------
    bool
        True inside of ``torch.func.jvp``, ``vmap`` and ``grad``, and of a dual level.

    Examples
    --------
    >>> is_transformed()
    False
    >>> torch.vmap(lambda x: x * is_transformed())(torch.ones(2)).tolist()
    [1.0, 1.0]
    """
    if torch.autograd.forward_ad._current_level >= 0:
        return True
    # torch offers this only here.
    return torch._C._functorch.peek_interpreter_stack() is not None


def is_traced() -> bool:
    """Return whether ``torch.jit`` traces what runs now: a trace holds no function with a backward.

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
