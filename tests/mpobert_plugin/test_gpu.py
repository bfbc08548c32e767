"""Converted models on a CUDA device: same results as on the CPU, in every precision."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import AutoModelForMaskedLM

import mpobert_plugin as mp
from tests.mpobert_plugin.models import ids, stir_adapters, tiny_albert, tiny_bert

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def converted(device: str = "cuda"):
    model = mp.convert(tiny_albert(), n=3, sharing="all", adapter_rank=2)
    stir_adapters(model)
    return model.to(device)


@pytest.mark.parametrize("training", [False, True])
def test_values_and_gradients_equal_the_cpus(training):
    gpu, cpu = converted().double(), converted("cpu").double()
    results = []
    for model, device in ((gpu, "cuda"), (cpu, "cpu")):
        model.train(training)
        out = model(ids().to(device)).logits
        out.square().mean().backward()
        grads = {name: p.grad.cpu() for name, p in model.named_parameters() if p.grad is not None}
        results.append((out.detach().cpu(), grads))
    assert torch.allclose(results[0][0], results[1][0], atol=1e-9)
    for name, gradient in results[0][1].items():
        assert torch.allclose(gradient, results[1][1][name], atol=1e-9), name


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_and_autocast_stay_close(dtype):
    model = converted()
    tokens = ids().cuda()
    with torch.no_grad():
        exact = model(tokens).logits
        with torch.autocast("cuda", dtype):
            cast = model(tokens).logits
        half = copy.deepcopy(model).to(dtype)(tokens).logits
    limit = {torch.float16: 5e-3, torch.bfloat16: 4e-2}[dtype]
    for other in (cast, half):
        assert (other.float() - exact).norm() < limit * exact.norm()


def test_conversion_on_the_device_stays_there():
    bert = tiny_bert().cuda()
    plain = bert(ids().cuda()).logits
    model = mp.convert(bert, n=5)
    assert {p.device.type for p in model.parameters()} == {"cuda"}
    assert torch.allclose(model(ids().cuda()).logits, plain, atol=1e-5)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores:UserWarning")
@pytest.mark.filterwarnings("ignore:\\s*Online softmax is disabled:UserWarning")
# torch 2.11 says so of functions that it traces itself.
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_a_compiled_model_trains():
    model = converted().train()
    tokens = ids().cuda()
    expected = model(tokens, labels=tokens).loss
    compiled = torch.compile(model)
    loss = compiled(tokens, labels=tokens).loss
    loss.backward()
    assert torch.allclose(loss, expected, atol=1e-5)
    assert all(
        bank.central.grad is not None
        for bank in model.base_model.mpo.stacked()
        if hasattr(bank, "central")
    )


def test_saved_from_the_device_and_loaded_onto_it(tmp_path):
    model = converted()
    model.save_pretrained(tmp_path)
    again = AutoModelForMaskedLM.from_pretrained(tmp_path).cuda()
    mp.assert_shared(again)
    with torch.no_grad():
        assert torch.equal(again(ids().cuda()).logits, model.eval()(ids().cuda()).logits)
