"""The conversion plan: a frozen value that says everything before anything is touched."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from mpobert_plugin.errors import CheckpointError
from mpobert_plugin.fields import LARGEST, check_names, count, counts, layer_slices, word, words
from mpobert_plugin.norm_spec import BesideSpec, NormSpec
from mpobert_plugin.sharing import LayerMap, encode
from mpobert_plugin.spec import BankSpec

GAUGES = ("symmetric", "central", "left", "right", "identity")
FITS = ("joint", "mean", "first")
# A file with more would only cost the memory of its layer maps before it is refused.
MOST_LAYERS = 10_000


@dataclass(frozen=True)
class ConversionPlan:
    """All sizes, layer maps and adapters of a converted model.

    Parameters
    ----------
    family : str
        Name of the model family.
    n_layers : int
        Number of layer modules after conversion.
    banks : tuple of BankSpec
        One or several for each role of a matrix; layers that none of them names keep plain ones.
    norms : tuple of NormSpec
        One for each role of a LayerNorm.
    beside : tuple of BesideSpec
        Adapters beside plain linear layers.
    sources : tuple of int or None
        Layer of the source that each layer is copied from; None when layers stay where they are.
    gauge : str
        Gauge of the cores.
    fit : str or None
        How layers that differ were brought to share.
    outside : tuple of BankSpec
        Matrices outside the layers, such as the word embedding; each has a bank of its own with
        one slice.
    stored_before : int or None
        Parameters that the model stored when it was converted; None where there was none, as for
        fresh weights, and in files without it.
    lists : tuple of int
        Number of layers in each list of layers, for a model with several, such as an encoder with
        a decoder; their layers are numbered on, and none shares with those of another list.
        Empty for one list.

    Examples
    --------
    >>> bank = BankSpec("query", 6, 6, (2, 3), (3, 2), (1, 6, 1), (0, 0), (0, 1), (0, 1))
    >>> plan = ConversionPlan("bert", 2, (bank,), (), ())
    >>> ConversionPlan.from_dict(plan.to_dict()) == plan
    True
    """

    family: str
    n_layers: int
    banks: tuple[BankSpec, ...]
    norms: tuple[NormSpec, ...]
    beside: tuple[BesideSpec, ...]
    sources: LayerMap | None = None
    gauge: str = "symmetric"
    fit: str | None = None
    outside: tuple[BankSpec, ...] = ()
    stored_before: int | None = None
    lists: tuple[int, ...] = ()

    def numbers_beside(self, layer: int) -> range:
        """Return the numbers of the layers that stand in one list with a layer.

        Parameters
        ----------
        layer : int
            Number of the layer.

        Returns
        -------
        range
            All layers of a model with one list.

        Examples
        --------
        >>> lists = "bart:encoder.layers+decoder.layers"
        >>> ConversionPlan(lists, 5, (), (), (), lists=(2, 3)).numbers_beside(3)
        range(2, 5)
        """
        start = 0
        for number in self.lists:
            if layer < start + number:
                return range(start, start + number)
            start += number
        return range(self.n_layers)

    def sources_of(self, spec: BankSpec) -> tuple[int, ...]:
        """Return what the layers of a bank are made from, counted among the matrices of its role.

        Parameters
        ----------
        spec : BankSpec
            A bank of the layers.

        Returns
        -------
        tuple of int
            By the slots of the bank.

        Examples
        --------
        >>> bank = BankSpec("ffn", 6, 6, (2, 3), (3, 2), (1, 6, 1), (0, 0), (0, 1), layers=(3, 4))
        >>> lists = "t5:encoder.block+decoder.block"
        >>> ConversionPlan(lists, 5, (bank,), (), (), lists=(2, 3)).sources_of(bank)
        (1, 2)
        """
        if self.sources is not None:
            return spec.of_layers(self.sources)
        return tuple(layer - self.numbers_beside(layer).start for layer in spec.layer_numbers)

    def roles(self) -> list[str]:
        """Return the roles of all banks of the layers, matrices before norms.

        Returns
        -------
        list of str
            Names.
        """
        roles = [*(spec.role for spec in self.banks), *(spec.role for spec in self.norms)]
        return list(dict.fromkeys(roles))

    def banks_of_role(self, role: str) -> tuple[BankSpec, ...]:
        """Return the specifications of all banks of one role.

        Parameters
        ----------
        role : str
            Name of the role.

        Returns
        -------
        tuple of BankSpec
            In the order of their first layers; empty for a role without banks.
        """
        return tuple(spec for spec in self.banks if spec.role == role)

    def of_layer(self, layer: int) -> tuple[BankSpec | NormSpec, ...]:
        """Return the specifications of the banks that a layer reads, matrices before norms.

        Parameters
        ----------
        layer : int
            Number of the layer.

        Returns
        -------
        tuple of BankSpec and NormSpec
            At most one for each role.
        """
        specs: list[BankSpec | NormSpec] = [*self.banks, *self.norms]
        return tuple(spec for spec in specs if spec.slot_of(layer) is not None)

    def bank(self, name: str) -> BankSpec:
        """Return the specification of a bank by its name.

        Parameters
        ----------
        name : str
            The role, or the role and the first layer's number where not all layers read the bank.

        Returns
        -------
        BankSpec
            The specification.

        Raises
        ------
        KeyError
            When the plan has no such bank.
        """
        return {spec.name: spec for spec in self.banks}[name]

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as values that JSON can hold.

        Returns
        -------
        dict
            What `from_dict` reads.
        """
        fields: dict[str, Any] = {
            "family": self.family,
            "n_layers": self.n_layers,
            # Lists, since writers of JSON sort keys, and optimizers go by the order of the banks.
            "banks": [{"role": spec.role, **spec.to_dict()} for spec in self.banks],
            "norms": [{"role": spec.role, **spec.to_dict()} for spec in self.norms],
            "beside": [asdict(spec) for spec in self.beside],
            "gauge": self.gauge,
            "fit": self.fit,
        }
        if self.sources is not None:
            fields["sources"] = encode(self.sources)
        if self.outside:
            fields["outside"] = [{"role": spec.role, **spec.to_dict()} for spec in self.outside]
        if self.stored_before is not None:
            fields["stored_before"] = self.stored_before
        if self.lists:
            fields["lists"] = words(self.lists)
        return fields

    def to_json(self) -> str:
        """Return the plan as indented JSON text.

        Returns
        -------
        str
            JSON of `to_dict`.
        """
        return json.dumps(self.to_dict(), indent=2)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> ConversionPlan:
        """Return the plan that `to_dict` wrote, after checking it.

        Parameters
        ----------
        fields : mapping
            Output of `to_dict`.

        Returns
        -------
        ConversionPlan
            The plan.

        Raises
        ------
        CheckpointError
            When a field is missing, unknown or has a value that no plan can have.
        """
        where = "the stored plan"
        if not isinstance(fields, Mapping):
            raise CheckpointError(f"{where} must be an object of fields, got {fields!r}.")
        needed = ("family", "n_layers", "banks", "norms", "beside")
        known = ("gauge", "fit", "sources", "outside", "stored_before", "lists")
        check_names(fields, needed, known, where)
        n_layers = count(fields, "n_layers", where)
        if n_layers > MOST_LAYERS:
            raise CheckpointError(
                f"n_layers of {where} must be at most {MOST_LAYERS}, got {n_layers}."
            )
        sources = fields.get("sources")
        plan = cls(
            family=word(fields, "family", where),
            n_layers=n_layers,
            banks=tuple(
                BankSpec.from_dict(role, bank, n_layers)
                for role, bank in _entries(fields, "banks", repeated=True)
            ),
            norms=tuple(
                NormSpec.from_dict(role, norm, n_layers) for role, norm in _entries(fields, "norms")
            ),
            beside=tuple(
                BesideSpec.from_dict(role, entry) for role, entry in _entries(fields, "beside")
            ),
            sources=None
            if sources is None
            else layer_slices(fields, "sources", where, n_layers, gaps=True),
            gauge=word({"gauge": "symmetric", **fields}, "gauge", where, GAUGES),
            fit=None if fields.get("fit") is None else word(fields, "fit", where, FITS),
            outside=tuple(
                BankSpec.from_dict(role, bank, 1)
                for role, bank in _entries({"outside": [], **fields}, "outside")
            ),
            stored_before=None
            if fields.get("stored_before") is None
            # A model may have more parameters than one tensor of it has elements.
            else count(fields, "stored_before", where, most=LARGEST**2),
            lists=() if fields.get("lists") is None else counts(fields, "lists", where),
        )
        _check_banks(plan)
        return plan

    def __str__(self) -> str:
        """Return the plan as a table, a line for each matrix and each norm."""
        head = f"{self.family}, {self.n_layers} layers, gauge {self.gauge}"
        lines = [head if self.fit is None else f"{head}, fit {self.fit}"]
        lines += [_bank_line(spec) for spec in self.banks]
        lines += [f"  {line}" for line in plain_layers(self)]
        lines += [
            f"  {spec.role:<17} LayerNorm {spec.size}, {_users(spec.slices)}" for spec in self.norms
        ]
        lines += [
            f"  {spec.role:<17} plain, with an adapter of rank {spec.rank}" for spec in self.beside
        ]
        lines += [_outside_line(spec) for spec in self.outside]
        return "\n".join(lines)


def plain_layers(plan: ConversionPlan) -> list[str]:
    """Return a line for each role of which only some layers have a bank.

    Parameters
    ----------
    plan : ConversionPlan
        The plan.

    Returns
    -------
    list of str
        Which layers keep their plain matrices.

    Examples
    --------
    >>> bank = BankSpec("query", 6, 6, (2, 3), (3, 2), (1, 6, 1), (0,), (0,), layers=(1,))
    >>> plain_layers(ConversionPlan("bert", 3, (bank,), (), ()))
    ['query: plain matrices in layers 0 2']
    """
    lines = []
    for role in dict.fromkeys(spec.role for spec in plan.banks):
        read = {layer for spec in plan.banks_of_role(role) for layer in spec.layer_numbers}
        plain = tuple(layer for layer in plan.numbers_beside(min(read)) if layer not in read)
        if plain:
            lines.append(f"{role}: plain matrices in layers {encode(plain)}")
    return lines


def _check_banks(plan: ConversionPlan) -> None:
    if plan.lists and sum(plan.lists) != plan.n_layers:
        raise CheckpointError(
            f"lists of the stored plan must add up to its {plan.n_layers} layers, got {plan.lists}."
        )
    for role in plan.roles():
        layers = [layer for spec in plan.banks_of_role(role) for layer in spec.layer_numbers]
        if len(set(layers)) < len(layers):
            raise CheckpointError(
                f"banks of the stored plan must name each role once, or each of its layers once, "
                f"got layers {layers} of {role!r}."
            )
    specs: list[BankSpec | NormSpec] = [*plan.banks, *plan.norms, *plan.outside]
    names = [spec.name for spec in specs]
    if len(set(names)) < len(names):
        raise CheckpointError(
            f"banks of the stored plan must have names of their own, got {names}."
        )


def _entries(
    fields: Mapping[str, Any], name: str, repeated: bool = False
) -> list[tuple[str, Mapping[str, Any]]]:
    given = fields[name]
    if not isinstance(given, list) or not all(isinstance(entry, Mapping) for entry in given):
        raise CheckpointError(
            f"{name} of the stored plan must be a list of objects, got {given!r}."
        )
    roles = [word(entry, "role", f"an entry of {name} of the stored plan") for entry in given]
    if len(set(roles)) < len(roles) and not repeated:
        raise CheckpointError(f"{name} of the stored plan must name each role once, got {roles}.")
    return list(zip(roles, given, strict=True))


def _size(spec: BankSpec) -> str:
    dims = " ".join(f"{i}x{j}" for i, j in zip(spec.row_dims, spec.col_dims, strict=True))
    bonds = " ".join(str(bond) for bond in spec.bond_dims[1:-1])
    return f"  {spec.role:<17} {spec.rows} x {spec.cols} as {dims}, bonds {bonds or '-'}"


def _outside_line(spec: BankSpec) -> str:
    adapter = f", adapter of rank {spec.adapter_rank}" if spec.adapter_rank else ""
    return f"{_size(spec)}, outside the layers{adapter}"


def _bank_line(spec: BankSpec) -> str:
    parts = [
        _size(spec),
        *([] if spec.layers is None else [f"layers {encode(spec.layers)}"]),
        f"central {_users(spec.central)}",
        f"auxiliary {_users(spec.auxiliary)}",
    ]
    if spec.bias is not None:
        parts.append(f"bias {_users(spec.bias)}")
    if spec.adapter_rank:
        parts.append(f"adapter of rank {spec.adapter_rank}")
    return ", ".join(parts)


def _users(slices: LayerMap) -> str:
    number = max(slices) + 1
    if number == len(slices):
        return "per layer"
    return "shared by all" if number == 1 else f"in {number} groups ({encode(slices)})"
