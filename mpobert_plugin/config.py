"""MPOConfig: what was asked for and, once converted, the plan; kept in the model's config.json."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from transformers.utils.quantization_config import QuantizationConfigMixin

from mpobert_plugin.errors import CheckpointError, ConfigError, close_to
from mpobert_plugin.limits import limit_of, named_limits, of_roles
from mpobert_plugin.options import (
    check_budget,
    check_integer,
    own_integer,
    own_number,
    refuse_unknown,
)
from mpobert_plugin.plain_values import listed, plain_policies, plain_shapes
from mpobert_plugin.plan import FITS, GAUGES, ConversionPlan
from mpobert_plugin.ranks import check_adapters
from mpobert_plugin.sharing import Policies

METHOD = "mpo"
VERSION = 1
ADAPTER_FITS = ("residual", "zero")
# For whoever opens a config.json after transformers has said that it does not know the method.
LOADED_BY = "import mpobert_plugin (pip install tensornet-mpo[mpobert])"

Dims: TypeAlias = tuple[tuple[int, ...], tuple[int, ...]]
Shapes: TypeAlias = "Mapping[str, Dims] | Mapping[int, Sequence[int]] | Dims | None"


class MPOConfig(QuantizationConfigMixin):  # type: ignore[no-untyped-call, unused-ignore]
    """Options of a conversion, in the form in which transformers stores them beside a model.

    Parameters
    ----------
    sharing : str, list of blocks, function, mapping, or None
        Which layers share central tensors: 'none', 'all', 'groups:k', 'albert' (auxiliary tensors
        too), blocks of layer numbers, or a function of layer and role that returns the same key
        for layers that share. A mapping gives a policy to each role, as all options by role do: a
        path inside a layer means all roles at it, ``"*"`` all that are not named. None shares
        what is one module in the model already.
    n : int
        Number of sites of each matrix, unless `shapes` gives them.
    shapes : mapping or pair, optional
        Factors of the sizes: for each role ``{"query": (row_dims, col_dims)}``, for each size
        ``{768: (4, 4, 4, 4, 3)}``, or one pair for all matrices.
    max_bond : int or mapping of str to int, optional
        Largest bond; in a mapping, of the matrices of each role, with ``"*"`` for all others.
    rtol : float or mapping of str to float, optional
        Largest relative Frobenius error of each matrix, or of those of each role.
    ratio : float, optional
        Budget for the whole model: stored parameters divided by those of the plain model with a
        layer's matrices in each layer, in (0, 1]. What is not converted counts as it is stored. A
        plain ALBERT has a ratio below 1 already.
    max_params : int, optional
        Budget in parameters instead. Either of them chooses the bonds of all matrices together.
    targets : sequence of str, optional
        Roles of the matrices to convert; all those of the layers when None. Matrices outside the
        layers are converted when they are named: 'embedding', 'pooler', 'embedding_projection'.
    adapter_rank : int, or mapping of str to int
        Rank of the low-rank adapters; 0 for none. By role, with ``"*"`` for the other roles that
        get one by default.
    adapter_alpha : float, optional
        Adapters are scaled by alpha / rank; alpha is the rank when None.
    adapter_targets : sequence of str, optional
        Roles that get an adapter; those of the family when None.
    share_bias, share_norm : bool, str, list of blocks, function, or mapping, optional
        Sharing policy of biases and of norms; None and False keep them per layer.
    gauge : str
        'symmetric', 'central', 'left', 'right' or 'identity'.
    fit : str, optional
        How layers that differ are brought to share: 'joint' decomposes them together, so that each
        keeps auxiliary tensors of its own; 'mean' and 'first' give all of them one matrix.
    adapter_fit : str, optional
        'residual' gives each adapter the best approximation of what the cores leave of its
        matrix; 'zero' starts it without effect. None is 'residual' with ``fit="joint"``.
    plan : ConversionPlan or mapping, optional
        The plan that a conversion followed; set by the library.
    **other
        ``quant_method`` and ``version``, which stored configurations have. Others are errors.

    Raises
    ------
    ConfigError
        When an option has an unknown name or an impossible value.

    Examples
    --------
    >>> config = MPOConfig(sharing="all", adapter_rank=8)
    >>> MPOConfig.from_dict(config.to_dict()) == config
    True
    """

    def __init__(
        self,
        sharing: Policies = None,
        n: int = 5,
        shapes: Shapes = None,
        max_bond: int | Mapping[str, int] | None = None,
        rtol: float | Mapping[str, float] | None = None,
        ratio: float | None = None,
        max_params: int | None = None,
        targets: Sequence[str] | None = None,
        adapter_rank: int | Mapping[str, int] = 0,
        adapter_alpha: float | None = None,
        adapter_targets: Sequence[str] | None = None,
        share_bias: Policies = None,
        share_norm: Policies = None,
        gauge: str = "symmetric",
        fit: str | None = None,
        adapter_fit: str | None = None,
        plan: ConversionPlan | Mapping[str, Any] | None = None,
        **other: object,
    ) -> None:
        _check_stored_fields(other)
        # transformers takes any text here, though it names its own methods by an enumeration.
        self.quant_method = METHOD  # type: ignore[assignment]
        self.version = VERSION
        self.loaded_by = LOADED_BY
        self.sharing = plain_policies(sharing, "sharing")
        self.n = own_integer(n)
        self.shapes = plain_shapes(shapes)
        self.max_bond = of_roles(max_bond, own_integer)
        self.rtol = of_roles(rtol, own_number)
        self.ratio = own_number(ratio)
        self.max_params = own_integer(max_params)
        self.targets = _names(targets, "targets")
        self.adapter_rank = of_roles(adapter_rank, own_integer)
        self.adapter_alpha = own_number(adapter_alpha)
        self.adapter_targets = _names(adapter_targets, "adapter_targets")
        self.share_bias = plain_policies(share_bias, "share_bias")
        self.share_norm = plain_policies(share_norm, "share_norm")
        self.gauge = gauge
        self.fit = fit
        self.adapter_fit = adapter_fit
        self.plan = _plan(plan)
        self._check()

    def _check(self) -> None:
        check_integer("n", self.n, least=1)
        for name, bond in named_limits("max_bond", self.max_bond).items():
            check_integer(name, bond, least=1)
        for name, rtol in named_limits("rtol", self.rtol).items():
            _number(name, rtol, above=0.0, below=1.0)
        # Beyond these, alpha / rank or what it is multiplied with leaves the range of float32.
        _number("adapter_alpha", self.adapter_alpha, above=1e-30, below=1e30)
        _word("gauge", self.gauge, GAUGES)
        _word("fit", self.fit, (None, *FITS))
        _word("adapter_fit", self.adapter_fit, (None, *ADAPTER_FITS))
        check_adapters(vars(self))
        check_budget(vars(self))
        if self.gauge == "identity" and (self.max_bond is not None or self.rtol is not None):
            raise ConfigError("gauge 'identity' must be exact: leave out max_bond and rtol.")

    @classmethod
    def from_dict(
        cls, config_dict: dict[str, Any], return_unused_kwargs: bool = False, **kwargs: Any
    ) -> Any:
        """Return the configuration that `to_dict` wrote; transformers reads config.json so.

        Parameters
        ----------
        config_dict : dict
            Output of `to_dict`.
        return_unused_kwargs : bool
            Return those of the further options too that are none of the class.
        **kwargs
            Options that replace stored ones.

        Returns
        -------
        MPOConfig or (MPOConfig, dict)
            The configuration.

        Raises
        ------
        CheckpointError
            When the plan, or an option stored beside one, has a value that it cannot have.
        ConfigError
            When an option of a configuration without a plan does.
        """
        try:
            # transformers leaves this method without types.
            return super().from_dict(config_dict, return_unused_kwargs, **kwargs)  # type: ignore[no-untyped-call]
        except ConfigError as error:
            if "plan" not in config_dict:
                raise
            raise CheckpointError(
                f"quantization_config of config.json is damaged: {error}"
            ) from error

    def replace(self, **options: object) -> MPOConfig:
        """Return a configuration in which some options have other values.

        Parameters
        ----------
        **options
            Options of the class.

        Returns
        -------
        MPOConfig
            A new configuration.

        Raises
        ------
        ConfigError
            When an option has an unknown name or an impossible value.
        """
        fields = {**self.to_dict(), "shapes": self.shapes, "plan": self.plan}
        return MPOConfig(**{**fields, **options})

    @property
    def fits_adapters(self) -> bool:
        """Whether adapters are fitted to what the cores leave of their matrices."""
        return (self.adapter_fit or ("residual" if self.fit == "joint" else "zero")) == "residual"

    def bond_of(self, role: str) -> int | None:
        """Return the largest bond of the matrices of a role.

        Parameters
        ----------
        role : str
            Name of the role.

        Returns
        -------
        int or None
            None when nothing limits it.

        Examples
        --------
        >>> config = MPOConfig(max_bond={"embedding": 16, "*": 64})
        >>> config.bond_of("embedding"), config.bond_of("query")
        (16, 64)
        """
        bond: int | None = limit_of(self.max_bond, role)
        return bond

    def rtol_of(self, role: str) -> float | None:
        """Return the largest relative error of the matrices of a role.

        Parameters
        ----------
        role : str
            Name of the role.

        Returns
        -------
        float or None
            None when nothing is promised.

        Examples
        --------
        >>> print(MPOConfig(rtol={"embedding": 0.1}).rtol_of("query"))
        None
        """
        rtol: float | None = limit_of(self.rtol, role)
        return rtol

    def to_dict(self) -> dict[str, Any]:
        """Return the configuration as values that JSON can hold.

        Returns
        -------
        dict
            What the class takes as options.
        """
        fields = dict(vars(self))
        for name in ("targets", "adapter_targets"):
            fields[name] = None if fields[name] is None else list(fields[name])
        if isinstance(self.shapes, dict):
            fields["shapes"] = {str(key): listed(dims) for key, dims in self.shapes.items()}
        elif self.shapes is not None:
            fields["shapes"] = listed(self.shapes)
        fields["plan"] = None if self.plan is None else self.plan.to_dict()
        return {name: value for name, value in fields.items() if value is not None}

    def get(self, name: str, default: object = None) -> object:
        """Return an option by name, as a dict does; transformers asks stored configurations so.

        Parameters
        ----------
        name : str
            Name of an option.
        default : object
            Result for an unknown name.

        Returns
        -------
        object
            The option's value.
        """
        return vars(self).get(name, default)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MPOConfig) and self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        return hash(json.dumps(self.to_dict(), sort_keys=True, default=repr))

    def __repr__(self) -> str:
        default = vars(MPOConfig())
        hidden = ("quant_method", "version", "plan")
        shown = [
            f"{name}={value!r}"
            for name, value in vars(self).items()
            if name not in hidden and value != default[name]
        ]
        return f"MPOConfig({', '.join(shown)})"


def option_names() -> list[str]:
    """Return the names of the options that a user can give.

    Returns
    -------
    list of str
        In the order of the class.

    Examples
    --------
    >>> option_names()[:2]
    ['sharing', 'n']
    """
    hidden = ("return", "other", "plan")
    return [name for name in MPOConfig.__init__.__annotations__ if name not in hidden]


def _check_stored_fields(other: Mapping[str, object]) -> None:
    unknown = [name for name in other if name not in ("quant_method", "version", "loaded_by")]
    refuse_unknown(unknown, option_names(), "MPOConfig")
    if other.get("quant_method", METHOD) != METHOD:
        raise ConfigError(f"quant_method must be {METHOD!r}, got {other['quant_method']!r}.")
    version = other.get("version", VERSION)
    if type(version) is not int or not 1 <= version <= VERSION:
        raise CheckpointError(
            f"version of the MPO configuration must be 1 to {VERSION}, got {version!r}. "
            "A newer version of mpobert_plugin wrote it: upgrade to read it."
        )


def _plan(given: object) -> ConversionPlan | None:
    if given is None or isinstance(given, ConversionPlan):
        return given
    if isinstance(given, Mapping):
        return ConversionPlan.from_dict(given)
    raise CheckpointError(
        f"plan of the MPO configuration must be an object of fields, got {given!r}. Use the "
        "config.json that save_pretrained wrote."
    )


def _number(name: str, value: object, above: float, below: float) -> None:
    if value is None:
        return
    right = isinstance(value, int | float) and not isinstance(value, bool)
    if not right or not above < value < below:  # type: ignore[operator]
        raise ConfigError(
            f"{name} must be a number above {above:g} and below {below:g}, got {value!r}."
        )


def _word(name: str, value: object, known: Sequence[str | None]) -> None:
    if not isinstance(value, str | None) or value not in known:
        words = [word for word in known if word is not None]
        raise ConfigError(
            f"{name} must be {' or '.join(map(repr, words))}, got {value!r}."
            f"{close_to(str(value), words)}"
        )


def _names(given: object, argument: str) -> tuple[str, ...] | None:
    if given is None:
        return None
    # A mapping would lose what it maps the names to.
    if not isinstance(given, Iterable) or isinstance(given, Mapping):
        raise ConfigError(f"{argument} must list names, got {given!r}.")
    names = (given,) if isinstance(given, str) else tuple(given)
    if not names:
        raise ConfigError(f"{argument} must list at least one name, got {given!r}.")
    if not all(isinstance(name, str) for name in names):
        raise ConfigError(f"{argument} must list names, got {list(names)!r}.")
    return tuple(dict.fromkeys(names))
