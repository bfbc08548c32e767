"""What happens in the processes that prepare batches, as an error that says what to do."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from mpobert_plugin.errors import DataError
from mpobert_plugin.train.data.batches import FROM_WORKER

if TYPE_CHECKING:
    from collections.abc import Iterator

# How the stack of a worker that failed ends.
_FAILED = f"{DataError.__module__}.{DataError.__name__}: "


@contextmanager
def told_by_workers() -> Iterator[None]:
    """Return a context in which errors of workers are those of the process that started them.

    Raises
    ------
    DataError
        What a worker raised, without its stack; or that one ended by itself.

    Examples
    --------
    >>> with told_by_workers():
    ...     pass
    """
    try:
        yield
    except DataError as error:
        _, stack, text = str(error).rpartition(_FAILED)
        if not stack:
            raise
        raise DataError(text.strip()) from error
    except RuntimeError as error:
        if FROM_WORKER not in str(error):
            raise
        raise DataError(
            "a process that prepares batches ended by itself, perhaps for lack of memory, or of "
            f"shared memory (/dev/shm, --shm-size in a container): {str(error).strip()} The last "
            "checkpoint is kept; start the run again, with fewer workers or with workers=0."
        ) from error
