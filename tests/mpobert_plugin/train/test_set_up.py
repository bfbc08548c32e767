"""Setting a run up takes little beside training itself."""

from __future__ import annotations

import gc

import pytest
import torch

from mpobert_plugin.train.data.batches import Batch, micro_batches
from mpobert_plugin.train.objective import Objective
from mpobert_plugin.train.processes import Processes
from mpobert_plugin.train.setup import set_up
from tests.mpobert_plugin.train.tiny_run import BASE, corpus_in, fresh


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return corpus_in(tmp_path_factory.mktemp("corpus"))


def first_batch(parts):
    return next(iter(micro_batches(parts.samples, parts.division, 0, 1)))


def test_what_losses_reach_is_asked_of_one_sample(corpus, monkeypatch):
    seen, real = [], Objective.forward

    def forward(self, batch, padded=None):
        seen.append(len(batch.input_ids))
        return real(self, batch, padded)

    monkeypatch.setattr(Objective, "forward", forward)
    parts = set_up(fresh(), corpus, BASE.replace(micro_batch=4), Processes())
    assert seen == [1]
    assert set(parts.parameters) == {name for name, _ in parts.model.named_parameters()}


@pytest.mark.parametrize("bare", ["labels", "orders"])
def test_a_sample_that_asks_for_nothing_reaches_all_the_same(corpus, bare):
    parts = set_up(fresh(), corpus, BASE, Processes())
    batch = first_batch(parts)
    nothing = Batch(**{**vars(batch), bare: torch.full_like(getattr(batch, bare), -100)})
    assert parts.engine.reached(nothing) == set(parts.parameters)


@pytest.mark.parametrize("precision", ["fp16", "fp32", "tf32"])
def test_a_format_that_is_slow_on_a_cpu_is_told_with_another(corpus, precision):
    notes = set_up(fresh(), corpus, BASE.replace(precision=precision), Processes()).notes
    told = [note for note in notes if "slow on a CPU" in note]
    assert len(told) == (precision == "fp16")
    assert all("Start with precision='fp32'" in note for note in told)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_set_up_needs_less_memory_than_a_micro_batch(corpus):
    config = BASE.replace(micro_batch=64, batch_size=64, precision="fp16")
    gc.collect()
    torch.cuda.reset_peak_memory_stats()
    parts = set_up(fresh().cuda(), corpus, config, Processes(device=torch.device("cuda")))
    first = torch.cuda.max_memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    parts.engine.step([first_batch(parts).pin_memory()])
    assert first < torch.cuda.max_memory_allocated()
