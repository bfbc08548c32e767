"""Text becomes a prepared corpus: chunks in parallel, kept as they are done, joined at the end."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from mpobert_plugin.errors import DataError
from mpobert_plugin.train.aside import clear_leftovers, sha256_of, write_json, written_aside
from mpobert_plugin.train.data import store
from mpobert_plugin.train.data.encoded import is_done, read_part, seal_of, work
from mpobert_plugin.train.data.out_folder import PARTS, check_out
from mpobert_plugin.train.data.store import Corpus, open_corpus
from mpobert_plugin.train.data.texts import (
    Paragraphs,
    Reading,
    documents,
    has_text_suffix,
    text_files,
)
from mpobert_plugin.train.data.vocabulary import load_tokenizer, special_ids, train_tokenizer
from mpobert_plugin.train.data.workers import begin_work
from mpobert_plugin.train.lock import held

_log = logging.getLogger("mpobert_plugin.train")
# Chunks depend on the text alone, so that any number of workers gives the same files.
CHUNK = 1 << 20
# More text adds little to a vocabulary and much to the time.
_TRAINING_CHARACTERS = 200_000_000


@dataclass(frozen=True)
class Vocabulary:
    """Which tokenizer a corpus gets.

    Parameters
    ----------
    path : path, optional
        A ``tokenizer.json`` or a folder with one; a new one is trained when None.
    kind : str
        'wordpiece' or 'unigram', for a new one.
    size : int
        Number of tokens at most, for a new one.
    lowercase : bool
        Whether a new one takes the case from letters.
    """

    path: str | os.PathLike[str] | None = None
    kind: str = "wordpiece"
    size: int = 30_000
    lowercase: bool = True


@dataclass
class _Job:
    """What is going on: chunks so far, and what is told of them."""

    folder: Path
    tokenizer: Path
    seal: str
    report: Callable[[int], None]
    parts: list[Path] = field(default_factory=list)


def prepare(
    sources: Any,
    out: str | os.PathLike[str],
    vocabulary: Vocabulary | None = None,
    reading: Reading | None = None,
    *,
    workers: int = 1,
    overwrite: bool = False,
    progress: Callable[[int], None] | None = None,
    say: Callable[[str], None] = _log.info,
) -> Corpus:
    """Return the prepared corpus of some texts, after writing it to a folder.

    The same text, tokenizer and reading give the same bytes, whatever the number of workers. When
    it is interrupted, the same call goes on with the chunk that was not done.

    Parameters
    ----------
    sources : path, list of paths, or iterable
        Text files or folders; or texts, or records with a text, such as a data set of
        ``datasets``.
    out : path
        Folder to write, made when it does not exist.
    vocabulary : Vocabulary, optional
        The tokenizer; a new one of 30,000 word pieces by default.
    reading : Reading, optional
        How files become documents.
    workers : int
        Number of processes. With more than one, the calling script needs the usual guard
        ``if __name__ == "__main__":``.
    overwrite : bool
        Replace a corpus that is there already. Other things are never replaced.
    progress : callable, optional
        Called with the number of characters of each chunk that is done.
    say : callable
        Called with lines for people, such as how many files of a folder are of other kinds; they
        go to the log of the library by default.

    Returns
    -------
    Corpus
        Opened.

    Raises
    ------
    DataError
        When an option is impossible, a source cannot be read or is of an unknown kind, there is no
        text, the folder holds a corpus already or other things, or the disk is full; finished
        chunks are kept then.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     text = ["One sentence. Another one.", "A second document."]
    ...     corpus = prepare(text, folder, Vocabulary(size=40))
    ...     print(len(corpus.documents) - 1, len(corpus.sentences) - 1)
    2 3
    """
    vocabulary, reading, folder = vocabulary or Vocabulary(), reading or Reading(), Path(out)
    if type(workers) is not int or workers < 1:
        raise DataError(f"workers must be an integer >= 1, got {workers!r}.")
    check_out(folder, overwrite)
    parts = _sources(sources, say)
    try:
        (folder / PARTS).mkdir(parents=True, exist_ok=True)
        with held(folder / PARTS, DataError):
            for place in (folder, folder / PARTS):
                clear_leftovers(place)
            tokenizer = _tokenizer(parts, folder, vocabulary, reading)
            job = _Job(folder / PARTS, tokenizer, sha256_of(tokenizer), progress or _nothing)
            _encode(parts, reading, job, workers)
            _join(folder, job, vocabulary, reading)
    except OSError as error:
        raise DataError(
            f"{folder} must be a folder that can be written, got: {error}. What is done is kept; "
            "run it again when there is room."
        ) from error
    shutil.rmtree(folder / PARTS, ignore_errors=True)
    return open_corpus(folder)


def _nothing(_characters: int) -> None:
    """Tell nobody."""


def _sources(given: Any, say: Callable[[str], None]) -> list[Any]:
    if isinstance(given, str | Path) or hasattr(given, "__fspath__"):
        return list(text_files([given], say))
    if isinstance(given, list | tuple) and given and all(_is_path(entry) for entry in given):
        return list(text_files(given, say))
    if not isinstance(given, Iterable):
        raise DataError(f"sources must be paths or an iterable of texts, got {given!r}.")
    if iter(given) is given:
        raise DataError(
            "sources must be something that can be read twice, such as a list or a data set, got "
            f"a {type(given).__name__}, which can be read once."
        )
    return [given]


def _is_path(entry: object) -> bool:
    """Tell a list of file names from a list of texts.

    Names are paths by type, exist, or are one word that ends as text files do: a misspelt one is
    to be an error and no text.
    """
    if isinstance(entry, str):
        if not 0 < len(entry) < 4096 or "\n" in entry:
            return False
        return Path(entry).exists() or (not entry.split()[1:] and has_text_suffix(Path(entry)))
    return hasattr(entry, "__fspath__")


def _all_documents(sources: list[Any], reading: Reading) -> Iterator[Paragraphs]:
    for source in sources:
        yield from documents(source, reading)


def _tokenizer(sources: list[Any], folder: Path, vocabulary: Vocabulary, reading: Reading) -> Path:
    """Write the tokenizer beside the parts, where a trained one is found when the work goes on."""
    target, record = (folder / PARTS / name for name in (store.TOKENIZER, "vocabulary.json"))
    if vocabulary.path is not None:
        tokenizer = load_tokenizer(vocabulary.path)
    else:
        seal = _training_seal(sources, vocabulary, reading)
        if target.is_file() and record.is_file() and seal in record.read_text(encoding="utf-8"):
            return target
        tokenizer = train_tokenizer(
            _limited(sources, reading), vocabulary.kind, vocabulary.size, vocabulary.lowercase
        )
    special_ids(tokenizer)  # says which one is missing, before hours of work
    with written_aside(target) as file:
        file.write(tokenizer.to_str().encode())
    if vocabulary.path is None:
        write_json(record, {"seal": seal})
    return target


def _training_seal(sources: list[Any], vocabulary: Vocabulary, reading: Reading) -> str:
    total = hashlib.sha256(repr((vocabulary, reading)).encode())
    for text in _limited(sources, reading):
        total.update(text.encode() + b"\n")
    return total.hexdigest()


def _limited(sources: list[Any], reading: Reading) -> Iterator[str]:
    left = _TRAINING_CHARACTERS
    for paragraphs in _all_documents(sources, reading):
        yield from paragraphs
        left -= sum(map(len, paragraphs))
        if left < 0:
            return


def _chunks(found: Iterator[Paragraphs]) -> Iterator[tuple[list[Paragraphs], int]]:
    chunk: list[Paragraphs] = []
    size = 0
    for paragraphs in found:
        chunk.append(paragraphs)
        size += sum(map(len, paragraphs))
        if size >= CHUNK:
            yield chunk, size
            chunk, size = [], 0
    if chunk:
        yield chunk, size


def _encode(sources: list[Any], reading: Reading, job: _Job, workers: int) -> None:
    todo = _todo(_chunks(_all_documents(sources, reading)), job)
    if workers == 1:
        for arguments, size in todo:
            work(*arguments)
            job.report(size)
    else:
        _in_processes(todo, job, workers)
    if not job.parts:
        raise DataError("sources must hold text, got none. Look at the files and the separator.")


def _todo(
    chunks: Iterator[tuple[list[Paragraphs], int]], job: _Job
) -> Iterator[tuple[tuple[list[Paragraphs], str, str, str, str], int]]:
    for number, (chunk, size) in enumerate(chunks):
        target, seal = job.folder / f"{number:08d}.safetensors", seal_of(chunk, job.seal)
        job.parts.append(target)
        if is_done(target, seal):
            job.report(size)
        else:
            yield (chunk, seal, str(target), str(job.tokenizer), job.seal), size


def _in_processes(todo: Iterator[tuple[Any, int]], job: _Job, workers: int) -> None:
    # Started afresh: a fork of a process with threads, as torch and tokenizers have, may hang.
    pool = ProcessPoolExecutor(workers, get_context("spawn"), begin_work)
    running: dict[Future[int], int] = {}
    try:
        # Few at a time, so that memory stays at some chunks whatever the size of the text.
        for arguments, size in islice(todo, 2 * workers):
            running[pool.submit(work, *arguments)] = size
        while running:
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                future.result()
                job.report(running.pop(future))
                for arguments, size in islice(todo, 1):
                    running[pool.submit(work, *arguments)] = size
    except BrokenProcessPool as error:
        raise DataError(
            "a worker process ended by itself, perhaps for lack of memory. Run it again with fewer "
            "workers; what is done is kept."
        ) from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _join(folder: Path, job: _Job, vocabulary: Vocabulary, reading: Reading) -> None:
    # By the largest id, for a vocabulary may have gaps.
    largest = max(load_tokenizer(job.tokenizer).get_vocab().values())
    dtype = "uint16" if largest < 1 << 16 else "uint32"
    kind = np.dtype(dtype).newbyteorder("<")
    counts = {"tokens": 0, "sentences": 0, "documents": 0}
    with (
        written_aside(folder / store.TOKENIZER) as tokenizer,
        written_aside(folder / store.TOKENS) as tokens,
        written_aside(folder / store.SENTENCES) as sentences,
        written_aside(folder / store.DOCUMENTS) as found,
    ):
        tokenizer.write(job.tokenizer.read_bytes())
        sentences.write(np.zeros(1, "<i8").tobytes())
        found.write(np.zeros(1, "<i8").tobytes())
        for target in job.parts:
            part = read_part(target)
            tokens.write(part.tokens.astype(kind).tobytes())
            ends = counts["tokens"] + np.cumsum(part.sentence_lengths)
            sentences.write(ends.astype("<i8").tobytes())
            limits = counts["sentences"] + np.cumsum(part.document_lengths)
            found.write(limits.astype("<i8").tobytes())
            counts["tokens"] += len(part.tokens)
            counts["sentences"] += len(part.sentence_lengths)
            counts["documents"] += len(part.document_lengths)
        for file in (tokenizer, tokens, sentences, found):
            file.flush()
            os.fsync(file.fileno())
        # Once all is on the disk: a corpus that is being replaced is none from here on, until its
        # manifest is there again.
        (folder / store.MANIFEST).unlink(missing_ok=True)
    write_json(folder / store.MANIFEST, _manifest(folder, dtype, counts, vocabulary, reading))


def _manifest(
    folder: Path, dtype: str, counts: dict[str, int], vocabulary: Vocabulary, reading: Reading
) -> dict[str, Any]:
    names = (store.TOKENS, store.SENTENCES, store.DOCUMENTS, store.TOKENIZER)
    sums = {name: sha256_of(folder / name) for name in names}
    files = {
        name: {"bytes": (folder / name).stat().st_size, "sha256": sums[name]} for name in names
    }
    together = "".join(sums.values())
    options: dict[str, Any] = {"separator": reading.separator, "field": reading.field}
    if vocabulary.path is None:
        options |= {
            "tokenizer": vocabulary.kind,
            "vocab_size": vocabulary.size,
            "lowercase": vocabulary.lowercase,
        }
    return {
        "format": store.FORMAT,
        "version": store.VERSION,
        "dtype": dtype,
        **counts,
        "checksum": hashlib.sha256(together.encode()).hexdigest(),
        "files": files,
        "options": options,
    }
