"""Which kinds of tensors are trained: adapters only, auxiliary only, central only, heads."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from mpobert_plugin.errors import ConfigError, did_you_mean
from mpobert_plugin.kinds import KINDS, kinds_of
from mpobert_plugin.locate import check_model

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# What people write for a kind.
ALIASES = {"adapters": "adapter", "biases": "bias", "norms": "norm", "embeddings": "embedding"}
ALL = "all"


def freeze(model: PreTrainedModel, train: str | Iterable[str]) -> dict[str, int]:
    """Freeze all of a model but some kinds of tensors, in place; return what is trained.

    Lightweight fine-tuning trains the auxiliary tensors or the adapters and leaves the shared
    central tensors as they were pre-trained. A head that is new for its task must be named too.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        A converted model, or a plain one.
    train : str or iterable of str
        Kinds that are trained from now on, as `account` counts them: 'central', 'auxiliary',
        'adapter' (or 'adapters'), 'bias', 'norm', 'embedding', 'head', 'dense'; or 'all'. Biases
        and norms are kinds of their own wherever they are outside the head; a tensor that a head
        is tied to belongs to the embedding.

    Returns
    -------
    dict of str to int
        Number of trained parameters of each of these kinds.

    Raises
    ------
    ConfigError
        When a kind is unknown, or the model has no tensor of it; nothing is changed then.
    ModelTypeError
        When the model is none of a known family.

    References
    ----------
    P. Liu, Z.-F. Gao, W. X. Zhao, Z.-Y. Xie, Z.-Y. Lu and J.-R. Wen, "Enabling lightweight
    fine-tuning for pre-trained language model compression based on matrix product operators",
    2021.

    Examples
    --------
    >>> import mpobert_plugin as mp
    >>> model = mp.build("mpobert-12", adapter_rank=8, head="none", device="meta")
    >>> freeze(model, train=("adapters", "bias"))
    {'adapter': 609280, 'bias': 8448}
    """
    check_model(model)
    kinds = _kinds(train)
    groups = kinds_of(model)
    wanted = [kind for kind in KINDS if kind in groups] if ALL in kinds else kinds
    absent = [kind for kind in wanted if kind not in groups]
    if absent:
        remedy = " Convert it with adapter_rank=8, for instance." if "adapter" in absent else ""
        raise ConfigError(
            f"train must name kinds of tensors that the model has ({', '.join(groups)}), got "
            f"{absent[0]!r}, of which a {type(model).__name__} here has none.{remedy}"
        )
    for kind, parameters in groups.items():
        for parameter in parameters.values():
            parameter.requires_grad_(kind in wanted)
    return {kind: sum(p.numel() for p in groups[kind].values()) for kind in wanted}


def _kinds(train: object) -> list[str]:
    names = [train] if isinstance(train, str) else train
    if not isinstance(names, Iterable):
        raise ConfigError(f"train must name kinds of tensors, got {train!r}.")
    listed = list(names)
    known = [*KINDS, *ALIASES, ALL]
    for name in listed:
        if not isinstance(name, str) or name not in known:
            raise ConfigError(
                f"train must name kinds of tensors, got {name!r}. {did_you_mean(str(name), known)}"
            )
    if not listed:
        raise ConfigError(f"train must name at least one kind of tensors, got {train!r}.")
    chosen = {ALIASES.get(name, name) for name in listed}
    return [kind for kind in (*KINDS, ALL) if kind in chosen]
