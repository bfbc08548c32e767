"""The value class of a tensor as a tensor train."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tensornet import algebra, chains, lookup
from tensornet.accounting import Report, count
from tensornet.certificate import Certificate, restored
from tensornet.contract.chain import contract_tensor
from tensornet.cores import seal, validate
from tensornet.errors import ShapeError, complaint
from tensornet.typing import Array, Bonds, Cores
from tensornet.value import Chain


class TensorTrain(Chain):
    """A tensor as a chain of cores (left bond, site, right bond).

    Made by :func:`tensornet.tt` from a tensor, or from existing cores.

    Parameters
    ----------
    cores : sequence of Array
        Core k has shape (left, d_k, right); otherwise as for :class:`MPO`.

    Raises
    ------
    ShapeError, BondError, ArrayTypeError, DTypeError, NonFiniteError
        As for :class:`MPO`.

    Examples
    --------
    >>> t = TensorTrain([np.ones((1, 2, 1)), np.ones((1, 3, 1))])
    >>> t.shape, t.to_tensor().sum().item()
    ((2, 3), 6.0)
    """

    __slots__ = ()

    def __init__(self, cores: Sequence[Array]) -> None:
        self._fill(validate(cores, n_dims=3), None, None)

    @classmethod
    def _from(
        cls, cores: Cores, center: int | None, certificate: Certificate | None
    ) -> TensorTrain:
        self = cls.__new__(cls)
        self._fill(seal(cores), center, certificate)
        return self

    @property
    def shape(self) -> tuple[int, ...]:
        """Dimensions of the tensor."""
        return tuple(int(core.shape[1]) for core in self._cores)

    def to_tensor(self) -> Array:
        """Return the tensor in the cores' element type and library.

        Raises
        ------
        RangeError
            If it does not fit half precision, as the cores do.
        """
        return contract_tensor(self._cores)

    def sum(self) -> Array:
        """Return the sum of all entries, a 0-d array; float32 for half precision.

        Accumulated in double precision; infinity beyond the range of the element type.
        """
        return algebra.total(self._cores)

    def __getitem__(self, places: Any) -> Array:
        """Return single entries without forming the tensor: an index, or array of them, a site.

        Arrays of indices are broadcast together; their shape is that of the result. Negative
        indices and slices are refused.

        Raises
        ------
        ShapeError
            If there is not one index for each site, or one is out of range.
        DTypeError
            If an index is no integer.
        """
        given = places if isinstance(places, tuple) else (places,)
        if len(given) != self.n_sites:
            expected = f"have one index for each of the {self.n_sites} sites"
            raise ShapeError(complaint("t[...]", expected, len(given)))
        sizes = enumerate(zip(given, self.shape, strict=True))
        chosen = [lookup.indices(f"index {k}", one, size) for k, (one, size) in sizes]
        return lookup.entries_of(self._cores, lookup.together("t[...]", chosen))

    def move_center(self, site: int) -> TensorTrain:
        """Return the same tensor with the norm in core ``site``; see :meth:`MPO.move_center`."""
        moved = chains.moved(self._cores, self.center, site)
        certificate = restored(self.certificate, moved.storage_error)
        return TensorTrain._from(moved.cores, moved.center, certificate)

    def round(
        self,
        *,
        max_bond: int | None = None,
        bonds: Bonds = None,
        rtol: float | None = None,
        max_params: int | None = None,
        ratio: float | None = None,
    ) -> TensorTrain:
        """Return the train with smaller bonds; see :meth:`MPO.round`."""
        limits = chains.Cutting(max_bond, bonds, rtol, max_params, ratio)
        cut = chains.rounded(self._cores, self.center, limits, math.prod(self.shape))
        return TensorTrain._from(cut.cores, cut.center, cut.certificate)

    def account(self) -> Report:
        """Return the counts of elements against the dense tensor."""
        return count([(self._cores, math.prod(self.shape))])

    def __repr__(self) -> str:
        sizes = "x".join(str(d) for d in self.shape)
        return f"TensorTrain({sizes}, {self._summary(math.prod(self.shape))})"
