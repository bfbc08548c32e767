"""Specifications of norms, and of adapters beside plain layers, as plain frozen values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mpobert_plugin.fields import Fields, check_names, count, layer_slices, number, positive, word
from mpobert_plugin.sharing import LayerMap, encode

NORM_KINDS = ("layer", "rms")


@dataclass(frozen=True)
class NormSpec:
    """Size, kind and layer map of the norms of one role.

    Parameters
    ----------
    role : str
        Name of the role, such as 'attention_norm'.
    size : int
        Number of features.
    eps : float
        Number added to the variance.
    slices : tuple of int
        Slice of weight and bias that each layer uses.
    kind : str
        'layer' for a LayerNorm, 'rms' for an RMS norm, which has no bias.
    """

    role: str
    size: int
    eps: float
    slices: LayerMap
    kind: str = "layer"

    @property
    def name(self) -> str:
        """Name of the bank: the role."""
        return self.role

    @property
    def layer_numbers(self) -> LayerMap:
        """Numbers of the layers that read the bank: all of them."""
        return tuple(range(len(self.slices)))

    def slot_of(self, layer: int) -> int | None:
        """Return the position of a layer among those that read the bank.

        Parameters
        ----------
        layer : int
            Number of the layer in the model.

        Returns
        -------
        int or None
            The number itself, since all layers read it.
        """
        return layer if 0 <= layer < len(self.slices) else None

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of the stacked weight and bias.

        Returns
        -------
        dict of str to tuple of int
            Both are (slices, features).
        """
        shape = (max(self.slices) + 1, self.size)
        return {"weight": shape} if self.kind == "rms" else {"weight": shape, "bias": shape}

    def to_dict(self) -> dict[str, Any]:
        """Return the specification as values that JSON can hold.

        Returns
        -------
        dict
            What `from_dict` reads.
        """
        fields = {"size": self.size, "eps": self.eps, "slices": encode(self.slices)}
        return fields if self.kind == "layer" else {**fields, "kind": self.kind}

    @classmethod
    def from_dict(cls, role: str, fields: Fields, n_layers: int) -> NormSpec:
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
        NormSpec
            The specification.

        Raises
        ------
        CheckpointError
            When a field is missing or no count.
        """
        where = f"norm {role!r} of the stored plan"
        check_names({"role": role, **fields}, ("role", "size", "eps", "slices"), ("kind",), where)
        slices = layer_slices(fields, "slices", where, n_layers)
        kind = word({"kind": "layer", **fields}, "kind", where, NORM_KINDS)
        return cls(role, count(fields, "size", where), number(fields, "eps", where), slices, kind)


@dataclass(frozen=True)
class BesideSpec:
    """Adapter beside a plain linear layer of the base model.

    Parameters
    ----------
    role : str
        Name of the role, such as 'pooler'.
    rank : int
        Rank of the adapter.
    alpha : float
        The adapter is scaled by alpha / rank.
    """

    role: str
    rank: int
    alpha: float

    @classmethod
    def from_dict(cls, role: str, fields: Fields) -> BesideSpec:
        """Return the specification that ``dataclasses.asdict`` wrote, after checking it.

        Parameters
        ----------
        role : str
            Name of the role.
        fields : mapping
            Rank and alpha.

        Returns
        -------
        BesideSpec
            The specification.

        Raises
        ------
        CheckpointError
            When a field is missing or no number.
        """
        where = f"adapter {role!r} of the stored plan"
        check_names({"role": role, **fields}, ("role", "rank", "alpha"), (), where)
        return cls(role, count(fields, "rank", where), positive(fields, "alpha", where))
