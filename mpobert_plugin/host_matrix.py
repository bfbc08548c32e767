"""How a host stores a matrix: as a linear layer, or as GPT-2's Conv1D with the transpose."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from torch import nn
from transformers.pytorch_utils import Conv1D

if TYPE_CHECKING:
    from torch import Tensor

# Exactly these classes: a subclass computes something else than its parameters say.
MATRIX_CLASSES: tuple[type[nn.Module], ...] = (nn.Linear, Conv1D)


def is_matrix(module: object) -> bool:
    """Return whether a module is a matrix with a bias, stored in a way that is known here.

    Parameters
    ----------
    module : object
        Any module.

    Returns
    -------
    bool
        True for a ``torch.nn.Linear`` and a ``Conv1D``, False for subclasses.

    Examples
    --------
    >>> is_matrix(nn.Linear(3, 2)), is_matrix(Conv1D(2, 3)), is_matrix(nn.ReLU())
    (True, True, False)
    """
    return type(module) in MATRIX_CLASSES


@dataclass(frozen=True)
class HostMatrix:
    """A matrix W (out x in) of a plain model, whatever its module stores.

    Parameters
    ----------
    module : torch.nn.Module
        A ``torch.nn.Linear``, a ``Conv1D``, whose parameter is the transpose of W, or a
        ``torch.nn.Embedding``, whose W has a row for each word.

    Examples
    --------
    >>> matrix = HostMatrix(Conv1D(2, 3))
    >>> matrix.out_features, matrix.in_features, tuple(matrix.weight.shape)
    (2, 3, (2, 3))
    >>> tuple(matrix.parameter.shape)
    (3, 2)
    """

    module: nn.Module

    @property
    def transposed(self) -> bool:
        """Whether the module stores the transpose of W."""
        return isinstance(self.module, Conv1D)

    @property
    def parameter(self) -> nn.Parameter:
        """The parameter of the module, as it is stored."""
        return cast("nn.Parameter", self.module._parameters["weight"])

    @property
    def bias(self) -> nn.Parameter | None:
        """The bias of the module, or None."""
        return self.module._parameters.get("bias")

    @property
    def weight(self) -> Tensor:
        """W (out x in): the parameter itself, or a view of it that says whether it is trained."""
        if not self.transposed:
            return self.parameter
        return self.parameter.detach().t().requires_grad_(self.parameter.requires_grad)

    @property
    def out_features(self) -> int:
        """Number of rows of W."""
        return sizes_of(self.module)[0]

    @property
    def in_features(self) -> int:
        """Number of columns of W."""
        return sizes_of(self.module)[1]


def sizes_of(module: nn.Module) -> tuple[int, int]:
    """Return the numbers of rows and columns of a module's W (out x in), as the module states them.

    Parameters
    ----------
    module : torch.nn.Module
        A ``torch.nn.Linear``, a ``Conv1D`` or a ``torch.nn.Embedding``.

    Returns
    -------
    tuple of int
        Numbers of outputs and inputs.

    Examples
    --------
    >>> sizes_of(Conv1D(2, 3)), sizes_of(nn.Linear(3, 2))
    ((2, 3), (2, 3))
    """
    if isinstance(module, Conv1D):
        return int(module.nf), int(module.nx)
    if isinstance(module, nn.Embedding):
        return module.num_embeddings, module.embedding_dim
    linear = cast("nn.Linear", module)
    return linear.out_features, linear.in_features
