"""A real BERT whose layers differ: what joint decomposition, adapters and calibration leave."""

from __future__ import annotations

import copy
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from transformers import BertForMaskedLM

import mpobert_plugin as mp
from mpobert_plugin.demo.evaluate import masked_accuracy
from mpobert_plugin.demo.masking import evaluation_batches

from .real import ABSENT, encoded_reactions, needs_dev_reactions

SPEC = find_spec("rxnfp")
FOLDER = Path(SPEC.origin if SPEC and SPEC.origin else ".").parent / "models/transformers"
WHY = ABSENT or ("" if SPEC else "the pre-trained BERT is not installed: package rxnfp")
pytestmark = [pytest.mark.real_model, pytest.mark.skipif(bool(WHY), reason=WHY)]


@pytest.fixture(scope="module")
def bert():
    model = BertForMaskedLM.from_pretrained(FOLDER / "bert_pretrained", dtype=torch.float32)
    # The file lacks the decoder's bias, which is that of the predictions.
    model.cls.predictions.decoder.bias = model.cls.predictions.bias
    return model.eval()


@pytest.fixture(scope="module")
def encoded():
    return encoded_reactions()


@pytest.fixture(scope="module")
def some(encoded):
    return encoded[::3]


def converted(bert, encoded, **options):
    """Convert a copy and print what it cost."""
    model = mp.convert(copy.deepcopy(bert), **options)
    found = mp.report(model)
    accuracy = masked_accuracy(model, encoded).accuracy
    words = ", ".join(f"{k}={v}" for k, v in options.items() if k != "calibration")
    words += ", calibrated" if "calibration" in options else ""
    print(
        f"{words}: ratio {found.stored_matrices / found.dense_matrices:.3f}, "
        f"error {found.total_error:.4f}, accuracy {accuracy:.4f}"
    )
    assert_honest(bert, model)
    return found, accuracy


def assert_honest(bert, model):
    """Compare some of the reported errors with the dense matrices."""
    for matrix in mp.report(model).matrices[::7]:
        exact = bert.get_submodule(matrix.name).weight.detach().double()
        rebuilt = model.get_submodule(matrix.name).weight.detach().double()
        error = float((exact - rebuilt).norm() / exact.norm())
        assert matrix.error == pytest.approx(error, rel=1e-4, abs=1e-6)


def test_exact_conversion_changes_no_prediction(bert, some):
    found, accuracy = converted(bert, some)
    assert accuracy == masked_accuracy(bert, some).accuracy
    assert accuracy > 0.85
    assert found.saves_nothing
    assert found.total_error < 1e-6


# Tiny models are tested so every time.
@pytest.mark.slow
def test_residual_adapters_lower_every_error(bert, encoded):
    options = {"sharing": "groups:6", "fit": "mean", "targets": ["query", "key", "value"]}
    mean, _ = converted(bert, encoded, **options)
    rank = {"adapter_rank": 16, "adapter_targets": options["targets"], "adapter_fit": "residual"}
    fitted, accuracy = converted(bert, encoded, **options, **rank)
    for before, after in zip(mean.matrices, fitted.matrices, strict=True):
        assert after.error < before.error
    assert accuracy > 0.2


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_joint_decomposition_of_pairs_of_layers(bert, encoded):
    options = {"sharing": "groups:6", "targets": ["query", "key", "value", "ffn_in"]}
    joint, accuracy = converted(bert, encoded, **options, fit="joint")
    mean, worse = converted(bert, encoded, **options, fit="mean")
    first, _ = converted(bert, encoded, **options, fit="first")
    assert joint.total_error < mean.total_error < first.total_error
    assert 0.3 < joint.total_error < 0.8
    rank = {"adapter_rank": 16, "adapter_targets": options["targets"]}
    fitted, better = converted(bert, encoded, **options, **rank, fit="joint")
    for before, after in zip(joint.matrices, fitted.matrices, strict=True):
        assert after.error < before.error
    assert better > accuracy - 0.05
    assert accuracy > worse - 0.05


@needs_dev_reactions
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_calibrated_low_rank_serves_the_outputs(bert, encoded):
    from .real import DEV_REACTIONS

    rows = encoded_reactions(DEV_REACTIONS, 128)
    batches = [
        {"input_ids": batch.input_ids, "attention_mask": batch.attention_mask}
        for _, batch in evaluation_batches(rows)
    ]
    # Two sites are the SVD, and in the metric the whitened SVD.
    roles = mp.families.BERT.matrices
    square, wide, tall = ((256, 1), (1, 256)), ((512, 1), (1, 256)), ((256, 1), (1, 512))
    shapes = dict.fromkeys(roles, square) | {"ffn_in": wide, "ffn_out": tall}
    blind, worse = converted(bert, encoded, shapes=shapes, max_bond=64)
    seen, better = converted(bert, encoded, shapes=shapes, max_bond=64, calibration=batches)
    # A smaller error of the outputs of each layer for a larger one of the matrices; what the
    # model predicts need not follow.
    assert better > worse - 0.05
    assert seen.output_error < 0.8 * blind.total_error
    assert seen.total_error > blind.total_error
