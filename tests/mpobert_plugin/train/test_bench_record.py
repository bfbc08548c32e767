"""The benchmark's record, its clock, its command, and what it survives."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest
import torch
from typer.testing import CliRunner

from mpobert_plugin.cli import app
from mpobert_plugin.errors import ConfigError
from mpobert_plugin.train.bench import SECTIONS, Record, picture, run_bench
from mpobert_plugin.train.bench import run as run_file
from mpobert_plugin.train.bench.record import fastest
from mpobert_plugin.train.bench.scene import Case
from mpobert_plugin.train.bench.text import made_up_corpus
from mpobert_plugin.train.bench.timing import Pace, compared
from mpobert_plugin.train.bench.watch import Stopwatch
from mpobert_plugin.train.processes import Processes
from tests.mpobert_plugin.train.benching import CPU, WORDS, options


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return made_up_corpus(tmp_path_factory.mktemp("text"), words=91, tokens=4000)


def test_products_of_float32_are_rounded_for_tf32_alone(corpus, tmp_path, monkeypatch):
    seen = {}
    cases = [
        Case(
            name,
            lambda name=name: (
                seen.setdefault(name, torch.get_float32_matmul_precision()) and {"mpo": {"ms": 1.0}}
            ),
            name,
        )
        for name in ("tf32", "fp32")
    ]
    monkeypatch.setitem(SECTIONS, "network", lambda _scene: cases)
    run_bench(["network"], options(data=corpus.folder), tmp_path, device=CPU)
    assert seen == {"tf32": "high", "fp32": "highest"}
    assert torch.get_float32_matmul_precision() == "highest"


def test_a_failure_is_written_and_the_next_case_runs(corpus, tmp_path, monkeypatch):
    def broken():
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.")

    cases = [Case("broken", broken), Case("fine", lambda: {"mpo": {"ms": 1.0}})]
    monkeypatch.setitem(SECTIONS, "network", lambda _scene: cases)
    said = []
    given = options(data=corpus.folder)
    record = run_bench(["network"], given, tmp_path, device=CPU, say=said.append, command="x")
    broken_row, fine = record.rows
    assert broken_row["error"] == "OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB."
    assert fine["values"] == {"mpo": {"ms": 1.0}}
    assert (fine["command"], fine["torch"], fine["device"]) == ("x", torch.__version__, "CPU")
    assert "CUDA out of memory" in said[0]
    assert Record.read(tmp_path / "bench.json").rows == record.rows
    # Without time nothing begins, and what was measured stays.
    record = run_bench(["network"], options(data=corpus.folder, limit=0.0), tmp_path, device=CPU)
    states = {row["case"]: "values" in row or row.get("skipped") for row in record.rows}
    assert states == {"broken": "no time was left", "fine": True}


def test_records_say_what_is_wrong_with_them(tmp_path):
    file = tmp_path / "bench.json"
    for text in ("{", '{"format": "other"}', '{"format": "mpobert-bench", "version": 2}'):
        file.write_text(text)
        with pytest.raises(ConfigError, match="must be a record of"):
            Record.read(file)
    assert fastest([], "mpobert-12", "mpo") is None


def test_turns_stop_when_time_is_over_and_ratios_are_of_rounds():
    calls = []
    pace = Pace(rounds=50, turn=0.0, until=time.monotonic() - 1.0)
    works = {"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}
    timed = compared(works, pace, Processes())
    assert timed["a"].rounds == timed["b"].rounds == 2
    assert (timed["a"].ratio, timed["a"].low, timed["a"].high) == (1.0, 1.0, 1.0)
    assert timed["b"].low <= timed["b"].ratio <= timed["b"].high
    # Three to warm up and one to tell the length of a turn, then in turns.
    assert calls == ["a"] * 4 + ["b"] * 4 + ["a", "b", "b", "a"]


def test_contenders_that_rest_give_back_their_memory_behind_each_turn():
    calls = []
    works = {"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}
    rests = {"a": lambda: calls.append("rest")}
    compared(works, Pace(rounds=2, turn=0.0), Processes(), rests)
    again = ["a"] * 3
    first = [*again, "a", "rest"], ["b"] * 4
    turns = [*again, "a", "rest"], ["b"], ["b"], [*again, "a", "rest"]
    assert calls == [call for part in (*first, *turns) for call in part]


def test_a_stopwatch_adds_up_laps():
    watch = Stopwatch(CPU)
    for _ in range(2):
        with watch.lap("sleep"):
            time.sleep(0.01)
    assert 0.02 <= watch.seconds()["sleep"] < 1.0
    watch.clear()
    assert watch.seconds() == {}


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"models": ("mpobert-13",)}, "got mpobert-13. Did you mean"),
        ({"models": ()}, "models must be some of"),
        ({"formats": ("fp8",)}, "formats must be some of fp16, bf16, fp32, tf32, got fp8"),
        ({"rounds": 0}, "rounds must be an integer >= 1, got 0"),
        ({"seconds": -1.0}, "seconds must be a number of seconds from 0 on, got -1.0"),
    ],
)
def test_impossible_options(changed, text):
    with pytest.raises(ConfigError) as caught:
        options(**changed)
    assert text in str(caught.value)


def test_impossible_sections(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match=r"got 'netwerk'. Did you mean 'network'"):
        run_bench(["netwerk"], options(), tmp_path, device=CPU)
    several = Processes(0, 2)
    with pytest.raises(ConfigError, match=r"got network with 2. Run those without torchrun"):
        run_file._chosen(["network", "scaling"], several)
    assert run_file._chosen([], several) == ["parts", "scaling"]


def test_the_command_writes_a_record_and_a_picture(corpus, tmp_path):
    command = ["bench", "optimizer", "parts", "--out", str(tmp_path), "--device", "cpu", *WORDS]
    command += ["--model", "mpobert-12", "--format", "bf16", "--rounds", "1", "--turn", "0"]
    command += ["--data", str(corpus.folder)]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    assert "optimizer, mpobert-12, CPU" in result.output
    saved = json.loads((tmp_path / "bench.json").read_text())
    assert saved["format"] == "mpobert-bench"
    assert "share_of_peak" in saved["numbers"]
    assert saved["rows"][0]["command"].startswith(
        "mpobert bench optimizer parts model.num_layers=2"
    )
    assert saved["rows"][0]["settings"]["micro_batch"] == 4
    assert (tmp_path / "bench.png").stat().st_size > 1000
    figure = picture(Record.read(tmp_path / "bench.json"))
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["optimizer", "parts"]
    failed = CliRunner().invoke(app, ["bench", "speed", "--out", str(tmp_path)])
    assert failed.exit_code == 2
    assert "a section must be one of network" in failed.output
    wrong = CliRunner().invoke(app, ["bench", "model=mpobert-12", "--out", str(tmp_path)])
    assert wrong.exit_code == 2
    assert "--model mpobert-12" in wrong.output


def test_a_picture_needs_measurements():
    with pytest.raises(ConfigError, match="record must have measurements, got none"):
        picture(Record([]))


@pytest.mark.slow
def test_scaling_and_parts_under_torchrun(corpus, tmp_path):
    base = ["-m", "mpobert_plugin.cli", "bench", *WORDS, "--model", "mpobert-12"]
    base += ["--format", "fp32", "--rounds", "1", "--turn", "0", "--device", "cpu"]
    base += ["--data", str(corpus.folder), "--accumulation", "2"]
    one, two = tmp_path / "one", tmp_path / "two"
    run_bench(["scaling"], options(data=corpus.folder, formats=("fp32",)), one, device=CPU)
    run = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port"]
    run += ["29673", *base, "--out", two, "--against", one / "bench.json"]
    subprocess.run(run, check=True, timeout=170)
    rows = Record.read(two / "bench.json").rows
    assert {(row["section"], row["world_size"]) for row in rows} == {("parts", 2), ("scaling", 2)}
    assert all("values" in row for row in rows)
    cases = {(row["section"], row["case"]): row["values"] for row in rows}
    assert cases["parts", "fp32, mpo"]["mpo"]["ms"]["all_reduce"] > 0
    assert cases["scaling", "fp32, mpo"]["mpo"]["beside"] == 1


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
# torch warns of what its own compiler does, and of the TF32 that it was told not to use.
@pytest.mark.filterwarnings("ignore")
def test_a_gpu_is_measured_in_every_section(tmp_path):
    words = [word for word in WORDS if "hidden_size" not in word and "intermediate" not in word]
    words += ["model.hidden_size=64", "model.intermediate_size=128"]
    command = ["bench", *words, "--out", str(tmp_path), "--model", "mpobert-12"]
    command += ["--format", "fp16", "--rounds", "2", "--turn", "0.05", "--accumulation", "2"]
    command += ["--seconds", "40"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    rows = {(row["section"], row["case"]): row for row in Record.read(tmp_path / "bench.json").rows}
    assert {section for section, _ in rows} == set(SECTIONS)
    counted = rows["optimizer", "operations, launches and waits"]["values"]
    assert counted["ours"]["host_waits"] == 0 < counted["ours"]["launches"]
    assert counted["one by one"]["host_waits"] > 0
    assert torch.cuda.get_sync_debug_mode() == 0
    alone = rows["memory", "fp16, 1 in a step, mpo"]["values"]["mpo"]
    assert alone["memory_gib"] > alone["above_gib"] > 0
    parts = rows["parts", "fp16, mpo"]["values"]["mpo"]["ms"]
    assert min(parts[name] for name in ("rebuilding", "micro_batches", "way_back")) > 0
    assert rows["network", "fp16, 1 micro-batch"]["settings"]["compile"] == "layers"
