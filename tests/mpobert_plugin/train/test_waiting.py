"""A step reads nothing back from the device: tensors that hold no values would tell."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from mpobert_plugin.accumulate import accumulate
from mpobert_plugin.locate import is_converted
from mpobert_plugin.train import objective as objective_module
from mpobert_plugin.train.engine import Engine
from mpobert_plugin.train.gradients import Gradients
from mpobert_plugin.train.half import HalfCopies
from mpobert_plugin.train.lamb import Lamb
from mpobert_plugin.train.layers import LayerCalls
from mpobert_plugin.train.network import Network
from mpobert_plugin.train.objective import Objective
from mpobert_plugin.train.optimizers import Rates, set_rate
from mpobert_plugin.train.precision import LossScale, Precision
from mpobert_plugin.train.processes import Processes
from mpobert_plugin.train.schedule import Schedule
from tests.mpobert_plugin.train.computing import batches, model_of


def place(model):
    """Put a model where it has shapes and no values."""
    made = {}
    for module in model.modules():
        for name, found in [*module._parameters.items()]:
            if found is not None:
                new = made.setdefault(
                    id(found), nn.Parameter(torch.empty_like(found, device="cpu"))
                )
                module._parameters[name] = new
        for name, found in [*module._buffers.items()]:
            module._buffers[name] = torch.empty_like(found, device="cpu")
    return model


def engine_of(model, recompute):
    parameters = dict(model.named_parameters())
    gradients, form = Gradients(parameters), Precision("fp16")
    copies, calls = HalfCopies(model, gradients, form.dtype), LayerCalls(model, "none", recompute)
    return Engine(
        Objective(model),
        Lamb(model.parameters(), weight_decay=0.01),
        gradients,
        form,
        LossScale("cpu"),
        Processes(device=torch.device("cpu")),
        network=Network(form, copies, calls),
        **({"around": partial(accumulate, model)} if is_converted(model) else {}),
    )


@pytest.mark.parametrize(
    ("host", "recompute", "padded"),
    [
        ("mpobert", "layers", True),
        ("bert", "none", False),
        pytest.param("whole bert", "none", True, marks=pytest.mark.slow),
    ],
)
def test_no_step_waits_for_the_device(host, recompute, padded, monkeypatch):
    # The host's own question about its own sizes; it has no values here either.
    monkeypatch.setattr(objective_module, "is_padded", lambda batch: padded)
    model = model_of(host, layers=1)
    with FakeTensorMode(allow_non_fake_inputs=True):
        engine = engine_of(place(model), recompute)
        rates = Rates(Schedule("linear", 10, 2), 1e-3, "cpu")
        for step in range(2):
            set_rate(engine.optimizer, rates(step, engine.scale.skipped))
            result = engine.step(batches(1))
        with pytest.raises(DataDependentOutputException):
            float(result.norm)


def test_what_would_wait():
    with FakeTensorMode():
        table, place = torch.zeros(4), torch.zeros((), dtype=torch.int64)
        with pytest.raises(DataDependentOutputException):
            table[place]
