"""What a decomposition knows about its own error."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tensornet.errors import counted


@dataclass(frozen=True, eq=False)
class Certificate:
    """The actual error of a decomposition, its parts, and what no network could beat.

    Errors of the arithmetic itself, about 1e-15 in the double precision that everything is
    computed in, are not in it.

    Attributes
    ----------
    norm : float
        Frobenius norm of what was decomposed (absolute).
    discarded_share : tuple of float
        For each inner bond, the discarded squared weight as a share of the squared norm. The
        squared relative truncation error is exactly their sum.
    storage_error : float
        Error of storing the cores in their element type (relative). An estimate: roundings of
        different cores are taken as independent. After rounding a network whose parts cancel,
        also what the arithmetic has left of the rest.
    padding_share : float or None
        For a zero-padded matrix, the part of the squared error that lies in the padding, where
        it does no harm, as a share of the squared norm. None without padding.
    singular_values : tuple of ndarray or None
        For each inner bond, the singular values that the sweep saw there, the discarded ones
        included; None where full rank was proven without computing them.

    Examples
    --------
    >>> c = Certificate(norm=5.0, discarded_share=(0.36,), storage_error=0.0)
    >>> c.relative_error, c.discarded_weight
    (0.6, (9.0,))
    """

    norm: float
    discarded_share: tuple[float, ...]
    storage_error: float
    singular_values: tuple[np.ndarray[Any, Any] | None, ...] = ()
    padding_share: float | None = None

    @property
    def discarded_weight(self) -> tuple[float, ...]:
        """For each inner bond, the discarded squared weight (absolute)."""
        # Nothing of a norm beyond the range of numbers is nothing.
        return tuple(share and share * self.norm * self.norm for share in self.discarded_share)

    @property
    def truncation_error(self) -> float:
        """Error of the cuts alone (relative, Frobenius)."""
        return math.sqrt(max(sum(self.discarded_share) - (self.padding_share or 0.0), 0.0))

    @property
    def relative_error(self) -> float:
        """Error of the network as stored (relative, Frobenius): cuts and storage together."""
        both = sum(self.discarded_share) + self.storage_error**2
        return math.sqrt(max(both - (self.padding_share or 0.0), 0.0))

    @property
    def lower_bound(self) -> float:
        """No network with these bonds has a smaller truncation error (relative).

        Zero for a padded matrix: a network that is free in the padding may do better.
        """
        if self.padding_share is not None:
            return 0.0
        return math.sqrt(max(self.discarded_share, default=0.0))

    @property
    def upper_bound(self) -> float:
        """The square root of the number of bonds times the largest discarded part (relative).

        The truncation error never exceeds it. Source: Oseledets 2011, corollary 2.4.
        """
        return math.sqrt(len(self.discarded_share) * max(self.discarded_share, default=0.0))

    @property
    def headline(self) -> str:
        """The error in words."""
        return f"relative error {self.relative_error:.3g}"

    def __repr__(self) -> str:
        parts = f"truncation {self.truncation_error:.3g}, storage {self.storage_error:.3g}"
        return (
            f"Certificate(relative_error={self.relative_error:.6g} ({parts}), "
            f"lower_bound={self.lower_bound:.6g}, upper_bound={self.upper_bound:.6g})"
        )

    def __str__(self) -> str:
        best = f"at least {self.lower_bound:.6g} with these bonds"
        if self.padding_share is not None:
            best = "unknown, because the matrix is padded"
        lines = [
            f"relative error   {self.relative_error:.6g}",
            f"  truncation     {self.truncation_error:.6g}",
            f"  storage        {self.storage_error:.3g}",
            f"best possible    {best}",
            f"norm             {self.norm:.6g}",
        ]
        shares = enumerate(self.discarded_share, start=1)
        lines += [f"bond {bond}: discarded share of the squared norm {s:.3g}" for bond, s in shares]
        return "\n".join(lines)


def restored(certificate: Certificate | None, storage_error: float) -> Certificate | None:
    """Return the certificate after the cores were stored once more (relative error)."""
    if certificate is None:
        return None
    both = math.hypot(certificate.storage_error, storage_error)
    return replace(certificate, storage_error=both)


def magnified(certificate: Certificate, exponent: int) -> Certificate:
    """Return the certificate for data times a power of two: zero or infinity beyond the range."""
    spectra = [s if s is None else raised(s, exponent) for s in certificate.singular_values]
    for found in spectra:
        if found is not None:
            found.flags.writeable = False
    norm = float(raised(np.float64(certificate.norm), exponent))
    return replace(certificate, norm=norm, singular_values=tuple(spectra))


def raised(a: np.ndarray[Any, Any] | np.float64, exponent: int) -> np.ndarray[Any, Any]:
    """Return numbers times a power of two: zero or infinity where that leaves the range."""
    with np.errstate(over="ignore", under="ignore"):
        return np.asarray(np.ldexp(a, exponent))


def without_padding(certificate: Certificate, relative_error: float) -> Certificate:
    """Return the certificate of a padded matrix, given its measured error without the padding."""
    inside = min(relative_error**2, certificate.relative_error**2)
    return replace(certificate, padding_share=certificate.relative_error**2 - inside)


@dataclass(frozen=True, eq=False, repr=False)
class SharedCertificate(Certificate):
    """The actual error of one matrix of a joint decomposition, measured on the cores as stored.

    The error belongs to the network as a whole, so every bond has an equal share of it; what no
    network could beat is not known.

    Attributes
    ----------
    norm : float
        Frobenius norm of the matrix (absolute).
    discarded_share : tuple of float
        For each inner bond, an equal share of the squared relative error.
    storage_error : float
        0: what storing the cores cost is part of the measured error.
    singular_values : tuple
        Empty: no spectra are looked at.
    padding_share : None
        Errors are those of the matrix without its padding.

    Examples
    --------
    >>> c = SharedCertificate(norm=5.0, discarded_share=(0.18, 0.18), storage_error=0.0)
    >>> c
    SharedCertificate(relative_error=0.6)
    """

    @property
    def lower_bound(self) -> float:
        """Zero: nothing is known about networks with shared cores."""
        return 0.0

    def __repr__(self) -> str:
        return f"SharedCertificate(relative_error={self.relative_error:.6g})"

    def __str__(self) -> str:
        return "\n".join(
            [
                f"relative error   {self.relative_error:.6g}",
                "best possible    unknown, because cores are shared",
                f"norm             {self.norm:.6g}",
            ]
        )


@dataclass(frozen=True, eq=False, repr=False)
class MetricCertificate(Certificate):
    """The actual error of a decomposition in a metric, measured on the cores as stored.

    Errors are norms ‖(W - M) H^(1/2)‖ relative to ‖W H^(1/2)‖, in double precision. No bond has
    a share of its own in them, so ``discarded_share`` is empty.

    Attributes
    ----------
    norm : float
        ‖W H^(1/2)‖ (absolute).
    discarded_share : tuple of float
        Empty.
    storage_error : float
        Error of storing the cores in their element type (relative, Frobenius), an estimate;
        what it costs in the metric is part of ``metric_error``.
    singular_values : tuple of None
        None for each inner bond.
    padding_share : None
        Errors are those of the matrix without its padding.
    metric_error : float
        The error in the metric (relative).
    frobenius_error : float
        The plain error ‖W - M‖ / ‖W‖, for comparison.
    history : tuple of float
        The error in the metric (relative) of the start and after each sweep, before the cores
        were stored; never rising. One value where no sweeps were needed, none for a matrix that
        shares cores: all of its group have one history.
    least_error : float
        What no network with these bonds falls below (relative, in the metric); 0 where nothing
        is known.

    Examples
    --------
    >>> c = MetricCertificate(5.0, (), 0.0, metric_error=0.25, frobenius_error=0.5)
    >>> c
    MetricCertificate(relative_error=0.25 in the metric, frobenius_error=0.5, sweeps=0)
    """

    metric_error: float = 0.0
    frobenius_error: float = 0.0
    history: tuple[float, ...] = ()
    least_error: float = 0.0

    @property
    def relative_error(self) -> float:
        """Error of the network as stored, in the metric (relative)."""
        return self.metric_error

    @property
    def truncation_error(self) -> float:
        """Error before the cores were stored, in the metric (relative)."""
        return self.history[-1] if self.history else self.metric_error

    @property
    def lower_bound(self) -> float:
        """No network with these bonds has a smaller error in the metric (relative)."""
        return self.least_error

    @property
    def upper_bound(self) -> float:
        """The error itself: it was measured (relative, in the metric)."""
        return max(self.truncation_error, self.metric_error)

    @property
    def headline(self) -> str:
        """The error in words."""
        return f"relative error {self.relative_error:.3g} in the metric"

    @property
    def sweeps(self) -> int:
        """Number of sweeps that were made."""
        return max(len(self.history) - 1, 0)

    def __repr__(self) -> str:
        return (
            f"MetricCertificate(relative_error={self.metric_error:.6g} in the metric, "
            f"frobenius_error={self.frobenius_error:.6g}, sweeps={self.sweeps})"
        )

    def __str__(self) -> str:
        best = (
            f"at least {self.least_error:.6g} with these bonds" if self.least_error else "unknown"
        )
        swept = [
            f"  at the start   {first:.6g}, then {counted(self.sweeps, 'sweep')}"
            for first in self.history
        ]
        lines = [
            f"relative error   {self.metric_error:.6g} in the metric",
            f"  before storage {self.truncation_error:.6g}",
            *swept[: min(self.sweeps, 1)],
            f"plain error      {self.frobenius_error:.6g} (Frobenius)",
            f"best possible    {best}",
            f"norm             {self.norm:.6g} in the metric",
        ]
        return "\n".join(lines)
