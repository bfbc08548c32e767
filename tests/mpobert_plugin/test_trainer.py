"""transformers' Trainer on a loaded model: trains, saves, resumes, reloads."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForMaskedLM, Trainer, TrainingArguments

import mpobert_plugin as mp
from tests.mpobert_plugin.models import ids, logits, tiny_albert


class Rows(torch.utils.data.Dataset):
    def __init__(self):
        self.ids = ids(16, 8)

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, index):
        return {"input_ids": self.ids[index], "labels": self.ids[index]}


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*pin_memory.*")
def test_trainer(tmp_path):
    mp.from_albert(tiny_albert(), 5, adapter_rank=2).save_pretrained(tmp_path / "start")
    model = AutoModelForMaskedLM.from_pretrained(tmp_path / "start")
    arguments = TrainingArguments(
        output_dir=str(tmp_path / "run"),
        max_steps=4,
        save_steps=2,
        per_device_train_batch_size=4,
        learning_rate=1e-2,
        weight_decay=0.01,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        seed=0,
    )
    before = logits(model)
    trainer = Trainer(model=model, args=arguments, train_dataset=Rows())
    groups = trainer.create_optimizer().param_groups
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    seen = [id(parameter) for group in groups for parameter in group["params"]]
    assert sorted(seen) == sorted(names)
    undecayed = {names[id(p)] for g in groups if g["weight_decay"] == 0.0 for p in g["params"]}
    assert {n for n in names.values() if "norm" in n.lower() or n.endswith("bias")} <= undecayed
    trainer.train()
    model.eval()
    assert not torch.equal(logits(model), before)
    trainer.save_model(str(tmp_path / "end"))
    mp.assert_shared(model)
    loaded = AutoModelForMaskedLM.from_pretrained(tmp_path / "end")
    assert torch.equal(logits(loaded), logits(model))
    assert mp.account(loaded).unique == mp.account(model).unique
    resumed = AutoModelForMaskedLM.from_pretrained(tmp_path / "start")
    again = Trainer(model=resumed, args=arguments, train_dataset=Rows())
    again.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-2"))
    resumed.eval()
    torch.testing.assert_close(logits(resumed), logits(model), rtol=0, atol=1e-6)
