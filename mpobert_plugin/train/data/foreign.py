"""What the tokenizers library raises, as an error of this one."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from mpobert_plugin.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def told(what: str) -> Iterator[None]:
    """Return a context that turns the library's bare ``Exception`` into an error with a name.

    Parameters
    ----------
    what : str
        Beginning of the message: who must be what.

    Raises
    ------
    DataError
        When an exception of no other class than ``Exception`` itself comes.

    Examples
    --------
    >>> with told("the file must be a tokenizer"):
    ...     pass
    """
    try:
        yield
    except Exception as error:
        # Compiled code of that library has no classes of its own; others pass through.
        if type(error) is not Exception:
            raise
        raise DataError(f"{what}, got: {error}.") from error
