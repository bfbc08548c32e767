"""Odd settings, texts and folders: either they work, or an error says what is wrong."""

from __future__ import annotations

import json
import math
import re
import shutil

import numpy as np
import pytest
import torch

from mpobert_plugin.errors import CheckpointError, ConfigError, DataError, MPOBertError
from mpobert_plugin.train import PretrainConfig, Vocabulary, open_corpus, prepare
from mpobert_plugin.train.data.batches import Division
from mpobert_plugin.train.guard import Health, examine
from mpobert_plugin.train.journal import Journal
from mpobert_plugin.train.run import pretrain
from tests.mpobert_plugin.train.tiny_run import BASE, corpus_in, fresh

SHORT = BASE.replace(steps=2, log_every=1)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return corpus_in(tmp_path_factory.mktemp("corpus"))


def losses(run):
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return [line for line in lines if line["kind"] == "train"]


# -------------------------------------------------------------------------------- settings
FLOATS = ("lr", "beta1", "eps", "clip", "warmup_ratio", "guard_factor", "loss_scale", "lr_head")
COUNTS = ("steps", "batch_size", "micro_batch", "length", "masked_most", "seed", "keep", "workers")
WORDS = ("task", "masking", "precision", "optimizer", "schedule", "guard", "reconstruction")
STRANGE = (None, [1], {}, (), object(), True, np.zeros(2), torch.ones(2), 1j, b"3", "x")


@pytest.mark.parametrize("value", [*STRANGE, float("nan"), float("inf"), -1.0, "nan", 1e300])
@pytest.mark.parametrize("name", [*FLOATS, "mask_rate", "shorter"])
def test_what_is_no_number_is_refused_by_name(name, value):
    with pytest.raises((ConfigError, DataError), match=name):
        BASE.replace(**{name: value})


@pytest.mark.parametrize("value", [*STRANGE, 3.0, float("nan"), -1, 10**30])
@pytest.mark.parametrize("name", COUNTS)
def test_what_is_no_count_is_refused_by_name(name, value):
    with pytest.raises((ConfigError, DataError), match=name):
        BASE.replace(**{name: value})


@pytest.mark.parametrize("value", [*STRANGE, 3, "", "LAMB", "ngram "])
@pytest.mark.parametrize("name", WORDS)
def test_what_is_no_word_of_a_setting_is_refused_by_name(name, value):
    with pytest.raises((ConfigError, DataError), match=name):
        BASE.replace(**{name: value})


@pytest.mark.parametrize("name", [1, None, ("lr",), "LR", "lr ", ""])
def test_names_that_are_no_settings(name):
    with pytest.raises(ConfigError, match="1 of the settings is unknown"):
        PretrainConfig.from_dict({name: 2})


def test_numbers_have_an_upper_limit_too():
    with pytest.raises(ConfigError, match=r"steps must be at most 10000000, got 1000000000000\."):
        BASE.replace(steps=10**12)
    with pytest.raises(ConfigError, match="workers must be at most 1000000000, got"):
        BASE.replace(workers=10**10)


def test_more_masked_places_than_tokens_take_no_room():
    assert BASE.replace(masked_most=10**9).recipe().masking.most == BASE.length


EDGES = (
    {"steps": 1},
    {"length": 5},
    {"eval_every": 100, "save_every": 100, "log_every": 100},
    {"mask_rate": 0.999},
)
MORE_EDGES = (
    {"length": 8},
    {"length": 5, "task": "full"},
    {"eval_every": 1, "eval_batches": 1, "keep": 1, "save_every": 1},
    {"save_every": 0},
    {"batch_size": 1, "micro_batch": 1},
    {"mask_rate": 1e-9},
    {"shorter": 1.0},
    {"warmup_ratio": 1.0},
    {"lr": 0.0},
    {"clip": 0.0},
    {"seed": 2**63 - 1},
    {"masked_most": 1},
    {"masking": "token"},
)


@pytest.mark.parametrize(
    "change", [*EDGES, *(pytest.param(e, marks=pytest.mark.slow) for e in MORE_EDGES)], ids=str
)
def test_settings_at_the_edge_work(corpus, tmp_path, change):
    config = SHORT.replace(**change)
    held = corpus if change.get("eval_every") else None
    result = pretrain(fresh(), corpus, config, tmp_path / "run", held_out=held, device="cpu")
    assert result.finished
    assert result.checkpoint.is_dir()
    assert all(math.isfinite(record["loss"]) for record in losses(tmp_path / "run"))


@pytest.mark.parametrize(
    ("batch", "micro", "world", "message"),
    [
        (7, 4, 1, "got 7 for 4 x 1. The nearest are 4 and 8."),
        (8, 64, 1, "got 8 for 64 x 1. The nearest are 64."),
        (2, 1, 4, "got 2 for 1 x 4. The nearest are 4."),
        (12, 4, 2, "got 12 for 4 x 2. The nearest are 8 and 16."),
    ],
)
def test_batches_that_do_not_divide(batch, micro, world, message):
    with pytest.raises(DataError, match=re.escape(message)):
        Division(batch, micro, 0, world)


# --------------------------------------------------------------------------------- places
def test_folders_that_cannot_be_written(corpus, tmp_path):
    (tmp_path / "file").write_text("x")
    for out in (tmp_path / "file", tmp_path / "file" / "run", "/proc/run"):
        with pytest.raises(CheckpointError, match="out must be a folder that can be written"):
            pretrain(fresh(), corpus, SHORT, out, device="cpu")
    with pytest.raises(ConfigError, match="out must be the name of a folder, got None"):
        pretrain(fresh(), corpus, SHORT, None, device="cpu")


def test_a_run_inside_its_data_harms_neither(corpus, tmp_path):
    data = shutil.copytree(corpus.folder, tmp_path / "data")
    config = SHORT.replace(steps=4, save_every=2)
    pretrain(fresh(), data, config, data / "run", device="cpu")
    shutil.rmtree(data / "run" / "checkpoints" / "step-000000004")
    assert pretrain(fresh(), data, config, data / "run", device="cpu").finished
    assert open_corpus(data, verify=True).checksum == corpus.checksum


@pytest.mark.parametrize("device", ["foo", "meta", "cuda:99", 3.5, "cpu:x"])
def test_devices_that_are_not_there(corpus, tmp_path, device):
    with pytest.raises(ConfigError, match="device must be"):
        pretrain(fresh(), corpus, SHORT, tmp_path / "run", device=device)


@pytest.mark.parametrize("data", [3, None, b"corpus", "nowhere", ["a"]])
def test_data_that_is_none(corpus, tmp_path, data):
    with pytest.raises(DataError, match="data must be"):
        pretrain(fresh(), data, SHORT, tmp_path / "run", device="cpu")
    if data is not None:
        with pytest.raises(DataError, match="held_out must be"):
            pretrain(fresh(), corpus, SHORT, tmp_path / "run", held_out=data, device="cpu")


@pytest.mark.parametrize("model", ["mpobert-12", None, torch.nn.Linear(2, 2)])
def test_models_that_are_none(corpus, tmp_path, model):
    with pytest.raises(MPOBertError):
        pretrain(model, corpus, SHORT, tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists()


# ---------------------------------------------------------------------------------- texts
@pytest.mark.parametrize(
    "docs",
    [
        ["Only one document. It has two sentences."],
        ["One sentence alone"] * 3,
        ["a b"],
        ["Short.", "A longer one is here. And goes on.", "x y z"],
    ],
)
@pytest.mark.parametrize("task", ["sentence_order", pytest.param("full", marks=pytest.mark.slow)])
def test_little_text_works(tmp_path, docs, task):
    """One document, one sentence for each, texts far shorter than a window."""
    corpus = prepare(docs, tmp_path / "data", Vocabulary(size=60))
    config = SHORT.replace(task=task)
    assert pretrain(fresh(), corpus, config, tmp_path / "run", device="cpu").finished
    for record in losses(tmp_path / "run"):
        assert math.isfinite(record["loss"])
        if task == "full" or "alone" in docs[0]:
            assert not {"order_loss", "order_accuracy"} & set(record)


def test_a_batch_without_masked_tokens_trains_nothing(tmp_path):
    """Words that the tokenizer does not know are special, and nobody asks for them."""
    known = prepare(["The cat sat. The dog ran away!"], tmp_path / "a", Vocabulary(size=60))
    corpus = prepare(["\u4e00", "\u4e8c\u4e09\u4e00"], tmp_path / "b", Vocabulary(known.folder))
    model = fresh()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    config = SHORT.replace(weight_decay=0.0)
    assert pretrain(model, corpus, config, tmp_path / "run", device="cpu").finished
    assert all(torch.equal(before[name], p) for name, p in model.named_parameters())
    for record in losses(tmp_path / "run"):
        assert record["loss"] == 0.0
        assert not {"masked_loss", "order_loss"} & set(record)
        assert record["grad_norm"] == 0.0
        assert record["skipped"] == 0


def test_empty_files_beside_others_and_alone(tmp_path):
    texts = tmp_path / "texts"
    texts.mkdir()
    for name in ("a.txt", "b.jsonl"):
        (texts / name).write_text("")
    with pytest.raises(DataError, match="text, got none"):
        prepare(texts, tmp_path / "data", Vocabulary(size=60))
    (texts / "c.txt").write_text("Here is text. And more.")
    assert len(prepare(texts, tmp_path / "data", Vocabulary(size=60)).documents) == 2


# ---------------------------------------------------------------------------- damaged data
def damaged(corpus, folder, name, kind, change):
    shutil.copytree(corpus.folder, folder)
    numbers = np.fromfile(folder / name, kind)
    change(numbers)
    numbers.tofile(folder / name)
    return folder


def put(place, value):
    def change(numbers):
        numbers[place] = value

    return change


@pytest.mark.parametrize("place", [slice(None), slice(0, None, 9)])
@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_ids_outside_the_vocabulary_are_named(corpus, tmp_path, place, workers):
    data = damaged(corpus, tmp_path / "data", "tokens.bin", "<u2", put(place, 60000))
    with pytest.raises(DataError, match=r"ids below 90, the size of its vocabulary, got 60000 in"):
        pretrain(fresh(), data, SHORT.replace(workers=workers), tmp_path / "run", device="cpu")


@pytest.mark.parametrize("name", ["sentences.bin", "documents.bin"])
@pytest.mark.parametrize("value", [2**40, -7, 0])
def test_offsets_that_do_not_rise_are_named(corpus, tmp_path, name, value):
    data = damaged(corpus, tmp_path / "data", name, "<i8", put(5, value))
    with pytest.raises(DataError, match=rf"{name} must hold offsets that rise from 0"):
        open_corpus(data)


def test_a_first_offset_that_is_not_zero_is_named(corpus, tmp_path):
    data = damaged(corpus, tmp_path / "data", "sentences.bin", "<i8", put(0, 1))
    with pytest.raises(DataError, match=r"sentences.bin must hold offsets that rise from 0"):
        open_corpus(data)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "version 1, got 'mpobert-corpus', version 2"),
        ({"format": "other"}, "got 'other', version 1"),
        ({"checksum": 3}, "is damaged"),
        ({"dtype": []}, "is damaged"),
        ({"dtype": "uint32"}, "numbers of 4 bytes"),
        ({"tokens": 10**20}, "must hold 100000000000000000000 numbers of 2 bytes"),
        ({"tokens": True}, "is damaged"),
        ({"documents": 0}, "must hold 1 numbers of 8 bytes"),
    ],
)
def test_manifests_of_others(corpus, tmp_path, change, message):
    data = shutil.copytree(corpus.folder, tmp_path / "data")
    file = data / "manifest.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(DataError, match=re.escape(message)):
        open_corpus(data)


# ----------------------------------------------------------------------------------- guard
@pytest.mark.parametrize("mean", [0.0, 1e-9, 0.05])
def test_a_loss_near_zero_is_not_lost_when_it_doubles(mean):
    health, lost = examine(Health(mean, 40), 0.9, False, 2.0, 50)
    assert lost is None
    assert health.seen == 41
    assert examine(Health(mean, 40), 7.0, False, 2.0, 50)[1].startswith("The loss is 7, far above")


def test_a_loss_that_explodes_is_lost():
    assert examine(Health(3.0, 40), 5.9, False, 2.0, 50)[1] is None
    text = examine(Health(3.0, 40), 6.1, False, 2.0, 50)[1]
    assert text == "The loss is 6.1, far above its mean of the last steps, 3."


# ------------------------------------------------------------------------------------- log
def test_a_log_without_room_says_so(tmp_path):
    journal = Journal(tmp_path / "run", lambda _text: None)
    journal.open(0)
    (tmp_path / "run" / "log.jsonl").mkdir()
    with pytest.raises(CheckpointError, match=r"the log of the run cannot be written .* make room"):
        journal.record("train", 1, {"loss": 1.0})
