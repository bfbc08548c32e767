"""Running a path: reshapes, batched matrix products, and sums within one operand."""

from __future__ import annotations

from collections.abc import Sequence

from tensornet.backend import Backend, backend_of, dtype_name
from tensornet.checks import same_kind
from tensornet.contract.cost import Path, Step, alone, schedule
from tensornet.contract.expression import Expression
from tensornet.errors import DTypeError, ShapeError, complaint
from tensornet.typing import Array

HALF = ("float16", "bfloat16")


def run(expression: Expression, path: Path, arrays: Sequence[Array]) -> Array:
    """Return the contraction of arrays along a path; see :meth:`Plan.run`."""
    backend = _checked(expression, arrays)
    dtype = dtype_name(arrays[0])
    wide = [backend.cast(a, "float32") if dtype in HALF else a for a in arrays]
    return backend.cast(follow(expression, path, wide, backend), dtype)


def follow(expression: Expression, path: Path, arrays: Sequence[Array], backend: Backend) -> Array:
    """Return the contraction of checked arrays; only ``*`` and ``@`` multiply elements."""
    size, tl = dict(expression.sizes), backend.tl
    shape = tuple(size[label] for label in expression.output)
    todo = [
        tl.reshape(a, tuple(size[c] for c in word if size[c] > 1))
        for a, word in zip(arrays, expression.inputs, strict=True)
    ]
    if not path:
        return backend.copy(tl.reshape(reduce(todo[0], alone(expression), backend), shape))
    for first, second, sums, step in schedule(expression, path):
        pair = [todo[first], todo[second]]
        todo = [item for k, item in enumerate(todo) if k not in (first, second)]
        a, b = (reduce(a, s, backend) if s else a for a, s in zip(pair, sums, strict=True))
        todo.append(join(a, b, step, size, backend))
    return tl.reshape(todo[0], shape)


def reduce(a: Array, step: Step, backend: Backend) -> Array:
    """Return an operand's diagonals over repeated labels, summed over those that end here."""
    (word,), result = step.operands, step.result
    labels = list(word)
    for label in dict.fromkeys(word):
        while labels.count(label) > 1:
            first = labels.index(label)
            second = labels.index(label, first + 1)
            a = a.diagonal(0, first, second)  # its axis comes last
            labels = [c for k, c in enumerate(labels) if k not in (first, second)] + [label]
    ends = tuple(k for k, c in enumerate(labels) if c not in result)
    a = a.sum(ends) if ends else a
    return _ordered(a, "".join(c for c in labels if c in result), result, backend)


def join(a: Array, b: Array, step: Step, size: dict[str, int], backend: Backend) -> Array:
    """Return the result of one step with two operands, by one batched matrix product."""
    (left, right), result = step.operands, step.result
    both = [c for c in left if c in right and c in result]
    inner = [c for c in left if c in right and c not in result]
    rows = [c for c in left if c not in right]
    cols = [c for c in right if c not in left]
    if result and cols and not both and result[0] == cols[0]:
        return join(b, a, _swapped(step), size, backend)
    count = [_product(group, size) for group in (both, rows, inner, cols)]
    n_both, n_rows, n_inner, n_cols = count
    a = _ordered(a, left, "".join([*both, *rows, *inner]), backend)
    b = _ordered(b, right, "".join([*both, *inner, *cols]), backend)
    lead = (n_both,) if both else ()
    a = backend.tl.reshape(a, (*lead, n_rows, n_inner))
    b = backend.tl.reshape(b, (*lead, n_inner, n_cols))
    product = a @ b if inner else a * b
    made = [*both, *rows, *cols]
    product = backend.tl.reshape(product, tuple(size[c] for c in made))
    return _ordered(product, "".join(made), result, backend)


def _swapped(step: Step) -> Step:
    left, right = step.operands
    return Step((right, left), step.result, step.multiply_adds, step.traffic, step.alive)


def _ordered(a: Array, labels: str, wanted: str, backend: Backend) -> Array:
    if labels == wanted:
        return a
    return backend.tl.transpose(a, tuple(labels.index(c) for c in wanted))


def _product(labels: Sequence[str], size: dict[str, int]) -> int:
    total = 1
    for label in labels:
        total *= size[label]
    return total


def _checked(expression: Expression, arrays: Sequence[Array]) -> Backend:
    shapes = expression.shapes
    if len(arrays) != len(shapes):
        expected = f"be {len(shapes)}, one for each operand of the equation"
        raise ShapeError(complaint("the number of arrays", expected, len(arrays)))
    backend = backend_of(*arrays, argument="arrays")
    for k, (a, shape) in enumerate(zip(arrays, shapes, strict=True)):
        if tuple(int(d) for d in a.shape) != shape:
            raise ShapeError(complaint(f"arrays[{k}]", f"have shape {shape}", tuple(a.shape)))
        same_kind(f"arrays[{k}]", a, arrays[0], backend)
        if dtype_name(a) != dtype_name(arrays[0]):
            expected = f"have the first one's element type {dtype_name(arrays[0])}"
            raise DTypeError(complaint(f"arrays[{k}]", expected, dtype_name(a)))
    return backend
