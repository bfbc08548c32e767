"""``python -m tensornet`` is the command ``tensornet``."""

from __future__ import annotations

from tensornet.cli import app

if __name__ == "__main__":
    app()
