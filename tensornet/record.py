"""What a file says of a network beside its cores: made on saving, checked on loading."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any

from tensornet.backend import backend_of, dtype_name, is_complex
from tensornet.certificate import Certificate
from tensornet.errors import FileFormatError, complaint
from tensornet.network import MPO, TensorTrain
from tensornet.typing import Array

VERSION = 1
_KINDS = ("MPO", "TensorTrain")
_LIBRARIES = ("numpy", "torch")


def record_of(network: MPO | TensorTrain) -> dict[str, Any]:
    """Return the record of a network, ready for JSON."""
    certificate = network.certificate
    return {
        "version": VERSION,
        "kind": type(network).__name__,
        "library": "torch" if backend_of(*network.cores).name == "pytorch" else "numpy",
        "dtype": dtype_name(network.cores[0]),
        "complex": is_complex(network.cores[0]),
        "n_sites": network.n_sites,
        "center": network.center,
        "shape": list(network.shape) if isinstance(network, MPO) else None,
        "certificate": None if certificate is None else _certificate_record(certificate),
    }


def check_record(record: dict[str, Any]) -> None:
    """Raise unless a record has every field, each with a possible value.

    Raises
    ------
    FileFormatError
        If it has not; the field is named.
    """
    if record.get("version") != VERSION:
        remedy = "It is from another version of tensornet."
        raise FileFormatError(
            complaint("version", f"be {VERSION}", repr(record.get("version")), remedy)
        )
    _require(record, "kind", lambda v: v in _KINDS)
    _require(record, "library", lambda v: v in _LIBRARIES)
    _require(record, "dtype", lambda v: isinstance(v, str))
    _require(record, "complex", lambda v: isinstance(v, bool))
    _require(record, "n_sites", lambda v: _is_count(v, 1))
    n = record["n_sites"]
    _require(record, "center", lambda v: v is None or (_is_count(v, 0) and v < n))
    _require(record, "shape", lambda v: _is_shape(v, record["kind"]))
    _require(record, "certificate", lambda v: v is None or _is_certificate(v, n - 1))


def certificate_from(saved: dict[str, Any] | None) -> Certificate | None:
    """Return the certificate of a checked record, without spectra."""
    if saved is None:
        return None
    return Certificate(
        norm=saved["norm"],
        discarded_share=tuple(saved["discarded_share"]),
        storage_error=saved["storage_error"],
        singular_values=(None,) * len(saved["discarded_share"]),
        padding_share=saved["padding_share"],
    )


def network_from(cores: list[Array], record: dict[str, Any]) -> MPO | TensorTrain:
    """Return the network of a checked record."""
    center, certificate = record["center"], certificate_from(record["certificate"])
    if record["kind"] == "TensorTrain":
        return TensorTrain._from(TensorTrain(cores).cores, center, certificate)
    checked = MPO(cores, *record["shape"])
    return MPO._from(checked.cores, checked.layout, center, certificate)


def _certificate_record(certificate: Certificate) -> dict[str, Any]:
    return {
        "norm": certificate.norm,
        "discarded_share": list(certificate.discarded_share),
        "storage_error": certificate.storage_error,
        "padding_share": certificate.padding_share,
    }


def _require(record: dict[str, Any], name: str, possible: Any) -> None:
    if name not in record or not possible(record[name]):
        given = repr(record.get(name, "nothing"))[:80]
        raise FileFormatError(complaint(name, "have a possible value in the file", given))


def _is_count(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _is_shape(value: object, kind: str) -> bool:
    if kind == "TensorTrain":
        return value is None
    return isinstance(value, list) and len(value) == 2 and all(_is_count(d, 1) for d in value)


def _is_share(value: object) -> bool:
    real = isinstance(value, Real) and not isinstance(value, bool)
    return real and math.isfinite(value) and value >= 0  # type: ignore[arg-type, operator]


def _is_certificate(value: object, n_bonds: int) -> bool:
    if not isinstance(value, dict):
        return False
    shares, padding = value.get("discarded_share"), value.get("padding_share", "missing")
    return (
        _is_share(value.get("norm"))
        and _is_share(value.get("storage_error"))
        and (padding is None or _is_share(padding))
        and isinstance(shares, list)
        and len(shares) == n_bonds
        and all(_is_share(share) for share in shares)
    )
