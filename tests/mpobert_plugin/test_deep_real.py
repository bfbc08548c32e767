"""The real ALBERT with twice its layers: copies keep what it knows, scaled layers do not."""

from __future__ import annotations

import pytest
import torch

import mpobert_plugin as mp
from mpobert_plugin.demo.evaluate import masked_accuracy
from tests.mpobert_plugin.real import encoded_reactions, load_albert, needs_albert


@needs_albert
def test_copies_and_scaled_layers():
    albert, reactions = load_albert(), encoded_reactions()[:12]
    assert masked_accuracy(albert, reactions).accuracy > 0.95
    found = {}
    for name, options in {
        "copies": {},
        "product": {"deep_init": "copy_scaled"},
        "paper": {"preset": "paper"},
    }.items():
        torch.manual_seed(0)
        model = mp.from_albert(albert, num_layers=24, **options)
        found[name] = masked_accuracy(model, reactions).accuracy
        if name == "paper":
            with torch.no_grad():
                for role in ("value", "attention_output", "ffn_in", "ffn_out"):
                    for tensor in model.base_model.mpo[role].tensors().values():
                        if tensor.shape[0] == 24:
                            tensor[12:] = 0.0
            silenced = masked_accuracy(model, reactions).accuracy
    assert found["copies"] > 0.85
    assert 0.2 < found["product"] < 0.75
    # Four factors of 0.38 leave two percent: as good as no matrix at all.
    assert found["paper"] == pytest.approx(silenced, abs=0.05)
