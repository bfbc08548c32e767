"""What an MPO and a tensor train have in common: an immutable chain of cores."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from tensornet import algebra, chains, norms, retyped
from tensornet.backend import backend_of, dtype_name, n_elements
from tensornet.certificate import Certificate
from tensornet.checks import describe, integer, same_kind
from tensornet.errors import (
    ArrayTypeError,
    BondError,
    DTypeError,
    OptionError,
    ShapeError,
    complaint,
)
from tensornet.layout import MatrixLayout
from tensornet.typing import Array, Cores


class Chain:
    """What an MPO and a tensor train have in common. Immutable."""

    __slots__ = ("_center", "_certificate", "_cores", "_versions")
    __array_ufunc__ = None  # numpy leaves its scalars and arrays to the methods here

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

    def spectra(self) -> tuple[np.ndarray[Any, Any], ...]:
        """Return the singular values across every inner bond, from one sweep over the cores.

        Entry k - 1 belongs to bond k: descending, float64. What a padded network has in its
        padding is part of them.
        """
        found, exponent = norms.spectra(self._cores, self.center)
        with np.errstate(over="ignore", under="ignore"):
            return tuple(np.ldexp(s, exponent) for s in found)

    def entropies(self) -> np.ndarray[Any, Any]:
        """Return the von Neumann entropy of every inner bond, in natural units, float64.

        ``-sum(p ln p)`` with the squared singular values, normalised, as p; 0 for a zero
        network. Shape (n - 1,).

        Source: Schollwoeck 2011, equation 21.
        """
        found, _ = norms.spectra(self._cores, self.center)
        return np.array([norms.entropy(s) for s in found], dtype=np.float64)

    def norm(self) -> float:
        """Return the Frobenius norm, from the cores alone; infinity beyond the float range.

        What a padded network has in its padding does not count. A Python number without a
        graph: for gradients take the square root of :func:`tensornet.inner`.
        """
        return norms.size(self._cores, self.center, self._padding()).value

    def log10_norm(self) -> float:
        """Return the decimal logarithm of the norm, however large or small; -inf for zero."""
        return norms.size(self._cores, self.center, self._padding()).log10

    def astype(self, dtype: Any) -> Self:
        """Return the network in another element type; itself if it is of that type already.

        Narrower types round the cores, which the certificate adds to its ``storage_error``; a
        certificate in a metric is dropped then. In a wider type no ``center`` is claimed: cores
        are isometric to the digits of the narrower one. Gradients of torch pass through.

        Parameters
        ----------
        dtype : str, or type of numpy or torch
            float16, bfloat16, float32, float64, complex64 or complex128. numpy by itself has no
            bfloat16.

        Raises
        ------
        DTypeError
            If it is another type, or a complex network would become real.
        RangeError
            If entries of a core are too large for it, or all of them too small.

        Examples
        --------
        >>> import tensornet as tn
        >>> m = tn.mpo(np.diag([1.0, 2.0, 3.0, 4.0]), 2)
        >>> small = m.astype("float32")
        >>> str(small.dtype), small.center, small.certificate.storage_error < 1e-7
        ('float32', 1, True)
        """
        mine, name = dtype_name(self._cores[0]), retyped.wanted_type(dtype, self._cores[0])
        if name == mine:
            return self
        cores = retyped.converted(self._cores, name)
        certificate = retyped.certified(self.certificate, retyped.lost(cores, self._cores))
        return self._fresh(cores, retyped.kept(self.center, mine, name), certificate)

    def hadamard(self, other: Self) -> Self:
        """Return the entrywise product with a network of the same sites; bonds multiply.

        Half precision is computed in float32. Neither gauge nor certificate is claimed.

        Raises
        ------
        ShapeError, DTypeError, ArrayTypeError
            If the sites, element types, libraries or devices differ.
        RangeError
            If a core leaves the range of its element type.
        """
        self._same_sites("m.hadamard(m2)", other)
        return self._fresh(algebra.hadamard(self._cores, other._cores))

    def __add__(self, other: Any) -> Self:
        """Return the sum with a network of the same sites: bonds add; round it to reduce them."""
        if isinstance(other, int | float) and not isinstance(other, bool) and other == 0:
            return self  # so that sum([...]) works, which begins with 0
        self._same_sites("m + m2", other)
        return self._fresh(algebra.add(self._cores, other._cores))

    __radd__ = __add__

    def __sub__(self, other: Any) -> Self:
        """Return the difference with a network of the same sites: bonds add."""
        self._same_sites("m - m2", other)
        return self._fresh(algebra.add(self._cores, (-other)._cores))

    def __neg__(self) -> Self:
        """Return the network times -1."""
        return self._fresh(algebra.scale(self._cores, -1.0, self._heavy_site()))

    def __pos__(self) -> Self:
        """Return the network itself."""
        return self

    def __mul__(self, c: Any) -> Self:
        """Return the network times a number; 0 gives a zero network whose bonds are 1.

        The element type stays, but a complex number makes a real network complex, as in
        numpy; in half precision it is refused.

        Raises
        ------
        NonFiniteError, OptionError, ArrayTypeError, DTypeError
            If the number is not finite, no number, or complex with half precision.
        RangeError
            If a core leaves the range of its element type.
        """
        return self._scaled("c in c * m", c)

    __rmul__ = __mul__

    def __truediv__(self, c: Any) -> Self:
        """Return the network divided by a number that is not zero; see multiplication."""
        return self._scaled("c in m / c", c, inverse=True)

    def _scaled(self, argument: str, c: object, *, inverse: bool = False) -> Self:
        if isinstance(c, Chain):
            remedy = "Entrywise products are m.hadamard(m2), matrix products m @ m2."
            raise ArrayTypeError(complaint(argument, "be a number", describe(c), remedy))
        number = algebra.number(argument, c, self._cores[0])
        if number is NotImplemented:
            return NotImplemented  # type: ignore[no-any-return]
        if inverse and not hasattr(number, "dtype") and number == 0:
            raise OptionError(complaint(argument, "not be zero", c))
        return self._fresh(algebra.scale(self._cores, number, self._heavy_site(), inverse=inverse))

    def _heavy_site(self) -> int:
        """Return the site whose core takes a factor: where the norm sits, if that is known."""
        center = self.center
        return self.central_index if center is None else center

    def _same_sites(self, argument: str, other: object) -> None:
        """Raise unless ``other`` is a network of the same kind, sites and type of elements."""
        if not isinstance(other, type(self)):
            expected = f"have another {type(self).__name__}"
            remedy = "Use arrays instead of networks, or decompose the array first."
            raise ArrayTypeError(complaint(argument, expected, describe(other), remedy))
        self._same_elements(argument, other)
        mine, others = self._sites(), other._sites()
        if mine != others:
            remedy = "Decompose one of the two with the shape of the other."
            expected = "have networks with the same sites"
            raise ShapeError(complaint(argument, expected, f"{mine} and {others}", remedy))

    def _same_elements(self, argument: str, other: Chain) -> None:
        core, reference = other._cores[0], self._cores[0]
        same_kind(argument, core, reference, backend_of(core))
        if dtype_name(core) != dtype_name(reference):
            given = f"{dtype_name(reference)} and {dtype_name(core)}"
            wider = retyped.wider(dtype_name(reference), dtype_name(core))
            remedy = f"Convert one of the two: .astype({wider!r})."
            raise DTypeError(complaint(argument, "have one element type", given, remedy))

    def _sites(self) -> str:
        return "x".join(str(int(core.shape[1])) for core in self._cores)

    def _padding(self) -> MatrixLayout | None:
        return None

    def _fresh(
        self, cores: Cores, center: int | None = None, certificate: Certificate | None = None
    ) -> Self:
        made: Self = type(self)._from(cores, center, certificate)  # type: ignore[attr-defined]
        return made

    def __array__(self, *_args: object, **_kwargs: object) -> Any:
        """Refuse: numpy would otherwise wrap the network in an array of objects."""
        remedy = f"Call .{'to_matrix' if hasattr(self, 'to_matrix') else 'to_tensor'}()."
        given = f"{'an' if hasattr(self, 'to_matrix') else 'a'} {type(self).__name__}"
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


def inner(a: Any, b: Any) -> Array:
    """Return the scalar product, the sum of conj(a) * b over all entries, without forming them.

    Accumulated in double precision (jax: in its own), within torch's graph; padding does not
    count. Real networks have the cosine of their angle as ``inner(a, b) / (a.norm() * b.norm())``.

    Parameters
    ----------
    a, b : MPO or TensorTrain
        Two of a kind, with the same sites. The first is conjugated.

    Returns
    -------
    Array, 0-d
        In the networks' element type, float32 for half precision; infinity beyond its range.

    Raises
    ------
    ArrayTypeError
        If they are not of one kind, library and device.
    ShapeError
        If their sites differ.
    DTypeError
        If their element types differ.

    Examples
    --------
    >>> import tensornet as tn
    >>> t = tn.TensorTrain([np.ones((1, 2, 1)), np.full((1, 3, 1), 2.0)])
    >>> float(tn.inner(t, t))
    24.0
    """
    if not isinstance(a, Chain):
        expected = "have two networks, MPO or TensorTrain"
        raise ArrayTypeError(complaint("inner(a, b)", expected, describe(a)))
    a._same_sites("inner(a, b)", b)
    layout = a._padding()
    cores = a.cores if layout is None else algebra.masked(a.cores, layout)
    return algebra.inner(cores, b.cores)


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
