"""Fresh bank tensors: cores whose product has the variance of the host's weights."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mpobert_plugin.adapter import init_adapter
from mpobert_plugin.bank import MPOBank
from mpobert_plugin.errors import ConfigError
from mpobert_plugin.norm import MPONormBank

if TYPE_CHECKING:
    from mpobert_plugin.plan import ConversionPlan
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
        Where the norm sits: in the central tensor, in the last core ('left') or the first
        ('right'), or spread over all by the square roots of the mean singular values at each bond
        ('symmetric'). With 'identity' the auxiliary tensors are reshaped identities, so that
        layers with the same central tensor start equal.
    """
    with torch.no_grad():
        for bank in banks.stacked():
            if isinstance(bank, MPOBank):
                _fill_bank(bank, std, gauge)
            elif isinstance(bank, MPONormBank):
                for name, tensor in bank.tensors().items():
                    tensor.fill_(1.0 if name == "weight" else 0.0)


def check_identity(plan: ConversionPlan) -> None:
    """Refuse the identity gauge where an auxiliary tensor is no square matrix.

    Parameters
    ----------
    plan : ConversionPlan
        Plan of a fresh model.

    Raises
    ------
    ConfigError
        When bonds are cut, or the full ones are not those of a chain of identities.

    Examples
    --------
    >>> import mpobert_plugin as mp
    >>> mp.build("mpobert-12", gauge="identity", head="none", device="meta").mpo["key"].spec.role
    'key'
    """
    for spec in plan.banks if plan.gauge == "identity" else ():
        for site, (before, i, j, after) in enumerate(spec.core_shapes):
            left, right = site < spec.central_site, site > spec.central_site
            if (left and before * i * j != after) or (right and before != i * j * after):
                raise ConfigError(
                    f"gauge 'identity' must have full bonds on both sides of the central tensor, "
                    f"got the core {(before, i, j, after)} at site {site} of {spec.role!r}. Leave "
                    "max_bond out, or take gauge='symmetric'."
                )


def _fill_bank(bank: MPOBank, std: float, gauge: str) -> None:
    spec, tensors = bank.spec, bank.tensors()
    scales = core_scales(spec, std, gauge)
    padded = math.prod(spec.row_dims) * math.prod(spec.col_dims)
    for site, shape in enumerate(spec.core_shapes):
        if site == spec.central_site:
            # Truncated bonds keep fewer directions, which then carry the whole variance.
            spread = std * math.sqrt(padded / math.prod(shape))
            # A single core has no auxiliary tensors that could carry the factor.
            depth = spec.depth_scale if len(spec.row_dims) == 1 else 1.0
            tensors["central"].normal_(0.0, spread * scales[site] * depth)
        else:
            factor, left = scales[site] * spec.depth_scale, site < spec.central_site
            for piece in tensors[f"auxiliary_{site}"]:
                piece.copy_(factor * _isometry(shape, left, piece, gauge == "identity"))
    if spec.adapter_rank:
        init_adapter(tensors["adapter_up"], tensors["adapter_down"])
    if spec.bias is not None:
        tensors["bias"].zero_()


def _isometry(shape: tuple[int, int, int, int], left: bool, like: Tensor, identity: bool) -> Tensor:
    """Return a core with orthonormal columns (left of the centre) or rows (right of it)."""
    before, i, j, after = shape
    if identity:
        rows, cols = (before * i * j, after) if left else (before, i * j * after)
        return torch.eye(rows, cols, device=like.device, dtype=like.dtype).reshape(shape)
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


def core_scales(spec: BankSpec, std: float, gauge: str = "symmetric") -> tuple[float, ...]:
    """Return the factor of each core that brings the norm from the central one to its place.

    Parameters
    ----------
    spec : BankSpec
        Sizes.
    std : float
        Standard deviation of the matrix entries.
    gauge : str
        Where the norm is to be; at a bond of the symmetric gauge half of it on either side.

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
    >>> core_scales(spec, 0.5, "left")
    (1.0, 0.5, 2.0)
    """
    norm = std * math.sqrt(spec.rows * spec.cols)
    weights = [norm / math.sqrt(bond) for bond in spec.bond_dims]  # mean singular values
    weights[0] = weights[-1] = 1.0
    power = {"symmetric": (0.5, 0.5), "left": (0.0, 1.0), "right": (1.0, 0.0)}
    to_left, to_right = power.get(gauge, (0.0, 0.0))
    site = spec.central_site
    factors = []
    for k in range(len(spec.row_dims)):
        # What bonds of the left half give to the left, and bonds of the right half to the right.
        here, there = weights[k], weights[k + 1]
        if k < site:
            factors.append(there**to_left / here**to_left)
        elif k > site:
            factors.append(here**to_right / there**to_right)
        else:
            factors.append(1.0 / (here**to_left * there**to_right))
    return tuple(factors)
