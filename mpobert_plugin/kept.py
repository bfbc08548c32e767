"""Matrices kept between evaluations, with what they were made from, and one look at all of them."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mpobert_plugin.fingerprint import fingerprint

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mpobert_plugin.bank import MPOBank


@dataclass(frozen=True)
class Kept:
    """Rebuilt matrices with the element type and the fingerprint of what they come from.

    Parameters
    ----------
    dtype : torch.dtype
        Element type of the matrices.
    mark : Tensor
        Fingerprint of the tensors at the time.
    weights : tuple of Tensor
        The matrix of each layer.

    Examples
    --------
    >>> mark = fingerprint([torch.zeros(3)])
    >>> Kept(torch.float32, mark, ()).fits(torch.float32, fingerprint([torch.ones(3)]))
    False
    """

    dtype: torch.dtype
    mark: Tensor
    weights: tuple[Tensor, ...]

    def fits(self, dtype: torch.dtype, mark: Tensor) -> bool:
        """Return whether the matrices still are what a rebuild would give.

        Parameters
        ----------
        dtype : torch.dtype
            Element type that is needed.
        mark : Tensor
            Fingerprint of the tensors now.

        Returns
        -------
        bool
            On a GPU, the host waits for the answer.
        """
        return self.dtype == dtype and equal(self.mark, mark)


def equal(a: Tensor, b: Tensor) -> bool:
    """Return whether two fingerprints are on one device and equal.

    Parameters
    ----------
    a, b : Tensor
        Fingerprints.

    Returns
    -------
    bool
        On a GPU, the host waits for the answer.

    Examples
    --------
    >>> equal(torch.zeros(2), torch.zeros(2))
    True
    """
    return a.device == b.device and torch.equal(a, b)


class Trust(threading.local):
    """What a bank may use without a look at its tensors, in the forward of each thread.

    Copies start without.
    """

    def __init__(self) -> None:
        # threading.local calls this once in every thread, so that the name is always there.
        self.kept: Kept | None = None

    def __reduce__(self) -> tuple[type[Trust], tuple[()]]:
        return Trust, ()


@dataclass(frozen=True)
class Together:
    """What several banks have kept, with one fingerprint of the tensors of all of them.

    Parameters
    ----------
    kept : tuple of Kept
        One for each bank.
    mark : Tensor
        Fingerprint of all tensors.
    """

    kept: tuple[Kept, ...]
    mark: Tensor


def look(banks: Sequence[MPOBank], known: Together | None) -> Together | None:
    """Let banks whose tensors are unchanged use what they have kept in the coming forward.

    The tensors of all banks are compared at once, so that on a GPU the host waits once for a
    forward and not once for each bank.

    Parameters
    ----------
    banks : sequence of MPOBank
        The banks of a model.
    known : Together or None
        What the last call has returned.

    Returns
    -------
    Together or None
        What is known now; None when nothing is kept.
    """
    found = [(bank, kept) for bank in banks if (kept := bank.kept()) is not None]
    if not found:
        return None
    tensors = [tensor for bank, _ in found for tensor in bank.cores().values()]
    if len({tensor.device for tensor in tensors}) > 1:
        return None
    mark = fingerprint(tensors)
    # Objects, not values: matrices that were rebuilt since are others.
    same = known is not None and [id(k) for k in known.kept] == [id(kept) for _, kept in found]
    if known is None or not same or not equal(known.mark, mark):
        # Each bank looks at its own tensors, and rebuilds where they have changed.
        fresh = [(bank, bank.kept_anew()) for bank, _ in found]
        known = Together(tuple(kept for _, kept in fresh), mark)
    for (bank, _), kept in zip(found, known.kept, strict=True):
        bank.trust.kept = kept
    return known
