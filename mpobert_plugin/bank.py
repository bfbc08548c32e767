"""MPOBank: owns cores, adapters and biases of one role once, for all layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mpobert_plugin.factorized import Factorized, hand_cores
from mpobert_plugin.fingerprint import fingerprint
from mpobert_plugin.grouped import hand_groups
from mpobert_plugin.halves import AUTOCAST_DEVICES
from mpobert_plugin.kept import Kept, Trust
from mpobert_plugin.kernels import PLAIN
from mpobert_plugin.once import Once
from mpobert_plugin.reconstruct import rebuild, recipe
from mpobert_plugin.reference import Reference
from mpobert_plugin.stacked import Place, StackedBank, handed_slices
from mpobert_plugin.strategy import BY_GROUPS, Strategy
from mpobert_plugin.tracing import is_traced, is_transformed

if TYPE_CHECKING:
    from mpobert_plugin.lazy import Lazy, Values
    from mpobert_plugin.spec import BankSpec


class MPOBank(StackedBank):
    """Cores, adapters and biases of the matrices of one role, and their rebuilt weights.

    In evaluation without gradient the rebuilt weights are kept while no bit of the tensors changes.

    Parameters
    ----------
    spec : BankSpec
        Sizes and layer maps.
    device, dtype : optional
        Where and in which element type the uninitialized tensors are made.

    Examples
    --------
    >>> from mpobert_plugin.spec import BankSpec
    >>> spec = BankSpec("query", 6, 6, (2, 3), (3, 2), (1, 6, 1), (0, 0), (0, 1), (0, 1))
    >>> {name: tuple(tensor.shape) for name, tensor in MPOBank(spec).tensors().items()}
    {'auxiliary_0': (2, 1, 2, 3, 6), 'central': (1, 6, 3, 2, 1), 'bias': (2, 6)}
    """

    def __init__(
        self, spec: BankSpec, device: Place = None, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__(spec, device, dtype)
        self.spec: BankSpec = spec
        self.strategy = Strategy()
        self.once: Once | None = None
        # Element type of the matrices where neither autocast nor the tensors are to say it.
        self.wanted: torch.dtype | None = None
        self.recipe = recipe(spec)
        self._one = replace(spec, central=(0,), auxiliary=(0,), errors=())
        self._one_recipe = recipe(self._one)
        self._cache: Kept | None = None
        self.trust = Trust()

    def slices(self) -> dict[str, Sequence[int]]:
        """Return, for each stacked parameter, the slice that each layer uses.

        Returns
        -------
        dict of str to sequence of int
            Layer maps by the names of the parameters.
        """
        own = tuple(range(self.spec.n_layers))
        known = {"central": self.spec.central, "bias": self.spec.bias or own}
        known |= {"adapter_up": own, "adapter_down": own}
        return {name: known.get(name, self.spec.auxiliary) for name in self.tensors()}

    def weights(self) -> tuple[Tensor, ...]:
        """Return the matrix of every layer, cached in evaluation while no tensor changes.

        Returns
        -------
        tuple of Tensor
            (rows, cols) each, in the element type that the forward computes in.
        """
        cores, dtype = self.cores(), self._compute_dtype()
        if not self._may_cache(cores):
            if self.once is not None and _is_recorded_for(cores):
                return self.once.weights(cores, dtype)
            return rebuild(self.spec, self.recipe, cores, dtype, **self._manner(cores))
        trusted = self.trust.kept
        if trusted is not None and trusted.dtype == dtype:
            return trusted.weights
        return self.kept_anew().weights

    def kept(self) -> Kept | None:
        """Return what is kept for a forward as this one, whether or not it still stands.

        Returns
        -------
        Kept or None
            None when nothing may be kept, or nothing is.
        """
        cores, kept = self.cores(), self._cache
        if not self._may_cache(cores) or kept is None:
            return None
        here = kept.mark.device == cores["central"].device
        return kept if here and kept.dtype == self._compute_dtype() else None

    def kept_anew(self) -> Kept:
        """Return what is kept, rebuilt when a bit of the tensors has changed.

        Returns
        -------
        Kept
            The matrices of all layers.
        """
        cores, dtype = self.cores(), self._compute_dtype()
        mark = fingerprint(cores.values())
        # Read once: another thread may put a cache for its own element type in its place.
        kept = self._cache
        if kept is None or not kept.fits(dtype, mark):
            self._check_tensors()
            # Tensors made under inference_mode could not be used in a later graph.
            with torch.inference_mode(False), torch.no_grad():
                kept = Kept(dtype, mark, rebuild(self.spec, self.recipe, cores, dtype))
            self._cache = kept
        return kept

    def all_values(self) -> Sequence[Values | Lazy]:
        """Return matrix and bias of every layer, or how each does without.

        Returns
        -------
        sequence of (Tensor, Tensor or None), or of Lazy
            In the order of the layers.
        """
        biases = self._biases()
        name = self._strategy_now()
        cores, dtype = self.cores(), self._compute_dtype()
        if name in ("factorized", "reference"):
            kind = Factorized if name == "factorized" else Reference
            return hand_cores(
                self.spec, self._one, self._one_recipe, cores, self.slices(), dtype, biases, kind
            )
        if name not in BY_GROUPS:
            return list(zip(self.weights(), biases, strict=True))
        half, size = self._manner(cores)["half"], self.strategy.layers_of(name)
        return hand_groups(self.spec, self.recipe, cores, dtype, biases, size=size, half=half)

    def _biases(self) -> Sequence[Tensor | None]:
        if self.spec.bias is None:
            return (None,) * self.spec.n_layers
        bias = self.tensors()["bias"]
        # Copies, since sharded parameters lose their storage when the bank's forward is over.
        return handed_slices(bias if self.trust.kept is not None else bias.clone(), self.spec.bias)

    def _strategy_now(self) -> str:
        """Return the strategy of a forward as this one."""
        # A graph that is traced or compiled as a whole has all matrices as values of its own.
        if torch.compiler.is_compiling() or is_traced() or self.once is not None:
            return "batched"
        # Sharded parameters lose their storage when the bank's forward is over.
        if hasattr(self, "unshard"):
            return "batched_recompute"
        recorded = _is_recorded_for(self.cores())
        return self.strategy.training if self.training or recorded else self.strategy.evaluation

    def values_of(self, slot: int) -> Values:
        """Return matrix and bias of one layer; only its own matrix is rebuilt in training.

        Parameters
        ----------
        slot : int
            Position of the layer among those that read the bank.

        Returns
        -------
        tuple of (Tensor, Tensor or None)
            Weight and bias.
        """
        tensors = self.tensors()
        bias = None if self.spec.bias is None else tensors["bias"][self.spec.bias[slot]].clone()
        cores = self.cores()
        if self._may_cache(cores):
            return self.weights()[slot], bias
        of_layer = self.slices()
        one = {name: t[of_layer[name][slot]].unsqueeze(0) for name, t in cores.items()}
        manner = self._manner(cores)
        return rebuild(self._one, self._one_recipe, one, self._compute_dtype(), **manner)[0], bias

    def withdraw(self) -> None:
        """Take back what was handed out in this thread, and with it the trust in what is kept."""
        self.trust.kept = None
        super().withdraw()

    def drop_cache(self) -> None:
        """Forget the rebuilt matrices of evaluation."""
        self._cache = None

    def train(self, mode: bool = True) -> MPOBank:
        """Set training mode, which forgets the cached matrices.

        Parameters
        ----------
        mode : bool
            True for training, False for evaluation.

        Returns
        -------
        MPOBank
            The bank itself.
        """
        if mode:
            self.drop_cache()
        return super().train(mode)

    def extra_repr(self) -> str:
        """Return sizes and sharing for printing.

        Returns
        -------
        str
            One line.
        """
        spec = self.spec
        bonds = " ".join(str(bond) for bond in spec.bond_dims)
        return (
            f"{spec.n_layers} x ({spec.rows} x {spec.cols}), bonds {bonds}, "
            f"{max(spec.central) + 1} central, {max(spec.auxiliary) + 1} auxiliary"
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_cache": None, "once": None, "wanted": None}

    def cores(self) -> dict[str, Tensor]:
        """Return cores and adapters by name: what the matrices are made from.

        Returns
        -------
        dict of str to Tensor
            All stacked tensors but the bias.
        """
        return {name: tensor for name, tensor in self.tensors().items() if name != "bias"}

    def _manner(self, cores: Mapping[str, Tensor]) -> dict[str, bool]:
        """Return how matrices are rebuilt: exactly and at once, unless a graph is recorded."""
        recorded = _is_recorded_for(cores)
        on_gpu = self._device_type() == "cuda"
        # A trace holds no function with a backward of its own.
        recompute = recorded and self.strategy.training != "batched" and not is_traced()
        return {"recompute": recompute, "half": recorded and on_gpu}

    def _may_cache(self, cores: Mapping[str, Tensor]) -> bool:
        if self.training or self.strategy.evaluation != "cached" or torch.compiler.is_compiling():
            return False
        if _is_recorded_for(cores) or is_transformed():
            return False
        # Captured graphs and traces outlive a cache and must follow later changes.
        if _is_recorded(cores["central"].device):
            return False
        # Keeping what is rebuilt would undo the offloading of the tensors.
        if getattr(vars(self).get("_hf_hook"), "offload", False):
            return False
        return all(type(t) in PLAIN and not t.is_meta for t in cores.values())

    def compute_dtype(self) -> torch.dtype:
        """Return the element type that a forward would compute in now.

        Returns
        -------
        torch.dtype
            The one that is wanted, that of autocast where it is on, else that of the tensors.
        """
        return self._compute_dtype()

    def _device_type(self) -> str:
        return self.tensors()["central"].device.type

    def _compute_dtype(self) -> torch.dtype:
        if self.wanted is not None:
            return self.wanted
        central = self.tensors()["central"]
        kind = central.device.type
        # Autocast leaves float64 alone, and so does this.
        if (
            central.dtype != torch.float64
            and kind in AUTOCAST_DEVICES
            and torch.is_autocast_enabled(kind)
        ):
            return torch.get_autocast_dtype(kind)
        return central.dtype

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> MPOBank:
        self.drop_cache()
        super()._apply(fn, recurse)
        return self


def _is_recorded_for(cores: Mapping[str, Tensor]) -> bool:
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in cores.values())


def _is_recorded(device: torch.device) -> bool:
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        return True
    return is_traced()
