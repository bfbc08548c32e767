"""Models of the PEFT library: how to tell them, and what to pass or call in their place."""

from __future__ import annotations

from torch import nn

READ_INSIDE = "Pass model.get_base_model()."
CONVERT_BEFORE = (
    "Convert the plain model and put LoRA on the result, as mpobert_plugin.peft.lora_config says; "
    "model.unload() takes LoRA off."
)
MERGE_BOTH = "Call mpobert_plugin.peft.merge(model), which merges LoRA too."
MERGE_OR_UNLOAD = (
    "Call mpobert_plugin.peft.merge(model), which merges LoRA and adapters into a new model; or "
    "take LoRA off first: model = model.unload()."
)
ADD_ANOTHER = "LoRA is there already: model.load_adapter(folder, name) of PEFT adds another one."
TRAIN_WITHOUT = (
    "A run trains a model without LoRA: peft_model.unload() returns it. LoRA is trained by "
    "transformers.Trainer, or a loop of your own."
)
# For functions of converted models, where LoRA is on a plain one.
ON_PLAIN = (
    "There is LoRA on a plain model: merge_and_unload() of PEFT merges it, unload() takes it off, "
    "and mpobert_plugin.convert converts what they return."
)


def is_of_peft(model: object) -> bool:
    """Return whether an object is a model or a layer of PEFT, or of a class that is made of one.

    Parameters
    ----------
    model : object
        Anything.

    Returns
    -------
    bool
        By the names of modules, so that PEFT need not be installed.

    Examples
    --------
    >>> is_of_peft(nn.Linear(2, 2))
    False
    """
    return any(kind.__module__.startswith("peft.") for kind in type(model).__mro__)


def inside(model: object) -> object:
    """Return the model of transformers inside one of PEFT.

    Parameters
    ----------
    model : object
        Anything.

    Returns
    -------
    object
        None when it is no ``PeftModel``.

    Examples
    --------
    >>> print(inside(nn.Linear(2, 2)))
    None
    """
    get = getattr(model, "get_base_model", None)
    return get() if is_of_peft(model) and callable(get) else None


def layers_of_peft(model: nn.Module) -> list[str]:
    """Return the names of layers that PEFT has put around others.

    Parameters
    ----------
    model : torch.nn.Module
        Any model.

    Returns
    -------
    list of str
        Full names; of layers in such layers, the outer ones alone.

    Examples
    --------
    >>> layers_of_peft(nn.Sequential(nn.Linear(2, 2)))
    []
    """
    found: list[str] = []
    for name, module in model.named_modules():
        if is_of_peft(module) and not any(name.startswith(f"{outer}.") for outer in found):
            found.append(name)
    return found
