"""Tiny models with LoRA of PEFT, for tests that run where PEFT is installed."""

from __future__ import annotations

import torch
from transformers import BertForSequenceClassification

import mpobert_plugin as mp
from tests.mpobert_plugin.models import ids, tiny_bert


def classifier(**options):
    model = tiny_bert(BertForSequenceClassification, num_labels=2)
    return mp.convert(model, **{"sharing": "all", "fit": "mean", **options})


def adapted(model, **options):
    """Return a model with LoRA whose products are not zero."""
    import peft

    wrapped = peft.get_peft_model(model, mp.peft.lora_config(model, rank=2, **options))
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, parameter in wrapped.named_parameters():
            if "lora_B" in name:
                parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator))
    return wrapped.eval()


def trained(model):
    return {name for name, parameter in model.named_parameters() if parameter.requires_grad}


def step(model):
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2, weight_decay=0.1)
    model(ids(), labels=torch.tensor([0, 1])).loss.backward()
    optimizer.step()
    return model.eval()
