"""AdaptedLinear: a plain linear layer with a low-rank adapter beside it."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

SIGMA = 0.02


class AdaptedLinear(nn.Linear):
    """A linear layer ``x @ (W + alpha / rank * U @ D).T + b`` with a plain W.

    Parameters
    ----------
    in_features, out_features : int
        Sizes.
    rank : int
        Rank of the adapter.
    alpha : float
        The adapter is scaled by alpha / rank.
    bias : bool
        Whether there is a bias.
    device, dtype : optional
        Where and in which element type the tensors are made.

    Examples
    --------
    >>> layer = AdaptedLinear(6, 4, rank=2, alpha=2.0)
    >>> tuple(layer.adapter_up.shape), tuple(layer.adapter_down.shape)
    ((4, 2), (2, 6))
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        rank: int,
        alpha: float,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(in_features, out_features, bias, device=device, dtype=dtype)
        self.rank = rank
        self.alpha = alpha
        self.adapter_up = nn.Parameter(self.weight.new_empty(out_features, rank))
        self.adapter_down = nn.Parameter(self.weight.new_empty(rank, in_features))
        init_adapter(self.adapter_up, self.adapter_down)

    @classmethod
    def beside(cls, plain: nn.Linear, rank: int, alpha: float) -> AdaptedLinear:
        """Return the layer with an adapter; it holds the plain layer's own parameters.

        Parameters
        ----------
        plain : torch.nn.Linear
            Layer to adapt; it is not changed.
        rank : int
            Rank of the adapter.
        alpha : float
            The adapter is scaled by alpha / rank.

        Returns
        -------
        AdaptedLinear
            Computes what `plain` computes until the adapter is trained.
        """
        size = (plain.in_features, plain.out_features)
        # On meta first, so that no second weight is ever allocated.
        adapted = cls(*size, rank, alpha, plain.bias is not None, "meta", plain.weight.dtype)
        adapted.weight, adapted.bias = plain.weight, plain.bias
        for name in ("adapter_up", "adapter_down"):
            empty = torch.empty_like(getattr(adapted, name), device=plain.weight.device)
            setattr(adapted, name, nn.Parameter(empty))
        init_adapter(adapted.adapter_up, adapted.adapter_down)
        return adapted.train(plain.training)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (torch's name)
        """Return the adapted linear map of the input.

        Parameters
        ----------
        input : Tensor
            (..., in_features).

        Returns
        -------
        Tensor
            (..., out_features).
        """
        low = linear(linear(input, self.adapter_down), self.adapter_up)
        return linear(input, self.weight, self.bias) + (self.alpha / self.rank) * low

    def extra_repr(self) -> str:
        """Return sizes and rank for printing.

        Returns
        -------
        str
            One line.
        """
        return f"{super().extra_repr()}, rank={self.rank}"


def init_adapter(up: Tensor, down: Tensor) -> None:
    """Fill an adapter, so that it changes nothing at first: zeros above, Gaussian below.

    Parameters
    ----------
    up, down : Tensor
        (..., out, rank) and (..., rank, in); written in place.
    """
    with torch.no_grad():
        up.zero_()
        down.normal_(0.0, SIGMA)
