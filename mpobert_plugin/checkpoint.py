"""Compare the tensors of a checkpoint with those that a model expects, before loading."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import torch

from mpobert_plugin.errors import CheckpointError, shorten
from mpobert_plugin.locate import BANKS, base_of, family_of, is_converted, prefix_of

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

_HOSTS = "transformers.models."
Shapes: TypeAlias = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Comparison:
    """How the tensors of a checkpoint fit a model; names are the model's.

    Parameters
    ----------
    renamed : dict of str to str
        The checkpoint's name to the model's name, for all that fit.
    missing : tuple of str
        Expected and not there.
    unexpected : tuple of str
        There and not expected.
    mismatched : tuple of (str, tuple, tuple)
        Name, stored shape, expected shape.
    new_head : tuple of str
        Missing tensors that only the new task needs.
    expected : int
        Number of expected tensors.
    """

    renamed: dict[str, str]
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    mismatched: tuple[tuple[str, tuple[int, ...], tuple[int, ...]], ...]
    new_head: tuple[str, ...]
    expected: int

    @property
    def fits(self) -> bool:
        """Whether everything that must be there is, and nothing else that matters."""
        return not (self.missing or self.unexpected or self.mismatched)


def expected_shapes(model: PreTrainedModel) -> dict[str, tuple[int, ...]]:
    """Return the shape of every tensor that a checkpoint of the model holds.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        Plain or converted.

    Returns
    -------
    dict of str to tuple of int
        Tied tensors under all their names; markers without elements are left out.
    """
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    return {name: shape for name, shape in shapes.items() if 0 not in shape}


def check_tensors(state_dict: object) -> None:
    """Refuse a state dict whose values no model can take.

    Parameters
    ----------
    state_dict : object
        Whatever the user gave.

    Raises
    ------
    CheckpointError
        When it is no mapping of names to tensors, or a tensor has no values; the first name is
        told.

    Examples
    --------
    >>> import torch
    >>> check_tensors({"weight": torch.ones(2)})
    """
    if not isinstance(state_dict, Mapping):
        raise CheckpointError(
            f"state_dict must map names to tensors, got {type(state_dict).__name__}. Pass what "
            "model.state_dict() returns."
        )
    for name, tensor in state_dict.items():
        if not isinstance(name, str) or not isinstance(tensor, torch.Tensor):
            raise CheckpointError(
                f"state_dict must map names to tensors, got {type(tensor).__name__} for {name!r}. "
                "Nothing was loaded."
            )
        if tensor.is_meta and tensor.numel():
            raise CheckpointError(
                f"{name} of the state_dict must have values, got a tensor on the meta device. "
                "Nothing was loaded."
            )


def check_kinds(
    model: PreTrainedModel, state_dict: Mapping[str, Tensor], found: Comparison
) -> None:
    """Refuse integers where a model has floating-point numbers.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        Plain or converted.
    state_dict : mapping of str to Tensor
        Tensors by the checkpoint's names.
    found : Comparison
        How the names fit.

    Raises
    ------
    CheckpointError
        When a tensor holds integers; its name and type are told.
    """
    expected = model.state_dict()
    for name, match in found.renamed.items():
        dtype = state_dict[name].dtype
        if expected[match].is_floating_point() and not dtype.is_floating_point:
            raise CheckpointError(
                f"{name} must hold floating-point numbers, got {dtype}. Nothing was loaded."
            )


def compare(model: PreTrainedModel, given: Shapes) -> Comparison:
    """Return how the tensors of a checkpoint fit a model.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        Plain or converted.
    given : mapping of str to tuple of int
        Shapes of the checkpoint's tensors by name.

    Returns
    -------
    Comparison
        Heads of other tasks, and what only a head of another task needs, are no faults.
    """
    expected = expected_shapes(model)
    stored = {name: shape for name, shape in given.items() if 0 not in shape}
    renamed = {name: match for name in stored if (match := _match(name, expected, model))}
    found = set(renamed.values())
    tied = {
        name
        for name, source in getattr(model, "all_tied_weights_keys", {}).items()
        if source in found or name in found
    }
    known = found | tied | computed_names(model)
    absent = [name for name in expected if name not in known]
    new_head = [name for name in absent if _is_new_head(name, model, found)]
    pooled = any(_in_pooler(name.removeprefix(prefix_of(model)), model) for name in expected)
    unexpected = [
        name for name in stored if name not in renamed and not _foreign(name, model, pooled)
    ]
    mismatched = [
        (renamed[name], stored[name], expected[renamed[name]])
        for name in renamed
        if stored[name] != expected[renamed[name]]
    ]
    missing = [name for name in absent if name not in new_head]
    if missing and not found:
        # Nothing fits: tied names miss as well, and no head is new.
        missing, new_head = list(expected), []
    return Comparison(
        renamed,
        tuple(missing),
        tuple(unexpected),
        tuple(mismatched),
        tuple(new_head),
        len(expected),
    )


def computed_names(model: PreTrainedModel) -> set[str]:
    """Return the names of tensors that the host computes and need not save, as some positions.

    Only the class with a head may say so, while its base model has the same ones.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        Plain or converted.

    Returns
    -------
    set of str
        Full names.

    Examples
    --------
    >>> from transformers import BertConfig, BertModel
    >>> sizes = dict(hidden_size=8, num_attention_heads=2, intermediate_size=16)
    >>> computed_names(BertModel(BertConfig(vocab_size=9, num_hidden_layers=1, **sizes)))
    set()
    """
    names = set(getattr(model, "_keys_to_ignore_on_save", None) or ())
    if prefix_of(model):
        return names
    prefix = f"{model.base_model_prefix}."
    hosts = {c.__module__ for c in type(model).__mro__ if c.__module__.startswith(_HOSTS)}
    for kind in (kind for host in hosts for kind in vars(sys.modules[host]).values()):
        if getattr(kind, "base_model_prefix", None) == model.base_model_prefix:
            others = getattr(kind, "_keys_to_ignore_on_save", None) or ()
            names |= {name.removeprefix(prefix) for name in others}
    return names


def _match(name: str, expected: Shapes, model: PreTrainedModel) -> str | None:
    """Find the model's name of a tensor: base and head checkpoints load into each other."""
    prefix = f"{model.base_model_prefix}."
    for candidate in (name, name.removeprefix(prefix), prefix + name):
        if candidate in expected:
            return candidate
    return None


def _is_new_head(name: str, model: PreTrainedModel, found: set[str]) -> bool:
    prefix = prefix_of(model)
    if prefix and not name.startswith(prefix):
        # A head of which some tensors are there is a damaged one, not a new one.
        head = _head_of(name, model)
        return not any(_head_of(other, model) == head for other in found)
    return _in_pooler(name.removeprefix(prefix), model) and not any(
        _in_pooler(other.removeprefix(prefix), model) for other in found
    )


def _head_of(name: str, model: PreTrainedModel) -> str:
    """Return the name of the head that a tensor belongs to.

    A module without parameters of its own may only hold several heads, as BERT's for pre-training
    does; then each of them is one.
    """
    first, _, rest = name.partition(".")
    module = model._modules.get(first)
    if module is None or any(True for _ in module.parameters(recurse=False)):
        return first
    parts = [part for part in module.children() if any(True for _ in part.parameters())]
    return first if len(parts) < 2 else f"{first}.{rest.partition('.')[0]}"


def _in_pooler(name: str, model: PreTrainedModel) -> bool:
    places = (family_of(model).beside.get("pooler", "pooler"), f"{BANKS}.pooler")
    return name.startswith(tuple(f"{place}." for place in places))


def _foreign(name: str, model: PreTrainedModel, pooled: bool) -> bool:
    """Tell whether a stored tensor belongs to another head, or to a pooler this model lacks."""

    def of_pooler(name: str) -> bool:
        return not pooled and _in_pooler(name, model)

    prefix = f"{model.base_model_prefix}."
    if name.startswith(prefix):
        inner = name.removeprefix(prefix)
        return of_pooler(inner) or inner.endswith("position_ids")
    first = name.split(".", maxsplit=1)[0]
    if first == BANKS or first in base_of(model)._modules:
        return of_pooler(name)
    return first not in ("module", "_orig_mod", "model")


def check(model: PreTrainedModel, given: Shapes, where: str) -> Comparison:
    """Return the comparison of a checkpoint with a model when it fits.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        Plain or converted.
    given : mapping of str to tuple of int
        Shapes of the checkpoint's tensors by name.
    where : str
        Where the checkpoint is, for the message.

    Returns
    -------
    Comparison
        Without faults; `new_head` may name tensors.

    Raises
    ------
    CheckpointError
        When tensors are missing, unexpected or of another shape; up to ten names of each and
        their number are listed, with a remedy.
    """
    found = compare(model, given)
    if found.fits:
        return found
    parts = []
    if found.missing:
        parts.append(
            f"{len(found.missing)} of {found.expected} expected tensors are missing: "
            f"{shorten(found.missing)}"
        )
    if found.unexpected:
        parts.append(f"{len(found.unexpected)} are unexpected: {shorten(found.unexpected)}")
    if found.mismatched:
        shapes = [f"{n} (stored {s}, expected {e})" for n, s, e in found.mismatched]
        parts.append(f"{len(shapes)} have another shape: {shorten(shapes)}")
    raise CheckpointError(
        f"{where} must hold the tensors of {type(model).__name__}. {'; '.join(parts)}. "
        f"{_remedy(model, given, found)} Nothing was loaded."
    )


def _remedy(model: PreTrainedModel, given: Shapes, found: Comparison) -> str:
    prefix = _common_prefix(model, list(given))
    if prefix:
        return (
            f"All names start with {prefix!r}, which a wrapper put there: remove it with "
            f"{{name.removeprefix({prefix!r}): tensor for name, tensor in state_dict.items()}}."
        )
    stored_mpo = any(f".{BANKS}." in f".{name}" for name in given)
    if stored_mpo and not is_converted(model):
        return (
            "This is an MPO checkpoint: load its folder with from_pretrained after "
            "'import mpobert_plugin', or convert the model first with the checkpoint's options."
        )
    if not stored_mpo and is_converted(model):
        return (
            "This is a plain checkpoint: load it into the plain model and call "
            "mpobert_plugin.convert(model, ...)."
        )
    if found.mismatched:
        return (
            "Bonds, sites, sharing or adapters differ: convert the model with the options that "
            "the checkpoint was made with; they are in its config.json."
        )
    return "The checkpoint is damaged or belongs to another model."


def _common_prefix(model: PreTrainedModel, names: Sequence[str]) -> str:
    expected = expected_shapes(model)
    for depth in (1, 2):
        parts = {".".join(name.split(".")[:depth]) for name in names}
        if len(parts) != 1:
            continue
        prefix = parts.pop() + "."
        bare = [name.removeprefix(prefix) for name in names]
        fitting = sum(_match(name, expected, model) is not None for name in bare)
        if fitting * 2 > len(names) and not any(_match(n, expected, model) for n in names):
            return prefix
    return ""
