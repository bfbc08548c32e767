"""Everything that a run needs, made and checked before the first step."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from mpobert_plugin.accumulate import Accumulation
from mpobert_plugin.errors import ConfigError, shorten
from mpobert_plugin.groups import param_groups
from mpobert_plugin.locate import is_converted
from mpobert_plugin.train.captured import Captured, CudaGraphs
from mpobert_plugin.train.data.batches import Division, micro_batches
from mpobert_plugin.train.data.samples import Samples
from mpobert_plugin.train.engine import Engine
from mpobert_plugin.train.gradients import Gradients
from mpobert_plugin.train.network import make_network
from mpobert_plugin.train.objective import Objective, takes_whole_masks
from mpobert_plugin.train.optimizers import make_optimizer
from mpobert_plugin.train.precision import LossScale
from mpobert_plugin.train.reentrant import use_nonreentrant
from mpobert_plugin.train.trainable import check_trainable

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn
    from transformers import PreTrainedModel

    from mpobert_plugin.train.data.store import Corpus
    from mpobert_plugin.train.processes import Processes
    from mpobert_plugin.train.settings import PretrainConfig

# Micro-batches of a step for which matrices in half precision are rebuilt in float32.
_MANY = 32
# What decays besides what `param_groups` lets decay: matrices, as is the custom of LAMB.
DECAYED = ("central", "adapter", "dense", "embedding", "head")


@dataclass(frozen=True)
class Parts:
    """What a run works with.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        On the device, in float32, in training mode.
    engine : Engine
        Makes steps.
    samples : Samples
        Of the text.
    division : Division
        Which of them are this process's.
    parameters : dict of str to Parameter
        What is trained, by its name in the model.
    notes : tuple of str
        What people should know.
    """

    model: PreTrainedModel
    engine: Engine
    samples: Samples
    division: Division
    parameters: dict[str, nn.Parameter]
    notes: tuple[str, ...]


def set_up(
    model: PreTrainedModel, corpus: Corpus, config: PretrainConfig, processes: Processes
) -> Parts:
    """Return everything that a run works with.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        Plain or converted, with a head for masked tokens.
    corpus : Corpus
        The text.
    config : PretrainConfig
        Settings.
    processes : Processes
        Who trains together.

    Returns
    -------
    Parts
        Ready for the first step.

    Raises
    ------
    ConfigError
        When model, text and settings do not fit together.
    ModelTypeError
        When the model cannot be trained.
    """
    _check_fit(check_trainable(model), corpus, config)
    division = Division(config.batch_size, config.micro_batch, processes.rank, processes.world_size)
    samples = Samples(corpus, config.recipe())
    notes = [*_as_masters(model), *_fused_attention(model), *use_nonreentrant(model)]
    notes += _slow_format(config, processes.device)
    move(model, processes.device)
    model.train()
    _same_everywhere(model, processes)
    objective = Objective(model, config.task == "sentence_order")
    notes += _without_order(objective, config)
    engine = _engine(objective, _trained(model), config, processes, division.accumulation)
    notes += _leave_out_unreached(engine, samples, division)
    parameters = _trained(model)
    engine = _engine(objective, parameters, config, processes, division.accumulation)
    return Parts(model, engine, samples, division, parameters, tuple(notes))


def move(model: nn.Module, device: torch.device) -> None:
    """Move a model in place.

    Parameters
    ----------
    model : torch.nn.Module
        Any module.
    device : torch.device
        Where to.
    """
    model.to(device)


def _check_fit(model: PreTrainedModel, corpus: Corpus, config: PretrainConfig) -> None:
    vocabulary = model.config.vocab_size
    if corpus.vocab_size > vocabulary:
        raise ConfigError(
            f"the model must have a vocabulary of at least {corpus.vocab_size} tokens, which the "
            f"text was prepared with, got {vocabulary}. Build the model with "
            f"vocab_size={corpus.vocab_size}."
        )
    positions = getattr(model.config, "max_position_embeddings", config.length)
    # RoBERTa's first position is behind the id of its padding.
    shift = int(model.config.pad_token_id or 0) + 1 if "roberta" in model.config.model_type else 0
    if config.length > positions - shift:
        raise ConfigError(
            f"length must be at most the {positions - shift} positions of the model, got "
            f"{config.length}."
        )


def _as_masters(model: PreTrainedModel) -> list[str]:
    """Make float32 of half precision: small steps would be lost in the masters."""
    kinds = {str(p.dtype) for p in model.parameters() if p.dtype != torch.float32}
    if not kinds:
        return []
    _widen(model)
    named = ", ".join(sorted(kinds))
    return [f"Parameters in {named} were made float32 masters, for the sums of small steps."]


def _fused_attention(model: PreTrainedModel) -> list[str]:
    """Take torch's fused attention where the host has it."""
    before = model.config._attn_implementation
    if before == "sdpa" or not model._supports_sdpa:
        return []
    model.set_attn_implementation("sdpa")
    return [f"Attention is computed by 'sdpa', where the model had {before!r}."]


def _slow_format(config: PretrainConfig, device: torch.device) -> list[str]:
    """Tell of the default format where it is no gain; a run that has begun must keep its own."""
    if device.type != "cpu" or config.precision != "fp16":
        return []
    text = "precision='fp16' is made for GPUs and slow on a CPU. Start with precision='fp32', which"
    return [f"{text} takes half the time or less there; a run that has begun keeps its own."]


def _without_order(objective: Objective, config: PretrainConfig) -> list[str]:
    if objective.has_order or config.task != "sentence_order":
        return []
    text = "The model has no head for the order of two segments, so that masked tokens alone are"
    return [f"{text} learned; task='full' fills the samples with running text."]


def _widen(model: nn.Module) -> None:
    model.to(torch.float32)


def _same_everywhere(model: PreTrainedModel, processes: Processes) -> None:
    tensors = [tensor.detach() for tensor in (*model.parameters(), *model.buffers())]
    processes.copy(tensors)


def _trained(model: PreTrainedModel) -> dict[str, nn.Parameter]:
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def _engine(
    objective: Objective,
    parameters: dict[str, nn.Parameter],
    config: PretrainConfig,
    processes: Processes,
    accumulation: int,
) -> Engine:
    if not parameters:
        raise ConfigError("the model must have a parameter that is trained, got none.")
    form, gradients = config.format(), Gradients(parameters)
    captured = make_captured(objective.model, config, processes.device)
    return Engine(
        objective,
        make_optimizer(_groups(objective.model, config), config),
        gradients,
        form,
        LossScale(processes.device, config.loss_scale, config.scale_interval, form.scaled),
        processes,
        config.clip,
        _around(objective.model, config, accumulation, lasting=captured is not None),
        make_network(objective.model, gradients, config),
        captured,
    )


def make_captured(
    model: PreTrainedModel, config: PretrainConfig, device: torch.device
) -> Captured | None:
    """Return what records micro-batches and updates, or None when they run as they are.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        On the device.
    config : PretrainConfig
        Settings.
    device : torch.device
        Where is computed.

    Returns
    -------
    Captured or None
        By itself only on a GPU, for hosts that decide nothing by numbers on the device, and where
        no layer runs again.

    Raises
    ------
    ConfigError
        When recording is asked for on another device.
    """
    on_gpu = device.type == "cuda"
    if config.graphs == "steps" and not on_gpu:
        raise ConfigError(
            f"graphs='steps' needs a GPU, got the device {device.type!r}. Use graphs='auto'."
        )
    fits = on_gpu and config.recompute == "none" and takes_whole_masks(model)
    if config.graphs == "none" or not (fits or config.graphs == "steps"):
        return None
    return Captured(CudaGraphs(device))


def _groups(model: PreTrainedModel, config: PretrainConfig) -> list[dict[str, Any]]:
    kinds = ("central", "auxiliary", "adapter", "head")
    rates = {kind: getattr(config, f"lr_{kind}") for kind in kinds}
    decay = config.weight_decay
    groups = param_groups(
        model, config.optimizer, lr=1.0, weight_decay=decay, decayed=DECAYED, rates=rates
    )
    for group in groups:
        group["params"] = [p for p in group["params"] if p.requires_grad]
        group["lr_scale"] = group["lr"]
    return [group for group in groups if group["params"]]


def _around(
    model: PreTrainedModel, config: PretrainConfig, accumulation: int, lasting: bool
) -> Callable[[], Any]:
    """Rebuild the matrices once for a step, where that can save anything."""
    once = config.reconstruction == "per_step"
    if config.reconstruction == "auto":
        once = accumulation > 1
    if not once or not is_converted(model):
        return nullcontext
    return accumulation_of(model, accumulation, lasting).step


def accumulation_of(model: PreTrainedModel, count: int, lasting: bool = False) -> Accumulation:
    """Return what rebuilds matrices once for a step.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        Converted.
    count : int
        Micro-batches of a step, in each process.
    lasting : bool
        As for `Accumulation`.

    Returns
    -------
    Accumulation
        That rebuilds exactly where there are many micro-batches; for few it would take long.
    """
    return Accumulation(model, exact=count >= _MANY, lasting=lasting)


def _leave_out_unreached(engine: Engine, samples: Samples, division: Division) -> list[str]:
    """Freeze what no loss reaches, so that neither decay nor a missing gradient matters."""
    batch = next(micro_batches(samples, division, 0, 1))
    found = engine.reached(batch)
    missing = [name for name in engine.gradients.parameters if name not in found]
    for name in missing:
        engine.gradients.parameters[name].requires_grad_(False)
    if not missing:
        return []
    return [f"{len(missing)} tensors get no gradient and stay as they are: {shorten(missing, 4)}."]
