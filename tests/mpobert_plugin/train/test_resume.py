"""Going on from any step: bit for bit, from what is whole, and told where it is not exact."""

from __future__ import annotations

import json
import shutil
from itertools import product

import pytest
import torch
from safetensors.torch import load_file

from mpobert_plugin.errors import CheckpointError
from mpobert_plugin.train import loop as loop_module
from mpobert_plugin.train.checkpoint import Checkpoint
from mpobert_plugin.train.data.prepare import Vocabulary, prepare
from mpobert_plugin.train.data.samples import Samples
from mpobert_plugin.train.run import pretrain
from mpobert_plugin.train.same_run import machine_of, what_is_inexact
from tests.mpobert_plugin.train.tiny_run import BASE, fresh

DOCS = [f"Text {k} is here. It goes on with {k * k}. Then it ends." for k in range(12)]
STEPS = 12
# Six steps are an epoch: twelve windows, two for a step.
CONFIG = BASE.replace(
    steps=STEPS, batch_size=2, micro_batch=1, save_every=1, keep=STEPS, log_every=1, length=24
)
DROPOUT = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
SCALED = {"precision": "fp16", "loss_scale": 256.0, "scale_interval": 3}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return prepare(DOCS, tmp_path_factory.mktemp("corpus"), Vocabulary(size=80))


def model(dropout, seed=0):
    return fresh(seed, **(DROPOUT if dropout else {}))


@pytest.fixture(scope="module")
def whole(tmp_path_factory, corpus):
    """Undisturbed runs, by dropout and number format; made when they are asked for."""
    made = {}

    def run(dropout, scaled):
        key = (dropout, scaled)
        if key not in made:
            made[key] = tmp_path_factory.mktemp("whole") / "run"
            config = CONFIG.replace(**(SCALED if scaled else {}))
            pretrain(model(dropout), corpus, config, made[key], device="cpu")
        return made[key]

    return run


def folder(run, step):
    return run / "checkpoints" / f"step-{step:09d}"


def cut(run, target, *steps):
    """Copy a run with the checkpoints of some steps alone."""
    shutil.copytree(run, target, ignore=lambda _path, names: [n for n in names if n == ".lock"])
    for path in (target / "checkpoints").iterdir():
        if int(path.name[5:]) not in steps:
            shutil.rmtree(path)
    return target


def tensors(run, step=STEPS):
    place = folder(run, step)
    return load_file(place / "model.safetensors") | load_file(place / "optimizer.safetensors")


def kept(run, step=STEPS):
    state = json.loads((folder(run, step) / "checkpoint.json").read_text())["state"]
    # Settings that are free may differ.
    return {name: value for name, value in state.items() if name != "config"}


def records(run, kind="train"):
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return [line for line in lines if line["kind"] == kind]


def same(one, other):
    a, b = tensors(one), tensors(other)
    assert set(a) == set(b)
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert kept(one) == kept(other)
    assert [(r["step"], r["loss"], r["lr"], r["loss_scale"]) for r in records(one)] == [
        (r["step"], r["loss"], r["lr"], r["loss_scale"]) for r in records(other)
    ]


# The end of an epoch, and the middle of one in fp16; the others are slow.
QUICK = ((6, True, False), (9, True, True))
CASES = [
    pytest.param(*case, marks=[] if case in QUICK else pytest.mark.slow)
    for case in product(range(1, STEPS), (True, False), (False, True))
]


@pytest.mark.parametrize(("step", "dropout", "scaled"), CASES)
def test_m22_a_run_goes_on_bit_for_bit_from_any_step(
    corpus, whole, tmp_path, step, dropout, scaled
):
    run = cut(whole(dropout, scaled), tmp_path / "run", step)
    config = CONFIG.replace(**(SCALED if scaled else {}))
    # Another model at first: everything must come from the checkpoint.
    said = []
    result = pretrain(model(dropout, 5), corpus, config, run, device="cpu", say=said.append)
    assert result.finished
    same(whole(dropout, scaled), run)
    assert not any("bit for bit" in text for text in said)


# Other tests of the process may have started JAX, which warns of processes that are forked.
@pytest.mark.parametrize("step", [3, pytest.param(8, marks=pytest.mark.slow)])
def test_m22_workers_that_prepare_batches_change_no_bit(corpus, whole, tmp_path, step):
    run = cut(whole(True, False), tmp_path / "run", step)
    pretrain(model(True, 5), corpus, CONFIG.replace(workers=2), run, device="cpu")
    same(whole(True, False), run)


@pytest.mark.slow
def test_m22_a_run_may_be_cut_at_every_step(corpus, whole, tmp_path):
    """Start anew after each step, as a machine that is taken away every minute would make it."""
    run = tmp_path / "run"
    for step in range(3, STEPS, 3):
        pretrain(model(True), corpus, CONFIG, run, device="cpu")
        for late in range(step + 1, STEPS + 1):
            shutil.rmtree(folder(run, late))
    pretrain(model(True), corpus, CONFIG, run, device="cpu")
    same(whole(True, False), run)


@pytest.mark.parametrize("dropout", [False, True])
def test_m22_another_micro_batch_goes_on_and_says_that_it_is_not_exact(
    corpus, whole, tmp_path, dropout
):
    run = cut(whole(dropout, False), tmp_path / "run", 7)
    said = []
    config = CONFIG.replace(micro_batch=2)
    pretrain(model(dropout, 5), corpus, config, run, device="cpu", say=said.append)
    told = [text for text in said if "not bit for bit" in text]
    assert len(told) == 1
    assert "micro_batch 1 -> 2 changes the order of sums and dropout" in told[0]
    if not dropout:
        a, b = tensors(whole(False, False)), tensors(run)
        assert all(torch.allclose(a[name], b[name], rtol=1e-3, atol=1e-3) for name in a)
        losses = [[r["loss"] for r in records(r_)] for r_ in (whole(False, False), run)]
        assert losses[0] == pytest.approx(losses[1], rel=1e-3)


def test_m22_what_may_change_without_a_word(corpus, whole, tmp_path):
    run = cut(whole(True, False), tmp_path / "run", 7)
    said = []
    config = CONFIG.replace(log_every=5, save_every=0, keep=1, guard="rollback", eval_every=0)
    pretrain(model(True, 5), corpus, config, run, device="cpu", say=said.append)
    assert not any("bit for bit" in text for text in said)
    a, b = tensors(whole(True, False)), tensors(run)
    assert all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("step", [5, pytest.param(7, marks=pytest.mark.slow)])
def test_m22_lines_of_the_log_between_which_a_run_was_cut_are_the_same(corpus, tmp_path, step):
    config = CONFIG.replace(log_every=4, eval_every=6, eval_batches=2)
    options = {"held_out": corpus, "device": "cpu"}
    pretrain(model(True), corpus, config, tmp_path / "whole", **options)
    run = cut(tmp_path / "whole", tmp_path / "run", step)
    pretrain(model(True, 5), corpus, config, run, **options)
    same(tmp_path / "whole", run)
    for kind in ("train", "eval"):
        found = [records(place, kind) for place in (tmp_path / "whole", run)]
        names = ("step", "loss", "masked_loss", "order_loss", "masked_accuracy", "order_accuracy")
        a, b = ([[record[name] for name in names] for record in lines] for lines in found)
        assert a == b


def lost_at(monkeypatch, step):
    """Let the loss of a step be lost the first time."""
    real, seen = loop_module.Loop._read, []

    def read(self, late):
        text = real(self, late)
        if late.step != step or seen:
            return text
        seen.append(1)
        return "planted"

    monkeypatch.setattr(loop_module.Loop, "_read", read)


def test_m22_a_run_that_went_back_resumes_bit_for_bit(corpus, whole, tmp_path, monkeypatch):
    config = CONFIG.replace(guard="rollback")
    with monkeypatch.context() as patch:
        lost_at(patch, 7)
        pretrain(model(True), corpus, config, tmp_path / "whole", device="cpu")
    assert kept(tmp_path / "whole")["progress"]["offset"] > 0
    assert kept(tmp_path / "whole")["progress"]["health"]["rollbacks"] == 1
    other = tensors(whole(True, False))
    assert not all(torch.equal(other[name], t) for name, t in tensors(tmp_path / "whole").items())
    run = cut(tmp_path / "whole", tmp_path / "run", 9)
    pretrain(model(True, 5), corpus, config, run, device="cpu")
    a, b = tensors(tmp_path / "whole"), tensors(run)
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert kept(tmp_path / "whole") == kept(run)


def test_what_the_last_bits_depend_on(corpus):
    before = {"config": {"micro_batch": 4}, "machine": {"processes": 2, "device": "cuda"}}
    kept = Checkpoint(corpus.folder, 1, before)
    processes = type("Two", (), {"world_size": 2, "device": torch.device("cpu")})()
    machine = machine_of(processes)
    assert machine["processes"] == 2
    (text,) = what_is_inexact(kept, {"config": {"micro_batch": 4}, "machine": machine})
    assert text.endswith("device cuda -> cpu changes the rounding of products and dropout.")
    assert what_is_inexact(kept, before) == ()


# --------------------------------------------------------------------- damaged checkpoints
FILES = ("model.safetensors", "optimizer.safetensors", "checkpoint.json", "config.json")


def truncated(path):
    path.write_bytes(path.read_bytes()[:-3])


def flipped(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 16
    path.write_bytes(data)


def missing(path):
    path.unlink()


def a_folder(path):
    path.unlink()
    path.mkdir()


DAMAGES = (truncated, flipped, missing, a_folder)


@pytest.mark.parametrize(
    ("damage", "name"),
    [
        pytest.param(damage, name, marks=[] if number % 5 == 1 else pytest.mark.slow)
        for number, (damage, name) in enumerate(product(DAMAGES, FILES))
    ],
)
def test_damaged_files_are_named_and_the_checkpoint_before_is_used(
    corpus, whole, tmp_path, damage, name
):
    run = cut(whole(True, False), tmp_path / "run", 10, 11, 12)
    for step in (11, 12):
        damage(folder(run, step) / name)
    said = []
    pretrain(model(True, 5), corpus, CONFIG, run, device="cpu", say=said.append)
    passed = [text for text in said if "passed over" in text]
    assert [text.split(" is ")[0] for text in passed] == [
        f"Checkpoint of step {step}" for step in (12, 11)
    ]
    assert all(name in text for text in passed)
    assert "The run goes on after step 10 of 12." in said
    same(whole(True, False), run)


@pytest.mark.slow
def test_without_a_whole_checkpoint_the_run_begins_anew(corpus, whole, tmp_path):
    run = cut(whole(True, False), tmp_path / "run", 2, 9)
    for step in (2, 9):
        truncated(folder(run, step) / "model.safetensors")
    said = []
    pretrain(model(True), corpus, CONFIG, run, device="cpu", say=said.append)
    assert sum("passed over" in text for text in said) == 2
    same(whole(True, False), run)


def test_damaged_checkpoints_of_later_steps_do_not_count_as_kept(corpus, whole, tmp_path):
    run = cut(whole(True, False), tmp_path / "run", 3, 10, 11)
    for step in (10, 11):
        truncated(folder(run, step) / "model.safetensors")
    # A signal's checkpoint between: what is kept beside it must be whole.
    config = CONFIG.replace(keep=2, save_every=2)
    seen = []
    pretrain(
        model(True), corpus, config, run, device="cpu",
        progress=lambda *_: seen.append(sorted(p.name for p in run.glob("checkpoints/step-*"))),
    )  # fmt: skip
    # Step 3 is still there beside the first one that is saved.
    assert [folder(run, step).name for step in (3, 4, 10, 11)] in seen
    same(whole(True, False), run)


def test_a_renamed_checkpoint_is_passed_over(corpus, whole, tmp_path):
    run = cut(whole(True, False), tmp_path / "run", 8, 10)
    folder(run, 10).replace(folder(run, 11))
    said = []
    pretrain(model(True), corpus, CONFIG, run, device="cpu", say=said.append)
    assert any("it was renamed, and is of step 10" in text for text in said)
    assert "The run goes on after step 8 of 12." in said
    same(whole(True, False), run)


def test_a_log_that_was_cut_off_or_is_no_text_goes_on(corpus, whole, tmp_path):
    run = cut(whole(True, False), tmp_path / "run", 5)
    file = run / "log.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:6]) + b"\xff\xfe\x00\n" + lines[9][:30])
    (run / f".log.jsonl.{'0' * 8}.tmp").write_bytes(b"of a killed process")
    pretrain(model(True), corpus, CONFIG, run, device="cpu")
    same(whole(True, False), run)
    assert not list(run.glob(".*.tmp"))


def test_the_text_may_move_but_not_change(corpus, whole, tmp_path):
    run = cut(whole(True, False), tmp_path / "run", 9)
    other = prepare([*DOCS, "One more."], tmp_path / "other", Vocabulary(corpus.folder))
    with pytest.raises(CheckpointError, match="text and model, got another text"):
        pretrain(model(True), other, CONFIG, run, device="cpu")
    moved = shutil.copytree(corpus.folder, tmp_path / "moved")
    pretrain(model(True), moved, CONFIG, run, device="cpu")
    same(whole(True, False), run)


def test_a_longer_run_is_another_one_and_both_messages_say_so(corpus, whole, tmp_path):
    run, said = cut(whole(True, False), tmp_path / "run", STEPS), []
    pretrain(model(True), corpus, CONFIG, run, device="cpu", say=said.append)
    advice = f"model={folder(run, STEPS)} to begin with its weights."
    assert said[-1] == (
        f"The run has made all of its {STEPS} steps. More steps are another run, for the learning "
        f"rate follows their number: give out= another folder, and {advice}"
    )
    with pytest.raises(CheckpointError) as error:
        pretrain(model(True), corpus, CONFIG.replace(steps=20), run, device="cpu")
    assert str(error.value).endswith(
        f"got steps {STEPS} -> 20. Give out= another folder for a new run, and {advice}"
    )


def test_a_checkpoint_of_another_model_is_refused(corpus, whole, tmp_path):
    run = cut(whole(True, False), tmp_path / "run", 5)
    with pytest.raises(CheckpointError, match=r"another model \(hidden_size 16 -> 32\)"):
        pretrain(fresh(hidden_size=32, **DROPOUT), corpus, CONFIG, run, device="cpu")


@pytest.mark.slow
def test_a_setting_that_did_not_exist_yet_had_its_default(corpus, whole, tmp_path):
    from mpobert_plugin.train import checkpoint as module

    run = cut(whole(True, False), tmp_path / "run", 5)
    seal = folder(run, 5) / module.SEAL
    record = json.loads(seal.read_text())
    del record["sha256"], record["state"]["config"]["weight_decay"]
    seal.write_text(json.dumps({**record, "sha256": module._sum(record)}))
    pretrain(model(True), corpus, CONFIG, run, device="cpu")
    same(whole(True, False), run)


# ------------------------------------------------------------------------ epochs (M36)
@pytest.mark.parametrize("seed", [0, 1, 7])
@pytest.mark.parametrize("size", [3, 9])
def test_m36_every_epoch_has_an_order_of_its_own(tmp_path, seed, size):
    docs = [f"Number {k} alone here" for k in range(size)]
    samples = Samples(
        prepare(docs, tmp_path / "corpus", Vocabulary(size=60)),
        BASE.replace(seed=seed, shorter=0.0).recipe(),
    )
    assert len(samples) == size

    def order(epoch):
        found = []
        for place in range(size):
            sample = samples[epoch * size + place]
            ids = sample.input_ids.copy()
            asked = sample.labels >= 0
            ids[sample.positions[asked]] = sample.labels[asked]
            found.append(ids.tobytes())
        return found

    epochs = [order(epoch) for epoch in range(4)]
    assert all(len(set(epoch)) == size for epoch in epochs)
    assert all(set(epoch) == set(epochs[0]) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) > 1
    # Any place is at hand: epoch 2 is the same, read first or last.
    assert order(2) == epochs[2]
