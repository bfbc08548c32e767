"""The roles that targets name: roles, or paths inside a layer that several lists may have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mpobert_plugin.errors import TargetError, close_to, each_close_to, shorten
from mpobert_plugin.role_keys import roles_at

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mpobert_plugin.families import Family


def target_roles(
    family: Family, targets: Sequence[str] | None, outside: Mapping[str, str] | None = None
) -> list[str]:
    """Return the roles of the matrices of the layers to convert, in the order of the family.

    Parameters
    ----------
    family : Family
        Family of the model.
    targets : sequence of str, or None
        Roles, or paths inside a layer; all roles when None.
    outside : mapping of str to str, optional
        Roles outside the layers, which may be named too, and their paths.

    Returns
    -------
    list of str
        Roles.

    Raises
    ------
    TargetError
        When a name is neither a role nor a path; close names are told.
    """
    if targets is None and family.needs_targets:
        # Layers of several lists may have one path.
        paths = list(dict.fromkeys(family.matrices.values()))
        raise TargetError(
            f"targets must name matrices of a model whose family is read off its layers "
            f"({family.name}): pass some of {shorten(paths, 20)}, or patterns "
            f"such as '*.{paths[0]}'. Nothing was changed."
        )
    if targets is None:
        return list(family.matrices)
    known = {**family.matrices, **(outside or {})}
    return [role for role in named_targets(targets, known, "targets") if role in family.matrices]


def named_targets(names: Sequence[str], known: Mapping[str, str], argument: str) -> list[str]:
    """Return the roles that names mean, in the order of the known ones.

    Parameters
    ----------
    names : sequence of str
        Roles or paths.
    known : mapping of str to str
        Roles that can be meant, and their paths.
    argument : str
        Name of the option, for messages.

    Returns
    -------
    list of str
        Roles.

    Raises
    ------
    TargetError
        When a name is neither a role nor a path; close names are told.

    Examples
    --------
    >>> named_targets(["self.key", "query"], {"query": "self.query", "key": "self.key"}, "targets")
    ['query', 'key']
    """
    roles = roles_at(known)
    unknown = [name for name in names if name not in roles]
    if unknown:
        hints = " ".join(_hint(name, known) for name in unknown)
        raise TargetError(
            f"{argument} must name matrices of the model ({', '.join(known)}), got "
            f"{len(unknown)} unknown of {len(names)}. {hints} Nothing was changed."
        )
    asked = {role for name in names for role in roles[name]}
    return [role for role in known if role in asked]


def _hint(name: str, known: Mapping[str, str]) -> str:
    ending = list(dict.fromkeys(path for path in known.values() if path.endswith(f".{name}")))
    if ending:
        return f"{name!r}: Did you mean {' or '.join(map(repr, ending))}?"
    paths = known.values()
    return each_close_to([name], paths if close_to(name, paths) else known)
