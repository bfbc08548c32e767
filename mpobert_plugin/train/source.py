"""The model that a run starts from: a preset, a deepened ALBERT, a folder, or another run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import transformers

from mpobert_plugin.errors import CheckpointError, ConfigError, close_to, shorten
from mpobert_plugin.init.albert import from_albert
from mpobert_plugin.presets import PRESETS, SMALL_PRESETS, build
from mpobert_plugin.train.checkpoint import SEAL, Checkpoints, read_checkpoint
from mpobert_plugin.train.data.vocabulary import load_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from mpobert_plugin.train.data.store import Corpus

KINDS = ("preset", "folder", "from_albert")
# Matrix products are fastest when their sizes are multiples of this.
_STEP = 64


def start_model(given: Any, corpus: Corpus, length: int, seed: int = 0) -> PreTrainedModel:
    """Return the model that a description asks for.

    Parameters
    ----------
    given : str or mapping
        Name of a preset, or a folder; or a mapping with one of 'preset' (and options of
        `mpobert_plugin.build`), 'folder', and 'from_albert' (a folder, and options of
        `mpobert_plugin.from_albert`). A folder is one that ``from_pretrained`` loads, plain or
        converted, a checkpoint of another run, or another run, whose last checkpoint is taken.
    corpus : Corpus
        The text; a preset gets its vocabulary unless ``vocab_size`` is given.
    length : int
        Tokens of a sample; a preset gets as many positions at least.
    seed : int
        Seed of fresh weights.

    Returns
    -------
    transformers.PreTrainedModel
        With a head for pre-training.

    Raises
    ------
    ConfigError
        When the description is none of these.
    CheckpointError
        When a folder has no model, or is a damaged checkpoint.
    """
    options = _options(given)
    kinds = [kind for kind in KINDS if kind in options]
    if len(kinds) != 1:
        hints = "" if kinds else "".join(close_to(name, KINDS) for name in options)
        raise ConfigError(
            f"model must have one of {', '.join(KINDS)}, got {', '.join(kinds) or 'none'} of "
            f"{', '.join(options) or 'nothing'}.{hints}"
        )
    name = options.pop(kinds[0])
    torch.manual_seed(seed)
    if kinds[0] == "preset":
        vocabulary = -(-corpus.vocab_size // _STEP) * _STEP
        sizes = {"vocab_size": vocabulary, "max_position_embeddings": max(512, length)}
        return build(name, **{**sizes, **options})
    folder = _folder(name)
    _check_tokenizer(folder, corpus)
    model = _loaded(folder)
    if kinds[0] == "from_albert":
        if "num_layers" not in options:
            raise ConfigError("a model from_albert must have num_layers, got none.")
        return from_albert(model, **options)
    if options:
        raise ConfigError(f"a model from a folder takes no options, got {', '.join(options)}.")
    return model


def _options(given: Any) -> dict[str, Any]:
    if isinstance(given, str):
        known = [*PRESETS, *SMALL_PRESETS]
        if given in known:
            return {"preset": given}
        if Path(given).is_dir():
            return {"folder": given}
        raise ConfigError(
            f"model must be a preset ({', '.join(known)}) or a folder, got {given!r}."
            f"{close_to(given, known)}"
        )
    if not isinstance(given, Mapping):
        raise ConfigError(f"model must be a name or a mapping, got {given!r}.")
    return {str(name): value for name, value in given.items()}


def _folder(given: Any) -> Path:
    """Return the folder of a model; checkpoints of runs are compared with their checksums."""
    path = Path(str(given))
    root = path / "checkpoints"
    if root.is_dir():
        damaged: list[str] = []
        newest = Checkpoints(root, 1, damaged.append).newest()
        if newest is None:
            raise CheckpointError(
                f"model must be a run with a checkpoint, got {given}. {' '.join(damaged)}".rstrip()
            )
        return newest.folder
    if (path / SEAL).is_file():
        read_checkpoint(path)
    if not (path / "config.json").is_file():
        raise CheckpointError(f"model must be a folder with a config.json, got {given}.")
    return path


def _check_tokenizer(folder: Path, corpus: Corpus) -> None:
    """Refuse a model that knows the numbers of the text by other words, where it can be seen."""
    if not (folder / "tokenizer.json").is_file():
        return
    theirs, ours = load_tokenizer(folder).get_vocab(), load_tokenizer(corpus.folder).get_vocab()
    other = [word for word, number in ours.items() if theirs.get(word) != number]
    if other:
        raise ConfigError(
            f"the model must know the tokens of the text, got {len(other)} of {len(ours)} that "
            f"have another number in {folder}: {shorten(map(repr, other), 3)}. Prepare the text "
            f"with --tokenizer {folder}."
        )


def _loaded(path: Path) -> PreTrainedModel:
    try:
        config = transformers.AutoConfig.from_pretrained(path)
        kind = (config.architectures or [""])[0]
        found = getattr(transformers, kind, transformers.AutoModelForPreTraining)
        return found.from_pretrained(path, config=config, dtype=torch.float32)  # type: ignore[no-any-return]
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} must hold a model, got: {error}") from error
