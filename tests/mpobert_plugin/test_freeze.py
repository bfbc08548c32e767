"""Freezing sets: what is trained, what is counted, and that training changes nothing else."""

from __future__ import annotations

import re

import pytest
import torch
from transformers import (
    AutoModelForSequenceClassification,
    BertForSequenceClassification,
    BertModel,
    Trainer,
    TrainingArguments,
)

import mpobert_plugin as mp
from mpobert_plugin.errors import ConfigError, ModelTypeError
from mpobert_plugin.kinds import KINDS, kinds_of
from tests.mpobert_plugin.handing import assert_same_gradients, gradients, loss_of
from tests.mpobert_plugin.models import (
    checkpoint_layers,
    ids,
    logits,
    stir_adapters,
    tiny_albert,
    tiny_bert,
)


def classifier(**options):
    model = tiny_bert(BertForSequenceClassification, num_labels=2)
    return mp.convert(model, **{"sharing": "all", "fit": "mean", "adapter_rank": 2, **options})


def trained(model):
    return {name for name, parameter in model.named_parameters() if parameter.requires_grad}


SETS = {
    "adapters": lambda n: "adapter_" in n,
    "adapter": lambda n: "adapter_" in n,
    "auxiliary": lambda n: ".auxiliary_" in n,
    "central": lambda n: n.endswith(".central"),
    "bias": lambda n: (
        n.endswith(("mpo.query.bias", "pooler.dense.bias"))
        or re.search(r"mpo\.(key|value|attention_output|ffn_in|ffn_out)\.bias", n) is not None
    ),
    "norm": lambda n: "norm" in n.lower(),
    "embedding": lambda n: "_embeddings." in n,
    "head": lambda n: n.startswith("classifier"),
    "dense": lambda n: n == "bert.pooler.dense.weight",
}


@pytest.mark.parametrize("kind", SETS)
def test_one_kind_is_trained_and_the_rest_frozen(kind):
    model = classifier()
    counts = mp.freeze(model, kind)
    names = {name for name, _ in model.named_parameters() if SETS[kind](name)}
    assert trained(model) == names
    (number,) = counts.values()
    assert number == mp.account(model).trainable > 0
    assert mp.account(model).by_kind[next(iter(counts))] == number


def test_every_parameter_is_of_one_kind_and_all_kinds_are_all_parameters():
    for model in (classifier(), mp.from_albert(tiny_albert(), 3, adapter_rank=1)):
        groups = kinds_of(model)
        listed = [id(p) for parameters in groups.values() for p in parameters.values()]
        assert sorted(listed) == sorted(id(p) for p in model.parameters())
        counts = mp.freeze(model, "all")
        assert counts == mp.account(model).by_kind
        assert list(counts) == [kind for kind in KINDS if kind in counts]
        assert trained(model) == {name for name, _ in model.named_parameters()}


def test_combinations_and_their_counts():
    model = classifier()
    counts = mp.freeze(model, train=["head", "adapters", "adapter"])
    assert list(counts) == ["adapter", "head"]
    assert trained(model) == {
        name for name, _ in model.named_parameters() if "adapter_" in name or "classifier" in name
    }
    assert sum(counts.values()) == mp.account(model).trainable
    assert mp.freeze(model, ("central",)) == {"central": mp.account(model).by_kind["central"]}


def test_a_tied_head_belongs_to_the_embedding():
    model = mp.convert(tiny_bert(), max_bond=3)
    mp.freeze(model, "head")
    assert not model.cls.predictions.decoder.weight.requires_grad
    assert model.cls.predictions.transform.dense.weight.requires_grad


def test_plain_models_can_be_frozen_too():
    assert list(mp.freeze(tiny_bert(), ["bias", "norm"])) == ["bias", "norm"]


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ("adaptors", "train must name kinds of tensors, got 'adaptors'. Did you mean 'adapters'"),
        (["central", "auxilary"], "got 'auxilary'. Did you mean 'auxiliary'?"),
        ([], "train must name at least one kind of tensors, got []."),
        (3, "train must name kinds of tensors, got 3."),
        ([None], "train must name kinds of tensors, got None."),
    ],
)
def test_unknown_kinds_are_errors_and_change_nothing(train, message):
    model = classifier()
    before = trained(model)
    with pytest.raises(ConfigError, match=re.escape(message)):
        mp.freeze(model, train)
    assert trained(model) == before


def test_kinds_that_the_model_does_not_have_are_errors():
    model = classifier(adapter_rank=0)
    message = (
        "got 'adapter', of which a BertForSequenceClassification here has none. Convert it with "
        "adapter_rank=8, for instance."
    )
    with pytest.raises(ConfigError, match=re.escape(message)):
        mp.freeze(model, ["adapters", "head"])
    with pytest.raises(ConfigError, match="got 'head', of which a BertModel here has none"):
        mp.freeze(mp.convert(tiny_bert(BertModel)), "head")
    with pytest.raises(ModelTypeError):
        mp.freeze(torch.nn.Linear(2, 2), "head")


class Labelled(torch.utils.data.Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, index):
        return {"input_ids": ids(16, 8)[index], "labels": torch.tensor(index % 2)}


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*pin_memory.*")
@pytest.mark.parametrize("train", [("auxiliary", "head"), ("adapters", "head"), ("central",)])
def test_the_trainer_changes_these_alone_and_all_of_it_is_saved(tmp_path, train):
    model = classifier()
    mp.freeze(model, train)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    arguments = TrainingArguments(
        output_dir=str(tmp_path / "run"),
        max_steps=3,
        per_device_train_batch_size=4,
        learning_rate=1e-2,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=Labelled())
    trainer.train()
    after = model.state_dict()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == trained(model)
    trainer.save_model(str(tmp_path / "end"))
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path / "end")
    assert torch.equal(logits(loaded), logits(model.eval()))
    assert mp.freeze(loaded, train) == mp.freeze(model, train)


class TestM26CheckpointingWithFrozenFirstLayers:
    @pytest.mark.parametrize("reentrant", [False, True])
    @pytest.mark.parametrize("train", ["adapters", "auxiliary", "central", ("bias", "norm")])
    def test_gradients_are_those_without_checkpointing(self, train, reentrant):
        runs = []
        for checkpointed in (False, True):
            model = mp.convert(tiny_bert(), sharing="groups:2", fit="mean", adapter_rank=2)
            stir_adapters(model)
            mp.freeze(model, train)
            model.train()
            if checkpointed:
                checkpoint_layers(model, reentrant)
            loss_of(model).backward()
            assert set(gradients(model)) == trained(model)
            runs.append(gradients(model))
        assert_same_gradients(*runs)

    def test_frozen_tensors_do_not_change_in_an_optimizer_step(self):
        model = checkpoint_layers(classifier().train(), reentrant=False)
        mp.freeze(model, ["adapters", "head"])
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        optimizer = torch.optim.AdamW(model.parameters(), 1e-2, weight_decay=0.1)
        model(ids(), labels=torch.tensor([0, 1])).loss.backward()
        optimizer.step()
        after = model.state_dict()
        changed = {name for name in before if not torch.equal(before[name], after[name])}
        assert changed <= trained(model)
        assert any("adapter_up" in name for name in changed)

    def test_a_plain_matrix_in_a_checkpointed_layer(self):
        runs = []
        for checkpointed in (False, True):
            model = mp.convert(tiny_bert(), targets=["query", "key"], adapter_rank=2)
            mp.freeze(model, ["adapters", "dense"])
            model.train()
            if checkpointed:
                checkpoint_layers(model, reentrant=False)
            loss_of(model).backward()
            runs.append(gradients(model))
        assert_same_gradients(*runs)


class TestM10EverythingThatWasTrainedIsRestored:
    @pytest.mark.parametrize("train", ["adapters", "auxiliary"])
    def test_the_head_comes_back_with_the_adapters(self, tmp_path, train):
        model = classifier()
        mp.freeze(model, [train, "head"])
        with torch.no_grad():
            model.classifier.weight += 1.0
            for name, parameter in model.named_parameters():
                if parameter.requires_grad and not name.startswith("classifier"):
                    parameter.add_(0.05 * torch.randn_like(parameter))
        model.save_pretrained(tmp_path)
        torch.manual_seed(99)
        loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path)
        torch.testing.assert_close(logits(loaded), logits(model), rtol=0, atol=1e-6)
