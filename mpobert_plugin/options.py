"""Options that a function does not have, or cannot follow: named, with the close ones."""

from __future__ import annotations

from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

from mpobert_plugin.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


def refuse_unknown(given: Iterable[str], known: Sequence[str], function: str) -> None:
    """Refuse names that are no options of a function.

    Parameters
    ----------
    given : iterable of str
        Names that were given.
    known : sequence of str
        Names of the options.
    function : str
        Name of the function, for the message.

    Raises
    ------
    ConfigError
        When a name is unknown; close names are told.

    Examples
    --------
    >>> refuse_unknown(["n"], ["n", "gauge"], "convert")
    """
    for name in given:
        if name not in known:
            raise ConfigError(f"{function} has no option {name!r}. {did_you_mean(name, known)}")


def refuse_useless(given: Mapping[str, object], reasons: Mapping[str, str], function: str) -> None:
    """Refuse options that exist elsewhere and that this function could only ignore.

    Parameters
    ----------
    given : mapping
        Options that were given; those that are None count as not given.
    reasons : mapping of str to str
        Name of each such option to a sentence with the reason and what to do instead.
    function : str
        Name of the function, for the message.

    Raises
    ------
    ConfigError
        When one was given.

    Examples
    --------
    >>> refuse_useless({"fit": None}, {"fit": "Fresh weights need no fit."}, "build")
    """
    for name, reason in reasons.items():
        if given.get(name) is not None:
            raise ConfigError(
                f"{function} cannot follow the option {name!r}, got {given[name]!r}. {reason}"
            )


def own_integer(value: Any) -> Any:
    """Return Python's own integer for an integer of another library, anything else as it is.

    Parameters
    ----------
    value : object
        Whatever the user gave.

    Returns
    -------
    object
        An int, or the value itself.

    Examples
    --------
    >>> import numpy
    >>> own_integer(numpy.int64(4)), own_integer("4"), own_integer(True)
    (4, '4', True)
    """
    if isinstance(value, bool):
        return value
    return int(value) if isinstance(value, Integral) else value


def own_number(value: Any) -> Any:
    """Return Python's own number for a real number of another library, anything else as it is.

    Parameters
    ----------
    value : object
        Whatever the user gave.

    Returns
    -------
    object
        An int or a float, or the value itself.

    Examples
    --------
    >>> import numpy
    >>> own_number(numpy.float64(0.5)), own_number("0.5")
    (0.5, '0.5')
    """
    whole = own_integer(value)
    if type(whole) in (bool, int):
        return whole
    return float(value) if isinstance(value, Real) else value


def check_integer(name: str, value: object, least: int) -> None:
    """Refuse what is no integer of at least some size.

    Parameters
    ----------
    name : str
        Name of the option.
    value : object
        Its value.
    least : int
        Smallest value allowed.

    Raises
    ------
    ConfigError
        When it is something else.

    Examples
    --------
    >>> check_integer("n", 5, least=1)
    """
    if type(value) is not int or value < least:
        raise ConfigError(f"{name} must be an integer >= {least}, got {value!r}.")


def check_budget(options: Mapping[str, Any]) -> None:
    """Refuse a budget for the whole model that is impossible or contradicts other options.

    Parameters
    ----------
    options : mapping of str to object
        Among them 'ratio', 'max_params', 'max_bond', 'rtol' and 'gauge'.

    Raises
    ------
    ConfigError
        When both budgets are given, one has an impossible value, or another option says how
        matrices are cut.

    Examples
    --------
    >>> names = ("ratio", "max_params", "max_bond", "rtol", "gauge")
    >>> check_budget({**dict.fromkeys(names), "ratio": 0.5})
    """
    ratio, most = options["ratio"], options["max_params"]
    if ratio is None and most is None:
        return
    if ratio is not None and most is not None:
        raise ConfigError(
            f"ratio and max_params are one budget in two units, got ratio={ratio!r} and "
            f"max_params={most!r}. Give one of them."
        )
    name = "max_params" if ratio is None else "ratio"
    if most is not None:
        check_integer("max_params", most, least=1)
    elif type(ratio) not in (int, float) or not 0.0 < ratio <= 1.0:
        raise ConfigError(f"ratio must be a number in (0, 1], got {ratio!r}.")
    for other in ("max_bond", "rtol"):
        if options[other] is not None:
            raise ConfigError(
                f"{name} chooses the bonds of all matrices, got {other}={options[other]!r} "
                f"beside it. Give {name} or {other}."
            )
    if options["gauge"] == "identity":
        raise ConfigError(f"gauge 'identity' must be exact: leave out {name}.")
