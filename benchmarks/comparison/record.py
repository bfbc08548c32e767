"""The results of many runs as one small file, to go on from on another machine.

$ python -m benchmarks.comparison.record OUT benchmarks/comparison/record.json --collect
$ python -m benchmarks.comparison.record OUT benchmarks/comparison/record.json

writes the file, or the results that it has into the folders of their runs, where `run` finds them
done. An ALBERT from which models start that are not all there is left out, so that it is trained
again, in the same way: they need its weights.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import fields
from pathlib import Path
from typing import Any

from benchmarks.comparison.models import SOURCE, STARTED
from benchmarks.comparison.recipe import RECIPES
from benchmarks.comparison.tasks import RESULT, Task, middle_rate
from mpobert_plugin.train.aside import write_json

_FIELDS = tuple(entry.name for entry in fields(Task))


def collect(out: Path, record: Path) -> int:
    """Return how many results there are, after writing them into one file."""
    found = [json.loads(file.read_text("utf-8")) for file in sorted(out.glob(f"*/{RESULT}"))]
    write_json(record, {"results": found})
    return len(found)


def restore(out: Path, record: Path) -> int:
    """Return how many results were written into the folders of their runs."""
    rows = json.loads(record.read_text("utf-8"))["results"]
    kept = [row for row in rows if not _is_needed(row, rows)]
    for row in kept:
        task = Task(**{name: row[name] for name in _FIELDS})
        (out / task.name).mkdir(parents=True, exist_ok=True)
        write_json(out / task.name / RESULT, row)
    return len(kept)


def _is_needed(row: dict[str, Any], rows: list[dict[str, Any]]) -> bool:
    """Tell whether a run that is not done starts from the weights of this one."""
    if row["model"] != SOURCE or row["stage"] not in ("tune", "main"):
        return False
    tuned = row["stage"] == "tune"
    if tuned and row["rate"] != middle_rate(row["recipe"]):
        # Nothing starts from an ALBERT of another rate.
        return False
    name = Task(**{field: row[field] for field in _FIELDS}).name
    started = [other for other in rows if other["needs"] == name]
    rates = len(RECIPES[row["recipe"]].rates) if tuned else 1
    return len(started) < len(STARTED) * rates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="a folder for each run")
    parser.add_argument("record", type=Path)
    parser.add_argument("--collect", action="store_true", help="write the record")
    given = parser.parse_args()
    work = collect if given.collect else restore
    print(work(given.out, given.record), "results")


if __name__ == "__main__":
    main()
