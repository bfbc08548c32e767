"""A run goes on with its own settings and model, and says what differs and where to go."""

from __future__ import annotations

import pytest
import torch
import transformers

import mpobert_plugin as mp
from mpobert_plugin.errors import CheckpointError
from mpobert_plugin.train.checkpoint import Checkpoint
from mpobert_plugin.train.same_run import check_same_run
from mpobert_plugin.train.state import read_state, write_state
from tests.mpobert_plugin.train.tiny import MODELS, SIZES
from tests.mpobert_plugin.train.tiny_run import BASE, fresh

EXTRA = {"config": BASE.to_dict(), "corpus": "1234"}


def host(kind="BertForMaskedLM", **options):
    config = MODELS[kind]
    return getattr(transformers, kind)(type(config)(**{**config.to_dict(), **options}))


def kept(model, folder):
    """Return a checkpoint as a run writes one, as far as models are compared by it."""
    place = folder / "run" / "checkpoints" / "step-000000003"
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(place)
    return Checkpoint(place, 3, EXTRA)


def refusal(before, now, folder, **settings):
    with pytest.raises(CheckpointError) as error:
        check_same_run(kept(before, folder), {**EXTRA, **settings}, now)
    text = str(error.value)
    start = f"the run in {folder / 'run'} must go on with its own settings, text and model, got "
    assert text.startswith(start)
    changed, _, remedy = text.removeprefix(start).partition(". Give ")
    return changed, remedy


def change_of_model(before, now, folder):
    changed, remedy = refusal(before, now, folder)
    # Its weights are of no use to another model.
    assert remedy == "out= another folder for a new run."
    return changed.removeprefix("another model (").removesuffix(")")


def converted(**options):
    return mp.convert(host(), n=3, **{"adapter_rank": 1, **options})


def test_more_layers_are_told_as_settings_are(tmp_path):
    changed = change_of_model(fresh(), fresh(num_layers=3), tmp_path)
    assert changed == "num_hidden_groups 2 -> 3, num_hidden_layers 2 -> 3"


@pytest.mark.parametrize(
    ("option", "change"),
    [
        ({"num_attention_heads": 4}, "num_attention_heads 2 -> 4"),
        ({"hidden_dropout_prob": 0.25}, "hidden_dropout_prob 0.1 -> 0.25"),
        ({"hidden_act": "relu"}, "hidden_act 'gelu' -> 'relu'"),
    ],
)
def test_what_changes_no_shape_changes_the_run_all_the_same(tmp_path, option, change):
    assert change_of_model(host(), host(**option), tmp_path) == change


def test_another_kind_of_model_is_told_by_its_class(tmp_path):
    assert change_of_model(host(), fresh(), tmp_path) == (
        "class BertForMaskedLM -> AlbertForPreTraining, matrices plain -> converted"
    )
    changed = change_of_model(host(), host("BertForPreTraining"), tmp_path)
    assert changed == "class BertForMaskedLM -> BertForPreTraining"
    assert change_of_model(converted(), host(), tmp_path) == "matrices converted -> plain"


def test_another_conversion_is_told_by_its_options(tmp_path):
    changed = change_of_model(converted(), converted(adapter_rank=2, max_bond=4), tmp_path)
    assert set(changed.split(", ")) == {"adapter_rank 1 -> 2", "max_bond None -> 4"}


def test_settings_and_model_are_told_together(tmp_path):
    config = BASE.replace(steps=9).to_dict()
    changed, _ = refusal(host(), host(hidden_size=8), tmp_path, config=config, corpus="5")
    assert changed == "steps 8 -> 9, another text, another model (hidden_size 16 -> 8)"


def test_settings_alone_leave_the_weights_as_a_start(tmp_path):
    changed, remedy = refusal(host(), host(), tmp_path, config=BASE.replace(lr=0.5).to_dict())
    assert changed == "lr 0.01 -> 0.5"
    checkpoint = tmp_path / "run" / "checkpoints" / "step-000000003"
    assert remedy == (
        f"out= another folder for a new run, and model={checkpoint} to begin with its weights."
    )


def test_many_options_are_shortened(tmp_path):
    others = {name: 2 * value for name, value in SIZES.items()}
    others |= {"layer_norm_eps": 0.5, "initializer_range": 0.5, "hidden_act": "relu"}
    others |= {"hidden_dropout_prob": 0.5, "attention_probs_dropout_prob": 0.5, "pad_token_id": 3}
    others |= {"max_position_embeddings": 64, "vocab_size": 98}
    changed = change_of_model(host(), host(**others), tmp_path)
    assert changed.endswith(", ... (12 in total)")


@pytest.mark.parametrize("make", [host, fresh, converted])
def test_the_model_itself_and_the_same_from_a_folder_go_on(tmp_path, make):
    model = make()
    model.save_pretrained(tmp_path / "model")
    again = type(model).from_pretrained(tmp_path / "model", attn_implementation="eager")
    for found in (model, again, make()):
        check_same_run(kept(model, tmp_path), EXTRA, found)


def test_cores_that_began_in_another_way_go_on(tmp_path):
    before, now = converted(sharing="all", fit="mean"), converted(sharing="all", fit="first")
    check_same_run(kept(before, tmp_path), EXTRA, now)


def test_a_model_that_was_changed_by_hand_is_told_by_few_names(tmp_path):
    model, parameters = fresh(), {}
    write_state(tmp_path, model, None, parameters)
    model.predictions.dense = torch.nn.Linear(16, 9)
    with pytest.raises(CheckpointError) as error:
        read_state(tmp_path, model, None, parameters)
    assert str(error.value) == (
        f"{tmp_path} must hold the tensors of the model that is to go on, got 0 missing, 0 "
        "unexpected and 2 of another shape (predictions.dense.bias, predictions.dense.weight). "
        "Give out= another folder, or the model that the run began with."
    )
