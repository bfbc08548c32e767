"""Models that wrappers hold, or that cannot be trained, are refused before anything happens."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel
from transformers import AlbertForPreTraining, BertForPreTraining

import mpobert_plugin as mp
from mpobert_plugin.errors import ModelTypeError
from mpobert_plugin.train.run import pretrain
from tests.mpobert_plugin.train.tiny import ALBERT, BERT
from tests.mpobert_plugin.train.tiny_run import BASE, corpus_in, fresh


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return corpus_in(tmp_path_factory.mktemp("corpus"))


@pytest.fixture
def mesh(tmp_path):
    store = f"file://{tmp_path / 'store'}"
    torch.distributed.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    torch.distributed.destroy_process_group()


def sharded(model, mesh):
    for layer in model.modules():
        if type(layer).__name__.endswith("Layer"):
            fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


class DeepSpeedEngine(nn.Module):
    """What DeepSpeed wraps a model in, by its name."""

    def __init__(self, module):
        super().__init__()
        self.module = module


def partitioned(model, _mesh):
    next(model.parameters()).ds_id = 0
    return model


WRAPPERS = {
    "DataParallel": lambda model, mesh: nn.DataParallel(model),
    "DistributedDataParallel": lambda model, mesh: DistributedDataParallel(model),
    "FullyShardedDataParallel": lambda model, mesh: FullyShardedDataParallel(
        model, device_id=torch.device("cpu")
    ),
    "FSDPModule": sharded,
    "DeepSpeedEngine": lambda model, mesh: DeepSpeedEngine(model),
    "partitioned by DeepSpeed": partitioned,
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", WRAPPERS)
def test_m25_wrapped_models_are_refused_and_shared_tensors_explained(corpus, tmp_path, mesh, name):
    run = tmp_path / "run"
    with pytest.raises(
        ModelTypeError, match=rf"neither wrapped nor sharded, got .*{name}"
    ) as found:
        pretrain(WRAPPERS[name](fresh(), mesh), corpus, BASE, run, device="cpu")
    assert "The gradient of a tensor that layers share is then summed once" in str(found.value)
    assert "started by torchrun" in str(found.value)
    assert not run.exists()
    with pytest.raises(
        ModelTypeError, match=rf"got .*{name}.* wrap the converted one: layers that"
    ):
        mp.convert(WRAPPERS[name](BertForPreTraining(BERT), mesh))
    with pytest.raises(ModelTypeError, match=rf"got .*{name}.* must get the same one"):
        mp.from_albert(WRAPPERS[name](AlbertForPreTraining(ALBERT), mesh), 3)


@pytest.mark.filterwarnings("ignore")
def test_a_single_layer_that_is_sharded_is_named(corpus, tmp_path, mesh):
    model = BertForPreTraining(BERT)
    fully_shard(model.bert.encoder.layer[1], mesh=mesh)
    with pytest.raises(ModelTypeError, match=r"got FSDPModule around bert\.encoder\.layer\.1\."):
        pretrain(model, corpus, BASE, tmp_path / "run", device="cpu")


def test_models_without_values_or_in_whole_numbers(corpus, tmp_path):
    with pytest.raises(ModelTypeError, match=r"got \d+ parameters on the meta device: albert"):
        pretrain(fresh(device="meta"), corpus, BASE, tmp_path / "run", device="cpu")
    model = fresh()
    word = model.albert.embeddings.word_embeddings
    word.weight = nn.Parameter(torch.zeros(96, 8, dtype=torch.int8), requires_grad=False)
    with pytest.raises(ModelTypeError, match=r"got \d+ that are quantized: albert\.embeddings"):
        pretrain(model, corpus, BASE, tmp_path / "run", device="cpu")
    with pytest.raises(ModelTypeError, match="must be a model of transformers, got Linear"):
        pretrain(nn.Linear(2, 2), corpus, BASE, tmp_path / "run", device="cpu")
