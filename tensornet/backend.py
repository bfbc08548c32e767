"""The one place that knows array libraries: TensorLy's backends, chosen by the array itself."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from tensornet import host
from tensornet.errors import ArrayTypeError, DTypeError, MissingLibraryError, complaint
from tensornet.typing import Array

DTYPES = ("float16", "bfloat16", "float32", "float64", "complex64", "complex128")
_EPS = {
    "float16": 2.0**-10,
    "bfloat16": 2.0**-7,
    "float32": 2.0**-23,
    "float64": 2.0**-52,
    "complex64": 2.0**-23,
    "complex128": 2.0**-52,
}


@dataclass(frozen=True)
class Backend:
    """TensorLy's backend of one library, with the few operations that TensorLy lacks.

    TensorLy loads a backend object without switching to it, so the user's own choice of
    backend is never touched and threads may work with different libraries at once.
    """

    name: str
    tl: Any
    cast: Callable[[Array, str], Array]
    own: Callable[[Array], Array]
    copy: Callable[[Array], Array]
    resolve: Callable[[Array], Array]
    all_finite: Callable[[Array], bool]
    cholesky_exists: Callable[[Array], bool]
    choleskys_exist: Callable[[Array], np.ndarray[Any, Any]]
    spectra: Callable[[Array], np.ndarray[Any, Any]]
    place: Callable[[Array], str]
    like: Callable[[np.ndarray[Any, Any], Array], Array]
    matrix_transpose: Callable[[Array], Array]
    split_complex: Callable[[Array], Array]
    made: Callable[[np.ndarray[Any, Any], str], Array]
    no_convergence: type[Exception]
    first_order: Callable[[Array], Array] = lambda a: a

    def adjoint(self, a: Array) -> Array:
        """Return the conjugate transpose of the last two axes."""
        return self.conj(self.matrix_transpose(a))

    def conj(self, a: Array) -> Array:
        """Return the complex conjugate; real arrays come back as they are."""
        return self.tl.conj(a) if is_complex(a) else a

    def numbers(self, a: Array) -> np.ndarray[Any, Any]:
        """Return the values as a numpy array on the host, only to be read."""
        if self.name == "numpy":
            # TensorLy would copy them; a view that refuses writes is as safe and costs nothing.
            view = np.asarray(a).view()
            view.flags.writeable = False
            return view
        return np.asarray(self.tl.to_numpy(self.resolve(a)))

    def zeros(self, shape: tuple[int, ...], like: Array) -> Array:
        """Return zeros with the element type and device of ``like``."""
        return self.cast(self.like(np.zeros(shape), like), dtype_name(like))

    def identity(self, n: int, like: Array) -> Array:
        """Return the n x n identity with the element type and device of ``like``."""
        return self.cast(self.like(np.eye(n), like), dtype_name(like))


def dtype_name(a: Array) -> str:
    """Return the name of an array's element type, such as ``"float32"``, for any library.

    Examples
    --------
    >>> dtype_name(np.zeros(2, dtype=np.float32))
    'float32'
    """
    return _name_of(a.dtype)


@cache
def _place_of(device: Any) -> str:
    return str(device)


@cache
def _name_of(dtype: Any) -> str:
    # numpy puts the name together anew each time, and it is asked for at every step.
    return str(getattr(dtype, "name", dtype)).removeprefix("torch.")


def shared_with_numpy(a: Array, backend: Backend) -> np.ndarray[Any, Any] | None:
    """Return the memory of a torch tensor on the host as a numpy array, or None elsewhere.

    One library for all steps: the threads of two would wait for each other by spinning.
    """
    if backend.name != "pytorch" or backend.place(a) != "cpu" or a.requires_grad:
        return None
    if dtype_name(a) not in ("float32", "float64", "complex64", "complex128"):
        return None
    return np.asarray(backend.resolve(a).numpy())


def where_shared(a: Array, backend: Backend) -> tuple[Array, Backend]:
    """Return an array as numpy's, with its operations, where numpy can read it; else as it is."""
    host_array = shared_with_numpy(a, backend)
    return (a, backend) if host_array is None else (host_array, load_backend("numpy"))


def is_complex(a: Array) -> bool:
    """Return whether the elements are complex."""
    return dtype_name(a).startswith("complex")


def eps(dtype: str) -> float:
    """Return the spacing of the numbers next to 1 in the named element type."""
    return _EPS[dtype]


def work_dtype(dtype: str) -> str:
    """Return the element type in which arrays of type ``dtype`` are decomposed.

    Everything is decomposed in double precision: Gram matrices square the condition number,
    and double precision is what makes that harmless for all the narrower types.
    """
    return "complex128" if dtype.startswith("complex") else "float64"


def n_elements(a: Array) -> int:
    """Return the number of elements of an array as a Python integer."""
    return math.prod(int(d) for d in a.shape)


def library_of(array: object, argument: str = "the array") -> str:
    """Return TensorLy's name of the library an array comes from, without importing anything.

    Raises
    ------
    ArrayTypeError
        If the object is neither a numpy or jax array nor a dense torch tensor.
    """
    if isinstance(array, np.ma.MaskedArray):
        remedy = "Fill the masked entries first: W.filled(value)."
        raise ArrayTypeError(complaint(argument, "have no mask", "a masked array", remedy))
    if isinstance(array, np.ndarray):
        return "numpy"
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor):
        if array.layout != torch.strided or array.is_quantized:
            given = f"a tensor with layout {array.layout} and element type {array.dtype}"
            raise ArrayTypeError(complaint(argument, "be dense", given, "Call .to_dense()."))
        return "pytorch"
    jax = sys.modules.get("jax")
    if jax is not None and isinstance(array, jax.Array):
        return "jax"
    remedy = "Convert it first, for example with numpy.asarray."
    if hasattr(array, "toarray"):
        remedy = "A sparse matrix is made dense first: .toarray()."
    elif hasattr(array, "weight"):
        remedy = "Pass its weight: .weight."
    given = f"{type(array).__module__}.{type(array).__qualname__}"
    raise ArrayTypeError(
        complaint(argument, "be a numpy array, a torch tensor or a jax array", given, remedy)
    )


def backend_of(*arrays: Array, argument: str = "the array") -> Backend:
    """Return the backend for the arrays' own library.

    Raises
    ------
    ArrayTypeError
        If an object is no array, or the arrays belong to different libraries.
    DTypeError
        If an element type is not one of :data:`DTYPES`.
    """
    if len(arrays) == 1:  # at every step of a product
        library = library_of(arrays[0], argument)
        if dtype_name(arrays[0]) in DTYPES:
            return load_backend(library)
    names = {library_of(a, argument) for a in arrays}
    if len(names) > 1:
        raise ArrayTypeError(
            complaint("arrays", "all come from one library", " and ".join(sorted(names)))
        )
    for a in arrays:
        if dtype_name(a) not in DTYPES:
            expected = f"have an element type among {', '.join(DTYPES)}"
            given, remedy = dtype_name(a), "Convert it to the precision you want: .astype(float)."
            if given == "object":
                given = "object: its elements are Python objects"
                remedy = "Make numbers of them first: .astype(float)."
            elif names == {"pytorch"}:
                remedy = "Convert it to the precision you want: .double()."
            raise DTypeError(complaint(argument, expected, given, remedy))
    return load_backend(names.pop())


@cache
def load_backend(name: str) -> Backend:
    """Return the backend with TensorLy's name ("numpy", "pytorch", "jax"), loaded once.

    Raises
    ------
    MissingLibraryError
        If the library is not installed.
    """
    try:
        return _EXTRAS[name](_tensorly_backend(name))
    except ImportError as error:
        library = {"pytorch": "torch"}.get(name, name)
        raise MissingLibraryError(
            f"{library} is needed for this and could not be imported ({error}). "
            f"Install it: pip install {library}"
        ) from error


def _tensorly_backend(name: str) -> Any:
    from tensorly.backend import BackendManager

    if name != "jax":
        return BackendManager.load_backend(name)
    import jax

    # TensorLy turns double precision on for the whole process: that is the user's to decide.
    config: Any = jax.config
    before = config.jax_enable_x64
    try:
        return BackendManager.load_backend(name)
    finally:
        config.update("jax_enable_x64", before)


def tensorly_chains() -> tuple[type, type]:
    """Return TensorLy's classes of a TT-matrix and of a tensor train."""
    load_backend("numpy")  # says what to install where TensorLy is missing
    from tensorly.tt_matrix import TTMatrix
    from tensorly.tt_tensor import TTTensor

    return TTMatrix, TTTensor


def traced(a: object) -> bool:
    """Return whether jax is tracing a function of this array: then it has no values to look at."""
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(a, jax.core.Tracer)


def working(a: Array, backend: Backend) -> tuple[Backend, Array]:
    """Return where double precision is computed, and the array there.

    jax computes in double precision only where the user has turned it on, and compiles every
    shape anew: its arrays are decomposed by numpy on the host. Others stay where they are.
    """
    return (load_backend("numpy"), backend.numbers(a)) if backend.name == "jax" else (backend, a)


def at_home(arrays: tuple[Array, ...], like: Array) -> tuple[Array, ...]:
    """Return arrays that came from :func:`working` in the library and on the device of ``like``."""
    if library_of(like) != "jax":
        return arrays
    return tuple(load_backend("jax").like(a, like) for a in arrays)


def _numpy_backend(tl: Any) -> Backend:
    return Backend(
        name="numpy",
        tl=tl,
        cast=host.cast,
        own=lambda a: np.array(a, order="C", copy=True, subok=False),
        copy=lambda a: np.array(a, order="C", copy=True),
        resolve=lambda a: a,
        all_finite=host.all_finite,
        cholesky_exists=host.cholesky_exists,
        choleskys_exist=lambda stack: np.array([host.cholesky_exists(a) for a in stack]),
        spectra=host.eigenvalues,
        place=lambda _: "cpu",
        like=lambda values, _: values,
        matrix_transpose=lambda a: np.swapaxes(a, -1, -2),
        split_complex=lambda a: np.stack([a.real, a.imag], axis=-1),
        made=lambda values, _: values,
        no_convergence=np.linalg.LinAlgError,
    )


def _torch_backend(tl: Any) -> Backend:
    import torch

    class FirstOrder(torch.autograd.Function):
        """The identity, whose gradient refuses to be differentiated again."""

        @staticmethod
        def forward(_: Any, a: Array) -> Array:
            return a.view_as(a)

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(_: Any, gradient: Array) -> Array:
            return gradient

    def made(values: np.ndarray[Any, Any], dtype: str) -> Array:
        if dtype == "bfloat16":  # its bits
            return torch.from_numpy(values.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(values)

    def like(values: np.ndarray[Any, Any], a: Array) -> Array:
        # A tensor could write to memory that numpy keeps from being written.
        mine = values if values.flags.writeable else values.copy()
        return torch.as_tensor(mine, device=a.device)

    def resolve(a: Array) -> Array:
        # torch conjugates and negates lazily, and numpy cannot read such a tensor.
        return a.resolve_conj().resolve_neg()

    def all_finite(a: Array) -> bool:
        # As on the host.
        return bool(torch.isfinite(a.detach().sum())) or bool(torch.isfinite(a).all())

    def own(a: Array) -> Array:
        return resolve(a.detach()).clone(memory_format=torch.contiguous_format)

    return Backend(
        name="pytorch",
        tl=tl,
        cast=lambda a, dtype: a.to(getattr(torch, dtype)),
        own=own,
        copy=lambda a: a.clone(memory_format=torch.contiguous_format),
        resolve=resolve,
        all_finite=all_finite,
        cholesky_exists=lambda a: int(torch.linalg.cholesky_ex(a).info) == 0,
        choleskys_exist=lambda stack: (torch.linalg.cholesky_ex(stack).info == 0).cpu().numpy(),
        spectra=lambda stack: torch.linalg.eigvalsh(stack).cpu().numpy(),
        place=lambda a: _place_of(a.device),
        like=like,
        matrix_transpose=lambda a: a.transpose(-1, -2),
        split_complex=torch.view_as_real,
        made=made,
        no_convergence=getattr(torch.linalg, "LinAlgError"),  # noqa: B009 - not in torch's types
        first_order=FirstOrder.apply,
    )


def _jax_backend(tl: Any) -> Backend:
    import jax
    from jax import numpy as jnp

    def cast(a: Array, dtype: str) -> Array:
        with jax.enable_x64(True):
            return a.astype(dtype)

    def like(values: np.ndarray[Any, Any], a: Array) -> Array:
        with jax.enable_x64(True):  # an element type is kept, never silently narrowed
            return jax.device_put(values, None if traced(a) else min(a.devices(), key=str))

    def made(values: np.ndarray[Any, Any], dtype: str) -> Array:
        with jax.enable_x64(True):
            return jax.device_put(values.view(jnp.bfloat16) if dtype == "bfloat16" else values)

    return Backend(
        name="jax",
        tl=tl,
        cast=cast,
        own=jnp.array,
        copy=jnp.array,
        resolve=lambda a: a,
        all_finite=lambda a: bool(np.isfinite(np.asarray(a)).all()),
        cholesky_exists=lambda a: bool(jnp.isfinite(jnp.linalg.cholesky(a)).all()),
        choleskys_exist=lambda a: np.isfinite(np.asarray(jnp.linalg.cholesky(a))).all((-1, -2)),
        spectra=lambda a: np.asarray(jnp.linalg.eigvalsh(a)),
        place=lambda a: "traced" if traced(a) else ", ".join(sorted(map(str, a.devices()))),
        like=like,
        matrix_transpose=lambda a: jnp.swapaxes(a, -1, -2),
        split_complex=lambda a: jnp.stack([a.real, a.imag], axis=-1),
        made=made,
        no_convergence=np.linalg.LinAlgError,
    )


_EXTRAS: dict[str, Callable[[Any], Backend]] = {
    "numpy": _numpy_backend,
    "pytorch": _torch_backend,
    "jax": _jax_backend,
}
