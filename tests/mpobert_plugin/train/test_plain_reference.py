"""Runs against plain torch: the same updates without engine, loop, scale or division."""

from __future__ import annotations

import math

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import mpobert_plugin as mp
from mpobert_plugin.train.data.batches import Batch, collate
from mpobert_plugin.train.data.samples import Samples
from mpobert_plugin.train.engine import Engine
from mpobert_plugin.train.gradients import Gradients
from mpobert_plugin.train.objective import Losses, Objective
from mpobert_plugin.train.precision import LossScale, Precision
from mpobert_plugin.train.processes import Processes
from mpobert_plugin.train.run import pretrain
from mpobert_plugin.train.setup import DECAYED
from tests.mpobert_plugin.train.tiny import dense_labels
from tests.mpobert_plugin.train.tiny_run import BASE, corpus_in, fresh

# With the usual eps, entries whose gradient is nothing but rounding noise move as far as others.
STEPS = 3
CONFIG = BASE.replace(
    steps=STEPS, optimizer="adamw", eps=1.0, lr=0.1, micro_batch=2, keep=9, save_every=1
)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return corpus_in(tmp_path_factory.mktemp("corpus"))


def batch_of(corpus, config, step):
    samples = Samples(corpus, config.recipe())
    size = config.batch_size
    return collate([samples[index] for index in range(step * size, (step + 1) * size)])


def loss_of(model, batch):
    """Return the loss as transformers computes it, over the whole batch at once."""
    return model(
        input_ids=batch.input_ids,
        attention_mask=batch.attention_mask,
        token_type_ids=batch.token_type_ids,
        labels=dense_labels(batch),
        sentence_order_label=batch.orders,
    ).loss


def plain_run(model, corpus, config):
    """Train as one writes it by hand, on one process, with torch alone."""
    groups = mp.param_groups(
        model, "adamw", lr=config.lr, weight_decay=config.weight_decay, decayed=DECAYED
    )
    optimizer = torch.optim.AdamW(groups, betas=(config.beta1, config.beta2), eps=config.eps)
    most = [group["lr"] for group in optimizer.param_groups]
    losses = []
    for step in range(config.steps):
        warm = round(config.warmup_ratio * config.steps)
        factor = min(1.0, (step + 1) / warm) if warm else 1.0
        if step >= warm:
            factor = 1.0 - (step - warm) / (config.steps - warm)
        for group, rate in zip(optimizer.param_groups, most, strict=True):
            group["lr"] = factor * rate
        optimizer.zero_grad()
        loss = loss_of(model, batch_of(corpus, config, step))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.clip)
        optimizer.step()
        losses.append(loss.item())
    return losses


def apart(one, other, start):
    """Return the difference of two updates, by the size of the second."""
    norms = [
        torch.stack([torch.linalg.vector_norm(a[name] - b[name]) for name in start])
        for a, b in ((one, other), (other, start))
    ]
    return float(torch.linalg.vector_norm(norms[0]) / torch.linalg.vector_norm(norms[1]))


def values(model):
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("converted", [True, False])
@pytest.mark.parametrize("clip", [0.5, 1e3])
def test_m21_a_run_is_the_one_that_is_written_by_hand(corpus, tmp_path, converted, clip):
    make = fresh if converted else lambda: mp.merge(fresh())
    config = CONFIG.replace(clip=clip, log_every=1)
    ours, plain = make(), make()
    start = values(ours)
    pretrain(ours, corpus, config, tmp_path / "run", device="cpu")
    losses = plain_run(plain, corpus, config)
    assert apart(values(ours), values(plain), start) < 1e-5
    lines = (tmp_path / "run" / "log.jsonl").read_text().splitlines()
    found = [float(line.split('"loss": ')[1].split(",")[0]) for line in lines if "train" in line]
    assert found == pytest.approx(losses, rel=1e-5)


def test_gradients_of_what_layers_share_are_the_sum_over_the_layers(corpus, tmp_path):
    """Every layer gets its dense gradient from a twin of plain matrices, back to its cores."""
    config = CONFIG.replace(steps=1, clip=0.0, optimizer="lamb", beta1=0.0)
    result = pretrain(fresh(), corpus, config, tmp_path / "run", device="cpu")
    # Without a mean over steps the first moment is the gradient.
    moments = load_file(result.checkpoint / "optimizer.safetensors")
    model, twin = fresh(), mp.merge(fresh())
    loss_of(twin, batch_of(corpus, config, 0)).backward()
    banks = model.albert.mpo
    matrices = ("query", "key", "value", "attention_output", "ffn_in", "ffn_out")
    for name in matrices:
        cores = {key: p for key, p in banks[name].named_parameters() if key != "bias"}
        total = {key: torch.zeros_like(p) for key, p in cores.items()}
        for layer, weight in enumerate(banks[name].weights()):
            mine = layer_module(twin, layer, name)
            assert torch.allclose(weight, mine.weight, atol=1e-6)
            grads = torch.autograd.grad(
                weight, list(cores.values()), mine.weight.grad, retain_graph=True
            )
            for key, gradient in zip(cores, grads, strict=True):
                total[key] += gradient
        bias = sum(layer_module(twin, layer, name).bias.grad for layer in range(2))
        total["bias"] = bias[None]
        for key, expected in total.items():
            found = moments[f"albert.mpo.{name}.{key}|exp_avg"]
            size = torch.linalg.vector_norm(expected).clamp(min=1e-4)
            assert torch.linalg.vector_norm(found - expected) < 1e-5 * size, (name, key)
    assert banks["query"].central.shape[0] == 1


def layer_module(twin, layer, name):
    block = twin.albert.encoder.albert_layer_groups[layer].albert_layers[0]
    return {
        "query": block.attention.query,
        "key": block.attention.key,
        "value": block.attention.value,
        "attention_output": block.attention.dense,
        "ffn_in": block.ffn,
        "ffn_out": block.ffn_output,
    }[name]


class Softplus(nn.Module):
    """The loss of a token is softplus(w x); the x are in the ids, shifted by 10."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.tensor(0.5))

    def forward(self, batch, _padded=None):
        x = batch.labels[batch.labels >= 0] - 10.0
        zero = torch.zeros(())
        return Losses(torch.nn.functional.softplus(self.w * x).sum(), zero, zero, zero)


def of_labels(*rows):
    labels = torch.tensor(rows)
    none = torch.zeros_like(labels)
    return Batch(none, none, none[:, 0], none, labels, none[:, 0] - 100)


@pytest.mark.parametrize(
    "split",
    [
        [of_labels([12, 9, 10, 11])],
        [of_labels([12, -100, -100]), of_labels([9, 10, 11])],
        [of_labels([12, 9]), of_labels([10, 11])],
        [of_labels([12], [9]), of_labels([-100], [-100]), of_labels([10], [11])],
    ],
)
def test_m21_a_mean_over_tokens_does_not_depend_on_the_split(split):
    objective = Softplus()
    optimizer = torch.optim.SGD(objective.parameters(), lr=1.0, fused=True)
    engine = Engine(
        objective, optimizer, Gradients({"w": objective.w}), Precision("fp32"),
        LossScale("cpu", enabled=False), Processes(), clip=0.0,
    )  # fmt: skip
    result = engine.step(split)
    assert result.counts.tolist() == [4, 0]
    assert float(result.numbers[0]) / 4 == pytest.approx(0.86364073, abs=1e-7)
    assert 0.5 - objective.w.item() == pytest.approx(0.42675897, abs=1e-7)


@pytest.mark.parametrize("micro", [1, 2, 4])
def test_m21_samples_with_one_two_four_and_nine_tokens(micro):
    """The engine's own sums give the mean over all sixteen tokens, whatever the split."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(5, 96, (4, 12), generator=generator)
    positions = torch.arange(1, 10).expand(4, -1).clone()
    labels = torch.randint(5, 96, (4, 9), generator=generator)
    for row, count in enumerate((1, 2, 4, 9)):
        labels[row, count:] = -100
        positions[row, count:] = 0
    sizes = torch.full((4,), 12)
    whole = Batch(ids, torch.zeros_like(ids), sizes, positions, labels, torch.tensor([0, 1, 1, 0]))
    model = fresh()
    objective = Objective(model)
    counts = whole.counts()
    assert counts.tolist() == [16, 4]
    parts = [Batch(*(t[k : k + micro] for t in vars(whole).values())) for k in range(0, 4, micro)]
    total = sum(objective(part).mean(counts) for part in parts)
    expected = loss_of(model, whole)
    assert total.item() == pytest.approx(expected.item(), rel=1e-6)
    found, right = (
        torch.autograd.grad(loss, list(model.parameters())) for loss in (total, expected)
    )
    norm = math.sqrt(sum(float((g**2).sum()) for g in right))
    assert all(
        torch.linalg.vector_norm(a - b) < 1e-5 * norm for a, b in zip(found, right, strict=True)
    )
