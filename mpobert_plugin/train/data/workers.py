"""Worker processes that end with the one that started them, and leave Ctrl-C to it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading


def begin_work() -> None:
    """Make a worker of this process; what a pool calls first in each of its processes."""
    # Processes are what is parallel here.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    # A terminal sends Ctrl-C to all of them; the parent ends the pool.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_follow, daemon=True).start()


def _follow() -> None:
    """End when the parent has ended, by whatever signal: the pool would wait for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
