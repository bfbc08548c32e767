"""The LoRA layer that PEFT puts around an MPOLinear; imported only where PEFT is installed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from peft.tuners.lora import Linear

from mpobert_plugin.errors import ConversionError
from mpobert_plugin.linear import MPOLinear
from mpobert_plugin.peft.checks import check_options
from mpobert_plugin.plain_modules import Exact, exact_reader

if TYPE_CHECKING:
    from torch import Tensor, nn


class LoraMPOLinear(Linear):
    """LoRA beside a matrix that a bank rebuilds: ``MPOLinear(x) + scaling * B(A(x))``.

    Only the matrices A and B are its own. It cannot be merged in place: the tensors of the bank
    belong to several layers, and what ``MPOLinear.weight`` returns is a copy.
    """

    def _get_in_out_features(self, module: nn.Module) -> tuple[int, int]:
        # PEFT knows the classes of torch and warns about all others.
        reader = cast("MPOLinear", module)
        return reader.in_features, reader.out_features

    def update_layer(self, adapter_name: str, *args: Any, **kwargs: Any) -> None:
        """Add an adapter, after refusing what would write into the base weight.

        Parameters
        ----------
        adapter_name : str
            Name of the adapter.
        *args, **kwargs
            As PEFT gives them.

        Raises
        ------
        ConfigError
            When the configuration asks for a variant of LoRA that changes the base weight.
        """
        check_options(kwargs["config"])
        super().update_layer(adapter_name, *args, **kwargs)

    def merge(self, safe_merge: bool = False, adapter_names: list[str] | None = None) -> None:  # noqa: ARG002
        """Refuse to merge, since the product could only go into a copy and be lost.

        Parameters
        ----------
        safe_merge, adapter_names
            As PEFT gives them.

        Raises
        ------
        ConversionError
            Always; the message says what to call instead.
        """
        reader = self._reader()
        users = len(reader.bank.readers)
        raise ConversionError(
            f"LoRA cannot be merged into layer {reader.layer} of {reader.role!r}, whose matrix is "
            f"rebuilt from tensors of a bank that {users} layers read. Call "
            "mpobert_plugin.peft.merge(model), which returns a plain model with the LoRA in it."
        )

    def exact_values(self, name: str) -> Exact:
        """Return what the layer computes with: the matrix with all active LoRA added.

        Parameters
        ----------
        name : str
            Full name of the layer, for messages.

        Returns
        -------
        Exact
            Matrix in float64.
        """
        exact = exact_reader(self._reader(), name)
        weight, bias = exact.weight, exact.bias
        active = [] if self.disable_adapters else [a for a in self.active_adapters if a in self.r]
        for adapter in active:
            up = cast("nn.Linear", self.lora_B[adapter])
            down = cast("nn.Linear", self.lora_A[adapter])
            low = [part.weight.detach().to(weight) for part in (up, down)]
            weight = weight + self.scaling[adapter] * (low[0] @ low[1])
            bias = self._bias(bias, up, self.scaling[adapter], name)
        return Exact(
            weight,
            bias,
            exact.dtype,
            exact.device,
            exact.trained,
            exact.bias_trained,
            exact.adapters + len(active),
        )

    def _bias(self, bias: Tensor | None, up: nn.Linear, scale: float, name: str) -> Tensor | None:
        added: Tensor | None = up.bias
        if added is None:
            return bias
        if bias is None:
            raise ConversionError(
                f"{name} must have a bias to take the one of its LoRA, got none. Use lora_bias="
                "False."
            )
        return (bias.double() + scale * added.detach().double()).to(bias.dtype)

    def _reader(self) -> MPOLinear:
        return cast("MPOLinear", self.get_base_layer())
