"""An MPO that keeps its matrix: products at the speed of the dense one."""

from __future__ import annotations

from typing import Any

from tensornet.backend import library_of
from tensornet.cores import operand
from tensornet.typing import Array
from tensornet.value import versions


class CachedMPO:
    """An MPO with its matrix kept from the first use on; made by :meth:`tensornet.MPO.cached`.

    The matrix is built anew when a torch core was changed in place since. It is not kept while
    a core requires a gradient, or cannot be watched for changes (torch's inference tensors):
    then every use builds it, and gradients reach the cores. Immutable otherwise.

    Parameters
    ----------
    mpo : MPO
        The network.

    Examples
    --------
    >>> from tensornet import mpo
    >>> fast = mpo(np.eye(4), 2).cached()
    >>> fast.to_matrix() is fast.to_matrix(), (fast @ np.ones(4)).tolist()
    (True, [1.0, 1.0, 1.0, 1.0])
    """

    __slots__ = ("_kept", "_mpo")
    __array_ufunc__ = None  # so that ndarray @ CachedMPO comes here

    _mpo: Any
    _kept: list[tuple[tuple[int, ...], Array]]

    def __init__(self, mpo: Any) -> None:
        object.__setattr__(self, "_mpo", mpo)
        object.__setattr__(self, "_kept", [])

    @property
    def mpo(self) -> Any:
        """The network."""
        return self._mpo

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, cols) of the matrix."""
        rows, cols = self._mpo.shape
        return rows, cols

    @property
    def T(self) -> CachedMPO:
        """The transpose, with a matrix of its own."""
        return CachedMPO(self._mpo.T)

    def astype(self, dtype: Any) -> CachedMPO:
        """Return the network in another element type, with a matrix of its own."""
        return CachedMPO(self._mpo.astype(dtype))

    def to_matrix(self) -> Array:
        """Return the kept matrix, (rows, cols); do not change it (numpy's is read-only)."""
        if self._kept:
            known, matrix = self._kept[0]
            if known == self._state(matrix):
                return matrix
        matrix = self._mpo.to_matrix()
        if library_of(matrix) == "numpy":
            matrix.flags.writeable = False
        if self._can_keep(matrix):
            self._kept[:] = [(self._state(matrix), matrix)]
        else:
            self._kept.clear()
        return matrix

    def _state(self, matrix: Array) -> tuple[int, ...]:
        needs = any(getattr(core, "requires_grad", False) for core in self._mpo.cores)
        return (*versions((*self._mpo.cores, matrix)), int(needs))

    def _can_keep(self, matrix: Array) -> bool:
        return not any(
            getattr(a, "requires_grad", False) or (hasattr(a, "is_inference") and a.is_inference())
            for a in (*self._mpo.cores, matrix)
        )

    def __matmul__(self, x: Array) -> Array:
        """Return W @ x for a vector (cols,) or a matrix (cols, batch)."""
        matrix = self.to_matrix()
        return matrix @ operand("m @ x", x, matrix, self.shape[1], axis=0)

    def __rmatmul__(self, x: Array) -> Array:
        """Return x @ W for a vector (rows,) or a matrix (batch, rows)."""
        matrix = self.to_matrix()
        return operand("x @ m", x, matrix, self.shape[0], axis=-1) @ matrix

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"CachedMPO is immutable; {name} cannot be set.")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"CachedMPO is immutable; {name} cannot be deleted.")

    def __reduce__(self) -> tuple[Any, ...]:
        return CachedMPO, (self._mpo,)

    def __array__(self, *_args: object, **_kwargs: object) -> Any:
        """Refuse as the network does: the matrix is ``to_matrix()``."""
        return self._mpo.__array__()

    def __repr__(self) -> str:
        return f"CachedMPO({self._mpo!r})"
