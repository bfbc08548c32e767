"""Once: the matrices of a bank as leaves, whose gradients add up before they reach the cores."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from mpobert_plugin.adding import add_wide
from mpobert_plugin.errors import ChangedTensorError
from mpobert_plugin.halves import HALF, exact
from mpobert_plugin.joining import Joining, Pieces, join
from mpobert_plugin.reconstruct import Recipe, joining_of, operands_of
from mpobert_plugin.rejoin import Promise
from mpobert_plugin.spec import BankSpec


class Leaf:
    """Matrices that stand at the ends of several graphs, and the one way from them to the cores.

    Each matrix is a leaf of its own, so that its gradient is added up as soon as it is there.

    Parameters
    ----------
    operands : tuple of (Tensor or None)
        The five of `join`, with the graph that leads to the cores.
    how : Joining
        How the matrices are rebuilt.
    half : bool
        Whether the way back may be computed in float16 with sums in float32.
    lasting : bool
        Whether the matrices and the sums of their gradients stay at their places in memory from
        one accumulation to the next, as recorded work of a GPU needs it.
    """

    def __init__(self, operands: Pieces, how: Joining, half: bool, lasting: bool = False) -> None:
        with torch.no_grad():
            self.matrices = join(*operands, how)
        self.how = how
        # Sums are as wide as those of parameters are.
        self.wide = replace(how, dtype=torch.float32, half=half) if how.dtype in HALF else how
        self.promise = self._promised(operands)
        self.total = self._zeros() if lasting else None
        self.each = tuple(matrix.requires_grad_() for matrix in self.matrices.unbind(0))
        for number, matrix in enumerate(self.each):
            hook = partial(_add_to, weakref.ref(self), number)
            # torch leaves this method without types.
            matrix.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]

    def renew(self, operands: Pieces) -> None:
        """Rebuild the matrices where they are, and begin with sums of zero.

        Parameters
        ----------
        operands : tuple of (Tensor or None)
            As at first.
        """
        with torch.no_grad():
            self.matrices.copy_(join(*operands, self.how))
            if self.total is not None:
                self.total.zero_()
        self.promise = self._promised(operands)

    def _promised(self, operands: Pieces) -> Tensor:
        # torch leaves this method without types.
        made: Tensor = Promise.apply(*operands, self.wide)  # type: ignore[no-untyped-call]
        return made

    def _zeros(self) -> Tensor:
        return torch.zeros_like(self.matrices, dtype=self.wide.dtype)

    def add(self, number: int, matrix: Tensor) -> None:
        """Add the gradient of a matrix to the sums.

        Parameters
        ----------
        number : int
            Of the matrix.
        matrix : Tensor
            Whose gradient is taken from it.
        """
        gradient, matrix.grad = matrix.grad, None
        if gradient is None:
            return
        if self.total is None:
            self.total = self._zeros()
        add_wide(self.total[number], gradient)


def _add_to(leaf: weakref.ref[Leaf], number: int, matrix: Tensor) -> None:
    # torch holds a hook where Python cannot see it: a leaf that is in its own hook never ends.
    own = leaf()
    if own is not None:
        own.add(number, matrix)


class Once:
    """The leaves of one bank during one accumulation, one for each element type and device.

    Parameters
    ----------
    spec : BankSpec
        Sizes and layer maps.
    how : Recipe
        How the bank is rebuilt.
    cores : mapping of str to Tensor
        Stacked tensors by name, as they are at the beginning.
    exactly : bool
        Whether matrices in half precision are rebuilt in float32 and rounded once.
    lasting : bool
        Whether the leaves serve the accumulations that follow, too.
    """

    def __init__(
        self,
        spec: BankSpec,
        how: Recipe,
        cores: Mapping[str, Tensor],
        exactly: bool,
        lasting: bool = False,
    ) -> None:
        self.spec = spec
        self.how = how
        self.exactly = exactly
        self.lasting = lasting
        # Replicas of a model on several devices have leaves of their own.
        self.leaves: dict[tuple[torch.dtype, torch.device], Leaf] = {}
        self._versions = {name: tensor._version for name, tensor in cores.items()}

    def weights(self, cores: Mapping[str, Tensor], dtype: torch.dtype) -> tuple[Tensor, ...]:
        """Return the matrix of every layer; rebuilt at the first call.

        Parameters
        ----------
        cores : mapping of str to Tensor
            Stacked tensors by name.
        dtype : torch.dtype
            Element type of the matrices.

        Returns
        -------
        tuple of Tensor
            (rows, cols) each; layers that use the same slices get one object.
        """
        device = cores["central"].device
        leaf = self.leaves.get((dtype, device))
        if leaf is None:
            on_gpu = device.type == "cuda"
            joining = joining_of(self.spec, self.how, dtype, half=on_gpu)
            forward = replace(joining, half=joining.half and not self.exactly)
            with exact(device.type):
                operands = operands_of(self.spec, self.how, cores, forward)
                leaf = Leaf(operands, forward, joining.half, self.lasting)
            self.leaves[dtype, device] = leaf
        numbers = range(self.spec.n_layers) if self.spec.adapter_rank else self.how.matrix_of_layer
        return tuple(leaf.each[number] for number in numbers)

    def renew(self, cores: Mapping[str, Tensor]) -> None:
        """Begin another accumulation: rebuild all matrices where they are.

        Parameters
        ----------
        cores : mapping of str to Tensor
            Stacked tensors by name, as they are now.
        """
        self._versions = {name: tensor._version for name, tensor in cores.items()}
        here = cores["central"].device
        self.leaves = {key: leaf for key, leaf in self.leaves.items() if key[1] == here}
        for (_, device), leaf in self.leaves.items():
            with exact(device.type):
                leaf.renew(operands_of(self.spec, self.how, cores, leaf.how))

    def check(self, cores: Mapping[str, Tensor]) -> None:
        """Refuse to go on when a tensor was modified since the matrices were rebuilt.

        Parameters
        ----------
        cores : mapping of str to Tensor
            Stacked tensors by name.

        Raises
        ------
        ChangedTensorError
            When one was; the bank and the tensor are told.
        """
        for name, tensor in cores.items():
            version, before = tensor._version, self._versions.get(name)
            if version != before:
                raise ChangedTensorError(
                    f"the tensors of the banks must not be modified while gradients are "
                    f"accumulated, got version {version} of {name!r} in bank {self.spec.name!r} "
                    f"after {before}. Call optimizer.step() after the block of "
                    "mpobert_plugin.accumulate."
                )

    def ends(self) -> list[tuple[Tensor, Tensor]]:
        """Return where the way back begins, with the gradients to begin with.

        Returns
        -------
        list of (Tensor, Tensor)
            For ``torch.autograd.backward``.
        """
        found = [(leaf.promise, leaf.total) for leaf in self.leaves.values()]
        return [(promise, total) for promise, total in found if total is not None]
