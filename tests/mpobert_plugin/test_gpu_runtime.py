"""What happens around a forward on CUDA devices: replicas, layers elsewhere, captured graphs."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForMaskedLM

from tests.mpobert_plugin.handing import (
    assert_same_gradients,
    gradients,
    loss_of,
    query_bank,
    shared_bert,
)
from tests.mpobert_plugin.models import checkpoint_layers, ids, logits

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
two_devices = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")

ACROSS = {
    "bert.embeddings": 0,
    "bert.mpo": 0,
    "bert.encoder.layer.0": 0,
    "bert.encoder.layer.1": 0,
    "bert.encoder.layer.2": 1,
    "bert.encoder.layer.3": 1,
    "cls": 0,
}


@two_devices
def test_layers_on_another_device_than_their_bank(tmp_path):
    model = shared_bert(adapter_rank=2)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForMaskedLM.from_pretrained(tmp_path, device_map=ACROSS).eval()
    torch.testing.assert_close(logits(loaded).cpu(), logits(model), rtol=0, atol=1e-5)
    loss_of(model).backward()
    loss_of(loaded).backward()
    ours = {name: gradient.cpu() for name, gradient in gradients(loaded).items()}
    assert_same_gradients(ours, gradients(model), atol=1e-5)


@two_devices
# The threads that DataParallel starts have no CUDA context until their first product.
@pytest.mark.filterwarnings("ignore:.*Attempting to run cuBLAS:UserWarning")
@pytest.mark.parametrize("training", [True, False])
def test_replicas_on_two_devices(training):
    model = shared_bert(adapter_rank=2).cuda().train(training)
    both = torch.nn.DataParallel(model)
    for _ in range(2):
        model.zero_grad()
        model(ids().cuda())[0].square().mean().backward()
        expected = gradients(model)
        model.zero_grad()
        both(ids().cuda())[0].square().mean().backward()
        assert_same_gradients(gradients(model), expected, atol=1e-5)
        with torch.no_grad():
            output = both(ids().cuda())[0]
        torch.testing.assert_close(output, logits(model.cpu()).cuda(), rtol=0, atol=1e-4)
        model.cuda()


# Reentrant checkpointing says so of every forward without gradient.
@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad:UserWarning")
@pytest.mark.parametrize("reentrant", [True, False])
def test_recomputed_layers(reentrant):
    plain = shared_bert(adapter_rank=2).cuda().train()
    model = shared_bert(adapter_rank=2).cuda().train()
    checkpoint_layers(model, reentrant)
    for each in (plain, model):
        losses = [each(ids().cuda(), labels=ids().cuda()).loss for _ in range(2)]
        with torch.no_grad():
            each(ids().cuda())
        for loss in losses:
            loss.backward()
    assert_same_gradients(gradients(model), gradients(plain), atol=1e-5)


def test_a_captured_graph_follows_later_writes():
    model = shared_bert().cuda()
    bank = query_bank(model)
    x = torch.randn(3, 32, device="cuda")
    stream = torch.cuda.Stream()
    with torch.no_grad(), torch.cuda.stream(stream):
        (bank.weights()[0] @ x.T).sum()
        bank.drop_cache()
        bank.weights()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        out = x @ bank.weights()[0].T
    bank.central.data.mul_(2.0)
    graph.replay()
    with torch.no_grad():
        torch.testing.assert_close(out, x @ bank.weights()[0].T)
