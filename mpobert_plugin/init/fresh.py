"""Fresh bank tensors: cores whose product has the variance of the host's weights."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mpobert_plugin.adapter import init_adapter
from mpobert_plugin.bank import MPOBank
from mpobert_plugin.norm import MPONormBank

if TYPE_CHECKING:
    from mpobert_plugin.runtime import Banks
    from mpobert_plugin.spec import BankSpec


def fill_fresh(banks: Banks, std: float, gauge: str = "symmetric") -> None:
    """Fill banks for training from scratch, in place.

    Auxiliary tensors become random isometries, different in each slice, and the central tensor
    Gaussian: at full bond every matrix is then exactly a Gaussian one, as the host would draw it.
    A Gaussian of the host's standard deviation in every core instead would give a product of
    nearly zero.

    Parameters
    ----------
    banks : Banks
        Banks of a plan; random numbers come from torch's generator.
    std : float
        Standard deviation of the entries of every rebuilt matrix.
    gauge : str
        With 'symmetric', the norm is spread over the cores by the square roots of the mean
        singular values at each bond; with other gauges it stays in the central tensor.
    """
    with torch.no_grad():
        for bank in banks.stacked():
            if isinstance(bank, MPOBank):
                _fill_bank(bank, std, gauge)
            elif isinstance(bank, MPONormBank):
                for name, tensor in bank.tensors().items():
                    tensor.fill_(1.0 if name == "weight" else 0.0)


def _fill_bank(bank: MPOBank, std: float, gauge: str) -> None:
    spec, tensors = bank.spec, bank.tensors()
    scales = core_scales(spec, std) if gauge == "symmetric" else (1.0,) * len(spec.row_dims)
    padded = math.prod(spec.row_dims) * math.prod(spec.col_dims)
    for site, shape in enumerate(spec.core_shapes):
        if site == spec.central_site:
            # Truncated bonds keep fewer directions, which then carry the whole variance.
            spread = std * math.sqrt(padded / math.prod(shape))
            tensors["central"].normal_(0.0, spread * scales[site])
        else:
            target = tensors[f"auxiliary_{site}"]
            for piece in target:
                piece.copy_(scales[site] * _isometry(shape, site < spec.central_site, piece))

    if spec.adapter_rank:
        init_adapter(tensors["adapter_up"], tensors["adapter_down"])
    if spec.bias is not None:
        tensors["bias"].zero_()


def _isometry(shape: tuple[int, int, int, int], left: bool, like: Tensor) -> Tensor:
    """Return a random core with orthonormal columns (left of the centre) or rows (right of it)."""
    before, i, j, after = shape
    tall = (before * i * j, after) if left else (i * j * after, before)
    # Orthonormalized in float32 at least, for lack of half-precision kernels.
    gaussian = torch.randn(
        tall, device=like.device, dtype=torch.promote_types(like.dtype, torch.float32)
    )
    q, r = torch.linalg.qr(gaussian, mode="reduced")
    # With the signs of r's diagonal the distribution is uniform over isometries.
    q = q * torch.where(r.diagonal() < 0, -1.0, 1.0)
    isometry: Tensor = q if left else q.T
    return isometry.reshape(shape)


def core_scales(spec: BankSpec, std: float) -> tuple[float, ...]:
    """Return the factor of each core that moves half of each bond's weight to either side.

    Parameters
    ----------
    spec : BankSpec
        Sizes.
    std : float
        Standard deviation of the matrix entries.

    Returns
    -------
    tuple of float
        One factor a core; their product is 1.

    Examples
    --------
    >>> from mpobert_plugin.spec import BankSpec
    >>> spec = BankSpec("query", 8, 8, (2, 2, 2), (2, 2, 2), (1, 4, 4, 1), (0,), (0,))
    >>> scales = core_scales(spec, 0.5)
    >>> [round(scale, 4) for scale in scales], round(math.prod(scales), 4)
    ([1.4142, 0.5, 1.4142], 1.0)
    """
    norm = std * math.sqrt(spec.rows * spec.cols)
    roots = [math.sqrt(norm / math.sqrt(bond)) for bond in spec.bond_dims]
    roots[0] = roots[-1] = 1.0
    site = spec.central_site
    factors = []
    for k in range(len(spec.row_dims)):
        if k < site:
            factors.append(roots[k + 1] / roots[k])
        elif k > site:
            factors.append(roots[k] / roots[k + 1])
        else:
            factors.append(1.0 / (roots[k] * roots[k + 1]))
    return tuple(factors)
