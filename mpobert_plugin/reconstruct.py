"""Rebuild the matrices of all layers from stacked cores, in one batched product."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mpobert_plugin.half_join import half_join
from mpobert_plugin.halves import HALF, exact
from mpobert_plugin.joining import Joining, Pieces, fits_half, join
from mpobert_plugin.merging import merged_left, merged_right
from mpobert_plugin.rejoin import Rejoin
from mpobert_plugin.spec import BankSpec

_ADAPTER = ("adapter_up", "adapter_down")


@dataclass(frozen=True)
class Recipe:
    """How the distinct matrices of a bank are rebuilt.

    Parameters
    ----------
    pairs : tuple of (int, int)
        Central and auxiliary slice of each distinct matrix, sorted by the central slice.
    matrix_of_layer : tuple of int
        Number of the pair that each layer uses.
    left_first : bool
        Whether the left chain meets the central tensor before the right chain does.
    multiply_adds : int
        Multiply-adds of rebuilding all distinct matrices, without adapters.
    """

    pairs: tuple[tuple[int, int], ...]
    matrix_of_layer: tuple[int, ...]
    left_first: bool
    multiply_adds: int


def recipe(spec: BankSpec) -> Recipe:
    """Return the cheapest way to rebuild the matrices of a bank, by counted multiply-adds.

    Parameters
    ----------
    spec : BankSpec
        Sizes and layer maps.

    Returns
    -------
    Recipe
        A frozen value.

    Examples
    --------
    >>> spec = BankSpec("query", 8, 8, (2, 2, 2), (2, 2, 2), (1, 4, 4, 1), (0, 0), (0, 1))
    >>> recipe(spec).pairs, recipe(spec).multiply_adds
    (((0, 0), (0, 1)), 1024)
    """
    used = list(zip(spec.central, spec.auxiliary, strict=True))
    pairs = tuple(sorted(set(used)))
    place = {pair: number for number, pair in enumerate(pairs)}
    shapes, site = spec.core_shapes, spec.central_site
    left, i, j, right = shapes[site]
    m = math.prod(a * b for _, a, b, _ in shapes[:site])
    p = math.prod(a * b for _, a, b, _ in shapes[site + 1 :])
    left_cost = m * left * i * j * right if site > 0 else 0
    right_cost = left * i * j * right * p if site + 1 < len(shapes) else 0
    left_total = left_cost + (m * i * j * right * p if right_cost else 0)
    right_total = right_cost + (m * left * i * j * p if left_cost else 0)
    chains = (max(spec.auxiliary) + 1) * (
        _chain_cost(shapes[:site]) + _chain_cost(shapes[site + 1 :][::-1])
    )
    cost = len(pairs) * min(left_total, right_total) + chains
    order = tuple(place[pair] for pair in used)
    return Recipe(pairs, order, left_total <= right_total, cost)


def _chain_cost(shapes: Sequence[tuple[int, int, int, int]]) -> int:
    total, done = 0, 0
    for left, i, j, right in shapes:
        total += done * left * i * j * right
        done = (done or 1) * i * j
    return total


def rebuild(
    spec: BankSpec,
    how: Recipe,
    tensors: Mapping[str, Tensor],
    dtype: torch.dtype,
    *,
    recompute: bool = False,
    half: bool = False,
) -> tuple[Tensor, ...]:
    """Return the matrix of every layer, differentiable in every tensor of the bank.

    Half precision is rebuilt in float32 and rounded once at the end, whatever autocast says.

    Parameters
    ----------
    spec : BankSpec
        Sizes and layer maps.
    how : Recipe
        ``recipe(spec)``.
    tensors : mapping of str to Tensor
        Stacked tensors by the names of ``spec.tensor_shapes()``.
    dtype : torch.dtype
        Element type of the result.
    recompute : bool
        Whether backward computes the products again instead of keeping them.
    half : bool
        Whether a result in half precision may be computed in float16 with sums in float32.

    Returns
    -------
    tuple of Tensor
        One (rows, cols) matrix for each layer; layers that use the same slices get one object.
    """
    joining = joining_of(spec, how, dtype, half=half)
    with exact(tensors["central"].device.type):
        matrices = _each(operands_of(spec, how, tensors, joining), joining, recompute)
    numbers = range(spec.n_layers) if spec.adapter_rank else how.matrix_of_layer
    return tuple(matrices[number] for number in numbers)


def _each(pieces: Pieces, how: Joining, recompute: bool) -> Sequence[Tensor]:
    """Return the matrices; a compiler takes no function with outputs for its backward alone."""
    if not recompute:
        return join(*pieces, how).unbind(0)
    if how.half and not torch.compiler.is_compiling():
        return half_join(pieces, how)
    made: Tensor = Rejoin.apply(*pieces, how)  # type: ignore[no-untyped-call]
    return made.unbind(0)


def operands_of(
    spec: BankSpec, how: Recipe, tensors: Mapping[str, Tensor], joining: Joining
) -> Pieces:
    """Return what is joined to the matrices of a bank.

    Parameters
    ----------
    spec, how, tensors
        As for `rebuild`.
    joining : Joining
        Sizes and order.

    Returns
    -------
    tuple of (Tensor or None)
        Central tensors, left and right chains of each matrix, both parts of the adapters.
    """
    left, right = chains(spec, how, tensors)
    central = tensors["central"] if joining.half else _widened(tensors["central"])
    up, down = (_widened(tensors[k]) if k in tensors else None for k in _ADAPTER)
    return central, left, right, up, down


def joining_of(spec: BankSpec, how: Recipe, dtype: torch.dtype, *, half: bool = False) -> Joining:
    """Return sizes and order of the products that rebuild all matrices of a bank.

    Parameters
    ----------
    spec, how, dtype, half
        As for `rebuild`.

    Returns
    -------
    Joining
        A frozen value.

    Examples
    --------
    >>> spec = BankSpec("query", 8, 8, (2, 2, 2), (2, 2, 2), (1, 4, 4, 1), (0, 0), (0, 1))
    >>> joining_of(spec, recipe(spec), torch.float32).counts
    (2,)
    """
    site = spec.central_site
    groups = [group for group, _ in how.pairs]
    made = Joining(
        counts=tuple(groups.count(group) for group in range(max(groups) + 1)),
        row_dims=_sides(spec.row_dims, site),
        col_dims=_sides(spec.col_dims, site),
        rows=spec.rows,
        cols=spec.cols,
        left_first=how.left_first,
        outputs=how.matrix_of_layer if spec.adapter_rank else tuple(range(len(groups))),
        alpha=spec.adapter_scale,
        dtype=dtype,
        half=half and dtype in HALF,
    )
    _, *_, bond = spec.core_shapes[site]
    fits = fits_half(made, (spec.core_shapes[site][0], bond))
    return made if fits or not made.half else replace(made, half=False)


def _sides(dims: tuple[int, ...], site: int) -> tuple[int, int, int]:
    return math.prod(dims[:site]), dims[site], math.prod(dims[site + 1 :])


def _widened(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in HALF else tensor


def chains(
    spec: BankSpec, how: Recipe, tensors: Mapping[str, Tensor]
) -> tuple[Tensor | None, Tensor | None]:
    """Return the contracted chains left and right of the central tensor, for each matrix.

    Parameters
    ----------
    spec, how, tensors
        As for `rebuild`.

    Returns
    -------
    tuple of (Tensor or None, Tensor or None)
        (matrices, rows and columns, bond) and (matrices, bond, rows and columns), in float32 or
        wider; None at an end of the chain.
    """
    site = spec.central_site
    cores = [_widened(tensors[k]) for k in _auxiliary(spec)]
    left, right = _left_chain(cores[:site]), _right_chain(cores[site:])
    picked = [auxiliary for _, auxiliary in how.pairs]
    return (
        None if left is None else _pick(left, picked).flatten(1, 2),
        None if right is None else _pick(right, picked).flatten(2, 3),
    )


def _auxiliary(spec: BankSpec) -> list[str]:
    return [f"auxiliary_{k}" for k in range(len(spec.row_dims)) if k != spec.central_site]


def _pick(stack: Tensor, numbers: list[int]) -> Tensor:
    if numbers == list(range(stack.shape[0])):
        return stack
    return torch.stack([stack[number] for number in numbers])


def _left_chain(cores: list[Tensor]) -> Tensor | None:
    """Contract (A, 1, i, j, r) ... into (A, I * J, r), rows before columns."""
    if not cores:
        return None
    chain = cores[0].squeeze(1)
    for core in cores[1:]:
        chain = merged_left(chain, core)
    return chain


def _right_chain(cores: list[Tensor]) -> Tensor | None:
    """Contract ... (A, r, i, j, 1) into (A, r, I, J)."""
    if not cores:
        return None
    chain = cores[-1].squeeze(-1)
    for core in reversed(cores[:-1]):
        chain = merged_right(core, chain)
    return chain
