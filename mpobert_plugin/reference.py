"""Rebuild each layer's matrix in its own forward, core by core: the published way."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn.functional import linear

from mpobert_plugin.factorized import Factorized

if TYPE_CHECKING:
    from torch import Tensor

    from mpobert_plugin.lazy import Values


class Reference(Factorized):
    """A layer that multiplies its cores from left to right in every forward, and keeps all of it.

    It is here to be compared with. As in the code that was published with MPOBERT, autograd keeps
    every product on the way, and nothing is done for several layers at once.

    Parameters
    ----------
    spec : BankSpec
        Sizes; slices are those of one layer.
    how : Recipe
        Not used.
    dtype : torch.dtype
        Element type that the forward computes in; cores are rounded to it.
    own : sequence of (Tensor or None)
        Cores from left to right, both parts of the adapter, and the bias.

    References
    ----------
    Liu et al., "Scaling Pre-trained Language Models to Deeper via Parameter-efficient
    Architecture", 2023.

    Examples
    --------
    >>> from mpobert_plugin.reconstruct import recipe
    >>> from mpobert_plugin.spec import BankSpec
    >>> spec = BankSpec("query", 4, 4, (2, 2), (2, 2), (1, 1, 1), (0,), (0,))
    >>> cores = (torch.ones(1, 2, 2, 1), torch.ones(1, 2, 2, 1))
    >>> layer = Reference(spec, recipe(spec), torch.float32, (*cores, None, None, None))
    >>> layer.linear(torch.ones(1, 4))
    tensor([[4., 4., 4., 4.]])
    """

    def linear(self, x: Tensor) -> Tensor:
        """Return ``x @ W.T + b``.

        Parameters
        ----------
        x : Tensor
            (..., in_features).

        Returns
        -------
        Tensor
            (..., out_features).
        """
        weight, bias = self.values()
        return linear(x, weight, bias)

    def values(self) -> Values:
        """Return weight and bias, rebuilt for this call.

        Returns
        -------
        tuple of (Tensor, Tensor or None)
            Weight and bias.
        """
        *_, up, down, bias = self.own
        spec, sites = self.spec, len(self.spec.row_dims)
        first, *others = (core.to(self.dtype) for core in self._cores())
        whole = first
        for core in others:
            whole = torch.tensordot(whole, core, dims=1)
        # (1, i1, j1, i2, j2, ..., 1): rows before columns.
        pairs = whole.squeeze(0).squeeze(-1)
        order = [*range(0, 2 * sites, 2), *range(1, 2 * sites, 2)]
        size = torch.Size(spec.row_dims).numel(), torch.Size(spec.col_dims).numel()
        weight = pairs.permute(order).reshape(size)[: spec.rows, : spec.cols]
        if up is not None and down is not None:
            product = up.to(self.dtype) @ down.to(self.dtype)
            weight = weight + spec.adapter_scale * product
        return weight, bias
