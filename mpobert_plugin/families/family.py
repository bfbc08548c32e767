"""A family of models as data: where its layers, matrices and norms are."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mpobert_plugin.errors import ConfigError, did_you_mean
from mpobert_plugin.families.checks import check_family

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import nn


@dataclass(frozen=True)
class Family:
    """Where a family of models keeps what conversion replaces.

    Parameters
    ----------
    name : str
        Name of the family, stored in the configuration of converted models.
    model_types : tuple of str
        Values of ``config.model_type`` that belong to it.
    layer_pattern : str
        Regular expression that the full name of a layer, seen from the base model, matches.
    matrices : mapping of str to str
        Role of a weight matrix to its path inside a layer.
    norms : mapping of str to str
        Role of a norm to its path inside a layer; other norms stay as they are.
    beside : mapping of str to str
        Role of a plain linear layer of the base model that may get an adapter, to its path.
    adapter_defaults : tuple of str
        Roles that get an adapter when none are named.
    repeats_layers : bool
        Whether the host runs one layer module several times (ALBERT).
    norm_kind : str
        'layer' for ``torch.nn.LayerNorm``, 'rms' for the RMS norms of Llama.
    needs_targets : bool
        Whether a conversion must say which matrices it wants, since nobody chose them.
    embedding : str
        Path of the word embedding, seen from the base model; empty when it is not known.
    layers_of_role : mapping of str to str
        Regular expression of the names of the layers that have the matrix of a role, for a model
        with several lists of layers; layers of the others lack it. All layers have a role that
        is not in it.
    layer_counts : tuple of str
        Fields of the configuration whose product is the number of layer modules, so that a file
        is refused before layers are built that it does not have; empty when they are not known.

    Raises
    ------
    ConfigError
        When a field has a value that no model could have.

    Examples
    --------
    >>> from mpobert_plugin.families import BERT
    >>> BERT.matrices["ffn_in"]
    'intermediate.dense'
    """

    name: str
    model_types: tuple[str, ...]
    layer_pattern: str
    matrices: Mapping[str, str]
    norms: Mapping[str, str]
    beside: Mapping[str, str] = field(default_factory=dict)
    adapter_defaults: tuple[str, ...] = ()
    repeats_layers: bool = False
    norm_kind: str = "layer"
    needs_targets: bool = False
    embedding: str = ""
    layer_counts: tuple[str, ...] = ()
    layers_of_role: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_family(self)

    def layer_names(self, base: nn.Module) -> list[str]:
        """Return the names of the layers of a base model, first layer first.

        Parameters
        ----------
        base : torch.nn.Module
            Base model, without its head.

        Returns
        -------
        list of str
            Names as ``base.get_submodule`` takes them.
        """
        # A module that stands for several layers is named for each of them.
        named = base.named_modules(remove_duplicate=False)
        return [name for name, _ in named if self.is_layer(name)]

    def is_layer(self, name: str) -> bool:
        """Return whether a name is that of a layer.

        Parameters
        ----------
        name : str
            Full name of a module, seen from the base model.

        Returns
        -------
        bool
            True for a layer itself, False for what is inside.

        Examples
        --------
        >>> from mpobert_plugin.families import BERT
        >>> BERT.is_layer("encoder.layer.3"), BERT.is_layer("encoder.layer.3.output")
        (True, False)
        """
        return re.fullmatch(self.layer_pattern, name) is not None

    def numbers_of(self, role: str, names: Sequence[str]) -> tuple[int, ...]:
        """Return the numbers of the layers that have the matrix or norm of a role.

        Parameters
        ----------
        role : str
            Name of the role.
        names : sequence of str
            Names of all layers, as `layer_names` returns them.

        Returns
        -------
        tuple of int
            In ascending order.

        Examples
        --------
        >>> from mpobert_plugin.families import BERT
        >>> BERT.numbers_of("query", ["encoder.layer.0", "encoder.layer.1"])
        (0, 1)
        """
        pattern = self.layers_of_role.get(role)
        if pattern is None:
            return tuple(range(len(names)))
        return tuple(k for k, name in enumerate(names) if re.fullmatch(pattern, name))


_FAMILIES: dict[str, Family] = {}


def register_family(family: Family) -> Family:
    """Return the family after making it known for its model types.

    Parameters
    ----------
    family : Family
        Description of the new family.

    Returns
    -------
    Family
        The same object.

    Raises
    ------
    ConfigError
        When another family has one of its model types already.
    """
    for model_type in family.model_types:
        known = _FAMILIES.get(model_type)
        if known is not None and known != family:
            raise ConfigError(
                f"model_types must be new, got {model_type!r}, which family {known.name!r} has."
            )
    for model_type in family.model_types:
        _FAMILIES[model_type] = family
    return family


def family_for(model_type: str) -> Family:
    """Return the family that a model type belongs to.

    Parameters
    ----------
    model_type : str
        ``config.model_type`` of a model.

    Returns
    -------
    Family
        Description of the family.

    Raises
    ------
    ConfigError
        When no family has that model type.

    Examples
    --------
    >>> family_for("albert").repeats_layers
    True
    """
    if model_type not in _FAMILIES:
        raise ConfigError(
            f"model_type must belong to a known family, got {model_type!r}. "
            f"{did_you_mean(model_type, known_model_types())}"
        )
    return _FAMILIES[model_type]


def known_model_types() -> list[str]:
    """Return every model type that belongs to a family, sorted.

    Returns
    -------
    list of str
        Values of ``config.model_type``.

    Examples
    --------
    >>> "bert" in known_model_types()
    True
    """
    return sorted(_FAMILIES)
