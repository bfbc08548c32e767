"""``python -m mpobert_plugin`` is the command ``mpobert``."""

from __future__ import annotations

from mpobert_plugin.cli import app

if __name__ == "__main__":
    app()
