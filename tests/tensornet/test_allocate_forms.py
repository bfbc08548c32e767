"""What `allocate` takes: mappings, sequences, stacks, networks; and what it refuses."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
import torch

import tensornet as tn
from tensornet import errors, shares, threads
from tensornet.backend import load_backend
from tensornet.fronts import front_of

RNG = np.random.default_rng(7)
ONE, TWO = RNG.standard_normal((32, 32)), RNG.standard_normal((32, 64))


def bonds(allocation):
    return [(a.bonds, a.n_params) for a in allocation]


def test_sequences_stacks_and_mappings_agree():
    named = tn.allocate({"a": ONE, "b": ONE[::-1]}, ratio=0.5, shape=2)
    listed = tn.allocate([ONE, ONE[::-1]], ratio=0.5, shape=2)
    stacked = tn.allocate(np.stack([ONE, ONE[::-1]]), ratio=0.5, shape=2)
    assert bonds(named) == bonds(listed) == bonds(stacked)
    assert listed[0] == listed["0"]
    assert listed[-1].name == "1"
    assert len(listed) == 2


def test_a_network_stands_for_its_matrix():
    network = tn.mpo(ONE, 3)
    by_network = tn.allocate({"a": network, "b": tn.mpo(ONE, 1)}, ratio=0.9, keep_dense=False)
    by_matrix = tn.allocate(
        {"a": ONE, "b": ONE}, ratio=0.9, shape={"a": 3, "b": 1}, keep_dense=False
    )
    assert bonds(by_network) == bonds(by_matrix)
    zero = tn.allocate([tn.mpo(np.zeros((16, 16)), 2)], max_params=100)
    assert zero[0].relative_error == 0.0


def test_absolute_errors_favour_large_entries():
    Ws = {"small": ONE, "large": 100.0 * ONE[::-1]}
    relative = tn.allocate(Ws, ratio=0.5, shape=2)
    absolute = tn.allocate(Ws, ratio=0.5, shape=2, measure="absolute")
    assert absolute["large"].n_params > relative["large"].n_params
    assert absolute["small"].n_params < relative["small"].n_params


def test_weights_by_place():
    even = tn.allocate([ONE, ONE], ratio=0.5, shape=2, weights=[1, 1])
    tilted = tn.allocate([ONE, ONE], ratio=0.5, shape=2, weights=[9.0, 1.0])
    assert tilted[0].n_params > even[0].n_params
    assert tilted[0].weight == 9.0


REFUSED = [
    ({1: ONE}, {}, errors.OptionError, "Ws must have names as keys, got 1"),
    ("ab", {}, errors.OptionError, "Ws must be a mapping or a sequence of matrices, got str"),
    (ONE, {}, errors.OptionError, "a sequence of matrices, got ndarray of shape"),
    ([], {}, errors.OptionError, "Ws must hold at least one matrix, got none"),
    ([ONE], {"keep_dense": 1}, errors.OptionError, "keep_dense must be True or False, got 1"),
    ([ONE], {"weights": {"x": 1}}, errors.OptionError, "weights must name matrices, got 'x'"),
    ([ONE], {"weights": [1, 2]}, errors.OptionError, "weights must have 1 value, .* got 2"),
    ([ONE], {"weights": 3.0, "shape": 2}, None, ""),
    (
        [ONE],
        {"weights": [0]},
        errors.OptionError,
        r"weights\[0\] must be a positive number, got 0",
    ),
    ([ONE], {"weights": [True]}, errors.OptionError, "be a positive number, got True"),
    ([ONE], {"weights": [np.inf]}, errors.OptionError, "be a positive number, got inf"),
    ([tn.mpo(ONE, 2)], {"shape": 2}, errors.ShapeError, "be left out for an MPO, which has one"),
    ([ONE[0]], {}, errors.ShapeError, r"Ws\[0\] must have 2 dimensions"),
]


@pytest.mark.parametrize(("Ws", "options", "kind", "text"), REFUSED)
def test_refusals(Ws, options, kind, text):
    if kind is None:
        assert tn.allocate(Ws, ratio=0.5, **options).n_params <= 512
        return
    with pytest.raises(kind, match=text):
        tn.allocate(Ws, ratio=0.5, **options)


@pytest.mark.parametrize("key", ["x", 5, -3])
def test_unknown_places(key):
    with pytest.raises(errors.OptionError, match="be a name or a place of one of 2 matrices"):
        tn.allocate([ONE, TWO], ratio=0.5)[key]


@pytest.mark.parametrize("limit", [{"rtol": 0.3}, {"max_params": 300}, {"ratio": 0.5}])
@pytest.mark.parametrize("measure", ["relative", "absolute"])
def test_matrices_without_a_norm_take_the_least(limit, measure):
    W = np.random.default_rng(0).normal(size=(16, 16)) * np.exp(-np.arange(16) / 3.0)
    found = tn.allocate({"zero": np.zeros((16, 16)), "w": W}, **limit, measure=measure)
    assert found["zero"].bonds == (1,) * (found["zero"].layout.n_sites - 1)
    assert found["zero"].relative_error == 0.0
    assert found["w"].relative_error <= 0.3
    nothing = tn.allocate([np.zeros((4, 4))], rtol=0.5, measure=measure)
    assert nothing.error == 0.0


@pytest.mark.parametrize("keep_dense", [True, False])
@pytest.mark.parametrize("budget", [250, 400, 700, 1000])
def test_the_best_of_all_ways_to_begin_is_taken(budget, keep_dense):
    rng = np.random.default_rng(2)
    decays = (1.0, 4.0, 30.0)
    Ws = [rng.normal(size=(16, 24)) * np.exp(-np.arange(24) / decay) for decay in decays]
    fronts = [front_of(W, tn.matrix_layout(16, 24, 3), load_backend("numpy")) for W in Ws]
    factors = [0.2, 0.3, 0.5]
    found = shares.within_budget(fronts, factors, budget, keep_dense=keep_dense)
    hulls = [front.hull(keep_dense=keep_dense) for front in fronts]
    starts = [shares._climbed(hulls, factors, budget, 0.0)]
    for cap in range(1, 20):
        even = [shares._capped(front, cap, keep_dense=keep_dense) for front in fronts]
        if sum(choice.params for choice in even) <= budget:
            starts.append(even)
            assert found.error <= sum(f * c.loss for f, c in zip(factors, even, strict=True))
    ends = [
        shares._filled(fronts, factors, start, budget, keep_dense=keep_dense).error
        for start in (starts[0], starts[-1])
    ]
    assert found.error <= min(ends)
    assert found.params <= budget


@pytest.mark.parametrize("share", [0.2, 0.4, 0.6, 0.8])
@pytest.mark.parametrize(("size", "cap"), [((29, 23), 6), ((17, 35), 3), ((7, 11), 2), ((5, 5), 1)])
def test_bounds_hold_for_the_rounding_of_padded_networks_that_were_cut(size, cap, share):
    W = np.random.default_rng(5).normal(size=size)
    W[-1] = 0.0  # what is cut leaves the more in the padding beside it
    network = tn.mpo(W, 4, max_bond=cap)
    assert network.layout.padded
    least = sum(network.layout.site_dims)
    budget = least + int(share * (network.n_params - least))
    (row,) = tn.allocate([network], max_params=budget, keep_dense=False)
    rounded = network.round(bonds=row.bonds)
    assert rounded.n_params == row.n_params
    dense = network.to_matrix()
    error = np.linalg.norm(rounded.to_matrix() - dense) / np.linalg.norm(dense)
    assert error <= row.relative_error * (1 + 1e-9) + 1e-12


def test_a_network_that_lies_in_its_padding_alone_is_zero():
    cores = [np.zeros((1, 2, 2, 1)), np.zeros((1, 3, 3, 1))]
    cores[0][0, 1, 1, 0] = cores[1][0, 2, 2, 0] = 1.0
    (row,) = tn.allocate([tn.MPO(cores, 5, 5)], max_params=20, keep_dense=False)
    assert row.relative_error == 0.0


def test_a_padded_network_that_was_not_cut_gets_the_bounds_of_its_matrix():
    W = np.random.default_rng(6).normal(size=(29, 23))
    network = tn.mpo(W, 3)
    ours = tn.allocate([network], max_params=300, keep_dense=False)
    theirs = tn.allocate([W], max_params=300, shape=3, keep_dense=False)
    assert bonds(ours) == bonds(theirs)
    assert ours.error == pytest.approx(theirs.error, rel=1e-9)


def test_libraries_and_lazy_mappings_get_the_same_bonds(monkeypatch):
    """Matrices in memory are looked at side by side, others one at a time as they are asked for."""
    rng = np.random.default_rng(0)
    held = {f"m{k}": rng.normal(size=(48, 48)).astype("float32") for k in range(4)}
    monkeypatch.setattr(threads, "_WORTH", 1)

    class Lazy(Mapping):
        asked = ()

        def __getitem__(self, name):
            self.asked += (name,)
            return held[name]

        def __iter__(self):
            return iter(held)

        def __len__(self):
            return len(held)

    lazy = Lazy()
    tensors = {name: torch.from_numpy(W) for name, W in held.items()}
    expected = [a.bonds for a in tn.allocate(list(held.values()), ratio=0.5, shape=3)]
    for Ws in (lazy, held, tensors):
        assert [a.bonds for a in tn.allocate(Ws, ratio=0.5, shape=3)] == expected
    assert lazy.asked == tuple(held)
