"""A wheel's own library on one thread: for small matrices, while it works, in any order."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from threadpoolctl import ThreadpoolController

import tensornet as tn
from tensornet import lapack_threads
from tensornet.lapack_threads import one_thread


class Library:
    """Stands for the library in a wheel, which not every machine has."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.seen: list[int] = []

    def get_num_threads(self) -> int:
        return self.threads

    def set_num_threads(self, number: int) -> None:
        self.threads = number
        self.seen.append(number)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    made = Library(4)
    monkeypatch.setattr(lapack_threads, "_library", lambda wheel: made)
    return made


def test_small_matrices_have_one_thread_and_the_others_come_back(library: Library) -> None:
    with one_thread(8):
        assert library.threads == 1
    assert library.threads == 4


def test_large_matrices_keep_all_threads(library: Library) -> None:
    with one_thread(1024):
        assert library.threads == 4
    assert library.seen == []


def test_calls_within_calls_bring_the_threads_back_once(library: Library) -> None:
    with one_thread(8):
        with one_thread(8):
            pass
        assert library.threads == 1
    assert library.seen == [1, 4]


def test_an_error_brings_them_back_too(library: Library) -> None:
    with pytest.raises(KeyError), one_thread(8):
        raise KeyError
    assert library.threads == 4


def test_calls_of_several_threads_overlap(library: Library) -> None:
    meeting = threading.Barrier(3, timeout=20)

    def work() -> None:
        with one_thread(8):
            meeting.wait()

    others = [threading.Thread(target=work) for _ in range(3)]
    for other in others:
        other.start()
    for other in others:
        other.join()
    assert library.threads == 4
    assert library.seen == [1, 4]


def test_one_thread_alone_is_left_as_it_is(library: Library) -> None:
    library.threads = 1
    with one_thread(8):
        pass
    assert library.seen == []


def test_a_decomposition_leaves_all_libraries_as_they_were() -> None:
    def threads() -> list[tuple[str, Any]]:
        found = ThreadpoolController().lib_controllers
        return [(Path(one.filepath).name, one.get_num_threads()) for one in found]

    tn.mpo(np.eye(64), max_bond=4)  # loads them
    before = threads()
    tn.mpo(np.random.default_rng(0).standard_normal((128, 128)), max_bond=4)
    assert threads() == before


def test_a_library_that_both_share_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lapack_threads, "_library", lambda wheel: None)
    with one_thread(8):
        pass


@pytest.mark.parametrize("wheel", ["numpy", "scipy"])
def test_each_wheel_has_its_own_library(wheel: str) -> None:
    library = lapack_threads._library(wheel)
    if library is None:
        pytest.skip(f"{wheel} brings no library of its own here")
    before = library.get_num_threads()
    library.set_num_threads(2)
    try:
        with one_thread(8, wheel):
            assert library.get_num_threads() == 1
        assert library.get_num_threads() == 2
    finally:
        library.set_num_threads(before)
    assert wheel in library.filepath
