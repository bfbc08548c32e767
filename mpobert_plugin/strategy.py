"""How a model gets its matrices in training and in evaluation, as a value."""

from __future__ import annotations

from dataclasses import dataclass, replace

from mpobert_plugin.errors import ConfigError, close_to

# What may be chosen; the published way is there to be compared with.
CHOSEN = ("batched", "batched_recompute", "per_group", "per_layer", "factorized")
TRAINING = (*CHOSEN, "reference")
EVALUATION = ("cached", "batched", "per_group", "per_layer", "factorized")
BY_GROUPS = ("per_group", "per_layer")
GROUP = 4


@dataclass(frozen=True)
class Strategy:
    """How a model gets its matrices.

    ``batched`` rebuilds the matrices of all layers before each forward, in one product for each
    bank. ``batched_recompute`` does the same and computes the products on the way again in
    backward instead of keeping them. ``per_group`` rebuilds the matrices of a few layers when the
    first of them is reached, drops them after the last, and rebuilds them in backward;
    ``per_layer`` does so for each layer. ``factorized`` multiplies each layer's input with the
    cores one after the other. ``cached`` keeps the matrices between forwards. ``reference`` is
    the published way, slow and large: each layer multiplies its cores in its own forward, and
    autograd keeps every product.

    Parameters
    ----------
    training : str
        For forwards with gradient, and for all forwards in training mode.
    evaluation : str
        For forwards without gradient in evaluation mode.
    group : int
        Number of layers of a group.

    Raises
    ------
    ConfigError
        When a name is unknown, or is none of that kind of forward.

    Examples
    --------
    >>> Strategy().training, Strategy().evaluation
    ('batched_recompute', 'cached')
    """

    training: str = "batched_recompute"
    evaluation: str = "cached"
    group: int = GROUP

    def __post_init__(self) -> None:
        for when, known in (("training", TRAINING), ("evaluation", EVALUATION)):
            name = getattr(self, when)
            if name not in known:
                raise ConfigError(
                    f"a strategy of {when} must be one of {', '.join(known)}, got {name!r}."
                    f"{close_to(str(name), known)}"
                )
        if type(self.group) is not int or self.group < 1:
            raise ConfigError(f"group must be a number of layers from 1 on, got {self.group!r}.")

    def having(self, when: str, name: str) -> Strategy:
        """Return the strategy with another name for one kind of forward.

        Parameters
        ----------
        when : str
            'training' or 'evaluation'.
        name : str
            The name for it.

        Returns
        -------
        Strategy
            A new value.

        Examples
        --------
        >>> Strategy().having("evaluation", "batched").evaluation
        'batched'
        """
        if when == "training":
            return replace(self, training=name)
        return replace(self, evaluation=name)

    def layers_of(self, name: str) -> int:
        """Return how many layers are rebuilt at a time by a strategy that goes by groups.

        Parameters
        ----------
        name : str
            'per_group' or 'per_layer'.

        Returns
        -------
        int
            Number of layers.

        Examples
        --------
        >>> Strategy(group=3).layers_of("per_group"), Strategy(group=3).layers_of("per_layer")
        (3, 1)
        """
        return self.group if name == "per_group" else 1
