"""What is to be contracted: an equation and shapes, read once and checked."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from tensornet.checks import describe, integers
from tensornet.errors import ShapeError, complaint, counted
from tensornet.typing import Equation

_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_SURROGATES = range(0xD800, 0xE000)


@dataclass(frozen=True)
class Expression:
    """A network: the labels of each operand and of the result, and every label's size.

    Examples
    --------
    >>> read("ab,bc", ((2, 3), (3, 4))).equation
    'ab,bc->ac'
    """

    inputs: tuple[str, ...]
    output: str
    sizes: tuple[tuple[str, int], ...]

    @property
    def equation(self) -> str:
        """The equation with its output written out."""
        return f"{','.join(self.inputs)}->{self.output}"

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of the operands."""
        size = dict(self.sizes)
        return tuple(tuple(size[label] for label in labels) for labels in self.inputs)


def read(equation: Equation, shapes: Sequence[object]) -> Expression:
    """Return the checked expression of an equation and its operands' shapes.

    Raises
    ------
    ShapeError
        If the equation cannot be read, or the shapes do not fit it.
    """
    inputs, output = split(equation)
    if len(shapes) != len(inputs):
        expected = f"have {counted(len(inputs), 'operand')}, as the equation has"
        raise ShapeError(complaint("shapes", expected, len(shapes)))
    sizes: dict[str, int] = {}
    for k, (labels, given) in enumerate(zip(inputs, shapes, strict=True)):
        shape = _shape(f"shapes[{k}]", given)
        if len(shape) != len(labels):
            n = counted(len(labels), "dimension")
            noun = "label" if len(labels) == 1 else "labels"
            named = repr(labels) if isinstance(equation, str) else ", ".join(map(repr, equation[k]))
            expected = f"have {n} for the {noun} {named}"
            raise ShapeError(complaint(f"shapes[{k}]", expected, f"{shape}"))
        for label, size in zip(labels, shape, strict=True):
            if sizes.setdefault(label, size) != size:
                named = _shown(label, equation)
                expected = f"have size {sizes[label]} at label {named}, as before"
                raise ShapeError(complaint(f"shapes[{k}]", expected, size))
    return Expression(inputs, output, tuple(sizes.items()))


def _shape(argument: str, given: object) -> tuple[int, ...]:
    """Return a shape as a tuple; an operand in its place is refused, numbers as a row are not."""
    dims = getattr(given, "shape", None)
    row = isinstance(given, np.ndarray) and given.ndim == 1 and given.dtype.kind in "iu"
    if dims is not None and not row:
        text, remedy = f"an array of shape {tuple(dims)}", "Pass its shape: W.shape."
        raise ShapeError(complaint(argument, "be a shape", text, remedy))
    return integers(argument, given, ShapeError)


def split(equation: Equation) -> tuple[tuple[str, ...], str]:
    """Return the labels of the operands and of the output, a character for each label."""
    inputs, output = _parts(equation)
    known = set("".join(inputs))
    for k, label in enumerate(output):
        if label not in known:
            expected = "have output labels that an operand has"
            remedy = "" if isinstance(equation, str) else "The last list is the output's."
            raise ShapeError(complaint("equation", expected, _shown(label, equation), remedy))
        if label in output[:k]:
            expected = "have each label once in the output"
            raise ShapeError(complaint("equation", expected, f"{_shown(label, equation)} twice"))
    return inputs, output


def _parts(equation: Equation) -> tuple[tuple[str, ...], str]:
    if not isinstance(equation, str):
        return _from_lists(equation)
    text = "".join(equation.split())
    left, arrow, output = text.partition("->")
    for sign in (".", ">", "-"):
        if sign in left + output:
            remedy = "Give every index a label." if sign == "." else ""
            expected = "have labels, commas and at most one '->'"
            raise ShapeError(complaint("equation", expected, repr(equation), remedy))
    if "," in output:
        raise ShapeError(complaint("equation", "have one output", repr(equation)))
    if not arrow:  # as everywhere: what stands once, in alphabetical order
        output = "".join(sorted(c for c in set(left) - {","} if left.count(c) == 1))
    return tuple(left.split(",")), output


def _from_lists(equation: object) -> tuple[tuple[str, ...], str]:
    expected = "be a string or a sequence of label lists: one for each operand, then the output's"
    if not isinstance(equation, Sequence) or len(equation) < 2:
        raise ShapeError(complaint("equation", expected, describe(equation)))
    for labels in equation:
        if not isinstance(labels, Sequence):
            raise ShapeError(complaint("equation", expected, f"{labels!r} in it"))
        for label in labels:
            if not isinstance(label, Hashable):
                raise ShapeError(complaint("equation", expected, f"the label {label!r}"))
    names = _names(equation)
    words = ["".join(names[label] for label in labels) for labels in equation]
    return tuple(words[:-1]), words[-1]


def _names(equation: Sequence[Sequence[Hashable]]) -> dict[Hashable, str]:
    """Return a character for each label of label lists, in the order in which they come."""
    fresh = _symbols()
    return {label: next(fresh) for label in dict.fromkeys(chain.from_iterable(equation))}


def _shown(label: str, equation: Any) -> str:
    """Return a label as the user wrote it, for messages."""
    if isinstance(equation, str):
        return repr(label)
    return repr(next(given for given, name in _names(equation).items() if name == label))


def _symbols() -> Iterator[str]:
    yield from _LETTERS
    code = 0xC0
    while True:
        if code not in _SURROGATES and chr(code).isalnum():
            yield chr(code)
        code += 1
