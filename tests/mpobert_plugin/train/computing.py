"""Engines of any number format and way of calling layers, for tests of how the network computes."""

from __future__ import annotations

import torch
import transformers
from transformers import AlbertConfig, BertConfig, RobertaConfig

import mpobert_plugin as mp
from mpobert_plugin.train.attention import kernels_for
from mpobert_plugin.train.engine import Engine
from mpobert_plugin.train.gradients import Gradients
from mpobert_plugin.train.half import HalfCopies
from mpobert_plugin.train.layers import LayerCalls
from mpobert_plugin.train.network import Network
from mpobert_plugin.train.objective import Objective
from mpobert_plugin.train.precision import LossScale, Precision
from mpobert_plugin.train.processes import Processes
from tests.mpobert_plugin.train.tiny import batch_of

SIZES = {
    "vocab_size": 99,
    "hidden_size": 32,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 40,
}
HOSTS = ("bert", "converted bert", "whole bert", "roberta", "albert", "mpobert")


def model_of(host="mpobert", layers=2, dropout=0.0):
    torch.manual_seed(0)
    rates = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    sizes = {**SIZES, **rates, "num_hidden_layers": layers}
    if host == "roberta":
        config = RobertaConfig(type_vocab_size=1, **sizes)
        return mp.convert(transformers.RobertaForMaskedLM(config), n=3)
    if host == "large mpobert":
        sizes |= {"hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12}
        config = AlbertConfig(classifier_dropout_prob=dropout, **sizes)
        return mp.from_albert(transformers.AlbertForPreTraining(config), num_layers=layers, n=5)
    if host in ("albert", "mpobert"):
        config = AlbertConfig(embedding_size=16, classifier_dropout_prob=dropout, **sizes)
        model = transformers.AlbertForPreTraining(config)
        if host == "albert":
            return model
        return mp.from_albert(model, num_layers=layers, n=3, adapter_rank=2)
    model = transformers.BertForPreTraining(BertConfig(**sizes))
    if host == "converted bert":
        return mp.convert(model, n=3)
    if host == "whole bert":
        return mp.convert(
            model, n=3, targets=["query", "ffn_in", "embedding", "pooler"], adapter_rank=2
        )
    return model


def engine_of(
    model,
    precision="fp32",
    network="autocast",
    compiled="none",
    recompute="none",
    device="cpu",
    backend="aot_eager",
    lr=0.0,
    **options,
):
    gradients = Gradients(dict(model.named_parameters()))
    form = Precision(precision)
    copies = HalfCopies(model, gradients, form.dtype) if network == "half" else None
    size = SIZES["hidden_size"] // SIZES["num_attention_heads"]
    own = compiled == "layers" and kernels_for(size, torch.device(device))
    calls = LayerCalls(model, compiled, recompute, backend, size if own else 0)
    return Engine(
        Objective(model),
        torch.optim.AdamW(model.parameters(), lr=lr, fused=True),
        gradients,
        form,
        LossScale(device, 1024.0, enabled=form.scaled),
        Processes(device=torch.device(device)),
        0.0,
        network=Network(form, copies, calls),
        **options,
    )


def batches(count=2, **sizes):
    return [batch_of(**{"rows": 4, "length": 16, "seed": seed, **sizes}) for seed in range(count)]


def reseed(number):
    torch.manual_seed(100 + number)


def stepped(engine):
    result = engine.step(batches(), reseed)
    return result, engine.gradients.flat.clone()


def apart(a, b):
    return float(torch.linalg.vector_norm(a - b) / torch.linalg.vector_norm(b))
