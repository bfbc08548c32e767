"""Options of LoRA on converted models: what is followed, what is refused, what to install."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys

import pytest
import torch

import mpobert_plugin as mp
from mpobert_plugin.errors import ConfigError, MissingPackageError, SharingError
from tests.mpobert_plugin.lora import adapted, classifier, step, trained
from tests.mpobert_plugin.models import logits

peft = pytest.importorskip("peft", reason="PEFT is not installed")


class TestOptions:
    @pytest.mark.parametrize("start", ["pissa", "olora", "orthogonal", "pissa_niter_4", "lora_ga"])
    def test_starts_that_change_the_base_weight(self, start):
        with pytest.raises(
            ConfigError, match=r"init_lora_weights must be True, False or 'gaussian'"
        ):
            mp.peft.lora_config(classifier(), init_lora_weights=start)

    def test_variants(self):
        with pytest.raises(ConfigError, match=r"use_dora must be left out on converted models"):
            mp.peft.lora_config(classifier(), use_dora=True)
        with pytest.raises(ConfigError, match=r"bias must be 'none' or 'all' .* got 'lora_only'"):
            mp.peft.lora_config(classifier(), bias="lora_only")

    @pytest.mark.parametrize(
        ("name", "value", "text"),
        [
            ("layer_replication", [[0, 2], [1, 3]], "would read a copy of the banks that nobody"),
            ("target_parameters", ["central"], "the tensors of a bank are no matrices. Name roles"),
        ],
    )
    def test_what_would_go_around_the_banks(self, name, value, text):
        model = classifier()
        message = rf"{name} must be left out on converted models, got .*{text}"
        with pytest.raises(ConfigError, match=message):
            mp.peft.lora_config(model, **{name: value})
        config = mp.peft.lora_config(model)
        setattr(config, name, value)
        with pytest.raises(ConfigError, match=message):
            mp.peft.register(config, model)

    @pytest.mark.parametrize("indices", [[1, 2], {"word_embeddings": [1, 2]}])
    def test_rows_of_an_embedding_that_is_an_mpo(self, indices):
        model = classifier(targets=["embedding", "query"])
        message = r"left out where bert\.embeddings\.word_embeddings is an MPO, got"
        with pytest.raises(ConfigError, match=message):
            mp.peft.lora_config(model, trainable_token_indices=indices)
        plain = adapted(classifier(), trainable_token_indices=indices)
        assert any("trainable_tokens" in name for name in trained(plain))

    @pytest.mark.parametrize("alpha", [0, -1, float("nan"), float("inf"), "2", True])
    def test_impossible_scales(self, alpha):
        with pytest.raises(ConfigError, match=r"alpha must be a number above 0, got"):
            mp.peft.lora_config(classifier(), alpha=alpha)

    @pytest.mark.parametrize(
        "options", [{"layers_to_transform": [0]}, {"lora_drop": 0.1}, {"target_modules": ["key"]}]
    )
    def test_options_that_peft_refuses(self, options):
        message = rf"options must be some that peft\.LoraConfig takes .* got {next(iter(options))}:"
        with pytest.raises(ConfigError, match=message):
            mp.peft.lora_config(classifier(), **options)

    def test_a_folder_without_an_adapter_is_never_looked_up_elsewhere(self, tmp_path):
        for folder in (tmp_path, tmp_path / "nowhere", "somebody/adapter"):
            with pytest.raises(ConfigError, match=r"folder must be one .* without adapter_config"):
                mp.peft.load(classifier(), folder)

    def test_what_was_changed_after_registering_is_found_too(self):
        model = classifier()
        config = mp.peft.lora_config(model)
        config.use_dora = True
        with pytest.raises(ConfigError, match=r"use_dora"):
            peft.get_peft_model(model, config)

    @pytest.mark.parametrize("rank", [0, 2.0, True, "2"])
    def test_ranks(self, rank):
        with pytest.raises(ConfigError, match=r"rank must be an integer >= 1, got"):
            mp.peft.lora_config(classifier(), rank=rank)

    @pytest.mark.parametrize(
        ("targets", "message"),
        [([], "targets must list at least one name"), (3, "targets must list names, got 3")],
    )
    def test_targets(self, targets, message):
        with pytest.raises(ConfigError, match=message):
            mp.peft.lora_config(classifier(), targets=targets)

    def test_alpha_gaussian_start_and_dropout(self):
        config = mp.peft.lora_config(
            classifier(), rank=4, alpha=16, init_lora_weights="gaussian", lora_dropout=0.1
        )
        assert (config.r, config.lora_alpha, config.lora_dropout) == (4, 16, 0.1)

    def test_other_configurations(self):
        with pytest.raises(ConfigError, match=r"config must be a peft.LoraConfig, got IA3Config"):
            mp.peft.register(peft.IA3Config())

    def test_trained_biases_of_the_banks_are_saved(self, tmp_path):
        model = step(adapted(classifier(), bias="all"))
        assert "base_model.model.bert.mpo.query.bias" in trained(model)
        model.save_pretrained(tmp_path)
        loaded = mp.peft.load(classifier(), tmp_path).eval()
        torch.testing.assert_close(logits(loaded), logits(model), rtol=0, atol=1e-6)

    def test_half_precision(self):
        model = adapted(classifier().to(torch.bfloat16))
        merged = mp.peft.merge(model)
        assert merged.dtype == torch.bfloat16
        difference = (logits(merged).float() - logits(model).float()).abs().max()
        assert difference < 0.05

    def test_a_base_model_with_lora_on_its_pooler_is_not_saved_without_it(self, tmp_path):
        inner = adapted(classifier(), targets=["pooler"], modules_to_save=[]).get_base_model()
        text = r"4 that loading has no place for: bert\.pooler\.dense\.base_layer\.weight, "
        with pytest.raises(SharingError, match=text):
            inner.save_pretrained(tmp_path / "new")
        assert not (tmp_path / "new").exists()

    def test_peft_alone_refuses_a_converted_layer(self):
        with pytest.raises(ValueError, match=r"Target module MPOLinear"):
            peft.get_peft_model(classifier(), peft.LoraConfig(target_modules=["query"]))


WITHOUT_PEFT = """
import importlib.util as util
find = util.find_spec
util.find_spec = lambda name, package=None: None if name == "peft" else find(name, package)
import mpobert_plugin as mp
mp.peft.lora_config(None)
"""


MESSAGE = 'needs peft, which cannot be found. Install them: pip install "tensornet-mpo[peft]"'


def test_without_peft_the_package_is_there_and_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    monkeypatch.setattr(mp, "peft", mp.peft)  # given back in the end
    for name in [name for name in sys.modules if f"{name}.".startswith("mpobert_plugin.peft.")]:
        monkeypatch.delitem(sys.modules, name)
    anew = importlib.import_module("mpobert_plugin.peft")
    monkeypatch.setattr("mpobert_plugin.needs.find_spec", lambda name: None)
    with pytest.raises(MissingPackageError, match=re.escape(MESSAGE)):
        anew.lora_config(None)


@pytest.mark.slow
def test_where_peft_is_not_installed_the_message_says_what_to_install():
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_PEFT], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert MESSAGE in done.stderr
