"""What stands in the places where a plan puts readers and adapters."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, TypeVar

from torch import Tensor, nn

from mpobert_plugin.adapter import AdaptedLinear
from mpobert_plugin.attach_outside import outside_path
from mpobert_plugin.embedding import EmbeddingBank, MPOHead
from mpobert_plugin.held import held_of
from mpobert_plugin.locate import BANKS, base_of, family_of, prefix_of
from mpobert_plugin.outside import EMBEDDING
from mpobert_plugin.parts import module_beside
from mpobert_plugin.reader import Reader
from mpobert_plugin.runtime import banks_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from transformers import PreTrainedModel

    from mpobert_plugin.norm_spec import NormSpec
    from mpobert_plugin.runtime import Banks
    from mpobert_plugin.spec import BankSpec

Kind = TypeVar("Kind", bound=nn.Module)

# Names under which wrappers keep a module that others still see in its own place.
WRAPPED = ("_checkpoint_wrapped_module", "_fsdp_wrapped_module", "_orig_mod")
# Parts of the longest name of a layer that is looked for inside wrappers.
_DEEPEST = 9
_BACK = (
    "Put the module of the converted model back, or go on with the plain model that "
    "mpobert_plugin.merge(model) returns."
)
_TENSOR = "Put the tensor back, or load the model again."
_COPIED = "It was copied apart from the model: copy the whole model instead."
_ORDER = "Put the layers back in their order: a saved model would be loaded in it."
_LAYERS = (
    "Put the layers back, or change them in the plain model that mpobert_plugin.merge(model) "
    "returns, with their number in its configuration, and convert that."
)


@dataclass(frozen=True)
class Misplaced:
    """A place that does not hold what the plan says.

    Parameters
    ----------
    name : str
        Full name of the place.
    expected : str
        What it must do.
    found : str
        What is there.
    remedy : str
        What to do.

    Examples
    --------
    >>> print(Misplaced("layer.0.query", "read the bank 'query'", "a Linear", "Put it back."))
    layer.0.query must read the bank 'query', got a Linear. Put it back.
    """

    name: str
    expected: str
    found: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.name} must {self.expected}, got {self.found}. {self.remedy}"


def misplaced(model: PreTrainedModel) -> Iterator[Misplaced]:
    """Return an iterator over the places of a model that do not hold what its plan says.

    What wraps a module of the plan may stand in its place: it is looked for inside. So may the
    plain matrices of merged adapters.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        A converted model.

    Returns
    -------
    iterator of Misplaced
        Nothing for a model that is as it was converted.

    Raises
    ------
    ConversionError
        When the model is not converted.

    Examples
    --------
    >>> import mpobert_plugin as mp
    >>> model = mp.build("mpobert-12", head="none", device="meta")
    >>> list(misplaced(model))
    []
    >>> layer = model.encoder.albert_layer_groups[3].albert_layers[0]
    >>> layer.ffn = nn.Linear(768, 3072, device="meta")
    >>> [place.name for place in misplaced(model)]
    ['encoder.albert_layer_groups.3.albert_layers.0.ffn']
    """
    banks, layers = banks_of(model), layers_of(model)
    emptied = list(_emptied(model, banks))
    if emptied:
        # What is read from such a bank cannot be compared.
        yield from emptied
        return
    if len(layers) == banks.plan.n_layers:
        yield from _in_layers(model, banks, layers)
    else:
        yield _miscounted(model, banks, layers)
    yield from _outside(model, banks)
    yield from _beside(model, banks)
    yield from _heads(model, banks)


def layers_of(model: PreTrainedModel) -> dict[str, nn.Module]:
    """Return the layers of a model by their names, seen from the base model.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        Model of a family.

    Returns
    -------
    dict of str to torch.nn.Module
        First layer first; a wrapper stands for the layer inside. Wrappers around several layers
        are looked through when layers of the plan are missing otherwise.

    Examples
    --------
    >>> import mpobert_plugin as mp
    >>> len(layers_of(mp.build("mpobert-12", head="none", device="meta")))
    12
    """
    base, found = base_of(model), dict[str, nn.Module]()
    is_layer = family_of(model).is_layer
    for name, module in base.named_modules(remove_duplicate=False):
        own = ".".join(part for part in name.split(".") if part not in WRAPPED)
        if is_layer(own):
            found.setdefault(own, module)
    plan = getattr(base._modules.get(BANKS), "plan", None)
    if plan is not None and len(found) != plan.n_layers:
        inside = _within_wrappers(base, is_layer)
        if len(inside) == plan.n_layers:
            return inside
    return found


def _within_wrappers(base: nn.Module, is_layer: Callable[[str], bool]) -> dict[str, nn.Module]:
    """Find layers whose names have parts between that a wrapper of any kind has put there."""
    found: dict[str, nn.Module] = {}
    todo = [("", base)]
    while todo:
        name, module = todo.pop()
        own = _without_wrappers(name, is_layer)
        if own:
            found.setdefault(own, module)
        elif module is not base._modules.get(BANKS):
            children = reversed(module._modules.items())
            todo += [(f"{name}.{n}".lstrip("."), m) for n, m in children if m is not None]
    return found


def _without_wrappers(name: str, is_layer: Callable[[str], bool]) -> str:
    """Return the name of a layer with the fewest parts left out; empty where there is none."""
    parts = name.split(".")
    # Names of layers are short; those of deeper modules would have too many subsets.
    for kept in range(len(parts), 0, -1) if len(parts) <= _DEEPEST else ():
        for chosen in combinations(parts, kept):
            own = ".".join(chosen)
            if is_layer(own):
                return own
    return ""


def _miscounted(model: PreTrainedModel, banks: Banks, layers: dict[str, nn.Module]) -> Misplaced:
    parent = next(iter(layers), "").rpartition(".")[0]
    alone = parent and not family_of(model).repeats_layers
    name = prefix_of(model) + parent if alone else type(model).__name__
    return Misplaced(
        name, f"have the {banks.plan.n_layers} layers of its plan", str(len(layers)), _LAYERS
    )


def _in_layers(
    model: PreTrainedModel, banks: Banks, layers: dict[str, nn.Module]
) -> Iterator[Misplaced]:
    family, prefix = family_of(model), prefix_of(model)
    paths = {**family.matrices, **family.norms}
    for number, (layer, module) in enumerate(layers.items()):
        for spec in banks.plan.of_layer(number):
            path = paths[spec.role]
            place = _at(module, path)
            inside = [] if place is None else _inside(place, Reader)
            if place is None:
                # A wrapper may hide the paths of a layer, but not what is inside.
                inside = [r for r in _inside(module, Reader) if r.bank.role == spec.role]
            found = _check_readers(f"{prefix}{layer}.{path}", place, inside, banks, spec)
            if found is not None:
                yield found
            else:
                own = [reader for reader in inside if reader.bank.name == spec.name]
                yield from _check_order(f"{prefix}{layer}.{path}", number, own, spec)


def _emptied(model: PreTrainedModel, banks: Banks) -> Iterator[Misplaced]:
    """Find tensors of banks that were taken away; a parametrization may stand in their place."""
    for bank in banks.stacked():
        for name, shape in bank.spec.tensor_shapes().items():
            found = getattr(bank, name, None)
            if not isinstance(found, Tensor):
                place = f"{prefix_of(model)}{BANKS}.{bank.name}.{name}"
                yield Misplaced(place, f"be a tensor of shape {shape}", repr(found), _TENSOR)


def _outside(model: PreTrainedModel, banks: Banks) -> Iterator[Misplaced]:
    for spec in banks.plan.outside:
        path = outside_path(model, spec.role)
        place = module_beside(model, path)
        # A model with another head may lack the pooler.
        if place is None:
            continue
        name, inside = prefix_of(model) + path, _inside(place, Reader)
        found = _check_readers(name, place, inside, banks, spec)
        if found is not None:
            yield found


def _beside(model: PreTrainedModel, banks: Banks) -> Iterator[Misplaced]:
    for spec in banks.plan.beside:
        path = family_of(model).beside[spec.role]
        place = module_beside(model, path)
        if place is None or _inside(place, AdaptedLinear) or _is_merged(place, banks):
            continue
        expected = f"have the adapter of rank {spec.rank} that the plan gives {spec.role!r}"
        yield Misplaced(prefix_of(model) + path, expected, _told(place), _BACK)


def _heads(model: PreTrainedModel, banks: Banks) -> Iterator[Misplaced]:
    bank = banks._modules.get(EMBEDDING)
    if not isinstance(bank, EmbeddingBank):
        return
    expected = f"read the bank {EMBEDDING!r} of the model"
    for name, module in model.named_modules():
        if isinstance(module, MPOHead) and module.bank is not bank:
            yield Misplaced(name, expected, "another bank", _COPIED)
    if not getattr(model.config, "tie_word_embeddings", False):
        return
    for name in bank.heads:
        place = _at(model, name)
        if place is not None and not _inside(place, MPOHead):
            yield Misplaced(name, expected, _told(place), _BACK)


def _check_readers(
    name: str,
    place: nn.Module | None,
    inside: list[Reader],
    banks: Banks,
    spec: BankSpec | NormSpec,
) -> Misplaced | None:
    """Return what is wrong with a place that must read a bank; None when it does."""
    bank, expected = banks._modules.get(spec.name), f"read the bank {spec.name!r} of the model"
    if place is not None and _is_merged(place, banks):
        return None
    if not inside:
        return Misplaced(name, expected, _told(place), _BACK)
    if not any(reader.bank is bank for reader in inside):
        return Misplaced(name, expected, "another bank", _COPIED)
    return None


def _check_order(
    name: str, number: int, inside: list[Reader], spec: BankSpec | NormSpec
) -> Iterator[Misplaced]:
    """Find readers of the values of another layer; layers that share all of them are alike."""
    for reader in inside:
        slot, slices = spec.slot_of(number), reader.bank.slices().values()
        if slot is None or any(of[reader.slot] != of[slot] for of in slices):
            expected = f"read the values of layer {number} in bank {spec.name!r}"
            yield Misplaced(name, expected, f"those of layer {reader.layer}", _ORDER)


def _is_merged(place: nn.Module, banks: Banks) -> bool:
    held = held_of(banks)
    plain = set() if held is None else {id(module) for module in held.plain.values()}
    return any(id(module) in plain for module in place.modules())


def _inside(place: nn.Module, kind: type[Kind]) -> list[Kind]:
    return [module for module in place.modules() if isinstance(module, kind)]


def _at(root: nn.Module, path: str) -> nn.Module | None:
    module: nn.Module | None = root
    for part in path.split("."):
        module = getattr(module, part, None)
    return module if isinstance(module, nn.Module) else None


def _told(place: nn.Module | None) -> str:
    return "nothing" if place is None else f"a {type(place).__name__}, which was put in its place"
