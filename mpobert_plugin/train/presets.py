"""Settings by the name of the model that they are for: the published ones and tiny ones."""

from __future__ import annotations

from typing import Any

from mpobert_plugin.errors import ConfigError, close_to
from mpobert_plugin.presets import PRESETS, SMALL_PRESETS

# For a laptop: minutes, and every part of a long run happens.
_SMALL = {
    "steps": 2000,
    "batch_size": 64,
    "micro_batch": 32,
    "length": 128,
    "masked_most": 20,
    "precision": "fp32",
    "optimizer": "adamw",
    "lr": 1e-3,
    "eval_every": 200,
    "save_every": 200,
}
# A published model is trained with the defaults.
SETTINGS: dict[str, dict[str, Any]] = {
    **{name: {} for name in PRESETS},
    **dict.fromkeys(SMALL_PRESETS, _SMALL),
}


def preset_settings(name: object) -> dict[str, Any]:
    """Return the settings of a preset, as far as they are not the defaults.

    Parameters
    ----------
    name : str
        Name of a model that `mpobert_plugin.build` makes.

    Returns
    -------
    dict
        Names and values of `PretrainConfig`.

    Raises
    ------
    ConfigError
        When the name is unknown; close ones are told.

    Examples
    --------
    >>> preset_settings("mpobert-48"), preset_settings("mpobert-tiny")["batch_size"]
    ({}, 64)
    """
    if not isinstance(name, str) or name not in SETTINGS:
        raise ConfigError(
            f"preset must be one of {', '.join(SETTINGS)}, got {name!r}."
            f"{close_to(str(name), list(SETTINGS))}"
        )
    return dict(SETTINGS[name])
