"""Sharing policies: each one is a map from layer to the slice of a stacked tensor."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TypeAlias

from torch import Tensor

from mpobert_plugin.errors import SharingError

Rule: TypeAlias = Callable[[int, str], Hashable]
Policy: TypeAlias = "str | bool | Sequence[Sequence[int]] | Rule | None"
# One for all roles, or one for each role that is named.
Policies: TypeAlias = "Policy | Mapping[str, Policy]"
LayerMap: TypeAlias = tuple[int, ...]

# Longer numbers are no layer numbers, and Python may refuse to read them.
_DIGITS = 12
_WORDS = (
    "'none', 'all', 'groups:k', 'albert', a list of blocks of layer numbers or a function of "
    "layer and role"
)


def layer_map(policy: Policy, n_layers: int, argument: str = "sharing", role: str = "") -> LayerMap:
    """Return, for each layer, the number of the slice that it uses under a policy.

    Parameters
    ----------
    policy : str, bool, sequence of sequences of int, function, or None
        'none' (also False and None): a slice for each layer. 'all' (also True) and 'albert': one
        slice. 'groups:k': k blocks of neighbouring layers, as equal as possible. A list of blocks
        such as ``[[0, 1], [2, 3]]``, which must hold every layer once. A function of layer number
        and role: layers for which it returns the same key share, one with None shares with none.
    n_layers : int
        Number of layers.
    argument : str
        Name of the option, for messages.
    role : str
        Role that a function is asked for.

    Returns
    -------
    tuple of int
        Slice of each layer; slices are numbered from 0 in the order of their first layer.

    Raises
    ------
    SharingError
        When the policy is unknown or does not fit the number of layers.

    Examples
    --------
    >>> layer_map("groups:2", 5)
    (0, 0, 0, 1, 1)
    >>> layer_map(lambda layer, role: layer % 2, 5)
    (0, 1, 0, 1, 0)
    """
    if callable(policy):
        return _ruled(policy, n_layers, argument, role)
    if not (policy is None or isinstance(policy, str | bool)):
        return _blocks(policy, n_layers, argument)
    if policy in (None, False, "none"):
        return tuple(range(n_layers))
    if policy in (True, "all", "albert"):
        return (0,) * n_layers
    return _groups(str(policy), n_layers, argument)


def _ruled(rule: Rule, n_layers: int, argument: str, role: str) -> LayerMap:
    number_of: dict[Hashable, int] = {}
    slices = []
    for layer in range(n_layers):
        try:
            key = rule(layer, role)
            _check_key(key, layer, argument, role)
            # A layer that shares with none gets a key of its own.
            own: Hashable = ("alone", layer) if key is None else ("with", key)
            slices.append(number_of.setdefault(own, len(number_of)))
        except TypeError as error:
            raise SharingError(
                f"{argument} must be a function of layer and role that returns a key which can be "
                f"hashed, got an error for layer {layer} of {role!r}: {error}."
            ) from error
    return tuple(slices)


def _check_key(key: object, layer: int, argument: str, role: str) -> None:
    """Refuse keys that equal no other key, such as tensors and NaN: layers would never share."""
    if isinstance(key, Tensor) or key != key:  # noqa: PLR0124 (what else NaN is)
        raise SharingError(
            f"{argument} must be a function of layer and role that returns keys to compare, got "
            f"{key!r} for layer {layer} of {role!r}, which equals no other key. Return a number or "
            "a text; .item() makes a number of a tensor."
        )


def _groups(policy: str, n_layers: int, argument: str) -> LayerMap:
    word, colon, digits = policy.partition(":")
    if word != "groups" or not colon or not digits.isdecimal() or len(digits) > _DIGITS:
        raise SharingError(f"{argument} must be {_WORDS}, got {policy!r}.")
    k = int(digits)
    if not 1 <= k <= n_layers:
        raise SharingError(
            f"{argument} must ask for 1 to {n_layers} groups, since the model has {n_layers} "
            f"layers, got {policy!r}."
        )
    return tuple(layer * k // n_layers for layer in range(n_layers))


def _blocks(policy: object, n_layers: int, argument: str) -> LayerMap:
    found: dict[int, int] = {}
    if not isinstance(policy, Sequence) or not all(isinstance(b, Sequence) for b in policy):
        raise SharingError(f"{argument} must be {_WORDS}, got {policy!r}.")
    for block in policy:
        if len(block) == 0 or not all(type(layer) is int for layer in block):
            raise SharingError(
                f"{argument} must list blocks of one or more layer numbers, got {block!r}."
            )
    for number, block in enumerate(sorted(policy, key=min)):
        for layer in block:
            if not 0 <= layer < n_layers:
                raise SharingError(
                    f"{argument} must name layers 0 to {n_layers - 1}, got layer {layer}."
                )
            if layer in found:
                raise SharingError(f"{argument} must name each layer once, got {layer} twice.")
            found[layer] = number
    missing = sorted(set(range(n_layers)) - set(found))
    if missing:
        raise SharingError(
            f"{argument} must name each of the {n_layers} layers once, layers {missing} are in no "
            f"block. Add them, each as a block of its own if nothing is to be shared."
        )
    return tuple(found[layer] for layer in range(n_layers))


def members(slices: LayerMap) -> list[list[int]]:
    """Return the layers that use each slice.

    Parameters
    ----------
    slices : tuple of int
        Slice of each layer.

    Returns
    -------
    list of lists of int
        Layers of slice 0, of slice 1, and so on.

    Examples
    --------
    >>> members((0, 0, 1))
    [[0, 1], [2]]
    """
    users: list[list[int]] = [[] for _ in range(max(slices) + 1)]
    for layer, piece in enumerate(slices):
        users[piece].append(layer)
    return users


def encode(slices: LayerMap) -> str:
    """Return a map as a short readable text: runs of equal and of counting slices.

    Parameters
    ----------
    slices : tuple of int
        Slice of each layer.

    Returns
    -------
    str
        Text that `decode` reads.

    Examples
    --------
    >>> encode((0, 0, 0, 1, 1)), encode((0, 1, 2, 3))
    ('0*3 1*2', '0-3')
    """
    words: list[str] = []
    at = 0
    while at < len(slices):
        same = _run(slices, at, 0)
        counting = _run(slices, at, 1)
        if same >= counting:
            words.append(f"{slices[at]}*{same}" if same > 1 else f"{slices[at]}")
        else:
            words.append(f"{slices[at]}-{slices[at] + counting - 1}")
        at += max(same, counting)
    return " ".join(words)


def _run(slices: LayerMap, start: int, step: int) -> int:
    length = 1
    while start + length < len(slices) and slices[start + length] == slices[start] + step * length:
        length += 1
    return length


def decode(text: str, n_layers: int, gaps: bool = False) -> LayerMap:
    """Return the map that a text of `encode` stands for.

    Parameters
    ----------
    text : str
        Words such as ``0*3`` (slice 0 three times) and ``0-3`` (slices 0 to 3).
    n_layers : int
        Number of layers that the map must have.
    gaps : bool
        Whether slices may be missing, which only a list of sources can have.

    Returns
    -------
    tuple of int
        Slice of each layer.

    Raises
    ------
    SharingError
        When the text cannot be read, or does not describe that many layers and their slices.

    Examples
    --------
    >>> decode("0*3 1*2", 5)
    (0, 0, 0, 1, 1)
    """
    slices: list[int] = []
    for word in text.split():
        slices.extend(_word(word, n_layers - len(slices), (text, n_layers)))
    used = set(slices)
    if len(slices) != n_layers or not (gaps or used == set(range(len(used)))):
        raise SharingError(
            f"a layer map must give {n_layers} layers slices counted from 0, got {text!r}."
        )
    return tuple(slices)


def decode_some(text: str, n_layers: int) -> LayerMap:
    """Return the layer numbers that a text of `encode` stands for, in ascending order.

    Parameters
    ----------
    text : str
        Words such as ``0-3`` (layers 0 to 3) and ``5`` (layer 5).
    n_layers : int
        Number of layers of the model.

    Returns
    -------
    tuple of int
        At least one layer number.

    Raises
    ------
    SharingError
        When the text cannot be read, or names layers that are not there, twice or in disorder.

    Examples
    --------
    >>> decode_some("0-1 3", 5)
    (0, 1, 3)
    """
    layers: list[int] = []
    for word in text.split():
        layers.extend(_word(word, n_layers - len(layers), (text, n_layers)))
    if not layers or layers != sorted(set(layers)) or layers[-1] >= n_layers:
        raise SharingError(
            f"layers must be ascending numbers from 0 to {n_layers - 1}, got {text!r}."
        )
    return tuple(layers)


def _word(word: str, room: int, whole: tuple[str, int]) -> range | list[int]:
    """Return the numbers of a word, for which there is room in a whole text for so many layers."""
    if max(map(len, word.replace("*", "-").split("-"))) > _DIGITS:
        raise SharingError(f"a layer map must have numbers of at most {_DIGITS} digits.")
    text, n_layers = whole
    length = int(word.isdecimal())
    for mark in "*-":
        first, found, second = word.partition(mark)
        if found and first.isdecimal() and second.isdecimal():
            start, number = int(first), int(second)
            length = number if mark == "*" else number - start + 1
            # Checked before a list is made: the text may come from a stranger's file.
            if 1 <= length <= room:
                return [start] * length if mark == "*" else range(start, start + length)
    if word.isdecimal() and room >= 1:
        return [int(word)]
    if length > room:
        raise SharingError(
            f"a layer map must give {n_layers} layers one number each, got {text!r}, whose "
            f"{word!r} gives {n_layers - room + length}."
        )
    raise SharingError(f"a layer map is made of words like '0*3', '0-3' or '2', got {text!r}.")
