"""The comparison on real text: equal parameters, a queue that goes on, tables of what it found."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.comparison import corpus as corpus_module
from benchmarks.comparison import models, plateau, recipe, record, run, show, tasks, worker
from mpobert_plugin.errors import DivergenceError

TINY = models.Sizes(
    layers=2, hidden=16, inner=32, heads=2, embedding=8, vocabulary=96, positions=32, wide=(16, 2)
)
SETTINGS = {
    "batch_size": 8,
    "lr": 1e-2,
    "length": 32,
    "masked_most": 5,
    "precision": "fp32",
    "log_every": 2,
    "eval_batches": 1,
}
RECIPE = recipe.Recipe("tiny", 8, 4, 4, sizes=TINY, settings=SETTINGS, rates=(1.0, 2.0))
NAMES = ("albert", "mpo5-from-albert")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("comparison")
    docs = [f"The number {k} is here. After it comes {k + 1}. Then {k + 2}." for k in range(60)]
    (folder / "text.txt").write_text("\n\n".join(docs))
    corpus_module.prepare(folder / "text.txt", folder / "prepared", size=90, every=6)
    return folder / "prepared"


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setitem(recipe.RECIPES, "tiny", RECIPE)


def test_parts_have_each_document_once(corpus):
    train, held_out = (worker.open_corpus(corpus / part) for part in ("train", "held-out"))
    assert (len(train.documents) - 1, len(held_out.documents) - 1) == (50, 10)
    assert train.vocab_size == held_out.vocab_size <= 90


def test_six_models_have_as_many_parameters_within_one_percent():
    found = models.counts(models.Sizes())
    assert found["mpo5"] == 2_588_034
    matched = [found[name] for name, kind in models.MODELS.items() if kind.matched]
    assert len(matched) == 6
    assert max(matched) / min(matched) < 1.01
    assert found["albert"] < min(matched) < max(matched) < found["bert"]


def test_four_layers_match_too():
    assert models.counts(recipe.RECIPES["four-layers"].sizes)["mpo5"] == 2_390_658


def test_models_that_cannot_match_are_named():
    with pytest.raises(ValueError, match=r"parameters must be within 1% of .*'albert-wide'"):
        models.counts(dataclasses.replace(models.Sizes(), wide=(1024, 16)))


def test_built_models_have_the_planned_counts_and_share_what_they_say():
    sizes = models.Sizes()
    found = models.counts(sizes)
    source = models.build("albert", sizes, seed=0)
    for name in ("mpo3", "shared-lora", "mpo5-from-albert"):
        model = models.build(name, sizes, seed=0, source=source)
        assert models.count(model) == found[name]
        models.mp.assert_shared(model)


def rates(value):
    return dict.fromkeys(models.MODELS, value)


def asks_to_stop(text):
    """Stand for a deadline that comes with a line of the log."""
    if text.startswith("step 4/"):
        signal.raise_signal(signal.SIGTERM)


def test_models_of_one_width_start_with_the_same_deviations():
    small = {"hidden": 64, "inner": 128, "heads": 2}
    sizes = dataclasses.replace(TINY, **small, std=0.06, branch=0.25)
    for name in ("bert", "albert", "mpo5", "mpo3", "shared-lora"):
        model = models.build(name, sizes, seed=0)
        plain = model if name in ("bert", "albert") else models.mp.merge(model)
        for role in (*models.SQUARE, *models.FEED_FORWARD):
            wanted = 0.06 * (0.25 if role in models.BRANCH_ENDS else 1.0)
            for linear in models.linears_of(plain, role).values():
                assert float(linear.weight.detach().std()) == pytest.approx(wanted, rel=0.05)


def test_the_queue_goes_on_after_a_stop(corpus, tiny, tmp_path):
    out, said = tmp_path / "out", []
    place = worker.Place(corpus, out, "cpu")
    late = dataclasses.replace(place, deadline=time.time() - 1.0)
    plan = [task for task in tasks.main_tasks("tiny", 1, rates(1.0)) if task.model in NAMES]
    assert [task.needs for task in plan] == ["", plan[0].name]
    assert run.drain(plan, late, said.append) == 2
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker, "_quiet", asks_to_stop)
        assert run.drain(plan, place, said.append) == 2
    # The one that starts from the other had to wait.
    assert said[-1] == f"left: {plan[0].name}"
    assert worker.records(out / plan[0].name, "train")[-1]["step"] == 4
    assert run.drain(plan, place, said.append) == 0
    events = worker.records(out / plan[0].name, "event")
    assert any(re.search("goes on after step [45] of 8", event["text"]) for event in events)
    assert said[-1].startswith(f"done: {plan[1].name}  held-out tokens ")
    kept = [path.name for path in out.glob("*/checkpoints/step-*/*.safetensors")]
    assert kept == ["model.safetensors"]  # of the source alone
    assert run.drain(plan, late, said.append) == 0


def test_a_deadline_ends_a_run_with_a_checkpoint(corpus, tiny, tmp_path):
    place = worker.Place(corpus, tmp_path, "cpu", deadline=time.time() + 1.0)
    task = tasks.Task("main", "tiny", "bert", 0, 5000)
    assert worker.run_task(task, RECIPE, place) == "left"
    assert list((tmp_path / task.name / "checkpoints").glob("step-*"))
    assert task.result(tmp_path) is None


def test_a_stopped_run_ends_where_an_undisturbed_one_does(corpus, tiny, tmp_path):
    task = tasks.Task("main", "tiny", "mpo3", 1, 8)
    found = []
    for name, say in (("whole", worker._quiet), ("cut", asks_to_stop)):
        place = worker.Place(corpus, tmp_path / name, "cpu")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(worker, "_quiet", say)
            first = worker.run_task(task, RECIPE, place)
        assert first == ("done" if name == "whole" else "left")
        run.drain([task], place, lambda _text: None)
        found.append(task.result(place.out)["held_out"])
    assert found[0] == found[1]


def test_rates_are_chosen_by_the_held_out_loss(tiny, tmp_path):
    with pytest.raises(SystemExit, match="18 runs of the stage tune are missing"):
        tasks.best_rates("tiny", tmp_path)
    for number, task in enumerate(tasks.tune_tasks("tiny")):
        folder = tmp_path / task.name
        folder.mkdir()
        held_out = {"held_out": {"loss": 5.0 - number % 2}} if task.model != "bert" else {}
        (folder / tasks.RESULT).write_text(json.dumps({**vars(task), **held_out}))
    chosen = tasks.best_rates("tiny", tmp_path)
    assert chosen == {**rates(2.0), "bert": 1.0}
    started = tasks.main_tasks("tiny", 5, chosen)[-1]
    assert (started.seed, started.needs) == (4, "tiny-main-albert-rate2-seed4")


def test_a_lost_run_is_a_result(corpus, tiny, monkeypatch, tmp_path):
    def lost(*_parts, **_options):
        raise DivergenceError("step 3: the loss is nan.")

    monkeypatch.setattr(worker, "pretrain", lost)
    task = tasks.Task("tune", "tiny", "bert", 0, 40)
    (tmp_path / task.name).mkdir()
    said = []
    assert run.drain([task], worker.Place(corpus, tmp_path, "cpu"), said.append) == 0
    assert said[-1] == f"failed: {task.name}: step 3: the loss is nan."
    assert "| tiny | bert | 0.01 | 40 | lost |" in show.trials_table(tmp_path, "tune")


def test_tables(corpus, tiny, tmp_path):
    place = worker.Place(corpus, tmp_path, "cpu")
    plan = [task for task in tasks.main_tasks("tiny", 2, rates(1.0)) if task.model == "mpo5"]
    others = [tasks.Task("main", "tiny", "bert", 0, 8), tasks.Task("speed", "tiny", "mpo5", 0, 4)]
    assert run.drain([*plan, *others], place, lambda _text: None) == 0
    text = show.markdown(tmp_path, "tiny")
    assert "8 steps, 0.0 million tokens a run, 1 runs at a time on one cpu." in text
    row = next(line for line in text.splitlines() if line.startswith("| MPOBERT, five cores |"))
    assert row.count("±") == 3
    assert "| 2 |" in row
    assert "minus MPOBERT, five cores" in text
    page = tmp_path / "page.md"
    page.write_text("# Title\n")
    for _ in range(2):
        show.main([str(tmp_path), "--recipe", "tiny", "--markdown", str(page)])
        assert page.read_text() == f"# Title\n\n{show.MARKS[0]}\n\n{text}\n{show.MARKS[1]}\n"


@pytest.mark.slow  # drawing takes longer than everything else here
def test_curves(corpus, tiny, tmp_path):
    task = tasks.Task("main", "tiny", "mpo5", 0, 8)
    run.drain([task], worker.Place(corpus, tmp_path, "cpu"), lambda _text: None)
    show.main([str(tmp_path), "--recipe", "tiny", "--picture", str(tmp_path / "a.png")])
    log = tmp_path / task.name / "log.jsonl"
    show.main([str(tmp_path), "--log", str(log), "--picture", str(tmp_path / "b.png")])
    assert min((tmp_path / name).stat().st_size for name in ("a.png", "b.png")) > 5000


@pytest.mark.slow  # each process imports everything anew
def test_several_runs_at_a_time(corpus, tiny, tmp_path):
    plan = [task for task in tasks.main_tasks("tiny", 1, rates(1.0)) if task.model in NAMES]
    place = worker.Place(corpus, tmp_path / "pool", "cpu", side_by_side=2)
    said = []
    late = dataclasses.replace(place, deadline=time.time() - 1.0)
    assert run.drain(plan, late, said.append) == 2
    assert run.drain(plan, place, said.append) == 0
    alone = worker.Place(corpus, tmp_path / "alone", "cpu")
    assert run.drain(plan, alone, said.append) == 0
    for task in plan:
        found = [task.result(place.out)["held_out"] for place in (place, alone)]
        assert found[0] == found[1]


def test_recipes_are_known_or_found_by_their_probes(tmp_path):
    with pytest.raises(SystemExit, match=r"recipe must be best or one of damped, .*, got 'wide'"):
        tasks.tasks_of("main", "wide", 5, tmp_path, tuned=False)
    plan = tasks.tasks_of("main", "damped", 5, tmp_path, tuned=False)
    assert len(plan) == len({task.name for task in plan}) == 45
    with pytest.raises(SystemExit, match="the stage probe lacks damped-probe-bert-rate1-seed100"):
        tasks.tasks_of("tune", "best", 5, tmp_path, tuned=False)
    probes = tasks.tasks_of("probe", "best", 5, tmp_path, tuned=False)
    for task, loss in zip(probes, (6.1, 6.9, 5.8, None), strict=True):
        (tmp_path / task.name).mkdir()
        found = {} if loss is None else {"held_out": {"masked_loss": loss}}
        (tmp_path / task.name / tasks.RESULT).write_text(json.dumps({**vars(task), **found}))
    assert {task.recipe for task in tasks.tasks_of("tune", "best", 5, tmp_path, True)} == {
        "more-steps"
    }


def test_every_recipe_gives_settings():
    for known in recipe.RECIPES.values():
        config = known.config(known.steps, seed=0, rate=2.0)
        assert config.lr == 2.0 * known.settings["lr"]
        assert config.length <= known.sizes.positions


def test_processors_are_shared_out_to_those_who_prepare_samples(monkeypatch):
    monkeypatch.setattr(run.os, "cpu_count", lambda: 16)
    found = [run.loaders("cuda", number) for number in (1, 2, 4, 8)]
    assert found == [12, 7, 3, 1]
    assert run.loaders("cpu", 1) == 0


def test_plateau_is_told_beside_the_entropy_of_the_tokens(corpus, tmp_path, capsys):
    sizes = ["layers=1", "hidden=16", "inner=16", "heads=2", "embedding=8", "vocabulary=96"]
    settings = ["steps=2", "batch_size=4", "micro_batch=4", "log_every=1", "std=0.1"]
    plateau.main([str(corpus), str(tmp_path / "run"), "bert", *sizes, *settings])
    tokens = Counter(worker.open_corpus(corpus / "train").tokens.tolist())
    wanted = sum(-n / tokens.total() * math.log(n / tokens.total()) for n in tokens.values())
    first, *lines = capsys.readouterr().out.splitlines()
    assert first == f"entropy of the tokens {wanted:.3f}"
    assert any(line.startswith("step 2/2  loss ") for line in lines)
    with pytest.raises(SystemExit, match=r"got \['rate=1'\]"):
        plateau.main([str(corpus), str(tmp_path / "run"), "bert", "rate=1"])


def test_a_record_takes_results_to_another_machine(tiny, tmp_path, capsys):
    there, here, file = tmp_path / "there", tmp_path / "here", tmp_path / "record.json"
    made = tasks.main_tasks("tiny", 2, dict.fromkeys(models.MODELS, 1.0))
    left = ("mpo5-from-albert", 1)
    for task in made:
        if (task.model, task.seed) != left:
            row = {**vars(task), "held_out": {"loss": 1.0}, "curve": {"4": 2.0}}
            (there / task.name).mkdir(parents=True)
            (there / task.name / tasks.RESULT).write_text(json.dumps(row))
    assert record.collect(there, file) == len(made) - 1
    # The second ALBERT has to be trained again: a run that is left needs its weights.
    assert record.restore(here, file) == len(made) - 2
    missing = [(t.model, t.seed) for t in made if t.result(here) is None]
    assert sorted(missing) == [("albert", 1), left]
    assert made[0].result(here) == made[0].result(there)


def test_what_is_recorded_can_be_gone_on_with(tmp_path):
    rows = json.loads(Path(record.__file__).with_name("record.json").read_text())["results"]
    fewer = tmp_path / "fewer.json"
    fewer.write_text(
        json.dumps({"results": [row for row in rows if row["model"] != "albert-again"]})
    )
    record.restore(tmp_path, fewer)
    plan = tasks.tune_tasks("whole-trials")
    left = [task for task in plan if task.result(tmp_path) is None]
    # Each task that is left starts from nothing, or from one that is left too.
    names = {task.name for task in left}
    assert {task.model for task in left} == {"albert", "albert-again"}
    assert all(not task.needs or task.needs in names for task in left)


def test_what_is_recorded_is_the_whole_comparison(tmp_path):
    record.restore(tmp_path, Path(record.__file__).with_name("record.json"))
    name = tasks.best_recipe(tmp_path)
    assert recipe.RECIPES["whole-trials"].settings == recipe.RECIPES[name].settings
    plan = tasks.tune_tasks("whole-trials")
    plan += tasks.main_tasks("whole-trials", 5, tasks.best_rates("whole-trials", tmp_path))
    assert [task.name for task in plan if task.result(tmp_path) is None] == []


def test_what_is_recorded_belongs_to_the_recipes_that_are_there():
    file = Path(record.__file__).with_name("record.json")
    rows = json.loads(file.read_text())["results"]
    for row in rows:
        assert row["recipe"] in recipe.RECIPES
        assert row["model"] in models.MODELS
    steps = {row["steps"] for row in rows if row["stage"] == "main"}
    assert steps == {recipe.RECIPES["whole-trials"].steps}
