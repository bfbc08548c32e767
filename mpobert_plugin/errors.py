"""Exceptions and warnings of mpobert_plugin: argument, what was expected, what came, a remedy."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class MPOBertError(Exception):
    """Base class of every error that mpobert_plugin raises on purpose."""


class ConfigError(MPOBertError, ValueError):
    """An option with an unknown name or value, or options that contradict each other."""


class TargetError(ConfigError):
    """A target name that the model does not have."""


class SharingError(MPOBertError, ValueError):
    """A sharing policy that does not fit, or layers that do not share what they should."""


class ConversionError(MPOBertError, ValueError):
    """A model, or a weight of it, that cannot be converted; the model is left as it was."""


class CheckpointError(MPOBertError, ValueError):
    """Tensors that do not fit the model: missing, unexpected or of another shape."""


class DataError(MPOBertError, ValueError):
    """Text, a prepared corpus or an option of it that cannot be used."""


class DivergenceError(MPOBertError, ArithmeticError):
    """A training run whose loss is lost; what to try is told."""


class PlacementError(MPOBertError, ValueError):
    """Tensors of a bank on devices where a layer cannot read them."""


class ChangedTensorError(MPOBertError, RuntimeError):
    """A tensor that backward needs and that was modified after the forward."""


class ModelTypeError(MPOBertError, TypeError):
    """An object that is no model of a known family."""


class MissingPackageError(MPOBertError, ImportError):
    """A package that is not installed and without which nothing works."""


class MPOBertWarning(UserWarning):
    """Something that the user should know and that does not stop the work."""


def shorten(names: Iterable[str], limit: int = 10) -> str:
    """Return the first names in order, and how many there are when some are left out.

    Parameters
    ----------
    names : iterable of str
        Names to list.
    limit : int
        Number of names shown at most.

    Returns
    -------
    str
        Names joined by commas.

    Examples
    --------
    >>> shorten(["a", "b", "c"], limit=2)
    'a, b, ... (3 in total)'
    """
    ordered = list(names)
    if len(ordered) <= limit:
        return ", ".join(ordered)
    return ", ".join(ordered[:limit]) + f", ... ({len(ordered)} in total)"


def did_you_mean(name: str, known: Sequence[str]) -> str:
    """Return a sentence that names the known words close to a misspelt one, or all known words.

    Parameters
    ----------
    name : str
        What was written.
    known : sequence of str
        What could have been meant.

    Returns
    -------
    str
        One sentence, ending with a full stop.

    Examples
    --------
    >>> did_you_mean("querry", ["query", "key"])
    "Did you mean 'query'?"
    """
    close = get_close_matches(name, known, n=3, cutoff=0.6)
    if close:
        return "Did you mean " + " or ".join(repr(word) for word in close) + "?"
    return f"Known names: {', '.join(known)}."
