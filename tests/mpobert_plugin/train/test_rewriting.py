"""Attention over lengths, and what is changed in the graphs of compiled layers."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import gelu, scaled_dot_product_attention

from mpobert_plugin.errors import ConfigError
from mpobert_plugin.train.attention import attention
from mpobert_plugin.train.rewriting import rewriting, rewritten

CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def parts(shape, dtype=torch.float32, device="cpu", seed=0):
    """Return queries, keys, values and a gradient, heads of a place side by side."""
    draw = torch.Generator().manual_seed(seed)
    batch, heads, length, size = shape
    made = [torch.randn(batch, length, heads, size, generator=draw) for _ in range(4)]
    return [x.to(device, dtype).transpose(1, 2) for x in made]


def by_mask(q, k, v, lengths, grad):
    """Return what torch finds in float64 with a mask, and the gradients."""
    wide = [x.detach().double().requires_grad_() for x in (q, k, v)]
    seen = torch.arange(q.shape[2], device=q.device) < lengths[:, None, None, None]
    out = scaled_dot_product_attention(*wide, attn_mask=seen)
    out.backward(grad.double())
    return [out.detach(), *(x.grad for x in wide)]


def by_lengths(q, k, v, lengths, grad):
    """Return what is found here, and the gradients."""
    own = [x.detach().requires_grad_() for x in (q, k, v)]
    out, _ = attention(*own, lengths, q.shape[-1] ** -0.5)
    out.backward(grad)
    return [out.detach(), *(x.grad for x in own)]


def off(found, expected):
    return float((found.double() - expected).norm() / expected.norm())


@pytest.mark.parametrize("shape", [(2, 3, 7, 16), (1, 1, 1, 32), (3, 2, 40, 64)])
def test_attention_over_lengths_is_attention_with_a_mask(shape):
    *qkv, grad = parts(shape)
    lengths = torch.arange(shape[0], dtype=torch.int32).add(1).clamp(max=shape[2])
    for found, expected in zip(
        by_lengths(*qkv, lengths, grad), by_mask(*qkv, lengths, grad), strict=True
    ):
        assert found.stride() == (shape[2] * shape[1] * shape[3], shape[3], shape[1] * shape[3], 1)
        assert torch.allclose(found.double(), expected, atol=1e-5)


def test_samples_without_a_key_find_zeros_and_have_zero_gradients():
    *qkv, grad = parts((2, 2, 5, 16))
    found = by_lengths(*qkv, torch.tensor([0, 5], dtype=torch.int32), grad)
    for one in found:
        assert not one[0].any()
        assert one[1].isfinite().all()


def test_the_operation_keeps_what_torch_asks_of_one():
    q, k, v, _ = parts((2, 2, 6, 16))
    own = [x.detach().requires_grad_() for x in (q, k, v)]
    lengths = torch.tensor([3, 6], dtype=torch.int32)
    torch.library.opcheck(attention, (*own, lengths, 0.25))


def traced(work, *inputs):
    """Return the names of what a compiled function calls after it was changed, and its values."""
    seen = []

    def backend(graph, _inputs):
        seen.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return graph.forward

    torch.compiler.reset()
    run = torch.compile(work, backend=rewriting(backend, 16), fullgraph=True, dynamic=False)
    return run(*inputs), " ".join(seen)


def masked(q, k, v, mask):
    return scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=0.0, scale=0.3)


def padding(lengths, length):
    seen = torch.arange(length) < torch.tensor(lengths)[:, None, None, None]
    return seen.expand(len(lengths), 1, length, length)


def test_masks_that_hide_the_ends_of_samples_become_lengths():
    q, k, v, _ = parts((2, 2, 6, 16), torch.bfloat16)
    mask = padding([4, 6], 6)
    found, names = traced(masked, q, k, v, mask)
    assert "mpobert.attention" in names
    assert "scaled_dot_product" not in names
    expected = masked(q.double(), k.double(), v.double(), mask)
    assert off(found, expected) < 5e-3


@pytest.mark.parametrize(
    "kind",
    ["no mask", "float32", "all queries differ", "other sizes", "dropout", "causal", "numbers"],
)
def test_other_attention_stays_as_it_is(kind):
    dtype = torch.float32 if kind == "float32" else torch.bfloat16
    q, k, v, _ = parts((2, 2, 6, 24 if kind == "other sizes" else 16), dtype)
    mask = None if kind in ("no mask", "causal") else padding([4, 6], 6)
    if kind == "all queries differ":
        mask = mask.contiguous()
    if kind == "numbers":
        mask = torch.zeros(2, 1, 6, 6, dtype=dtype)
    given = {"dropout_p": 0.1 * (kind == "dropout"), "is_causal": kind == "causal"}
    found, names = traced(
        lambda q, k, v, m: scaled_dot_product_attention(q, k, v, m, **given), q, k, v, mask
    )
    assert "mpobert.attention" not in names
    assert found.shape == q.shape


def by_tangent(x):
    return 0.5 * x * (1.0 + torch.tanh(0.79788456 * (x + 0.044715 * torch.pow(x, 3.0))))


@pytest.mark.parametrize("work", [by_tangent, lambda x: gelu(x, approximate="tanh")])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_gelu_without_a_tangent_is_the_same_with_its_gradient(work, dtype):
    x = torch.linspace(-9, 9, 401, dtype=torch.float64).to(dtype).requires_grad_()
    found, names = traced(work, x)
    assert "tanh" not in names
    (grad,) = torch.autograd.grad(found.sum(), x)
    exact = x.detach().double().requires_grad_()
    expected = by_tangent(exact)
    (right,) = torch.autograd.grad(expected.sum(), exact)
    near = {torch.float64: 1e-6, torch.float32: 2e-6, torch.bfloat16: 0.06}[dtype]
    assert torch.allclose(found.double(), expected, atol=near)
    assert torch.allclose(grad.double(), right, atol=near)


@pytest.mark.parametrize("work", [torch.tanh, lambda x: 1.0 - torch.tanh(x), gelu])
def test_other_functions_stay_as_they_are(work):
    x = torch.linspace(-2, 2, 9)
    found, names = traced(work, x)
    assert "sigmoid" not in names
    assert torch.equal(found, work(x))


def test_a_graph_that_has_nothing_of_it_is_the_same_object():
    graph = torch.fx.symbolic_trace(lambda x: x + 1)
    assert rewritten(graph, 16) is graph
    assert float(graph(torch.ones(()))) == 2.0


def in_place(x):
    y = x * 2
    y.mul_(0.5)
    torch.relu_(y)
    return y


def changed_before(x):
    u = x * 2
    t = torch.tanh(u)
    u += 1
    return (1 + t) * u


def changed_after(x):
    t = torch.tanh(x.detach())
    t[0] = 5.0
    return 1 + t + 0 * x


def no_gradient_of_a_tangent(x):
    with torch.no_grad():
        t = torch.tanh(x)
    return 1 + t + 0 * x


def no_gradient_of_a_sum(x):
    t = torch.tanh(x)
    with torch.no_grad():
        one = 1 + t
    return one + t


@pytest.mark.parametrize(
    "work",
    [
        in_place,
        changed_before,
        changed_after,
        no_gradient_of_a_tangent,
        no_gradient_of_a_sum,
        lambda x: 1 + torch.tanh(input=x),
        lambda x: gelu(input=x, approximate="tanh"),
        lambda x: torch.add(1, torch.tanh(x), alpha=2),
        lambda x: 1.0 + torch.tanh(x) * (1.0 + torch.tanh(x)),
    ],
)
def test_what_else_a_graph_does_stays_with_its_gradient(work):
    x = torch.linspace(-2, 2, 9, dtype=torch.float64).requires_grad_()
    found, _ = traced(work, x)
    expected = work(x)
    assert torch.allclose(found, expected)
    for one, right in zip(
        torch.autograd.grad(found.sum(), x), torch.autograd.grad(expected.sum(), x), strict=True
    ):
        assert torch.allclose(one, right)


def test_attention_by_names_stays_as_it_is():
    q, k, v, _ = parts((2, 2, 6, 16), torch.bfloat16)
    mask = padding([4, 6], 6)
    found, names = traced(
        lambda q, k, v, m: scaled_dot_product_attention(query=q, key=k, value=v, attn_mask=m),
        q, k, v, mask,
    )  # fmt: skip
    assert "mpobert.attention" not in names
    assert found.shape == q.shape


def test_other_shapes_are_refused_at_the_door():
    q, k, v, _ = parts((2, 2, 6, 16))
    lengths = torch.tensor([3, 6], dtype=torch.int32)
    for wrong in (
        (q, k[:, :, :4], v, lengths),
        (q, k, v, lengths[:1]),
        (q[0], k[0], v[0], lengths),
    ):
        with pytest.raises(ConfigError, match="must have one shape"):
            attention(*wrong, 0.25)


def test_autocast_changes_nothing_of_the_operation():
    *qkv, grad = parts((2, 2, 6, 16))
    lengths = torch.tensor([3, 6], dtype=torch.int32)
    expected = by_lengths(*qkv, lengths, grad)
    with torch.autocast("cpu", torch.bfloat16):
        found = by_lengths(*qkv, lengths, grad)
    for one, right in zip(found, expected, strict=True):
        assert torch.equal(one, right)


@CUDA
@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    "shape", [(3, 2, 512, 64), (2, 3, 129, 64), (2, 2, 3, 16), (2, 1, 300, 32), (2, 2, 200, 128)]
)
def test_kernels_find_what_a_mask_finds(shape, dtype):
    *qkv, grad = parts(shape, dtype, "cuda")
    lengths = torch.tensor([shape[2], max(1, shape[2] - 37), 64][: shape[0]], dtype=torch.int32)
    lengths = lengths.clamp(max=shape[2]).cuda()
    found = by_lengths(*qkv, lengths, grad)
    again = by_lengths(*qkv, lengths, grad)
    expected = by_mask(*qkv, lengths, grad)
    most = 2e-3 if dtype == torch.float16 else 1.5e-2
    for one, other, right in zip(found, again, expected, strict=True):
        assert torch.equal(one, other)
        assert off(one, right) < most


@CUDA
@pytest.mark.gpu
def test_what_lies_behind_the_length_of_a_sample_is_not_read():
    *qkv, grad = parts((2, 2, 256, 64), torch.float16, "cuda")
    lengths = torch.tensor([100, 0], dtype=torch.int32, device="cuda")
    expected = by_lengths(*qkv, lengths, grad)
    for x in qkv[1:]:
        x[0, :, 100:] = float("nan")
        x[1] = float("nan")
    for found, right in zip(by_lengths(*qkv, lengths, grad), expected, strict=True):
        assert torch.equal(found, right)


@CUDA
@pytest.mark.gpu
def test_parts_of_one_product_and_gaps_between_numbers_are_taken():
    draw = torch.Generator().manual_seed(1)
    whole = torch.randn(2, 64, 3, 2, 64, generator=draw).cuda().half()
    q, k, v = (whole[:, :, part].transpose(1, 2) for part in range(3))
    grad = torch.randn(2, 2, 64, 64, generator=draw).cuda().half().transpose(-1, -2)
    lengths = torch.tensor([40, 64], dtype=torch.int32, device="cuda")
    for found, right in zip(
        by_lengths(q, k, v, lengths, grad), by_mask(q, k, v, lengths, grad), strict=True
    ):
        assert off(found, right) < 2e-3


@CUDA
@pytest.mark.gpu
def test_lengths_with_gaps_and_beyond_the_sample_are_taken():
    *qkv, grad = parts((2, 2, 33, 64), torch.float16, "cuda")
    for lengths in ([[5, 33], [20, 20]], [[70, 0], [64, 0]]):
        given = torch.tensor(lengths, dtype=torch.int32, device="cuda")[:, 0]
        for found, right in zip(
            by_lengths(*qkv, given, grad), by_mask(*qkv, given.clamp(max=33), grad), strict=True
        ):
            assert off(found, right) < 2e-3
