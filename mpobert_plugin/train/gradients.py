"""All gradients in one buffer: added up in float32, summed over processes in one call."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mpobert_plugin.train.processes import Processes


class Gradients:
    """The gradients of some parameters as parts of one flat tensor.

    Parameters
    ----------
    parameters : mapping of str to Parameter
        What is trained, by name; their ``grad`` become parts of the buffer.

    Examples
    --------
    >>> weight = nn.Parameter(torch.ones(3))
    >>> gradients = Gradients({"weight": weight})
    >>> (2 * weight).sum().backward()
    >>> gradients.flat.tolist()
    [2.0, 2.0, 2.0]
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter]) -> None:
        self.parameters = dict(parameters)
        first = next(iter(self.parameters.values()))
        sizes = [parameter.numel() for parameter in self.parameters.values()]
        self.flat = torch.zeros(sum(sizes), device=first.device, dtype=first.dtype)
        pieces = torch.split(self.flat, sizes)
        self.parts: dict[str, Tensor] = {}
        for (name, parameter), piece in zip(self.parameters.items(), pieces, strict=True):
            self.parts[name] = piece.view_as(parameter)
            parameter.grad = self.parts[name]

    def clear(self) -> None:
        """Set all gradients to zero, in place."""
        self.flat.zero_()

    def add_over(self, processes: Processes) -> None:
        """Sum the gradients over all processes.

        Parameters
        ----------
        processes : Processes
            Who takes part.
        """
        processes.add(self.flat)

    def multiply(self, factor: Tensor) -> None:
        """Multiply all gradients; those that are not finite become zero first.

        Parameters
        ----------
        factor : Tensor
            A scalar.
        """
        torch.nan_to_num_(self.flat, 0.0, 0.0, 0.0).mul_(factor)

    def norms(self) -> Tensor:
        """Return the norm of each gradient.

        Returns
        -------
        Tensor
            (parameters,), in their order; not finite where a gradient is not.
        """
        return torch.stack(torch._foreach_norm(list(self.parts.values())))


def reached(parameters: Mapping[str, nn.Parameter], loss: Tensor) -> set[str]:
    """Return the names of the parameters that a loss depends on.

    Parameters
    ----------
    parameters : mapping of str to Parameter
        All of them.
    loss : Tensor
        With its graph.

    Returns
    -------
    set of str
        Names.

    Examples
    --------
    >>> a, b = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))
    >>> reached({"a": a, "b": b}, (2 * a).sum())
    {'a'}
    """
    names = {id(parameter): name for name, parameter in parameters.items()}
    found: set[str] = set()
    seen: set[object] = set()
    todo = [loss.grad_fn]
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        owner = getattr(node, "variable", None)
        if owner is not None and id(owner) in names:
            found.add(names[id(owner)])
        todo += [following for following, _ in node.next_functions]
    return found
