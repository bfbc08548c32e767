"""The same function by faster operations: what is changed in the graph of a layer."""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mpobert_plugin.train import attention  # noqa: F401, whose operation the graphs call

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.fx import GraphModule, Node

_ADDS = (operator.add, torch.add)
_HALF = (torch.float16, torch.bfloat16)


def rewriting(backend: str | Callable[..., Any], own_attention: int) -> Callable[..., Any]:
    """Return a backend of ``torch.compile`` that changes graphs before another one takes them.

    Parameters
    ----------
    backend : str or callable
        As ``torch.compile`` takes it.
    own_attention : int
        Dimensions of the heads whose attention with a mask that hides the ends of samples, as
        pre-training makes them, is done by `attention`; 0 for none.

    Returns
    -------
    callable
        Takes a graph and its inputs.
    """

    def compiled(graph: GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        # Imported here, for it takes a second that most runs need not wait.
        from torch._dynamo import lookup_backend

        then: Any = lookup_backend(backend) if isinstance(backend, str) else backend
        found: Callable[..., Any] = then(rewritten(graph, own_attention), inputs)
        return found

    return compiled


def rewritten(module: GraphModule, own_attention: int) -> GraphModule:
    """Return a graph that computes the same.

    GELU with a tangent is computed with a logistic function, 1 + tanh(u) = 2 / (1 + exp(-2u)):
    without cancellation, and with a function that graphics cards have, so that the memory is
    waited for and not the tangent.

    Parameters
    ----------
    module : torch.fx.GraphModule
        As torch's compiler has traced it; changed in place.
    own_attention : int
        As for `rewriting`.

    Returns
    -------
    torch.fx.GraphModule
        The same object.
    """
    for node in list(module.graph.nodes):
        if node.op != "call_function":
            continue
        if node.target is torch.tanh:
            _without_tangent(node)
        elif node.target is torch.nn.functional.gelu:
            _gelu(node)
        elif own_attention and node.target is torch.nn.functional.scaled_dot_product_attention:
            _by_lengths(node, own_attention)
    module.recompile()
    return module


def _without_tangent(node: Node) -> None:
    """Change tanh(u) and each 1 + tanh(u), where nothing else becomes of the tangent.

    Each operation is changed at its own place: what changes u or gradients in between stays there.
    """
    if node.kwargs or not all(_adds_one(user) for user in node.users):
        return
    with node.graph.inserting_before(node):
        twice = node.graph.call_function(operator.mul, (node.args[0], 2.0))
        logistic = node.graph.call_function(torch.sigmoid, (twice,))
    for user in list(node.users):
        with node.graph.inserting_before(user):
            _replace(user, node.graph.call_function(operator.mul, (logistic, 2.0)))
    node.graph.erase_node(node)


def _adds_one(node: Node) -> bool:
    if node.target not in _ADDS or node.kwargs or node.op != "call_function":
        return False
    return any(type(value) in (int, float) and value == 1 for value in node.args)


def _gelu(node: Node) -> None:
    if len(node.args) == 1 and dict(node.kwargs) == {"approximate": "tanh"}:
        with node.graph.inserting_before(node):
            _replace(node, node.graph.call_function(gelu_by_logistic, (node.args[0],)))


def gelu_by_logistic(x: Tensor) -> Tensor:
    """Return GELU in the approximation with tanh, computed with a logistic function.

    Parameters
    ----------
    x : Tensor
        Any shape.

    Returns
    -------
    Tensor
        Of the same shape and element type.

    Examples
    --------
    >>> x = torch.linspace(-4, 4, 9, dtype=torch.float64)
    >>> y = torch.nn.functional.gelu(x, approximate="tanh")
    >>> torch.allclose(gelu_by_logistic(x), y, rtol=1e-9, atol=1e-12)
    True
    """
    wide = x.float() if x.dtype in _HALF else x
    inner = 2.0 * math.sqrt(2.0 / math.pi) * (wide + 0.044715 * wide * wide * wide)
    return (wide * torch.sigmoid(inner)).to(x.dtype)


def _by_lengths(node: Node, size: int) -> None:
    """Change fused attention with a mask of keys into attention over lengths, where it can be."""
    if len(node.args) < 3:
        return
    q, k, v, *others = node.args
    given = {
        **dict(zip(("attn_mask", "dropout_p", "is_causal"), others, strict=False)),
        **node.kwargs,
    }
    mask = given.get("attn_mask")
    scale = given.get("scale")
    plain = scale is None or type(scale) in (int, float)
    plain = plain and not (
        given.get("dropout_p") or given.get("is_causal") or given.get("enable_gqa")
    )
    if not plain or not _fits([_seen(x) for x in (q, k, v)], _seen(mask), size):
        return
    graph = node.graph
    with graph.inserting_before(node):
        first = graph.call_function(operator.getitem, (mask, (slice(None), 0, 0)))
        lengths = graph.call_function(torch.sum, (first, -1), {"dtype": torch.int32})
        factor = float(size**-0.5 if scale is None else scale)  # type: ignore[arg-type]
        pair = graph.call_function(torch.ops.mpobert.attention.default, (q, k, v, lengths, factor))
        found = graph.call_function(operator.getitem, (pair, 0))
    _replace(node, found)


def _seen(node: Any) -> Tensor | None:
    """Return an example of what a node is."""
    value = getattr(node, "meta", {}).get("example_value")
    return value if isinstance(value, Tensor) else None


def _fits(parts: list[Tensor | None], mask: Tensor | None, size: int) -> bool:
    q = parts[0]
    if q is None or mask is None or any(x is None or x.shape != q.shape for x in parts):
        return False
    if q.ndim != 4 or q.dtype not in _HALF or q.shape[-1] != size:
        return False
    if any(x is not None and x.dtype != q.dtype for x in parts):
        return False
    batch, _, length, _ = q.shape
    # The same for all queries, as a mask of keys that was expanded.
    return (
        mask.dtype == torch.bool
        and tuple(mask.shape) == (batch, 1, length, length)
        and mask.stride(2) == 0
    )


def _replace(node: Node, found: Node) -> None:
    if "example_value" in node.meta:
        found.meta["example_value"] = node.meta["example_value"]
    node.replace_all_uses_with(found)
    node.graph.erase_node(node)
