"""One look at all banks before a forward in evaluation, and what it notices."""

from __future__ import annotations

import copy

import pytest
import torch

import mpobert_plugin as mp
from mpobert_plugin import kept
from mpobert_plugin.fingerprint import _merged, fingerprint
from tests.mpobert_plugin.handing import loss_of, query_bank, shared_bert
from tests.mpobert_plugin.models import ids, logits, tiny_bert


@pytest.fixture
def looks(monkeypatch):
    """Return a list that grows by one with each comparison, for which a GPU would be waited."""
    seen = []
    equal = kept.equal
    monkeypatch.setattr(kept, "equal", lambda a, b: seen.append(1) or equal(a, b))
    return seen


def test_a_forward_waits_once(looks):
    model = shared_bert(adapter_rank=2)
    logits(model)
    logits(model)
    looks.clear()
    for _ in range(3):
        logits(model)
    assert len(looks) == 3


def test_an_embedding_in_a_bank_takes_part(looks):
    model = mp.convert(tiny_bert(), targets=["embedding", "query"], n=3)
    before = [logits(model) for _ in range(2)]
    looks.clear()
    assert torch.equal(logits(model), before[0])
    assert len(looks) == 1
    model.bert.mpo["embedding"].central.data.mul_(1.5)
    assert not torch.equal(logits(model), before[0])


@pytest.mark.parametrize("role", ["query", "value", "ffn_out"])
def test_a_write_into_any_bank_is_noticed_at_once(role):
    model = shared_bert(adapter_rank=2)
    twin = copy.deepcopy(model)
    for _ in range(3):
        logits(model)
    for each in (model, twin):
        each.bert.mpo[role].auxiliary_1.data.mul_(1.5)
    mp.set_cache(twin, False)
    for _ in range(3):
        torch.testing.assert_close(logits(model), logits(twin), rtol=0, atol=1e-6)


def test_only_the_bank_that_changed_is_rebuilt(monkeypatch):
    from mpobert_plugin import bank

    model = shared_bert()
    for _ in range(3):
        logits(model)
    calls = []
    rebuild = bank.rebuild
    monkeypatch.setattr(
        bank, "rebuild", lambda s, *a, **k: calls.append(s.role) or rebuild(s, *a, **k)
    )
    query_bank(model).central.data.mul_(1.5)
    logits(model)
    assert calls == ["query"]


def test_values_that_are_exchanged_between_banks_are_noticed():
    model = shared_bert()
    for _ in range(3):
        before = logits(model)
    mpo = model.bert.mpo
    one, other = mpo["query"].central.data, mpo["key"].central.data
    saved = one.clone()
    one.copy_(other)
    other.copy_(saved)
    assert not torch.equal(logits(model), before)


def test_parameters_that_are_replaced_are_noticed():
    model = shared_bert()
    for _ in range(3):
        before = logits(model)
    bank = query_bank(model)
    bank.central = torch.nn.Parameter(1.5 * bank.central.detach())
    changed = logits(model)
    assert not torch.equal(changed, before)
    bank.bias = torch.nn.Parameter(1.0 + bank.bias.detach())
    assert not torch.equal(logits(model), changed)


def test_trust_ends_with_the_forward():
    model = shared_bert()
    for _ in range(3):
        logits(model)
    bank = query_bank(model)
    assert bank.trust.kept is None
    bank.central.data.mul_(1.5)
    with torch.no_grad():
        fresh = bank.weights()[0]
        reader = model.bert.encoder.layer[0].attention.self.query
        assert torch.equal(reader.weight, fresh)
    with pytest.raises(RuntimeError):
        model(inputs_embeds=torch.zeros(1, 3, 5))
    assert bank.trust.kept is None


def test_other_kinds_of_forward_in_between():
    model = shared_bert()
    for _ in range(3):
        expected = logits(model)
    loss_of(model).backward()
    assert torch.equal(logits(model), expected)
    model.train()
    logits(model)
    model.eval()
    for _ in range(3):
        assert torch.equal(logits(model), expected)
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
            half = model(ids())[0]
        assert (half - expected).norm() < 0.05 * expected.norm()
    twin = copy.deepcopy(model)
    assert twin.bert.mpo._together is None
    assert torch.equal(logits(twin), expected)


def test_small_tensors_are_joined_before_they_are_summed():
    small = [torch.randn(k, generator=torch.Generator().manual_seed(k)) for k in (3, 4, 600)]
    large = torch.zeros(2**17)
    flat = [tensor.view(torch.int32) for tensor in (*small, large)]
    assert [bits.numel() for bits in _merged(flat)] == [2**17, 607]
    before = fingerprint([*small, large])
    for tensor in (*small, large):
        tensor[1] += 0.5
        assert not torch.equal(fingerprint([*small, large]), before)
        tensor[1] -= 0.5
