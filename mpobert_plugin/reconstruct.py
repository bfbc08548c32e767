"""Rebuild the matrices of all layers from stacked cores, in one batched product."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from mpobert_plugin.spec import BankSpec

_HALF = (torch.float16, torch.bfloat16)
# Asked once, at import: torch 2.11 cannot trace the question inside a compiled graph.
AUTOCAST_DEVICES = frozenset(
    kind for kind in ("cpu", "cuda", "mps", "xpu") if torch.amp.is_autocast_available(kind)
)


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
    spec: BankSpec, how: Recipe, tensors: Mapping[str, Tensor], dtype: torch.dtype
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

    Returns
    -------
    tuple of Tensor
        One (rows, cols) matrix for each layer; layers that use the same slices get one object.
    """
    with _exact(tensors["central"].device.type):
        wide = {name: _widened(tensor) for name, tensor in tensors.items() if name != "bias"}
        matrices = _distinct(spec, how, wide)
        if spec.adapter_rank:
            matrices = _adapted(spec, how, wide, matrices)
            return tuple(matrices.to(dtype).unbind(0))
        split = matrices.to(dtype).unbind(0)
    return tuple(split[number] for number in how.matrix_of_layer)


def _exact(device_type: str) -> AbstractContextManager[object]:
    """Return a context without autocast; devices such as 'meta' know none."""
    if device_type in AUTOCAST_DEVICES:
        return torch.autocast(device_type, enabled=False)
    return nullcontext()


def _widened(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in _HALF else tensor


def _distinct(spec: BankSpec, how: Recipe, tensors: Mapping[str, Tensor]) -> Tensor:
    site = spec.central_site
    left = _left_chain([tensors[f"auxiliary_{k}"] for k in range(site)])
    right = _right_chain([tensors[f"auxiliary_{k}"] for k in range(site + 1, len(spec.row_dims))])
    picked = [auxiliary for _, auxiliary in how.pairs]
    left = None if left is None else _pick(left, picked)
    right = None if right is None else _pick(right, picked)
    product = _product(
        tensors["central"], [group for group, _ in how.pairs], left, right, how.left_first
    )
    return _unfolded(product, spec)


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
        a, rows, cols, bond = chain.shape
        _, _, i, j, right = core.shape
        merged = chain.reshape(a, rows * cols, bond) @ core.reshape(a, bond, i * j * right)
        merged = merged.view(a, rows, cols, i, j, right).transpose(2, 3)
        chain = merged.reshape(a, rows * i, cols * j, right)
    return chain


def _right_chain(cores: list[Tensor]) -> Tensor | None:
    """Contract ... (A, r, i, j, 1) into (A, r, I, J)."""
    if not cores:
        return None
    chain = cores[-1].squeeze(-1)
    for core in reversed(cores[:-1]):
        a, bond, rows, cols = chain.shape
        _, left, i, j, _ = core.shape
        merged = core.reshape(a, left * i * j, bond) @ chain.reshape(a, bond, rows * cols)
        merged = merged.view(a, left, i, j, rows, cols).transpose(3, 4)
        chain = merged.reshape(a, left, i * rows, j * cols)
    return chain


def _product(
    central: Tensor, groups: list[int], left: Tensor | None, right: Tensor | None, left_first: bool
) -> Tensor:
    """Return (U, I1, J1, i, j, I2, J2) for each pair; sizes of a missing chain are 1."""
    _, bond, i, j, bond2 = central.shape
    u = len(groups)
    rows1, cols1 = (1, 1) if left is None else left.shape[1:3]
    rows2, cols2 = (1, 1) if right is None else right.shape[2:4]
    a = None if left is None else left.reshape(u, rows1 * cols1, bond)
    b = None if right is None else right.reshape(u, bond2, rows2 * cols2)
    if a is None or not left_first:
        middle = central.reshape(-1, bond * i * j, bond2)
        whole = _pick(middle, groups) if b is None else _grouped(middle, groups, b, from_left=True)
        if a is not None:
            whole = a @ whole.reshape(u, bond, -1)
    else:
        middle = central.reshape(-1, bond, i * j * bond2)
        whole = _grouped(middle, groups, a, from_left=False)
        if b is not None:
            whole = whole.reshape(u, -1, bond2) @ b
    return whole.reshape(u, rows1, cols1, i, j, rows2, cols2)


def _grouped(central: Tensor, groups: list[int], chains: Tensor, from_left: bool) -> Tensor:
    """Multiply each chain with its group's central matrix, one product for each block of sizes."""
    counts = [groups.count(group) for group in range(central.shape[0])]
    if len(set(counts)) > 1:
        parts = torch.split(chains, counts)
        blocks = [
            _grouped(central[g : g + 1], [0] * counts[g], part, from_left)
            for g, part in enumerate(parts)
        ]
        return torch.cat(blocks)
    per, (u, x, y) = counts[0], chains.shape
    if per == 1:
        return central @ chains if from_left else chains @ central
    if from_left:
        # The chains stand side by side, so that each group is one large matrix product.
        wide = chains.view(-1, per, x, y).transpose(1, 2).reshape(-1, x, per * y)
        out = (central @ wide).view(-1, central.shape[1], per, y)
        return out.transpose(1, 2).reshape(u, central.shape[1], y)
    return (chains.reshape(-1, per * x, y) @ central).view(u, x, -1)


def _unfolded(product: Tensor, spec: BankSpec) -> Tensor:
    matrices = product.permute(0, 1, 3, 5, 2, 4, 6)
    rows, cols = math.prod(spec.row_dims), math.prod(spec.col_dims)
    return matrices.reshape(-1, rows, cols)[:, : spec.rows, : spec.cols]


def _adapted(
    spec: BankSpec, how: Recipe, tensors: Mapping[str, Tensor], matrices: Tensor
) -> Tensor:
    single = matrices.shape[0] == 1
    per_layer = matrices if single else _pick(matrices, list(how.matrix_of_layer))
    up, down = tensors["adapter_up"], tensors["adapter_down"]
    return torch.baddbmm(
        per_layer.expand(spec.n_layers, -1, -1), up, down, alpha=spec.adapter_scale
    )
