"""Folders of models: read without network or code of strangers, written whole or not at all."""

from __future__ import annotations

import secrets
import shutil
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from mpobert_plugin.demo.quiet import quiet_transformers
from mpobert_plugin.errors import CheckpointError, ConfigError, MPOBertWarning, shorten

if TYPE_CHECKING:
    from transformers import PreTrainedModel

CONFIG = "config.json"
# What a tokenizer or a processor of inputs consists of; a converted model needs the same.
COMPANIONS = (
    "added_tokens.json",
    "chat_template.jinja",
    "merges.txt",
    "preprocessor_config.json",
    "sentencepiece.bpe.model",
    "special_tokens_map.json",
    "spiece.model",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
    "vocab.txt",
)
# What else models are saved as.
_WRITTEN = (
    "*.safetensors",
    "*.safetensors.index.json",
    "pytorch_model*.bin",
    "pytorch_model.bin.index.json",
    "generation_config.json",
    "adapter_config.json",
    "processor_config.json",
    "README.md",
)
# Those of them that hold words; a tokenizer has at least one.
VOCABULARIES = (
    "sentencepiece.bpe.model",
    "spiece.model",
    "tokenizer.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
)


def load(folder: Path) -> PreTrainedModel:
    """Return the model of a folder, of the class that its config.json names.

    Parameters
    ----------
    folder : pathlib.Path
        What ``save_pretrained`` wrote. Nothing is downloaded, and no code of the folder runs.

    Returns
    -------
    transformers.PreTrainedModel
        In evaluation mode and in its own element type.

    Raises
    ------
    CheckpointError
        When the folder holds no model, or a damaged one.
    """
    from safetensors import SafetensorError

    if not folder.is_dir():
        raise CheckpointError(f"{folder} must be a folder that save_pretrained wrote, got none.")
    if (folder / "checkpoints").is_dir():
        raise CheckpointError(
            f"{folder} must be a folder that save_pretrained wrote, got that of a run. Give one of "
            f"its checkpoints, {folder / 'checkpoints' / 'step-...'}."
        )
    if not (folder / CONFIG).is_file():
        raise CheckpointError(
            f"{folder} must be a folder that save_pretrained wrote, got one without {CONFIG}."
        )
    try:
        with quiet_transformers():
            return _load(str(folder))
    except CheckpointError:
        raise
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        reason = " ".join(str(error).split())
        raise CheckpointError(f"{folder} cannot be loaded: {reason}") from error


def _load(folder: str) -> PreTrainedModel:
    import transformers

    config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
    names = list(config.architectures or [])
    kind: Any = getattr(transformers, names[0], None) if len(names) == 1 else None
    if not isinstance(kind, type) or not issubclass(kind, transformers.PreTrainedModel):
        raise CheckpointError(
            f"architectures in {folder}/{CONFIG} must name one class of transformers, got {names}."
        )
    # What this returns depends on its options, in ways that its types do not tell.
    read: Any = kind.from_pretrained
    model, info = read(folder, local_files_only=True, dtype="auto", output_loading_info=True)
    # The library says itself what a converted model lacks.
    if not hasattr(model.config, "quantization_config"):
        _tell(info["missing_keys"], "the folder does not have start at random")
    _tell(info["unexpected_keys"], f"a {names[0]} does not have are left out")
    model.eval()
    return cast("PreTrainedModel", model)


def _tell(names: Iterable[str], fate: str) -> None:
    listed = sorted(names)
    if listed:
        warnings.warn(
            f"{len(listed)} tensors that {fate}: {shorten(listed)}.", MPOBertWarning, stacklevel=4
        )


def check_target(out: Path, source: Path, force: bool) -> None:
    """Refuse a place where a model must not be written, before anything is computed.

    Parameters
    ----------
    out : pathlib.Path
        Where the result is to be.
    source : pathlib.Path
        Folder of the model that is read.
    force : bool
        Whether a model that is there may be replaced.

    Raises
    ------
    ConfigError
        When something is there that may not be replaced.
    """
    here, there = source.resolve(), out.resolve()
    if here == there or there in here.parents:
        raise ConfigError(f"--out must be another folder than {source}, got {out}.")
    file = next((place for place in out.parents if place.exists() and not place.is_dir()), None)
    if file is not None:
        raise ConfigError(f"--out must lie in a folder, got {out} in the file {file}.")
    if not out.exists():
        return
    if not out.is_dir():
        raise ConfigError(f"--out must be a folder, got the file {out}.")
    if not any(out.iterdir()):
        return
    if not (out / CONFIG).is_file():
        raise ConfigError(
            f"--out must be a new folder or one with a model, got {out} with other files."
        )
    if not force:
        raise ConfigError(f"{out} holds a model already. Name another folder, or pass --force.")
    if foreign := sorted(path.name for path in out.iterdir() if not _of_model(path)):
        raise ConfigError(
            f"--out must hold nothing but a model where --force replaces it, got {out} with "
            f"{shorten(foreign, 4)}. Move that away, or name another folder. Nothing was changed."
        )


def _of_model(path: Path) -> bool:
    """Return whether a path is a file that `save_pretrained` writes, or one beside it."""
    known = path.name in (CONFIG, *COMPANIONS) or any(path.match(one) for one in _WRITTEN)
    return known and path.is_file()


@contextmanager
def written(out: Path) -> Iterator[Path]:
    """Return a context with an empty folder that takes the name `out` when all is well.

    Parameters
    ----------
    out : pathlib.Path
        The final name; what `check_target` let pass is replaced at the end.

    Yields
    ------
    pathlib.Path
        A folder beside `out`.

    Raises
    ------
    OSError
        When the operating system refuses; nothing is left behind then.
    """
    mark = secrets.token_hex(4)
    aside, old = (out.parent / f".{out.name}.{mark}.{end}" for end in ("tmp", "old"))
    aside.mkdir(parents=True)
    try:
        yield aside
        if out.exists():
            out.replace(old)
        aside.replace(out)
    finally:
        # Whatever ended it, an error or Ctrl-C: the former folder comes back.
        if old.exists() and not out.exists():
            old.replace(out)
        shutil.rmtree(aside, ignore_errors=True)
    shutil.rmtree(old, ignore_errors=True)


def save(model: PreTrainedModel, source: Path, out: Path) -> list[str]:
    """Write a model and its tokenizer's files as a folder; return the names of those files.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        The model.
    source : pathlib.Path
        Folder with the files of the tokenizer.
    out : pathlib.Path
        The folder to write.

    Returns
    -------
    list of str
        Names of the files that were copied.

    Raises
    ------
    OSError
        When the operating system refuses.
    """
    copied = [name for name in COMPANIONS if (source / name).is_file()]
    with written(out) as aside:
        with quiet_transformers():
            model.save_pretrained(aside)
        for name in copied:
            shutil.copyfile(source / name, aside / name)
    return copied
