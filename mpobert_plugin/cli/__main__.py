"""``python -m mpobert_plugin.cli``, as which torchrun starts the program."""

from __future__ import annotations

from mpobert_plugin.cli import app

app()
