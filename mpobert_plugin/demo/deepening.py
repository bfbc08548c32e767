"""Second half of the demo: 24 layers by copies, a short training, saving and reloading."""

from __future__ import annotations

import math
from pathlib import Path

import torch
from safetensors import safe_open
from torch import nn
from transformers import AlbertForMaskedLM

import mpobert_plugin as mp
from mpobert_plugin.demo.evaluate import Score, masked_accuracy
from mpobert_plugin.demo.masking import mask, pad, training_batches
from mpobert_plugin.demo.quiet import quiet_transformers
from mpobert_plugin.demo.reload import predict_in_new_process
from mpobert_plugin.demo.screen import Screen
from mpobert_plugin.demo.settings import Material, Settings
from mpobert_plugin.demo.train import History, train


def deepen(material: Material, screen: Screen) -> AlbertForMaskedLM:
    """Return an MPOBERT with twice the layers of the ALBERT, all of them copies."""
    layers = 2 * material.albert.config.num_hidden_layers
    screen.step(f"Deepen it to {layers} layers: copies of the auxiliary tensors")
    model = mp.from_albert(material.albert, num_layers=layers, sharing="all", deep_init="copy")
    mp.assert_shared(model)
    report = mp.account(model)
    screen.note(
        f"{report.unique:,} parameters stored, {report.ratio:.1%} of what {layers} layers of their "
        "own would store."
    )
    return model


def held_out_scores(model: nn.Module, material: Material, settings: Settings) -> dict[str, Score]:
    """Return the score on each held-out part, with the same maskings in every call."""
    return {
        part: masked_accuracy(model, rows, maskings=settings.maskings, seed=settings.seed)
        for part, rows in material.held_out.items()
    }


def train_briefly(
    model: AlbertForMaskedLM, material: Material, settings: Settings, screen: Screen
) -> History:
    """Train the model in place on the training reactions and return the losses."""
    screen.step(
        f"Train it: AdamW, {settings.steps} steps of {settings.batch} reactions (Ctrl-C ends it "
        "early)"
    )
    batches = training_batches(
        material.train,
        steps=settings.steps,
        size=settings.batch,
        seed=settings.seed,
    )
    with screen.training(settings.steps) as report:
        history = train(
            model,
            batches,
            steps=settings.steps,
            learning_rate=settings.learning_rate,
            report=report,
        )
    if history.interrupted:
        screen.note(f"Stopped after {len(history.losses)} steps; going on with this model.")
    return history


def save_and_reload(
    model: AlbertForMaskedLM, material: Material, folder: Path, settings: Settings, screen: Screen
) -> None:
    """Save the model below ``folder`` and show that a new process predicts the same."""
    screen.step("Save it, and load it in a new process with AutoModelForMaskedLM")
    target = folder / "model"
    with quiet_transformers():
        model.save_pretrained(target)
    stored, unique = elements_in(target), mp.account(model).unique
    screen.claim(stored == unique, f"the file holds each tensor once: {stored:,} parameters")
    rows = [row for part in material.held_out.values() for row in part][::4]
    batch = mask(pad(rows[:32]), torch.Generator().manual_seed(settings.seed))
    with torch.no_grad():
        here = model(input_ids=batch.input_ids, attention_mask=batch.attention_mask).logits
    there = predict_in_new_process(target, batch, folder)
    screen.claim(
        torch.equal(here, there), f"all {here.numel():,} logits of the reloaded model are identical"
    )


def elements_in(folder: Path) -> int:
    """Return the number of elements in all safetensors files of a folder."""
    total = 0
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            total += sum(math.prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118
    return total
