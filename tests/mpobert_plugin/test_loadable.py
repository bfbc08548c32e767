"""A converted model whose folder could not be loaded is refused before a file is written."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize, prune
from torch.nn.utils.parametrizations import weight_norm
from transformers import (
    AlbertForMaskedLM,
    BertForMaskedLM,
    BertModel,
    OPTConfig,
    OPTForCausalLM,
    PreTrainedModel,
)

import mpobert_plugin as mp
from mpobert_plugin.errors import MPOBertWarning, SharingError
from tests.mpobert_plugin.models import logits, tiny_albert, tiny_bert


class Forwards(nn.Module):
    """A wrapper through which the attributes of the module inside are seen."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("inner"), name)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.inner(*args, **kwargs)


class Hides(nn.Module):
    """A wrapper through which nothing is seen."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.inner(*args, **kwargs)


class Scales(Forwards):
    """A wrapper with a parameter of its own."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__(inner)
        self.scale = nn.Parameter(torch.ones(()))


class Counts(Forwards):
    """A wrapper with a buffer of its own."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__(inner)
        self.register_buffer("calls", torch.zeros(1))


def bert() -> Any:
    return mp.convert(tiny_bert(), n=2, sharing="all", fit="mean")


def albert() -> Any:
    return mp.from_albert(tiny_albert(), 3)


def opt() -> Any:
    sizes = {"hidden_size": 8, "ffn_dim": 16, "num_attention_heads": 2, "word_embed_proj_dim": 8}
    config = OPTConfig(vocab_size=9, num_hidden_layers=2, max_position_embeddings=9, **sizes)
    return mp.convert(OPTForCausalLM(config), n=2, targets=["*.fc1"])


# Module, and the name of its attribute that is wrapped; a number is an item of a list.
PLACES: dict[str, tuple[Any, str]] = {
    "bert reader": (bert, "bert.encoder.layer.1.attention.self.query"),
    "bert norm": (bert, "bert.encoder.layer.1.output.LayerNorm"),
    "bert attention": (bert, "bert.encoder.layer.1.attention"),
    "bert layer": (bert, "bert.encoder.layer.1"),
    "bert encoder": (bert, "bert.encoder"),
    "albert reader": (albert, "albert.encoder.albert_layer_groups.1.albert_layers.0.ffn"),
    "albert attention": (albert, "albert.encoder.albert_layer_groups.1.albert_layers.0.attention"),
    "albert layer": (albert, "albert.encoder.albert_layer_groups.1.albert_layers.0"),
    "albert group": (albert, "albert.encoder.albert_layer_groups.1"),
}


def wrap(model: Any, path: str, kind: Any) -> Any:
    parent, _, name = path.rpartition(".")
    module = model.get_submodule(path)
    holder = model.get_submodule(parent)
    holder._modules[name] = kind(module)
    return model


@pytest.mark.parametrize("kind", [Forwards, Hides])
@pytest.mark.parametrize("where", PLACES)
def test_wrappers_without_tensors_are_looked_through(where: str, kind: Any, tmp_path: Path) -> None:
    make, path = PLACES[where]
    model = wrap(make(), path, kind)
    mp.assert_shared(model)
    assert ": must" not in mp.describe(model)
    model.save_pretrained(tmp_path)
    torch.testing.assert_close(
        logits(type(model).from_pretrained(tmp_path)), logits(model), rtol=0, atol=0
    )


@pytest.mark.parametrize("kind", [Scales, Counts])
@pytest.mark.parametrize("where", PLACES)
def test_wrappers_with_tensors_are_refused(where: str, kind: Any, tmp_path: Path) -> None:
    make, path = PLACES[where]
    model = wrap(make(), path, kind)
    own = "scale" if kind is Scales else "calls"
    text = rf"got 1 that loading has no place for: {path}\.{own}\. Take out .* Nothing was written"
    with pytest.raises(SharingError, match=text):
        model.save_pretrained(tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_wrappers_that_rename_plain_tensors_are_refused(tmp_path: Path) -> None:
    model = wrap(opt(), "model.decoder.layers.1.fc2", Forwards)
    with pytest.raises(SharingError, match=r"2 that loading has .*: \S+1\.fc2\.inner\.weight, .*; "
                       r"2 missing: \S+1\.fc2\.weight, "):  # fmt: skip
        model.save_pretrained(tmp_path)


def test_the_encoder_of_an_albert_has_a_plain_tensor(tmp_path: Path) -> None:
    model = wrap(albert(), "albert.encoder", Forwards)
    mp.assert_shared(model)
    with pytest.raises(SharingError, match=r"inner\.embedding_hidden_mapping_in\.weight, .*; 2 m"):
        model.save_pretrained(tmp_path)


def emptied(model: Any) -> str:
    model.bert.mpo["query"].central = None
    return r"bert\.mpo\.query\.central must be a tensor of shape \(1, .*\), got None"


def deleted(model: Any) -> str:
    del model.bert.mpo["value"].bias
    return r"bert\.mpo\.value\.bias must be a tensor of shape \(4, 32\), got None"


def norm(model: Any) -> str:
    model.bert.mpo["output_norm"].weight = None
    return r"bert\.mpo\.output_norm\.weight must be a tensor of shape \(4, 32\), got None"


@pytest.mark.parametrize("change", [emptied, deleted, norm])
def test_banks_without_a_tensor_are_told_and_not_saved(change: Any, tmp_path: Path) -> None:
    model = bert()
    text = change(model)
    with pytest.raises(SharingError, match=text):
        mp.assert_shared(model)
    assert re.search(text, mp.describe(model).replace(": must", " must"))
    with pytest.raises(SharingError, match=text):
        model.save_pretrained(tmp_path / "new")
    assert not (tmp_path / "new").exists()


def cut(model: Any) -> str:
    bank = model.bert.mpo["query"]
    bank.central = nn.Parameter(bank.central.detach()[:, :1])
    return r"1 of another shape: bert\.mpo\.query\.central \(\(1, 1, .*\) in place of \(1, "


def more(model: Any) -> str:
    model.bert.mpo["query"].register_parameter("extra", nn.Parameter(torch.ones(2)))
    return r"1 that loading has no place for: bert\.mpo\.query\.extra\."


def parametrized(model: Any) -> str:
    parametrize.register_parametrization(model.bert.mpo["query"], "central", nn.Identity())
    return r"bert\.mpo\.query\.parametrizations\.central\.original; 1 missing: \S+query\.central\."


def pruned(model: Any) -> str:
    prune.l1_unstructured(model.bert.mpo["query"], "central", amount=0.5)
    return r"2 that loading .*: bert\.mpo\.query\.central_\w+, .*; 1 missing: \S+\.query\.central\."


def plain_part(model: Any) -> str:
    model.bert.embeddings.LayerNorm.bias = None
    return r"got 1 missing: bert\.embeddings\.LayerNorm\.bias\."


def no_plan(model: Any) -> str:
    model.config.quantization_config = None
    return r"must hold the plan of its conversion in quantization_config, got None\. Put it back"


def other_depth(model: Any) -> str:
    model.config.num_hidden_layers = 3
    return r"could not be loaded: the stored plan must be for bert with 3 layers, got bert with 4"


def other_size(model: Any) -> str:
    model.config.intermediate_size = 48
    return r"could not be loaded: bank 'ffn_in' of the stored plan must be 48 x 32"


def other_hidden(model: Any) -> str:
    model.config.hidden_size = 64
    return r"could not be loaded: bank 'query' of the stored plan must be 64 x 64"


def other_vocabulary(model: Any) -> str:
    model.config.vocab_size = 64
    return r"word_embeddings\.weight \(\(99, 32\) in place of \(64, 32\)\)"


def other_types(model: Any) -> str:
    model.config.type_vocab_size = 4
    return r"of another shape: bert\.embeddings\.token_type_embeddings\.weight \(\(2, 32\) in"


def untied(model: Any) -> str:
    model.config.tie_word_embeddings = False
    return r"must tie cls\.predictions\.decoder\.weight to .* Set its tie_word_embeddings back"


def normed_head(model: Any) -> str:
    weight_norm(model.cls.predictions.transform.dense)
    return r"got 1 missing: cls\.predictions\.transform\.dense\.weight\."


def parametrized_head(model: Any) -> str:
    dense = model.cls.predictions.transform.dense
    parametrize.register_parametrization(dense, "weight", nn.Identity())
    return r"got 1 missing: cls\.predictions\.transform\.dense\.weight\."


def head_without_bias(model: Any) -> str:
    model.cls.predictions.bias = None
    return r"missing: cls\.predictions\.bias"


def other_head(model: Any) -> str:
    model.cls.predictions.transform = nn.Sequential(nn.Linear(32, 32), nn.GELU())
    return r"4 missing: cls\.predictions\.transform\.dense\.weight, "


CHANGES = [cut, more, parametrized, pruned, plain_part, no_plan, other_depth, other_size]
CHANGES += [other_hidden, other_vocabulary, other_types, untied]
HEADS = [normed_head, parametrized_head, head_without_bias, other_head]


@pytest.mark.parametrize("change", CHANGES + HEADS)
def test_what_loading_would_refuse_is_not_saved(change: Any, tmp_path: Path) -> None:
    model = bert()
    text = change(model)
    with pytest.raises(SharingError, match=text) as caught:
        model.save_pretrained(tmp_path / "new")
    assert str(caught.value).endswith("Nothing was written.")
    assert not (tmp_path / "new").exists()


def test_a_base_model_that_is_compiled_is_told_how_to_be_saved(tmp_path: Path) -> None:
    model = bert()
    model.bert = torch.compile(model.bert, backend="eager")
    text = (
        r"got the wrapper OptimizedModule around it\. Save the model without the wrapper: "
        r"model\.bert = model\.bert\._orig_mod\. Nothing was written"
    )
    with pytest.raises(SharingError, match=text):
        model.save_pretrained(tmp_path / "new")
    assert not (tmp_path / "new").exists()
    model.bert = model.bert._orig_mod
    model.save_pretrained(tmp_path / "new")


def test_what_may_change_is_saved(tmp_path: Path) -> None:
    model = bert()
    model.resize_token_embeddings(120)
    for number, part in enumerate((model, copy.deepcopy(model), model.bert)):
        part.save_pretrained(tmp_path / str(number))
    loaded = BertForMaskedLM.from_pretrained(tmp_path / "0")
    assert torch.equal(logits(loaded), logits(model))
    loaded.resize_token_embeddings(99)
    loaded.save_pretrained(tmp_path / "again")
    assert logits(BertForMaskedLM.from_pretrained(tmp_path / "again")).shape[-1] == 99


def test_a_head_in_place_of_another_is_saved(tmp_path: Path) -> None:
    model = bert()
    model.cls = nn.Linear(32, 99)
    model.save_pretrained(tmp_path)
    with pytest.warns(MPOBertWarning, match=r"start at random"):
        BertForMaskedLM.from_pretrained(tmp_path)


def test_what_shapes_no_tensor_may_change_in_a_configuration(tmp_path: Path) -> None:
    model = bert().half()
    model.config.layer_norm_eps, model.config.use_cache = 1e-6, False
    for number in "01":
        model.save_pretrained(tmp_path / number)
    model.config.vocab_size = 64
    with pytest.raises(SharingError, match="of another shape"):
        model.bert.save_pretrained(tmp_path / "base")


def test_a_model_in_place_of_the_banks_of_another_is_compared(tmp_path: Path) -> None:
    model = bert()
    wider = mp.convert(tiny_bert(), n=2)
    with pytest.raises(SharingError, match=r"of another shape: bert\.mpo\.query\.central \(\(4, "):
        model.save_pretrained(tmp_path, state_dict=wider.state_dict())
    # Another process of the run has nothing to save.
    model.save_pretrained(tmp_path, is_main_process=False, state_dict={})
    model.save_pretrained(tmp_path, state_dict=copy.deepcopy(model.state_dict()))
    assert torch.equal(logits(BertForMaskedLM.from_pretrained(tmp_path)), logits(model))


@pytest.fixture(scope="module")
def whole() -> Any:
    """Return a model that no test changes."""
    return bert()


NO_TENSORS: dict[str, tuple[Any, str]] = {
    "nothing": (lambda _: {}, r"state_dict must hold the tensors of the model, got none.* missing"),
    "a list": (lambda _: [1, 2], r"state_dict must map names to tensors, got list\. Pass what"),
    "a number": (lambda own: {**own, "bert.x": 3}, r"got int for 'bert\.x'\. Leave it out"),
    "a type": (lambda own: {**own, "bert.x": torch.int8}, r"got dtype for .* torch has quantized"),
    "no values": (
        lambda own: {name: tensor.to("meta") for name, tensor in own.items()},
        r"must have values, got tensors on the meta device: bert\.embeddings\S+, .*assign=True",
    ),
    "a part": (lambda own: dict(list(own.items())[:3]), r"got \d+ missing: bert\."),
}


@pytest.mark.parametrize("given", NO_TENSORS)
def test_what_is_no_state_dict_is_not_saved(given: str, whole: Any, tmp_path: Path) -> None:
    make, text = NO_TENSORS[given]
    with pytest.raises(SharingError, match=text) as caught:
        whole.save_pretrained(tmp_path / "new", state_dict=make(whole.state_dict()))
    assert str(caught.value).endswith("Nothing was written.")
    assert not (tmp_path / "new").exists()


class Special(BertModel):
    """A class that asks for more than a configuration."""

    def __init__(self, config: Any, size: int) -> None:
        super().__init__(config)
        self.special = nn.Linear(size, size)


def test_classes_of_users_are_saved(tmp_path: Path) -> None:
    model: Any = mp.convert(Special(tiny_bert().config, 3), n=2)
    model.save_pretrained(tmp_path)
    # It cannot be made from its configuration alone, and is not compared when it has changed.
    model.resize_token_embeddings(120)
    model.save_pretrained(tmp_path)
    loaded: PreTrainedModel = Special.from_pretrained(tmp_path, 3)
    assert loaded.get_input_embeddings().weight.shape == (120, 32)


def test_an_adapter_of_peft_is_saved_without_the_model(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft", reason="PEFT is not installed")
    model = albert()
    wrapped = peft.get_peft_model(model, mp.peft.lora_config(model, rank=2))
    wrapped.save_pretrained(tmp_path / "adapter")
    with pytest.raises(SharingError, match=r"lora_A.* LoRA of PEFT is saved by the PeftModel"):
        wrapped.get_base_model().save_pretrained(tmp_path / "model")
    head = peft.LoraConfig(r=2, target_modules=["predictions.dense"])
    with pytest.raises(SharingError, match=r"got \d missing: predictions\.dense\."):
        peft.get_peft_model(albert(), head).get_base_model().save_pretrained(tmp_path / "model")
    plain = wrapped.unload()
    plain.save_pretrained(tmp_path / "model")
    loaded = AlbertForMaskedLM.from_pretrained(tmp_path / "model")
    assert torch.equal(logits(loaded), logits(plain))
