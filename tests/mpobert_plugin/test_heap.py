"""Memory of a conversion: bonds first, and freed memory goes back."""

from __future__ import annotations

import ctypes
import sys
from typing import Any

import pytest

import mpobert_plugin as mp
from mpobert_plugin import heap
from mpobert_plugin.init import decomposed
from tests.mpobert_plugin.models import tiny_bert


def test_bonds_are_looked_for_before_a_bank_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def noted(name: str) -> None:
        real: Any = getattr(decomposed, name)

        def wrapped(*args: Any) -> Any:
            seen.append(name)
            return real(*args)

        monkeypatch.setattr(decomposed, name, wrapped)

    noted("bonds_of")
    noted("stacked")
    mp.convert(tiny_bert(), n=3, rtol={"query": 0.5, "key": 0.5}, gauge="central")
    assert seen == ["bonds_of"] * 2 + ["stacked"] * 6
    seen.clear()
    mp.convert(tiny_bert(), n=3, max_bond=4)
    assert seen == ["stacked"] * 6


def test_freed_memory_goes_back_where_the_system_can(monkeypatch: pytest.MonkeyPatch) -> None:
    assert heap.give_back() is hasattr(ctypes.CDLL(None), "malloc_trim")
    monkeypatch.setattr(sys, "platform", "win32")
    assert heap.give_back() is False
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    assert heap.give_back() is False
