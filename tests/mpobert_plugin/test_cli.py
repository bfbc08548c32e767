"""The commands that convert, count, describe and merge folders of models."""

from __future__ import annotations

import json
import re

import pytest
import torch
from transformers import (
    AutoModelForMaskedLM,
    BertForMaskedLM,
    BertForSequenceClassification,
)
from typer.testing import CliRunner

import mpobert_plugin as mp
from mpobert_plugin import plotting
from mpobert_plugin.cli import app, folders
from mpobert_plugin.errors import ConfigError
from tests.mpobert_plugin.models import logits, tiny_albert, tiny_bert

runner = CliRunner()


def run(*command, code=0):
    result = runner.invoke(
        app, [str(part) for part in command], env={"COLUMNS": "120", "NO_COLOR": "1"}
    )
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return result


def fails(*command):
    """Return what a command says that cannot run; nothing else may be printed."""
    result = run(*command, code=2)
    assert not result.stdout
    assert result.stderr.startswith("Error: ")
    assert len(result.stderr.splitlines()) == 1
    return result.stderr


@pytest.fixture
def bert(tmp_path):
    folder = tmp_path / "bert"
    tiny_bert().save_pretrained(folder)
    (folder / "vocab.txt").write_text("[PAD]\n")
    (folder / "notes.txt").write_text("private\n")
    return folder


@pytest.fixture
def converted(tmp_path):
    folder = tmp_path / "mpo"
    mp.convert(tiny_bert(), sharing="all", fit="mean", adapter_rank=2).save_pretrained(folder)
    return folder


class TestConvert:
    def test_it_writes_what_convert_makes(self, bert, tmp_path):
        out = tmp_path / "out"
        result = run("convert", bert, "-o", out, "--max-bond", 4, "--target", "query")
        assert "written: " in result.stdout
        assert "relative error of all matrices together 0." in result.stdout
        loaded = AutoModelForMaskedLM.from_pretrained(out)
        direct = mp.convert(BertForMaskedLM.from_pretrained(bert), max_bond=4, targets=["query"])
        torch.testing.assert_close(logits(loaded), logits(direct.eval()), rtol=0, atol=0)
        assert sorted(path.name for path in out.iterdir()) == [
            "config.json",
            "model.safetensors",
            "vocab.txt",
        ]
        assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]

    def test_every_option(self, bert, tmp_path):
        options = {
            "--sharing": "[[0, 1], [2, 3]]",
            "--n": 3,
            "--shapes": '{"32": [4, 4, 2], "64": [4, 4, 4]}',
            "--adapter-rank": 2,
            "--adapter-alpha": 4,
            "--adapter-target": "value",
            "--share-bias": "all",
            "--share-norm": "true",
            "--gauge": "central",
            "--fit": "first",
        }
        flat = [part for pair in options.items() for part in pair]
        run("convert", bert, "-o", tmp_path / "out", *flat)
        model = AutoModelForMaskedLM.from_pretrained(tmp_path / "out")
        plan = model.config.quantization_config.plan
        spec = {bank.role: bank for bank in plan.banks}["value"]
        assert spec.central == (0, 0, 1, 1)
        assert spec.row_dims == (4, 4, 2)
        assert (spec.adapter_rank, spec.adapter_alpha) == (2, 4.0)
        assert spec.bias == (0, 0, 0, 0)
        assert plan.norms[0].slices == (0, 0, 0, 0)
        assert (plan.gauge, plan.fit) == ("central", "first")

    def test_options_of_a_file_and_those_that_override_them(self, bert, tmp_path):
        file = tmp_path / "options.json"
        file.write_text(json.dumps({"max_bond": 3, "targets": ["key"], "n": 3}))
        run("convert", bert, "-o", tmp_path / "out", "--config", file, "--max-bond", 5)
        config = AutoModelForMaskedLM.from_pretrained(tmp_path / "out").config.quantization_config
        assert (config.max_bond, config.targets, config.n) == (5, ("key",), 3)

    def test_json(self, bert, tmp_path):
        result = run("convert", bert, "-o", tmp_path / "out", "--max-bond", 4, "--json")
        fields = json.loads(result.stdout)
        assert fields["copied"] == ["vocab.txt"]
        model = AutoModelForMaskedLM.from_pretrained(tmp_path / "out")
        assert fields["account"]["unique"] == mp.account(model).unique
        assert fields["report"] == mp.report(model).to_dict()

    def test_a_picture_of_the_errors(self, bert, tmp_path):
        command = ("convert", bert, "-o", tmp_path / "out", "--max-bond", 3, "--plot")
        run(*command, tmp_path / "errors.png")
        assert (tmp_path / "errors.png").read_bytes().startswith(b"\x89PNG")

    def test_warnings_are_lines(self, tmp_path):
        folder = tmp_path / "albert"
        tiny_albert(num_hidden_groups=4).save_pretrained(folder)
        result = run("convert", folder, "-o", tmp_path / "out", "--max-bond", 4)
        assert "Traceback" not in result.stderr

    def test_tensors_that_are_missing_or_left_out_are_told(self, bert, tmp_path):
        from safetensors.torch import load_file, save_file

        file = bert / "model.safetensors"
        tensors = load_file(file)
        tensors["extra.weight"] = tensors.pop("cls.predictions.transform.dense.weight")
        save_file(tensors, file, metadata={"format": "pt"})
        result = run("convert", bert, "-o", tmp_path / "out", "--max-bond", 4)
        first, second = result.stderr.splitlines()
        assert first.startswith("Warning: 1 tensors that the folder does not have start at random")
        assert first.endswith(": cls.predictions.transform.dense.weight.")
        assert second == (
            "Warning: 1 tensors that a BertForMaskedLM does not have are left out: extra.weight."
        )

    def test_a_classifier_keeps_its_class(self, tmp_path):
        tiny_bert(BertForSequenceClassification, num_labels=3).save_pretrained(tmp_path / "in")
        run("convert", tmp_path / "in", "-o", tmp_path / "out", "--max-bond", 3)
        config = json.loads((tmp_path / "out" / "config.json").read_text())
        assert config["architectures"] == ["BertForSequenceClassification"]


class TestMerge:
    def test_it_writes_what_merge_makes(self, converted, tmp_path):
        (converted / "tokenizer.json").write_text("{}")
        result = run("merge", converted, "-o", tmp_path / "plain")
        assert "24 matrices merged into float32, 16 adapters added" in result.stdout
        loaded = BertForMaskedLM.from_pretrained(tmp_path / "plain")
        merged = mp.merge(BertForMaskedLM.from_pretrained(converted))
        torch.testing.assert_close(logits(loaded), logits(merged), rtol=0, atol=0)
        assert (tmp_path / "plain" / "tokenizer.json").read_text() == "{}"

    def test_json_and_element_type(self, converted, tmp_path):
        command = ("merge", converted, "-o", tmp_path / "half", "--dtype", "bfloat16", "--json")
        fields = json.loads(run(*command).stdout)
        assert fields["dtype"] == "bfloat16"
        assert 1e-4 < fields["largest"] < 4e-3
        assert BertForMaskedLM.from_pretrained(tmp_path / "half").dtype == torch.bfloat16

    def test_errors(self, bert, converted, tmp_path):
        out = tmp_path / "out"
        assert "model must be converted, got a plain BertForMaskedLM" in fails(
            "merge", bert, "-o", out
        )
        message = "--dtype must be one of float16, bfloat16, float32, float64, got 'int8'."
        assert message in fails("merge", converted, "-o", out, "--dtype", "int8")
        assert not out.exists()


class TestLooking:
    def test_account(self, converted, bert, tmp_path):
        report = mp.account(BertForMaskedLM.from_pretrained(converted))
        text = run("account", converted).stdout
        for number in (*report.by_kind.values(), report.unique, report.total, report.dense):
            assert f"{number:,}" in text
        fields = json.loads(run("account", converted, "--json").stdout)
        assert fields["unique"] == report.unique
        assert fields["ratio"] == report.ratio
        assert json.loads(run("account", bert, "--json").stdout)["ratio"] == 1.0
        run("account", converted, "--plot", tmp_path / "kinds.svg")
        drawn = (tmp_path / "kinds.svg").read_text()
        assert "<svg" in drawn

    def test_describe(self, converted, bert):
        model = BertForMaskedLM.from_pretrained(converted)
        assert run("describe", converted).stdout == mp.describe(model) + "\n"
        plan = json.loads(run("describe", converted, "--json").stdout)
        assert mp.ConversionPlan.from_dict(plan) == model.config.quantization_config.plan
        assert "model must be converted" in fails("describe", bert)

    def test_report(self, bert, converted, tmp_path):
        found = mp.report(BertForMaskedLM.from_pretrained(converted))
        text = run("report", converted, "--plot", tmp_path / "errors.pdf").stdout
        assert f"{found.stored_matrices:,}" in text
        assert f"largest {found.largest.error:.4g} in {found.largest.name}" in text
        assert (tmp_path / "errors.pdf").read_bytes().startswith(b"%PDF")
        assert json.loads(run("report", converted, "--json").stdout) == found.to_dict()
        assert "model must be converted" in fails("report", bert)

    def test_a_conversion_that_saves_nothing_says_so(self, bert, tmp_path):
        text = run("convert", bert, "-o", tmp_path / "out").stdout
        assert "Nothing is saved: cores that are neither cut nor shared store" in text


class TestFaults:
    def test_places_that_must_not_be_written(self, bert, tmp_path):
        command = ("convert", bert, "--max-bond", 4, "-o")
        assert "--out must be another folder than" in fails(*command, bert)
        assert "--out must be another folder than" in fails(*command, tmp_path)
        file = tmp_path / "file"
        file.write_text("x")
        assert f"--out must be a folder, got the file {file}." in fails(*command, file)
        other = tmp_path / "other"
        other.mkdir()
        (other / "thesis.tex").write_text("x")
        for force in ([], ["--force"]):
            message = f"--out must be a new folder or one with a model, got {other} with other"
            assert message in fails(*command, other, *force)
        assert (other / "thesis.tex").read_text() == "x"

    def test_a_model_is_replaced_by_force_alone(self, bert, tmp_path):
        out = tmp_path / "out"
        run("convert", bert, "-o", out, "--max-bond", 4)
        before = (out / "model.safetensors").read_bytes()
        message = f"{out} holds a model already. Name another folder, or pass --force."
        assert message in fails("convert", bert, "-o", out, "--max-bond", 2)
        assert (out / "model.safetensors").read_bytes() == before
        run("convert", bert, "-o", out, "--max-bond", 2, "--force")
        assert (out / "model.safetensors").read_bytes() != before
        assert sorted(p.name for p in tmp_path.iterdir()) == ["bert", "out"]

    def test_an_error_leaves_the_former_model(self, bert, tmp_path, monkeypatch):
        out = tmp_path / "out"
        run("convert", bert, "-o", out, "--max-bond", 4)
        before = (out / "model.safetensors").read_bytes()
        for error, code in ((OSError("the disk is full"), 2), (KeyboardInterrupt(), 130)):

            def fail(*_args, _error=error, **_kwargs):
                raise _error

            monkeypatch.setattr(BertForMaskedLM, "save_pretrained", fail)
            result = run("convert", bert, "-o", out, "--max-bond", 2, "--force", code=code)
            told = "Error: the disk is full" if code == 2 else "Stopped. Nothing was written."
            assert told in result.stderr
            assert (out / "model.safetensors").read_bytes() == before
            assert sorted(p.name for p in tmp_path.iterdir()) == ["bert", "out"]

    def test_a_rename_that_fails_brings_the_former_folder_back(self, tmp_path, monkeypatch):
        out = tmp_path / "out"
        out.mkdir()
        (out / "config.json").write_text("old")
        rename = type(out).replace

        def refuse(path, target):
            if path.name.endswith(".tmp"):
                raise OSError("no")
            return rename(path, target)

        monkeypatch.setattr(type(out), "replace", refuse)
        with pytest.raises(OSError, match="no"), folders.written(out) as aside:
            (aside / "config.json").write_text("new")
        assert (out / "config.json").read_text() == "old"
        assert [p.name for p in tmp_path.iterdir()] == ["out"]

    def test_folders_that_hold_no_model(self, bert, tmp_path):
        empty = tmp_path / "empty"
        empty.mkdir()
        for command in ("account", "describe"):
            assert "must be a folder that save_pretrained wrote, got none." in fails(
                command, tmp_path / "absent"
            )
            assert "got one without config.json." in fails(command, empty)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda c: c.update(architectures=["os"]), "must name one class of transformers"),
            (lambda c: c.update(architectures=[]), "must name one class of transformers, got []"),
            (lambda c: c.update(architectures=["logging"]), "must name one class of transformers"),
            (lambda c: c.update(architectures=["EvilModel"]), "got ['EvilModel']"),
            (lambda c: c.update(model_type="nonsense"), "cannot be loaded"),
            (lambda c: c.update(hidden_size=48), "cannot be loaded"),
        ],
    )
    def test_damaged_configurations(self, bert, change, message):
        file = bert / "config.json"
        config = json.loads(file.read_text())
        change(config)
        file.write_text(json.dumps(config))
        assert message in fails("account", bert)

    def test_damaged_files(self, bert):
        (bert / "model.safetensors").write_bytes(b"garbage" * 100)
        assert "cannot be loaded" in fails("account", bert)
        (bert / "model.safetensors").unlink()
        assert "cannot be loaded" in fails("account", bert)
        (bert / "config.json").write_text("{")
        assert "cannot be loaded" in fails("account", bert)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (["--max-bond", "0"], "--max-bond must be an integer >= 1, got 0."),
            (["--target", "querry"], "Did you mean 'query'"),
            (["--sharing", "all"], "Pass --fit joint, --fit mean or --fit first"),
            (["--sharing", "grups:2"], "grups:2"),
            (["--sharing", "[[0, 1"], "--sharing must be a word or JSON, got '[[0, 1'"),
            (["--shapes", "{"], "--shapes must be a word or JSON, got '{'"),
            (["--gauge", "centre"], "Did you mean 'central'"),
            (["--adapter-rank", "99"], "--adapter-rank must be at most 32"),
            (["--plot", "errors.txt"], "--plot must end in .png, .svg, .pdf, got 'errors.txt'."),
        ],
    )
    def test_impossible_options(self, bert, tmp_path, options, message):
        assert message in fails("convert", bert, "-o", tmp_path / "out", *options)
        assert not (tmp_path / "out").exists()

    def test_files_of_options(self, bert, tmp_path):
        file, out = tmp_path / "options.json", tmp_path / "out"
        command = ("convert", bert, "-o", out, "--config", file)
        assert "No such file" in fails(*command)
        file.write_text("{")
        assert f"{file} must be JSON, got a file that is none" in fails(*command)
        file.write_text("[1]")
        assert f"{file} must hold one object of options, got [1]." in fails(*command)
        file.write_text('{"max_bnd": 3}')
        assert "MPOConfig has no option 'max_bnd'. Did you mean 'max_bond'?" in fails(*command)

    def test_pictures_are_not_overwritten(self, converted, tmp_path):
        picture = tmp_path / "kinds.png"
        picture.write_text("mine")
        message = f"{picture} is there already. Name another file, or pass --force."
        assert message in fails("account", converted, "--plot", picture)
        assert picture.read_text() == "mine"
        run("account", converted, "--plot", picture, "--force")
        assert picture.read_bytes().startswith(b"\x89PNG")
        assert not [p for p in tmp_path.iterdir() if p.name.startswith(".")]

    def test_without_matplotlib_the_message_says_what_to_install(self, converted, tmp_path):
        from mpobert_plugin import needs

        real = needs.find_spec
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(needs, "find_spec", lambda n: None if n == "matplotlib" else real(n))
            message = fails("account", converted, "--plot", tmp_path / "a.png")
        assert 'pip install "tensornet-mpo[plot]"' in message

    def test_code_of_a_stranger_does_not_run(self, bert, tmp_path):
        config = json.loads((bert / "config.json").read_text())
        config["auto_map"] = {"AutoConfig": "evil.Config", "AutoModelForMaskedLM": "evil.Model"}
        (bert / "config.json").write_text(json.dumps(config))
        mark = tmp_path / "ran"
        (bert / "evil.py").write_text(f"open({str(mark)!r}, 'w')\n")
        run("convert", bert, "-o", tmp_path / "out", "--max-bond", 4)
        assert not mark.exists()
        assert not (tmp_path / "out" / "evil.py").exists()


class TestPictures:
    def test_a_heat_map_has_a_cell_for_each_matrix(self):
        figure = plotting.errors_by_layer({"query": [0.1, None, 0.2], "key": [0.0, 0.4, 0.3]})
        (image,) = figure.axes[0].get_images()
        assert image.get_array().shape == (2, 3)
        assert image.get_array().mask.sum() == 1
        assert [text.get_text() for text in figure.axes[0].texts] == [
            "0.1",
            "0.2",
            "0",
            "0.4",
            "0.3",
        ]
        assert not plotting.errors_by_layer({"query": [0.1] * 48}).axes[0].texts

    def test_formats_and_what_is_left_behind(self, tmp_path):
        figure = plotting.errors_by_layer({"query": [0.1, 0.2]})
        for ending, start in ((".png", b"\x89PNG"), (".svg", b"<?xml"), (".pdf", b"%PDF")):
            plotting.save(figure, tmp_path / f"errors{ending}")
            assert (tmp_path / f"errors{ending}").read_bytes().startswith(start)
        with pytest.raises(FileNotFoundError):
            plotting.save(figure, tmp_path / "absent" / "errors.png")
        assert len(list(tmp_path.iterdir())) == 3

    def test_what_cannot_be_drawn(self):
        for errors in ({}, {"query": [None]}, {"query": [0.1], "key": [0.1, 0.2]}):
            with pytest.raises(
                ConfigError, match=re.escape("errors must give one number for each")
            ):
                plotting.errors_by_layer(errors)
