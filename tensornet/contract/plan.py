"""A plan: an order of pairwise contractions with its costs, as an immutable value."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tensornet.checks import integer
from tensornet.contract.cost import Path, Step, steps
from tensornet.contract.execute import run
from tensornet.contract.expression import read
from tensornet.errors import OptionError, ShapeError, TensorNetError, complaint, counted
from tensornet.typing import Array

MINIMIZE = ("multiply_adds", "peak", "traffic")
_FIELDS = ("equation", "shapes", "path", "strategy", "itemsize")
_COUNTS = ("multiply_adds", "peak_elements", "traffic")


@dataclass(frozen=True)
class Plan:
    """An order in which a network is contracted, two operands at a time; prints as a table.

    Made by :func:`tensornet.plan` and :meth:`tensornet.MPO.plan`. Plans with the same equation,
    shapes, path, strategy and item size are equal.

    Parameters
    ----------
    equation : str
        Labels of the operands and of the result.
    shapes : tuple of tuple of int
        Shapes of the operands.
    path : tuple of tuple of int
        For each join the positions of its two operands, as in opt_einsum: both are taken away
        and the result is put at the end. Empty for one operand.
    strategy : str
        How the path was found, or what it does: "exact", "opt_einsum", "dense", "left", ...
    itemsize : int
        Bytes of an element.

    Attributes
    ----------
    steps : tuple of Step
        The steps with their costs.

    Examples
    --------
    >>> p = Plan("ab,bc,cd->ad", ((2, 9), (9, 2), (2, 9)), ((0, 1), (0, 1)), "exact")
    >>> p.multiply_adds, p.peak_elements, p.traffic
    (72, 76, 80)
    """

    equation: str
    shapes: tuple[tuple[int, ...], ...]
    path: Path
    strategy: str
    itemsize: int = 4
    steps: tuple[Step, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        strategy: object = self.strategy
        if not isinstance(strategy, str) or not strategy:
            raise OptionError(complaint("strategy", "be a word", repr(strategy)))
        expression = read(self.equation, self.shapes)
        path = _checked_path(self.path, len(expression.inputs))
        object.__setattr__(self, "equation", expression.equation)
        object.__setattr__(self, "shapes", expression.shapes)
        object.__setattr__(self, "path", path)
        object.__setattr__(self, "itemsize", integer("itemsize", self.itemsize, 1, OptionError))
        object.__setattr__(self, "steps", steps(expression, path))

    @property
    def multiply_adds(self) -> int:
        """Multiplications of all steps."""
        return sum(step.multiply_adds for step in self.steps)

    @property
    def peak_elements(self) -> int:
        """Elements alive at the worst moment: inputs, intermediates and the result."""
        return max(step.alive for step in self.steps)

    @property
    def traffic(self) -> int:
        """Elements that the steps read and write."""
        return sum(step.traffic for step in self.steps)

    @property
    def bytes_moved(self) -> int:
        """Bytes that the steps read and write."""
        return self.traffic * self.itemsize

    def run(self, *arrays: Array) -> Array:
        """Return the contraction of arrays of the plan's shapes; torch differentiates through it.

        Half precision is contracted in float32 and rounded once at the end.

        Raises
        ------
        ShapeError
            If the number of arrays or a shape is not the plan's.
        ArrayTypeError, DTypeError
            If they are no arrays of one library, element type and device.
        """
        return run(read(self.equation, self.shapes), self.path, arrays)

    def to_json(self) -> str:
        """Return the plan as one line of JSON, its counts included."""
        names = (*_FIELDS, *_COUNTS)
        return json.dumps({name: getattr(self, name) for name in names}, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Return the plan that :meth:`to_json` wrote; everything in it is checked.

        Raises
        ------
        ShapeError, OptionError
            If the text is no plan, or its counts are not those of its path.
        """
        remedy = "Give what Plan.to_json returned."
        try:
            record: Any = json.loads(text)
        except (TypeError, ValueError) as error:
            raise OptionError(complaint("text", "be a plan's JSON", str(error), remedy)) from None
        names = {*_FIELDS, *_COUNTS}
        if not isinstance(record, dict) or set(record) != names:
            given = sorted(record) if isinstance(record, dict) else type(record).__name__
            expected = f"have the entries {', '.join(sorted(names))}"
            raise OptionError(complaint("text", expected, given, remedy))
        if not isinstance(record["equation"], str) or not isinstance(record["shapes"], list):
            raise OptionError(complaint("text", "be a plan's JSON", "other types", remedy))
        plan = cls(**{name: record[name] for name in _FIELDS})
        for name in _COUNTS:
            if record[name] != getattr(plan, name):
                expected = f"have {name} {getattr(plan, name)}, as its path has"
                raise OptionError(complaint("text", expected, record[name], remedy))
        return plan

    def __str__(self) -> str:
        rows = [(str(step), step.multiply_adds, step.traffic, step.alive) for step in self.steps]
        total = (self.strategy, self.multiply_adds, self.traffic, self.peak_elements)
        head = ("step", "multiply-adds", "traffic", "alive")
        cells = [head] + [(row[0], *(f"{n:,}" for n in row[1:])) for row in (*rows, total)]
        width = [max(len(row[k]) for row in cells) for k in range(4)]
        lines = [_line(row, width) for row in cells]
        lines.insert(-1, "-" * len(lines[0]))
        size = f"{self.bytes_moved:,} bytes moved at {self.itemsize} bytes an element"
        return "\n".join([*lines, f"alive: peak in the last row; {size}"])


def _line(row: Sequence[str], width: Sequence[int]) -> str:
    rest = " ".join(f"{cell:>{w}}" for cell, w in zip(row[1:], width[1:], strict=True))
    return f"{row[0]:<{width[0]}} {rest}"


def _checked_path(path: object, n: int) -> Path:
    expected = (
        f"join {counted(n, 'operand')} two at a time, in {counted(n - 1, 'pair')} of positions"
    )
    error: type[TensorNetError] = ShapeError
    if not isinstance(path, Sequence) or len(path) != n - 1:
        raise error(complaint("path", expected, repr(path)))
    checked = []
    for k, pair in enumerate(path):
        if not isinstance(pair, Sequence) or len(pair) != 2:
            raise error(complaint("path", expected, f"{pair!r} in it"))
        first, second = (integer("a position in path", p, 0, error) for p in pair)
        if first == second or max(first, second) >= n - k:
            raise error(complaint("path", expected, f"{pair!r} where {n - k} are left"))
        checked.append((first, second))
    return tuple(checked)
