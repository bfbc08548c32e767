"""Count the parameters of a model: every use, what is stored, what is shared, and by kind."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import nn
from transformers import PreTrainedModel

from mpobert_plugin.bank import MPOBank
from mpobert_plugin.embedding import MPOHead
from mpobert_plugin.errors import ModelTypeError
from mpobert_plugin.hosts import Host, Hosts
from mpobert_plugin.kinds import KINDS, kind_in, kind_of
from mpobert_plugin.locate import BANKS, base_of
from mpobert_plugin.norm import MPONormBank
from mpobert_plugin.plan import ConversionPlan
from mpobert_plugin.spec import BankSpec

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


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
    before : int or None
        What the model stored as it was before its conversion; None for a model that was not
        converted, or where it is not known.

    Examples
    --------
    >>> report = ParameterReport(20, 10, 10, 5, {"central": 4, "dense": 6}, 40, before=8)
    >>> report.ratio, report.ratio_before, report.compression, report.central_share
    (0.25, 1.25, 4.0, 0.4)
    """

    total: int
    unique: int
    trainable: int
    shared: int
    by_kind: dict[str, int]
    dense: int
    before: int | None = None

    @property
    def ratio(self) -> float:
        """Stored parameters (unique) divided by those of the dense twin."""
        return self.unique / self.dense if self.dense else 1.0

    @property
    def ratio_before(self) -> float | None:
        """Stored parameters divided by those before the conversion; None where not known."""
        return self.unique / self.before if self.before else None

    @property
    def compression(self) -> float:
        """Parameters of the dense twin divided by the stored ones."""
        return self.dense / self.unique if self.unique else 1.0

    @property
    def central_share(self) -> float:
        """Part of the stored parameters that central tensors are."""
        return self.by_kind.get("central", 0) / self.unique if self.unique else 0.0

    def rows(self) -> list[tuple[str, str, str]]:
        """Return the counts with their names, as tables of this library and the command have them.

        Returns
        -------
        list of (str, str, str)
            Name, number and share of what is stored, where it is a part of that.

        Examples
        --------
        >>> ParameterReport(9, 6, 6, 3, {"norm": 6}, 12).rows()[:2]
        [('  norm', '6', '100.0%'), ('stored (unique)', '6', '')]
        """
        stored = max(self.unique, 1)
        kinds = [(kind, self.by_kind[kind]) for kind in KINDS if self.by_kind.get(kind)]
        before = [("before conversion", f"{self.before:,}", "")] if self._was_shared else []
        return [
            *((f"  {kind}", f"{number:,}", f"{number / stored:.1%}") for kind, number in kinds),
            ("stored (unique)", f"{self.unique:,}", ""),
            ("  trainable", f"{self.trainable:,}", ""),
            ("  with more than one user", f"{self.shared:,}", ""),
            ("every use counted (total)", f"{self.total:,}", ""),
            *before,
            ("dense twin", f"{self.dense:,}", ""),
        ]

    def summary(self) -> Iterator[str]:
        """Return what the counts mean, as lines of text.

        Returns
        -------
        iterator of str
            Ratios and, when nothing is saved, what to ask for.

        Examples
        --------
        >>> list(ParameterReport(6, 6, 6, 0, {"norm": 6}, 6).summary())
        ['stored / dense twin 1.0000 (as large), compression 1.00']
        """
        if self._was_shared and self.ratio_before is not None:
            yield f"stored / before conversion {_verdict(self.ratio_before)}"
        yield f"stored / dense twin {_verdict(self.ratio)}, compression {self.compression:.2f}"
        if self.dense != (self.before or self.unique):
            yield "The dense twin has plain matrices of its own in every layer."
        if self.ratio > 1 and self.by_kind.get("central"):
            yield (
                "Full bonds without sharing store more than the matrices: ask for sharing= or "
                "max_bond=."
            )

    def __str__(self) -> str:
        """Return the numbers as a table of plain text."""
        rows = [("parameters", "number", "of stored"), *self.rows()]
        lines = [f"{a:<28}{b:>15}{c:>12}".rstrip() for a, b, c in rows]
        return "\n".join([*lines, *self.summary()])

    @property
    def _was_shared(self) -> bool:
        """Whether the model is known to have stored something else than its dense twin before."""
        return self.before is not None and self.before != self.dense


def _verdict(ratio: float) -> str:
    word = "smaller" if ratio < 1 else "larger" if ratio > 1 else "as large"
    return f"{ratio:.4f} ({word})"


def ratio_below(stored: int, dense: int) -> float:
    """Return a ratio, rounded down, so that budgets below it are less than what is stored.

    Parameters
    ----------
    stored : int
        Number of parameters.
    dense : int
        Those of the dense twin.

    Returns
    -------
    float
        In units of a millionth.

    Examples
    --------
    >>> ratio_below(2, 3)
    0.666666
    """
    return math.floor(1e6 * stored / dense) / 1e6


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
    return _report(list(entries.values()), _before(model))


def _before(model: nn.Module) -> int | None:
    """Return what a model stored when it was converted; None where there is more around it."""
    inner = next((part for part in model.modules() if isinstance(part, PreTrainedModel)), None)
    if inner is None or _tensors_of(inner) != _tensors_of(model):
        return None
    plan = getattr(base_of(inner)._modules.get(BANKS), "plan", None)
    return plan.stored_before if isinstance(plan, ConversionPlan) else None


def _tensors_of(model: nn.Module) -> set[int]:
    return {id(parameter) for parameter in model.parameters()}


def _report(entries: Sequence[_Entry], before: int | None) -> ParameterReport:
    by_kind = {kind: sum(entry.numel for entry in entries if entry.kind == kind) for kind in KINDS}
    return ParameterReport(
        total=sum(entry.total for entry in entries),
        unique=sum(entry.numel for entry in entries),
        trainable=sum(entry.numel for entry in entries if entry.trainable),
        shared=sum(entry.shared for entry in entries),
        by_kind={kind: number for kind, number in by_kind.items() if number},
        dense=sum(entry.dense for entry in entries),
        before=before,
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
