"""Options of ``mpobert convert``: none is missing, values by role, calibration on a text."""

from __future__ import annotations

import gzip
import inspect
import json
import lzma

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from tokenizers.processors import TemplateProcessing
from transformers import (
    AutoModelForMaskedLM,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaModel,
)
from typer.main import get_command
from typer.testing import CliRunner

import mpobert_plugin as mp
from mpobert_plugin.cli import app
from mpobert_plugin.cli.calibration import LENGTH, LINES, batches_of, read_excerpt
from tests.mpobert_plugin.models import logits, tiny_bert

WORDS = [f"w{number}" for number in range(90)]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LONG = " ".join(WORDS[:60])
TEXT = f"w1 w2 w3\n\n  w4 w5 w6 w7 w8 \nw9 w10\n{LONG}\nw11 w12\n"


def run(*command, code=0):
    result = CliRunner().invoke(
        app, [str(part) for part in command], env={"COLUMNS": "160", "NO_COLOR": "1"}
    )
    assert result.exit_code == code, (result.output, result.exception)
    return result


def fails(*command):
    result = run(*command, code=2)
    assert result.stderr.startswith("Error: ")
    assert len(result.stderr.splitlines()) == 1
    return result.stderr


def tokenizer_of(words, special=SPECIAL):
    tokenizer = Tokenizer(
        models.WordLevel({word: n for n, word in enumerate([*special, *words])}, special[1])
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    cls, sep = special[2:4]
    tokenizer.post_processor = TemplateProcessing(
        single=f"{cls} $A {sep}", special_tokens=[(cls, 2), (sep, 3)]
    )
    names = ("pad", "unk", "cls", "sep", "mask")
    roles = {f"{name}_token": token for name, token in zip(names, special, strict=True)}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **roles)


@pytest.fixture
def bert(tmp_path):
    tiny_bert(num_hidden_layers=2).save_pretrained(tmp_path / "bert")
    tokenizer_of(WORDS).save_pretrained(tmp_path / "bert")
    return tmp_path / "bert"


@pytest.fixture
def text(tmp_path):
    (tmp_path / "text.txt").write_text(TEXT, encoding="utf-8")
    return tmp_path / "text.txt"


def options_of(folder):
    return AutoModelForMaskedLM.from_pretrained(folder).config.quantization_config


class TestOptions:
    def test_every_argument_of_convert_is_an_option_or_named_in_the_help(self):
        command = get_command(app).commands["convert"]
        given = {parameter.name for parameter in command.params}
        wanted = set(inspect.signature(mp.convert).parameters) - {"model", "unknown"}
        plural = {"targets": "target", "adapter_targets": "adapter_target"}
        assert {plural.get(name, name) for name in wanted} <= given
        help_text = run("convert", "--help").output
        for only_in_python in ("Sharing by a function", "batches of your own", "from_albert"):
            assert only_in_python in help_text

    def test_help_tells_the_defaults(self):
        lines = run("convert", "--help").output.splitlines()
        default = mp.MPOConfig()
        for option, value in (
            ("--n ", default.n),
            ("--gauge ", default.gauge),
            ("--adapter-rank ", default.adapter_rank),
            ("--max-bond ", "no limit"),
            ("--calibration-batch ", 8),
        ):
            line = next(line for line in lines if option in line)
            assert f"[default: ({value})]" in line
        for number in (LINES, LENGTH):
            assert f"[default: ({number}" in "".join(lines)

    @pytest.mark.parametrize(
        "command",
        ["account", "convert", "demo", "describe", "merge", "prepare", "pretrain", "report"],
    )
    def test_help_tells_exit_codes(self, command):
        words = " ".join(run(command, "--help").output.split())
        assert "Exit code: 0 when" in words
        assert "130 when Ctrl-C" in words

    def test_values_by_role(self, bert, tmp_path):
        options = [
            *("--max-bond", "query=4", "--max-bond", "ffn_in=6", "--max-bond", "*=5"),
            *("--rtol", "key=0.9", "--adapter-rank", "query=2", "--adapter-rank", "ffn_in=1"),
            *("--sharing", "query=all", "--sharing", "key=[[0], [1]]", "--fit", "mean"),
            *("--shapes", "32=[8,4]", "--shapes", "64=[8,8]", "--share-bias", "query=all"),
            *("--share-norm", "attention_norm=true", "--adapter-fit", "residual"),
        ]
        run("convert", bert, "-o", tmp_path / "out", *options)
        config = options_of(tmp_path / "out")
        assert config.max_bond == {"query": 4, "ffn_in": 6, "*": 5}
        assert config.rtol == {"key": 0.9}
        assert config.adapter_rank == {"query": 2, "ffn_in": 1}
        assert config.sharing == {"query": "all", "key": [[0], [1]]}
        assert config.shapes == {32: (8, 4), 64: (8, 8)}
        assert (config.adapter_fit, config.share_bias) == ("residual", {"query": "all"})
        specs = {spec.role: spec for spec in config.plan.banks}
        assert [max(specs[r].bond_dims) for r in ("query", "ffn_in", "value")] == [4, 6, 5]
        assert (specs["query"].adapter_rank, specs["key"].adapter_rank) == (2, 0)

    def test_json_and_a_single_role_say_the_same(self, bert, tmp_path):
        run("convert", bert, "-o", tmp_path / "a", "--max-bond", '{"query": 4}', "--n", 2)
        run("convert", bert, "-o", tmp_path / "b", "--max-bond", "query=4", "--n", 2)
        assert options_of(tmp_path / "a") == options_of(tmp_path / "b")

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (
                ["--max-bond", "4.5"],
                "role=integer for each role (--max-bond query=... --max-bond key=...), got '4.5'.",
            ),
            (["--max-bond", "query=4,key=8"], "got '4,key=8'."),
            (["--rtol", "small"], "--rtol must be one number, or role=number for each role"),
            (["--rtol", "nan"], "--rtol must be a number above 0 and below 1, got nan."),
            (["--max-bond", "query=0"], "--max-bond query=... must be an integer >= 1, got 0."),
            (["--max-bond", "querry=4"], "got 'querry'. Did you mean 'query'"),
            (["--adapter-rank", "querry=4"], "got 'querry'. Did you mean 'query'"),
            (["--sharing", "querry=all"], "got 'querry'. Did you mean 'query'"),
            (
                ["--max-bond", "4", "--max-bond", "8"],
                "role=value each time that it is given, got '4' beside others. Name the role: -",
            ),
            (["--sharing", "all", "--sharing", "query=none"], "got 'all' beside others."),
            (["--rtol", "=0.1"], "each time that it is given, got '=0.1'. Name the role"),
            (
                ["--max-bond", "key=4", "--max-bond", "key=8"],
                "--max-bond must name each role once, got 'key' twice.",
            ),
            (["--max-bond", '{"query": 4'], "--max-bond must be a word or JSON, got"),
            (
                ["--adapter-fit", "residuum", "--adapter-rank", "2"],
                "--adapter-fit must be 'residual' or 'zero', got 'residuum'. Did you mean '",
            ),
        ],
    )
    def test_impossible_values(self, bert, tmp_path, options, message):
        assert message in fails("convert", bert, "-o", tmp_path / "out", *options)
        assert not (tmp_path / "out").exists()


class TestCalibration:
    def test_it_is_what_convert_makes_of_these_batches(self, bert, text, tmp_path):
        cut = ("--n", 2, "--max-bond", 6)
        command = ("convert", bert, "-o", tmp_path / "out", *cut, "--calibration", text)
        lines = run(*command, "--calibration-batch", 3).stdout
        # Five lines with two special tokens each; the long one is cut at the model's 40 positions.
        assert f"calibration: 5 lines, {5 + 7 + 4 + 40 + 4} tokens of {text}" in lines
        tokenizer = tokenizer_of(WORDS)
        texts = [line.strip() for line in TEXT.splitlines() if line.strip()]
        settings = {"padding": True, "truncation": True, "return_tensors": "pt", "max_length": 40}
        batches = [
            {
                name: value
                for name, value in tokenizer(texts[start : start + 3], **settings).items()
                if name in ("input_ids", "attention_mask")
            }
            for start in (0, 3)
        ]
        plain = BertForMaskedLM.from_pretrained(bert)
        direct = mp.convert(plain, n=2, max_bond=6, calibration=batches)
        loaded = AutoModelForMaskedLM.from_pretrained(tmp_path / "out")
        torch.testing.assert_close(logits(loaded), logits(direct.eval()), rtol=0, atol=0)
        blind = mp.convert(BertForMaskedLM.from_pretrained(bert), n=2, max_bond=6)
        assert not torch.equal(logits(loaded), logits(blind.eval()))

    def test_json_and_numbers(self, bert, text, tmp_path):
        command = ("convert", bert, "-o", tmp_path / "out", "--n", 2, "--max-bond", 4, "--json")
        chosen = ("--calibration-lines", 4, "--calibration-length", 8)
        fields = json.loads(run(*command, "--calibration", text, *chosen).stdout)
        assert fields["calibration"] == {"file": str(text), "lines": 4, "tokens": 5 + 7 + 4 + 8}
        assert fields["report"]["matrices"][0]["output_error"] > 0.0
        fields = json.loads(run(*command, "--force").stdout)
        assert fields["calibration"] is None

    def test_compressed_files_and_json_lines(self, tmp_path):
        (tmp_path / "a.txt.xz").write_bytes(lzma.compress(TEXT.encode()))
        (tmp_path / "a.txt.gz").write_bytes(gzip.compress(TEXT.encode()))
        records = [json.dumps({"text": line}) for line in TEXT.splitlines()]
        (tmp_path / "a.jsonl").write_text("\n".join(records))
        wanted = ("w1 w2 w3", "w4 w5 w6 w7 w8")
        for name in ("a.txt.xz", "a.txt.gz", "a.jsonl"):
            assert read_excerpt(tmp_path / name, 2, None, None).lines == wanted

    def test_positions_of_roberta_begin_behind_the_padding(self, tmp_path, text):
        special = ["<s>", "<pad>", "[CLS]", "[SEP]", "<mask>"]
        tokenizer_of(WORDS, special).save_pretrained(tmp_path)
        sizes = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 16}
        model = RobertaModel(
            RobertaConfig(vocab_size=99, num_hidden_layers=1, max_position_embeddings=40, **sizes)
        )
        batches = batches_of(read_excerpt(text, None, 2, None), tmp_path, model)
        assert [tuple(batch["input_ids"].shape) for batch in batches] == [(2, 7), (2, 38), (1, 4)]
        assert batches[0]["input_ids"][0, 5:].tolist() == [1, 1]
        model(**batches[1])

    def test_models_without_padding(self, tmp_path, text):
        folder = tmp_path / "gpt"
        config = GPT2Config(vocab_size=99, n_embd=16, n_layer=1, n_head=2, n_positions=50)
        GPT2LMHeadModel(config).save_pretrained(folder)
        tokenizer_of(WORDS).save_pretrained(folder)
        command = ("convert", folder, "-o", tmp_path / "out", "--max-bond", 4, "--n", 2)
        assert "5 lines, 70 tokens" in run(*command, "--calibration", text).stdout


class TestFaultsOfCalibration:
    def calibrate(self, folder, path, *options):
        out = folder.parent / "out"
        message = fails(
            "convert", folder, "-o", out, "--max-bond", 4, "--calibration", path, *options
        )
        assert not out.exists()
        return message

    def test_files(self, bert, tmp_path):
        absent = tmp_path / "absent.txt"
        assert f"--calibration must be a file of text, got nothing at {absent}." in (
            self.calibrate(bert, absent)
        )
        assert f"must be a file of text, got the folder {tmp_path}." in (
            self.calibrate(bert, tmp_path)
        )
        empty = tmp_path / "empty.txt"
        empty.write_text(" \n\n")
        message = f"--calibration must hold at least one line of text, got none in {empty}."
        assert message in self.calibrate(bert, empty)
        empty.write_bytes(b"\xff\xfe")
        assert f"{empty} must be UTF-8 text" in self.calibrate(bert, empty)
        (tmp_path / "a.xz").write_bytes(b"no archive")
        assert "must be a readable text file" in self.calibrate(bert, tmp_path / "a.xz")
        (tmp_path / "a.jsonl").write_text('{"txt": "w1"}\n')
        assert "must have its text in the field 'text', got ['txt']" in (
            self.calibrate(bert, tmp_path / "a.jsonl")
        )

    def test_numbers_need_a_file(self, bert, tmp_path):
        message = "--calibration-lines needs --calibration, got 3 without it. Name a file of text."
        assert message in fails("convert", bert, "-o", tmp_path / "o", "--calibration-lines", 3)

    def test_tokenizers(self, bert, text):
        (bert / "tokenizer.json").write_text("garbage")
        assert f"the tokenizer in {bert} must be one that transformers can use, got" in (
            self.calibrate(bert, text)
        )
        (bert / "tokenizer.json").unlink()
        message = self.calibrate(bert, text)
        assert f"--calibration needs the model's tokenizer, got {bert} without any of" in message
        assert "Save it there: tokenizer.save_pretrained(" in message

    def test_words_of_the_tokenizers_library_are_told(self, bert, text):
        for name in ("tokenizer.json", "tokenizer_config.json"):
            (bert / name).unlink()
        (bert / "vocab.txt").write_text("[PAD]\n")
        assert "must be one that transformers can use, got: " in self.calibrate(bert, text)

    def test_tokens_that_do_not_fit(self, bert, text, tmp_path):
        tokenizer_of([*(f"x{number}" for number in range(99)), *WORDS]).save_pretrained(bert)
        assert f"the tokenizer in {bert} must be that of the model, which has 99 tokens, got" in (
            self.calibrate(bert, text)
        )
        foreign = tmp_path / "foreign.txt"
        foreign.write_text("nothing known\nhere\n")
        assert f"knows, got 2 lines of {foreign} without one known token." in (
            self.calibrate(bert, foreign)
        )

    def test_lines_that_are_too_long(self, bert, text):
        message = self.calibrate(bert, text, "--calibration-length", 41)
        assert (
            "--calibration-length must be at most 40, the positions of a BertForMaskedLM, got 41."
            in message
        )


@pytest.mark.filterwarnings("ignore:.*allows .* parameters:mpobert_plugin.errors.MPOBertWarning")
def test_a_budget_that_leaves_every_matrix_plain_is_reported(bert, tmp_path):
    made = run("convert", bert, "--out", tmp_path / "m", "--n", "3", "--ratio", "1.0")
    text = "the budget leaves every matrix plain"
    assert text in " ".join(made.stdout.split())
    assert text in " ".join(run("report", tmp_path / "m").stdout.split())
