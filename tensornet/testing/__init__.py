"""Hypothesis strategies and assertions for testing code that uses tensornet.

Needs Hypothesis: ``pip install tensornet-mpo[test]``.
"""

from __future__ import annotations

from tensornet.testing.assertions import (
    assert_close,
    assert_isometric,
    max_tail,
    relative_error,
    tolerance_of,
)
from tensornet.testing.strategies import (
    KINDS,
    layouts,
    matrices,
    mpo_cores,
    options,
    tensors,
)

__all__ = [
    "KINDS",
    "assert_close",
    "assert_isometric",
    "layouts",
    "matrices",
    "max_tail",
    "mpo_cores",
    "options",
    "relative_error",
    "tensors",
    "tolerance_of",
]
