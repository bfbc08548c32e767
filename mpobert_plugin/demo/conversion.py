"""First half of the demo: the ALBERT becomes an MPOBERT of 12 layers that predicts the same."""

from __future__ import annotations

from functools import reduce
from operator import add

import torch
from transformers import AlbertForMaskedLM

import mpobert_plugin as mp
from mpobert_plugin.demo.evaluate import Comparison, compare, masked_logits
from mpobert_plugin.demo.inspection import MatrixReport, inspect_matrices
from mpobert_plugin.demo.masking import mask, pad
from mpobert_plugin.demo.screen import Screen
from mpobert_plugin.demo.settings import LOGIT_LIMIT, Material, Settings
from mpobert_plugin.demo.table import certificate_table, fillings, masked_smiles, parameter_table

EXAMPLES = (
    "C=CC(=O)OC.COc1ccc(I)cc1>>COc1ccc(C=CC(=O)OC)cc1",
    "CC(C)Cc1ccc(C=O)cc1.CCN.[BH3-]C#N.[Na+]>>CCNCc1ccc(CC(C)C)cc1",
    "CC(=O)OC(C)=O.Nc1ccc(Cl)cc1>>CC(=O)Nc1ccc(Cl)cc1",
)


def convert(material: Material, screen: Screen) -> AlbertForMaskedLM:
    """Return the 12-layer MPOBERT and show its structure."""
    layers = material.albert.config.num_hidden_layers
    screen.step(f"Convert it to an MPOBERT of {layers} layers that share their central tensors")
    model = mp.from_albert(material.albert, num_layers=layers, sharing="all")
    mp.assert_shared(model)
    screen.note(
        "Every matrix is now a chain of five tensors, nothing cut off: the central one is stored "
        "once for all layers, the four auxiliary ones for each layer."
    )
    return model


def show_same_predictions(
    material: Material, model: AlbertForMaskedLM, settings: Settings, screen: Screen
) -> dict[str, Comparison]:
    """Show examples before and after, and that nothing changed; return the held-out comparisons."""
    screen.step("Predict masked tokens before and after")
    _show_examples(material, model, screen)
    held_out = {
        part: compare(material.albert, model, rows, maskings=settings.maskings, seed=settings.seed)
        for part, rows in material.held_out.items()
    }
    everything = reduce(
        add,
        held_out.values(),
        compare(material.albert, model, material.train, seed=settings.seed),
    )
    screen.claim(
        everything.max_difference <= LOGIT_LIMIT,
        f"logits differ by at most {everything.max_difference:.1e} (limit {LOGIT_LIMIT:.0e})",
    )
    screen.claim(
        everything.same_predictions,
        f"all {everything.before.total:,} predictions on {material.n_reactions} reactions are the "
        f"same: {everything.before.accuracy:.1%} right before, {everything.after.accuracy:.1%} "
        "after",
    )
    return held_out


def _show_examples(material: Material, model: AlbertForMaskedLM, screen: Screen) -> None:
    tokenizer = material.tokenizer
    ids = pad([tokenizer.encode(smiles) for smiles in EXAMPLES])
    batch = mask(ids, torch.Generator().manual_seed(1))
    asked = batch.labels[batch.masked]
    answers = {
        name: masked_logits(each, batch).argmax(-1)
        for name, each in (("ALBERT", material.albert), ("MPOBERT", model))
    }
    row_of = batch.masked.nonzero()[:, 0]
    for row in range(len(EXAMPLES)):
        here = row_of == row
        screen.show(masked_smiles(tokenizer, batch.input_ids[row].tolist()))
        chosen = {name: answer[here].tolist() for name, answer in answers.items()}
        screen.show(fillings(tokenizer, asked[here].tolist(), chosen))


def show_structure(
    material: Material, model: AlbertForMaskedLM, screen: Screen
) -> list[MatrixReport]:
    """Show parameters and certificates, checked against the original; return the latter."""
    screen.step("Count its parameters, and check the certificate of every matrix")
    layers = material.albert.config.num_hidden_layers
    counts = {f"ALBERT-{layers}": mp.account(material.albert)}
    screen.show(parameter_table({**counts, f"MPOBERT-{layers}": mp.account(model)}))
    screen.note(
        "An ALBERT stores one layer. What the MPOBERT adds lets layers become different: auxiliary "
        "tensors, for a part of what layers of their own would cost."
    )
    reports = inspect_matrices(material.albert, model)
    screen.show(certificate_table(reports))
    worst = max(report.measured for report in reports)
    certified = max(report.certified for report in reports)
    screen.claim(
        worst <= 2 * certified and certified < 1e-6,
        f"no matrix is further off than {worst:.1e}, as its certificate says",
    )
    return reports
