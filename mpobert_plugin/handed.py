"""What a reader is handed for a forward, in each thread for itself."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mpobert_plugin.lazy import Lazy, Values


class Slot(threading.local):
    """A place for values that every thread sees empty until it puts something in.

    Copies start empty: what is handed out belongs to one forward and its graph.
    """

    def __init__(self) -> None:
        # threading.local calls this once in every thread, so that the name is always there.
        self.values: Values | Lazy | None = None

    def __reduce__(self) -> tuple[type[Slot], tuple[()]]:
        return Slot, ()
