"""Where a run computes: the GPUs are made up, the answers are not."""

from __future__ import annotations

import pytest
import torch

from mpobert_plugin.errors import ConfigError
from mpobert_plugin.train.place import device_of


@pytest.fixture
def four_gpus(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def test_alone_the_named_gpu_is_taken(four_gpus: pytest.MonkeyPatch) -> None:
    assert device_of("cuda") == torch.device("cuda", 1)
    assert device_of("cuda:3") == torch.device("cuda", 3)
    assert device_of(None) is None


@pytest.mark.parametrize("rank", [0, 2, 3])
def test_under_torchrun_each_process_has_its_own(four_gpus: pytest.MonkeyPatch, rank: int) -> None:
    four_gpus.setenv("LOCAL_RANK", str(rank))
    four_gpus.setenv("LOCAL_WORLD_SIZE", "4")
    assert device_of("cuda") == torch.device("cuda", rank)
    assert device_of("cpu") == torch.device("cpu")
    with pytest.raises(ConfigError, match="4 processes on this machine, got 'cuda:0'"):
        device_of("cuda:0")


def test_a_gpu_that_is_not_there_is_refused(four_gpus: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="one of the 4 GPUs that torch finds, got 'cuda:4'"):
        device_of("cuda:4")
