"""Windows over a corpus: stretches of whole sentences that fill the length of a sample."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mpobert_plugin.errors import DataError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mpobert_plugin.train.data.store import Corpus

# A window of one token could not be masked and still say something.
_LEAST = 2


def sentence_windows(corpus: Corpus, length: int) -> NDArray[np.int64]:
    """Return windows of whole sentences of one document, each as full as the next sentence allows.

    A sentence longer than a window is cut into pieces. Together the windows cover the corpus once,
    but for single tokens at the end of a document.

    Parameters
    ----------
    corpus : Corpus
        Where the sentences are.
    length : int
        Tokens of a window at most.

    Returns
    -------
    ndarray of int64
        (windows, 2): first token and the one behind the last, sorted.

    Raises
    ------
    DataError
        When the length is below 2 or the corpus has no window.
    """
    _check_length(length)
    ends = np.asarray(corpus.sentences)
    at = ends[np.asarray(corpus.documents[:-1])]
    stop = ends[np.asarray(corpus.documents[1:])]
    found: list[NDArray[Any]] = []
    # One window of every unfinished document at a time.
    while len(at):
        last = ends[np.searchsorted(ends, at + length, side="right") - 1]
        until = np.minimum(np.where(last > at, last, at + length), stop)
        found.append(np.stack([at, until], axis=1))
        left = until < stop
        at, stop = until[left], stop[left]
    return _kept(found)


def full_windows(corpus: Corpus, length: int) -> NDArray[np.int64]:
    """Return windows that cut the whole corpus into equal stretches, across documents.

    Parameters
    ----------
    corpus : Corpus
        Where the tokens are.
    length : int
        Tokens of a window.

    Returns
    -------
    ndarray of int64
        (windows, 2): first token and the one behind the last, sorted; the last may be shorter.

    Raises
    ------
    DataError
        When the length is below 2 or the corpus has no window.
    """
    _check_length(length)
    at = np.arange(0, len(corpus.tokens), length, dtype=np.int64)
    return _kept([np.stack([at, np.minimum(at + length, len(corpus.tokens))], axis=1)])


def _check_length(length: int) -> None:
    if type(length) is not int or length < _LEAST:
        raise DataError(f"a window must have at least {_LEAST} tokens, got {length!r}.")


def _kept(found: list[NDArray[Any]]) -> NDArray[np.int64]:
    windows = np.concatenate(found) if found else np.zeros((0, 2), np.int64)
    windows = windows[windows[:, 1] - windows[:, 0] >= _LEAST]
    if not len(windows):
        raise DataError(
            f"the corpus must have at least one stretch of {_LEAST} tokens, got none. Prepare more "
            "text."
        )
    return np.ascontiguousarray(windows[np.argsort(windows[:, 0], kind="stable")])
