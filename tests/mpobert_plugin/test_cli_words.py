"""The command speaks of its options where messages of the library speak of arguments."""

from __future__ import annotations

import inspect

import pytest
from typer.testing import CliRunner

import mpobert_plugin as mp
from mpobert_plugin.cli import app
from mpobert_plugin.cli.change import convert
from mpobert_plugin.cli.in_options import CONVERSION, in_options
from mpobert_plugin.cli.pretraining import PREPARING, prepare
from mpobert_plugin.cli.stability import SWEEP, stability
from mpobert_plugin.config import option_names
from mpobert_plugin.errors import ConfigError
from tests.mpobert_plugin.models import tiny_bert

SPOKEN = {
    "sharing must join equal tensors unless fit says how.": (
        "--sharing must join equal tensors unless --fit says how."
    ),
    "Pass fit='joint', or sharing=None.": "Pass --fit joint, or no --sharing.",
    "Ask for max_params= below 12,035.": "Ask for --max-params below 12,035.",
    "max_params=12,035 allows 3 of 4": "--max-params 12035 allows 3 of 4",
    "Name: adapter_targets=['a', 'b'].": "Name: --adapter-target a --adapter-target b.",
    "got adapter_fit 'zero' and n.": "got --adapter-fit zero and n.",
    "max_bond['query'] must be >= 1, got 0.": "--max-bond query=... must be >= 1, got 0.",
    "rtol={'query': 0.1} is": "--rtol '{\"query\": 0.1}' is",
    "gauge 'left' must be exact: leave out n and rtol.": (
        "--gauge left must be exact: leave out --n and --rtol."
    ),
    "Leave out targets, ratio and fit.": "Leave out --target, --ratio and --fit.",
    "Leave 'query' out of targets.": "Leave 'query' out of --target.",
    "Call mpobert_plugin.convert(model) first.": "Call mpobert convert first.",
    "calibration=True, fit=False": "--calibration, no --fit",
}
# Words of the language, paths, and what is said in options already.
KEPT = [
    "the layers (3 x 4) do not fit the n sites",
    "with all bonds 1 and these targets",
    "a ratio of 3 and a good fit",
    "/home/max_bond/x.txt and a.max_bond",
    "--max-bond must be one integer",
    "fit='joi ... is cut",
]


@pytest.mark.parametrize("text", [*SPOKEN, *KEPT])
def test_arguments_become_options(text):
    assert in_options(text, CONVERSION) == SPOKEN.get(text, text)


@pytest.mark.parametrize(
    ("names", "command"), [(CONVERSION, convert), (PREPARING, prepare), (SWEEP, stability)]
)
def test_every_option_that_is_named_is_one_of_the_command(names, command):
    known = set()
    for name, parameter in inspect.signature(command, eval_str=True).parameters.items():
        option = parameter.annotation.__metadata__[0]
        # typer takes the first name of an annotation for a default.
        names_of = [option.default, *(option.param_decls or ())]
        flags = [flag for flag in names_of if str(flag).startswith("-")]
        known |= set(flags or [f"--{name.replace('_', '-')}"])
    assert set(names.values()) <= known


def test_options_of_a_conversion_are_all_known():
    assert {*option_names(), "calibration"} == set(CONVERSION)


@pytest.mark.parametrize(
    ("option", "meant"),
    [
        ("--targets", "--target"),
        ("--adapter-targets", "--adapter-target"),
        ("--share-biases", "--share-bias"),
        ("--maxbond", "--max-bond"),
    ],
)
def test_the_option_that_a_misspelt_one_holds_is_the_one_that_is_told(option, meant):
    done = CliRunner().invoke(app, ["convert", "folder", "-o", "new", option, "1"])
    assert done.exit_code == 2
    told = " ".join(done.stderr.split())
    assert "--gauge" not in told
    assert told.count("--") == 3  # the help, what was given, and what is told
    assert f"{meant})" in told or f"{meant}?" in told


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bert")
    tiny_bert(num_hidden_layers=2).save_pretrained(folder)
    return folder


def test_errors_warnings_and_reports_of_a_command_speak_so(bert, tmp_path):
    done = CliRunner().invoke(
        app, ["convert", str(bert), "-o", str(tmp_path / "a"), "--sharing", "all"]
    )
    assert "Pass --fit joint, --fit mean or --fit first" in done.stderr
    words = ["convert", str(bert), "-o", str(tmp_path / "b"), "--ratio", "1"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0
    assert done.stderr.startswith("Warning: --ratio 1 allows ")
    assert "Ask for --max-params below " in done.stdout
    done = CliRunner().invoke(app, ["convert", str(bert), "-o", str(tmp_path / "c"), "--n", "2"])
    assert "Ask for --sharing (with --fit where layers differ), --ratio," in done.stdout
    done = CliRunner().invoke(app, ["account", str(tmp_path / "c")])
    assert "ask for --sharing or --max-bond." in done.stdout
    done = CliRunner().invoke(app, ["describe", str(bert)])
    assert done.stderr.endswith("Call mpobert convert first.\n")


def test_names_of_a_file_are_those_of_python(bert, tmp_path):
    (tmp_path / "options.json").write_text('{"max_bond": -3}')
    words = ["convert", str(bert), "-o", str(tmp_path / "a"), "--config"]
    done = CliRunner().invoke(app, [*words, str(tmp_path / "options.json")])
    text = f"in {tmp_path / 'options.json'}: max_bond must be an integer >= 1, got -3.\n"
    assert done.stderr == f"Error: {text}"
    with pytest.raises(ConfigError, match="max_bond must be an integer"):
        mp.MPOConfig(max_bond=-3)
