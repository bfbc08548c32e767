"""What a file says of networks beside their cores: made on saving, read on loading.

Version 1 is one MPO or tensor train with cores of its own. Version 2 lists networks with the
names of their cores, so that a core which several hold is in the file once; or is a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensornet.accounting import storage_key
from tensornet.backend import backend_of, dtype_name, is_complex
from tensornet.certificate import Certificate, MetricCertificate, SharedCertificate
from tensornet.checks import array
from tensornet.cores import check_bonds, inspect
from tensornet.errors import DTypeError, ShapeError, complaint
from tensornet.layout import MatrixLayout
from tensornet.network import MPO, TensorTrain
from tensornet.record_checks import METRIC_NUMBERS
from tensornet.stack import MPOBatch
from tensornet.typing import Array

_DIMS = {"MPO": 4, "TensorTrain": 3}


def record_of(network: MPO | TensorTrain) -> dict[str, Any]:
    """Return the record of one network with cores of its own, ready for JSON."""
    return {"version": 1, "library": _library(network.cores), **_fields(network)}


def described(
    network: MPO | TensorTrain | MPOBatch | Sequence[MPO | TensorTrain],
) -> tuple[dict[str, Any], dict[str, Array]]:
    """Return the record of what is saved, and its cores by name, each stored array once."""
    if isinstance(network, MPOBatch):
        return _batch(network), {f"core.{k}": core for k, core in enumerate(network.cores)}
    networks = [network] if isinstance(network, MPO | TensorTrain) else list(network)
    stored: dict[object, tuple[str, Array]] = {}
    for chain in networks:
        for core in chain.cores:
            stored.setdefault(storage_key(core), (f"core.{len(stored)}", core))
    tensors = dict(stored.values())
    if isinstance(network, MPO | TensorTrain) and len(tensors) == network.n_sites:
        return record_of(network), tensors
    listed = [
        {**_fields(chain), "cores": [stored[storage_key(core)][0] for core in chain.cores]}
        for chain in networks
    ]
    kind = "network" if isinstance(network, MPO | TensorTrain) else "networks"
    library = _library([core for chain in networks for core in chain.cores])
    return {"version": 2, "kind": kind, "library": library, "networks": listed}, tensors


def core_names(record: dict[str, Any]) -> dict[str, bool]:
    """Return the names of all cores of a checked record, and whether they are complex."""
    entries = record.get("networks", [record])
    return {name: entry["complex"] for entry in entries for name in _names(entry)}


def dtypes(record: dict[str, Any]) -> set[str]:
    """Return the element types of a checked record."""
    return {entry["dtype"] for entry in record.get("networks", [record])}


def restored_from(
    cores: dict[str, Array], record: dict[str, Any], *, values: bool
) -> MPO | TensorTrain | MPOBatch | tuple[MPO | TensorTrain, ...]:
    """Return what a checked record describes; with ``values``, cores are checked to be finite."""
    if record["kind"] == "MPOBatch":
        return _batch_from([cores[name] for name in _names(record)], record, values)
    made = tuple(
        _network_from([cores[name] for name in _names(entry)], entry, values)
        for entry in record.get("networks", [record])
    )
    return made if record["kind"] == "networks" else made[0]


def _fields(network: MPO | TensorTrain) -> dict[str, Any]:
    certificate = network.certificate
    return {
        "kind": type(network).__name__,
        "dtype": dtype_name(network.cores[0]),
        "complex": is_complex(network.cores[0]),
        "n_sites": network.n_sites,
        "center": network.center,
        "shape": list(network.shape) if isinstance(network, MPO) else None,
        "certificate": None if certificate is None else _certificate_record(certificate),
    }


def _batch(batch: MPOBatch) -> dict[str, Any]:
    known = batch.certificates
    return {
        "version": 2,
        "kind": "MPOBatch",
        "library": _library(batch.cores),
        "dtype": dtype_name(batch.cores[0]),
        "complex": is_complex(batch.cores[0]),
        "n_sites": batch.n_sites,
        "center": batch.center,
        "shape": list(batch.layout.shape),
        "certificate": None,
        "certificates": None if known is None else [_certificate_record(c) for c in known],
    }


def _library(cores: Sequence[Array]) -> str:
    name = backend_of(*cores, argument="network").name
    return "torch" if name == "pytorch" else name


def _names(entry: dict[str, Any]) -> list[str]:
    return entry.get("cores") or [f"core.{k}" for k in range(entry["n_sites"])]


def _network_from(cores: list[Array], record: dict[str, Any], values: bool) -> MPO | TensorTrain:
    n_dims = _DIMS[record["kind"]]
    if values:
        inspect(cores, n_dims)
    _check_shapes(cores, n_dims, record["dtype"])
    center, certificate = record["center"], _certificate_from(record["certificate"])
    if record["kind"] == "TensorTrain":
        return TensorTrain._from(tuple(cores), center, certificate)
    layout = _layout([core.shape[1:3] for core in cores], record)
    return MPO._from(tuple(cores), layout, center, certificate)


def _batch_from(cores: list[Array], record: dict[str, Any], values: bool) -> MPOBatch:
    _check_shapes(cores, 5, record["dtype"])
    for k, core in enumerate(cores if values else []):
        array(f"core {k}", core)
    sizes = {int(core.shape[0]) for core in cores}
    known = record["certificates"]
    if len(sizes) > 1 or (known is not None and len(known) not in sizes):
        given = f"{sorted(sizes)} and {0 if known is None else len(known)} certificates"
        raise ShapeError(complaint("cores", "be of as many matrices", given))
    layout = _layout([core.shape[2:4] for core in cores], record)
    certificates = None if known is None else tuple(map(_certificate_of, known))
    return MPOBatch._from(tuple(cores), layout, record["center"], certificates)


def _check_shapes(cores: list[Array], n_dims: int, dtype: str) -> None:
    for k, core in enumerate(cores):
        if core.ndim != n_dims:
            given = f"shape {tuple(core.shape)}"
            raise ShapeError(complaint(f"core {k}", f"have {n_dims} dimensions", given))
        if dtype_name(core) != dtype:
            raise DTypeError(complaint(f"core {k}", f"be {dtype}", dtype_name(core)))
    check_bonds(cores if n_dims < 5 else [core[0] for core in cores])


def _layout(factors: list[Any], record: dict[str, Any]) -> MatrixLayout:
    row_dims, col_dims = (tuple(int(pair[axis]) for pair in factors) for axis in (0, 1))
    return MatrixLayout(row_dims, col_dims, *record["shape"])


def _certificate_record(certificate: Certificate) -> dict[str, Any]:
    saved: dict[str, Any] = {
        "norm": certificate.norm,
        "discarded_share": list(certificate.discarded_share),
        "storage_error": certificate.storage_error,
        "padding_share": certificate.padding_share,
    }
    if isinstance(certificate, SharedCertificate):
        saved["shared"] = True
    if isinstance(certificate, MetricCertificate):
        measured = {name: getattr(certificate, name) for name in METRIC_NUMBERS}
        saved["metric"] = {**measured, "history": list(certificate.history)}
    return saved


def _certificate_from(saved: dict[str, Any] | None) -> Certificate | None:
    return None if saved is None else _certificate_of(saved)


def _certificate_of(saved: dict[str, Any]) -> Certificate:
    """Return the certificate of a checked record, without spectra."""
    common = {
        "norm": saved["norm"],
        "discarded_share": tuple(saved["discarded_share"]),
        "storage_error": saved["storage_error"],
        "singular_values": (None,) * len(saved["discarded_share"]),
        "padding_share": saved["padding_share"],
    }
    if "metric" not in saved:
        kind = SharedCertificate if saved.get("shared") is True else Certificate
        return kind(**common)
    measured = {name: saved["metric"][name] for name in METRIC_NUMBERS}
    return MetricCertificate(**common, **measured, history=tuple(saved["metric"]["history"]))
