"""Norms of gradients and updates by kind of parameter, as tensors that nobody waits for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from mpobert_plugin.kinds import kinds_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor, nn

    from mpobert_plugin.train.gradients import Gradients


@dataclass(frozen=True)
class Before:
    """What is known before an update.

    Parameters
    ----------
    gradients : Tensor
        (kinds,): norms of the mean gradients before clipping.
    weights : tuple of Tensor
        Copies of the parameters.
    """

    gradients: Tensor
    weights: tuple[Tensor, ...]


class KindNorms:
    """The norms of one step, summed up by kind.

    Parameters
    ----------
    model : torch.nn.Module
        Tells which parameter is of which kind.
    gradients : Gradients
        Of the parameters that are trained.

    Examples
    --------
    >>> from torch import nn
    >>> from mpobert_plugin.train.gradients import Gradients
    >>> model = nn.Linear(2, 1)
    >>> gradients = Gradients(dict(model.named_parameters()))
    >>> KindNorms(model, gradients).kinds
    ('bias', 'dense')
    """

    def __init__(self, model: nn.Module, gradients: Gradients) -> None:
        kind_of = {name: kind for kind, named in kinds_of(model).items() for name in named}
        found = [kind_of[name] for name in gradients.parameters]
        self.kinds = tuple(kind for kind in kinds_of(model) if kind in found)
        self._gradients = gradients
        places = [self.kinds.index(kind) for kind in found]
        self._places = torch.tensor(places, device=gradients.flat.device)

    def before(self, scale: Tensor) -> Before:
        """Return what is known before an update.

        Parameters
        ----------
        scale : Tensor
            What the gradients are still multiplied by.

        Returns
        -------
        Before
            With a copy of the parameters: they take the room that activations had.
        """
        norms = self._gradients.norms() / scale
        return Before(self._by_kind(norms), tuple(p.detach().clone() for p in self._weights()))

    def after(self, before: Before) -> Tensor:
        """Return the norms of gradients and updates.

        Parameters
        ----------
        before : Before
            Output of `before` in the same step.

        Returns
        -------
        Tensor
            (2, kinds): of the mean gradients before clipping, not finite where one is not; of what
            the optimizer added to the parameters.
        """
        moved = torch._foreach_sub([p.detach() for p in self._weights()], list(before.weights))
        return torch.stack(
            [before.gradients, self._by_kind(torch.stack(torch._foreach_norm(moved)))]
        )

    def named(self, norms: Tensor) -> dict[str, float]:
        """Return norms by name; reading them waits for the device.

        Parameters
        ----------
        norms : Tensor
            Output of `after`.

        Returns
        -------
        dict of str to float
            Such as 'grad_norm_central' and 'update_norm_central'.
        """
        rows = zip(("grad_norm", "update_norm"), norms.tolist(), strict=True)
        return {
            f"{what}_{kind}": value
            for what, values in rows
            for kind, value in zip(self.kinds, values, strict=True)
        }

    def _weights(self) -> Iterable[nn.Parameter]:
        return self._gradients.parameters.values()

    def _by_kind(self, norms: Tensor) -> Tensor:
        total = norms.new_zeros(len(self.kinds))
        return total.index_add_(0, self._places, norms.square()).sqrt()
