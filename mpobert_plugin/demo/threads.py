"""How many threads the demo computes with."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

MOST = 4  # more do not help with matrices as small as the demo's


@contextmanager
def half_the_cores() -> Iterator[int]:
    """Let torch use half of the processor's cores inside the block; yield their number.

    Threads that wait for each other keep their cores busy. Where something else runs as well, as
    many threads as cores can be several times slower than half as many.
    """
    before = torch.get_num_threads()
    threads = max(1, min(before, MOST, (os.cpu_count() or 1) // 2))
    torch.set_num_threads(threads)
    try:
        yield threads
    finally:
        torch.set_num_threads(before)
