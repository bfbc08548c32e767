"""MPOEmbedding: word vectors looked up in the cores of a bank, and the head that is tied to it."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, linear, pad

from mpobert_plugin.bank import MPOBank
from mpobert_plugin.errors import PlacementError
from mpobert_plugin.lookup import checked_ids, product_of, rows_of, widened, without_autocast
from mpobert_plugin.reader import Reader
from mpobert_plugin.row_plans import lookup_plans, plan_for, product_plans

if TYPE_CHECKING:
    from mpobert_plugin.kept import Kept
    from mpobert_plugin.lazy import Values
    from mpobert_plugin.spec import BankSpec
    from mpobert_plugin.stacked import Place


class Scope(threading.local):
    """The forward of a model with a tied head: its matrix is rebuilt once, for both ends.

    Copies start closed: what a forward has rebuilt belongs to it and its graph.
    """

    def __init__(self) -> None:
        # threading.local calls this once in every thread, so that the names are always there.
        self.is_open = False
        self.matrix: Tensor | None = None

    def __reduce__(self) -> tuple[type[Scope], tuple[()]]:
        return Scope, ()

    def set(self, is_open: bool) -> None:
        """Begin or end a forward; either way no matrix is known.

        Parameters
        ----------
        is_open : bool
            True at the beginning.
        """
        self.is_open, self.matrix = is_open, None


class EmbeddingBank(MPOBank):
    """Cores of the word embedding; rows and logits are computed without the matrix where cheaper.

    Parameters
    ----------
    spec : BankSpec
        Sizes; its one layer is the embedding.
    device, dtype : optional
        Where and in which element type the uninitialized tensors are made.

    Examples
    --------
    >>> from mpobert_plugin.spec import BankSpec
    >>> spec = BankSpec("embedding", 29, 6, (5, 6), (3, 2), (1, 4, 1), (0,), (0,))
    >>> bank = EmbeddingBank(spec)
    >>> tuple(bank.look_up(torch.tensor([[28, 0]])).shape), tuple(bank.logits(torch.ones(6)).shape)
    ((1, 2, 6), (29,))
    """

    # Names of the heads that are tied to it, in the model that was converted.
    heads: tuple[str, ...] = ()

    def __init__(
        self, spec: BankSpec, device: Place = None, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__(spec, device, dtype)
        rebuilding = self.recipe.multiply_adds
        self.lookup_plans = lookup_plans(spec.core_shapes, rebuilding)
        self.product_plans = product_plans(spec.core_shapes, rebuilding, spec.rows, spec.cols)
        self.padding_idx: int | None = None
        self.scope = Scope()

    def forward(
        self, slot: int | None = None, ids: Tensor | None = None, hidden: Tensor | None = None
    ) -> Sequence[Values]:
        """Return the matrix, rows of it, or logits, as the only entry of a list.

        Parameters
        ----------
        slot : int, optional
            0, or nothing.
        ids : Tensor, optional
            Numbers of rows, to be looked up.
        hidden : Tensor, optional
            (..., cols), of which logits are computed.

        Returns
        -------
        sequence of (Tensor, None)
            One entry.

        Raises
        ------
        PlacementError
            When the tensors of the bank are on several devices, or on meta and the input is not.
        """
        if ids is None and hidden is None:
            self._check_tensors()
            return [self.values_of(slot or 0)]
        self._check_tensors()
        if ids is not None:
            return [(self.look_up(beside_bank(self, ids)), None)]
        return [(self.logits(beside_bank(self, hidden)), None)]  # type: ignore[arg-type]

    def look_up(self, ids: Tensor) -> Tensor:
        """Return rows of the matrix in the element type of the cores.

        Parameters
        ----------
        ids : Tensor
            Integers of any shape.

        Returns
        -------
        Tensor
            (..., cols); the rows of `padding_idx` have no gradient.

        Raises
        ------
        IndexError
            When one is negative or not below the true number of rows.
        """
        plan = plan_for(self.lookup_plans, ids.numel())
        if plan.dense or (self.scope.is_open and self._head_is_dense(ids.numel())):
            return embedding(ids, self._matrix(), self.padding_idx)
        flat, cores = checked_ids(ids, self.spec.rows), self._chain()
        with without_autocast(flat.device.type):
            rows = rows_of(cores, plan, flat)[:, : self.spec.cols].to(self._compute_dtype())
        if self.padding_idx is not None:
            rows = torch.where((flat == self.padding_idx)[:, None], rows.detach(), rows)
        return rows.reshape(*ids.shape, self.spec.cols)

    def logits(self, hidden: Tensor) -> Tensor:
        """Return ``hidden @ W.T``, one column for each true row of W.

        Parameters
        ----------
        hidden : Tensor
            (..., cols).

        Returns
        -------
        Tensor
            (..., rows), in the element type in which a linear layer computes it.
        """
        spec, count = self.spec, hidden.numel() // self.spec.cols
        if self._head_is_dense(count):
            return linear(hidden, self._matrix())
        plan, cores = plan_for(self.product_plans, count), self._chain()
        dtype = super()._compute_dtype()
        beside = math.prod(spec.col_dims) - spec.cols
        with without_autocast(hidden.device.type):
            x = pad(hidden.reshape(count, spec.cols).to(cores[0].dtype), (0, beside))
            found = product_of(cores, plan, x)[:, : spec.rows].to(dtype)
        return found.reshape(*hidden.shape[:-1], spec.rows)

    def kept(self) -> Kept | None:
        """Return what is kept for a forward as this one: it is of use to a head alone.

        Returns
        -------
        Kept or None
            None outside the forward of a model with a tied head.
        """
        return super().kept() if self.scope.is_open else None

    def hand_out(self) -> None:
        """Do nothing: what is read depends on the words, so that the readers ask for it."""

    def _head_is_dense(self, count: int) -> bool:
        # What is kept between forwards costs nothing the next time.
        return self._may_cache(self.cores()) or plan_for(self.product_plans, count).dense

    def _matrix(self) -> Tensor:
        matrix = self.scope.matrix
        if matrix is None:
            matrix = self.weights()[0]
            if self.scope.is_open:
                self.scope.matrix = matrix
        return matrix

    def _chain(self) -> list[Tensor]:
        """Return the cores; half precision is computed with in float32."""
        tensors, site = self.tensors(), self.spec.central_site
        sites = range(len(self.spec.row_dims))
        names = ["central" if k == site else f"auxiliary_{k}" for k in sites]
        return [widened(tensors[name][0]) for name in names]

    def _compute_dtype(self) -> torch.dtype:
        # Autocast leaves the rows of a plain embedding as they are stored, and so does this.
        return self.wanted or self.tensors()["central"].dtype


class MPOEmbedding(Reader):
    """A word embedding whose rows come from the cores of a bank.

    It is no ``torch.nn.Embedding``: code that writes into a weight would change nothing here.

    Parameters
    ----------
    bank : EmbeddingBank
        Owner of the tensors.

    Examples
    --------
    >>> from mpobert_plugin.spec import BankSpec
    >>> spec = BankSpec("embedding", 29, 6, (5, 6), (3, 2), (1, 4, 1), (0,), (0,))
    >>> layer = MPOEmbedding(EmbeddingBank(spec))
    >>> layer.num_embeddings, tuple(layer(torch.tensor([28, 28, 0])).shape)
    (29, (3, 6))
    """

    bank: EmbeddingBank

    def __init__(self, bank: EmbeddingBank) -> None:
        super().__init__(bank, 0)
        self.num_embeddings = bank.spec.rows
        self.embedding_dim = bank.spec.cols
        self.role = bank.spec.role

    @property
    def padding_idx(self) -> int | None:
        """Number of the row that gets no gradient from lookups, or None."""
        return self.bank.padding_idx

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (torch's name)
        """Return the vectors of words.

        Parameters
        ----------
        input : Tensor
            Integers of any shape.

        Returns
        -------
        Tensor
            (..., embedding_dim).

        Raises
        ------
        IndexError
            When a number is negative or not below `num_embeddings`.
        """
        rows: Tensor = self.bank(ids=input)[0][0]
        return rows.to(input.device)

    def extra_repr(self) -> str:
        """Return sizes and role for printing.

        Returns
        -------
        str
            One line.
        """
        padding = "" if self.padding_idx is None else f"padding_idx={self.padding_idx}, "
        return f"{self.num_embeddings}, {self.embedding_dim}, {padding}bank={self.role!r}"


class MPOHead(nn.Module):
    """The output layer ``x @ W.T + b`` of a model whose W is the one of its word embedding.

    Parameters
    ----------
    bank : EmbeddingBank
        Owner of the cores. The reference is not registered, so that they are listed, saved and
        moved once, by the bank.
    bias : torch.nn.Parameter, optional
        The bias of the plain layer, which stays a parameter of its own.

    Examples
    --------
    >>> from mpobert_plugin.spec import BankSpec
    >>> spec = BankSpec("embedding", 29, 6, (5, 6), (3, 2), (1, 4, 1), (0,), (0,))
    >>> tuple(MPOHead(EmbeddingBank(spec))(torch.ones(2, 6)).shape)
    (2, 29)
    """

    bank: EmbeddingBank

    def __init__(self, bank: EmbeddingBank, bias: nn.Parameter | None = None) -> None:
        super().__init__()
        # Past nn.Module.__setattr__, which would register the bank as a child.
        object.__setattr__(self, "bank", bank)
        self.register_parameter("bias", bias)
        self.in_features = bank.spec.cols
        self.out_features = bank.spec.rows
        self.role = bank.spec.role

    @property
    def weight(self) -> Tensor:
        """A copy of the matrix: writing into it changes neither the bank nor its cache."""
        matrix: Tensor = self.bank(0)[0][0]
        return matrix.clone()

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of all words, and of no padded row.

        Parameters
        ----------
        x : Tensor
            (..., in_features).

        Returns
        -------
        Tensor
            (..., out_features).
        """
        found: Tensor = self.bank(hidden=x)[0][0]
        logits, bias = found.to(x.device), self._parameters["bias"]
        return logits if bias is None else logits + bias.to(logits.dtype)

    def extra_repr(self) -> str:
        """Return sizes and role for printing.

        Returns
        -------
        str
            One line.
        """
        bias = self.bias is not None
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, bias={bias}, "
            f"bank={self.role!r}"
        )


def beside_bank(bank: EmbeddingBank, x: Tensor) -> Tensor:
    """Return an input on the device of a bank.

    Parameters
    ----------
    bank : EmbeddingBank
        The bank.
    x : Tensor
        What a reader of it is called with.

    Returns
    -------
    Tensor
        The same, or a copy.

    Raises
    ------
    PlacementError
        When the tensors of the bank are on the meta device and the input is not.
    """
    device = bank.tensors()["central"].device
    if device.type == "meta" and not x.is_meta:
        raise PlacementError(
            f"the tensors of bank {bank.role!r} must hold values, got tensors on meta for an "
            f"input on {x.device}. Load them, or move the model with to_empty and load_state_dict."
        )
    return x.to(device)
