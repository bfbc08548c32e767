"""Hand the layers of a bank what they rebuild their matrices from, by groups of layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mpobert_plugin.halves import exact
from mpobert_plugin.joining import Joining, Pieces
from mpobert_plugin.pending import Pending, Source
from mpobert_plugin.reconstruct import Recipe, joining_of, operands_of
from mpobert_plugin.rejoin import Promise
from mpobert_plugin.spec import BankSpec


@dataclass(frozen=True)
class Group:
    """Layers that are rebuilt together.

    Parameters
    ----------
    slots : tuple of int
        The layers.
    matrices : tuple of int
        Numbers of the bank's distinct matrices that they use, ascending.
    outputs : tuple of int
        Where the matrix of each layer stands in what is rebuilt.
    how : Joining
        How the group is rebuilt.
    """

    slots: tuple[int, ...]
    matrices: tuple[int, ...]
    outputs: tuple[int, ...]
    how: Joining


def groups_of(how: Recipe, joining: Joining, size: int) -> list[Group]:
    """Return groups of neighbouring layers.

    Parameters
    ----------
    how : Recipe
        How the bank is rebuilt.
    joining : Joining
        Sizes and order for the whole bank.
    size : int
        Most layers of a group.

    Returns
    -------
    list of Group
        In the order of the layers.

    Examples
    --------
    >>> how = Recipe(((0, 0), (0, 1), (1, 2)), (0, 1, 2), True, 0)
    >>> whole = Joining((2, 1), (1, 2, 1), (1, 2, 1), 2, 2, True, (0, 1, 2), 0.0, torch.float32)
    >>> [(group.slots, group.how.counts) for group in groups_of(how, whole, 2)]
    [((0, 1), (2,)), ((2,), (1,))]
    """
    made = []
    for start in range(0, len(how.matrix_of_layer), size):
        slots = tuple(range(start, min(start + size, len(how.matrix_of_layer))))
        used = [how.matrix_of_layer[slot] for slot in slots]
        matrices = tuple(sorted(set(used)))
        place = tuple(matrices.index(number) for number in used)
        centrals = [how.pairs[number][0] for number in matrices]
        counts = tuple(centrals.count(central) for central in sorted(set(centrals)))
        adapted = bool(joining.alpha)
        outputs = place if adapted else tuple(range(len(matrices)))
        own = replace(joining, counts=counts, outputs=outputs)
        made.append(Group(slots, matrices, tuple(range(len(slots))) if adapted else place, own))
    return made


def hand_groups(
    spec: BankSpec,
    how: Recipe,
    tensors: Mapping[str, Tensor],
    dtype: torch.dtype,
    biases: Sequence[Tensor | None],
    *,
    size: int,
    half: bool = False,
) -> list[Pending]:
    """Return what each layer rebuilds its matrix from, in groups.

    Parameters
    ----------
    spec, how, tensors, dtype, half
        As for `rebuild`.
    biases : sequence of (Tensor or None)
        The bias of each layer.
    size : int
        Number of layers of a group.

    Returns
    -------
    list of Pending
        One for each layer.
    """
    joining = joining_of(spec, how, dtype, half=half)
    with exact(tensors["central"].device.type):
        central, left, right, up, down = operands_of(spec, how, tensors, joining)
        sides = (_each(left), _each(right), _each(up), _each(down))
        alone = _Slices(how, central, central.unbind(0), *sides)
        found: list[Pending] = []
        for group in groups_of(how, joining, size):
            operands = alone.operands(group.matrices, group.slots)
            # torch leaves this method without types.
            promise: Tensor = Promise.apply(*operands, group.how)  # type: ignore[no-untyped-call]
            promises = promise.unbind(0)
            source = Source(operands, group.how, len(group.slots))
            one = replace(joining, counts=(1,), outputs=(0,))
            for slot, place in zip(group.slots, group.outputs, strict=True):
                own = alone.operands((how.matrix_of_layer[slot],), (slot,))
                parts = (*own, biases[slot])
                found.append(Pending(one, parts, source, place, promises[place]))
    return found


def _each(stack: Tensor | None) -> tuple[Tensor, ...] | None:
    return None if stack is None else stack.unbind(0)


@dataclass(frozen=True)
class _Slices:
    """The operands of a bank, taken apart: the way back through each of them is one stack."""

    how: Recipe
    central: Tensor
    centrals: tuple[Tensor, ...]
    left: tuple[Tensor, ...] | None
    right: tuple[Tensor, ...] | None
    up: tuple[Tensor, ...] | None
    down: tuple[Tensor, ...] | None

    def operands(self, matrices: tuple[int, ...], slots: tuple[int, ...]) -> Pieces:
        """Return the five operands of `join` for some matrices and layers."""
        groups = tuple(sorted({self.how.pairs[number][0] for number in matrices}))
        whole = groups == tuple(range(len(self.central)))
        return (
            self.central if whole else _taken(self.centrals, groups),
            _stack(self.left, matrices),
            _stack(self.right, matrices),
            _stack(self.up, slots),
            _stack(self.down, slots),
        )


def _stack(pieces: tuple[Tensor, ...] | None, numbers: tuple[int, ...]) -> Tensor | None:
    return None if pieces is None else _taken(pieces, numbers)


def _taken(pieces: tuple[Tensor, ...], numbers: tuple[int, ...]) -> Tensor:
    if len(numbers) == 1:
        return pieces[numbers[0]].unsqueeze(0)
    return torch.stack([pieces[number] for number in numbers])
