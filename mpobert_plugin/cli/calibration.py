"""Batches of a calibration from a file of text: its lines, in the tokens of the model's folder."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from mpobert_plugin.cli.folders import VOCABULARIES
from mpobert_plugin.demo.quiet import quiet_transformers
from mpobert_plugin.errors import CheckpointError, ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from torch import Tensor
    from transformers import PreTrainedModel

# Lines of that length are several times as many positions as BERT's largest matrix has columns.
LINES, BATCH, LENGTH = 256, 8, 128
# What a tokenizer raises over files that are damaged.
_REFUSALS = (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, ImportError)


@dataclass(frozen=True)
class Excerpt:
    """The first lines of a file of text, and how they become batches.

    Parameters
    ----------
    path : pathlib.Path
        The file.
    lines : tuple of str
        Lines with text, at least one.
    batch : int
        Lines of a batch.
    length : int or None
        Tokens of a line at most; None for what the model takes, 128 at most.
    """

    path: Path
    lines: tuple[str, ...]
    batch: int
    length: int | None


def read_excerpt(
    path: Path | None, lines: int | None, batch: int | None, length: int | None
) -> Excerpt | None:
    """Return the first lines of a file of text.

    Parameters
    ----------
    path : pathlib.Path or None
        A text file or JSON lines, with .xz or .gz behind its name or not.
    lines, batch, length : int or None
        Lines to read, lines of a batch, and tokens of a line at most; the defaults when None.

    Returns
    -------
    Excerpt or None
        None without a file.

    Raises
    ------
    ConfigError
        When there is no such file, nothing is in it, or a number is given without a file.
    DataError
        When it cannot be read or is no UTF-8 text.
    """
    from mpobert_plugin.train.data.texts import lines_of

    if path is None:
        for name, value in (("lines", lines), ("batch", batch), ("length", length)):
            if value is not None:
                raise ConfigError(
                    f"--calibration-{name} needs --calibration, got {value} without it. Name a "
                    "file of text."
                )
        return None
    # A pipe, as a shell makes for <(shuf corpus.txt), is no file but is read like one.
    if path.is_dir() or not path.exists():
        kind = "the folder" if path.is_dir() else "nothing at"
        raise ConfigError(f"--calibration must be a file of text, got {kind} {path}.")
    found = tuple(islice(lines_of(path), lines or LINES))
    if not found:
        raise ConfigError(f"--calibration must hold at least one line of text, got none in {path}.")
    return Excerpt(path, found, batch or BATCH, length)


def batches_of(excerpt: Excerpt, folder: Path, model: PreTrainedModel) -> list[dict[str, Tensor]]:
    """Return lines of text as batches that a model's forward takes.

    Parameters
    ----------
    excerpt : Excerpt
        The lines.
    folder : pathlib.Path
        The model's folder, with its tokenizer.
    model : transformers.PreTrainedModel
        The model.

    Returns
    -------
    list of dict of str to Tensor
        input_ids and attention_mask, (lines, tokens) each; padded to the longest line of a batch.

    Raises
    ------
    ConfigError
        When the folder has no tokenizer or one of another model, a line is to be longer than the
        model takes, or no token of the lines is known.
    CheckpointError
        When the tokenizer is damaged.
    """
    length = _length(excerpt.length, model)
    _check_vocabulary(folder)
    rows, special = _tokens(folder, excerpt.lines, length)
    _check_tokens(rows, special, excerpt, folder, model)
    padding = _padding(model)
    return [
        _batch(rows[start : start + excerpt.batch], padding)
        for start in range(0, len(rows), excerpt.batch)
    ]


def counts_of_batches(excerpt: Excerpt, batches: Sequence[dict[str, Tensor]]) -> dict[str, Any]:
    """Return what a calibration went over, as values that JSON can hold.

    Parameters
    ----------
    excerpt : Excerpt
        The lines.
    batches : sequence of dict of str to Tensor
        Their batches.

    Returns
    -------
    dict of str to object
        The file, and the numbers of lines and tokens.
    """
    masks = [batch["attention_mask"] for batch in batches]
    lines, tokens = (sum(len(m) for m in masks), sum(int(m.sum()) for m in masks))
    return {"file": str(excerpt.path), "lines": lines, "tokens": tokens}


def _check_vocabulary(folder: Path) -> None:
    # Without any of them transformers makes up a tokenizer that knows no word.
    if not any((folder / name).is_file() for name in VOCABULARIES):
        raise ConfigError(
            f"--calibration needs the model's tokenizer, got {folder} without any of "
            f"{', '.join(VOCABULARIES)}. Save it there: tokenizer.save_pretrained({str(folder)!r})."
        )


def _tokens(folder: Path, lines: Sequence[str], length: int) -> tuple[list[list[int]], set[int]]:
    """Return the tokens of each line that has any, and the special ones of the tokenizer."""
    from transformers import AutoTokenizer

    from mpobert_plugin.train.data.foreign import told

    damaged = f"the tokenizer in {folder} must be one that transformers can use"
    read: Any = AutoTokenizer.from_pretrained
    with quiet_transformers(), told(damaged):
        try:
            tokenizer = read(str(folder), local_files_only=True, trust_remote_code=False)
            rows = tokenizer(list(lines), truncation=True, max_length=length)["input_ids"]
        except _REFUSALS as error:
            reason = " ".join(str(error).split())
            raise CheckpointError(f"{damaged}, got {type(error).__name__}: {reason}.") from error
    return [row for row in rows if row], set(tokenizer.all_special_ids)


def _length(asked: int | None, model: PreTrainedModel) -> int:
    most = _positions(model)
    if asked is None:
        return LENGTH if most is None else min(LENGTH, most)
    if most is not None and asked > most:
        raise ConfigError(
            f"--calibration-length must be at most {most}, the positions of a "
            f"{type(model).__name__}, got {asked}."
        )
    return asked


def _positions(model: PreTrainedModel) -> int | None:
    most = getattr(model.config, "max_position_embeddings", None)
    if not isinstance(most, int) or most < 1:
        return None
    for name, module in model.named_modules():
        padding = getattr(module, "padding_idx", None)
        if name.endswith("position_embeddings") and padding is not None:
            # RoBERTa and its kin count positions from the number behind that of padding.
            return most - int(padding) - 1
    return most


def _check_tokens(
    rows: Sequence[Sequence[int]],
    special: set[int],
    excerpt: Excerpt,
    folder: Path,
    model: PreTrainedModel,
) -> None:
    """Refuse tokens of which none says anything, or that the model does not have."""
    tokens = {token for row in rows for token in row}
    if not tokens - special:
        raise ConfigError(
            f"--calibration must hold text that the tokenizer in {folder} knows, got "
            f"{len(excerpt.lines)} lines of {excerpt.path} without one known token."
        )
    size = getattr(model.config, "vocab_size", None)
    if isinstance(size, int) and max(tokens) >= size:
        raise ConfigError(
            f"the tokenizer in {folder} must be that of the model, which has {size} tokens, got "
            f"number {max(tokens)}. Save the right one there."
        )


def _padding(model: PreTrainedModel) -> int:
    """Return the model's number for padding, by which RoBERTa counts positions; else 0."""
    number = getattr(model.config, "pad_token_id", None)
    return number if isinstance(number, int) and number >= 0 else 0


def _batch(rows: Sequence[Sequence[int]], padding: int) -> dict[str, Tensor]:
    import torch

    ids = torch.full((len(rows), max(map(len, rows))), padding)
    mask = torch.zeros_like(ids)
    for number, row in enumerate(rows):
        ids[number, : len(row)] = torch.tensor(row)
        mask[number, : len(row)] = 1
    return {"input_ids": ids, "attention_mask": mask}
