"""Tiny models and batches that several tests of pre-training use."""

from __future__ import annotations

import torch
from transformers import AlbertConfig, BertConfig, RobertaConfig

from mpobert_plugin.train.data.batches import Batch
from mpobert_plugin.train.data.samples import IGNORED

SIZES = {
    "hidden_size": 16,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
}
ALBERT = AlbertConfig(vocab_size=99, embedding_size=8, max_position_embeddings=32, **SIZES)
BERT = BertConfig(vocab_size=99, max_position_embeddings=32, **SIZES)
ROBERTA = RobertaConfig(vocab_size=99, max_position_embeddings=40, type_vocab_size=1, **SIZES)
MODELS = {
    "AlbertForPreTraining": ALBERT,
    "AlbertForMaskedLM": ALBERT,
    "BertForPreTraining": BERT,
    "BertForMaskedLM": BERT,
    "RobertaForMaskedLM": ROBERTA,
}


def batch_of(rows=4, length=12, most=3, seed=0, vocabulary=99):
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(5, vocabulary, (rows, length), generator=generator)
    sizes = torch.randint(6, length + 1, (rows,), generator=generator)
    ids[torch.arange(length) >= sizes[:, None]] = 1
    positions = torch.stack([torch.randperm(5, generator=generator)[:most] for _ in range(rows)])
    labels = torch.randint(5, vocabulary, (rows, most), generator=generator)
    labels[0, 1:] = IGNORED
    positions[0, 1:] = 0
    types = (torch.arange(length) > 4).long().expand(rows, -1).clone()
    orders = torch.tensor([0, 1, IGNORED, 1])[:rows]
    return Batch(ids, types, sizes, positions, labels, orders)


def dense_labels(batch):
    labels = torch.full_like(batch.input_ids, IGNORED)
    for row in range(len(labels)):
        for place, label in zip(batch.positions[row], batch.labels[row], strict=True):
            if label != IGNORED:
                labels[row, place] = label
    return labels
