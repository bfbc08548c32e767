"""The model that a run starts from: a preset, a deepened ALBERT, or a saved folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import transformers

from mpobert_plugin.errors import CheckpointError, ConfigError, did_you_mean
from mpobert_plugin.init.albert import from_albert
from mpobert_plugin.presets import PRESETS, build

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
        `mpobert_plugin.from_albert`).
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
        When a folder has no model.
    """
    options = _options(given)
    kinds = [kind for kind in KINDS if kind in options]
    if len(kinds) != 1:
        raise ConfigError(
            f"model must have one of {', '.join(KINDS)}, got {', '.join(kinds) or 'none'} of "
            f"{', '.join(options) or 'nothing'}."
        )
    name = options.pop(kinds[0])
    torch.manual_seed(seed)
    if kinds[0] == "preset":
        vocabulary = -(-corpus.vocab_size // _STEP) * _STEP
        sizes = {"vocab_size": vocabulary, "max_position_embeddings": max(512, length)}
        return build(name, **{**sizes, **options})
    model = _loaded(name)
    if kinds[0] == "from_albert":
        return from_albert(model, **options)
    if options:
        raise ConfigError(f"a model from a folder takes no options, got {', '.join(options)}.")
    return model


def _options(given: Any) -> dict[str, Any]:
    if isinstance(given, str):
        if given in PRESETS:
            return {"preset": given}
        if Path(given).is_dir():
            return {"folder": given}
        raise ConfigError(
            f"model must be a preset ({', '.join(PRESETS)}) or a folder, got {given!r}. "
            f"{did_you_mean(given, list(PRESETS))}"
        )
    if not isinstance(given, Mapping):
        raise ConfigError(f"model must be a name or a mapping, got {given!r}.")
    return {str(name): value for name, value in given.items()}


def _loaded(folder: Any) -> PreTrainedModel:
    path = Path(str(folder))
    if not (path / "config.json").is_file():
        raise CheckpointError(f"model must be a folder with a config.json, got {folder}.")
    try:
        config = transformers.AutoConfig.from_pretrained(path)
        kind = (config.architectures or [""])[0]
        found = getattr(transformers, kind, transformers.AutoModelForPreTraining)
        return found.from_pretrained(path, config=config, dtype=torch.float32)  # type: ignore[no-any-return]
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{folder} must hold a model, got: {error}") from error
