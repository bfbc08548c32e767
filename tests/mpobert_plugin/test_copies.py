"""Copies, casts and moves keep the sharing inside, and nothing is shared between copies."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from torch.optim.swa_utils import AveragedModel
from transformers import AutoModelForMaskedLM

import mpobert_plugin as mp
from tests.mpobert_plugin.models import ids, logits, tiny_albert, tiny_bert


def to_meta_and_back(model):
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    buffers = {name: tensor.clone() for name, tensor in model.named_buffers()}
    moved = copy.deepcopy(model).to("meta")
    assert mp.account(moved).unique == mp.account(model).unique
    mp.assert_shared(moved)
    moved.to_empty(device="cpu")
    for name, tensor in moved.named_buffers():
        tensor.copy_(buffers[name])
    mp.load_state_dict(moved, state)
    return moved


def through_torch_save(model):
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


COPIES = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),
    "torch.save": through_torch_save,
    "half": lambda model: copy.deepcopy(model).half(),
    "bfloat16": lambda model: copy.deepcopy(model).bfloat16(),
    "float": lambda model: copy.deepcopy(model).float(),
    "double": lambda model: copy.deepcopy(model).double(),
    "to": lambda model: copy.deepcopy(model).to(torch.float64),
    "meta": to_meta_and_back,
    "average": lambda model: AveragedModel(model).module,
    "compile": lambda model: torch.compile(copy.deepcopy(model))._orig_mod,
}


@pytest.fixture(scope="module", params=["converted", "loaded"])
def model(request, tmp_path_factory):
    made = mp.convert(tiny_bert(), sharing="groups:2", fit="mean", adapter_rank=2)
    if request.param == "converted":
        return made
    folder = tmp_path_factory.mktemp("model")
    made.save_pretrained(folder)
    return AutoModelForMaskedLM.from_pretrained(folder)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
@pytest.mark.parametrize("name", COPIES)
def test_m04_sharing_survives(model, name):
    model.train()(ids(), labels=ids()).loss.backward()
    model.eval()
    logits(model)
    twin = COPIES[name](model)
    report = mp.account(twin)
    assert report.unique == mp.account(model).unique
    assert report.shared == mp.account(model).shared
    mp.assert_shared(twin)
    tolerance = {torch.float16: 2e-2, torch.bfloat16: 1e-1}.get(twin.dtype, 1e-5)
    torch.testing.assert_close(logits(twin).float(), logits(model), rtol=0, atol=tolerance)
    before = logits(model)
    ours = {id(tensor) for tensor in model.parameters()}
    assert not ours & {id(tensor) for tensor in twin.parameters()}
    with torch.no_grad():
        old = twin.bert.encoder.layer[1].attention.self.query.weight.clone()
        twin.bert.encoder.layer[0].attention.self.query.bank.central[0] += 1.0
        new = twin.bert.encoder.layer[1].attention.self.query.weight
    assert not torch.equal(old, new)
    assert torch.equal(logits(model), before)


def test_an_expanded_albert_survives_too():
    model = mp.from_albert(tiny_albert(), 6, adapter_rank=2)
    twin = pickle.loads(pickle.dumps(copy.deepcopy(model)))
    mp.assert_shared(twin)
    assert torch.equal(logits(twin), logits(model))
