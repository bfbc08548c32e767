"""The networks that are compared: MPOBERT, its plain twin, and transformers' own BERT."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from transformers import BertConfig, BertForPreTraining

from mpobert_plugin.skeleton import plain_config
from mpobert_plugin.train.source import start_model

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from mpobert_plugin.train.bench.scene import Scene

NO_DROPOUT = {
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "classifier_dropout_prob": 0.0,
}


def make_mpo(scene: Scene, **options: Any) -> PreTrainedModel:
    """Return the preset as pre-training begins with it, without dropout.

    Parameters
    ----------
    scene : Scene
        Preset, sizes, text and device.
    **options
        Of `mpobert_plugin.build`, on top of the scene's.

    Returns
    -------
    transformers.PreTrainedModel
        On the device, with fresh weights.
    """
    given = {"preset": scene.model, **NO_DROPOUT, **scene.sizes, **options}
    with scene.device:
        return start_model(given, scene.corpus, scene.config.length, scene.config.seed)


def make_plain(scene: Scene, **options: Any) -> PreTrainedModel:
    """Return the same network with a matrix of its own for each place in each layer.

    Parameters
    ----------
    scene : Scene
        Preset, sizes, text and device.
    **options
        As for `make_mpo`.

    Returns
    -------
    transformers.PreTrainedModel
        On the device, with fresh weights of the class's own initialization.
    """
    given = {"preset": scene.model, **NO_DROPOUT, **scene.sizes, **options}
    with torch.device("meta"):
        twin = start_model(given, scene.corpus, scene.config.length)
    torch.manual_seed(scene.config.seed)
    with scene.device:
        made: PreTrainedModel = type(twin)(plain_config(twin.config))
    return made


def make_bert(scene: Scene) -> BertForPreTraining:
    """Return transformers' BERT of the preset's size, which has no factorized embedding.

    Parameters
    ----------
    scene : Scene
        Preset, sizes, text and device.

    Returns
    -------
    transformers.BertForPreTraining
        On the device, with fresh weights.
    """
    with torch.device("meta"):
        given = {"preset": scene.model, **NO_DROPOUT, **scene.sizes}
        host = start_model(given, scene.corpus, scene.config.length).config
    config = BertConfig(
        vocab_size=host.vocab_size,
        hidden_size=host.hidden_size,
        num_hidden_layers=host.num_hidden_layers,
        num_attention_heads=host.num_attention_heads,
        intermediate_size=host.intermediate_size,
        max_position_embeddings=host.max_position_embeddings,
        hidden_dropout_prob=host.hidden_dropout_prob,
        attention_probs_dropout_prob=host.attention_probs_dropout_prob,
    )
    torch.manual_seed(scene.config.seed)
    with scene.device:
        made = BertForPreTraining(config)
    made.set_attn_implementation("sdpa")
    return made
