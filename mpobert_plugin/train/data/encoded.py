"""A chunk of documents as token ids: what one worker makes, and the file that keeps it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from mpobert_plugin.train.aside import written_aside
from mpobert_plugin.train.data.sentences import split_sentences
from mpobert_plugin.train.data.vocabulary import load_tokenizer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from tokenizers import Tokenizer

    from mpobert_plugin.train.data.texts import Paragraphs

_NAMES = ("tokens", "sentence_lengths", "document_lengths")


@dataclass(frozen=True)
class Part:
    """Documents of one chunk as numbers.

    Parameters
    ----------
    tokens : ndarray of uint32
        Token ids of all sentences.
    sentence_lengths : ndarray of int64
        Number of tokens of each sentence, none of them 0.
    document_lengths : ndarray of int64
        Number of sentences of each document, none of them 0.
    """

    tokens: NDArray[np.uint32]
    sentence_lengths: NDArray[np.int64]
    document_lengths: NDArray[np.int64]


def encode_documents(documents: Sequence[Paragraphs], tokenizer: Tokenizer) -> Part:
    """Return documents as token ids; sentences without a token and empty documents are left out.

    Parameters
    ----------
    documents : sequence of lists of str
        Paragraphs of each document.
    tokenizer : tokenizers.Tokenizer
        What makes ids of text.

    Returns
    -------
    Part
        Their numbers.
    """
    sentences: list[str] = []
    owners: list[int] = []
    for number, paragraphs in enumerate(documents):
        found = [sentence for text in paragraphs for sentence in split_sentences(text)]
        sentences += found
        owners += [number] * len(found)
    ids = [entry.ids for entry in tokenizer.encode_batch_fast(sentences, add_special_tokens=False)]
    lengths = np.array([len(entry) for entry in ids], dtype=np.int64)
    flat = [number for entry in ids for number in entry]
    kept = lengths > 0
    counts = np.bincount(np.array(owners, dtype=np.int64)[kept], minlength=len(documents))
    return Part(np.array(flat, np.uint32), lengths[kept], counts[counts > 0].astype(np.int64))


def seal_of(documents: Sequence[Paragraphs], tokenizer_seal: str) -> str:
    """Return a checksum of a chunk's text and of the tokenizer that it is encoded with.

    Parameters
    ----------
    documents : sequence of lists of str
        The chunk.
    tokenizer_seal : str
        Checksum of the tokenizer.

    Returns
    -------
    str
        Hexadecimal digits.
    """
    total = hashlib.sha256(tokenizer_seal.encode())
    for paragraphs in documents:
        total.update("\n".join(paragraphs).encode("utf-8", "surrogatepass") + b"\0")
    return total.hexdigest()


def write_part(part: Part, seal: str, target: Path) -> None:
    """Write a part and the checksum of what it was made from.

    Parameters
    ----------
    part : Part
        The numbers.
    seal : str
        ``seal_of`` the chunk.
    target : Path
        Name of the file.

    Raises
    ------
    OSError
        When the operating system refuses.
    """
    arrays = {name: getattr(part, name) for name in _NAMES}
    with written_aside(target) as file:
        file.write(save(arrays, metadata={"seal": seal, "sum": _sum(part)}))


def is_done(target: Path, seal: str) -> bool:
    """Return whether a part was written whole, from this very text.

    Parameters
    ----------
    target : Path
        Name of the file.
    seal : str
        ``seal_of`` the chunk.

    Returns
    -------
    bool
        False also when the file is damaged.
    """
    try:
        with safe_open(target, framework="numpy") as handle:
            found = handle.metadata() or {}
        return bool(found.get("seal") == seal and found.get("sum") == _sum(read_part(target)))
    except (SafetensorError, OSError):
        return False


def _sum(part: Part) -> str:
    total = hashlib.sha256()
    for name in _NAMES:
        total.update(np.ascontiguousarray(getattr(part, name)).data)
    return total.hexdigest()


def read_part(target: Path) -> Part:
    """Return the part that a file keeps.

    Parameters
    ----------
    target : Path
        Name of the file.

    Returns
    -------
    Part
        Its numbers.

    Raises
    ------
    OSError, SafetensorError
        When it cannot be read.
    """
    with safe_open(target, framework="numpy") as handle:
        return Part(*(handle.get_tensor(name) for name in _NAMES))


_TOKENIZER: dict[str, Tokenizer] = {}


def work(
    documents: Sequence[Paragraphs], seal: str, target: str, tokenizer: str, tokenizer_seal: str
) -> int:
    """Encode a chunk and write it; what a worker process runs.

    Parameters
    ----------
    documents : sequence of lists of str
        The chunk.
    seal : str
        ``seal_of`` the chunk.
    target, tokenizer : str
        Names of the part and of the tokenizer's file.
    tokenizer_seal : str
        Checksum of the tokenizer.

    Returns
    -------
    int
        Number of tokens.
    """
    if tokenizer_seal not in _TOKENIZER:
        _TOKENIZER.clear()
        _TOKENIZER[tokenizer_seal] = load_tokenizer(tokenizer)
    part = encode_documents(documents, _TOKENIZER[tokenizer_seal])
    write_part(part, seal, Path(target))
    return len(part.tokens)
