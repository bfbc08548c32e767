"""Exceptions and warnings of mpobert_plugin: argument, what was expected, what came, a remedy."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


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


class ElementTypeError(MPOBertError, TypeError):
    """Tensors and inputs whose element types cannot be computed with together."""


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


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, in the singular for one.

    Parameters
    ----------
    number : int
        How many.
    noun : str
        In the singular; one whose plural ends in s.

    Returns
    -------
    str
        Thousands are set apart by commas.

    Examples
    --------
    >>> counted(1, "sentence"), counted(1200, "document")
    ('1 sentence', '1,200 documents')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def close_to(name: str, known: Iterable[str]) -> str:
    """Return what a message that lists the known words says besides, after its full stop.

    Parameters
    ----------
    name : str
        What was written.
    known : iterable of str
        What could have been meant; the same word may come several times.

    Returns
    -------
    str
        A space and a question with up to three close words, or nothing when none is close.

    Examples
    --------
    >>> close_to("querry", ["query", "key", "query"]), close_to("fast", ["query", "key"])
    (" Did you mean 'query'?", '')
    """
    close = get_close_matches(name, list(dict.fromkeys(known)), n=3, cutoff=0.6)
    return f" Did you mean {' or '.join(map(repr, close))}?" if close else ""


def each_close_to(names: Iterable[str], known: Iterable[str]) -> str:
    """Return several misspelt names with the known words close to each.

    Parameters
    ----------
    names : iterable of str
        What was written.
    known : iterable of str
        What could have been meant, which the message lists already.

    Returns
    -------
    str
        Sentences.

    Examples
    --------
    >>> each_close_to(["querry", "fast"], ["query", "key"])
    "'querry': Did you mean 'query'? 'fast' is close to none of them."
    """
    words = list(known)
    found = {name: close_to(name, words) for name in names}
    return " ".join(
        f"{name!r}:{close}" if close else f"{name!r} is close to none of them."
        for name, close in found.items()
    )


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a sentence that names the known words close to a misspelt one, or all known words.

    A message that lists them already takes `close_to`, so that none is there twice.

    Parameters
    ----------
    name : str
        What was written.
    known : iterable of str
        What could have been meant; the same word may come several times.

    Returns
    -------
    str
        One sentence, ending with a full stop.

    Examples
    --------
    >>> did_you_mean("querry", ["query", "key"])
    "Did you mean 'query'?"
    """
    words = list(dict.fromkeys(known))
    return close_to(name, words).lstrip() or f"Known names: {', '.join(words)}."
