"""Choose the sites of the matrices of one role, naming the layer that they do not fit."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import tensornet as tn
from mpobert_plugin.errors import ConfigError, ConversionError, did_you_mean
from mpobert_plugin.limits import OTHERS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mpobert_plugin.config import MPOConfig
    from mpobert_plugin.host_matrix import HostMatrix


def choose_layout(
    role: str, linears: Mapping[str, HostMatrix], config: MPOConfig
) -> tn.MatrixLayout:
    """Return the layout of the matrices of a role.

    Parameters
    ----------
    role : str
        Name of the role.
    linears : mapping of str to HostMatrix
        The matrices of the role by the full names of their modules.
    config : MPOConfig
        Its `shapes` and `n` are used.

    Returns
    -------
    tensornet.MatrixLayout
        Sites for the size that all of them have.

    Raises
    ------
    ConversionError
        When they differ in size, or the factors do not fit; the layer's full name is told.

    Examples
    --------
    >>> from torch import nn
    >>> from mpobert_plugin.config import MPOConfig
    >>> from mpobert_plugin.host_matrix import HostMatrix
    >>> linears = {"layer.0.query": HostMatrix(nn.Linear(8, 8))}
    >>> choose_layout("query", linears, MPOConfig(n=3)).row_dims
    (2, 2, 2)
    """
    first_name, first = next(iter(linears.items()))
    rows, cols = first.out_features, first.in_features
    for name, linear in linears.items():
        if (linear.out_features, linear.in_features) != (rows, cols):
            raise ConversionError(
                f"{name} must have the size {rows} x {cols} of {first_name}, got "
                f"{linear.out_features} x {linear.in_features}. Leave {role!r} out of targets."
            )
    try:
        return _layout(role, rows, cols, _asked(role, rows, cols, config))
    except (tn.errors.TensorNetError, ConfigError) as error:
        raise ConversionError(
            f"{first_name} ({rows} x {cols}) does not fit the sites: {error} Nothing was changed."
        ) from error


def _layout(role: str, rows: int, cols: int, shape: Any) -> tn.MatrixLayout:
    """Return the layout; factors of a vocabulary may multiply to more, and are padded."""
    padded = rows
    if role == "embedding" and isinstance(shape, tuple) and isinstance(shape[0], tuple):
        factors = shape[0]
        if all(type(factor) is int and factor > 0 for factor in factors):
            padded = max(rows, math.prod(factors))
    found = tn.matrix_layout(padded, cols, shape=shape)
    if padded == rows:
        return found
    return tn.MatrixLayout(found.row_dims, found.col_dims, rows, cols)


def check_shape_keys(config: MPOConfig, targets: Mapping[str, Mapping[str, HostMatrix]]) -> None:
    """Refuse keys of `shapes` that are neither a role nor a size of the model.

    Parameters
    ----------
    config : MPOConfig
        Its `shapes` are checked.
    targets : mapping
        The linear layers that are converted, by role and full name.

    Raises
    ------
    ConfigError
        When a key means nothing here.
    """
    if not isinstance(config.shapes, dict):
        return
    roles = list(targets)
    linears = [linear for found in targets.values() for linear in found.values()]
    sizes = {size for linear in linears for size in (linear.out_features, linear.in_features)}
    for key in config.shapes:
        if isinstance(key, str) and key not in (*roles, OTHERS):
            raise ConfigError(
                f"shapes must have roles or sizes as keys, got {key!r}. {did_you_mean(key, roles)}"
            )
        if isinstance(key, int) and key not in sizes:
            raise ConfigError(
                f"shapes must have sizes of the model as keys ({sorted(sizes)}), got {key}."
            )


def _asked(role: str, rows: int, cols: int, config: MPOConfig) -> Any:
    shapes = config.shapes
    if not isinstance(shapes, dict):
        return config.n if shapes is None else shapes
    if role in shapes:
        return shapes[role]
    given = shapes.get(rows) or shapes.get(cols)
    if given is None:
        return shapes.get(OTHERS, config.n)
    # A size without an entry gets balanced factors, as many as the other size has.
    balanced = tn.matrix_layout(rows, cols, shape=len(given))
    return shapes.get(rows) or balanced.row_dims, shapes.get(cols) or balanced.col_dims
