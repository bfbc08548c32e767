"""Specifications of banks: every size and every layer map, as plain frozen values."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from mpobert_plugin.errors import CheckpointError
from mpobert_plugin.fields import (
    LARGEST,
    Fields,
    check_names,
    count,
    counts,
    layer_slices,
    measures,
    positive,
    some_layers,
    words,
)
from mpobert_plugin.sharing import LayerMap, encode

if TYPE_CHECKING:
    from collections.abc import Sequence

Value = TypeVar("Value")
_SIZES = ("role", "rows", "cols", "row_dims", "col_dims", "bond_dims")
_MAPS = ("central", "auxiliary", "bias")
_ADAPTER = ("adapter_rank", "adapter_alpha")
MEASURES = ("errors", "norms", "output_errors")
_OPTIONAL = (*_ADAPTER, *MEASURES, "depth_scale", "layers")


@dataclass(frozen=True)
class BankSpec:
    """Sizes and layer maps of matrices of one role: those of all layers, or of some.

    Parameters
    ----------
    role : str
        Name of the role, such as 'query'.
    rows, cols : int
        True size of each matrix (rows are outputs).
    row_dims, col_dims : tuple of int
        Factors of the two sizes; their products are larger than the sizes when padded.
    bond_dims : tuple of int
        Bonds, one more than sites, 1 at both ends.
    central, auxiliary : tuple of int
        Slice that each layer uses of the central and of the auxiliary tensors.
    bias : tuple of int or None
        Slice of the bias that each layer uses; None without biases.
    adapter_rank : int
        Rank of the adapter of each layer; 0 without adapters.
    adapter_alpha : float
        Adapters are scaled by alpha / rank.
    errors : tuple of float
        Relative Frobenius error of each layer's matrix; empty when nothing was decomposed.
    norms : tuple of float
        Frobenius norm of each layer's matrix before the conversion; empty likewise.
    output_errors : tuple of float
        Relative error of each layer's output, root mean square over the calibration inputs;
        empty without calibration.
    depth_scale : float
        Factor that the auxiliary tensors of deep layers were given at the start; Adam's rate of
        auxiliary tensors follows it.
    layers : tuple of int or None
        Numbers of the layers that read the bank, in ascending order; None for all layers. The
        maps and the errors have one entry for each of them.

    Examples
    --------
    >>> spec = BankSpec("query", 6, 6, (2, 3), (3, 2), (1, 6, 1), (0, 0), (0, 1), layers=(1, 4))
    >>> spec.name, spec.slot_of(4), spec.slot_of(0)
    ('query_1', 1, None)
    """

    role: str
    rows: int
    cols: int
    row_dims: tuple[int, ...]
    col_dims: tuple[int, ...]
    bond_dims: tuple[int, ...]
    central: LayerMap
    auxiliary: LayerMap
    bias: LayerMap | None = None
    adapter_rank: int = 0
    adapter_alpha: float = 0.0
    errors: tuple[float, ...] = ()
    norms: tuple[float, ...] = ()
    output_errors: tuple[float, ...] = ()
    depth_scale: float = 1.0
    layers: LayerMap | None = None

    @property
    def n_layers(self) -> int:
        """Number of layers that read the bank."""
        return len(self.central)

    @property
    def name(self) -> str:
        """Name of the bank: the role, with the first layer's number when not all layers read it."""
        return self.role if self.layers is None else f"{self.role}_{self.layers[0]}"

    @property
    def layer_numbers(self) -> LayerMap:
        """Numbers of the layers that read the bank, by their slots in its maps."""
        return tuple(range(self.n_layers)) if self.layers is None else self.layers

    def slot_of(self, layer: int) -> int | None:
        """Return the position of a layer among those that read the bank.

        Parameters
        ----------
        layer : int
            Number of the layer in the model.

        Returns
        -------
        int or None
            Where the maps speak of it; None when it does not read the bank.
        """
        numbers = self.layer_numbers
        return numbers.index(layer) if layer in numbers else None

    def of_layers(self, values: Sequence[Value]) -> tuple[Value, ...]:
        """Return, of values for all layers of the model, those of the layers that read the bank.

        Parameters
        ----------
        values : sequence
            One for each layer of the model.

        Returns
        -------
        tuple
            By the slots of the maps.
        """
        return tuple(values[layer] for layer in self.layer_numbers)

    @property
    def central_site(self) -> int:
        """Number of the central site, counted from 0."""
        return len(self.row_dims) // 2

    @property
    def core_shapes(self) -> tuple[tuple[int, int, int, int], ...]:
        """Shape (left bond, row factor, column factor, right bond) of each core."""
        sites = zip(self.bond_dims, self.row_dims, self.col_dims, self.bond_dims[1:], strict=False)
        return tuple(sites)

    @property
    def adapter_scale(self) -> float:
        """Factor alpha / rank of the adapter product; 0 without adapters."""
        return self.adapter_alpha / self.adapter_rank if self.adapter_rank else 0.0

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of every tensor of the bank by its name.

        Returns
        -------
        dict of str to tuple of int
            Stacked tensors: the first size counts slices.
        """
        shapes: dict[str, tuple[int, ...]] = {}
        for site, shape in enumerate(self.core_shapes):
            if site == self.central_site:
                shapes["central"] = (max(self.central) + 1, *shape)
            else:
                shapes[f"auxiliary_{site}"] = (max(self.auxiliary) + 1, *shape)
        if self.adapter_rank:
            shapes["adapter_up"] = (self.n_layers, self.rows, self.adapter_rank)
            shapes["adapter_down"] = (self.n_layers, self.adapter_rank, self.cols)
        if self.bias is not None:
            shapes["bias"] = (max(self.bias) + 1, self.rows)
        return shapes

    def to_dict(self) -> dict[str, Any]:
        """Return the specification as values that JSON can hold; maps become short texts.

        Returns
        -------
        dict
            What `from_dict` reads.
        """
        fields: dict[str, Any] = {
            "rows": self.rows,
            "cols": self.cols,
            "row_dims": words(self.row_dims),
            "col_dims": words(self.col_dims),
            "bond_dims": words(self.bond_dims),
            "central": encode(self.central),
            "auxiliary": encode(self.auxiliary),
            "bias": None if self.bias is None else encode(self.bias),
        }
        if self.adapter_rank:
            fields |= {"adapter_rank": self.adapter_rank, "adapter_alpha": self.adapter_alpha}
        for name in MEASURES:
            values = getattr(self, name)
            if values:
                fields[name] = values[0] if len(set(values)) == 1 else list(values)
        if self.depth_scale != 1.0:
            fields["depth_scale"] = self.depth_scale
        if self.layers is not None:
            fields["layers"] = encode(self.layers)
        return fields

    @classmethod
    def from_dict(cls, role: str, fields: Fields, n_layers: int) -> BankSpec:
        """Return the specification that `to_dict` wrote, after checking it.

        Parameters
        ----------
        role : str
            Name of the role.
        fields : mapping
            Output of `to_dict`.
        n_layers : int
            Number of layers of the model.

        Returns
        -------
        BankSpec
            The specification.

        Raises
        ------
        CheckpointError
            When a field is missing or sizes do not fit together.
        """
        where = f"bank {role!r} of the stored plan"
        check_names({"role": role, **fields}, (*_SIZES, *_MAPS), _OPTIONAL, where)
        layers = some_layers(fields, "layers", where, n_layers)
        n_layers = n_layers if layers is None else len(layers)
        rank = count({"adapter_rank": 0, **fields}, "adapter_rank", where, least=0)
        if not rank and fields.get("adapter_alpha"):
            raise CheckpointError(f"{where} must have an adapter_rank beside its adapter_alpha.")
        spec = cls(
            role=role,
            rows=count(fields, "rows", where),
            cols=count(fields, "cols", where),
            row_dims=counts(fields, "row_dims", where),
            col_dims=counts(fields, "col_dims", where),
            bond_dims=counts(fields, "bond_dims", where),
            central=layer_slices(fields, "central", where, n_layers),
            auxiliary=layer_slices(fields, "auxiliary", where, n_layers),
            bias=None if fields["bias"] is None else layer_slices(fields, "bias", where, n_layers),
            adapter_rank=rank,
            adapter_alpha=positive(fields, "adapter_alpha", where) if rank else 0.0,
            **{name: measures(fields, name, where, n_layers) for name in MEASURES},
            depth_scale=positive({"depth_scale": 1.0, **fields}, "depth_scale", where),
            layers=layers,
        )
        spec._check(where)
        return spec

    def _check(self, where: str) -> None:
        sites = len(self.row_dims)
        if len(self.col_dims) != sites or len(self.bond_dims) != sites + 1:
            raise CheckpointError(
                f"{where} must have as many column factors as row factors and one bond more, got "
                f"{sites}, {len(self.col_dims)} and {len(self.bond_dims)}."
            )
        if math.prod(self.row_dims) < self.rows or math.prod(self.col_dims) < self.cols:
            raise CheckpointError(
                f"{where} must have factors that cover {self.rows} x {self.cols}, got "
                f"{self.row_dims} x {self.col_dims}."
            )
        if self.bond_dims[0] != 1 or self.bond_dims[-1] != 1:
            raise CheckpointError(f"{where} must have end bonds 1, got {self.bond_dims}.")
        joint = [i * j for i, j in zip(self.row_dims, self.col_dims, strict=True)]
        for k, bond in enumerate(self.bond_dims):
            full = min(math.prod(joint[:k]), math.prod(joint[k:]))
            if bond > full:
                raise CheckpointError(
                    f"bond {k} of {where} must be at most {full} for the factors "
                    f"{self.row_dims} x {self.col_dims}, got {bond}."
                )
        for name, shape in self.tensor_shapes().items():
            if math.prod(shape) > LARGEST**2:
                raise CheckpointError(
                    f"{name} of {where} must be a tensor that torch can make, got {shape}."
                )
