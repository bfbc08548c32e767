"""Second moments of what enters each matrix while a model runs over a few batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor, nn

from mpobert_plugin.errors import ConfigError, ConversionError, TargetError, did_you_mean
from mpobert_plugin.locate import check_model, family_of, prefix_of
from mpobert_plugin.parts import module_beside, modules_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transformers import PreTrainedModel

Batch: TypeAlias = "Mapping[str, Any] | Tensor"
# Rows that are widened at a time, so that a long batch is never copied whole.
_ROWS = 4096
# Models refuse foreign batches with these, each in its own words.
_REFUSALS = (TypeError, ValueError, RuntimeError, IndexError, KeyError, AttributeError)
_WANTED = "mappings as the model's forward takes them, or tensors of token ids"


def input_metrics(
    model: PreTrainedModel, batches: Iterable[Batch], roles: Sequence[str]
) -> dict[str, list[Tensor]]:
    """Return the mean of x x^T over what enters the matrices of each role, layer by layer.

    The error that a matrix M in the place of W makes in the layer's output is then, squared and
    on average, the trace of (W - M) H (W - M)^T. The model runs in evaluation mode without
    gradient; training flags, hooks and torch's random numbers are as before afterwards, also
    when a batch fails. Positions that an ``attention_mask`` hides are left out.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        Plain or converted, on any device, in any element type.
    batches : iterable of mappings of str to Tensor, or of Tensor
        Mappings as the model's forward takes them, or (batch, length) token ids.
    roles : sequence of str
        Roles of matrices in the layers, or of plain matrices beside them such as 'pooler'.

    Returns
    -------
    dict of str to list of Tensor
        For each role one (in, in) H for each layer that has it, one H in all for a matrix beside
        the layers: float64 on the CPU, float32 elsewhere. Matrices that always see the same
        input get one object. A layer that runs several times has one H for all its inputs.

    Raises
    ------
    ModelTypeError
        When the model is of no known family.
    TargetError
        When the model has no such role.
    ConfigError
        When `batches` is no iterable of batches, or holds none, or one without values.
    ConversionError
        When the model has no values or cannot run a batch, a matrix is never used, or an input is
        not finite.

    Examples
    --------
    >>> from transformers import BertConfig, BertModel
    >>> sizes = dict(hidden_size=8, num_attention_heads=2, intermediate_size=16)
    >>> plain = BertModel(BertConfig(vocab_size=9, num_hidden_layers=2, **sizes))
    >>> found = input_metrics(plain, [torch.tensor([[1, 2, 3]])], ["query", "ffn_out"])
    >>> [tuple(H.shape) for H in found["ffn_out"]], found["query"][0].dtype
    ([(16, 16), (16, 16)], torch.float64)
    """
    check_model(model)
    if not isinstance(roles, Iterable):
        raise ConfigError(f"roles must list names, got {roles!r}.")
    names = [roles] if isinstance(roles, str) else list(roles)
    named = {role: _modules(model, role) for role in names}
    _check_values(model)
    watch = _Watch({id(m): m for modules in named.values() for m in modules.values()})
    with _quiet(model), watch.watching():
        for number, batch in enumerate(_iterated(batches)):
            _run(model, number, batch, watch)
    return {
        role: [watch.metric(name, module) for name, module in modules.items()]
        for role, modules in named.items()
    }


def _modules(model: PreTrainedModel, role: str) -> dict[str, nn.Module]:
    family = family_of(model)
    if role in family.matrices:
        return modules_of(model, role)
    path = family.beside.get(role)
    module = None if path is None else module_beside(model, path)
    if path is None or module is None:
        known = [*family.matrices, *family.beside]
        raise TargetError(
            f"roles must name matrices of the model, got {role!r}. {did_you_mean(role, known)}"
        )
    return {prefix_of(model) + path: module}


def _check_values(model: PreTrainedModel) -> None:
    if any("_hf_hook" in vars(module) for module in model.modules()):
        return  # accelerate brings values when they are needed
    for name, parameter in model.named_parameters():
        if parameter.is_meta:
            raise ConversionError(
                f"{name} must have values, got a tensor on the meta device. Load the model first: "
                "calibration runs it. Nothing was changed."
            )


def _iterated(batches: Iterable[Batch]) -> Iterator[Batch]:
    if isinstance(batches, Mapping | Tensor | str) or not isinstance(batches, Iterable):
        raise ConfigError(
            f"calibration must be a list or other iterable of batches ({_WANTED}), got one "
            f"{type(batches).__name__}. Put it into a list."
        )
    number = -1
    for number, batch in enumerate(batches):
        if not isinstance(batch, Mapping | Tensor):
            raise ConfigError(
                f"batches of calibration must be {_WANTED}, got {type(batch).__name__} as batch "
                f"{number}."
            )
        _check_batch(number, batch)
        yield batch
    if number < 0:
        raise ConfigError(
            "calibration must hold at least one batch, got none. An iterator that was used "
            "before is empty: pass a list."
        )


def _check_batch(number: int, batch: Batch) -> None:
    given = {"": batch} if isinstance(batch, Tensor) else batch
    for name, value in given.items():
        if isinstance(value, Tensor) and value.is_meta:
            what = f"{name} of batch" if name else "batch"
            raise ConfigError(
                f"{what} {number} of calibration must have values, got a tensor of shape "
                f"{tuple(value.shape)} on the meta device. Pass token ids of real text. Nothing "
                "was changed."
            )


def _run(model: PreTrainedModel, number: int, batch: Batch, watch: _Watch) -> None:
    given = {"input_ids": batch} if isinstance(batch, Tensor) else dict(batch)
    inputs = {
        name: value.to(model.device) if isinstance(value, Tensor) else value
        for name, value in given.items()
    }
    watch.mask = _mask(number, inputs)
    try:
        model(**inputs)
    except _REFUSALS as error:
        raise ConversionError(
            f"batch {number} of calibration must be one that {type(model).__name__} can run "
            f"({_WANTED}), got {_sizes(inputs)}: {type(error).__name__}: {error}. Nothing was "
            "changed."
        ) from error


def _mask(number: int, inputs: Mapping[str, Any]) -> Tensor | None:
    """Return for each position, in one row, whether it holds a token."""
    mask = inputs.get("attention_mask")
    if mask is None:
        return None
    ids, embedded = inputs.get("input_ids"), inputs.get("inputs_embeds")
    expected = ids.shape if ids is not None else None if embedded is None else embedded.shape[:-1]
    if not isinstance(mask, Tensor) or mask.shape != (mask.shape if expected is None else expected):
        got = tuple(mask.shape) if isinstance(mask, Tensor) else type(mask).__name__
        raise ConfigError(
            f"attention_mask of batch {number} of calibration must say for each position whether "
            f"it holds a token, in the shape {tuple(expected or ())}, got {got}."
        )
    return mask.reshape(-1) > 0


def _sizes(inputs: Mapping[str, Any]) -> str:
    words = [
        f"{name} {tuple(value.shape)}" if isinstance(value, Tensor) else str(name)
        for name, value in inputs.items()
    ]
    return ", ".join(words) or "an empty mapping"


@dataclass
class _Seen:
    """The input of the last call and what became of it, for further matrices that it enters."""

    x: Tensor
    version: int
    rows: int
    moment: Tensor
    added: list[tuple[Tensor | None, Tensor]]

    def is_of(self, x: Tensor) -> bool:
        return self.x is x and self.version == _version(x)

    def added_to(self, known: Tensor | None) -> Tensor:
        """Return the moment added to a sum; the same object for the same sum."""
        for before, after in self.added:
            if before is known:
                return after
        total = self.moment if known is None else known + self.moment
        self.added.append((known, total))
        return total


class _Watch:
    """Hooks on modules that add up x x^T of their inputs; one sum for inputs in common."""

    def __init__(self, modules: Mapping[int, nn.Module]) -> None:
        self.modules = modules
        self.mask: Tensor | None = None
        self._sums: dict[int, Tensor] = {}
        self._rows = dict.fromkeys(modules, 0)
        self._seen: _Seen | None = None
        self._means: dict[int, Tensor] = {}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Return a context in which every call of the modules is counted."""
        handles = [
            module.register_forward_pre_hook(self._note, with_kwargs=True)
            for module in self.modules.values()
        ]
        try:
            yield
        finally:
            self._seen = None
            for handle in handles:
                handle.remove()

    def _note(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        x: Tensor = args[0] if args else next(iter(kwargs.values()))
        # Query, key and value are called with one object.
        if self._seen is None or not self._seen.is_of(x):
            self._seen = _Seen(x, _version(x), *_moment(x.detach(), self.mask), [])
        key = id(module)
        self._rows[key] += self._seen.rows
        self._sums[key] = self._seen.added_to(self._sums.get(key))

    def metric(self, name: str, module: nn.Module) -> Tensor:
        """Return the mean over all rows that a module was called with."""
        rows, total = self._rows[id(module)], self._sums.get(id(module))
        if total is None or rows == 0:
            raise ConversionError(
                f"calibration must reach {name}, which was called with no position that "
                "attention_mask leaves. Pass batches of real text. Nothing was changed."
            )
        if not bool(torch.isfinite(total).all()):
            raise ConversionError(
                f"the inputs of {name} must be finite on the calibration batches, got others. In "
                "half precision try the model in float32. Nothing was changed."
            )
        if id(total) not in self._means:
            self._means[id(total)] = total / rows
        return self._means[id(total)]


def _version(x: Tensor) -> int:
    # Tensors of inference_mode count no changes.
    return -1 if x.is_inference() else x._version


def _moment(x: Tensor, mask: Tensor | None) -> tuple[int, Tensor]:
    """Return the number of rows that count and their sum of x x^T."""
    rows = x.reshape(-1, x.shape[-1])
    # What was pooled to one row a text, or packed without padding, has no hidden positions.
    if mask is not None and mask.numel() == rows.shape[0]:
        rows = rows[mask.to(rows.device)]
    wide = torch.float64 if x.device.type == "cpu" else torch.float32
    moment = torch.zeros(x.shape[-1], x.shape[-1], dtype=wide, device=x.device)
    for start in range(0, rows.shape[0], _ROWS):
        part = rows[start : start + _ROWS].to(wide)
        moment.addmm_(part.T, part)
    return rows.shape[0], (moment + moment.T) / 2


@contextmanager
def _quiet(model: nn.Module) -> Iterator[None]:
    """Return a context in evaluation mode without gradient that leaves no trace."""
    flags = {module: module.training for module in model.modules()}
    places = {p.device for p in model.parameters() if p.device.type == "cuda"}
    with torch.random.fork_rng(devices=[place.index or 0 for place in places]), torch.no_grad():
        model.eval()
        try:
            yield
        finally:
            for module, flag in flags.items():
                module.training = flag
