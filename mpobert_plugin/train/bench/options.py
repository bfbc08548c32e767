"""What is measured, and for how long, as one value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mpobert_plugin.errors import ConfigError, close_to
from mpobert_plugin.options import check_integer
from mpobert_plugin.presets import PRESETS, SMALL_PRESETS
from mpobert_plugin.train.precision import FORMATS
from mpobert_plugin.train.settings import PretrainConfig


@dataclass(frozen=True)
class BenchOptions:
    """What is measured, and for how long.

    Parameters
    ----------
    models : tuple of str
        Presets.
    sizes : mapping
        Options of `mpobert_plugin.build` for all of them, such as ``num_layers``.
    config : PretrainConfig
        Settings of pre-training: length, micro-batch, global batch, compilation, and so on.
    formats : tuple of str
        Number formats, the first one where a section takes one alone.
    accumulation : int
        Micro-batches between two updates where several are measured.
    rounds : int
        Turns that each contender gets, at most.
    turn : float
        Seconds of a turn, about.
    seconds : float
        Seconds of a section for a model: none of its cases begins later, and its rounds end.
    limit : float
        Seconds of everything: nothing begins later.
    data : Path, optional
        A prepared corpus; made-up text without.
    against : tuple of Path
        Records of other numbers of processes, for the efficiency of scaling.

    Raises
    ------
    ConfigError
        When an option has an impossible value.

    Examples
    --------
    >>> BenchOptions(models=("mpobert-12",)).formats
    ('fp16', 'bf16', 'fp32')
    """

    models: tuple[str, ...] = ("mpobert-48", "mpobert-24", "mpobert-12")
    sizes: Mapping[str, Any] = field(default_factory=dict)
    config: PretrainConfig = field(default_factory=PretrainConfig)
    formats: tuple[str, ...] = ("fp16", "bf16", "fp32")
    accumulation: int = 8
    rounds: int = 7
    turn: float = 0.5
    seconds: float = 180.0
    limit: float = 1e9
    data: Path | None = None
    against: tuple[Path, ...] = ()

    def __post_init__(self) -> None:
        for name, known in (("models", [*PRESETS, *SMALL_PRESETS]), ("formats", list(FORMATS))):
            given = getattr(self, name)
            unknown = [word for word in given if word not in known]
            if unknown or not given:
                hint = close_to(str(unknown[0]), known) if unknown else ""
                raise ConfigError(
                    f"{name} must be some of {', '.join(known)}, got {', '.join(given) or 'none'}."
                    f"{hint}"
                )
        check_integer("accumulation", self.accumulation, least=1)
        check_integer("rounds", self.rounds, least=1)
        for name in ("turn", "seconds", "limit"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not value >= 0:
                raise ConfigError(f"{name} must be a number of seconds from 0 on, got {value!r}.")
