"""Settings of a pre-training run: one flat value that checks itself."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from mpobert_plugin.errors import ConfigError, did_you_mean
from mpobert_plugin.train.data.masking import Masking
from mpobert_plugin.train.data.samples import Recipe
from mpobert_plugin.train.precision import Precision
from mpobert_plugin.train.schedule import Schedule
from mpobert_plugin.train.settings_checks import (
    check_counts,
    check_ranges,
    check_words,
    own_value,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def _option(default: Any, text: str, free: bool = False) -> Any:
    """Return a field; a free one may change when a run goes on."""
    return field(default=default, metadata={"text": text, "free": free})


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
    micro_batch: int = _option(32, "Samples that one process computes at a time.", free=True)
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
    reconstruction: str = _option(
        "auto", "'auto' (measured where it pays), 'per_step' or 'per_micro_batch'.", free=True
    )
    network: str = _option("auto", "'half', 'autocast', or 'auto': half for fp16 on a GPU.")
    compile: str = _option("none", "'none', or 'layers' by torch.compile.", free=True)
    attention: str = _option(
        "auto", "'torch', or 'auto': own kernels in compiled layers on a GPU.", free=True
    )
    graphs: str = _option(
        "auto", "'none', 'steps' as CUDA graphs, or 'auto': for encoders on a GPU.", free=True
    )
    recompute: str = _option("none", "What runs again in backward.", free=True)
    guard: str = _option("stop", "'stop' or 'rollback' when the loss is lost.", free=True)
    guard_factor: float = _option(2.0, "Loss above this many times its mean is lost.", free=True)
    guard_skips: int = _option(50, "Steps skipped in a row that are too many.", free=True)
    log_every: int = _option(10, "Steps between lines of the log.", free=True)
    eval_every: int = _option(500, "Steps between evaluations; 0 for none.", free=True)
    eval_batches: int = _option(16, "Micro-batches of an evaluation, of each process.", free=True)
    save_every: int = _option(500, "Steps between checkpoints; 0 for the last alone.", free=True)
    keep: int = _option(2, "Checkpoints kept beside the best one.", free=True)
    workers: int = _option(2, "Processes that prepare batches, per training process.", free=True)

    def __post_init__(self) -> None:
        for entry in fields(self):
            value = own_value(entry, getattr(self, entry.name))
            object.__setattr__(self, entry.name, value)
        check_counts(self)
        check_words(self)
        check_ranges(self)
        # The values that are made of these settings check themselves.
        self.recipe(), self.rates(), self.format()

    def recipe(self) -> Recipe:
        """Return what samples are like.

        Returns
        -------
        Recipe
            A frozen value.
        """
        # No sample has more places than tokens.
        masking = Masking(self.masking, self.mask_rate, min(self.masked_most, self.length))
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


def check_names(options: Mapping[str, Any], also: Sequence[str] = ()) -> None:
    """Refuse names that are no settings.

    Parameters
    ----------
    options : mapping
        Names and values.
    also : sequence of str
        Other names that could have been meant.

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
        meant = [*also, *known]
        hints = " ".join(f"{name!r}: {did_you_mean(name, meant)}" for name in unknown)
        are = "is" if len(unknown) == 1 else "are"
        raise ConfigError(f"{len(unknown)} of the settings {are} unknown. {hints}")
