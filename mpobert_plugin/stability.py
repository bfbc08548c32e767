"""Updates of the output against depth: measured for real models and optimizers, and fitted."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from mpobert_plugin.errors import ConfigError, close_to
from mpobert_plugin.groups import param_groups
from mpobert_plugin.init.albert import from_albert
from mpobert_plugin.init.stable import check_scale
from mpobert_plugin.options import check_integer, own_integer
from mpobert_plugin.presets import build
from mpobert_plugin.train.lamb import Lamb
from mpobert_plugin.update import SPLIT, Update, measure_update

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer
    from transformers import PreTrainedModel


def __dir__() -> list[str]:
    return sorted(__all__)


__all__ = ["Exponent", "Measured", "Sweep", "Update", "measure_update", "sweep"]

STARTS = ("fresh", "copies")
# Steps so small that updates are proportional to them; eps must not damp small gradients.
RATES = {"sgd": 1e-3, "adam": 1e-6, "lamb": 1e-5}
_EPS = 1e-12
_VOCABULARY, _LENGTH, _ROWS = 64, 12, 4


@dataclass(frozen=True)
class Measured:
    """One measurement of a sweep.

    Parameters
    ----------
    optimizer : str
        'sgd', 'adam' or 'lamb'.
    sites, depth, seed : int
        Cores of a matrix, number of layers, seed of weights and batch.
    update : Update
        What was measured.
    """

    optimizer: str
    sites: int
    depth: int
    seed: int
    update: Update


@dataclass(frozen=True)
class Exponent:
    """Exponent of the depth with which updates of one kind grow.

    Parameters
    ----------
    optimizer : str
        'sgd', 'adam' or 'lamb'.
    sites : int
        Cores of a matrix.
    kind : str
        'total', 'central', 'auxiliary', 'adapter', 'bias' or 'norm'.
    value, deviation : float
        Mean of the slopes of log(update) against log(depth), one for each seed, and their
        standard deviation.
    """

    optimizer: str
    sites: int
    kind: str
    value: float
    deviation: float


@dataclass(frozen=True)
class Sweep:
    """Measurements of a sweep; prints as a table of fitted exponents.

    Parameters
    ----------
    options : dict
        How the models were made.
    measured : tuple of Measured
        All measurements.
    """

    options: dict[str, Any]
    measured: tuple[Measured, ...]

    @property
    def cases(self) -> list[tuple[str, int]]:
        """Optimizer and number of sites of each curve."""
        return list(dict.fromkeys((row.optimizer, row.sites) for row in self.measured))

    def curve(self, optimizer: str, sites: int, kind: str) -> dict[int, list[float]]:
        """Return the updates of one kind against depth.

        Parameters
        ----------
        optimizer : str
            'sgd', 'adam' or 'lamb'.
        sites : int
            Cores of a matrix.
        kind : str
            'total', or a kind of tensor.

        Returns
        -------
        dict of int to list of float
            Relative updates by depth, one for each seed.
        """
        found: dict[int, list[float]] = {}
        for row in self.measured:
            if (row.optimizer, row.sites) == (optimizer, sites):
                parts = {"total": row.update.total, **row.update.by_kind()}
                found.setdefault(row.depth, []).append(parts[kind])
        return found

    def exponents(self) -> list[Exponent]:
        """Return the fitted exponents, in the order of the cases.

        Returns
        -------
        list of Exponent
            Kinds that no model has are left out.
        """
        found = []
        for optimizer, sites in self.cases:
            for kind in ("total", *SPLIT):
                curve = self.curve(optimizer, sites, kind)
                if all(size > 0.0 for sizes in curve.values() for size in sizes):
                    slopes = _slopes(curve)
                    spread = statistics.stdev(slopes) if len(slopes) > 1 else 0.0
                    mean = statistics.fmean(slopes)
                    found.append(Exponent(optimizer, sites, kind, mean, spread))
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return everything as values that JSON can hold.

        Returns
        -------
        dict
            Options, exponents and measurements.
        """
        rows = [{**vars(row), "update": row.update.to_dict()} for row in self.measured]
        exponents = [vars(exponent) for exponent in self.exponents()]
        return {"options": self.options, "exponents": exponents, "measured": rows}

    def __str__(self) -> str:
        """Return the exponents as a table of plain text, a line for each case."""
        kinds = ("total", *SPLIT)
        lines = ["exponent of the depth  " + "".join(f"{kind:>14}" for kind in kinds)]
        table = {(e.optimizer, e.sites, e.kind): e for e in self.exponents()}
        for optimizer, sites in self.cases:
            cells = [table.get((optimizer, sites, kind)) for kind in kinds]
            words = [f"{c.value:+.2f} ± {c.deviation:.2f}" if c else "-" for c in cells]
            lines.append(
                f"{optimizer:<5} {sites} sites{'':<10}" + "".join(f"{w:>14}" for w in words)
            )
        return "\n".join(lines)


def sweep(
    *,
    depths: Sequence[int] = (6, 12, 24, 48, 96),
    optimizers: Sequence[str] = ("sgd", "adam", "lamb"),
    sites: Sequence[int] = (3, 5),
    seeds: Sequence[int] = (0, 1, 2),
    start: str = "fresh",
    scale: str | None = None,
    branch_multiplier: float | None = None,
    depth_rates: bool = True,
    hidden_size: int = 32,
    adapter_rank: int = 2,
    progress: Callable[[int, int], None] | None = None,
) -> Sweep:
    """Return the updates of the output after one step of small models of many depths.

    The models are MPOBERTs with masked-LM heads, real attention and everything else of the full
    size but the width; the gain of their matrices is that of width 1024. They compute in float64.

    Parameters
    ----------
    depths : sequence of int
        Numbers of layers, two at least.
    optimizers : sequence of str
        Of 'sgd', 'adam' and 'lamb', with the groups of `mpobert_plugin.param_groups` and no
        weight decay.
    sites : sequence of int
        Numbers of cores of a matrix.
    seeds : sequence of int
        One model and one batch each.
    start : str
        'fresh': as `mpobert_plugin.build` makes them. 'copies': every layer the same, as
        `mpobert_plugin.from_albert` makes them, scaled when `scale` is given.
    scale, branch_multiplier : optional
        As `build` takes them; `from_albert` knows `scale` alone.
    depth_rates : bool
        As `param_groups` takes it.
    hidden_size : int
        Width of the models.
    adapter_rank : int
        Rank of the adapters.
    progress : callable, optional
        Called with the number of models done and of all models.

    Returns
    -------
    Sweep
        Measurements and fitted exponents.

    Raises
    ------
    ConfigError
        When an option is impossible.

    Examples
    --------
    >>> found = sweep(depths=(2, 4), optimizers=["lamb"], sites=[3], seeds=[0], hidden_size=8)
    >>> [(e.kind, round(abs(e.value))) for e in found.exponents()][:1]
    [('total', 0)]
    """
    options = {
        "start": start,
        "scale": scale,
        "branch_multiplier": branch_multiplier,
        "depth_rates": depth_rates,
        "hidden_size": hidden_size,
        "adapter_rank": adapter_rank,
    }
    _check(depths, optimizers, sites, seeds, options)
    cases = [(n, depth, seed) for n in sites for depth in depths for seed in seeds]
    rows = []
    for done, (n, depth, seed) in enumerate(cases):
        model, batch = _model(n, depth, seed, options), _batch(seed)
        for name in optimizers:
            groups = param_groups(
                model, name, lr=RATES[name], weight_decay=0.0, depth_rates=depth_rates
            )
            update = measure_update(model, batch, _optimizer(name, groups))
            rows.append(Measured(name, n, depth, seed, update))
        if progress is not None:
            progress(done + 1, len(cases))
    order = {name: number for number, name in enumerate(optimizers)}
    rows.sort(key=lambda row: (order[row.optimizer], row.sites, row.depth, row.seed))
    return Sweep(options, tuple(rows))


def _check(
    depths: Sequence[int],
    optimizers: Sequence[str],
    sites: Sequence[int],
    seeds: Sequence[int],
    options: Mapping[str, Any],
) -> None:
    entries = {"depths": depths, "optimizers": optimizers, "sites": sites, "seeds": seeds}
    for argument, values in entries.items():
        if not values:
            raise ConfigError(f"{argument} must have an entry, got none.")
    for argument, given, least in (("depths", depths, 1), ("sites", sites, 1), ("seeds", seeds, 0)):
        for value in given:
            check_integer(f"each of {argument}", own_integer(value), least)
    if len(set(depths)) < 2:
        raise ConfigError(f"depths must be two at least to fit an exponent, got {list(depths)}.")
    for name in optimizers:
        if name not in RATES:
            raise ConfigError(
                f"optimizers must be of {', '.join(RATES)}, got {name!r}."
                f"{close_to(str(name), list(RATES))}"
            )
    _check_options(options)


def _check_options(options: Mapping[str, Any]) -> None:
    if options["start"] not in STARTS:
        raise ConfigError(f"start must be 'fresh' or 'copies', got {options['start']!r}.")
    if options["start"] == "copies" and options["branch_multiplier"] is not None:
        raise ConfigError("branch_multiplier must be left out with start='copies', which has none.")
    check_scale(options["scale"])
    check_integer("hidden_size", own_integer(options["hidden_size"]), 8)
    check_integer("adapter_rank", own_integer(options["adapter_rank"]), 0)
    if options["hidden_size"] % 4:
        raise ConfigError(f"hidden_size must be a multiple of 4, got {options['hidden_size']}.")


def _model(n: int, depth: int, seed: int, options: Mapping[str, Any]) -> PreTrainedModel:
    hidden = options["hidden_size"]
    sizes: dict[str, Any] = {
        "vocab_size": _VOCABULARY,
        "embedding_size": 16,
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "num_attention_heads": 4,
        "max_position_embeddings": 16,
        "initializer_range": 0.02 * math.sqrt(1024 / hidden),
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }
    scale = options["scale"]
    ours = {"n": n, "adapter_rank": options["adapter_rank"]}
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        if options["start"] == "fresh":
            return build(
                "mpobert-12",
                head="masked_lm",
                num_layers=depth,
                dtype=torch.float64,
                scale=scale,
                branch_multiplier=options["branch_multiplier"],
                **ours,
                **sizes,
            )
        from transformers import AlbertConfig, AlbertForMaskedLM

        albert = AlbertForMaskedLM(AlbertConfig(**sizes)).double()
        deep_init = "copy" if scale is None else "copy_scaled"
        return from_albert(albert, depth, deep_init=deep_init, scale=scale, threshold=0, **ours)


def _batch(seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1_000_000 + seed)
    ids = torch.randint(4, _VOCABULARY, (_ROWS, _LENGTH), generator=generator)
    masked = torch.rand(ids.shape, generator=generator) < 0.3
    masked[:, 0] = True
    return {"input_ids": ids.masked_fill(masked, 3), "labels": ids.masked_fill(~masked, -100)}


def _optimizer(name: str, groups: list[dict[str, Any]]) -> Optimizer:
    if name == "sgd":
        return torch.optim.SGD(groups)
    return torch.optim.Adam(groups, eps=_EPS) if name == "adam" else Lamb(groups, eps=_EPS)


def _slopes(curve: Mapping[int, list[float]]) -> list[float]:
    """Return the least-squares slope of log(update) against log(depth), one for each seed."""
    logs = [math.log(depth) for depth in curve]
    centre = statistics.fmean(logs)
    spread = sum((x - centre) ** 2 for x in logs)
    return [
        sum((x - centre) * math.log(size) for x, size in zip(logs, sizes, strict=True)) / spread
        for sizes in _by_seed(curve)
    ]


def _by_seed(curve: Mapping[int, list[float]]) -> Iterator[tuple[float, ...]]:
    return zip(*curve.values(), strict=True)
