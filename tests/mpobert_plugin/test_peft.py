"""LoRA of PEFT on converted models: training, reload, merging right or refused, wrong names."""

from __future__ import annotations

import copy
import re
import subprocess
import sys

import pytest
import torch
from transformers import BertModel

import mpobert_plugin as mp
from mpobert_plugin.errors import ConversionError, ModelTypeError, TargetError
from tests.mpobert_plugin.handing import assert_same_gradients, gradients
from tests.mpobert_plugin.lora import adapted, classifier, step, trained
from tests.mpobert_plugin.models import (
    checkpoint_layers,
    ids,
    logits,
    stir_adapters,
    tiny_albert,
    tiny_bert,
)

peft = pytest.importorskip("peft", reason="PEFT is not installed")
from mpobert_plugin.peft.layer import LoraMPOLinear  # noqa: E402


class TestTraining:
    def test_one_step_changes_lora_and_the_head_alone(self):
        model = adapted(classifier())
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        step(model)
        after = model.state_dict()
        changed = {name for name in before if not torch.equal(before[name], after[name])}
        assert changed == trained(model)
        assert all("lora_" in n or "classifier.modules_to_save" in n for n in changed)
        assert sum("lora_" in name for name in changed) == 2 * (4 * 4 + 1)

    def test_a_fresh_adapter_changes_nothing(self):
        model = classifier()
        before = logits(model)
        wrapped = peft.get_peft_model(model, mp.peft.lora_config(model))
        assert torch.equal(logits(wrapped.eval()), before)
        with wrapped.disable_adapter():
            assert torch.equal(logits(wrapped), before)

    def test_the_dense_twin_with_lora_agrees_forward_and_backward(self):
        model = mp.convert(tiny_bert(), max_bond=4).double()
        plain = mp.merge(model)
        config = peft.LoraConfig(
            r=2, lora_alpha=2, target_modules=["query", "key", "value", "attention.output.dense"]
        )
        torch.manual_seed(6)
        dense = peft.get_peft_model(plain, config)
        torch.manual_seed(6)
        ours = adapted(model)
        values = dict(ours.named_parameters())
        with torch.no_grad():
            for name, parameter in dense.named_parameters():
                if "lora_" in name:
                    parameter.copy_(values[name])
        for one in (dense, ours):
            one.train()
            one(ids(), labels=ids()).loss.backward()
        torch.testing.assert_close(ours(ids()).logits, dense(ids()).logits, rtol=0, atol=1e-10)
        assert len(gradients(ours)) == 2 * 4 * 4
        assert_same_gradients(gradients(ours), gradients(dense), atol=1e-10)

    @pytest.mark.parametrize("reentrant", [False, True])
    def test_checkpointed_layers_give_the_same_gradients(self, reentrant):
        runs = []
        for checkpointed in (False, True):
            model = classifier()
            if checkpointed:
                checkpoint_layers(model, reentrant)
            torch.manual_seed(7)
            model = adapted(model).train()
            model(ids(), labels=torch.tensor([0, 1])).loss.backward()
            runs.append(gradients(model))
        assert_same_gradients(*runs)

    def test_the_number_of_adapted_modules_is_told(self):
        model = adapted(classifier(), targets=["query", "ffn_out"])
        assert len(model.targeted_module_names) == 8
        layers = [m for m in model.modules() if isinstance(m, LoraMPOLinear)]
        assert len(layers) == 8
        assert model.get_nb_trainable_parameters()[0] == 4 * (2 * (32 + 32) + 2 * (64 + 32)) + 66


RELOAD = """
import torch
from transformers import BertForSequenceClassification
import mpobert_plugin as mp
torch.manual_seed(77)
model = BertForSequenceClassification.from_pretrained(base)
with torch.no_grad():
    model.classifier.weight.normal_()
loaded = mp.peft.load(model, adapter).eval()
data = torch.load(data, weights_only=True)
with torch.no_grad():
    found = loaded(data["ids"]).logits
torch.testing.assert_close(found, data["expected"], rtol=0, atol=1e-6)
plain = mp.peft.merge(loaded)
with torch.no_grad():
    found = plain(data["ids"]).logits
torch.testing.assert_close(found, data["expected"], rtol=0, atol=1e-5)
"""


class TestM10TheHeadComesBack:
    # A new process imports everything anew, which takes far longer than what is tested.
    @pytest.mark.parametrize("apart", [False, pytest.param(True, marks=pytest.mark.slow)])
    def test_saved_and_loaded_on_another_random_head(self, tmp_path, apart):
        base = classifier()
        base.save_pretrained(tmp_path / "base")
        model = step(adapted(base))
        with torch.no_grad():
            model.base_model.model.classifier.modules_to_save["default"].weight.add_(1.0)
        model.save_pretrained(tmp_path / "adapter")
        torch.save({"ids": ids(), "expected": logits(model)}, tmp_path / "data.pt")
        names = {"base": "base", "adapter": "adapter", "data": "data.pt"}
        folders = {name: str(tmp_path / file) for name, file in names.items()}
        if not apart:
            exec(RELOAD, folders)
            return
        code = f"globals().update({folders!r})\n{RELOAD}"
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr

    def test_the_head_is_saved_without_being_named(self):
        assert mp.peft.lora_config(classifier()).modules_to_save == ["classifier"]

    def test_a_head_that_is_tied_to_the_embedding_is_not(self):
        assert mp.peft.lora_config(mp.convert(tiny_bert())).modules_to_save is None
        assert mp.peft.lora_config(mp.convert(tiny_bert(BertModel))).modules_to_save is None

    def test_further_modules_can_be_named(self, tmp_path):
        model = adapted(classifier(), modules_to_save=["classifier", "pooler"], targets=["key"])
        assert sum("modules_to_save" in name for name in trained(model)) == 4
        step(model).save_pretrained(tmp_path)
        loaded = mp.peft.load(classifier(), tmp_path).eval()
        torch.testing.assert_close(logits(loaded), logits(model), rtol=0, atol=1e-6)


class TestM09WrongNames:
    @pytest.mark.parametrize("targets", [["query", "FAKE_MODULE"], ["FAKE_MODULE"], "FAKE_MODULE"])
    def test_a_name_that_does_not_exist(self, targets):
        model = classifier()
        with pytest.raises(TargetError, match=r"unknown of .* 'FAKE_MODULE' is close to none"):
            mp.peft.lora_config(model, targets=targets)
        with pytest.raises(TargetError, match=r"must name matrices of the model .query, key, "):
            mp.peft.lora_config(model, targets=["querry"])

    def test_a_name_that_matches_by_its_end_only(self):
        model = classifier()
        for name in ("dense", "output.dense.", "ery"):
            with pytest.raises(TargetError, match=re.escape(repr(name))):
                mp.peft.lora_config(model, targets=[name])
        config = mp.peft.lora_config(model, targets=["output.dense"])
        names = peft.get_peft_model(model, config).targeted_module_names
        assert names == [f"bert.encoder.layer.{k}.output.dense" for k in range(4)]

    def test_a_configuration_of_ones_own(self):
        model = classifier()
        given = peft.LoraConfig(target_modules=["query", "FAKE_MODULE"])
        with pytest.raises(TargetError, match=r"got 1 unknown of 2: FAKE_MODULE. 'FAKE_MODULE': "):
            mp.peft.register(given, model)
        given = peft.LoraConfig(target_modules=["querry"])
        with pytest.raises(TargetError, match=r"'querry': Did you mean 'query'"):
            mp.peft.register(given, model)
        given = peft.LoraConfig(target_modules=".*fake")
        with pytest.raises(
            TargetError, match=re.escape("must match modules of the model, got '.*")
        ):
            mp.peft.register(given, model)
        given = peft.LoraConfig(target_modules=["query"], modules_to_save=["classifer"])
        with pytest.raises(TargetError, match=r"modules_to_save must name .*mean 'classifier'"):
            mp.peft.register(given, model)
        given = peft.LoraConfig(target_modules="all-linear")
        with pytest.raises(
            TargetError, match=r"'all-linear' leaves out the matrices of a converted"
        ):
            mp.peft.register(given, model)

    def test_nothing_is_adapted_when_a_name_is_wrong(self):
        model = classifier()
        with pytest.raises(TargetError):
            mp.peft.lora_config(model, targets=["query", "valu"])
        assert not any(isinstance(module, LoraMPOLinear) for module in model.modules())

    def test_roles_of_other_families(self):
        model = mp.from_albert(tiny_albert(), 3)
        wrapped = adapted(model, targets=["embedding_projection", "ffn_in"])
        assert wrapped.targeted_module_names == [
            "albert.encoder.embedding_hidden_mapping_in",
            *(f"albert.encoder.albert_layer_groups.{k}.albert_layers.0.ffn" for k in range(3)),
        ]

    @pytest.mark.parametrize("name", ["encoder", "query", "output.dense", "bert"])
    def test_modules_whose_tensors_are_in_a_bank_cannot_be_trained_whole(self, name):
        message = f"modules_to_save must name modules with tensors of their own, got {name!r}: "
        with pytest.raises(TargetError, match=re.escape(message)):
            mp.peft.lora_config(classifier(), modules_to_save=["classifier", name])


class TestMerging:
    @pytest.mark.parametrize("safe", [False, True])
    def test_peft_refuses_to_merge_in_place(self, safe):
        model = adapted(classifier())
        before = logits(model)
        message = (
            "LoRA cannot be merged into layer 0 of 'query', whose matrix is rebuilt from tensors "
            "of a bank that 4 layers read. Call mpobert_plugin.peft.merge(model), which returns"
        )
        for merge in (model.merge_and_unload, model.merge_adapter):
            with pytest.raises(ConversionError, match=re.escape(message)):
                merge(safe_merge=safe)
        assert torch.equal(logits(model), before)

    @pytest.mark.parametrize("name", ["merge_and_unload", "merge_adapter"])
    def test_nothing_is_merged_when_a_converted_layer_refuses(self, name):
        # The projection of the embedding is plain, and comes before the layers.
        model = adapted(mp.from_albert(tiny_albert(), 3), targets=["embedding_projection", "query"])
        before, kinds = logits(model), {n: type(module) for n, module in model.named_modules()}
        values = {n: tensor.clone() for n, tensor in model.state_dict().items()}
        for merge in (getattr(model, name), getattr(copy.deepcopy(model), name)):
            with pytest.raises(ConversionError, match=r"LoRA cannot be merged into layer 0 of 'q"):
                merge()
        assert {n: type(module) for n, module in model.named_modules()} == kinds
        assert not any(getattr(module, "merged", False) for module in model.modules())
        torch.testing.assert_close(model.state_dict(), values, rtol=0, atol=0)
        assert torch.equal(logits(model), before)

    def test_lora_on_plain_parts_alone_is_merged_in_place(self):
        model = adapted(mp.from_albert(tiny_albert(), 3), targets=["embedding_projection"])
        before = logits(model)
        merged = model.merge_and_unload()
        torch.testing.assert_close(logits(merged), before, rtol=0, atol=1e-6)
        mp.assert_shared(merged)

    def test_plain_models_are_merged_as_ever(self):
        mp.peft.register(peft.LoraConfig(target_modules=["query"]))
        plain = peft.get_peft_model(tiny_bert(), peft.LoraConfig(target_modules=["query"]))
        assert type(plain.merge_and_unload()).__name__ == "BertForMaskedLM"

    @pytest.mark.parametrize(
        "make",
        [
            classifier,
            lambda: classifier(adapter_rank=2),
            lambda: mp.convert(tiny_bert(), max_bond=4),
            lambda: mp.from_albert(tiny_albert(), 3, adapter_rank=1),
        ],
    )
    def test_merging_into_a_plain_model_is_right(self, make, tmp_path):
        base = make()
        stir_adapters(base)
        without = logits(base)
        model = adapted(base, lora_bias=False)
        before = logits(model)
        assert (before - without).abs().max() > 1e-4
        merged = mp.peft.merge(model)
        torch.testing.assert_close(logits(merged), before, rtol=0, atol=1e-5)
        assert torch.equal(logits(model), before)
        kinds = {type(module).__module__.partition(".")[0] for module in merged.modules()}
        assert kinds <= {"torch", "transformers"}
        merged.save_pretrained(tmp_path)
        loaded, info = type(merged).from_pretrained(tmp_path, output_loading_info=True)
        assert not any(info.values()), info
        assert torch.equal(logits(loaded), logits(merged))

    def test_biases_and_several_active_adapters_are_merged(self):
        base = classifier()
        model = adapted(base, lora_bias=True)
        config = mp.peft.lora_config(base, rank=3, targets=["query"], modules_to_save=[])
        model.add_adapter("second", config)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "lora_B.second" in name or name.endswith("lora_B.default.bias"):
                    parameter.normal_(0.0, 0.1)
        model.base_model.set_adapter(["default", "second"])
        both = logits(model)
        torch.testing.assert_close(logits(mp.peft.merge(model)), both, rtol=0, atol=1e-5)
        model.base_model.set_adapter("default")
        one = logits(model)
        assert not torch.equal(one, both)
        torch.testing.assert_close(logits(mp.peft.merge(model)), one, rtol=0, atol=1e-5)

    def test_lora_counts_as_adapters_and_stays_when_they_alone_are_trained(self):
        base = classifier(adapter_rank=2)
        own = mp.account(base)
        model = adapted(base, modules_to_save=[])
        lora = {name: p for name, p in model.named_parameters() if "lora_" in name}
        more = sum(parameter.numel() for parameter in lora.values())
        counts = mp.account(model)
        assert counts.by_kind == {
            **own.by_kind,
            "adapter": own.by_kind["adapter"] + more,
        }
        assert counts.dense == own.dense
        assert mp.freeze(base, train="adapter") == {"adapter": counts.by_kind["adapter"]}
        assert all(parameter.requires_grad for parameter in lora.values())

    def test_unloading_gives_the_converted_model_back(self):
        base = classifier()
        before, readers = logits(base), [m for m in base.modules() if isinstance(m, mp.MPOLinear)]
        plain = adapted(base, modules_to_save=[]).unload()
        assert plain is base
        assert torch.equal(logits(plain), before)
        assert [m for m in plain.modules() if isinstance(m, mp.MPOLinear)] == readers
        mp.assert_shared(plain)

    def test_other_things_are_refused(self):
        with pytest.raises(ModelTypeError, match=r"model must be a peft.PeftModel, .*, got Bert"):
            mp.peft.merge(classifier())
        plain = peft.get_peft_model(tiny_bert(), peft.LoraConfig(target_modules=["query"]))
        with pytest.raises(
            ConversionError, match=r"LoRA on a converted model, got it on a plain Bert"
        ):
            mp.peft.merge(plain)

    def test_a_model_inside_a_peft_model_is_not_merged_without_its_lora(self):
        inner = adapted(classifier(adapter_rank=2)).get_base_model()
        for merge in (mp.merge, mp.merge_adapters):
            with pytest.raises(ConversionError, match=r"model must have no adapters of PEFT"):
                merge(inner)

    def test_lora_on_merged_adapters_is_merged_with_them(self):
        base = classifier(adapter_rank=2)
        stir_adapters(base)
        with pytest.warns(mp.errors.MPOBertWarning):
            mp.merge_adapters(base)
        model = adapted(base, targets=["query", "ffn_in"])
        merged = mp.peft.merge(model)
        torch.testing.assert_close(logits(merged), logits(model), rtol=0, atol=1e-5)

    def test_lora_on_merged_adapters_is_not_lost(self):
        base = classifier(adapter_rank=2)
        with pytest.warns(mp.errors.MPOBertWarning):
            mp.merge_adapters(base)
        model = peft.get_peft_model(base, peft.LoraConfig(target_modules=["query"]))
        with pytest.raises(ConversionError, match=r"must be as it was merged, got another module"):
            mp.unmerge_adapters(base)
        model.unload()
        mp.unmerge_adapters(base)
