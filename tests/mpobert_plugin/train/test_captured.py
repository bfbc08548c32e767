"""What is recorded gives the bits of what runs as it is: lasting matrices, rates, and names."""

from __future__ import annotations

import gc
from collections import Counter
from functools import partial

import pytest
import torch

from mpobert_plugin.accumulate import Accumulation, accumulate
from mpobert_plugin.errors import ChangedTensorError, ConfigError
from mpobert_plugin.locate import is_converted
from mpobert_plugin.train.captured import Captured, recordable
from mpobert_plugin.train.optimizers import set_rate
from mpobert_plugin.train.processes import Processes
from mpobert_plugin.train.settings import PretrainConfig
from mpobert_plugin.train.setup import make_captured, set_up
from tests.mpobert_plugin.train.computing import batches, engine_of, model_of, reseed
from tests.mpobert_plugin.train.tiny_run import BASE, corpus_in, fresh


class Again:
    """Records nothing: a replay runs the work again on the inputs that were recorded."""

    device = torch.device("cpu")

    def __init__(self):
        self.runs, self.records, self.replays = 0, 0, 0

    def begin(self):
        pass

    def forget(self):
        pass

    def run(self, work, inputs):
        self.runs += 1
        return work(*inputs)

    def record(self, work, inputs):
        self.records += 1

        def replay():
            self.replays += 1
            return work(*inputs)

        return replay


def engines(host, precision, network, once=True, steps=5):
    """Run some steps with and without recording; return both models' weights and losses."""
    found = []
    for recorder in (None, Again()):
        model = model_of(host, dropout=0.1).train()
        options = {"lr": 1e-2}
        if once and is_converted(model):
            lasting = recorder is not None
            options["around"] = (
                Accumulation(model, lasting=True).step if lasting else partial(accumulate, model)
            )
        engine = engine_of(model, precision, network, **options)
        engine.captured = recorder and Captured(recorder)
        losses = []
        for step in range(steps):
            set_rate(engine.optimizer, torch.tensor(1e-2 / (1 + step)))
            result = engine.step([*batches(), *batches(1, seed=9)], reseed)
            losses.append(result.numbers)
        found.append((torch.stack(losses), engine, recorder))
    return found


# A plain model has nothing to rebuild, once or often.
@pytest.mark.parametrize(("precision", "network"), [("fp32", "autocast"), ("bf16", "half")])
@pytest.mark.parametrize(
    ("host", "once"),
    [("bert", False), *((h, once) for h in ("mpobert", "whole bert") for once in (True, False))],
)
def test_recorded_steps_have_the_same_bits(host, precision, network, once):
    (wanted, plain, _), (found, engine, recorder) = engines(host, precision, network, once)
    assert torch.equal(found, wanted)
    for a, b in zip(plain.objective.parameters(), engine.objective.parameters(), strict=True):
        assert torch.equal(a, b)
    # 15 micro-batches, padded as all of these are, and 5 updates: each twice as it is at first.
    assert (recorder.runs, recorder.records, recorder.replays) == (4, 2, 16)


def test_inputs_are_those_of_the_call_and_names_keep_work_apart():
    recorder = Again()
    captured = Captured(recorder, warm_ups=1)
    double = lambda x: (2 * x,)  # noqa: E731
    square = lambda x: (x * x,)  # noqa: E731
    for number in (1.0, 2.0, 3.0):
        assert captured("double", double, [torch.tensor(number)])[0].item() == 2 * number
        assert captured("square", square, [torch.tensor(number)])[0].item() == number**2
    assert (recorder.runs, recorder.records, recorder.replays) == (2, 2, 4)
    captured.forget()
    captured("double", double, [torch.tensor(1.0)])
    assert recorder.runs == 3


def test_padded_micro_batches_are_recorded_apart():
    engine = engine_of(model_of("bert").train())
    recorder = Again()
    engine.captured = Captured(recorder, warm_ups=0)
    padded, full = batches(2)
    full.sizes.fill_(full.input_ids.shape[1])
    assert (padded.sizes < 16).any()
    engine.step([padded, full, padded], reseed)
    # Two kinds of micro-batches, and the update.
    assert recorder.records == 3


def test_lasting_matrices_stay_at_their_places():
    model = model_of("mpobert").train()
    accumulation = Accumulation(model, lasting=True)
    engine = engine_of(model, around=accumulation.step, lr=1e-2)
    places = []
    for _ in range(3):
        engine.step(batches(), reseed)
        leaves = [leaf for once in accumulation._kept for leaf in once.leaves.values()]
        places.append([(leaf.matrices.data_ptr(), leaf.total.data_ptr()) for leaf in leaves])
    assert places[0] == places[1] == places[2]
    assert len(places[0]) == 6


def test_a_lasting_accumulation_notices_changed_cores_within_a_step():
    model = model_of("mpobert").train()
    accumulation = Accumulation(model, lasting=True)
    ids = batches()[0].input_ids
    central = next(iter(model.albert.mpo.values())).central

    def once(change):
        with accumulation.step():
            model(input_ids=ids).prediction_logits.sum().backward()
            with torch.no_grad():
                central.mul_(change) if change else None

    once(None)
    with torch.no_grad():
        central.mul_(2.0)
    once(None)
    with pytest.raises(ChangedTensorError, match="must not be modified"):
        once(2.0)


def test_a_rate_that_is_a_tensor_stays_where_it_is():
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.AdamW([{"params": [weight], "lr_scale": 2.0}], lr=1.0, fused=True)
    set_rate(optimizer, torch.tensor(0.5))
    place = optimizer.param_groups[0]["lr"]
    set_rate(optimizer, torch.tensor(0.25))
    assert optimizer.param_groups[0]["lr"] is place
    assert place.item() == 0.5


def test_optimizers_are_recordable_only_while_something_is_recorded(monkeypatch):
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.ones(1))])
    with recordable(optimizer):
        assert optimizer.param_groups[0]["capturable"] is False
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with recordable(optimizer):
        assert optimizer.param_groups[0]["capturable"] is True
    assert optimizer.param_groups[0]["capturable"] is False


def test_nothing_is_recorded_on_a_cpu_and_asking_for_it_is_refused(tmp_path):
    corpus = corpus_in(tmp_path)
    parts = set_up(fresh(), corpus, BASE, Processes())
    assert parts.engine.captured is None
    with pytest.raises(ConfigError, match=r"graphs='steps' needs a GPU, got the device 'cpu'"):
        set_up(fresh(), corpus, BASE.replace(graphs="steps"), Processes())
    with pytest.raises(ConfigError, match="needs recompute='none', got 'layers'"):
        PretrainConfig(graphs="steps", recompute="layers")


@pytest.mark.parametrize(
    ("changes", "recorded"),
    [({}, True), ({"graphs": "none"}, False), ({"recompute": "layers"}, False)],
)
def test_what_is_recorded_by_itself_on_a_gpu(changes, recorded, monkeypatch):
    monkeypatch.setattr("mpobert_plugin.train.setup.CudaGraphs", lambda _device: Again())
    gpu = torch.device("cuda")
    found = make_captured(model_of("bert"), BASE.replace(**changes), gpu)
    assert (found is not None) is recorded
    model = model_of("bert")
    model.config._attn_implementation = "eager"
    assert make_captured(model, BASE.replace(**changes), gpu) is None


def test_memory_does_not_grow_with_the_steps():
    model = model_of("mpobert").train()
    engine = engine_of(model, "bf16", "half", around=partial(accumulate, model), lr=1e-3)

    def alive():
        gc.collect()
        kinds = Counter(map(type, gc.get_objects()))  # asking each of a million is slow
        return sum(number for kind, number in kinds.items() if issubclass(kind, torch.Tensor))

    counts = []
    for _ in range(4):
        engine.step(batches(), reseed)
        counts.append(alive())
    assert counts[-1] <= counts[1] + 2
