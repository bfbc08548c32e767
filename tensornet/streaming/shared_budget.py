"""One budget of parameters for a whole file: bonds of all matrices, from their spectra."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tensornet.allocate import allocate
from tensornet.errors import NonFiniteError, OptionError, complaint
from tensornet.streaming.options import Options
from tensornet.streaming.source import Entry

Progress = Callable[[int, int, str], None]
# The inner bonds of each matrix; None where it stays as it is.
Bonds = dict[str, tuple[int, ...] | None]


def shared_bonds(
    entries: Mapping[str, Entry], fit: list[str], options: Options, progress: Progress | None
) -> Bonds:
    """Return the bonds with which all matrices together serve ``max_params`` best.

    Each matrix is read once, one at a time; only its spectra are kept. What is not decomposed
    counts too.

    Raises
    ------
    OptionError
        If the budget is below what the smallest chains and the rest of the file need.
    NonFiniteError
        If a matrix holds NaN or infinity.
    """
    rest = sum(entry.n_elements for name, entry in entries.items() if name not in fit)
    budget = (options.max_params or 0) - rest
    layouts = {name: options.layout(entries[name].shape) for name in fit}
    least = sum(sum(layout.site_dims) for layout in layouts.values())
    if not fit or budget < least:
        expected = f"be at least {rest + least}"
        given = f"{options.max_params}, where tensors that stay as they are take {rest}"
        raise OptionError(complaint("max_params", expected, given))
    try:
        found = allocate(
            _Matrices(entries, fit, progress),
            max_params=budget,
            shape=layouts,
            keep_dense=not options.keep_larger,
        )
    except NonFiniteError as problem:
        text = re.sub(r"^Ws\['(.*?)'\]", r"\1", str(problem))
        raise NonFiniteError(f"{text} Exclude it to leave it as it is.") from problem
    return {a.name: None if a.dense else a.bonds for a in found}


class _Matrices(Mapping[str, Any]):
    """The matrices of a file, read when they are asked for."""

    def __init__(
        self, entries: Mapping[str, Entry], names: list[str], progress: Progress | None
    ) -> None:
        self._entries, self._names, self._progress = entries, names, progress

    def __getitem__(self, name: str) -> Any:
        if self._progress is not None:
            self._progress(self._names.index(name), len(self._names), f"spectra of {name}")
        return self._entries[name].matrix()

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
