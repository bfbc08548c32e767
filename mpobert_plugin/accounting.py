"""Count the parameters of a model: every use, what is stored, what is shared, and by kind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import nn

from mpobert_plugin.bank import MPOBank
from mpobert_plugin.embedding import MPOHead
from mpobert_plugin.errors import ModelTypeError
from mpobert_plugin.hosts import Host, Hosts
from mpobert_plugin.kinds import KINDS, kind_in, kind_of
from mpobert_plugin.norm import MPONormBank
from mpobert_plugin.spec import BankSpec

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class ParameterReport:
    """Numbers of parameters of a model; prints as a table.

    Parameters
    ----------
    total : int
        Every use counted: a tensor that 12 layers use counts 12 times.
    unique : int
        What is stored.
    trainable : int
        Stored parameters with ``requires_grad``.
    shared : int
        Stored elements with more than one user.
    by_kind : dict of str to int
        Stored parameters of each kind; 'dense' is every plain matrix of the base model.
    dense : int
        Size of the dense twin: the same architecture in which every layer has plain matrices,
        biases and norms of its own, without adapters; tied embeddings once.

    Examples
    --------
    >>> report = ParameterReport(20, 10, 10, 5, {"central": 4, "dense": 6}, 40)
    >>> report.ratio, report.compression, report.central_share
    (0.25, 4.0, 0.4)
    """

    total: int
    unique: int
    trainable: int
    shared: int
    by_kind: dict[str, int]
    dense: int

    @property
    def ratio(self) -> float:
        """Stored parameters (unique) divided by those of the dense twin."""
        return self.unique / self.dense if self.dense else 1.0

    @property
    def compression(self) -> float:
        """Parameters of the dense twin divided by the stored ones."""
        return self.dense / self.unique if self.unique else 1.0

    @property
    def central_share(self) -> float:
        """Part of the stored parameters that central tensors are."""
        return self.by_kind.get("central", 0) / self.unique if self.unique else 0.0

    def __str__(self) -> str:
        """Return the numbers as a table of plain text."""
        rows = [("parameters", "number", "of stored")]
        rows += [
            (
                f"  {kind}",
                f"{self.by_kind[kind]:,}",
                f"{self.by_kind[kind] / max(self.unique, 1):.1%}",
            )
            for kind in KINDS
            if self.by_kind.get(kind)
        ]
        rows += [
            ("stored (unique)", f"{self.unique:,}", ""),
            ("  trainable", f"{self.trainable:,}", ""),
            ("  with more than one user", f"{self.shared:,}", ""),
            ("every use counted (total)", f"{self.total:,}", ""),
            ("dense twin", f"{self.dense:,}", ""),
        ]
        lines = [f"{a:<28}{b:>15}{c:>12}".rstrip() for a, b, c in rows]
        verdict = "smaller" if self.ratio < 1 else "larger" if self.ratio > 1 else "as large"
        lines.append(
            f"stored / dense twin {self.ratio:.4f} ({verdict}), compression {self.compression:.2f}"
        )
        if self.ratio > 1 and self.by_kind.get("central"):
            lines.append(
                "Full bonds without sharing store more than the matrices: ask for sharing= or "
                "max_bond=."
            )
        return "\n".join(lines)


@dataclass
class _Entry:
    """One stored tensor: its kind, size, users, and how much of it is used how often."""

    kind: str
    numel: int
    trainable: bool
    total: int = 0
    shared: int = 0
    dense: int = 0
    users: int = 0


def account(model: nn.Module) -> ParameterReport:
    """Return the numbers of parameters of a model, converted or plain.

    Parameters
    ----------
    model : torch.nn.Module
        Any model, also inside a wrapper such as DataParallel or what torch.compile returns, or as
        a part of a module of one's own. A plain ALBERT's layers count once for each time that
        they run; what lies outside the base model of a known family is of the kind 'head'.

    Returns
    -------
    ParameterReport
        All counts are numbers of elements.

    Raises
    ------
    ModelTypeError
        When it is no module.

    Examples
    --------
    >>> from torch import nn
    >>> report = account(nn.Sequential(nn.Embedding(5, 2), nn.Linear(2, 3)))
    >>> report.unique, report.by_kind
    (19, {'bias': 3, 'embedding': 10, 'dense': 6})
    """
    if not isinstance(model, nn.Module):
        raise ModelTypeError(f"model must be a torch.nn.Module, got {type(model).__name__}.")
    entries: dict[int, _Entry] = {}
    hosts = Hosts(model)
    for prefix, module in model.named_modules(remove_duplicate=False):
        if hosts.is_repeated(prefix):
            continue
        host = hosts.of(prefix)
        if isinstance(module, MPOBank | MPONormBank):
            _count_bank(module, host, entries)
            continue
        for name, parameter in module.named_parameters(recurse=False):
            full = f"{prefix}.{name}" if prefix else name
            uses = host.uses_of(full)
            key = hosts.key_of(full, parameter)
            entry = entries.get(key)
            if entry is None:
                kind = kind_in(hosts, full, module)
                entry = _Entry(kind, parameter.numel(), parameter.requires_grad)
                entry.dense = 0 if kind == "adapter" else uses * parameter.numel()
                entries[key] = entry
            entry.total += uses * parameter.numel()
            entry.users += uses
            entry.shared = parameter.numel() if entry.users > 1 else 0
    for module in model.modules():
        if isinstance(module, MPOHead):
            _count_head(module, entries)
    return _report(list(entries.values()))


def _report(entries: Sequence[_Entry]) -> ParameterReport:
    by_kind = {kind: sum(entry.numel for entry in entries if entry.kind == kind) for kind in KINDS}
    return ParameterReport(
        total=sum(entry.total for entry in entries),
        unique=sum(entry.numel for entry in entries),
        trainable=sum(entry.numel for entry in entries if entry.trainable),
        shared=sum(entry.shared for entry in entries),
        by_kind={kind: number for kind, number in by_kind.items() if number},
        dense=sum(entry.dense for entry in entries),
    )


def _count_bank(bank: MPOBank | MPONormBank, host: Host, entries: dict[int, _Entry]) -> None:
    spec, slices = bank.spec, bank.slices()
    for number, (name, parameter) in enumerate(bank.named_parameters(recurse=False)):
        entry = _Entry(kind_of(bank, name), parameter.numel(), parameter.requires_grad)
        size = parameter[0].numel()
        users = [0] * parameter.shape[0]
        runs_of = _once if bank.outside else host.runs_of
        for layer, piece in zip(spec.layer_numbers, slices[name], strict=True):
            users[piece] += runs_of(layer)
        entry.total = size * sum(users)
        entry.shared = size * sum(count > 1 for count in users)
        if isinstance(spec, BankSpec):
            # The plain matrices are counted once, beside the first tensor of the bank.
            runs = sum(runs_of(layer) for layer in spec.layer_numbers)
            entry.dense = runs * spec.rows * spec.cols if number == 0 else 0
            entry.dense += runs * spec.rows if name == "bias" else 0
        else:
            entry.dense = entry.total
        entries[id(parameter)] = entry


def _count_head(head: MPOHead, entries: dict[int, _Entry]) -> None:
    """Count a second use of the cores of an embedding; its dense twin is tied too."""
    for parameter in head.bank.parameters():
        entry = entries.get(id(parameter))
        if entry is not None:
            entry.total += entry.numel
            entry.shared = entry.numel


def _once(_layer: int) -> int:
    return 1
