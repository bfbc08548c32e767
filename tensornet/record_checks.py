"""Checks of the record in a file: every field is there, each with a possible value."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from numbers import Real
from typing import Any

from tensornet.errors import FileFormatError, complaint

LIBRARIES = ("numpy", "torch", "jax")
METRIC_NUMBERS = ("metric_error", "frobenius_error", "least_error")
_CHAINS = ("MPO", "TensorTrain")


def check_record(record: dict[str, Any]) -> None:
    """Raise unless a record has every field, each with a possible value.

    Raises
    ------
    FileFormatError
        If it has not; the field is named.
    """
    version = record.get("version")
    if version not in (1, 2) or isinstance(version, bool):
        remedy = "It is from another version of tensornet."
        raise FileFormatError(complaint("version", "be 1 or 2", repr(version), remedy))
    _require(record, "library", lambda v: v in LIBRARIES)
    if version == 1:
        _require(record, "kind", lambda v: v in _CHAINS)
        _check_fields(record)
        return
    _require(record, "kind", lambda v: v in ("network", "networks", "MPOBatch"))
    if record["kind"] == "MPOBatch":
        _check_fields(record)
        n = record["n_sites"] - 1
        _require(record, "certificates", lambda v: v is None or _are_certificates(v, n))
        return
    _require(record, "networks", lambda v: isinstance(v, list) and len(v) > 0)
    _require(record, "networks", lambda v: all(isinstance(entry, dict) for entry in v))
    for entry in record["networks"]:
        _require(entry, "kind", lambda v: v in _CHAINS)
        _check_fields(entry)
        _require(entry, "cores", partial(_are_names, n=entry["n_sites"]))


def _check_fields(record: dict[str, Any]) -> None:
    _require(record, "dtype", lambda v: isinstance(v, str))
    _require(record, "complex", lambda v: isinstance(v, bool))
    _require(record, "n_sites", lambda v: _is_count(v, 1))
    n = record["n_sites"]
    _require(record, "center", lambda v: v is None or (_is_count(v, 0) and v < n))
    _require(record, "shape", lambda v: _is_shape(v, record["kind"]))
    _require(record, "certificate", lambda v: v is None or _is_certificate(v, n - 1))


def _require(record: dict[str, Any], name: str, possible: Callable[[Any], bool]) -> None:
    if name not in record or not possible(record[name]):
        given = repr(record.get(name, "nothing"))[:80]
        raise FileFormatError(complaint(name, "have a possible value in the file", given))


def _are_names(value: object, n: int) -> bool:
    return isinstance(value, list) and len(value) == n and all(isinstance(v, str) for v in value)


def _is_count(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _is_shape(value: object, kind: str) -> bool:
    if kind == "TensorTrain":
        return value is None
    return isinstance(value, list) and len(value) == 2 and all(_is_count(d, 1) for d in value)


def _is_share(value: object) -> bool:
    real = isinstance(value, Real) and not isinstance(value, bool)
    return real and math.isfinite(value) and value >= 0  # type: ignore[arg-type, operator]


def _are_certificates(value: object, n_bonds: int) -> bool:
    return isinstance(value, list) and all(_is_certificate(one, n_bonds) for one in value)


def _is_certificate(value: object, n_bonds: int) -> bool:
    if not isinstance(value, dict):
        return False
    if "metric" in value and not _is_metric(value["metric"]):
        return False
    n_bonds = 0 if "metric" in value else n_bonds  # no bond has a share of an error in a metric
    shares, padding = value.get("discarded_share"), value.get("padding_share", "missing")
    return (
        _is_share(value.get("norm"))
        and _is_share(value.get("storage_error"))
        and (padding is None or _is_share(padding))
        and isinstance(shares, list)
        and len(shares) == n_bonds
        and all(_is_share(share) for share in shares)
    )


def _is_metric(value: object) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("history"), list):
        return False
    numbers = [*(value.get(name) for name in METRIC_NUMBERS), *value["history"]]
    return all(_is_share(number) for number in numbers)
