"""What LoRA trains besides: the head of a new task, and never the head of a language model."""

from __future__ import annotations

import pytest
import torch
import transformers

import mpobert_plugin as mp
from mpobert_plugin.peft.task_heads import task_heads
from tests.mpobert_plugin.zoo import SIZES, tiny

# Of each kind: heads of tokens, tied or not, in one part or in several, and heads of tasks.
HEADS = {
    "BertForMaskedLM": [],
    "BertForPreTraining": [],
    "BertForMultipleChoice": ["classifier"],
    "AlbertForPreTraining": [],
    "RobertaForMaskedLM": [],
    "RobertaForSequenceClassification": ["classifier"],
    "DistilBertForMaskedLM": [],
    "DistilBertForSequenceClassification": ["pre_classifier", "classifier"],
    "ElectraForMaskedLM": [],
    "ElectraForPreTraining": [],
    "ElectraForTokenClassification": ["classifier"],
    "GPT2LMHeadModel": [],
    "GPT2DoubleHeadsModel": ["multiple_choice_head"],
    "LlamaForCausalLM": [],
    "LlamaForSequenceClassification": ["score"],
    "LlamaForQuestionAnswering": ["qa_outputs"],
    "LlamaModel": [],
}


def on_meta(name, **options):
    kind = getattr(transformers, name)
    sizes = SIZES.get(kind.config_class.model_type, {})
    with torch.device("meta"):
        return kind(kind.config_class(**{**sizes, "num_labels": 3, **options}))


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("name", HEADS)
def test_heads_of_tasks_alone_are_trained_whole(name, tied):
    model = on_meta(name, tie_word_embeddings=tied)
    assert task_heads(model) == HEADS[name]


T5 = {"d_model": 8, "d_kv": 4, "d_ff": 16, "num_layers": 1, "num_heads": 2, "vocab_size": 32}


@pytest.mark.parametrize(
    ("name", "heads"),
    [
        ("T5Model", []),
        ("T5ForConditionalGeneration", []),
        ("T5ForQuestionAnswering", ["qa_outputs"]),
        ("T5ForSequenceClassification", ["classification_head"]),
    ],
)
def test_heads_inside_what_has_no_base_model_of_its_own(name, heads):
    assert task_heads(on_meta(name, **T5)) == heads


@pytest.mark.parametrize("targets", [["query"], ["query", "embedding"]])
def test_the_untied_head_of_a_converted_language_model_stays_as_it_is(targets):
    pytest.importorskip("peft", reason="PEFT is not installed")
    model = mp.convert(tiny("llama", "CausalLM", num_hidden_layers=1), n=3, targets=targets)
    assert mp.peft.lora_config(model, targets=["query"]).modules_to_save is None
    # Whoever wants it says so.
    named = mp.peft.lora_config(model, targets=["query"], modules_to_save=["lm_head"])
    assert named.modules_to_save == ["lm_head"]
