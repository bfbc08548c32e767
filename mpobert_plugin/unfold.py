"""Products as matrices and back: one pass over the memory that moves, scales and rounds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mpobert_plugin.halves import scale_of, times
from mpobert_plugin.kernels import kernel_for, kernels_for

if TYPE_CHECKING:
    from mpobert_plugin.joining import Joining


def unfolded(whole: Tensor, factor: Tensor | None, dtype: torch.dtype, how: Joining) -> Tensor:
    """Return products as matrices, times a factor and rounded once.

    Parameters
    ----------
    whole : Tensor
        (matrices, ...) with rows and columns of the left chain, of the central tensor and of the
        right chain, one behind the other.
    factor : Tensor of float32, optional
        (1,); without, nothing is multiplied.
    dtype : torch.dtype
        Element type of the result.
    how : Joining
        Sizes.

    Returns
    -------
    Tensor
        (matrices, rows, cols).

    Examples
    --------
    >>> from mpobert_plugin.joining import Joining
    >>> how = Joining((1,), (1, 2, 1), (1, 2, 1), 2, 2, True, (0,), 0.0, torch.float16)
    >>> unfolded(torch.ones(1, 4), torch.tensor([0.5]), torch.float16, how).tolist()
    [[[0.5, 0.5], [0.5, 0.5]]]
    """
    kernel = None if factor is None else kernel_for("unfold_kernel", whole, dtype)
    if kernel is not None:
        made = torch.empty(len(whole), how.rows, how.cols, dtype=dtype, device=whole.device)
        kernel(made, whole.contiguous(), factor, how)
        return made
    (i1, i, i2), (j1, j, j2) = how.row_dims, how.col_dims
    matrices = whole.reshape(-1, i1, j1, i, j, i2, j2).permute(0, 1, 3, 5, 2, 4, 6)
    matrices = _times(matrices, factor, dtype)
    return matrices.reshape(-1, i1 * i * i2, j1 * j * j2)[:, : how.rows, : how.cols]


def folded(matrices: Tensor, factor: Tensor | None, dtype: torch.dtype, how: Joining) -> Tensor:
    """Return matrices as products, times a factor and rounded once: the inverse of `unfolded`.

    Parameters
    ----------
    matrices : Tensor
        (matrices, rows, cols).
    factor : Tensor of float32, optional
        (1,); without, nothing is multiplied.
    dtype : torch.dtype
        Element type of the result.
    how : Joining
        Sizes.

    Returns
    -------
    Tensor
        (matrices, entries), with zeros where rows or columns were filled up.

    Examples
    --------
    >>> from mpobert_plugin.joining import Joining
    >>> how = Joining((1,), (1, 2, 1), (1, 2, 1), 2, 2, True, (0,), 0.0, torch.float16)
    >>> folded(torch.ones(1, 2, 2), torch.tensor([2.0]), torch.float16, how).tolist()
    [[2.0, 2.0, 2.0, 2.0]]
    """
    (i1, i, i2), (j1, j, j2) = how.row_dims, how.col_dims
    missing = (math.prod(how.col_dims) - how.cols, math.prod(how.row_dims) - how.rows)
    if any(missing):
        matrices = torch.nn.functional.pad(matrices, (0, missing[0], 0, missing[1]))
    products = matrices.reshape(-1, i1, i, i2, j1, j, j2).permute(0, 1, 4, 2, 5, 3, 6)
    return _times(products, factor, dtype).flatten(1)


def gathered(matrices: Tensor | Sequence[Tensor], how: Joining) -> tuple[Tensor, Tensor]:
    """Return matrices as products in float16, and the power of two that all were divided by.

    Parameters
    ----------
    matrices : Tensor or sequence of Tensor
        (matrices, rows, cols), or (rows, cols) each.
    how : Joining
        Sizes.

    Returns
    -------
    tuple of (Tensor, Tensor)
        (matrices, entries), with no entry above 2, and the scale of shape (1,) in float32.

    Examples
    --------
    >>> from mpobert_plugin.joining import Joining
    >>> how = Joining((1,), (1, 2, 1), (1, 2, 1), 2, 2, True, (0,), 0.0, torch.float16)
    >>> [x.tolist() for x in gathered([torch.full((2, 2), 5.0)], how)]
    [[[1.25, 1.25, 1.25, 1.25]], [4.0]]
    """
    first = matrices[0]
    kernels = kernels_for("unfold_kernel", first, first.dtype)
    if kernels is None:
        whole = matrices if isinstance(matrices, Tensor) else torch.stack(list(matrices))
        scale = scale_of(whole)
        return folded(whole, scale.reciprocal(), torch.float16, how), scale
    entries = math.prod(how.row_dims) * math.prod(how.col_dims)
    made = torch.empty(len(matrices), entries, dtype=torch.float16, device=first.device)
    scale = torch.empty(1, dtype=torch.float32, device=first.device)
    kernels.gather([x.contiguous() for x in matrices], made, scale, how)
    return made, scale


def _times(tensor: Tensor, factor: Tensor | None, dtype: torch.dtype) -> Tensor:
    return tensor.to(dtype) if factor is None else times(tensor, factor, dtype)
