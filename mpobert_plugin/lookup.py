"""Rows of an MPO, and products with it, from its cores and without the matrix."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import embedding

if TYPE_CHECKING:
    from mpobert_plugin.row_plans import RowPlan

_HALF = (torch.float16, torch.bfloat16)
# Asked once, at import: torch 2.11 cannot trace the question inside a compiled graph.
_AUTOCAST = frozenset(
    kind for kind in ("cpu", "cuda", "mps", "xpu") if torch.amp.is_autocast_available(kind)
)


def widened(tensor: Tensor) -> Tensor:
    """Return a tensor in a type that sums can be taken in.

    Parameters
    ----------
    tensor : Tensor
        Floating-point numbers.

    Returns
    -------
    Tensor
        float32 for half precision, else the tensor itself.

    Examples
    --------
    >>> widened(torch.ones(1, dtype=torch.bfloat16)).dtype
    torch.float32
    """
    return tensor.float() if tensor.dtype in _HALF else tensor


def without_autocast(device_type: str) -> AbstractContextManager[object]:
    """Return a context in which autocast changes nothing; devices such as 'meta' know none.

    Parameters
    ----------
    device_type : str
        Where is computed.

    Returns
    -------
    context manager
        To be entered once.

    Examples
    --------
    >>> with torch.autocast("cpu"), without_autocast("cpu"):
    ...     (torch.ones(1, 1) @ torch.ones(1, 1)).dtype
    torch.float32
    """
    if device_type in _AUTOCAST:
        return torch.autocast(device_type, enabled=False)
    return nullcontext()


def checked_ids(ids: Tensor, rows: int) -> Tensor:
    """Return row numbers in one axis, after torch itself has checked their type and range.

    A padded row lies in the cores like any other, so that nothing but this check keeps it out.

    Parameters
    ----------
    ids : Tensor
        Integers of any shape.
    rows : int
        True number of rows.

    Returns
    -------
    Tensor
        (number of ids,), int64.

    Raises
    ------
    IndexError
        When a number is negative or not below `rows`; on a GPU, the device reports it.
    RuntimeError
        When they are no integers.

    Examples
    --------
    >>> checked_ids(torch.tensor([[2, 0]]), 3)
    tensor([2, 0])
    """
    # One element seen as a column of all rows: the check costs no memory.
    column = torch.zeros(1, 1, dtype=torch.int64, device=ids.device).expand(rows, 1)
    return (ids.reshape(-1, 1) + embedding(ids.reshape(-1), column)).reshape(-1)


def rows_of(cores: Sequence[Tensor], plan: RowPlan, ids: Tensor) -> Tensor:
    """Return rows of the padded matrix, differentiable in the cores.

    Parameters
    ----------
    cores : sequence of Tensor
        (left bond, row factor, column factor, right bond) each.
    plan : RowPlan
        A plan by the cores.
    ids : Tensor
        (count,) numbers of rows, all in range.

    Returns
    -------
    Tensor
        (count, product of the column factors).

    Examples
    --------
    >>> from mpobert_plugin.row_plans import RowPlan
    >>> cores = [torch.arange(4.0).view(1, 2, 2, 1), torch.arange(4.0).view(1, 2, 2, 1)]
    >>> rows_of(cores, RowPlan(1, False, 1, 1, 1), torch.tensor([3]))
    tensor([[4., 6., 6., 9.]])
    """
    below = math.prod([core.shape[1] for core in cores[plan.meet :]])
    if plan.meet == len(cores):
        return _left(cores, plan.left_tables, ids).flatten(1)
    right = _right(cores[plan.meet :], plan.right_tables, ids % below)
    if plan.meet == 0:
        return right.flatten(1)
    return (_left(cores[: plan.meet], plan.left_tables, ids // below) @ right).flatten(1)


def product_of(cores: Sequence[Tensor], plan: RowPlan, x: Tensor) -> Tensor:
    """Return ``x @ W.T`` for the padded matrix W, differentiable in the cores and the input.

    Parameters
    ----------
    cores : sequence of Tensor
        (left bond, row factor, column factor, right bond) each.
    plan : RowPlan
        A plan by the cores.
    x : Tensor
        (count, product of the column factors).

    Returns
    -------
    Tensor
        (count, product of the row factors).

    Examples
    --------
    >>> from mpobert_plugin.row_plans import RowPlan
    >>> cores = [torch.eye(2).view(1, 2, 2, 1), torch.eye(2).view(1, 2, 2, 1)]
    >>> product_of(cores, RowPlan(1, False, 1, 1, 1), torch.tensor([[1.0, 2.0, 3.0, 4.0]]))
    tensor([[1., 2., 3., 4.]])
    """
    left = _left_table(cores[: plan.meet])
    right = _right_table(cores[plan.meet :])
    (a, b, bond), (c, _, d) = left.shape, right.shape
    x = x.reshape(-1, b, d)
    if plan.left_first:
        # (count, d, b) with (b, bond a) is (count, d, bond, a), then with (d bond, c).
        middle = x.transpose(1, 2) @ left.permute(1, 2, 0).reshape(b, bond * a)
        middle = middle.view(-1, d * bond, a).transpose(1, 2)
        whole = middle @ right.permute(2, 1, 0).reshape(d * bond, c)
    else:
        # (count, b, d) with (d, bond c) is (count, b, bond, c), then with (a, b bond).
        middle = x @ right.permute(2, 1, 0).reshape(d, bond * c)
        whole = left.reshape(a, b * bond) @ middle.view(-1, b * bond, c)
    return whole.reshape(-1, a * c)


def _left(cores: Sequence[Tensor], tables: int, ids: Tensor) -> Tensor:
    """Return (count, columns, bond) for row numbers of the left side."""
    dims = [core.shape[1] for core in cores]
    state = _entries(_left_table(cores[:tables]), ids // math.prod(dims[tables:]))
    for site in range(tables, len(cores)):
        _, _, j, right = cores[site].shape
        digit = ids // math.prod(dims[site + 1 :]) % dims[site]
        factor = _entries(cores[site].transpose(0, 1), digit).flatten(2)
        state = (state @ factor).reshape(-1, state.shape[1] * j, right)
    return state


def _right(cores: Sequence[Tensor], tables: int, ids: Tensor) -> Tensor:
    """Return (count, bond, columns) for row numbers of the right side."""
    dims = [core.shape[1] for core in cores]
    first = len(cores) - tables
    state = _entries(_right_table(cores[first:]), ids % math.prod(dims[first:]))
    for site in reversed(range(first)):
        left, _, j, _ = cores[site].shape
        digit = ids // math.prod(dims[site + 1 :]) % dims[site]
        factor = _entries(cores[site].transpose(0, 1), digit).flatten(1, 2)
        state = (factor @ state).reshape(-1, left, j * state.shape[2])
    return state


def _entries(table: Tensor, numbers: Tensor) -> Tensor:
    """Return entries of a table along its first axis."""
    # The backward of an embedding takes less time than that of an index.
    return embedding(numbers, table.flatten(1)).reshape(len(numbers), *table.shape[1:])


def _left_table(cores: Sequence[Tensor]) -> Tensor:
    """Return (rows, columns, bond) of a chain that begins at the left end."""
    table = cores[0].squeeze(0)
    for core in cores[1:]:
        rows, cols, bond = table.shape
        _, i, j, right = core.shape
        longer = table.reshape(rows * cols, bond) @ core.reshape(bond, i * j * right)
        longer = longer.view(rows, cols, i, j, right).transpose(1, 2)
        table = longer.reshape(rows * i, cols * j, right)
    return table


def _right_table(cores: Sequence[Tensor]) -> Tensor:
    """Return (rows, bond, columns) of a chain that ends at the right end."""
    table = cores[-1].squeeze(3).transpose(0, 1)
    for core in reversed(cores[:-1]):
        rows, bond, cols = table.shape
        left, i, j, _ = core.shape
        along = table.transpose(0, 1).reshape(bond, rows * cols)
        longer = (core.reshape(left * i * j, bond) @ along).view(left, i, j, rows, cols)
        table = longer.permute(1, 3, 0, 2, 4).reshape(i * rows, left, j * cols)
    return table
