"""Settings, schedules, number formats: what they give and what they refuse."""

from __future__ import annotations

from dataclasses import fields

import pytest
import torch

from mpobert_plugin.errors import ConfigError, DataError
from mpobert_plugin.train.precision import LossScale, Precision
from mpobert_plugin.train.schedule import Schedule
from mpobert_plugin.train.settings import PretrainConfig
from mpobert_plugin.train.settings_file import read_settings


def test_a_file_and_words_make_settings(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text("steps: 50\nlr: 1e-3\n")
    config = read_settings(file, ["steps=60", "beta2=0.95"])
    assert (config.steps, config.lr, config.beta2) == (60, 1e-3, 0.95)
    assert PretrainConfig.from_dict(config.to_dict()) == config
    assert config.replace(seed=4).seed == 4


def test_every_setting_says_what_it_does():
    assert all(len(entry.metadata["text"]) > 10 for entry in fields(PretrainConfig))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["stps=3"], r"'stps': Did you mean 'steps'"),
        (["lr=fast"], "lr must be a number of at least 0 and at most 1e\\+06, got 'fast'"),
        (["lr=-1"], "got -1.0"),
        (["lr=.nan"], "got nan"),
        (["steps=3.5"], "steps must be an integer >= 1, got 3.5"),
        (["steps=0"], "steps must be an integer >= 1, got 0"),
        (["steps"], "name=value, got 'steps'"),
        (["=3"], "name=value, got '=3'"),
        (["lr=[1"], "name=value"),
        (["optimizer=lam"], "Did you mean 'lamb'"),
        (["precision=fp8"], "'fp32', 'tf32', got 'fp8'"),
        (["beta2=1.0"], "beta2 must be a number of at least 0 and below 1, got 1.0"),
        (["warmup_ratio=2"], "warmup_ratio must be a number of at least 0 and at most 1, got 2.0"),
        (["schedule=step"], "'linear', 'cosine', 'constant', got 'step'"),
        (["guard=go"], "guard must be 'stop', 'rollback', got 'go'"),
    ],
)
def test_settings_that_cannot_be(words, message):
    with pytest.raises(ConfigError, match=message):
        read_settings(None, words)


def test_settings_of_samples_are_checked_too():
    with pytest.raises(DataError, match=r"mask_rate must be above 0 and below 1, got 2\.0"):
        read_settings(None, ["mask_rate=2"])
    with pytest.raises(DataError, match="length of samples must be an integer >= 5, got 4"):
        read_settings(None, ["length=4"])


@pytest.mark.parametrize("text", ["[1, 2]", "a: [", "3"])
def test_files_that_hold_no_settings(tmp_path, text):
    (tmp_path / "run.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"must (be a YAML file|hold names and values)"):
        read_settings(tmp_path / "run.yaml")
    with pytest.raises(ConfigError, match="must be a YAML file"):
        read_settings(tmp_path / "nowhere.yaml")


def test_an_empty_file_means_the_defaults(tmp_path):
    (tmp_path / "run.yaml").write_text("")
    assert read_settings(tmp_path / "run.yaml") == PretrainConfig()


def test_m37_a_schedule_counts_optimizer_steps():
    schedule = Schedule("linear", 100)
    assert 1e-3 * schedule(50) == pytest.approx(5e-4)
    assert schedule(100) == 0.0


@pytest.mark.parametrize("kind", ["linear", "cosine", "constant"])
def test_schedules_rise_then_fall(kind):
    schedule = Schedule(kind, 100, 10)
    rates = [schedule(step) for step in range(101)]
    assert rates[0] == pytest.approx(0.1)
    assert rates[9] == rates[10] == 1.0
    assert sorted(rates[10:], reverse=True) == rates[10:]
    assert rates[100] == pytest.approx(1.0 if kind == "constant" else 0.0)
    assert Schedule(kind, 5, 5)(5) in (0.0, 1.0)
    with pytest.raises(ConfigError, match="at most the 5 steps of the run, got 6"):
        Schedule(kind, 5, 6)


def test_formats():
    assert Precision("tf32").dtype == torch.float32
    assert [Precision(name).scaled for name in ("fp16", "bf16", "fp32")] == [True, False, False]


def test_a_loss_scale_falls_and_grows():
    scale = LossScale("cpu", 1024.0, interval=3)
    history = []
    for overflow in (True, False, False, False, False, True):
        scale.update(torch.tensor(overflow))
        history.append(float(scale.value))
    assert history == [512.0, 512.0, 512.0, 1024.0, 1024.0, 512.0]
    assert scale.state() == {"scale": 512.0, "clean": 0, "skipped": 2}
    other = LossScale("cpu", interval=3)
    other.load(scale.state())
    assert other.state() == scale.state()


def test_a_loss_scale_has_limits_and_can_be_off():
    scale = LossScale("cpu", 2.0**-14)
    scale.update(torch.tensor(True))
    assert float(scale.value) == 2.0**-14
    off = LossScale("cpu", enabled=False)
    off.update(torch.tensor(True))
    assert off.state() == {"scale": 1.0, "clean": 0, "skipped": 1}
