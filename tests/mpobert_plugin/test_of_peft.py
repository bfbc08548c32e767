"""A model of PEFT is told what to pass or call at once, and what is told works."""

from __future__ import annotations

import re

import pytest
import torch

import mpobert_plugin as mp
from mpobert_plugin import of_peft
from mpobert_plugin.errors import ConversionError, ModelTypeError
from mpobert_plugin.train.trainable import check_trainable
from tests.mpobert_plugin.lora import adapted, classifier
from tests.mpobert_plugin.models import tiny_albert, tiny_bert

peft = pytest.importorskip("peft", reason="PEFT is not installed")
IDS = {"input_ids": torch.ones(1, 4, dtype=torch.long)}

READ = {
    "describe": mp.describe,
    "report": mp.report,
    "certificates": mp.certificates,
    "assert_shared": mp.assert_shared,
    "sharing_groups": mp.sharing_groups,
    "set_cache": lambda model: mp.set_cache(model, False),
    "set_strategy": lambda model: mp.set_strategy(model, "batched"),
    "freeze": lambda model: mp.freeze(model, train=("head",)),
    "param_groups": lambda model: mp.param_groups(model, "adamw", lr=1.0),
    "input_metrics": lambda model: mp.input_metrics(model, [IDS], ["query"]),
}
OTHERS = {
    "convert": (mp.convert, of_peft.CONVERT_BEFORE),
    "make_plan": (lambda model: mp.make_plan(model, mp.MPOConfig()), of_peft.CONVERT_BEFORE),
    "from_albert": (lambda model: mp.from_albert(model, num_layers=3), of_peft.CONVERT_BEFORE),
    "baseline": (
        lambda model: mp.baseline("low_rank", model, match_parameters=9),
        of_peft.CONVERT_BEFORE,
    ),
    "merge": (mp.merge, of_peft.MERGE_BOTH),
    "merge_with_report": (mp.merge_with_report, of_peft.MERGE_BOTH),
    "merge_adapters": (mp.merge_adapters, of_peft.MERGE_OR_UNLOAD),
    "unmerge_adapters": (mp.unmerge_adapters, of_peft.MERGE_OR_UNLOAD),
    "peft.load": (lambda model: mp.peft.load(model, "nowhere"), of_peft.ADD_ANOTHER),
    "pretrain": (check_trainable, of_peft.TRAIN_WITHOUT),
}


@pytest.fixture(scope="module")
def lora():
    return adapted(classifier(adapter_rank=1))


@pytest.fixture(scope="module")
def on_plain():
    return peft.get_peft_model(tiny_bert(), peft.LoraConfig(target_modules=["query"]))


def refused(function, model, remedy, error=ModelTypeError):
    with pytest.raises(error, match=re.escape(remedy) + "$"):
        function(model)


@pytest.mark.parametrize("name", READ)
def test_what_reads_a_model_takes_the_one_inside(lora, name):
    refused(READ[name], lora, "got PeftModel. Pass model.get_base_model().")
    READ[name](lora.get_base_model())


@pytest.mark.parametrize("name", OTHERS)
def test_what_cannot_take_the_model_inside_says_what_can(lora, name):
    function, remedy = OTHERS[name]
    refused(function, lora, f"got PeftModel. {remedy}")


def test_what_is_told_works(lora):
    assert isinstance(mp.peft.merge(lora), torch.nn.Module)
    plain = adapted(classifier(adapter_rank=1, sharing="none")).unload()
    assert mp.merge_adapters(plain).adapters
    check_trainable(plain)


@pytest.mark.parametrize("name", ["merge", "merge_adapters"])
def test_lora_on_a_plain_model_is_merged_by_its_own_library(on_plain, name):
    refused(OTHERS[name][0], on_plain, f"got PeftModel. {of_peft.ON_PLAIN}")
    inside = on_plain.get_base_model()
    refused(OTHERS[name][0], inside, of_peft.ON_PLAIN, ConversionError)
    refused(mp.describe, on_plain, of_peft.ON_PLAIN)
    text = "Call model.merge_and_unload() of PEFT, which merges it rightly."
    refused(mp.peft.merge, on_plain, text, ConversionError)


def test_a_run_refuses_layers_of_peft_before_it_trains_what_it_could_not_save(lora, on_plain):
    for model, number in ((lora, len(lora.targeted_module_names) + 1), (on_plain, 4)):
        inside = model.get_base_model()
        with pytest.raises(ModelTypeError, match=rf"no LoRA in its layers, got {number} with it: "):
            check_trainable(inside)


def test_other_wrappers_have_no_part_in_it():
    assert of_peft.inside(torch.nn.DataParallel(tiny_albert())) is None
    assert of_peft.layers_of_peft(tiny_albert()) == []
