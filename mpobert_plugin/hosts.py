"""The models of known families inside any module, for counting what their layers use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from transformers import PreTrainedModel

from mpobert_plugin.locate import base_of, family_of, has_family, prefix_of, uses_of_layers

if TYPE_CHECKING:
    from torch import Tensor, nn


class Host:
    """One model of transformers and how often a forward runs each of its layers.

    Parameters
    ----------
    model : transformers.PreTrainedModel, optional
        The model; without one, or for one of an unknown family, everything runs once.
    path : str
        Name of the model inside the counted module.
    """

    def __init__(self, model: PreTrainedModel | None = None, path: str = "") -> None:
        self.path = path
        self.base = ""
        self.known = model is not None and has_family(model)
        self.runs: dict[int, int] = {}
        self.layers: list[str] = []
        if model is None or not self.known:
            return
        self.base = _joined(path, prefix_of(model))
        names = family_of(model).layer_names(base_of(model))
        self.layers = [f"{self.base}{name}." for name in names]
        if self.layers:
            for layer in uses_of_layers(model):
                self.runs[layer] = self.runs.get(layer, 0) + 1

    def runs_of(self, layer: int) -> int:
        """Return how often one forward runs a layer.

        Parameters
        ----------
        layer : int
            Number of the layer.

        Returns
        -------
        int
            0 for a layer that is not used.
        """
        return self.runs.get(layer, 0) if self.runs else 1

    def uses_of(self, name: str) -> int:
        """Return how often one forward uses a parameter.

        Parameters
        ----------
        name : str
            Full name.

        Returns
        -------
        int
            Runs of its layer; 1 outside layers.
        """
        for layer, prefix in enumerate(self.layers):
            if name.startswith(prefix):
                return self.runs_of(layer)
        return 1


class Hosts:
    """All outermost models of transformers inside a module.

    Parameters
    ----------
    module : torch.nn.Module
        A model, a wrapper around one, or a module that has some as parts.
    """

    def __init__(self, module: nn.Module) -> None:
        self._hosts: list[Host] = []
        self._repeated: list[str] = []
        self._tied: dict[str, int] = {}
        seen: set[int] = set()
        for path, part in module.named_modules(remove_duplicate=False):
            if not isinstance(part, PreTrainedModel) or self._inside(path):
                continue
            if id(part) in seen:
                # A model and its compiled form, say: one model, which runs once.
                self._repeated.append(_joined(path))
                continue
            seen.add(id(part))
            self._hosts.append(Host(part, path))
            self._tied |= _declared_ties(part, _joined(path))

    def of(self, name: str) -> Host:
        """Return the model that a name belongs to.

        Parameters
        ----------
        name : str
            Full name of a module or parameter.

        Returns
        -------
        Host
            One without layers where no model is.
        """
        for host in self._hosts:
            if f"{name}.".startswith(_joined(host.path)):
                return host
        return Host()

    def is_repeated(self, name: str) -> bool:
        """Return whether a module lies in a model that was met under another name.

        Parameters
        ----------
        name : str
            Full name of a module.

        Returns
        -------
        bool
            True for second names.
        """
        return any(f"{name}.".startswith(path) for path in self._repeated)

    def in_head(self, name: str) -> bool:
        """Return whether a parameter lies outside every base model, when there is one.

        Parameters
        ----------
        name : str
            Full name of a parameter.

        Returns
        -------
        bool
            False in modules without a model of a known family.
        """
        known = [host for host in self._hosts if host.known]
        return bool(known) and not any(name.startswith(host.base) for host in known)

    def key_of(self, name: str, parameter: Tensor) -> int:
        """Return the same number for all names of one stored tensor.

        Parameters
        ----------
        name : str
            Full name.
        parameter : Tensor
            The parameter.

        Returns
        -------
        int
            An identity.
        """
        return self._tied.get(name, id(parameter))

    def _inside(self, path: str) -> bool:
        return any(
            path.startswith(_joined(host.path)) and path != host.path for host in self._hosts
        )


def _joined(path: str, rest: str = "") -> str:
    return f"{path}.{rest}" if path else rest


def _declared_ties(model: PreTrainedModel, prefix: str) -> dict[str, int]:
    """Find tensors that moving to meta took apart: only there a tie cannot be seen."""
    if model.device.type != "meta":
        return {}
    named = dict(model.named_parameters(remove_duplicate=False))
    ties = getattr(model, "all_tied_weights_keys", {})
    return {
        f"{prefix}{name}": id(named[source]) for name, source in ties.items() if source in named
    }
