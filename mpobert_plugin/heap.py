"""Give memory that was freed back to the system, where the allocator would keep it."""

from __future__ import annotations

import ctypes
import sys


def give_back() -> bool:
    """Return whether the allocator was asked to give freed memory back to the system.

    The allocator of Linux keeps what large arrays of several threads leave, in pieces that the
    next arrays do not fit: at the end of a conversion these were a third of the model's size.

    Returns
    -------
    bool
        False on systems whose allocator cannot be asked; nothing happens there.

    Examples
    --------
    >>> give_back() in (True, False)
    True
    """
    if sys.platform != "linux":
        return False
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is None:
        return False
    trim(0)
    return True
