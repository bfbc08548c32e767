"""A prepared corpus: tokens, sentences and documents in memory maps, and what they are."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mpobert_plugin.errors import DataError, counted
from mpobert_plugin.train.aside import sha256_of
from mpobert_plugin.train.data.vocabulary import (
    Special,
    load_tokenizer,
    special_flags,
    special_ids,
    word_starts,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

FORMAT, VERSION = "mpobert-corpus", 1
MANIFEST, TOKENIZER = "manifest.json", "tokenizer.json"
TOKENS, SENTENCES, DOCUMENTS = "tokens.bin", "sentences.bin", "documents.bin"
_TOKEN_TYPES = ("uint16", "uint32")
_FIELDS = ("format", "version", "dtype", "tokens", "sentences", "documents", "files", "checksum")


@dataclass(frozen=True)
class Corpus:
    """Tokens of a prepared corpus and where its sentences and documents begin.

    Parameters
    ----------
    folder : Path
        Where it lies.
    tokens : ndarray of uint16 or uint32
        All tokens, without special ones; read from the disk as they are used.
    sentences : ndarray of int64
        Offset of each sentence in `tokens`, and the number of tokens at the end.
    documents : ndarray of int64
        Offset of each document in `sentences`, and the number of sentences at the end.
    special : Special
        Ids that samples need.
    starts_word : ndarray of bool
        (vocabulary,): whether a token begins a word.
    is_special : ndarray of bool
        (vocabulary,): whether a token is special.
    checksum : str
        SHA-256 over the checksums of its files: two corpora with the same one are the same.
    """

    folder: Path
    tokens: NDArray[Any]
    sentences: NDArray[np.int64]
    documents: NDArray[np.int64]
    special: Special
    starts_word: NDArray[np.bool_]
    is_special: NDArray[np.bool_]
    checksum: str

    @property
    def vocab_size(self) -> int:
        """Number of ids, which a model's vocabulary must have at least."""
        return len(self.starts_word)

    def __reduce__(self) -> tuple[Any, ...]:
        # A worker process opens the files itself instead of being sent their contents.
        return open_corpus, (self.folder,)

    def __repr__(self) -> str:
        return (
            f"Corpus({str(self.folder)!r}: {counted(len(self.tokens), 'token')}, "
            f"{counted(len(self.sentences) - 1, 'sentence')}, "
            f"{counted(len(self.documents) - 1, 'document')}, vocabulary {self.vocab_size:,})"
        )


def open_corpus(folder: str | os.PathLike[str], *, verify: bool = False) -> Corpus:
    """Return a prepared corpus; nothing is read into memory but its tables.

    Parameters
    ----------
    folder : path
        What `mpobert_plugin.train.prepare` wrote.
    verify : bool
        Compare the checksum of every file, which reads all of them. Sizes are always compared, and
        the checksum of the tokenizer.

    Returns
    -------
    Corpus
        Ready to be sampled.

    Raises
    ------
    DataError
        When a file is missing, damaged, or of another size than the manifest says.
    """
    if not isinstance(folder, str | os.PathLike):
        raise DataError(f"data must be the folder of a prepared corpus, got {folder!r}.")
    path = Path(folder)
    manifest = read_manifest(path)
    for name, entry in manifest["files"].items():
        # The tokenizer is small, and a changed one has other words for the same ids.
        _check_file(path / name, entry, verify or name == TOKENIZER)
    tokenizer = load_tokenizer(path / TOKENIZER)
    tokens = _mapped(path / TOKENS, manifest["dtype"], manifest["tokens"])
    sentences = _mapped(path / SENTENCES, "int64", manifest["sentences"] + 1)
    documents = _mapped(path / DOCUMENTS, "int64", manifest["documents"] + 1)
    if sentences[-1] != len(tokens) or documents[-1] != manifest["sentences"]:
        raise DataError(
            f"{path} must have sentences up to {len(tokens)} tokens and documents up to "
            f"{manifest['sentences']} sentences, got {sentences[-1]} and {documents[-1]}. "
            "Prepare it again."
        )
    for name, offsets in ((SENTENCES, sentences), (DOCUMENTS, documents)):
        if offsets[0] != 0 or not (offsets[1:] > offsets[:-1]).all():
            raise DataError(
                f"{path / name} must hold offsets that rise from 0, got others: it is damaged. "
                "Copy it again, or prepare the text again."
            )
    return Corpus(
        path,
        tokens,
        sentences,
        documents,
        special_ids(tokenizer),
        word_starts(tokenizer),
        special_flags(tokenizer),
        manifest["checksum"],
    )


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest of a prepared corpus, checked.

    Parameters
    ----------
    folder : Path
        Folder of the corpus.

    Returns
    -------
    dict
        Its fields.

    Raises
    ------
    DataError
        When there is none, it is damaged, or another version wrote it.
    """
    file = folder / MANIFEST
    if not file.is_file():
        raise DataError(
            f"data must be a folder with a {MANIFEST}, got {folder}. Make one with "
            "`mpobert prepare TEXT -o FOLDER`; an interrupted one goes on when it is run again."
        )
    try:
        manifest: Any = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError, OSError) as error:
        raise DataError(f"{file} must be JSON, got: {error}. Prepare the text again.") from error
    given = manifest if isinstance(manifest, dict) else {}
    if given.get("format") != FORMAT or given.get("version") != VERSION:
        raise DataError(
            f"{file} must be of the format {FORMAT!r}, version {VERSION}, got "
            f"{given.get('format')!r}, version {given.get('version')!r}. Prepare the text again."
        )
    if not all(name in manifest for name in _FIELDS):
        raise DataError(f"{file} is damaged. Prepare the text again.")
    sizes = [manifest[name] for name in ("tokens", "sentences", "documents")]
    entries = manifest["files"]
    if (
        manifest["dtype"] not in _TOKEN_TYPES
        or not all(type(size) is int and size >= 0 for size in sizes)
        or not isinstance(manifest["checksum"], str)
        or not isinstance(entries, dict)
        or not {TOKENS, SENTENCES, DOCUMENTS, TOKENIZER} <= set(entries)
    ):
        raise DataError(f"{file} is damaged. Prepare the text again.")
    return dict(manifest)


def _check_file(path: Path, entry: Any, verify: bool) -> None:
    if not isinstance(entry, dict) or not path.is_file():
        raise DataError(f"{path} is missing from the prepared corpus. Prepare the text again.")
    size = path.stat().st_size
    if size != entry.get("bytes"):
        raise DataError(
            f"{path} must have {entry.get('bytes')} bytes, got {size}. Copy it again, or prepare "
            "the text again."
        )
    if verify and sha256_of(path) != entry.get("sha256"):
        raise DataError(f"{path} has another checksum than its manifest says. Copy it again.")


def _mapped(path: Path, dtype: str, length: int) -> NDArray[Any]:
    kind = np.dtype(dtype).newbyteorder("<")
    if path.stat().st_size != length * kind.itemsize:
        raise DataError(
            f"{path} must hold {length} numbers of {kind.itemsize} bytes, got "
            f"{path.stat().st_size} bytes. Prepare the text again."
        )
    # A map of nothing is an error for the system.
    return np.memmap(path, kind, mode="r") if length else np.zeros(0, kind)
