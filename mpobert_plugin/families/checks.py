"""Refuse a description of a family that could only fail later."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from torch import nn

from mpobert_plugin.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from mpobert_plugin.families.family import Family

NORM_KINDS = ("layer", "rms")


def check_family(family: Family) -> None:
    """Raise when a family has a field that no model could have.

    Parameters
    ----------
    family : Family
        Any description.

    Raises
    ------
    ConfigError
        When a field has an impossible value; its name and value are told.

    Examples
    --------
    >>> from mpobert_plugin.families import BERT
    >>> check_family(BERT)
    """
    where = f"family {family.name!r}"
    types: object = family.model_types
    if not isinstance(types, tuple) or not types:
        raise ConfigError(f"model_types of {where} must be a tuple of texts, got {types!r}.")
    if family.norm_kind not in NORM_KINDS:
        raise ConfigError(
            f"norm_kind of {where} must be {' or '.join(map(repr, NORM_KINDS))}, got "
            f"{family.norm_kind!r}."
        )
    counts: object = family.layer_counts
    if not isinstance(counts, tuple) or not all(isinstance(name, str) for name in counts):
        raise ConfigError(f"layer_counts of {where} must be a tuple of texts, got {counts!r}.")
    if not family.matrices:
        raise ConfigError(f"matrices of {where} must name at least one role, got none.")
    _check_pattern("layer_pattern", family.layer_pattern, where)
    for role, pattern in family.layers_of_role.items():
        if role not in {**family.matrices, **family.norms}:
            raise ConfigError(
                f"layers_of_role of {where} must name its matrices and norms, got {role!r}. "
                f"{did_you_mean(role, [*family.matrices, *family.norms])}"
            )
        _check_pattern(f"layers_of_role[{role!r}]", pattern, where)
    _check_roles(family, where)


def _check_pattern(field: str, pattern: str, where: str) -> None:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ConfigError(
            f"{field} of {where} must be a regular expression, got {pattern!r}: {error}."
        ) from error


def _check_roles(family: Family, where: str) -> None:
    kinds = (family.matrices, family.norms, family.beside)
    roles = [role for kind in kinds for role in kind]
    twice = sorted({role for role in roles if roles.count(role) > 1})
    if twice:
        raise ConfigError(f"{where} must use each role once, got {', '.join(twice)} twice.")
    for role in roles:
        # Banks are kept in a dictionary of modules, whose keys are names of attributes.
        if not role or "." in role or hasattr(nn.ModuleDict, role):
            raise ConfigError(
                f"roles of {where} must be names without dots that torch.nn.ModuleDict does not "
                f"use itself, got {role!r}."
            )
    known = [*family.matrices, *family.beside]
    for role in family.adapter_defaults:
        if role not in known:
            raise ConfigError(
                f"adapter_defaults of {where} must be among its matrices, got {role!r}. "
                f"{did_you_mean(role, known)}"
            )
