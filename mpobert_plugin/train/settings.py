"""Settings of a pre-training run: one flat value, from YAML and words like ``lr=1e-3``."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from mpobert_plugin.errors import ConfigError, did_you_mean
from mpobert_plugin.options import check_integer, own_integer, own_number
from mpobert_plugin.train.data.masking import Masking
from mpobert_plugin.train.data.samples import Recipe
from mpobert_plugin.train.precision import Precision
from mpobert_plugin.train.schedule import Schedule

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

OPTIMIZERS = ("lamb", "adamw")
RECONSTRUCTIONS = ("auto", "per_step", "per_micro_batch")
GUARDS = ("stop", "rollback")


def _option(default: Any, text: str) -> Any:
    return field(default=default, metadata={"text": text})


@dataclass(frozen=True)
class PretrainConfig:
    """Everything that a run depends on but for the model, the text and the machine.

    Each field says in its metadata what it does; ``mpobert pretrain --options`` prints them.

    Raises
    ------
    ConfigError
        When a value is impossible; DataError for those of samples and masks.

    Examples
    --------
    >>> config = PretrainConfig(steps=100, batch_size=32, micro_batch=8)
    >>> PretrainConfig.from_dict(config.to_dict()) == config
    True
    """

    steps: int = _option(10_000, "Optimizer steps of the run.")
    batch_size: int = _option(4096, "Samples of an optimizer step, over all processes.")
    micro_batch: int = _option(32, "Samples that one process computes at a time.")
    length: int = _option(512, "Tokens of a sample, special ones included.")
    task: str = _option("sentence_order", "'sentence_order', or 'full' for masked tokens alone.")
    masking: str = _option("ngram", "'ngram', 'word' or 'token'.")
    mask_rate: float = _option(0.15, "Share of the tokens that are asked for.")
    masked_most: int = _option(77, "Tokens asked for in a sample at most.")
    shorter: float = _option(0.1, "Share of the samples that are cut to a random length.")
    seed: int = _option(0, "What every random choice depends on.")
    precision: str = _option("fp16", "'fp16', 'bf16', 'tf32' or 'fp32'.")
    loss_scale: float = _option(65536.0, "Loss scale at first, for fp16.")
    scale_interval: int = _option(2000, "Steps without overflow after which it is doubled.")
    optimizer: str = _option("lamb", "'lamb' or 'adamw'.")
    lr: float = _option(1.76e-3, "Largest learning rate.")
    lr_central: float = _option(1.0, "Factor of the rate of central tensors.")
    lr_auxiliary: float = _option(1.0, "Factor of the rate of auxiliary tensors.")
    lr_adapter: float = _option(1.0, "Factor of the rate of adapters.")
    lr_head: float = _option(1.0, "Factor of the rate of the heads.")
    schedule: str = _option("linear", "'linear', 'cosine' or 'constant', after the warm-up.")
    warmup_ratio: float = _option(0.1, "Share of the steps over which the rate rises from zero.")
    weight_decay: float = _option(0.01, "Decay of matrices and central tensors, decoupled.")
    beta1: float = _option(0.9, "Decay of the mean of the gradients.")
    beta2: float = _option(0.999, "Decay of the mean of their squares.")
    eps: float = _option(1e-6, "Number added to the root of the mean square.")
    clip: float = _option(1.0, "Largest norm of the whole gradient; 0 for no limit.")
    reconstruction: str = _option("auto", "'auto', 'per_step' or 'per_micro_batch'.")
    guard: str = _option("stop", "'stop' or 'rollback' when the loss is lost.")
    guard_factor: float = _option(2.0, "Loss above this many times its mean is lost.")
    guard_skips: int = _option(50, "Steps skipped one after the other that are too many.")
    log_every: int = _option(10, "Steps between lines of the log.")
    eval_every: int = _option(500, "Steps between evaluations; 0 for none.")
    eval_batches: int = _option(16, "Micro-batches of an evaluation, over all processes.")
    save_every: int = _option(500, "Steps between checkpoints; 0 for the last alone.")
    keep: int = _option(2, "Checkpoints kept beside the best one.")
    workers: int = _option(2, "Processes that prepare batches, for each process that trains.")

    def __post_init__(self) -> None:
        for entry in fields(self):
            value = _own(entry, getattr(self, entry.name))
            object.__setattr__(self, entry.name, value)
        _check_counts(self)
        _check_words(self)
        _check_ranges(self)
        # The values that are made of these settings check themselves.
        self.recipe(), self.rates(), self.format()

    def recipe(self) -> Recipe:
        """Return what samples are like.

        Returns
        -------
        Recipe
            A frozen value.
        """
        masking = Masking(self.masking, self.mask_rate, self.masked_most)
        return Recipe(self.length, self.task, masking, self.shorter, self.seed)

    def rates(self) -> Schedule:
        """Return the schedule of the learning rate.

        Returns
        -------
        Schedule
            A frozen value.
        """
        return Schedule(self.schedule, self.steps, round(self.warmup_ratio * self.steps))

    def format(self) -> Precision:
        """Return the number format.

        Returns
        -------
        Precision
            A frozen value.
        """
        return Precision(self.precision)

    def replace(self, **options: Any) -> PretrainConfig:
        """Return settings with other values.

        Parameters
        ----------
        **options
            Names of fields and values.

        Returns
        -------
        PretrainConfig
            A new value.

        Raises
        ------
        ConfigError
            When a name is unknown; close ones are told.
        """
        return self.from_dict({**self.to_dict(), **options})

    def to_dict(self) -> dict[str, Any]:
        """Return the settings by name.

        Returns
        -------
        dict
            What JSON and YAML can hold.
        """
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, options: Mapping[str, Any]) -> PretrainConfig:
        """Return the settings that `to_dict` gave, or some of them with defaults for the others.

        Parameters
        ----------
        options : mapping
            Names and values.

        Returns
        -------
        PretrainConfig
            Checked.

        Raises
        ------
        ConfigError
            When a name is unknown; close ones are told.
        """
        check_names(options)
        return cls(**options)


def check_names(options: Mapping[str, Any]) -> None:
    """Refuse names that are no settings.

    Parameters
    ----------
    options : mapping
        Names and values.

    Raises
    ------
    ConfigError
        With the close names of each unknown one.

    Examples
    --------
    >>> check_names({"lr": 1e-3})
    """
    known = [entry.name for entry in fields(PretrainConfig)]
    unknown = [str(name) for name in options if name not in known]
    if unknown:
        hints = " ".join(f"{name!r}: {did_you_mean(name, known)}" for name in unknown)
        raise ConfigError(f"{len(unknown)} of the settings are unknown. {hints}")


def read_settings(path: str | os.PathLike[str] | None, words: Sequence[str] = ()) -> PretrainConfig:
    """Return settings from a YAML file and words that replace some of them.

    Parameters
    ----------
    path : path, optional
        A YAML file of names and values; the defaults without one.
    words : sequence of str
        Such as ``lr=1e-3``.

    Returns
    -------
    PretrainConfig
        Checked.

    Raises
    ------
    ConfigError
        When the file cannot be read, or a name or value is impossible.

    Examples
    --------
    >>> read_settings(None, ["steps=20", "precision=bf16"]).steps
    20
    """
    return _with_words({} if path is None else _read(Path(path)), words)


def _with_words(options: dict[str, Any], words: Sequence[str]) -> PretrainConfig:
    for word in words:
        name, mark, value = word.partition("=")
        if not mark or not name:
            raise ConfigError(f"settings must be given as name=value, got {word!r}.")
        options[name] = _parsed(value, word)
    return PretrainConfig.from_dict(options)


def split_settings(
    path: str | os.PathLike[str] | None, words: Sequence[str], names: Sequence[str]
) -> tuple[PretrainConfig, dict[str, Any]]:
    """Return settings, and what the file and the words say under other names.

    Parameters
    ----------
    path : path, optional
        A YAML file.
    words : sequence of str
        Such as ``lr=1e-3`` or ``model.num_layers=4``.
    names : sequence of str
        Names that are no settings.

    Returns
    -------
    tuple of (PretrainConfig, dict)
        Checked settings; values by name.

    Raises
    ------
    ConfigError
        As `read_settings` says.

    Examples
    --------
    >>> split_settings(None, ["steps=20", "model.preset=mpobert-12"], ["model"])[1]
    {'model': {'preset': 'mpobert-12'}}
    """
    options = {} if path is None else _read(Path(path))
    found = {name: options.pop(name) for name in names if name in options}
    left = []
    for word in words:
        name, mark, value = word.partition("=")
        first, dot, inner = name.partition(".")
        if not mark or first not in names:
            left.append(word)
        elif dot:
            before = found.get(first)
            found[first] = {
                **(before if isinstance(before, dict) else {}),
                inner: _parsed(value, word),
            }
        else:
            found[first] = _parsed(value, word)
    return _with_words(options, left), found


def _read(path: Path) -> dict[str, Any]:
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"config must be a YAML file, got {path}: {error}.") from error
    found = {} if found is None else found
    if not isinstance(found, dict):
        raise ConfigError(f"{path} must hold names and values, got a {type(found).__name__}.")
    return found


def _parsed(value: str, word: str) -> Any:
    try:
        return yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise ConfigError(f"settings must be given as name=value, got {word!r}.") from error


def _own(entry: dataclasses.Field[Any], value: Any) -> Any:
    """Return a value as the type of its field; YAML takes 1e-3 for a word."""
    if entry.type == "float":
        if isinstance(value, str):
            try:
                value = float(value)
            except ValueError:
                return value
        value = own_number(value)
        return float(value) if type(value) is int else value
    return own_integer(value) if entry.type == "int" else value


def _check_counts(config: PretrainConfig) -> None:
    least = {"eval_every": 0, "save_every": 0, "keep": 1, "workers": 0, "seed": 0}
    for entry in fields(config):
        if entry.type == "int":
            value = getattr(config, entry.name)
            check_integer(entry.name, value, least=least.get(entry.name, 1))


def _check_words(config: PretrainConfig) -> None:
    known = {"optimizer": OPTIMIZERS, "reconstruction": RECONSTRUCTIONS, "guard": GUARDS}
    for name, words in known.items():
        value = getattr(config, name)
        if value not in words:
            raise ConfigError(
                f"{name} must be {', '.join(map(repr, words))}, got {value!r}. "
                f"{did_you_mean(str(value), words)}"
            )


def _check_ranges(config: PretrainConfig) -> None:
    limits = {
        "lr": (0.0, 1e6),
        "beta1": (0.0, 1.0),
        "beta2": (0.0, 1.0),
        "eps": (0.0, 1.0),
        "weight_decay": (0.0, 1e3),
        "clip": (0.0, 1e9),
        "warmup_ratio": (0.0, 1.0),
        "guard_factor": (1.0, 1e9),
        "loss_scale": (2.0**-14, 2.0**24),
        **{f"lr_{kind}": (0.0, 1e6) for kind in ("central", "auxiliary", "adapter", "head")},
    }
    open_above = {"beta1", "beta2"}
    for name, (low, high) in limits.items():
        value = getattr(config, name)
        inside = type(value) is float and low <= value <= high
        if not inside or (name in open_above and value == high):
            word = "below" if name in open_above else "at most"
            raise ConfigError(
                f"{name} must be a number of at least {low:g} and {word} {high:g}, got {value!r}."
            )
