"""Choose how a model gets its matrices, by counted costs, and set it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from mpobert_plugin.bank import MPOBank
from mpobert_plugin.embedding import EmbeddingBank
from mpobert_plugin.errors import ConfigError, close_to
from mpobert_plugin.options import check_integer
from mpobert_plugin.rehearsal import Cost, Scene, rehearse
from mpobert_plugin.runtime import banks_of
from mpobert_plugin.strategy import CHOSEN, EVALUATION, TRAINING, Strategy
from mpobert_plugin.tally import SPEEDS

TOKENS = {"training": 16384, "evaluation": 512}
# Of the expected time of a step: less memory is worth so much.
SLACK = 0.01
_NATURAL = {"cached": "evaluation", "factorized": "evaluation"}


@dataclass(frozen=True)
class ReconstructionPlan:
    """What each strategy costs a model, and the one that is chosen; prints as a table.

    Parameters
    ----------
    costs : tuple of Cost
        One for each strategy.
    chosen : str
        Name of the chosen one.
    tokens : int
        Number of tokens of a forward.
    training : bool
        Whether a backward follows.
    memory_limit : int or None
        Most bytes that matrices and what comes with them may take.
    dtype : str
        Element type that the layers compute in.
    device : str
        Kind of device.
    group : int
        Number of layers of a group.

    Examples
    --------
    >>> cost = Cost("cached", 0, 2**20, 0, 2**19, 0.25)
    >>> print(ReconstructionPlan((cost,), "cached", 512, False, None, "float16", "cuda", 4))
    evaluation, 512 tokens, float16 on cuda, no memory limit
    strategy             multiply-adds  matrices     saved  workspace  expected
    cached *                    0.0e+0   1.0 MiB   0.0 MiB    0.5 MiB   0.25 ms
    """

    costs: tuple[Cost, ...]
    chosen: str
    tokens: int
    training: bool
    memory_limit: int | None
    dtype: str
    device: str
    group: int

    def cost(self, name: str) -> Cost:
        """Return the cost of one strategy.

        Parameters
        ----------
        name : str
            The strategy.

        Returns
        -------
        Cost
            Its bytes, multiply-adds and expected time.

        Raises
        ------
        KeyError
            When the plan has no such strategy.

        Examples
        --------
        >>> cost = Cost("cached", 0, 8, 0, 0, 0.25)
        >>> plan = ReconstructionPlan((cost,), "cached", 1, False, None, "float32", "cpu", 4)
        >>> plan.cost("cached").matrices
        8
        """
        return {cost.name: cost for cost in self.costs}[name]

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as values that JSON can hold.

        Returns
        -------
        dict
            The fields.

        Examples
        --------
        >>> cost = Cost("cached", 0, 8, 0, 0, 0.25)
        >>> plan = ReconstructionPlan((cost,), "cached", 1, False, None, "float32", "cpu", 4)
        >>> plan.to_dict()["chosen"]
        'cached'
        """
        return asdict(self)

    def __str__(self) -> str:
        """Return a heading and one line for each strategy; a star marks the chosen one."""
        limit = "no memory limit"
        if self.memory_limit is not None:
            limit = f"at most {_mib(self.memory_limit).strip()}"
        when = "training" if self.training else "evaluation"
        lines = [f"{when}, {self.tokens} tokens, {self.dtype} on {self.device}, {limit}"]
        lines.append(
            f"{'strategy':<20} {'multiply-adds':>13} {'matrices':>9} {'saved':>9} "
            f"{'workspace':>10} {'expected':>9}"
        )
        for cost in self.costs:
            mark = f"{cost.name} *" if cost.name == self.chosen else cost.name
            lines.append(
                f"{mark:<20} {_power(cost.multiply_adds):>13} {_mib(cost.matrices):>9} "
                f"{_mib(cost.saved):>9} {_mib(cost.workspace):>10} {cost.milliseconds:>6.2f} ms"
            )
        return "\n".join(lines)


def _mib(count: int) -> str:
    return f"{count / 2**20:.1f} MiB"


def _power(count: int) -> str:
    mantissa, _, exponent = f"{count:.1e}".partition("e")
    return f"{mantissa}e{int(exponent):+d}"


def plan_reconstruction(
    model: object,
    *,
    tokens: int | None = None,
    training: bool = True,
    memory_limit: int | None = None,
    dtype: torch.dtype | None = None,
    device: str | None = None,
    group: int | None = None,
) -> ReconstructionPlan:
    """Return what each strategy would cost a model, and the best of them; nothing is set.

    Each strategy runs once on tensors without data, and what it keeps, needs and multiplies is
    counted. The fastest by expected time is chosen among those that keep the memory limit, or one
    that needs less memory and at most 1 % more time.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        A converted model.
    tokens : int, optional
        Number of tokens of a forward; 16384 in training and 512 in evaluation by default.
    training : bool
        Whether a backward follows.
    memory_limit : int, optional
        Most bytes that rebuilt matrices, what is kept for their backward and the workspace may
        take together, beyond the parameters and beyond what plain layers keep.
    dtype : torch.dtype, optional
        Element type that the layers compute in, such as that of autocast; by default what they
        would compute in now.
    device : str, optional
        'cuda' or 'cpu'; where the model is by default.
    group : int, optional
        Number of layers of a group.

    Returns
    -------
    ReconstructionPlan
        Frozen; prints as a table.

    Raises
    ------
    ConversionError
        When the model is not converted.
    ConfigError
        When an option has an impossible value, or no strategy keeps the memory limit; the least
        that one needs is told.

    Examples
    --------
    >>> import mpobert_plugin as mp
    >>> model = mp.build("mpobert-12", head="none", device="meta")
    >>> plan = plan_reconstruction(model, dtype=torch.float16, device="cuda")
    >>> plan.chosen
    'batched_recompute'
    """
    when = "training" if training else "evaluation"
    count = TOKENS[when] if tokens is None else tokens
    check_integer("tokens", count, least=1)
    if memory_limit is not None:
        check_integer("memory_limit", memory_limit, least=1)
    size = Strategy().group if group is None else Strategy(group=group).group
    scene = _scene(model, count, training, dtype, device)
    names = CHOSEN if training else EVALUATION
    costs = tuple(rehearse(scene, name, size) for name in names)
    chosen = _best(costs, memory_limit).name
    kind = str(scene.computed).removeprefix("torch.")
    return ReconstructionPlan(
        costs, chosen, count, training, memory_limit, kind, scene.device, size
    )


def _scene(
    model: object, tokens: int, training: bool, dtype: torch.dtype | None, device: str | None
) -> Scene:
    # Rows of the embedding are looked up by a plan of their own.
    banks = [
        bank
        for bank in banks_of(model).stacked()
        if isinstance(bank, MPOBank) and not isinstance(bank, EmbeddingBank)
    ]
    central = banks[0].cores()["central"]
    kind = central.device.type if device is None else device
    if device is None and kind not in SPEEDS:
        kind = "cpu"
    if kind not in SPEEDS:
        raise ConfigError(f"device must be one of {', '.join(SPEEDS)}, got {device!r}.")
    computed = banks[0].compute_dtype() if dtype is None else dtype
    if not getattr(computed, "is_floating_point", False):
        raise ConfigError(
            f"dtype must be a floating-point type such as torch.float16, got {dtype!r}."
        )
    specs = tuple(bank.spec for bank in banks)
    return Scene(specs, tokens, training, central.dtype, computed, kind)


def _best(costs: tuple[Cost, ...], memory_limit: int | None) -> Cost:
    kept = [cost for cost in costs if memory_limit is None or cost.peak <= memory_limit]
    if not kept:
        least = min(costs, key=lambda cost: cost.peak)
        raise ConfigError(
            f"memory_limit must be at least {least.peak} bytes, which {least.name!r} needs, got "
            f"{memory_limit}."
        )
    fastest = min(cost.milliseconds for cost in kept)
    close = [cost for cost in kept if cost.milliseconds <= (1 + SLACK) * fastest]
    return min(close, key=lambda cost: (cost.peak, cost.milliseconds))


def set_strategy(
    model: object,
    name: str = "auto",
    *,
    when: str | None = None,
    tokens: int | None = None,
    memory_limit: int | None = None,
    dtype: torch.dtype | None = None,
    group: int | None = None,
) -> Strategy:
    """Set how a model gets its matrices, and return what is set now.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        A converted model.
    name : str
        'batched', 'batched_recompute', 'per_group', 'per_layer', 'factorized', 'cached', the
        'reference' of comparisons, or 'auto', which takes what `plan_reconstruction` chooses. Once
        per optimizer step is no setting but a block of code: `accumulate`.
    when : str, optional
        'training' or 'evaluation'; by default evaluation for 'cached' and 'factorized', both for
        'auto', else training.
    tokens, memory_limit, dtype
        For 'auto', as `plan_reconstruction` takes them.
    group : int, optional
        Number of layers of a group.

    Returns
    -------
    Strategy
        For training and for evaluation.

    Raises
    ------
    ConversionError
        When the model is not converted.
    ConfigError
        When a name is unknown or not for that kind of forward, an option has an impossible value
        or could only be ignored, or no strategy keeps the memory limit.

    Examples
    --------
    >>> import mpobert_plugin as mp
    >>> model = mp.build("mpobert-12", head="none", device="meta")
    >>> set_strategy(model, "per_layer")
    Strategy(training='per_layer', evaluation='cached', group=4)
    """
    banks = [bank for bank in banks_of(model).stacked() if isinstance(bank, MPOBank)]
    _check_names(name, when)
    now = banks[0].strategy if group is None else replace(banks[0].strategy, group=group)
    if name != "auto":
        _refuse_ignored(name, tokens=tokens, memory_limit=memory_limit, dtype=dtype)
        made = now.having(when or _NATURAL.get(name, "training"), name)
    else:
        made = now
        for phase in (when,) if when else ("training", "evaluation"):
            plan = plan_reconstruction(
                model,
                tokens=tokens,
                training=phase == "training",
                memory_limit=memory_limit,
                dtype=dtype,
                group=now.group,
            )
            made = made.having(phase, plan.chosen)
    for bank in banks:
        bank.strategy = made
        if made.evaluation != "cached":
            bank.drop_cache()
    return made


def _check_names(name: object, when: object) -> None:
    known = ["auto", *dict.fromkeys((*TRAINING, *EVALUATION))]
    if name == "once_per_step":
        raise ConfigError(
            "once_per_step is a block of code and no setting: write "
            "'with mpobert_plugin.accumulate(model):' around the backwards of one optimizer step."
        )
    if not isinstance(name, str) or name not in known:
        raise ConfigError(
            f"name must be one of {', '.join(known)}, got {name!r}.{close_to(str(name), known)}"
        )
    if when not in (None, "training", "evaluation"):
        raise ConfigError(f"when must be 'training' or 'evaluation', got {when!r}.")


def _refuse_ignored(name: str, **options: object) -> None:
    given = [option for option, value in options.items() if value is not None]
    if given:
        raise ConfigError(
            f"{', '.join(given)} would be ignored beside name={name!r}. Use name='auto', or leave "
            f"{'it' if len(given) == 1 else 'them'} out."
        )
