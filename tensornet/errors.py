"""Exceptions: each message names the argument, what was expected, what came, and a remedy."""

from __future__ import annotations


class TensorNetError(Exception):
    """Base class of every error that tensornet raises on purpose."""


class ShapeError(TensorNetError, ValueError):
    """Sizes, factors or numbers of dimensions that do not fit together."""


class BondError(TensorNetError, ValueError):
    """A bond dimension, or a list of them, that no network can have."""


class ToleranceError(TensorNetError, ValueError):
    """A tolerance out of range, or one that cannot be kept under the other limits."""


class RangeError(ToleranceError, OverflowError):
    """Numbers beyond the range of their element type."""


class OptionError(TensorNetError, ValueError):
    """An option with an unknown value, or options that contradict each other."""


class NonFiniteError(TensorNetError, ValueError):
    """NaN or infinity where only finite numbers can be used."""


class DTypeError(TensorNetError, TypeError):
    """An element type that tensornet does not work in."""


class ArrayTypeError(TensorNetError, TypeError):
    """An object that is no array, or arrays of libraries or devices that do not go together."""


class DerivativeError(TensorNetError, ValueError):
    """A derivative that does not exist: that of a cut between equal singular values."""


class MemoryLimitError(TensorNetError, ValueError):
    """A limit on memory that no order of contraction keeps; says what the smallest peak is.

    ``smallest_peak`` is that number of elements, or None.
    """

    def __init__(self, text: str, smallest_peak: int | None = None) -> None:
        super().__init__(text, smallest_peak)
        self.smallest_peak = smallest_peak

    def __str__(self) -> str:
        return str(self.args[0])


class FileFormatError(TensorNetError, ValueError):
    """A file that is not a network written by tensornet, or a damaged one."""


class FileAccessError(TensorNetError, OSError):
    """A file that cannot be read or written."""


class MissingLibraryError(TensorNetError, ImportError):
    """An optional library that a call needs and that is not installed."""


class FormatWarning(UserWarning):
    """Something simpler than an MPO is the better form of a matrix."""


class ToleranceWarning(UserWarning):
    """A result that does not come as close as was asked for."""


def counted(n: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun, which takes an s in the plural unless that is given.

    Examples
    --------
    >>> counted(1, "sweep"), counted(0, "sweep"), counted(2, "matrix", "matrices")
    ('1 sweep', '0 sweeps', '2 matrices')
    """
    return f"{n} {noun if n == 1 else plural or noun + 's'}"


def complaint(argument: str, expected: str, given: object, remedy: str = "") -> str:
    """Return the text of an error in the form that all of tensornet's errors have.

    Parameters
    ----------
    argument : str
        Name of the argument as the user wrote it.
    expected : str
        What it must be, to follow the word "must".
    given : object
        What came.
    remedy : str, optional
        A sentence that says what to do.

    Returns
    -------
    str
        One line of text.

    Examples
    --------
    >>> complaint("max_bond", "be a positive integer", 0, "Leave it out for an exact network.")
    'max_bond must be a positive integer, got 0. Leave it out for an exact network.'
    """
    return f"{argument} must {expected}, got {given}. {remedy}".rstrip()
