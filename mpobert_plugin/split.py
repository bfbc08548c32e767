"""Banks of some layers: a bank of all layers, taken apart by the bonds that its layers get."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mpobert_plugin.spec import MEASURES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mpobert_plugin.sharing import LayerMap
    from mpobert_plugin.spec import BankSpec

Bonds = tuple[int, ...]


def split_bank(spec: BankSpec, bonds: Mapping[int, Bonds | None]) -> tuple[BankSpec, ...]:
    """Return banks in which every central slice of a bank has the bonds that it is given.

    Layers of slices with equal bonds read one bank; layers of slices without bonds read none and
    keep their plain matrices.

    Parameters
    ----------
    spec : BankSpec
        A bank of all layers.
    bonds : mapping of int to (tuple of int or None)
        For each central slice its bond dimensions, one more than sites, or None.

    Returns
    -------
    tuple of BankSpec
        In the order of their first layers.

    Examples
    --------
    >>> from mpobert_plugin.spec import BankSpec
    >>> spec = BankSpec("query", 6, 6, (2, 3), (3, 2), (1, 6, 1), (0, 1, 1, 2), (0, 1, 2, 3))
    >>> banks = split_bank(spec, {0: (1, 2, 1), 1: None, 2: (1, 2, 1)})
    >>> [(bank.name, bank.layers, bank.central, bank.auxiliary) for bank in banks]
    [('query_0', (0, 3), (0, 1), (0, 1))]
    """
    layers_of: dict[Bonds, list[int]] = {}
    for layer, piece in zip(spec.layer_numbers, spec.central, strict=True):
        found = bonds[piece]
        if found is not None:
            layers_of.setdefault(found, []).append(layer)
    return tuple(
        replace(restricted(spec, layers), bond_dims=found) for found, layers in layers_of.items()
    )


def restricted(spec: BankSpec, layers: Sequence[int]) -> BankSpec:
    """Return the bank of some layers of a bank, with slices counted anew.

    Parameters
    ----------
    spec : BankSpec
        A bank.
    layers : sequence of int
        Numbers of layers that read it, in ascending order.

    Returns
    -------
    BankSpec
        The same when these are all of its layers.

    Examples
    --------
    >>> from mpobert_plugin.spec import BankSpec
    >>> spec = BankSpec("query", 6, 6, (2, 3), (3, 2), (1, 6, 1), (0, 0, 1), (0, 1, 2), (2, 0, 1))
    >>> some = restricted(spec, [1, 2])
    >>> some.layers, some.central, some.auxiliary, some.bias
    ((1, 2), (0, 1), (0, 1), (0, 1))
    """
    if tuple(layers) == spec.layer_numbers:
        return spec
    slots = [spec.layer_numbers.index(layer) for layer in layers]
    known = {name: getattr(spec, name) for name in MEASURES}
    measures: dict[str, Any] = {
        name: tuple(values[slot] for slot in slots) for name, values in known.items() if values
    }
    return replace(
        spec,
        layers=tuple(layers),
        central=_counted([spec.central[slot] for slot in slots]),
        auxiliary=_counted([spec.auxiliary[slot] for slot in slots]),
        bias=None if spec.bias is None else _counted([spec.bias[slot] for slot in slots]),
        **measures,
    )


def _counted(slices: Sequence[int]) -> LayerMap:
    numbers: dict[int, int] = {}
    return tuple(numbers.setdefault(piece, len(numbers)) for piece in slices)
