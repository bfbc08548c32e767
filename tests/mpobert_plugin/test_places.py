"""What was put in the place of a reader, or taken away, is told, and such a model is not saved."""

from __future__ import annotations

import copy
import pickle
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.nn.utils import parametrize
from transformers import BertForMaskedLM, BertModel, PreTrainedModel

import mpobert_plugin as mp
from mpobert_plugin.errors import ConversionError, SharingError
from tests.mpobert_plugin.embeddings import with_embedding
from tests.mpobert_plugin.models import logits, tiny_albert, tiny_bert
from tests.mpobert_plugin.zoo import language_model


def base() -> PreTrainedModel:
    return mp.convert(tiny_bert(BertModel), n=2, adapter_rank=2)


def bert() -> PreTrainedModel:
    return mp.convert(tiny_bert(), n=2, sharing="all", fit="mean", share_norm=True)


def llama() -> PreTrainedModel:
    return mp.convert(language_model("llama", num_hidden_layers=2), n=2)


def query(model: Any) -> None:
    model.bert.encoder.layer[0].attention.self.query = nn.Linear(32, 32)


def ffn(model: Any) -> None:
    model.bert.encoder.layer[2].output.dense = nn.Linear(64, 32)


def norm(model: Any) -> None:
    model.bert.encoder.layer[3].attention.output.LayerNorm = nn.LayerNorm(32)


def nothing(model: Any) -> None:
    del model.bert.encoder.layer[1].intermediate.dense


def last_layer(model: Any) -> None:
    model.bert.encoder.layer = model.bert.encoder.layer[:3]


def first_layer(model: Any) -> None:
    model.bert.encoder.layer = model.bert.encoder.layer[1:]


def all_layers(model: Any) -> None:
    model.bert.encoder.layer = nn.ModuleList()


def one_more(model: Any) -> None:
    model.bert.encoder.layer.append(copy.deepcopy(model.bert.encoder.layer[0]))


def exchanged(model: Any) -> None:
    layers = model.bert.encoder.layer
    layers[0], layers[2] = layers[2], layers[0]


def bank(model: Any) -> None:
    del model.bert.mpo["query"]


def down_proj(model: Any) -> None:
    model.model.layers[1].mlp.down_proj = nn.Linear(64, 32, bias=False)


def rms(model: Any) -> None:
    old = model.model.layers[0].input_layernorm
    model.model.layers[0].input_layernorm = nn.RMSNorm(32)
    assert type(old).__name__ == "MPORMSNorm"


def group(model: Any) -> None:
    groups = model.albert.encoder.albert_layer_groups
    model.albert.encoder.albert_layer_groups = groups[:2]


def pooler(model: Any) -> None:
    model.pooler.dense = nn.Linear(32, 32)


def head(model: Any) -> None:
    model.cls.predictions.decoder = nn.Linear(32, 99)


READ = "must read the bank"
LAYERS = r"bert\.encoder\.layer must have the 4 layers of its plan, got"
CHANGES: dict[str, tuple[Any, Any, str]] = {
    "query": (bert, query, rf"bert\.encoder\.layer\.0\.\S+\.query {READ} 'query' .*, got a Linear"),
    "ffn": (bert, ffn, rf"bert\.encoder\.layer\.2\.output\.dense {READ} 'ffn_out' .* a Linear"),
    "norm": (bert, norm, rf"layer\.3\.\S+LayerNorm {READ} 'attention_norm' .*, got a LayerNorm"),
    "nothing": (bert, nothing, rf"layer\.1\.intermediate\.dense {READ} 'ffn_in' .*, got nothing\."),
    "last layer": (bert, last_layer, f"{LAYERS} 3"),
    "first layer": (bert, first_layer, f"{LAYERS} 3"),
    "all layers": (bert, all_layers, "BertForMaskedLM must have the 4 layers of its plan, got 0"),
    "one more": (bert, one_more, f"{LAYERS} 5"),
    "exchanged": (
        bert,
        exchanged,
        r"layer\.0\.\S+query must read the values of layer 0 in bank 'query', got those of layer 2",
    ),
    "bank": (bert, bank, rf"layer\.0\.\S+\.query {READ} 'query' of the model, got another bank"),
    "llama": (llama, down_proj, rf"model\.layers\.1\.mlp\.down_proj {READ} 'ffn_out'"),
    "rms": (llama, rms, rf"layers\.0\.input_layernorm {READ} 'attention_norm' .* got a RMSNorm"),
    "albert": (
        lambda: mp.from_albert(tiny_albert(), 3),
        group,
        "AlbertForMaskedLM must have the 3 layers of its plan, got 2",
    ),
    "pooler": (base, pooler, r"pooler\.dense must have the adapter of rank 2 .* 'pooler', got a L"),
    "head": (
        lambda: with_embedding(tiny_bert()),
        head,
        rf"cls\.predictions\.decoder {READ} 'embedding' of the model, got a Linear",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_was_changed_is_told_and_not_saved(name: str, tmp_path: Path) -> None:
    make, change, text = CHANGES[name]
    model = make()
    model.save_pretrained(tmp_path)
    files = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    change(model)
    # What a writer would do first, and must not.
    model.config.pad_token_id = 7
    with pytest.raises(SharingError, match=text):
        mp.assert_shared(model)
    with pytest.raises(SharingError, match=rf"{text}.* Nothing was written\."):
        model.save_pretrained(tmp_path)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == files
    new = tmp_path / "new"
    with pytest.raises(SharingError):
        model.save_pretrained(new)
    assert not new.exists()


def test_the_remedy_works(tmp_path: Path) -> None:
    model = bert()
    reader = model.bert.encoder.layer[0].attention.self.query
    query(model)
    with pytest.raises(SharingError, match=r"Put the .* back, .* mpobert_plugin\.merge\(model\)"):
        mp.assert_shared(model)
    plain = mp.merge(model)
    plain.save_pretrained(tmp_path / "plain")
    loaded = BertForMaskedLM.from_pretrained(tmp_path / "plain")
    torch.testing.assert_close(logits(loaded), logits(model), rtol=0, atol=1e-5)
    model.bert.encoder.layer[0].attention.self.query = reader
    mp.assert_shared(model)
    last_layer(plain)
    plain.config.num_hidden_layers = 3
    mp.assert_shared(mp.convert(plain, n=2))
    model.save_pretrained(tmp_path / "back")
    again = BertForMaskedLM.from_pretrained(tmp_path / "back")
    assert torch.equal(logits(again), logits(model))


def test_describe_tells_what_is_there() -> None:
    model = bert()
    whole = mp.describe(model)
    assert "BertForMaskedLM, 4 layers" in whole
    query(model)
    told = "bert.encoder.layer.0.attention.self.query: must read the bank 'query' of the model, got"
    assert mp.describe(model).removeprefix(whole).startswith(f"\n{told} a Linear")
    last_layer(model)
    assert "BertForMaskedLM, 3 layers" in mp.describe(model)
    assert "bert.encoder.layer: must have the 4 layers of its plan, got 3" in mp.describe(model)


def test_copies_loaded_models_and_base_models_are_looked_at(tmp_path: Path) -> None:
    model = bert()
    model.save_pretrained(tmp_path)
    loaded = BertForMaskedLM.from_pretrained(tmp_path)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), loaded):
        mp.assert_shared(other)
        query(other)
        for part, name in ((other, "bert.encoder"), (other.bert, "encoder")):
            with pytest.raises(SharingError, match=rf"^{re.escape(name)}\.layer\.0\.att"):
                part.save_pretrained(tmp_path)
    mp.assert_shared(model)


# What may stand in the place of a reader


class Around(nn.Module):
    """A wrapper that hides the paths inside."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.inner(*args, **kwargs)


def eager(module: nn.Module) -> Any:
    return torch.compile(module, backend="eager")


@pytest.mark.parametrize(
    "wrap", [eager, checkpoint_wrapper, Around], ids=["compiled", "again", "own"]
)
def test_wrapped_layers_and_readers_are_whole(wrap: Any, tmp_path: Path) -> None:
    model = bert()
    before = logits(model)
    layers = model.bert.encoder.layer
    layers[0] = wrap(layers[0])
    layers[1].attention.self.query = wrap(layers[1].attention.self.query)
    layers[2].output.LayerNorm = wrap(layers[2].output.LayerNorm)
    mp.assert_shared(model)
    assert "must" not in mp.describe(model)
    model.save_pretrained(tmp_path)
    assert torch.equal(logits(BertForMaskedLM.from_pretrained(tmp_path)), before)
    layers[1].attention.self.query = wrap(nn.Linear(32, 32))
    with pytest.raises(SharingError, match=r"layer\.1\.\S+\.query must read the bank 'query'"):
        mp.assert_shared(model)


def test_wrapped_groups_of_an_albert_are_counted() -> None:
    model = mp.from_albert(tiny_albert(), 3)
    groups = model.albert.encoder.albert_layer_groups
    groups[0], groups[1] = checkpoint_wrapper(groups[0]), eager(groups[1])
    mp.assert_shared(model)


class Doubled(nn.Module):
    """Twice a parameter."""

    def forward(self, tensor: torch.Tensor) -> torch.Tensor:
        return 2 * tensor


def test_parametrized_banks_are_whole() -> None:
    model = bert()
    parametrize.register_parametrization(model.bert.mpo["query"], "central", Doubled())
    mp.assert_shared(model)


def test_layers_that_share_all_they_read_may_be_exchanged(tmp_path: Path) -> None:
    model = mp.convert(tiny_bert(), n=2, sharing="albert", fit="mean", share_bias=True)
    model = mp.convert(mp.merge(model), n=2, sharing="albert", share_bias=True, share_norm=True,
                       fit="mean")  # fmt: skip
    exchanged(model)
    mp.assert_shared(model)
    model.save_pretrained(tmp_path)
    assert torch.equal(logits(BertForMaskedLM.from_pretrained(tmp_path)), logits(model))


def test_merged_adapters_are_whole_and_refused_before_a_file_is_written(tmp_path: Path) -> None:
    model = mp.convert(tiny_bert(BertModel), n=2, adapter_rank=2)
    model.save_pretrained(tmp_path)
    files = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    mp.merge_adapters(model)
    for merged in (model, copy.deepcopy(model)):
        mp.assert_shared(merged)
        merged.config.pad_token_id = 7
        with pytest.raises(ConversionError, match="merged adapters cannot be saved"):
            merged.save_pretrained(tmp_path)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == files
    model.encoder.layer[0].attention.self.query = nn.Linear(32, 32)
    with pytest.raises(SharingError, match=r"layer\.0\.\S+\.query must read the bank 'query'"):
        mp.assert_shared(model)


def test_a_head_that_is_not_tied_any_more_may_be_plain(tmp_path: Path) -> None:
    model = with_embedding(tiny_bert())
    head(model)
    model.config.tie_word_embeddings = False
    mp.assert_shared(model)
    model.save_pretrained(tmp_path)
    loaded = BertForMaskedLM.from_pretrained(tmp_path)
    assert torch.equal(logits(loaded), logits(model))


@pytest.mark.parametrize("targets", [None, ["embedding", "pooler", "query"]])
def test_lora_of_peft_is_whole(targets: Any) -> None:
    peft = pytest.importorskip("peft", reason="PEFT is not installed")
    model = mp.convert(tiny_bert(BertModel), n=2, targets=targets, adapter_rank=1)
    config = mp.peft.lora_config(model, rank=2, targets=["query", "pooler"])
    wrapped = peft.get_peft_model(model, config)
    mp.assert_shared(wrapped.get_base_model())
    assert ": must" not in mp.describe(wrapped.get_base_model())


def test_banks_that_were_taken_away_are_missed_before_saving(tmp_path):
    model = bert()
    model.bert.mpo = nn.ModuleDict()
    with pytest.raises(SharingError, match=r"must have the banks of its plan in 'mpo', got Module"):
        model.save_pretrained(tmp_path / "m")
    assert not (tmp_path / "m").exists()
