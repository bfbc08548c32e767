"""How deep models start: factors on auxiliary tensors, and Xavier's numbers for a core."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torch import Tensor

from mpobert_plugin.errors import ConfigError, close_to
from mpobert_plugin.options import own_number

if TYPE_CHECKING:
    from mpobert_plugin.init.decomposed import Prepared
    from mpobert_plugin.plan import ConversionPlan
    from mpobert_plugin.spec import BankSpec

DEEP_INITS = ("copy", "copy_scaled", "xavier_scaled")
SCALES = ("product", "per_core")
# Attention must not become uniform: query and key are never scaled.
SCALED = ("value", "attention_output", "ffn_in", "ffn_out")
# Matrices whose results are added to the residual stream.
BRANCH_ENDS = ("attention_output", "ffn_out")


def core_factor(scale: str, n_layers: int, n_auxiliary: int) -> float:
    """Return the factor of each auxiliary tensor of a matrix that is scaled for depth.

    Parameters
    ----------
    scale : str
        'per_core': (2L)^(-1/4), the wording of the MPOBERT paper, whatever the number of tensors.
        'product': (2L)^(-1/(2m)) for m auxiliary tensors, so that the matrix itself is scaled by
        (2L)^(-1/2).
    n_layers : int
        Number of layers L.
    n_auxiliary : int
        Number of auxiliary tensors m of a matrix.

    Returns
    -------
    float
        The factor.

    Examples
    --------
    >>> core_factor("per_core", 8, 4), core_factor("product", 8, 4) ** 4
    (0.5, 0.25)
    """
    if scale == "per_core":
        return float((2 * n_layers) ** -0.25)
    return float((2 * n_layers) ** (-0.5 / max(n_auxiliary, 1)))


def xavier_std(shape: tuple[int, int, int, int]) -> float:
    """Return Xavier's standard deviation of a core, read as a map of columns to rows.

    Parameters
    ----------
    shape : tuple of int
        (left bond, row factor, column factor, right bond): the rows of that map are left bond
        times row factor, its columns column factor times right bond.

    Returns
    -------
    float
        Root of 2 / (rows + columns).

    Examples
    --------
    >>> xavier_std((2, 3, 4, 0)), xavier_std((1, 4, 4, 1))
    (0.5773502691896257, 0.5)
    """
    left, i, j, right = shape
    return math.sqrt(2.0 / (left * i + j * right))


def check_scale(scale: object) -> None:
    """Refuse what is no way of scaling.

    Parameters
    ----------
    scale : object
        'product', 'per_core' or None.

    Raises
    ------
    ConfigError
        When it is something else.

    Examples
    --------
    >>> check_scale("product")
    """
    if scale is not None and (not isinstance(scale, str) or scale not in SCALES):
        raise ConfigError(
            f"scale must be 'product', 'per_core' or None, got {scale!r}."
            f"{close_to(str(scale), SCALES)}"
        )


@dataclass(frozen=True)
class Deep:
    """What the layers beyond some depth start from; the others keep what they have.

    Parameters
    ----------
    threshold : int
        Number of the first layer that is deep.
    deep_init : str
        'copy', 'copy_scaled' or 'xavier_scaled'.
    scale : str or None
        'product' or 'per_core'; None with 'copy'.
    """

    threshold: int
    deep_init: str = "copy"
    scale: str | None = None

    def applied(self, prepared: Prepared) -> Prepared:
        """Return the tensors of a conversion with those of the deep layers started anew.

        Parameters
        ----------
        prepared : Prepared
            Tensors and plan of a conversion; its tensors are changed in place.

        Returns
        -------
        Prepared
            The same tensors with a plan that records the factors. Errors and certificates that
            do not hold any more are left out.

        Raises
        ------
        ConfigError
            When a deep layer has no auxiliary tensors of its own, or none at all, as where a matrix
        that is to be scaled stays plain.
        """
        if self.scale is None or prepared.plan.n_layers <= self.threshold:
            return prepared
        self._check_covered(prepared.plan)
        banks = tuple(self._bank(spec, prepared) for spec in prepared.plan.banks)
        prepared.plan = replace(prepared.plan, banks=banks)
        return prepared

    def _check_covered(self, plan: ConversionPlan) -> None:
        deep = set(range(self.threshold, plan.n_layers))
        for role in SCALED:
            covered = {k for spec in plan.banks if spec.role == role for k in spec.layer_numbers}
            if not deep <= covered:
                raise ConfigError(
                    f"deep_init={self.deep_init!r} scales {', '.join(SCALED)}, got {role!r} plain "
                    f"in {len(deep - covered)} of the {len(deep)} layers from {self.threshold} "
                    "on. Convert these matrices in all layers: leave out targets, ratio and "
                    "max_params."
                )

    def _bank(self, spec: BankSpec, prepared: Prepared) -> BankSpec:
        scaled = spec.role in SCALED
        if not scaled and self.deep_init == "copy_scaled":
            return spec
        names = [name for name in spec.tensor_shapes() if name.startswith("auxiliary")]
        if not names:
            raise ConfigError(
                f"deep_init={self.deep_init!r} needs auxiliary tensors, got a single site for "
                f"{spec.role!r}. Take two sites or more."
            )
        factor = core_factor(self.scale or "", prepared.plan.n_layers, len(names))
        factor = factor if scaled else 1.0
        slices = self._own_slices(spec)
        for name in names:
            for number in slices:
                piece = prepared.tensors[spec.name][name][number]
                if self.deep_init == "xavier_scaled":
                    _fill_xavier(piece)
                piece.mul_(factor)
        for layer in spec.layer_numbers:
            if layer >= self.threshold:
                prepared.certificates.pop((spec.role, layer), None)
        return replace(spec, depth_scale=factor, errors=())

    def _own_slices(self, spec: BankSpec) -> list[int]:
        used = list(zip(spec.layer_numbers, spec.auxiliary, strict=True))
        deep = {piece for layer, piece in used if layer >= self.threshold}
        both = deep & {piece for layer, piece in used if layer < self.threshold}
        if both:
            raise ConfigError(
                f"deep_init={self.deep_init!r} needs auxiliary tensors of their own in the layers "
                f"from {self.threshold} on, got slices {sorted(both)} of {spec.role!r} that "
                "earlier layers use too. Share central tensors alone, or pass threshold=0."
            )
        return sorted(deep)


def _fill_xavier(piece: Tensor) -> None:
    left, i, j, right = piece.shape
    piece.normal_(0.0, xavier_std((left, i, j, right)))


def branch_multiplier(n_layers: int) -> float:
    """Return the factor with which a branch of a model from scratch starts: 1 / L.

    Parameters
    ----------
    n_layers : int
        Number of layers L.

    Returns
    -------
    float
        The factor.

    Examples
    --------
    >>> branch_multiplier(48) * 48
    1.0
    """
    return 1.0 / n_layers


def fresh_factors(
    scale: str | None, multiplier: float | None, plan: ConversionPlan
) -> dict[str, float]:
    """Return the factor of each matrix of a fresh model that starts scaled, by role.

    Parameters
    ----------
    scale : str, or None
        'product' or 'per_core', on value, attention output and feed-forward.
    multiplier : float, or None
        Factor of the attention output and of the second feed-forward matrix; 1 / L when neither
        is given.
    plan : ConversionPlan
        Plan of the model.

    Returns
    -------
    dict of str to float
        Roles that are scaled.

    Raises
    ------
    ConfigError
        When both are given, or one has an impossible value.
    """
    check_scale(scale)
    value = own_number(multiplier)
    if scale is not None and multiplier is not None:
        raise ConfigError(
            f"scale and branch_multiplier exclude each other, got {scale!r} and {multiplier!r}."
        )
    if scale is not None:
        counts = {spec.role: _carriers(spec) for spec in plan.banks}
        # A matrix that stays plain is scaled as if it had the four tensors of five sites.
        return {
            role: core_factor(scale, plan.n_layers, counts.get(role, 4)) ** counts.get(role, 4)
            for role in SCALED
        }
    if value is None:
        value = branch_multiplier(plan.n_layers)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 < value < math.inf:
        raise ConfigError(f"branch_multiplier must be a number above 0, got {multiplier!r}.")
    return dict.fromkeys(BRANCH_ENDS, float(value))


def _carriers(spec: BankSpec) -> int:
    """Return how many cores carry a factor: the auxiliary ones, or the only one."""
    return max(len(spec.row_dims) - 1, 1)


def scaled_plan(plan: ConversionPlan, factors: Mapping[str, float]) -> ConversionPlan:
    """Return the plan of a fresh model whose matrices start scaled.

    Adapters of a scaled matrix are scaled with it: they belong to the same branch.

    Parameters
    ----------
    plan : ConversionPlan
        Plan of the model.
    factors : mapping of str to float
        Factor of each matrix, by role.

    Returns
    -------
    ConversionPlan
        With `depth_scale` and `adapter_alpha` of the banks set.
    """
    banks = [
        replace(
            spec,
            depth_scale=factors.get(spec.role, 1.0) ** (1.0 / _carriers(spec)),
            adapter_alpha=spec.adapter_alpha * factors.get(spec.role, 1.0),
        )
        for spec in plan.banks
    ]
    return replace(plan, banks=tuple(banks))
