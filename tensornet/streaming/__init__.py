"""Whole files of weights, one matrix in memory at a time: decompose, resume, reconstruct."""

from __future__ import annotations

from tensornet.streaming.options import Options
from tensornet.streaming.rebuild import load_chain, reconstruct_file
from tensornet.streaming.summary import Row, Summary, inspect_file
from tensornet.streaming.work import decompose_file

__all__ = [
    "Options",
    "Row",
    "Summary",
    "decompose_file",
    "inspect_file",
    "load_chain",
    "reconstruct_file",
]
