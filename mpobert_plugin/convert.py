"""Convert a plain model in place: plan, compute, and only then replace."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Never, TypeVar

import torch
from torch import nn

from mpobert_plugin.accounting import account
from mpobert_plugin.attach import attach, expand_layers, finish, make_banks, own_config
from mpobert_plugin.attach_outside import outside_path
from mpobert_plugin.budget import within_budget
from mpobert_plugin.calibrate import input_metrics
from mpobert_plugin.config import MPOConfig, option_names
from mpobert_plugin.errors import ConfigError
from mpobert_plugin.init.decomposed import Prepared, prepare
from mpobert_plugin.locate import check_model, family_of, layer_names, prefix_of
from mpobert_plugin.of_peft import CONVERT_BEFORE
from mpobert_plugin.options import refuse_unknown
from mpobert_plugin.planning import make_plan, options_by_role
from mpobert_plugin.policies import settled
from mpobert_plugin.runtime import Banks, banks_of
from mpobert_plugin.wrapped import TO_CONVERT, refuse_wrapped

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from transformers import PreTrainedModel

    import tensornet as tn
    from mpobert_plugin.calibrate import Batch
    from mpobert_plugin.config import Shapes
    from mpobert_plugin.init.stable import Deep
    from mpobert_plugin.plan import ConversionPlan
    from mpobert_plugin.sharing import LayerMap, Policies

Model = TypeVar("Model", bound="PreTrainedModel")


def convert(
    model: Model,
    config: MPOConfig | None = None,
    *,
    sharing: Policies = None,
    n: int | None = None,
    shapes: Shapes = None,
    max_bond: int | Mapping[str, int] | None = None,
    rtol: float | Mapping[str, float] | None = None,
    ratio: float | None = None,
    max_params: int | None = None,
    targets: Sequence[str] | None = None,
    adapter_rank: int | Mapping[str, int] | None = None,
    adapter_alpha: float | None = None,
    adapter_targets: Sequence[str] | None = None,
    share_bias: Policies = None,
    share_norm: Policies = None,
    gauge: str | None = None,
    fit: str | None = None,
    adapter_fit: str | None = None,
    calibration: Iterable[Batch] | None = None,
    **unknown: Never,
) -> Model:
    """Return the model with its matrices replaced by shared tensors; it is changed in place.

    Without options the model computes what it computed: layers that are one module share,
    others keep their own tensors at full bond, which stores more than the plain matrices. A
    conversion that fails leaves the model exactly as it was. Model and cores are therefore both
    in memory at the end of it: measured peaks are 0.1 times the model more, and up to 0.3 times
    with `rtol`.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        A plain model of a known family with any head, or one of another type whose layers stand
        in numbered lists; its matrices must be named by `targets`.
    config : MPOConfig, optional
        All options in one object; the options below override it.
    sharing : str, list of blocks, function or mapping, optional
        Which layers share central tensors: 'none', 'all', 'groups:k', 'albert', blocks, a function
        of layer and role that returns a key, or one of these for each role. An ALBERT gets a
        module of its own for each layer as soon as this is given.
    n : int, optional
        Number of sites, five by default.
    shapes : mapping or pair, optional
        Factors of the sizes, by role or by size, or one pair for all matrices.
    max_bond : int or mapping of str to int, optional
        Largest bond, or that of each role: ``{"embedding": 16, "*": 64}``.
    rtol : float or mapping of str to float, optional
        Largest relative Frobenius error of each matrix, or that of each role.
    ratio : float, optional
        Budget for the whole model: stored parameters divided by those of the plain model with a
        layer's matrices in each layer, in (0, 1]. The bonds of all matrices are chosen together;
        matrices stay plain where that is smaller, and what is not converted counts as it is. A
        plain ALBERT, whose layers are one, has a ratio below 1 already: ``account(model).ratio``.
    max_params : int, optional
        Budget in parameters instead. Either is spent so that the sum of the matrices' squared
        relative errors is small.
    targets : sequence of str, optional
        Roles of the matrices to convert. Those outside the layers are converted only when they
        are named: 'embedding', 'pooler', 'embedding_projection'.
    adapter_rank : int or mapping of str to int, optional
        Rank of the low-rank adapters.
    adapter_alpha : float, optional
        Adapters are scaled by alpha / rank.
    adapter_targets : sequence of str, optional
        Roles that get an adapter.
    share_bias, share_norm : bool, str, list of blocks, function or mapping, optional
        Sharing of biases and norms, in the same words.
    gauge : str, optional
        'symmetric' by default.
    fit : str, optional
        'joint', 'mean' or 'first': how layers that differ are brought to share. 'joint' decomposes
        them together, so that each keeps auxiliary tensors of its own; the others give all of
        them one matrix. With `rtol` the fitted matrices must lie that close to each layer's own,
        or nothing is converted.
    adapter_fit : str, optional
        'residual': adapters start as the best approximation of what the cores leave of their
        matrices, which is the default with ``fit="joint"``. 'zero': they start without effect.
    calibration : iterable of mappings or Tensors, optional
        A few batches as the model's forward takes them, or (batch, length) token ids. Matrices
        that are cut or come to share are then decomposed, averaged and adapted in the metric of
        their inputs, so that errors count as they show in the layers' outputs; `rtol` means these
        errors.
    **unknown
        Any other name is an error that tells the close ones.

    Returns
    -------
    transformers.PreTrainedModel
        The same object.

    Raises
    ------
    ModelTypeError
        When the model is of no known family, or wrapped or sharded.
    ConfigError
        When an option is unknown, has an impossible value, or could only be ignored; TargetError
        when a target does not exist.
    SharingError
        When a policy does not fit, or layers that differ are to share without `fit`.
    ConversionError
        When the model is converted already, or a module cannot be replaced: a subclass, one with
        hooks, a forward or parameters of its own, or with a parameter that is tied to another
        role or a head; its full name is told.

    Warns
    -----
    MPOBertWarning
        When the budget is no less than what the model stores already, so that nothing has to
        become smaller; what to ask for is told.

    Examples
    --------
    >>> from transformers import BertConfig, BertModel
    >>> sizes = dict(hidden_size=8, num_attention_heads=2, intermediate_size=16)
    >>> plain = BertModel(BertConfig(vocab_size=9, num_hidden_layers=2, **sizes))
    >>> model = convert(plain, n=3, sharing="all", fit="mean")
    >>> model.mpo["query"].central.shape
    torch.Size([1, 4, 2, 2, 4])
    """
    refuse_wrapped(model, TO_CONVERT)
    check_model(model, CONVERT_BEFORE)
    refuse_unknown(unknown, [*option_names(), "calibration", "config"], "convert")
    options: dict[str, object] = {
        "sharing": sharing,
        "n": n,
        "shapes": shapes,
        "max_bond": max_bond,
        "rtol": rtol,
        "ratio": ratio,
        "max_params": max_params,
        "targets": targets,
        "adapter_rank": adapter_rank,
        "adapter_alpha": adapter_alpha,
        "adapter_targets": adapter_targets,
        "share_bias": share_bias,
        "share_norm": share_norm,
        "gauge": gauge,
        "fit": fit,
        "adapter_fit": adapter_fit,
    }
    return convert_with(model, merge_options(config, options), calibration=calibration)


def merge_options(config: MPOConfig | None, options: dict[str, object]) -> MPOConfig:
    """Return a configuration with the options that are not None put over it.

    Parameters
    ----------
    config : MPOConfig or None
        The configuration; the defaults when None.
    options : dict
        Options by name.

    Returns
    -------
    MPOConfig
        A new configuration without a plan.

    Raises
    ------
    ConfigError
        When `config` is something else, or an option is impossible.
    """
    if config is not None and not isinstance(config, MPOConfig):
        raise ConfigError(
            f"config must be an MPOConfig, got {type(config).__name__}. Options such as "
            "sharing= and max_bond= are given by name."
        )
    given = {name: value for name, value in options.items() if value is not None}
    return (config or MPOConfig()).replace(**given, plan=None)


def convert_with(
    model: Model,
    config: MPOConfig,
    sources: LayerMap | None = None,
    deep: Deep | None = None,
    calibration: Iterable[Batch] | None = None,
) -> Model:
    """Return the model converted by a configuration; it is changed in place.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        A plain model.
    config : MPOConfig
        All options.
    sources : tuple of int, optional
        Layer of the model that each layer of the result is copied from.
    deep : Deep, optional
        What the layers beyond some depth start from.
    calibration : iterable of mappings or Tensors, optional
        Batches over which the metric of each matrix's inputs is taken.

    Returns
    -------
    transformers.PreTrainedModel
        The same object.

    Raises
    ------
    MPOBertError
        As `convert` says.
    """
    # Tensors made under inference_mode could never be trained.
    with torch.inference_mode(False):
        plan = make_plan(model, config, sources)
        metrics = None if calibration is None else _metrics(model, plan, calibration)
        with torch.no_grad():
            config = config.replace(**options_by_role(model, config))
            config = config.replace(**settled(config, plan, _paths(model)))
            plan = replace(plan, stored_before=account(model).unique)
            plan = within_budget(model, plan, config, metrics, may_grow=sources is not None)
            prepared = prepare(model, plan, config, metrics)
            prepared = deep.applied(prepared) if deep is not None else prepared
        # Nothing of the model is changed up to here, and nothing in `assemble` fails.
        assemble(model, prepared.plan, filled_banks(prepared), config)
        banks_of(model).certificates = _named_certificates(model, prepared)
        _leave_inference(model)
    return model


def _metrics(
    model: PreTrainedModel, plan: ConversionPlan, calibration: Iterable[Batch]
) -> dict[str, list[torch.Tensor]]:
    """Return the metric of each matrix that the plan converts and that something enters."""
    inside = [spec.role for spec in plan.banks]
    beside = [spec.role for spec in plan.outside if spec.role in family_of(model).beside]
    if not inside and not beside:
        raise ConfigError(
            "calibration weighs the inputs of matrices in the layers or beside them, got targets "
            f"without any: {', '.join(spec.role for spec in plan.outside)}. Leave calibration out. "
            "Nothing was changed."
        )
    return input_metrics(model, calibration, list(dict.fromkeys([*inside, *beside])))


def _leave_inference(model: PreTrainedModel) -> None:
    """Give the rest of a model that was made under inference_mode tensors that can be trained."""
    fresh: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            if parameter.is_inference():
                own = nn.Parameter(parameter.clone(), parameter.requires_grad)
                # Tied parameters stay one.
                setattr(module, name, fresh.setdefault(id(parameter), own))
        for name, buffer in list(module.named_buffers(recurse=False)):
            if buffer.is_inference():
                setattr(module, name, buffer.clone())


def assemble(model: PreTrainedModel, plan: ConversionPlan, banks: Banks, config: MPOConfig) -> None:
    """Put the banks of a plan into a plain model, in place.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        The plain model that the plan was made for.
    plan : ConversionPlan
        The plan.
    banks : Banks
        Its banks.
    config : MPOConfig
        What was asked for; kept in the model's configuration with the plan.
    """
    own_config(model)
    expand_layers(model, plan)
    attach(model, plan, banks)
    finish(model, plan)
    own = settled(config, plan, _paths(model))
    model.config.quantization_config = config.replace(plan=plan, **own)


def _paths(model: PreTrainedModel) -> dict[str, str]:
    return {**family_of(model).matrices, **family_of(model).norms}


def filled_banks(prepared: Prepared) -> Banks:
    """Return the banks of a plan with their tensors in them.

    Parameters
    ----------
    prepared : Prepared
        Plan and tensors.

    Returns
    -------
    Banks
        Banks by role.
    """
    banks = make_banks(prepared.plan, device="meta")
    for key, bank in banks.items():
        for name, tensor in prepared.tensors[key].items():
            kind = name if (key, name) in prepared.trainable else "weight"
            trainable = name.startswith("adapter") or prepared.trainable.get((key, kind), True)
            setattr(bank, name, nn.Parameter(tensor, requires_grad=trainable))
    return Banks(banks, prepared.plan)


def _named_certificates(model: PreTrainedModel, prepared: Prepared) -> dict[str, tn.Certificate]:
    family, names = family_of(model), layer_names(model)
    outside = {spec.role: outside_path(model, spec.role) for spec in prepared.plan.outside}
    return {
        prefix_of(model)
        + (outside.get(role) or f"{names[layer]}.{family.matrices[role]}"): certificate
        for (role, layer), certificate in prepared.certificates.items()
    }


def certificates(model: PreTrainedModel) -> dict[str, tn.Certificate]:
    """Return the certificate of every matrix that was decomposed, by full module name.

    They belong to the session that converted the model; the relative errors are also kept in
    ``model.config.quantization_config.plan``. A matrix that was fitted to others has none.

    They speak of the stored tensors, rounded to their element type, and of their exact product.
    What a forward rounds beyond that is not in them: rebuilding a matrix in float16 or bfloat16
    rounds the products on the way and the matrix itself, each by up to that type's unit roundoff
    (5e-4 and 4e-3, relative). The errors in the plan leave it out in the same way.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        A converted model.

    Returns
    -------
    dict of str to tensornet.Certificate
        Empty for a loaded model.

    Raises
    ------
    ConversionError
        When the model is not converted.

    Examples
    --------
    >>> from transformers import BertConfig, BertModel
    >>> sizes = dict(hidden_size=8, num_attention_heads=2, intermediate_size=16)
    >>> plain = BertModel(BertConfig(vocab_size=9, num_hidden_layers=2, **sizes))
    >>> found = certificates(convert(plain, n=3, gauge="central"))
    >>> found["encoder.layer.0.attention.self.query"].relative_error
    0.0
    """
    return dict(banks_of(model).certificates)
