"""Specifications of the matrices outside the layers that a conversion is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mpobert_plugin.errors import ConversionError
from mpobert_plugin.heads import check_heads
from mpobert_plugin.layouts import choose_layout
from mpobert_plugin.outside import EMBEDDING, outside_matrix, outside_paths
from mpobert_plugin.spec import BankSpec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from transformers import PreTrainedModel

    from mpobert_plugin.config import MPOConfig
    from mpobert_plugin.host_matrix import HostMatrix


def outside_roles(model: PreTrainedModel, targets: Sequence[str] | None) -> list[str]:
    """Return the roles outside the layers that targets name; none without targets.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        A plain model of a family.
    targets : sequence of str, or None
        Roles or paths; those of the layers are left out.

    Returns
    -------
    list of str
        Embedding first.

    Examples
    --------
    >>> from transformers import BertConfig, BertModel
    >>> sizes = dict(hidden_size=8, num_attention_heads=2, intermediate_size=16)
    >>> plain = BertModel(BertConfig(vocab_size=9, num_hidden_layers=1, **sizes))
    >>> outside_roles(plain, ["query", "pooler", "embeddings.word_embeddings"])
    ['embedding', 'pooler']
    """
    asked = set(targets or ())
    return [role for role, path in outside_paths(model).items() if asked & {role, path}]


def outside_specs(
    model: PreTrainedModel, config: MPOConfig, matrices: Mapping[str, tuple[str, HostMatrix]]
) -> tuple[BankSpec, ...]:
    """Return the specifications of matrices outside the layers, without adapters.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        A plain model.
    config : MPOConfig
        Its `shapes`, `n` and `max_bond` are used.
    matrices : mapping of str to (str, HostMatrix)
        Full name and matrix of each role that is asked for.

    Returns
    -------
    tuple of BankSpec
        Each with one slice.

    Raises
    ------
    ConversionError
        When a matrix does not fit its sites, or shares its parameters with another part of the
        model in a way that a bank cannot follow; full names are told.
    """
    specs = []
    for role, (name, matrix) in matrices.items():
        if role == EMBEDDING:
            check_heads(model)
        else:
            _check_alone(model, name, matrix)
        layout = choose_layout(role, {name: matrix}, config)
        specs.append(
            BankSpec(
                role=role,
                rows=layout.rows,
                cols=layout.cols,
                row_dims=layout.row_dims,
                col_dims=layout.col_dims,
                bond_dims=layout.structural_bonds(config.bond_of(role)),
                central=(0,),
                auxiliary=(0,),
                bias=None if matrix.bias is None else (0,),
            )
        )
    return tuple(specs)


def outside_matrices(
    model: PreTrainedModel, targets: Sequence[str] | None
) -> dict[str, tuple[str, HostMatrix]]:
    """Return full name and matrix of each role outside the layers that targets name.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        A plain model of a family.
    targets : sequence of str, or None
        Roles or paths.

    Returns
    -------
    dict of str to (str, HostMatrix)
        By role.

    Raises
    ------
    ConversionError
        When a module is no plain one.
    """
    return {role: outside_matrix(model, role) for role in outside_roles(model, targets)}


def _check_alone(model: PreTrainedModel, name: str, matrix: HostMatrix) -> None:
    own = [matrix.parameter, *([] if matrix.bias is None else [matrix.bias])]
    for other, parameter in model.named_parameters(remove_duplicate=False):
        if other.rpartition(".")[0] != name and any(parameter is tensor for tensor in own):
            raise ConversionError(
                f"{name} and {other} must have two parameters, got one that both use. Leave "
                f"{name} out of targets, or give it a copy. Nothing was changed."
            )
