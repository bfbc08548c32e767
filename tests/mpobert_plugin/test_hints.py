"""What messages add to a misspelt word: close words once, and no list that is there already."""

from __future__ import annotations

import pytest
from transformers import BertConfig, BertModel

import mpobert_plugin as mp
from mpobert_plugin.errors import close_to, counted, did_you_mean, each_close_to

SIZES = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2}


def tiny():
    return BertModel(BertConfig(vocab_size=9, num_hidden_layers=2, **SIZES))


def test_a_word_that_is_known_twice_is_told_once():
    known = ["vocab_size", "hidden_size", "vocab_size", "type_vocab_size"]
    told = "Did you mean 'vocab_size' or 'type_vocab_size'?"
    assert did_you_mean("vocabsize", known) == told
    assert close_to("vocabsize", iter(known)) == f" {told}"
    assert did_you_mean("xyz", ["a", "b", "a"]) == "Known names: a, b."
    assert close_to("xyz", ["a", "b", "a"]) == ""


def test_of_several_names_each_is_told_once():
    assert each_close_to(["querry", "querry", "x"], iter(["query"])) == (
        "'querry': Did you mean 'query'? 'x' is close to none of them."
    )


@pytest.mark.parametrize(
    ("number", "told"), [(0, "0 steps"), (1, "1 step"), (2, "2 steps"), (1234, "1,234 steps")]
)
def test_one_is_singular(number, told):
    assert counted(number, "step") == told


def test_a_norm_of_all_layers_has_one_slice():
    model = mp.convert(tiny(), share_norm="all", fit="first")
    assert "2 x 16, 1 slice)" in repr(model)
    assert "2 x 16, 2 slices)" in repr(mp.convert(tiny()))


def test_options_of_a_preset_and_of_its_model_are_told_once():
    with pytest.raises(mp.errors.ConfigError, match="'vocabsize'") as error:
        mp.build("mpobert-48", device="meta", vocabsize=3)
    assert str(error.value).endswith("Did you mean 'vocab_size' or 'type_vocab_size'?")


def test_choices_that_a_message_lists_are_not_listed_again():
    refused = {
        "fit must be 'joint' or 'mean' or 'first', got 'average'.": lambda: mp.convert(
            tiny(), sharing="all", fit="average"
        ),
        "got 'fast'.": lambda: mp.set_strategy(mp.convert(tiny()), "fast"),
        "optimizer must be one of sgd, adam, adamw, lamb, got 'xyz'.": lambda: mp.param_groups(
            mp.convert(tiny()), "xyz", lr=1.0
        ),
    }
    for told, work in refused.items():
        with pytest.raises(mp.errors.ConfigError) as error:
            work()
        assert str(error.value).endswith(told), str(error.value)
