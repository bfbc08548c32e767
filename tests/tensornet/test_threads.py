"""Pieces of work on several threads: order, errors, and the library's threads given back."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

import tensornet as tn
from tensornet.threads import AT_ONCE, side_by_side

SHAPE = ((4, 4, 4), (4, 4, 4))
MANY = 2**18  # elements said to be in a piece, so that few pieces are worth threads


def threads_of_blas() -> list[int]:
    return [found["num_threads"] for found in threadpool_info() if found["user_api"] == "blas"]


@pytest.fixture
def two_threads() -> object:
    with threadpool_limits(2, user_api="blas"):
        if max(threads_of_blas()) < 2:
            pytest.skip("the linear algebra library has one thread")
        yield


def test_results_come_in_order(two_threads: object) -> None:
    assert side_by_side(lambda k: k * k, range(20), size=MANY) == [k * k for k in range(20)]


def test_two_pieces_run_at_once(two_threads: object) -> None:
    meeting = threading.Barrier(2, timeout=20)
    assert len(side_by_side(lambda _: meeting.wait(), range(4), size=MANY)) == 4


def test_each_thread_has_a_library_of_one_and_the_others_come_back(two_threads: object) -> None:
    before = threads_of_blas()
    inside = side_by_side(lambda _: max(threads_of_blas()), range(4), size=MANY)
    assert inside == [1, 1, 1, 1]
    assert threads_of_blas() == before


def test_the_first_error_of_the_order_is_raised_and_the_threads_come_back(
    two_threads: object,
) -> None:
    before = threads_of_blas()

    def work(k: int) -> None:
        if k in {3, 5}:
            raise ValueError(str(k))

    with pytest.raises(ValueError, match="3"):
        side_by_side(work, range(8), size=MANY)
    assert threads_of_blas() == before
    assert side_by_side(lambda k: k, range(8), size=MANY) == list(range(8))


def test_a_caller_within_a_piece_works_alone(two_threads: object) -> None:
    def work(k: int) -> list[int]:
        return side_by_side(lambda j: j + k, range(3), size=MANY)

    assert side_by_side(work, range(4), size=MANY) == [[k, k + 1, k + 2] for k in range(4)]


def test_how_errors_of_numbers_are_treated_is_the_callers_choice(two_threads: object) -> None:
    def work(_: int) -> float:
        return float(np.float64(1.0) / np.zeros(1)[0])

    with np.errstate(divide="ignore"):
        assert side_by_side(work, range(4), size=MANY) == [np.inf] * 4
    with np.errstate(divide="raise"), pytest.raises(FloatingPointError):
        side_by_side(work, range(4), size=MANY)


@pytest.mark.parametrize("size", [1, AT_ONCE, 2 * AT_ONCE])
def test_small_and_huge_pieces_stay_on_this_thread(size: int) -> None:
    names = side_by_side(lambda _: threading.current_thread().name, range(3), size=size)
    assert set(names) == {threading.current_thread().name}


@pytest.mark.parametrize("options", [{}, {"max_bond": 5}, {"rtol": 0.3}, {"max_params": 20_000}])
def test_a_stack_is_the_same_whatever_the_number_of_threads(options: dict[str, float]) -> None:
    # Large enough to be shared out.
    stack = np.random.default_rng(0).standard_normal((20, 256, 256)).astype(np.float32)
    layout = ((4, 4, 4, 4), (4, 4, 4, 4))
    with threadpool_limits(1, user_api="blas"):
        alone = tn.mpo(stack, layout, **options)
    with threadpool_limits(2, user_api="blas"):
        shared = tn.mpo(stack, layout, **options)
    for a, b in zip(alone.cores, shared.cores, strict=True):
        np.testing.assert_array_equal(a[1:], b[1:])
    errors = [[c.relative_error for c in made.certificates[1:]] for made in (alone, shared)]
    assert errors[0] == errors[1]


def test_the_matrix_that_cannot_keep_a_promise_is_named(two_threads: object) -> None:
    stack = np.random.default_rng(0).standard_normal((20, 256, 256)).astype(np.float32)
    stack[7] = 0
    with pytest.raises(tn.errors.ToleranceError, match=r"W\[0\]"):
        tn.mpo(stack, ((4, 4, 4, 4), (4, 4, 4, 4)), rtol=1e-3, max_bond=2)
