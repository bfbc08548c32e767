"""Documents from text files, folders, compressed files, JSON lines or any iterable."""

from __future__ import annotations

import gzip
import json
import logging
import lzma
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeAlias

from mpobert_plugin.errors import DataError, counted, shorten

if TYPE_CHECKING:
    import os

Paragraphs: TypeAlias = list[str]
Source: TypeAlias = "str | os.PathLike[str] | Iterable[str | Mapping[str, object]]"

SEPARATORS = ("blank_line", "file")
_OPENERS: dict[str, Callable[..., Any]] = {".xz": lzma.open, ".gz": gzip.open}
_LINES = (".jsonl", ".ndjson")
_KNOWN = (".txt", ".text", ".md", *_LINES)
_ENDINGS = f"{', '.join(_KNOWN)} (also with {' or '.join(_OPENERS)} behind it)"
_log = logging.getLogger("mpobert_plugin.train")


@dataclass(frozen=True)
class Reading:
    """How files become documents.

    Parameters
    ----------
    separator : str
        'blank_line': an empty line ends a document; 'file': each file is one document.
    field : str
        Field of a JSON line, or of a record of a data set, that holds the text.
    """

    separator: str = "blank_line"
    field: str = "text"

    def __post_init__(self) -> None:
        if self.separator not in SEPARATORS:
            raise DataError(
                f"separator must be {' or '.join(map(repr, SEPARATORS))}, got {self.separator!r}."
            )


def text_files(
    sources: Iterable[str | os.PathLike[str]], say: Callable[[str], None] = _log.info
) -> list[Path]:
    """Return the files that some paths stand for, those of a folder in the order of their names.

    Parameters
    ----------
    sources : iterable of path
        Files, or folders that are searched for .txt, .text, .md, .jsonl and .ndjson files, with
        .xz or .gz behind it or not.
    say : callable
        Called with a line for each folder that has files of other kinds, which are left out.

    Returns
    -------
    list of Path
        Each file once.

    Raises
    ------
    DataError
        When a path does not exist or is a file of another kind, or nothing is found.
    """
    found: dict[Path, None] = {}
    for source in sources:
        path = Path(source)
        if path.is_dir():
            found |= dict.fromkeys(_inside(path, say))
        elif not path.is_file():
            raise DataError(f"sources must be existing files or folders, got {path}.")
        elif not has_text_suffix(path):
            raise DataError(
                f"sources must be files that end in {_ENDINGS}, got {path}. Give plain text the "
                "ending .txt; of tables and pages make lines of JSON with the text in a field, "
                "and a file that ends in .jsonl."
            )
        else:
            found[path] = None
    if not found:
        raise DataError("sources must name at least one file or folder, got none.")
    return list(found)


def _inside(folder: Path, say: Callable[[str], None]) -> list[Path]:
    entries = sorted(entry for entry in folder.rglob("*") if entry.is_file())
    texts = [entry for entry in entries if _is_text(entry)]
    others = [entry for entry in entries if not _is_text(entry) and not _is_hidden(entry, folder)]
    kinds = Counter(_kind(entry) for entry in others).most_common()
    named = shorten((f"{count} {kind}" for kind, count in kinds), 6)
    if not texts:
        has = f", which has {named}" if named else ""
        raise DataError(
            f"sources must hold text, got the folder {folder} without files that end in "
            f"{_ENDINGS}{has}."
        )
    if others:
        total = counted(len(others), "file")
        say(f"Left out of {folder}: {total} of other kinds than text ({named}).")
    return texts


def _is_hidden(path: Path, folder: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(folder).parts)


def _unpacked(path: Path) -> Path:
    """Return a name without the ending of a compression."""
    return path.with_suffix("") if path.suffix.lower() in _OPENERS else path


def _kind(path: Path) -> str:
    inner = _unpacked(path)
    # As in corpus.csv.gz; without the inner one it says what it is by itself.
    ending = inner.suffix + path.suffix if inner is not path else path.suffix
    return ending.lower() or "without an ending"


def documents(source: Source, reading: Reading) -> Iterator[Paragraphs]:
    """Yield the documents of a file, or of an iterable of texts or records.

    Parameters
    ----------
    source : path or iterable
        A file, or texts and records one after the other, as a data set of ``datasets`` gives.
    reading : Reading
        How they become documents.

    Yields
    ------
    list of str
        Paragraphs of a document, none of them empty; documents without text are left out.

    Raises
    ------
    DataError
        When a file cannot be read or is no UTF-8 text, or a record has no text.
    """
    if isinstance(source, str | Path) or hasattr(source, "__fspath__"):
        yield from _of_file(Path(source), reading)  # type: ignore[arg-type]
        return
    for number, record in enumerate(source):
        paragraphs = _lines(_text(record, reading.field, f"record {number}"))
        if paragraphs:
            yield paragraphs


def lines_of(path: Path, field: str = "text") -> Iterator[str]:
    """Yield the lines of a file of text that are not empty; no more is read than is asked for.

    Parameters
    ----------
    path : Path
        A text file or one of JSON lines, with .xz or .gz behind its name or not.
    field : str
        Field of a JSON line that holds the text.

    Yields
    ------
    str
        A line without the space around it.

    Raises
    ------
    DataError
        When the file cannot be read or is no UTF-8 text, or a record has no text.
    """
    with _opened(path) as lines:
        if _is_json(path):
            for paragraphs in _of_json(path, lines, field):
                yield from paragraphs
        else:
            yield from filter(None, map(str.strip, lines))


def _is_json(path: Path) -> bool:
    inner = _unpacked(path)
    return inner.suffix.lower() in _LINES


def _of_file(path: Path, reading: Reading) -> Iterator[Paragraphs]:
    with _opened(path) as lines:
        if _is_json(path):
            yield from _of_json(path, lines, reading.field)
        else:
            yield from _of_text(lines, reading.separator == "file")


def _of_json(path: Path, lines: IO[str], field: str) -> Iterator[Paragraphs]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"line {number} of {path} must be JSON, got {error}.") from error
        paragraphs = _lines(_text(record, field, f"line {number} of {path}"))
        if paragraphs:
            yield paragraphs


def _of_text(lines: Iterable[str], whole: bool) -> Iterator[Paragraphs]:
    paragraphs: Paragraphs = []
    for line in lines:
        text = line.strip()
        if text:
            paragraphs.append(text)
        elif paragraphs and not whole:
            yield paragraphs
            paragraphs = []
    if paragraphs:
        yield paragraphs


def _text(record: object, field: str, where: str) -> str:
    if isinstance(record, str):
        return record
    if not isinstance(record, Mapping) or not isinstance(record.get(field), str):
        names = sorted(map(str, record)) if isinstance(record, Mapping) else type(record).__name__
        raise DataError(
            f"{where} must have its text in the field {field!r}, got {names}. "
            "Name the field with field=."
        )
    return str(record[field])


def _lines(text: str) -> Paragraphs:
    # JSON can hold half of a pair of code units, which no tokenizer takes.
    text = text.encode("utf-8", "replace").decode("utf-8")
    return [line.strip() for line in text.splitlines() if line.strip()]


def has_text_suffix(path: Path) -> bool:
    """Return whether a file is one of text by its name.

    Parameters
    ----------
    path : Path
        Any name.

    Returns
    -------
    bool
        True for names such as 'a.txt' and 'b.jsonl.xz'.

    Examples
    --------
    >>> has_text_suffix(Path("a.txt.gz")), has_text_suffix(Path("a.png"))
    (True, False)
    """
    inner = _unpacked(path)
    return inner.suffix.lower() in _KNOWN


def _is_text(path: Path) -> bool:
    return has_text_suffix(path) and not path.name.startswith(".")


@contextmanager
def _opened(path: Path) -> Iterator[IO[str]]:
    opener = _OPENERS.get(path.suffix.lower(), open)
    try:
        # A mark at the start of a file is no text.
        with opener(path, "rt", encoding="utf-8-sig", newline=None) as lines:
            yield lines
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path} must be UTF-8 text, got bytes that are none ({error.reason} at byte "
            f"{error.start} of a block). Convert it, for example with iconv."
        ) from error
    except (OSError, EOFError, lzma.LZMAError) as error:
        raise DataError(f"{path} must be a readable text file, got: {error}.") from error
