"""Multiply a layer's input with its cores one after the other, in the order of a plan."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

import torch
from torch import Tensor
from torch.nn.functional import linear, pad

import tensornet as tn
from mpobert_plugin.halves import AUTOCAST_DEVICES, exact
from mpobert_plugin.lazy import Lazy, Parts, Values
from mpobert_plugin.reconstruct import Recipe, rebuild
from mpobert_plugin.spec import BankSpec


@dataclass(frozen=True)
class Steps:
    """The joins of a plan, ready to run: a step of a few tensors takes less than to look it up.

    Parameters
    ----------
    plan : tensornet.Plan
        What they follow.
    joins : tuple of (int, int, tuple of int, tuple of int)
        Positions of two operands, and the axes of each that are summed over.
    order : tuple of int
        Axes of the result in the order of the output.

    Examples
    --------
    >>> spec = BankSpec("query", 8, 8, (2, 2, 2), (2, 2, 2), (1, 2, 2, 1), (0, 0), (0, 1))
    >>> steps = product_steps(spec, 1)
    >>> steps.plan.multiply_adds, len(steps.joins)
    (128, 3)
    """

    plan: tn.Plan
    joins: tuple[tuple[int, int, tuple[int, ...], tuple[int, ...]], ...]
    order: tuple[int, ...]

    def run(self, operands: Sequence[Tensor]) -> Tensor:
        """Return the contraction.

        Parameters
        ----------
        operands : sequence of Tensor
            In the shapes of the plan.

        Returns
        -------
        Tensor
            Differentiable in the operands.
        """
        todo = list(operands)
        for first, second, axes, others in self.joins:
            b, a = todo.pop(second), todo.pop(first)
            todo.append(torch.tensordot(a, b, dims=(axes, others)))
        return todo[0].permute(self.order)


@lru_cache(maxsize=4096)
def product_steps(spec: BankSpec, tokens: int) -> Steps:
    """Return how some inputs are multiplied with the cores of one layer, by the best plan.

    Parameters
    ----------
    spec : BankSpec
        Sizes of the cores.
    tokens : int
        Number of inputs.

    Returns
    -------
    Steps
        Operands are the cores without the bonds at the ends, and the inputs (tokens, *column
        factors); the result is (tokens, *row factors).

    Examples
    --------
    >>> spec = BankSpec("query", 8, 8, (2, 2, 2), (2, 2, 2), (1, 2, 2, 1), (0, 0), (0, 1))
    >>> product_steps(spec, 5).plan.shapes[-1]
    (5, 2, 2, 2)
    """
    sites = len(spec.row_dims)
    labels = [[f"b{k}", f"i{k}", f"j{k}", f"b{k + 1}"] for k in range(sites)]
    shapes = [list(shape) for shape in spec.core_shapes]
    del labels[0][0], shapes[0][0], labels[-1][-1], shapes[-1][-1]
    labels.append(["token", *(f"j{k}" for k in range(sites))])
    shapes.append([max(1, tokens), *spec.col_dims])
    output = ["token", *(f"i{k}" for k in range(sites))]
    plan = tn.plan([*labels, output], *shapes)
    joins, todo = [], list(labels)
    for first, second in plan.path:
        two, one = todo.pop(second), todo.pop(first)
        shared = [label for label in one if label in two]
        joins.append((first, second, tuple(map(one.index, shared)), tuple(map(two.index, shared))))
        todo.append([label for label in (*one, *two) if label not in shared])
    return Steps(plan, tuple(joins), tuple(map(todo[0].index, output)))


class Factorized(Lazy):
    """A layer's product with its input, by its cores.

    Parameters
    ----------
    spec : BankSpec
        Sizes; slices are those of one layer.
    how : Recipe
        How the layer's matrix is rebuilt for whoever asks for it.
    dtype : torch.dtype
        Element type that the forward computes in.
    own : sequence of (Tensor or None)
        Cores from left to right, both parts of the adapter, and the bias.

    Examples
    --------
    >>> from mpobert_plugin.reconstruct import recipe
    >>> spec = BankSpec("query", 4, 4, (2, 2), (2, 2), (1, 1, 1), (0,), (0,))
    >>> cores = (torch.ones(1, 2, 2, 1), torch.ones(1, 2, 2, 1))
    >>> layer = Factorized(spec, recipe(spec), torch.float32, (*cores, None, None, None))
    >>> layer.linear(torch.ones(1, 4))
    tensor([[4., 4., 4., 4.]])
    """

    def __init__(self, spec: BankSpec, how: Recipe, dtype: torch.dtype, own: Parts) -> None:
        self.spec = spec
        self.how = how
        self.dtype = dtype
        self.own = own

    @property
    def device(self) -> torch.device:
        """Where the tensors are."""
        return self._cores()[0].device

    def linear(self, x: Tensor) -> Tensor:
        """Return ``x @ W.T + b``; half precision is contracted in float32.

        Parameters
        ----------
        x : Tensor
            (..., in_features).

        Returns
        -------
        Tensor
            (..., out_features).
        """
        *_, up, down, bias = self.own
        kind, spec = x.device.type, self.spec
        cast = kind in AUTOCAST_DEVICES and torch.is_autocast_enabled(kind)
        out = self.dtype if cast else x.dtype
        with exact(kind):
            cores = [core.to(_wide(core.dtype)) for core in self._cores()]
            flat = x.reshape(-1, spec.cols).to(cores[0].dtype)
            missing = math.prod(spec.col_dims) - spec.cols
            beside = pad(flat, (0, missing)) if missing else flat
            steps = product_steps(spec, len(flat))
            ends = [core.squeeze(0) if k == 0 else core for k, core in enumerate(cores)]
            ends[-1] = ends[-1].squeeze(-1)
            made = steps.run([*ends, beside.reshape(-1, *spec.col_dims)])
            made = made.reshape(len(flat), -1)[:, : spec.rows]
            if up is not None and down is not None:
                low = linear(linear(flat, down.to(flat.dtype)), up.to(flat.dtype))
                made = made + spec.adapter_scale * low
            if bias is not None:
                made = made + bias.to(made.dtype)
        return made.to(out).reshape(*x.shape[:-1], spec.rows)

    def values(self) -> Values:
        """Return weight and bias, rebuilt for this call.

        Returns
        -------
        tuple of (Tensor, Tensor or None)
            Weight and bias.
        """
        *_, up, down, bias = self.own
        site = self.spec.central_site
        tensors = {
            "central" if k == site else f"auxiliary_{k}": core.unsqueeze(0)
            for k, core in enumerate(self._cores())
        }
        for name, part in (("adapter_up", up), ("adapter_down", down)):
            if part is not None:
                tensors[name] = part.unsqueeze(0)
        return rebuild(self.spec, self.how, tensors, self.dtype)[0], bias

    def parts(self) -> Parts:
        """Return cores, adapter and bias of the layer.

        Returns
        -------
        sequence of (Tensor or None)
            Three more than cores.
        """
        return self.own

    def maker(self) -> Callable[[Parts], Factorized]:
        """Return a function from cores, adapter and bias to such an object.

        Returns
        -------
        callable
            It holds no tensor.
        """
        return partial(type(self), self.spec, self.how, self.dtype)

    def _cores(self) -> list[Tensor]:
        return [core for core in self.own[:-3] if core is not None]


def hand_cores(
    spec: BankSpec,
    one: BankSpec,
    how: Recipe,
    tensors: Mapping[str, Tensor],
    slices: Mapping[str, Sequence[int]],
    dtype: torch.dtype,
    biases: Sequence[Tensor | None],
    kind: type[Factorized] = Factorized,
) -> list[Factorized]:
    """Return the cores of each layer.

    Parameters
    ----------
    spec, one : BankSpec
        Sizes of the bank and of one layer of it.
    how : Recipe
        How the matrix of one layer is rebuilt.
    tensors : mapping of str to Tensor
        Stacked tensors by name.
    slices : mapping of str to sequence of int
        Slice of each tensor that each layer uses.
    dtype : torch.dtype
        Element type that the forward computes in.
    biases : sequence of (Tensor or None)
        The bias of each layer.
    kind : type
        What a layer is handed.

    Returns
    -------
    list of Factorized
        One for each layer.
    """
    site = spec.central_site
    names = ["central" if k == site else f"auxiliary_{k}" for k in range(len(spec.row_dims))]
    # Taken apart once, so that the way back through each tensor is one stack.
    each = {name: tensor.unbind(0) for name, tensor in tensors.items()}
    found = []
    for slot in range(spec.n_layers):
        cores = [each[name][slices[name][slot]] for name in names]
        adapter = [each[name][slot] if name in each else None for name in _ADAPTER]
        found.append(kind(one, how, dtype, (*cores, *adapter, biases[slot])))
    return found


_ADAPTER = ("adapter_up", "adapter_down")


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32
