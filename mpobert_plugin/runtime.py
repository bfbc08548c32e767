"""What happens around each forward: banks hand out the values of all layers and take them back."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers import PreTrainedModel

from mpobert_plugin.bank import MPOBank
from mpobert_plugin.errors import ConfigError, ConversionError
from mpobert_plugin.kept import Together, look
from mpobert_plugin.locate import BANKS, base_of, check_model, is_converted
from mpobert_plugin.of_peft import ON_PLAIN, READ_INSIDE, inside, layers_of_peft
from mpobert_plugin.ready import Ready, made_ready
from mpobert_plugin.recompute import carry_values
from mpobert_plugin.stacked import StackedBank
from mpobert_plugin.uncompiled import no_graph_of_its_own

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

    import tensornet as tn
    from mpobert_plugin.families import Family
    from mpobert_plugin.noted import Noted
    from mpobert_plugin.plan import ConversionPlan


class Banks(nn.ModuleDict):
    """All banks of a model by role, with the plan that they follow.

    Parameters
    ----------
    banks : dict of str to StackedBank
        Banks by role.
    plan : ConversionPlan
        The plan of the conversion.
    certificates : dict, optional
        Certificate of each decomposed matrix by full module name; kept in memory only.
    """

    def __init__(
        self,
        banks: dict[str, StackedBank],
        plan: ConversionPlan,
        certificates: dict[str, tn.Certificate] | None = None,
    ) -> None:
        super().__init__(banks)
        self.plan = plan
        self.certificates = certificates or {}
        # Kept, so that the layers are found whatever is put into or around them later.
        self.family: Family | None = None
        # Names and shapes of the model's tensors, as they were converted or loaded.
        self.as_attached: Noted | None = None
        self._together: Together | None = None
        self._ready: Ready | None = None

    def hand_out(self) -> None:
        """Give every reader its values for the coming forward of this thread."""
        banks, ready = list(self.stacked()), None
        if not torch.compiler.is_compiling():
            # Banks whose tensors are unchanged use what they have kept.
            known = look([bank for bank in banks if isinstance(bank, MPOBank)], self._together)
            self._together = known
            ready = self._ready = made_ready(banks, known, self._ready)
        if ready is not None:
            ready.hand_out()
            return
        for bank in banks:
            bank.hand_out()

    def withdraw(self) -> None:
        """Take back what was handed out in this thread, so that it can be freed."""
        # Another thread may have put something else in its place; all is withdrawn then.
        ready = None if torch.compiler.is_compiling() else self._ready
        if ready is None:
            for bank in self.stacked():
                bank.withdraw()
            return
        ready.withdraw()
        for bank in self.stacked():
            if isinstance(bank, MPOBank):
                bank.trust.kept = None

    def forget(self) -> None:
        """Let go of the matrices that the last forward was handed."""
        self._together = self._ready = None

    def train(self, mode: bool = True) -> Banks:
        """Set training mode, which forgets the matrices of evaluation.

        Parameters
        ----------
        mode : bool
            True for training, False for evaluation.

        Returns
        -------
        Banks
            The same ones.
        """
        if mode:
            self.forget()
        return super().train(mode)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Banks:
        self.forget()
        return super()._apply(fn, recurse)  # type: ignore[no-untyped-call, no-any-return]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_together": None, "_ready": None}

    def stacked(self) -> Iterator[StackedBank]:
        """Return an iterator over the banks.

        Returns
        -------
        iterator of StackedBank
            In the order of the plan.
        """
        for bank in self.values():
            if isinstance(bank, StackedBank):
                yield bank


def banks_of(model: object, of_peft: str = READ_INSIDE) -> Banks:
    """Return the banks of a converted model.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        A converted model.
    of_peft : str
        What to do with a model of PEFT instead; by default the model inside is what is meant.

    Returns
    -------
    Banks
        Its banks by role.

    Raises
    ------
    ConversionError
        When the model is not converted.
    """
    of_lora = inside(model)
    plain = isinstance(of_lora, PreTrainedModel) and not is_converted(of_lora)
    checked = check_model(model, ON_PLAIN if plain else of_peft)
    banks = base_of(checked)._modules.get(BANKS)
    if not isinstance(banks, Banks):
        first = ON_PLAIN if layers_of_peft(checked) else "Call mpobert_plugin.convert(model) first."
        raise ConversionError(
            f"model must be converted, got a plain {type(checked).__name__}. {first}"
        )
    return banks


def set_cache(model: object, enabled: bool) -> None:
    """Switch the evaluation cache of rebuilt matrices on or off; it is on at first.

    The cache serves forwards without gradient in evaluation mode. Each of them reads the tensors
    of the banks, on a GPU with one wait for the device per bank, and rebuilds when a bit has
    changed, whatever wrote it. An evaluation with gradient enabled rebuilds every time, as
    training does, since its graph belongs to one backward: put ``torch.no_grad()`` around
    predictions. Compiled models, traces, captured CUDA graphs and offloaded banks rebuild as well.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        A converted model.
    enabled : bool
        Without the cache, every forward rebuilds all matrices and keeps none of them.

    Raises
    ------
    ConversionError
        When the model is not converted.
    ConfigError
        When `enabled` is neither True nor False.

    Examples
    --------
    >>> import mpobert_plugin as mp
    >>> set_cache(mp.build("mpobert-12", head="none", device="meta"), False)
    """
    banks = banks_of(model)
    if not isinstance(enabled, bool):
        raise ConfigError(f"enabled must be True or False, got {enabled!r}.")
    banks.forget()
    for bank in banks.stacked():
        if isinstance(bank, MPOBank):
            evaluation = "cached" if enabled else "batched"
            bank.strategy = replace(bank.strategy, evaluation=evaluation)
            bank.drop_cache()


def install_hooks(base: nn.Module) -> None:
    """Make every forward of a base model hand out the values of its banks.

    Parameters
    ----------
    base : torch.nn.Module
        Base model with banks.
    """
    base.register_forward_pre_hook(hand_out)
    base.register_forward_hook(take_back, always_call=True)


def remove_hooks(base: nn.Module) -> None:
    """Undo `install_hooks`; hooks of others stay.

    Parameters
    ----------
    base : torch.nn.Module
        A base model that has no banks any more.
    """
    for hooks, own in ((base._forward_pre_hooks, hand_out), (base._forward_hooks, take_back)):
        for number in [number for number, hook in hooks.items() if hook is own]:
            del hooks[number]
            base._forward_hooks_always_called.pop(number, None)


@no_graph_of_its_own
def hand_out(base: nn.Module, _args: Any) -> None:
    """Hand out the values of all banks; the forward pre-hook of a base model.

    Parameters
    ----------
    base : torch.nn.Module
        Base model with banks.
    """
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        carry_values(base)
    base._modules[BANKS].hand_out()  # type: ignore[union-attr, operator]


@no_graph_of_its_own
def take_back(base: nn.Module, _args: Any, _output: Any) -> None:
    """Take back the values of all banks; the forward hook of a base model, also after errors.

    Parameters
    ----------
    base : torch.nn.Module
        Base model with banks.
    """
    base._modules[BANKS].withdraw()  # type: ignore[union-attr, operator]
