"""Check a plan from a file against the architecture that it is to be put on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mpobert_plugin.errors import CheckpointError
from mpobert_plugin.families.derived import MARK
from mpobert_plugin.locate import family_of, layer_names
from mpobert_plugin.outside import EMBEDDING, MOST_SITES, outside_matrix, outside_paths
from mpobert_plugin.parts import layers_of_role, linears_of, lists_of_layers
from mpobert_plugin.sharing import encode

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from mpobert_plugin.families import Family
    from mpobert_plugin.plan import ConversionPlan


def check_plan(model: PreTrainedModel, plan: ConversionPlan) -> None:
    """Refuse a stored plan that does not belong to a model's architecture.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        A plain model, on the meta device perhaps.
    plan : ConversionPlan
        A plan from a file.

    Raises
    ------
    CheckpointError
        When family, number of layers, roles or sizes differ.
    """
    family = family_of(model)
    check_layers(plan, family, len(layer_names(model)), _of_another_class(model, plan))
    if plan.sources is not None and not family.repeats_layers:
        raise CheckpointError(
            f"the stored plan must have no sources, since {family.name} copies no layers, got "
            f"{encode(plan.sources)!r}. Its config.json was changed."
        )
    roles = [spec.role for spec in plan.banks]
    if not (roles or plan.norms or plan.outside) or not set(roles) <= set(family.matrices):
        raise CheckpointError(
            f"banks of the stored plan must be among {sorted(family.matrices)}, got {roles}."
        )
    others = [*(spec.role for spec in plan.norms), *(spec.role for spec in plan.beside)]
    if not set(others) <= {*family.norms, *family.beside}:
        raise CheckpointError(f"the stored plan must name parts of the model, got {others}.")
    if plan.lists != lists_of_layers(model):
        raise CheckpointError(
            f"the stored plan must have the lists of layers {lists_of_layers(model)}, got "
            f"{plan.lists}. Its config.json was changed."
        )
    for spec in plan.banks:
        known = layers_of_role(model, spec.role)
        foreign = [layer for layer in spec.layer_numbers if layer not in known]
        if foreign:
            raise CheckpointError(
                f"bank {spec.name!r} of the stored plan must be read by layers that have "
                f"{spec.role!r}, {list(known)}, got {foreign}. Its config.json was changed."
            )
        linears = list(linears_of(model, spec.role).items())
        name, linear = linears[known.index(spec.layer_numbers[0])]
        if (linear.out_features, linear.in_features) != (spec.rows, spec.cols):
            raise CheckpointError(
                f"bank {spec.name!r} of the stored plan must be {linear.out_features} x "
                f"{linear.in_features} for {name}, got {spec.rows} x {spec.cols}."
            )
    _check_outside(model, plan)


def _check_outside(model: PreTrainedModel, plan: ConversionPlan) -> None:
    present, family = outside_paths(model), family_of(model)
    for spec in plan.outside:
        if spec.role in family.beside and spec.role not in present:
            # A model with another head may lack the pooler, whose tensors are then left alone.
            continue
        if spec.role not in present:
            raise CheckpointError(
                f"outside of the stored plan must name matrices of the model "
                f"({', '.join(present)}), got {spec.role!r}."
            )
        name, matrix = outside_matrix(model, spec.role)
        parts = (spec.bias is not None, spec.role == EMBEDDING and spec.adapter_rank > 0)
        if parts != (matrix.bias is not None, False) or len(spec.row_dims) > MOST_SITES:
            raise CheckpointError(
                f"{spec.role!r} of the stored plan must have at most {MOST_SITES} sites, a bias "
                f"where {name} has one, and no adapter on an embedding, got "
                f"{len(spec.row_dims)} sites, {'a' if parts[0] else 'no'} bias and "
                f"adapter_rank {spec.adapter_rank}. Its config.json was changed."
            )
        if (matrix.out_features, matrix.in_features) != (spec.rows, spec.cols):
            raise CheckpointError(
                f"{spec.role!r} of the stored plan must be {matrix.out_features} x "
                f"{matrix.in_features} for {name}, got {spec.rows} x {spec.cols}. Its config.json "
                "was changed."
            )


def _of_another_class(model: PreTrainedModel, plan: ConversionPlan) -> str:
    """Return what to do with a folder of a larger class than the one that is loaded, if it is."""
    own, stored = type(model).__name__, (model.config.architectures or [""])[0]
    if stored in ("", own) or plan.family.partition(MARK)[0] != model.config.model_type:
        return ""
    return (
        f"The folder is that of a {stored}, and a {own} has other lists of layers: load it with "
        f"{stored}.from_pretrained and take the part out of it; or save what "
        f"mpobert_plugin.merge returns of it, which {own}.from_pretrained loads."
    )


def check_layers(
    plan: ConversionPlan, family: Family, n_layers: int, other_class: str = ""
) -> None:
    """Refuse a plan for another family or another number of layers.

    Parameters
    ----------
    plan : ConversionPlan
        A plan from a file.
    family : Family
        Family of the model.
    n_layers : int
        Layers of the model.
    other_class : str
        What to do where the folder is known to be one of another class.

    Raises
    ------
    CheckpointError
        When they differ from the plan's.

    Examples
    --------
    >>> from mpobert_plugin.families import BERT
    >>> from mpobert_plugin.plan import ConversionPlan
    >>> check_layers(ConversionPlan("bert", 2, (), (), ()), BERT, 2)
    """
    if (plan.family, plan.n_layers) == (family.name, n_layers):
        return
    remedy = "Its config.json was changed."
    if plan.family != family.name:
        remedy = other_class or (
            f"If {plan.family} is a family of your own, register it before loading, with "
            "mpobert_plugin.families.register_family; else its config.json was changed."
        )
    raise CheckpointError(
        f"the stored plan must be for {family.name} with {n_layers} layers, got "
        f"{plan.family} with {plan.n_layers}. {remedy}"
    )
