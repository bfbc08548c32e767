"""The benchmark of pre-training: every section on a tiny model."""

from __future__ import annotations

import math
import time

import pytest
import torch

import mpobert_plugin as mp
from mpobert_plugin.train.bench import SECTIONS, Record, run_bench
from mpobert_plugin.train.bench import ablation as ablation_file
from mpobert_plugin.train.bench import published as published_file
from mpobert_plugin.train.bench import scaling as scaling_file
from mpobert_plugin.train.bench.networks import make_bert, make_mpo, make_plain
from mpobert_plugin.train.bench.record import KEYS
from mpobert_plugin.train.bench.scaling import efficiency
from mpobert_plugin.train.bench.scene import Scene
from mpobert_plugin.train.bench.text import made_up_corpus
from mpobert_plugin.train.bench.timing import Pace
from mpobert_plugin.train.bench.trained import trained
from mpobert_plugin.train.bench.unstacked import PlainLamb, unstacked
from mpobert_plugin.train.bench.usual import Usual, dense_labels, pieces_of
from mpobert_plugin.train.lamb import Lamb
from mpobert_plugin.train.processes import Processes
from mpobert_plugin.train.settings import PretrainConfig
from tests.mpobert_plugin.train import tiny
from tests.mpobert_plugin.train.benching import CPU, SETTINGS, SIZES, options


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return made_up_corpus(tmp_path_factory.mktemp("text"), words=91, tokens=4000)


@pytest.fixture(scope="module")
def scene(corpus):
    config = PretrainConfig(**SETTINGS, precision="fp32")
    return Scene("mpobert-12", SIZES, config, corpus, Processes(), ("bf16",), 2, Pace(1, 0.0))


def measured(section, corpus, tmp_path, **changed):
    given = options(data=corpus.folder, **changed)
    record = run_bench([section], given, tmp_path, device=CPU)
    assert [row for row in record.rows if "values" not in row] == []
    return {row["case"]: row["values"] for row in record.rows}


def assert_speeds(values):
    assert values["tokens_per_second"] > 0 < values["tflops"]
    assert values["speed_low"] <= values["speed"] <= values["speed_high"]
    assert values["share_of_peak"] is None


def test_network_compares_with_plain_weights(corpus, tmp_path):
    found = measured("network", corpus, tmp_path)
    assert list(found) == ["bf16, 1 micro-batch", "bf16, 2 micro-batches"]
    for values in found.values():
        assert list(values) == ["plain", "mpo", "plain, with update", "mpo, with update"]
        assert values["plain"]["speed"] == 1.0
        for numbers in values.values():
            assert_speeds(numbers)
        # Model operations are the same for both.
        work = [values[name]["tflops"] * values[name]["ms"] for name in ("plain", "mpo")]
        assert math.isclose(*work)


def test_transformers_says_where_its_head_runs(corpus, tmp_path):
    found = measured("transformers", corpus, tmp_path)
    assert list(found) == [
        "bf16 autocast, compiled: none, head at all positions",
        "bf16, the same loop, head at masked positions",
    ]
    for values in found.values():
        assert list(values) == ["BertForPreTraining", "mpo"]
        assert_speeds(values["mpo"])


def test_reference_runs_the_published_way(corpus, tmp_path):
    found = measured("reference", corpus, tmp_path)
    assert list(found) == [
        f"{form}, attention {attention}"
        for form, attention in (
            ("bf16", "sdpa"),
            ("bf16", "eager"),
            ("fp32", "eager"),
            ("fp32", "sdpa"),
        )
    ]
    for values in found.values():
        assert list(values) == ["reference", "mpo"]
        assert_speeds(values["reference"])
        assert values["reference"]["micro_batch"] == 4


def test_the_published_way_is_what_it_says_and_has_the_same_gradients(scene):
    ours = trained(scene, make_mpo(scene), 2)
    theirs = published_file.reference_of(scene, "fp32", "eager", 2)
    assert theirs.model.config._attn_implementation == "eager"
    assert ours.model.config._attn_implementation == "sdpa"
    strategies = {
        bank.strategy.training
        for bank in theirs.model.albert.mpo.stacked()
        if isinstance(bank, mp.MPOBank)
    }
    assert strategies == {"reference"}
    for one in (ours, theirs):
        one.engine.gradients.clear()
        one.passes()
    expected = ours.engine.gradients.flat
    assert expected.abs().max() > 1e-3
    torch.testing.assert_close(theirs.engine.gradients.flat, expected, rtol=1e-3, atol=1e-6)


def test_the_published_way_takes_fewer_samples_where_memory_is_short(scene, monkeypatch):
    real, tried = published_file.reference_of, []

    def short_of_memory(cut, form, attention, count=1):
        tried.append((cut.config.micro_batch, count))
        if cut.config.micro_batch > 2:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return real(cut, form, attention, count)

    monkeypatch.setattr(published_file, "reference_of", short_of_memory)
    values = published_file.published(scene)[0].run()
    assert tried == [(4, 1), (2, 2)]
    assert values["reference"]["micro_batch"] == 2
    assert values["mpo"]["micro_batch"] == 4

    def never(*given):
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(published_file, "reference_of", never)
    with pytest.raises(torch.OutOfMemoryError):
        published_file.published(scene)[0].run()


def test_memory_and_optimizer_on_a_cpu(corpus, tmp_path):
    found = measured("memory", corpus, tmp_path)
    stays = {case: next(iter(values.values())) for case, values in found.items()}
    # On a GPU there are peaks too.
    assert all(set(numbers) == {"stays_gib"} for numbers in stays.values())
    assert (
        stays["bf16, 1 in a step, mpo"]["stays_gib"]
        < stays["bf16, 1 in a step, plain"]["stays_gib"]
    )
    timed, counted = measured("optimizer", corpus, tmp_path / "optimizer").values()
    assert 0.0 < timed["ours"]["share_of_step"] < 1.0
    assert timed["one by one"]["speed"] == 1.0 or "ms" in timed["timm"]
    assert counted["ours"]["operations"] > 0
    assert counted["ours"]["host_waits"] is counted["ours"]["launches"] is None


def test_parts_add_up_to_the_step(corpus, tmp_path):
    found = measured("parts", corpus, tmp_path)
    assert list(found) == ["bf16, mpo", "bf16, plain"]
    ours, plain = found["bf16, mpo"]["mpo"], found["bf16, plain"]["plain"]
    assert math.isclose(sum(ours["share_of_a_whole_step"].values()), 1.0)
    assert ours["ms"]["rebuilding"] > 0 < ours["ms"]["way_back"]
    assert plain["ms"]["rebuilding"] == 0
    assert (ours["micro_batches_measured"], ours["micro_batches_of_a_whole_step"]) == (2, 16)
    for name, times in (("micro_batches", 8), ("optimizer", 1), ("loader_wait", 8)):
        assert math.isclose(ours["ms_of_a_whole_step"][name], times * ours["ms"][name])


def test_scaling_tells_a_whole_step_from_shorter_ones(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(scaling_file, "_FEW", 1)
    monkeypatch.setattr(scaling_file, "_MORE", 3)
    config = PretrainConfig(**{**SETTINGS, "batch_size": 16})
    found = measured("scaling", corpus, tmp_path, config=config)
    numbers = found["bf16, mpo"]["mpo"]
    seconds = numbers["measured_seconds_per_step"]
    assert numbers["tokens_per_second"] == pytest.approx(16 * 32 / seconds)
    assert numbers["hours_to_10k_steps"] == pytest.approx(seconds / 0.36)
    # Four micro-batches told from one and three, on a machine that others use too.
    assert 0.1 < numbers["told_seconds_per_step"] / seconds < 10.0


def test_scaling_without_time_for_a_whole_step(scene, monkeypatch):
    monkeypatch.setattr(scaling_file, "_MORE", 5)
    short = Scene(**{**vars(scene), "pace": Pace(1, 0.0, time.monotonic() - 1.0)})
    row = {"section": "scaling", "model": "mpobert-12", "case": "bf16, mpo"}
    numbers = SECTIONS["scaling"](short)[0].run()["mpo"]
    assert numbers["measured_seconds_per_step"] is None
    assert numbers["seconds_per_step"] == numbers["told_seconds_per_step"]
    assert "efficiency" not in numbers
    rows = [
        {**row, "world_size": size, "values": {"mpo": {"tokens_per_second": rate}}}
        for size, rate in ((2, 19.0), (1, 10.0))
    ]
    assert efficiency(rows, "mpobert-12", "bf16, mpo", 4, 36.0) == {"efficiency": 0.9, "beside": 1}
    assert efficiency(rows, "mpobert-12", "bf16, mpo", 1, 36.0) == {}
    assert efficiency(rows, "mpobert-24", "bf16, mpo", 4, 36.0) == {}


def test_ablation_has_all_eight_cases(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(ablation_file, "_SAMPLES", 2)
    monkeypatch.setattr(ablation_file, "BATCHES", (1, 2))
    found = measured("ablation", corpus, tmp_path)
    assert len(found) == 8
    for case, values in found.items():
        assert case.split(", ")[1:] in [
            [a, b] for a in ("bf16", "fp32") for b in ("fused", "unfused")
        ]
        rate = values["mpo"]["tokens_per_second"] / 32
        assert values["mpo"]["days_to_10k_steps"] == pytest.approx(4096e4 / rate / 86400)


def test_loader_is_compared_with_training(corpus, tmp_path):
    key = dict.fromkeys(KEYS, "elsewhere") | {"model": "mpobert-12"}
    before = Record([{**key, "values": {"mpo": {"tokens_per_second": 1000.0}}}])
    tmp_path.mkdir(exist_ok=True)
    before.write(tmp_path / "bench.json")
    found = run_bench(["loader"], options(data=corpus.folder), tmp_path, device=CPU)
    values = [row["values"]["loader"] for row in found.rows if row["section"] == "loader"]
    assert found.rows[0]["device"] == "elsewhere"
    assert all(v["times_training"] == v["tokens_per_second"] / 1000.0 for v in values)


def test_contenders_are_what_they_are_called(scene):
    ours, plain, bert = make_mpo(scene), make_plain(scene), make_bert(scene)
    merged = mp.merge(ours)
    shapes = {name: p.shape for name, p in merged.named_parameters()}
    assert {name: p.shape for name, p in plain.named_parameters()} == shapes
    assert type(plain) is type(merged)
    assert plain.config._attn_implementation == bert.config._attn_implementation == "sdpa"
    for model in (ours, plain, bert):
        config = model.config
        assert config.hidden_dropout_prob == config.attention_probs_dropout_prob == 0.0
        sizes = (config.num_hidden_layers, config.hidden_size, config.vocab_size)
        assert sizes == (2, 16, 96)


def test_unstacked_plain_lamb_gives_the_same_steps():
    torch.manual_seed(0)
    stack = torch.nn.Parameter(torch.randn(3, 4, 5, dtype=torch.float64))
    bias = torch.nn.Parameter(torch.randn(5, dtype=torch.float64))
    groups = [
        {"params": [stack], "stacked": True, "weight_decay": 0.01, "adapt": True},
        {"params": [bias], "weight_decay": 0.0, "adapt": False},
    ]
    stack.grad, bias.grad = torch.randn_like(stack), torch.randn_like(bias)
    apart = unstacked(groups)
    assert [len(group["params"]) for group in apart] == [3, 1]
    assert all("stacked" not in group for group in apart)
    ours, plain = Lamb(groups, lr=0.1), PlainLamb(apart, lr=0.1, clip=0.0)
    pieces = [*apart[0]["params"], *apart[1]["params"]]
    for _ in range(3):
        ours.step()
        plain.step()
        for grad, piece in zip([*stack.grad, bias.grad], pieces, strict=True):
            grad += 0.1
            piece.grad += 0.1
    for mine, piece in zip([*stack, bias], pieces, strict=True):
        torch.testing.assert_close(mine.detach(), piece.detach(), rtol=1e-12, atol=1e-12)


def test_labels_at_all_positions_and_pieces():
    batch = tiny.batch_of()
    assert torch.equal(dense_labels(batch), tiny.dense_labels(batch))
    pieces = pieces_of(batch, 3)
    assert [len(piece.sizes) for piece in pieces] == [3, 1]
    assert torch.equal(torch.cat([piece.labels for piece in pieces]), batch.labels)


def test_the_usual_loop_has_the_gradients_of_the_engine(scene):
    model = make_bert(scene)
    one = trained(scene, model, 2)
    one.engine.scale.value.fill_(65536.0)
    one.passes()
    expected = one.engine.gradients.flat.clone()
    for size in (4, 2):
        one.engine.gradients.clear()
        pieces = [piece for batch in one.batches for piece in pieces_of(batch, size)]
        Usual(model, pieces, one.counts, torch.float32, everywhere=False).passes()
        torch.testing.assert_close(one.engine.gradients.flat, expected, rtol=1e-3, atol=1e-2)
