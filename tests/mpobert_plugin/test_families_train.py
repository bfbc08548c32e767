"""transformers' Trainer and pipelines on converted models of several families."""

from __future__ import annotations

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import (
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
    pipeline,
)

import mpobert_plugin as mp
from mpobert_plugin.errors import MPOBertWarning
from tests.mpobert_plugin.zoo import CAUSAL, language_model, outputs, tokens

WORDS = ["[PAD]", "[CLS]", "[SEP]", "[MASK]", "[UNK]", *(f"w{k}" for k in range(94))]


class Rows(torch.utils.data.Dataset):
    def __init__(self, model):
        self.ids = tokens(model, rows=16, length=8)

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, index):
        return {"input_ids": self.ids[index], "labels": self.ids[index]}


def converted(model_type):
    model = language_model(model_type, num_hidden_layers=3)
    return mp.convert(model, n=3, sharing="all", fit="mean", adapter_rank=2)


def auto_of(model_type):
    return AutoModelForCausalLM if model_type in CAUSAL else AutoModelForMaskedLM


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.filterwarnings("ignore:.*pin_memory.*")
@pytest.mark.parametrize(
    "model_type",
    [
        "gpt2",
        pytest.param("llama", marks=pytest.mark.slow),
        pytest.param("mpnet", marks=pytest.mark.slow),
        pytest.param("roberta", marks=pytest.mark.slow),
    ],
)
def test_trainer(model_type, tmp_path):
    converted(model_type).save_pretrained(tmp_path / "start")
    model = auto_of(model_type).from_pretrained(tmp_path / "start")
    arguments = TrainingArguments(
        output_dir=str(tmp_path / "run"),
        max_steps=4,
        save_steps=2,
        per_device_train_batch_size=4,
        learning_rate=1e-2,
        weight_decay=0.01,
        gradient_checkpointing=True,
        gradient_checkpointing_kwargs={"use_reentrant": False},
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        seed=0,
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=Rows(model))
    groups = trainer.create_optimizer().param_groups
    seen = [id(parameter) for group in groups for parameter in group["params"]]
    assert sorted(seen) == sorted(id(parameter) for parameter in model.parameters())
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    undecayed = {names[id(p)] for g in groups if g["weight_decay"] == 0.0 for p in g["params"]}
    norms = {n for n in names.values() if "norm" in n.lower() or ".ln_" in n or n.endswith("bias")}
    assert norms <= undecayed
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    trainer.train()
    moved = {name for name, p in model.named_parameters() if not torch.equal(before[name], p)}
    assert {name for name in before if "central" in name or "adapter" in name} <= moved
    mp.assert_shared(model)
    trainer.save_model(str(tmp_path / "end"))
    loaded = auto_of(model_type).from_pretrained(tmp_path / "end")
    model.eval()
    with torch.no_grad():
        assert torch.equal(outputs(loaded)[0], outputs(model)[0])
    resumed = auto_of(model_type).from_pretrained(tmp_path / "start")
    again = Trainer(model=resumed, args=arguments, train_dataset=Rows(resumed))
    again.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-2"))
    resumed.eval()
    with torch.no_grad():
        expected = outputs(model)[0]
        torch.testing.assert_close(outputs(resumed)[0], expected, rtol=0, atol=1e-5)


@pytest.fixture
def tokenizer():
    words = Tokenizer(WordLevel({word: k for k, word in enumerate(WORDS)}, unk_token="[UNK]"))
    words.pre_tokenizer = Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=words,
        pad_token="[PAD]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        unk_token="[UNK]",
    )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("model_type", ["gpt2", "llama"])
def test_a_pipeline_that_writes_on(model_type, tokenizer, tmp_path):
    model = converted(model_type)
    model.generation_config.eos_token_id = None
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    options = {"max_new_tokens": 5, "do_sample": False}
    write = pipeline("text-generation", model=str(tmp_path), device="cpu")
    found = write("w3 w7 w1", return_tensors=True, **options)[0]["generated_token_ids"]
    given = tokenizer("w3 w7 w1", return_tensors="pt").input_ids
    expected = mp.merge(model).generate(given, **options)
    assert len(found) == 8
    assert list(found) == expected[0].tolist()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("model_type", ["distilbert", "electra", "mpnet", "roberta"])
def test_a_pipeline_that_fills_gaps(model_type, tokenizer, tmp_path):
    model = converted(model_type)
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    fill = pipeline("fill-mask", model=str(tmp_path), device="cpu")
    found = fill("w3 [MASK] w1", top_k=3)
    given = tokenizer("w3 [MASK] w1", return_tensors="pt")
    with torch.no_grad():
        logits = mp.merge(model)(given.input_ids).logits[0, 1]
    assert [entry["token"] for entry in found] == logits.topk(3).indices.tolist()


def test_a_new_task_on_a_converted_model(tmp_path):
    converted("roberta").save_pretrained(tmp_path)
    with pytest.warns(MPOBertWarning, match=r"classifier\.dense\.weight"):
        task = AutoModelForSequenceClassification.from_pretrained(tmp_path, num_labels=3)
    loss = task(tokens(task), labels=torch.tensor([0, 2])).loss
    loss.backward()
    assert task.roberta.mpo["query"].central.grad.abs().sum() > 0
