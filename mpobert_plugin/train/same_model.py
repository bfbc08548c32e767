"""What differs between the model of a run and the one that it is to go on with."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from mpobert_plugin.config import MPOConfig
from mpobert_plugin.locate import is_converted
from mpobert_plugin.spec import MEASURES

if TYPE_CHECKING:
    from pathlib import Path

    from transformers import PreTrainedModel

_CONVERSION, _PLAN = "quantization_config", "plan"
# Where a model came from, and what changes nothing of what a run computes.
_FREE = {
    "_name_or_path",
    "architectures",
    "dtype",
    "id2label",
    "label2id",
    "problem_type",
    "torch_dtype",
    "transformers_version",
    "use_cache",
    _CONVERSION,
}
# Of a plan, what tells how the first weights were made; a run that goes on has weights already.
_PAST = {"fit", "sources", "stored_before", *MEASURES}
_LONGEST = 60


def changes_of_model(folder: Path, model: PreTrainedModel) -> list[str]:
    """Return what a model has otherwise than the one of a checkpoint.

    Parameters
    ----------
    folder : Path
        A checkpoint, with the configuration of its model.
    model : transformers.PreTrainedModel
        The model that is to take its tensors.

    Returns
    -------
    list of str
        Each with the old and the new value; empty for a model of the same kind.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from transformers import BertConfig, BertModel
    >>> sizes = dict(hidden_size=8, num_attention_heads=2, intermediate_size=16)
    >>> model = BertModel(BertConfig(vocab_size=9, num_hidden_layers=2, **sizes))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     BertConfig(vocab_size=9, num_hidden_layers=1, **sizes).save_pretrained(folder)
    ...     print(changes_of_model(Path(folder), model))
    ['num_hidden_layers 1 -> 2']
    """
    stored = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    kinds = _kinds(stored, model)
    if stored.get("model_type") != model.config.model_type:
        # Of models of two types every option would differ.
        return kinds
    before, now = (_whole(options, model) for options in (stored, model.config.to_dict()))
    changed = _changed(before, now, _FREE)
    if not kinds and not changed and is_converted(model):
        changed = _changed_conversion(*(MPOConfig.from_dict(c[_CONVERSION]) for c in (before, now)))
    return kinds + changed


def _kinds(stored: dict[str, Any], model: PreTrainedModel) -> list[str]:
    """Return whether the class differs, and what was converted and is not, or the other way."""
    (before, *_), now = stored.get("architectures") or [None], type(model).__name__
    found = [] if before in (None, now) else [f"class {before} -> {now}"]
    was, is_now = (
        "converted" if is_mpo else "plain"
        for is_mpo in (_CONVERSION in stored, is_converted(model))
    )
    return found if was == is_now else [*found, f"matrices {was} -> {is_now}"]


def _whole(options: dict[str, Any], model: PreTrainedModel) -> dict[str, Any]:
    """Return a configuration with all defaults, by what JSON can hold."""
    config = type(model.config).from_dict(options)
    whole: dict[str, Any] = json.loads(config.to_json_string(use_diff=False))
    return whole


def _changed(before: dict[str, Any], now: dict[str, Any], free: set[str]) -> list[str]:
    names = [name for name in {**before, **now} if name not in free]
    return [
        f"{name} {_shown(before.get(name))} -> {_shown(now.get(name))}"
        for name in names
        if before.get(name) != now.get(name)
    ]


def _changed_conversion(before: MPOConfig, now: MPOConfig) -> list[str]:
    """Return options of conversions whose cores differ; those of equal cores say nothing."""
    if _plan(before) == _plan(now):
        return []
    return _changed(before.to_dict(), now.to_dict(), {_PLAN, "loaded_by"}) or ["plan"]


def _plan(config: MPOConfig) -> Any:
    return _without_past({} if config.plan is None else config.plan.to_dict())


def _without_past(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_past(entry) for entry in value]
    if not isinstance(value, dict):
        return value
    return {name: _without_past(entry) for name, entry in value.items() if name not in _PAST}


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ..."
