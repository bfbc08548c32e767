"""The symmetric gauge of a core so large that it is turned slice by slice."""

from __future__ import annotations

import numpy as np
import pytest

import tensornet as tn

LAYOUT = ((8, 8, 8), (8, 8, 8))


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_a_large_core_between_two_factors_is_exact(dtype: str) -> None:
    rng = np.random.default_rng(0)
    W = rng.standard_normal((512, 512)).astype(dtype)
    if dtype == "complex64":
        W = W + 1j * rng.standard_normal((512, 512)).astype("float32")
    m = tn.mpo(W, LAYOUT, gauge="symmetric")
    assert max(core.size for core in m.cores) >= 2**18
    assert np.linalg.norm(tn.contract_matrix(m.cores, m.layout) - W) <= 1e-6 * np.linalg.norm(W)
