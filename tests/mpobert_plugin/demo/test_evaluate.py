"""Accuracy and comparison on models whose answers are known; the training loop."""

from __future__ import annotations

import os
import signal

import pytest
import torch

from mpobert_plugin.demo.evaluate import Score, compare, masked_accuracy
from mpobert_plugin.demo.masking import training_batches
from mpobert_plugin.demo.smiles import CLS, FIRST_TOKEN, SEP
from mpobert_plugin.demo.train import train
from tests.mpobert_plugin.demo.toy import Constant
from tests.mpobert_plugin.real import (
    DEV_REACTIONS,
    encoded_reactions,
    load_albert,
    needs_albert,
    needs_dev_reactions,
)

ONES = [[CLS, *[FIRST_TOKEN] * 10, SEP]] * 4
TWOS = [[CLS, *[FIRST_TOKEN + 1] * 20, SEP]] * 4
RIGHT, WRONG = Constant(FIRST_TOKEN), Constant(FIRST_TOKEN + 2)


def test_accuracy_counts_masked_tokens():
    assert masked_accuracy(RIGHT, ONES) == Score(8, 8)
    assert masked_accuracy(WRONG, ONES, maskings=3) == Score(0, 24)
    mixed = masked_accuracy(RIGHT, ONES + TWOS)
    assert mixed == Score(8, 20)
    assert mixed.accuracy == pytest.approx(0.4)
    assert Score(0, 0).accuracy == 0.0


def test_the_mode_of_the_model_is_left_alone():
    for training in (True, False):
        model = Constant(FIRST_TOKEN).train(training)
        masked_accuracy(model, ONES)
        assert model.training is training


def test_compare_finds_the_largest_difference():
    same = compare(RIGHT, RIGHT, ONES + TWOS)
    assert same.max_difference == 0.0
    assert same.same_predictions
    assert same.before == same.after == Score(8, 20)
    other = compare(RIGHT, WRONG, ONES)
    assert other.max_difference == 1.0
    assert not other.same_predictions
    together = same + other
    assert together.max_difference == 1.0
    assert not together.same_predictions
    assert together.before == Score(16, 28)


def batches(steps: int):
    return training_batches(ONES, steps=steps, size=4)


def test_training_lowers_the_loss():
    torch.manual_seed(0)
    model = Constant(FIRST_TOKEN + 2)
    reports = []
    history = train(
        model,
        batches(30),
        steps=30,
        learning_rate=0.3,
        report=lambda step, loss: reports.append((step, loss)),
    )
    assert len(history.losses) == 30
    assert reports == list(enumerate(history.losses, start=1))
    assert history.losses[-1] < history.losses[0] / 5
    assert not history.interrupted
    assert not model.training
    assert masked_accuracy(model, ONES).accuracy == 1.0


def test_ctrl_c_ends_the_training_after_the_step():
    before = signal.getsignal(signal.SIGINT)

    def interrupt(step: int, _loss: float) -> None:
        if step == 3:
            os.kill(os.getpid(), signal.SIGINT)

    history = train(Constant(FIRST_TOKEN + 2), batches(9), steps=9, report=interrupt)
    assert history.interrupted
    assert len(history.losses) == 3
    assert signal.getsignal(signal.SIGINT) is before


def test_a_second_ctrl_c_interrupts_at_once():
    def interrupt(_step: int, _loss: float) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train(Constant(FIRST_TOKEN), batches(9), steps=9, report=interrupt)


@needs_albert
@needs_dev_reactions
def test_accuracy_on_patent_reactions():
    score = masked_accuracy(load_albert(), encoded_reactions(DEV_REACTIONS, 100))
    assert score.total > 1200
    assert score.accuracy == pytest.approx(0.98, abs=0.01)
