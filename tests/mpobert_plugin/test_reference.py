"""The published way of rebuilding: for training alone, larger, and never chosen."""

from __future__ import annotations

import pytest

import mpobert_plugin as mp
from mpobert_plugin.errors import ConfigError
from mpobert_plugin.strategy import Strategy
from tests.mpobert_plugin.test_strategies import made, saved_bytes


def test_the_published_way_is_for_training_alone_and_never_chosen():
    model = made("groups, adapters")
    set_now = mp.set_strategy(model, "reference")
    assert set_now == Strategy("reference", "cached")
    assert "reference" not in [cost.name for cost in mp.plan_reconstruction(model).costs]
    with pytest.raises(ConfigError, match="'reference'"):
        mp.set_strategy(model, "reference", when="evaluation")
    mp.set_strategy(model, "batched")
    kept = saved_bytes(model)
    mp.set_strategy(model, "reference")
    assert saved_bytes(model) > kept
