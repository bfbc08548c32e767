"""What users of other tools met in pre-training, with small inputs and known outcomes."""

from __future__ import annotations

import json
import math
from itertools import product

import numpy as np
import pytest
import torch
import transformers
from torch import nn

import mpobert_plugin as mp
from mpobert_plugin.errors import ConfigError
from mpobert_plugin.train.data.batches import Batch, Division, collate, micro_batches
from mpobert_plugin.train.data.counter import Draws
from mpobert_plugin.train.data.masking import Masking, choose, replace
from mpobert_plugin.train.data.prepare import Vocabulary, prepare
from mpobert_plugin.train.data.samples import IGNORED, Samples
from mpobert_plugin.train.objective import Objective
from mpobert_plugin.train.processes import Processes
from mpobert_plugin.train.run import pretrain
from mpobert_plugin.train.setup import set_up
from tests.mpobert_plugin.train.tiny import BERT, MODELS, batch_of
from tests.mpobert_plugin.train.tiny_run import BASE, corpus_in, fresh


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return corpus_in(tmp_path_factory.mktemp("corpus"))


def records(run):
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return [line for line in lines if line["kind"] == "train"]


def zeros(model):
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    return model


# ------------------------------------------------------------------------------------- M13
@pytest.mark.parametrize("vocabulary", [96, 128, 1000])
@pytest.mark.parametrize("micro", [1, 4])
def test_m13_a_run_of_zeros_logs_both_losses_apart(corpus, tmp_path, vocabulary, micro):
    model = zeros(fresh(vocab_size=vocabulary))
    config = BASE.replace(steps=1, batch_size=4, micro_batch=micro, shorter=0.0)
    pretrain(model, corpus, config, tmp_path / "run", device="cpu")
    (record,) = records(tmp_path / "run")
    assert record["masked_loss"] == pytest.approx(math.log(vocabulary), rel=1e-6)
    assert record["order_loss"] == pytest.approx(math.log(2), rel=1e-6)
    assert record["loss"] == pytest.approx(math.log(vocabulary) + math.log(2), rel=1e-6)


def test_m13_orders_reach_the_model_in_the_order_of_the_samples(corpus):
    samples = Samples(corpus, BASE.recipe())
    rows = [samples[index] for index in range(8)]
    batch = collate(rows)
    assert batch.orders.tolist() == [row.order for row in rows]
    model = fresh().eval()
    # Each sample alone gives its own part of the sum.
    alone = sum(Objective(model)(collate([row])).orders for row in rows)
    assert alone.item() == pytest.approx(Objective(model)(batch).orders.item(), rel=1e-5)
    # A head that always says 'in order' is right as often as that is the label.
    head = model.sop_classifier.classifier
    with torch.no_grad():
        head.weight.zero_()
        head.bias.copy_(torch.tensor([5.0, -5.0]))
    assert int(Objective(model)(batch).right_orders) == batch.orders.tolist().count(0)


# -------------------------------------------------------------------------------- M14, M15
LENGTH, START, END, PAD, MASK = 512, 2, 3, 0, 4


def case_of(seed, special_in_words, masking):
    """Choose and replace in 400 sequences: [CLS] first, [SEP] at 300, padding behind it."""
    generator = np.random.default_rng(seed)
    counts = np.zeros(4, dtype=np.int64)  # chosen, mask, unchanged, other
    ordinary = np.arange(5, 1000)
    for number in range(400):
        ids = generator.integers(5, 1000, LENGTH)
        ids[0], ids[300], ids[301:] = START, END, PAD
        eligible = ids >= 5
        # Where words begin must not matter for what is never asked for.
        begins = np.ones(LENGTH, bool) if special_in_words else generator.random(LENGTH) < 0.7
        chosen = choose(eligible, begins, masking, Draws(seed, number, 1))
        assert (ids[chosen] >= 5).all()
        after = replace(ids, chosen, masking, MASK, ordinary, Draws(seed, number, 2))
        untouched = np.setdiff1d(np.arange(LENGTH), chosen)
        assert (after[untouched] == ids[untouched]).all()
        new, old = after[chosen], ids[chosen]
        assert ((new >= 5) | (new == MASK)).all()  # no special id is drawn but the mask
        counts += [len(chosen), (new == MASK).sum(), (new == old).sum(), 0]
    counts[3] = counts[0] - counts[1] - counts[2]
    return counts


@pytest.mark.parametrize("kind", ["token", "word", "ngram"])
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_m14_m15_what_is_masked_and_how_often(kind, seed):
    masking = Masking(kind, 0.15, most=100)
    chosen, masks, unchanged, other = case_of(seed, kind == "token", masking)
    assert chosen / 119_600 == pytest.approx(0.15, abs=0.0041)
    assert masks / chosen == pytest.approx(0.80, abs=0.012)
    assert unchanged / chosen == pytest.approx(0.1001, abs=0.009)
    assert other / chosen == pytest.approx(0.0999, abs=0.009)


# ------------------------------------------------------------------------------------- M16
@pytest.mark.parametrize("tokens", [1, 4, 10])
@pytest.mark.parametrize("kind", ["token", "word", "ngram"])
def test_m16_one_token_at_least_is_asked_for(tokens, kind):
    eligible = np.zeros(16, bool)
    eligible[1 : 1 + tokens] = True
    for seed in range(50):
        chosen = choose(eligible, np.ones(16, bool), Masking(kind), Draws(seed))
        assert len(chosen) >= 1
        assert eligible[chosen].all()
    assert len(choose(np.zeros(16, bool), np.ones(16, bool), Masking(kind), Draws(0))) == 0


def test_m16_an_empty_micro_batch_changes_nothing_beside_a_full_one():
    model = fresh().eval()
    full = batch_of(vocabulary=96)
    empty = Batch(
        **{
            **vars(full),
            "labels": torch.full_like(full.labels, IGNORED),
            "orders": torch.full_like(full.orders, IGNORED),
        }
    )
    counts = full.counts() + empty.counts()
    assert counts.tolist() == full.counts().tolist()
    objective = Objective(model)
    both = objective(full).mean(counts) + objective(empty).mean(counts)
    assert both.item() == objective(full).mean(counts).item()
    grads = torch.autograd.grad(objective(empty).mean(counts), list(model.parameters()))
    assert all(not gradient.any() for gradient in grads)


def test_m16_orders_alone_give_ln_2():
    model = zeros(fresh())
    batch = batch_of(vocabulary=96)
    only = Batch(**{**vars(batch), "labels": torch.full_like(batch.labels, IGNORED)})
    loss = Objective(model)(only).mean(only.counts())
    assert loss.item() == pytest.approx(0.693147, abs=1e-6)


# ------------------------------------------------------------------------------------- M17
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("converted", [True, False])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_m17_a_row_without_a_visible_token_stays_finite(attention, converted, dtype):
    torch.manual_seed(0)
    model = transformers.BertForPreTraining._from_config(BERT, attn_implementation=attention)
    if converted:
        mp.convert(model, n=3)
    model = model.to(dtype).eval()
    ids = torch.arange(5, 17).view(2, 6)
    mask = torch.ones_like(ids)
    mask[1] = 0
    # Scores far below zero on top of the mask.
    query = [p for name, p in model.named_parameters() if "query" in name and "bias" in name]
    with torch.no_grad():
        for bias in query:
            bias.fill_(-20.0)
        both = model(ids, attention_mask=mask)
        one = model(ids[:1], attention_mask=mask[:1])
    for name in ("prediction_logits", "seq_relationship_logits"):
        assert torch.isfinite(both[name]).all()
        limit = 2e-3 if dtype == torch.float16 else 2e-2
        assert torch.allclose(both[name][:1].float(), one[name].float(), atol=limit)


# ------------------------------------------------------------------------------- M24 to M26
def test_m24_adapters_alone_are_trained(corpus, tmp_path):
    model = fresh(adapter_rank=2)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("adapter" in name)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    config = BASE.replace(steps=4)
    pretrain(model, corpus, config, tmp_path / "run", device="cpu")
    for name, parameter in model.named_parameters():
        assert torch.equal(before[name], parameter) == ("adapter" not in name), name


@pytest.mark.parametrize("name", ["AlbertForPreTraining", "BertForPreTraining"])
@pytest.mark.parametrize("converted", [True, False])
def test_m24_masked_tokens_alone_leave_the_head_of_orders(corpus, tmp_path, name, converted):
    """Decay too: by Lamb it would take a tensor without gradient to zero in some hundred steps."""
    torch.manual_seed(0)
    model = getattr(transformers, name)(MODELS[name])
    if converted:
        mp.convert(model, n=3)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    config = BASE.replace(steps=2, task="full", length=24)
    said = []
    pretrain(model, corpus, config, tmp_path / "run", device="cpu", say=said.append)
    idle = [name for name, p in model.named_parameters() if torch.equal(before[name], p)]
    assert len(idle) == 4
    assert all("pooler" in name or "sop" in name or "seq_relationship" in name for name in idle)
    (text,) = [text for text in said if "get no gradient" in text]
    assert text.startswith("4 tensors get no gradient and stay as they are")
    assert all(name in text for name in idle)


def test_a_model_with_nothing_to_train_is_refused(corpus, tmp_path):
    model = fresh().requires_grad_(False)
    with pytest.raises(ConfigError, match="must have a parameter that is trained, got none"):
        pretrain(model, corpus, BASE, tmp_path / "run", device="cpu")


KINDS = product(
    (True, False), ("embeddings and central", "embeddings", "nothing"), ("albert", "bert")
)


@pytest.mark.parametrize(
    ("reentrant", "frozen", "kind"),
    [pytest.param(*c, marks=[] if n in (0, 7) else pytest.mark.slow) for n, c in enumerate(KINDS)],
)
def test_m26_layers_that_run_again_lose_no_gradient(corpus, tmp_path, reentrant, frozen, kind):
    def made():
        torch.manual_seed(0)
        if kind == "albert":
            model = fresh()
        else:
            model = transformers.BertForPreTraining(MODELS["BertForPreTraining"])
            mp.convert(model, n=3)
        for name, parameter in model.named_parameters():
            away = ("embedding" in name and frozen != "nothing") or (
                "central" in name and frozen.endswith("central")
            )
            parameter.requires_grad_(not away)
        return model

    plain, again = made(), made()
    enable = getattr(again, "activation_checkpointing_enable", None)
    (enable or again.gradient_checkpointing_enable)({"use_reentrant": reentrant})
    config = BASE.replace(steps=2, eps=1.0)
    said = []
    pretrain(plain, corpus, config, tmp_path / "plain", device="cpu")
    pretrain(again, corpus, config, tmp_path / "again", device="cpu", say=said.append)
    assert any("without reentering autograd" in text for text in said) == reentrant
    assert not any("get no gradient" in text for text in said)
    first = made()
    for (name, one), other, start in zip(
        plain.named_parameters(), again.parameters(), first.parameters(), strict=True
    ):
        assert torch.allclose(one, other, atol=1e-6), name
        assert start.requires_grad or torch.equal(other, start)
    central = [name for name, _ in again.named_parameters() if "central" in name]
    assert central


def test_layers_of_a_plain_model_that_reenter_autograd_are_trained(corpus, tmp_path):
    torch.manual_seed(0)
    model = transformers.BertForPreTraining(MODELS["BertForPreTraining"])
    enable = getattr(model, "activation_checkpointing_enable", None)
    (enable or model.gradient_checkpointing_enable)({"use_reentrant": True})
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    config = BASE.replace(steps=2, length=24)
    pretrain(model, corpus, config, tmp_path / "run", device="cpu")
    still = [name for name, p in model.named_parameters() if torch.equal(before[name], p)]
    assert not still


# ------------------------------------------------------------------------------------- M27
@pytest.mark.parametrize("optimizer", ["lamb", "adamw"])
@pytest.mark.parametrize("name", sorted(MODELS))
@pytest.mark.parametrize("converted", [True, False])
def test_m27_every_trained_parameter_is_in_one_group_of_the_run(corpus, name, optimizer, converted):
    torch.manual_seed(0)
    model = getattr(transformers, name)(MODELS[name])
    if converted:
        mp.convert(model, n=3)
    parts = set_up(model, corpus, BASE.replace(optimizer=optimizer, length=24), Processes())
    groups = parts.engine.optimizer.param_groups
    found = [id(p) for group in groups for p in group["params"]]
    assert len(found) == len(set(found))
    assert set(found) == {id(p) for p in parts.parameters.values()}
    decaying = {id(p) for group in groups if group["weight_decay"] for p in group["params"]}
    for path, parameter in parts.parameters.items():
        if path.endswith("bias") or "norm" in path.lower():
            assert id(parameter) not in decaying, path
    assert sum(p.numel() for g in groups for p in g["params"]) == sum(
        p.numel() for p in parts.parameters.values()
    )


# ------------------------------------------------------------------------------- M36, M37
@pytest.mark.parametrize("world", [1, 2, 3])
def test_m36_ranks_part_the_samples_of_every_epoch(tmp_path, world):
    docs = [f"Number {k} alone here" for k in range(9)]
    samples = Samples(
        prepare(docs, tmp_path / "corpus", Vocabulary(size=60)), BASE.replace(shorter=0.0).recipe()
    )
    assert len(samples) == 9
    steps = 6  # two epochs of nine, three samples for a step
    divisions = [Division(3 * 2, 6 // world, rank, world) for rank in range(world)]
    rows = []
    for step in range(3):
        for division in divisions:
            (batch,) = micro_batches(samples, division, step, step + 1)
            rows += batch.input_ids.tolist()
    alone = [samples[index].input_ids.tolist() for index in range(3 * steps)]
    assert rows == alone


@pytest.mark.parametrize("accumulation", [1, 2, 4])
def test_m37_the_rate_counts_optimizer_steps_for_any_accumulation(corpus, tmp_path, accumulation):
    config = BASE.replace(
        steps=4, lr=1e-3, warmup_ratio=0.0, micro_batch=8 // accumulation, log_every=1
    )
    pretrain(fresh(), corpus, config, tmp_path / "run", device="cpu")
    rates = [record["lr"] for record in records(tmp_path / "run")]
    assert rates == pytest.approx([1e-3, 7.5e-4, 5e-4, 2.5e-4])


# --------------------------------------------------------------------------- a model learns
def test_a_tiny_model_learns_what_repeats_itself(tmp_path):
    """A document repeats one of four words; a guess of the most frequent one is right in 1/4."""
    docs = [" ".join([word] * 14) for word in ("one", "two", "three", "four")] * 3
    corpus = prepare(docs, tmp_path / "data", Vocabulary(size=100))
    model = fresh(num_layers=1, hidden_size=32, embedding_size=32, vocab_size=corpus.vocab_size)
    config = BASE.replace(
        steps=130, batch_size=16, micro_batch=16, length=16, masking="token", shorter=0.0,
        optimizer="adamw", lr=3e-3, schedule="constant", log_every=10, save_every=0,
    )  # fmt: skip
    pretrain(model, corpus, config, tmp_path / "run", device="cpu")
    found = [record["masked_accuracy"] for record in records(tmp_path / "run")]
    assert found[0] < 0.5
    assert found[-1] > 0.9
