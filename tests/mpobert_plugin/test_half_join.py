"""Matrices in half precision whose operands are kept: gradients are those of the plain way."""

from __future__ import annotations

import pytest
import torch

from mpobert_plugin.half_join import half_join
from mpobert_plugin.joining import Joining, join
from mpobert_plugin.rejoin import Rejoin

SHAPES = {
    "left first": ((2, 1), (4, 3, 2), (2, 3, 4), 24, 24, True),
    "right first": ((1, 2), (4, 3, 2), (2, 3, 4), 24, 24, False),
    "one each": ((1, 1, 1), (4, 3, 2), (2, 3, 4), 24, 24, True),
    "filled up": ((3,), (4, 3, 2), (2, 3, 4), 23, 21, True),
}


def pieces_of(how, left=True, right=True, rank=0):
    generator = torch.Generator().manual_seed(0)
    count, bond = sum(how.counts), 5
    (i1, i, i2), (j1, j, j2) = how.row_dims, how.col_dims

    def made(*shape):
        return torch.randn(shape, generator=generator).requires_grad_()

    return (
        made(len(how.counts), bond if left else 1, i, j, bond if right else 1),
        made(count, i1 * j1, bond) if left else None,
        made(count, bond, i2 * j2) if right else None,
        made(len(how.outputs), how.rows, rank) if rank else None,
        made(len(how.outputs), rank, how.cols) if rank else None,
    )


def joining(counts, row_dims, col_dims, rows, cols, left_first):
    outputs = tuple(range(sum(counts)))
    return Joining(
        counts, row_dims, col_dims, rows, cols, left_first, outputs, 0.5, torch.float16, half=True
    )


def gradients(pieces, matrices, create_graph=False, skip=()):
    generator = torch.Generator().manual_seed(1)
    grads = [torch.randn(m.shape, generator=generator).to(m.dtype) for m in matrices]
    used = [k for k in range(len(matrices)) if k not in skip]
    return torch.autograd.grad(
        [matrices[k] for k in used],
        [p for p in pieces if p is not None],
        [grads[k] for k in used],
        create_graph=create_graph,
    )


@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize("name", SHAPES)
def test_values_and_gradients_are_those_of_the_plain_way(name, rank):
    how = joining(*SHAPES[name])
    pieces = pieces_of(how, rank=rank)
    found, wanted = half_join(pieces, how), Rejoin.apply(*pieces, how).unbind(0)
    for one, right in zip(found, wanted, strict=True):
        assert torch.equal(one, right)
    for one, right in zip(gradients(pieces, found), gradients(pieces, wanted), strict=True):
        assert torch.equal(one, right)


@pytest.mark.parametrize(("left", "right"), [(True, False), (False, True), (False, False)])
def test_ends_of_a_chain(left, right):
    dims = (4 if left else 1, 3, 2 if right else 1)
    how = joining((2,), dims, dims, dims[0] * dims[1] * dims[2], dims[0] * dims[1] * dims[2], left)
    pieces = pieces_of(how, left, right)
    found, wanted = half_join(pieces, how), Rejoin.apply(*pieces, how).unbind(0)
    for one, right_one in zip(gradients(pieces, found), gradients(pieces, wanted), strict=True):
        assert torch.equal(one, right_one)


def test_a_matrix_that_nothing_reads_has_no_part():
    how = joining(*SHAPES["filled up"])
    pieces = pieces_of(how)
    found = gradients(pieces, half_join(pieces, how), skip=(1,))
    wanted = gradients(pieces, Rejoin.apply(*pieces, how).unbind(0), skip=(1,))
    for one, right in zip(found, wanted, strict=True):
        assert torch.equal(one, right)
    # The chains of that matrix.
    assert not found[1][1].any()
    assert found[1][0].any()


def test_gradients_of_gradients_follow_the_operands():
    how = joining(*SHAPES["left first"])
    pieces = pieces_of(how)
    first = gradients(pieces, half_join(pieces, how), create_graph=True)
    found = torch.autograd.grad(first[0].square().sum(), pieces[1])[0]
    exactly = Joining(*[getattr(how, k) for k in how.__dataclass_fields__][:-2], torch.float32)
    first = gradients(pieces, join(*pieces, exactly).unbind(0), create_graph=True)
    wanted = torch.autograd.grad(first[0].square().sum(), pieces[1])[0]
    assert wanted.any()
    assert float((found - wanted).norm() / wanted.norm()) < 5e-3


def test_what_is_kept_is_unpacked_once():
    how = joining(*SHAPES["left first"])
    pieces, unpacked = pieces_of(how), []

    def unpack(number_and_tensor):
        unpacked.append(number_and_tensor[0])
        return number_and_tensor[1]

    count = iter(range(100))
    with torch.autograd.graph.saved_tensors_hooks(lambda x: (next(count), x), unpack):
        matrices = half_join(pieces, how)
    gradients(pieces, matrices)
    assert len(unpacked) == len(set(unpacked)) > 0
