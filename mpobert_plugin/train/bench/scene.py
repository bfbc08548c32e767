"""What every section works with, and the cases that it is made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from mpobert_plugin.train.bench.timing import Pace

if TYPE_CHECKING:
    import torch

    from mpobert_plugin.train.data.store import Corpus
    from mpobert_plugin.train.processes import Processes
    from mpobert_plugin.train.settings import PretrainConfig

# Numbers of each contender, by its name.
Values: TypeAlias = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Scene:
    """What every section works with.

    Parameters
    ----------
    model : str
        A preset.
    sizes : mapping
        Options of `mpobert_plugin.build`.
    config : PretrainConfig
        Settings.
    corpus : Corpus
        The text.
    processes : Processes
        Who takes part, and where.
    formats : tuple of str
        Number formats.
    accumulation : int
        Micro-batches between two updates where several are measured.
    pace : Pace
        How long contenders are timed.
    rows : sequence of mapping
        What was measured before, here and in other records.
    """

    model: str
    sizes: Mapping[str, Any]
    config: PretrainConfig
    corpus: Corpus
    processes: Processes
    formats: tuple[str, ...] = ("fp16",)
    accumulation: int = 8
    pace: Pace = field(default_factory=Pace)
    rows: Sequence[Mapping[str, Any]] = ()

    @property
    def device(self) -> torch.device:
        """Where is computed."""
        return self.processes.device

    def with_settings(self, **settings: Any) -> Scene:
        """Return a scene with other settings of pre-training.

        Parameters
        ----------
        **settings
            Names of `PretrainConfig` and values.

        Returns
        -------
        Scene
            A new value.
        """
        return replace(self, config=self.config.replace(**settings))


@dataclass(frozen=True)
class Case:
    """One measurement.

    Parameters
    ----------
    name : str
        What is special about it.
    run : callable
        Returns the numbers.
    precision : str
        Number format; 'tf32' lets products of float32 use tensor cores.
    """

    name: str
    run: Callable[[], Values]
    precision: str = "fp16"


Section: TypeAlias = Callable[[Scene], list[Case]]
