"""The pre-trained ALBERT: converted, deepened, cut and reloaded."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForMaskedLM

import mpobert_plugin as mp
from mpobert_plugin.demo.evaluate import compare
from mpobert_plugin.demo.masking import evaluation_batches
from mpobert_plugin.demo.reactions import textbook_reactions
from mpobert_plugin.demo.smiles import SmilesTokenizer
from mpobert_plugin.demo.source import FOLDER, PACKAGE, find_albert, load_albert

pytestmark = pytest.mark.real_model

DEV = Path(__file__).parents[3] / "shared" / "data" / "reactions" / "dev.tsv"


@pytest.fixture(scope="module")
def albert():
    from importlib.util import find_spec

    if find_spec(PACKAGE) is None:
        pytest.skip(f"the pre-trained ALBERT is not installed: package {PACKAGE}")
    assert FOLDER.name in str(find_albert())
    return load_albert()


@pytest.fixture(scope="module")
def tokenizer(albert):
    return SmilesTokenizer.from_file(find_albert() / "vocab.txt")


@pytest.fixture(scope="module")
def textbook(tokenizer):
    return [tokenizer.encode(reaction.smiles) for reaction in textbook_reactions()]


def largest_difference(one, two, encoded):
    """Compare all logits of real tokens, not the masked ones alone."""
    largest = 0.0
    for _, batch in evaluation_batches(encoded):
        inputs = {"input_ids": batch.input_ids, "attention_mask": batch.attention_mask}
        with torch.no_grad():
            difference = (one(**inputs).logits - two(**inputs).logits).abs()
        largest = max(largest, float(difference[batch.attention_mask.bool()].max()))
    return largest


# What float64 shows of the other ways, float32 shows with less precision.
WAYS = [
    pytest.param(
        way, dtype, tolerance,
        marks=pytest.mark.slow if dtype == torch.float32 and way != "convert" else [],
    )
    for way in ("convert", "convert-all", "from_albert")
    for dtype, tolerance in ((torch.float32, 5e-4), (torch.float64, 1e-8))
]  # fmt: skip


@pytest.mark.parametrize(("way", "dtype", "tolerance"), WAYS)
def test_conversion_changes_no_prediction(albert, textbook, dtype, tolerance, way):
    plain = copy.deepcopy(albert).to(dtype)
    if way == "from_albert":
        model = mp.from_albert(plain, 12, adapter_rank=8)
    else:
        sharing = "all" if way == "convert-all" else None
        model = mp.convert(copy.deepcopy(plain), sharing=sharing, gauge="symmetric")
    mp.set_cache(model, False)
    assert largest_difference(plain, model, textbook[:24]) < tolerance
    if dtype == torch.float32 and way == "convert":
        result = compare(plain, model, textbook[::3])
        assert result.same_predictions
        assert result.before == result.after
        assert result.before.accuracy > 0.9


@pytest.mark.parametrize("max_bond", [16, 64])
def test_cuts_have_the_certified_error(albert, max_bond):
    model = mp.convert(copy.deepcopy(albert), max_bond=max_bond)
    certificates = mp.certificates(model)
    assert len(certificates) == 6
    for name, certificate in certificates.items():
        exact = albert.get_submodule(name).weight.detach().double()
        rebuilt = model.get_submodule(name).weight.detach().double()
        error = float((exact - rebuilt).norm() / exact.norm())
        assert certificate.relative_error == pytest.approx(error, rel=1e-4, abs=1e-6)
    stored = model.config.quantization_config.plan.bank("query").errors
    assert stored[0] == pytest.approx(
        certificates[
            "albert.encoder.albert_layer_groups.0.albert_layers.0.attention.query"
        ].relative_error,
        rel=1e-5,
    )


def test_save_and_reload(albert, textbook, tmp_path):
    model = mp.from_albert(albert, 12)
    model.save_pretrained(tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    assert sum(tensor.numel() for tensor in stored.values()) == mp.account(model).unique
    loaded = AutoModelForMaskedLM.from_pretrained(tmp_path)
    mp.assert_shared(loaded)
    assert largest_difference(model, loaded, textbook[:16]) == 0.0
    for twin in (
        copy.deepcopy(loaded),
        copy.deepcopy(loaded).half(),
        copy.deepcopy(loaded).double(),
    ):
        mp.assert_shared(twin)
        assert mp.account(twin).unique == mp.account(model).unique


@pytest.mark.shared_data
@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_600_reactions(albert, tokenizer):
    if not DEV.is_file():
        pytest.skip("the reactions are not part of the repository")
    lines = DEV.read_text(encoding="utf-8").splitlines()[1:601]
    encoded = [tokenizer.encode(line.split("\t")[1])[:512] for line in lines]
    model = mp.convert(copy.deepcopy(albert), gauge="symmetric")
    mp.set_cache(model, False)
    assert largest_difference(albert, model, encoded) < 5e-4
    result = compare(albert, model, encoded)
    assert result.before == result.after
    wide, exact = copy.deepcopy(albert).double(), mp.convert(copy.deepcopy(albert).double())
    assert largest_difference(wide, exact, encoded) < 1e-8
