"""Multiply a layer's input with its cores one after the other, in the order of a plan."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial

import torch
from torch import Tensor
from torch.nn.functional import linear, pad

import tensornet as tn
from mpobert_plugin.halves import AUTOCAST_DEVICES, exact
from mpobert_plugin.lazy import Lazy, Parts, Values
from mpobert_plugin.reconstruct import Recipe, rebuild
from mpobert_plugin.spec import BankSpec


@lru_cache(maxsize=4096)
def product_plan(spec: BankSpec, tokens: int) -> tn.Plan:
    """Return the plan of the product of some inputs with the cores of one layer.

    Parameters
    ----------
    spec : BankSpec
        Sizes of the cores.
    tokens : int
        Number of inputs.

    Returns
    -------
    tensornet.Plan
        Operands are the cores and the inputs (tokens, *column factors); the result is
        (tokens, *row factors).

    Examples
    --------
    >>> spec = BankSpec("query", 8, 8, (2, 2, 2), (2, 2, 2), (1, 2, 2, 1), (0, 0), (0, 1))
    >>> product_plan(spec, 1).multiply_adds
    128
    """
    sites = len(spec.row_dims)
    words = [[f"b{k}", f"i{k}", f"j{k}", f"b{k + 1}"] for k in range(sites)]
    words.append(["token", *(f"j{k}" for k in range(sites))])
    words.append(["token", *(f"i{k}" for k in range(sites))])
    return tn.plan(words, *spec.core_shapes, (max(1, tokens), *spec.col_dims))


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
            beside = pad(flat, (0, math.prod(spec.col_dims) - spec.cols))
            plan = product_plan(spec, len(flat))
            made: Tensor = plan.run(*cores, beside.reshape(plan.shapes[-1]))
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
        return partial(Factorized, self.spec, self.how, self.dtype)

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
        found.append(Factorized(one, how, dtype, (*cores, *adapter, biases[slot])))
    return found


_ADAPTER = ("adapter_up", "adapter_down")


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32
