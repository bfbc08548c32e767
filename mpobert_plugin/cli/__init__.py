"""The command line ``mpobert``: one file for each group of commands."""

from __future__ import annotations

from mpobert_plugin.cli.app import app
from mpobert_plugin.cli.bench import bench
from mpobert_plugin.cli.change import convert, merge
from mpobert_plugin.cli.demo import demo
from mpobert_plugin.cli.look import account, describe, report
from mpobert_plugin.cli.pretraining import prepare, pretrain
from mpobert_plugin.cli.stability import stability
from mpobert_plugin.submodules import keep_public_names

keep_public_names(__name__)

__all__ = [
    "account",
    "app",
    "bench",
    "convert",
    "demo",
    "describe",
    "merge",
    "prepare",
    "pretrain",
    "report",
    "stability",
]
