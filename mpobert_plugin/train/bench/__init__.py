"""How fast pre-training is on a machine, beside what else could be used there."""

from __future__ import annotations

from mpobert_plugin.train.bench.options import BenchOptions
from mpobert_plugin.train.bench.picture import picture
from mpobert_plugin.train.bench.record import Record
from mpobert_plugin.train.bench.run import SECTIONS, run_bench

__all__ = ["SECTIONS", "BenchOptions", "Record", "picture", "run_bench"]
