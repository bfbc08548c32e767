"""What an MPO and a tensor train have in common: an immutable chain of cores."""

from __future__ import annotations

from typing import Any

import numpy as np

from tensornet import chains
from tensornet.backend import dtype_name, n_elements
from tensornet.certificate import Certificate
from tensornet.checks import integer
from tensornet.errors import ArrayTypeError, BondError, complaint
from tensornet.typing import Array, Cores


class Chain:
    """What an MPO and a tensor train have in common. Immutable."""

    __slots__ = ("_center", "_certificate", "_cores", "_versions")

    _cores: Cores
    _center: int | None
    _certificate: Certificate | None
    _versions: tuple[int, ...]

    @property
    def cores(self) -> Cores:
        """The cores, from the most significant site to the least."""
        return self._cores

    @property
    def center(self) -> int | None:
        """The site where the norm sits; None where no canonical form is claimed.

        Nothing is claimed once torch cores were changed in place or require a gradient.
        """
        return self._center if self._untouched() else None

    @property
    def certificate(self) -> Certificate | None:
        """The error of the decomposition or rounding that made this network, if one did.

        None once torch cores were changed in place or require a gradient.
        """
        return self._certificate if self._untouched() else None

    @property
    def n_sites(self) -> int:
        """Number of sites."""
        return len(self._cores)

    @property
    def bond_dims(self) -> tuple[int, ...]:
        """The n + 1 bond dimensions; first and last are 1."""
        return (*(int(core.shape[0]) for core in self._cores), 1)

    @property
    def dtype(self) -> Any:
        """Element type of the cores, as their library writes it."""
        return self._cores[0].dtype

    @property
    def n_params(self) -> int:
        """Number of stored elements."""
        return sum(n_elements(core) for core in self._cores)

    @property
    def central_index(self) -> int:
        """Index of the central core, n // 2."""
        return len(self._cores) // 2

    @property
    def central(self) -> Array:
        """The central core: the middle one, whatever the gauge."""
        return self._cores[self.central_index]

    @property
    def auxiliary(self) -> Cores:
        """All cores but the central one."""
        return self._cores[: self.central_index] + self._cores[self.central_index + 1 :]

    def singular_values(self, bond: int) -> np.ndarray[Any, Any]:
        """Return the singular values across an inner bond (1 to n - 1), descending, float64.

        Raises
        ------
        BondError
            If there is no such bond.
        """
        bond = integer("bond", bond, 1, BondError)
        if bond >= self.n_sites:
            expected = f"be an inner bond, 1 to {self.n_sites - 1}"
            raise BondError(complaint("bond", expected, bond))
        return chains.spectrum(self._cores, self.center, bond)

    def norm(self) -> float:
        """Return the Frobenius norm, from the cores alone."""
        return chains.norm(self._cores, self.center)

    def __array__(self, *_args: object, **_kwargs: object) -> Any:
        """Refuse: numpy would otherwise wrap the network in an array of objects."""
        remedy = f"Call .{'to_matrix' if hasattr(self, 'to_matrix') else 'to_tensor'}()."
        given = f"a {type(self).__name__}"
        raise ArrayTypeError(complaint("the array", "be an array of numbers", given, remedy))

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable; {name} cannot be set.")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable; {name} cannot be deleted.")

    def _fill(self, cores: Cores, center: int | None, certificate: Certificate | None) -> None:
        fields = {"cores": cores, "center": center, "certificate": certificate}
        for name, value in (fields | {"versions": versions(cores)}).items():
            object.__setattr__(self, f"_{name}", value)

    def _untouched(self) -> bool:
        if any(getattr(core, "requires_grad", False) for core in self._cores):
            return False
        return self._versions == versions(self._cores)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self._state())

    def _state(self) -> dict[str, Any]:
        return {"center": self.center, "certificate": self.certificate, "cores": self._cores}

    def _summary(self, dense: int) -> str:
        name, ratio = dtype_name(self._cores[0]), self.n_params / dense
        size = "of dense: larger" if ratio > 1 else "of dense"
        text = f"bonds {list(self.bond_dims[1:-1])}, {name}, {self.n_params:,} parameters"
        text += f" ({ratio:.4g} {size}), center {self.center}"
        if self.certificate is not None:
            text += f", {self.certificate.headline}"
        return text


def versions(cores: Cores) -> tuple[int, ...]:
    """Return how often each torch core was changed in place, as torch counts it."""
    # torch counts in-place changes of a tensor; numpy cores are read-only, and inference
    # tensors are not counted.
    torch_cores = (core for core in cores if hasattr(core, "is_inference"))
    return tuple(core._version for core in torch_cores if not core.is_inference())


def _rebuild(kind: type[Chain], state: dict[str, Any]) -> Chain:
    extra = (state["layout"],) if "layout" in state else ()
    made: Chain = kind._from(state["cores"], *extra, state["center"], state["certificate"])  # type: ignore[attr-defined]
    return made
