"""What a forward is handed as the one before it was, and what ends that."""

from __future__ import annotations

import copy
import threading
import weakref

import pytest
import torch

import mpobert_plugin as mp
from mpobert_plugin import ready
from mpobert_plugin.runtime import banks_of
from tests.mpobert_plugin.handing import shared_bert
from tests.mpobert_plugin.models import ids, logits, tiny_bert


@pytest.fixture
def made(monkeypatch):
    """Return a list that grows by the name of each bank whose values are made anew."""
    seen, real = [], ready._values
    monkeypatch.setattr(ready, "_values", lambda bank: seen.append(bank.name) or real(bank))
    return seen


def settled(model):
    """Return the logits of a model that has made ready what it hands out."""
    model.eval()
    for _ in range(3):
        found = logits(model)
    assert banks_of(model)._ready is not None
    return found


def fresh_logits(model):
    """Return the logits of a copy, which starts with nothing."""
    return logits(copy.deepcopy(model).eval())


def test_values_are_made_once_for_many_forwards(made):
    model = shared_bert(adapter_rank=2)
    before = settled(model)
    assert made
    made.clear()
    for _ in range(3):
        assert torch.equal(logits(model), before)
    assert not made


def test_nothing_stays_with_the_readers_after_a_forward():
    model = shared_bert()
    settled(model)
    for bank in banks_of(model).stacked():
        assert all(reader.handed is None for reader in bank.readers)
        assert getattr(bank, "trust", None) is None or bank.trust.kept is None


@pytest.mark.parametrize("name", ["bias", "weight", "auxiliary_0", "central"])
@pytest.mark.parametrize("how", ["in place", "data", "exchanged", "assigned"])
def test_every_write_is_seen(name, how):
    model = shared_bert()
    before = settled(model)
    bank = next(b for b in banks_of(model).stacked() if name in b.names)
    tensor = getattr(bank, name)
    with torch.no_grad():
        if how == "in place":
            tensor.mul_(1.5).add_(0.1)
        elif how == "data":
            tensor.data.view(-1)[0] += 3.0
        elif how == "exchanged":
            tensor.data = tensor.data * 1.5 + 0.1
        else:
            setattr(bank, name, torch.nn.Parameter(tensor * 1.5 + 0.1))
    found = logits(model)
    assert not torch.equal(found, before)
    assert torch.allclose(found, fresh_logits(model), atol=1e-6)
    assert torch.allclose(logits(model), found, atol=1e-6)


def test_gradients_of_biases_and_norms_are_not_lost():
    model = shared_bert()
    settled(model)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    chosen = [
        getattr(bank, name)
        for bank in banks_of(model).stacked()
        for name in ("bias", "weight")
        if name in bank.names
    ]
    for tensor in chosen:
        tensor.requires_grad_(True)
    model(ids()).logits.square().sum().backward()
    assert all(tensor.grad is not None for tensor in chosen)
    assert torch.isfinite(settled(model)).all()


def test_forwards_in_inference_mode_leave_others_as_they_are():
    model = shared_bert()
    with torch.inference_mode():
        inside = settled(model)
    assert torch.equal(logits(model), inside)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    embedded = model.get_input_embeddings()(ids()).requires_grad_()
    model(inputs_embeds=embedded).logits.sum().backward()
    assert embedded.grad.any()


def test_parameters_in_the_place_of_others_are_used_and_left_again():
    model = shared_bert()
    before = settled(model)
    other = {name: p.detach() * 1.1 for name, p in model.named_parameters()}
    with torch.no_grad():
        found = torch.func.functional_call(model, other, (ids(),)).logits
    assert not torch.allclose(found, before)
    assert torch.equal(logits(model), before)


@pytest.mark.parametrize("name", ["weight", "bias"])
def test_other_strides_at_the_same_place_are_seen(name):
    model = shared_bert()
    bank = next(b for b in banks_of(model).stacked() if name in b.names)
    with torch.no_grad():
        getattr(bank, name).add_(torch.randn_like(getattr(bank, name)))
    before = settled(model)
    tensor = getattr(bank, name)
    tensor.data = tensor.data[:1].expand_as(tensor)
    found = logits(model)
    mp.set_cache(model, False)
    assert torch.equal(found, logits(model))
    assert not torch.equal(found, before)


def test_parameters_can_be_swapped_after_a_forward():
    model = shared_bert()
    before = settled(model)
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        model.load_state_dict({name: t.clone() for name, t in model.state_dict().items()})
        assert torch.equal(settled(model), before)
        model.to(torch.float64)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
    assert torch.allclose(settled(model).float(), before, atol=1e-5)


# torch makes its rules for tangents with what it warns of itself.
@pytest.mark.filterwarnings("ignore:.*torch.jit.script. is deprecated:DeprecationWarning")
@pytest.mark.parametrize("name", ["weight", "bias", "central"])
@pytest.mark.parametrize("graph", [True, False])
def test_tangents_and_batches_of_parameters_are_not_lost(name, graph):
    model = shared_bert().double().requires_grad_(False)
    model.config._attn_implementation = "eager"
    settled(model)
    tensor = next(getattr(b, name) for b in banks_of(model).stacked() if name in b.names)
    path = next(n for n, p in model.named_parameters() if p is tensor)

    def run(value):
        return torch.func.functional_call(model, {path: value}, (ids(),)).logits

    step = torch.randn(tensor.shape, generator=torch.Generator().manual_seed(0)).double()
    values = torch.stack([tensor, tensor + 0.1 * step])
    with torch.set_grad_enabled(graph):
        _, found = torch.func.jvp(run, (tensor.detach(),), (step,))
        both = torch.func.vmap(run, randomness="same")(values)
    with torch.no_grad():
        far, near = (run(tensor.detach() + s * 1e-4 * step) for s in (1, -1))
        apart = [run(value) for value in values]
    assert found.any()
    assert torch.allclose(found, (far - near) / 2e-4, atol=1e-4 * float(found.abs().max()))
    torch.testing.assert_close(both, torch.stack(apart))


def test_hooks_on_all_modules_see_every_forward():
    model = shared_bert()
    settled(model)
    bank, seen = next(banks_of(model).stacked()), []
    hook = torch.nn.modules.module.register_module_forward_hook
    handle = hook(lambda module, *_: seen.append(1) if module is bank else None)
    try:
        for _ in range(3):
            logits(model)
    finally:
        handle.remove()
    assert len(seen) == 3


@pytest.mark.parametrize("end", ["cache", "train", "half"])
def test_matrices_are_let_go_of(end):
    model = shared_bert()
    settled(model)
    kept = weakref.ref(next(banks_of(model).stacked())._cache.weights[0])
    if end == "cache":
        mp.set_cache(model, False)
    elif end == "train":
        model.train()
    else:
        model.to(torch.bfloat16)
    assert kept() is None


def test_hooks_on_a_bank_see_every_forward():
    model = shared_bert()
    settled(model)
    seen = []
    bank = next(banks_of(model).stacked())
    handle = bank.register_forward_hook(lambda *_: seen.append(1))
    for _ in range(3):
        logits(model)
    assert len(seen) == 3
    handle.remove()
    settled(model)
    logits(model)
    assert len(seen) == 3


@pytest.mark.parametrize("change", ["train", "half", "strategy", "copy"])
def test_changes_of_the_model(change):
    model = shared_bert()
    before = settled(model)
    if change == "train":
        model.train()
        model(ids()).logits.sum().backward()
        assert torch.allclose(settled(model), before)
    elif change == "half":
        model.to(torch.bfloat16)
        assert torch.allclose(settled(model).float(), before, atol=0.1)
        assert torch.allclose(settled(model.float()).float(), before, atol=0.1)
    elif change == "strategy":
        mp.set_strategy(model, "factorized", when="evaluation")
        assert torch.allclose(logits(model), before, atol=1e-5)
        mp.set_strategy(model, "cached", when="evaluation")
        assert torch.equal(settled(model), before)
    else:
        twin = copy.deepcopy(model)
        assert banks_of(twin)._ready is None
        with torch.no_grad():
            next(banks_of(twin).stacked()).bias.add_(1.0)
        assert not torch.allclose(settled(twin), before)
        assert torch.equal(logits(model), before)


def test_an_embedding_hands_out_by_itself():
    model = mp.convert(tiny_bert(), targets=["embedding", "query"], n=3)
    before = settled(model)
    assert banks_of(model)._ready.others
    assert torch.equal(logits(model), before)


def test_threads_are_handed_their_own():
    model = shared_bert()
    before = settled(model)
    found = [None] * 4

    def work(k):
        for _ in range(20):
            found[k] = logits(model)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(each, before) for each in found)
