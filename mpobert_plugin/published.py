"""Our parameter counts of the published models and of their ablations, beside the published."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mpobert_plugin.accounting import account
from mpobert_plugin.presets import build


@dataclass(frozen=True)
class PresetRow:
    """One model: how it is built, what it counts, what was published.

    Parameters
    ----------
    what : str
        The model in words.
    name : str
        Name of the preset.
    options : tuple of (str, object)
        Options of `mpobert_plugin.build`.
    count : int
        Stored parameters.
    published : float or None
        Published number in millions; None where there is none.

    Examples
    --------
    >>> row = PresetRow("24 layers", "mpobert-24", (), 46_232_754, 46.0)
    >>> row.call(), round(row.residual, 2)
    ("build('mpobert-24')", 0.23)
    """

    what: str
    name: str
    options: tuple[tuple[str, Any], ...]
    count: int
    published: float | None = None

    @property
    def residual(self) -> float | None:
        """Our count minus the published one, in millions."""
        return None if self.published is None else self.count / 1e6 - self.published

    def call(self) -> str:
        """Return the call that builds the model.

        Returns
        -------
        str
            Python, without the module.
        """
        words = [repr(self.name), *(f"{key}={value!r}" for key, value in self.options)]
        return f"build({', '.join(words)})"


@dataclass(frozen=True)
class PresetsTable:
    """All rows; prints as a table, in millions of parameters.

    Parameters
    ----------
    rows : tuple of PresetRow
        Bodies with 12 layers and their ablations, then models with both pre-training heads.

    Examples
    --------
    >>> row = PresetRow("24 layers", "mpobert-24", (), 46_232_754, 46.0)
    >>> print(str(PresetsTable((row,))).splitlines()[1].split())
    ['24', 'layers', '46.23', '46', '+0.23']
    """

    rows: tuple[PresetRow, ...]

    def to_dict(self) -> list[dict[str, Any]]:
        """Return the rows as values that JSON can hold.

        Returns
        -------
        list of dict
            One for each row.
        """
        return [
            {**vars(row), "options": dict(row.options), "residual": row.residual}
            for row in self.rows
        ]

    def __str__(self) -> str:
        """Return the rows as plain text."""
        lines = [f"{'millions of parameters':<44}{'ours':>9}{'published':>11}{'residual':>10}"]
        for row in self.rows:
            published = "-" if row.published is None else f"{row.published:g}"
            residual = "-" if row.residual is None else f"{row.residual:+.2f}"
            lines.append(f"{row.what:<44}{row.count / 1e6:>9.2f}{published:>11}{residual:>10}")
        return "\n".join(lines)


_BODY = {"head": "none"}
_ALL = {"sharing": "albert"}
_MODELS: tuple[tuple[str, str, dict[str, Any], float | None], ...] = (
    ("body, 12 layers, without adapters", "mpobert-12", _BODY, 19.4),
    ("body, 12 layers, adapters of rank 4", "mpobert-12", {**_BODY, "adapter_rank": 4}, 19.7),
    ("body, 12 layers, adapters of rank 8", "mpobert-12", {**_BODY, "adapter_rank": 8}, 20.0),
    ("body, 12 layers, adapters of rank 64", "mpobert-12", {**_BODY, "adapter_rank": 64}, 24.3),
    ("body, 12 layers, everything shared", "mpobert-12", {**_BODY, **_ALL}, None),
    (
        "body, 12 layers, everything shared, rank 8",
        "mpobert-12",
        {**_BODY, **_ALL, "adapter_rank": 8},
        None,
    ),
    ("24 layers", "mpobert-24", {}, 46.0),
    ("48 layers", "mpobert-48", {}, 75.0),
    ("48 layers in three groups", "mpobert-48+", {}, 102.0),
    ("96 layers", "mpobert-96", {}, None),
)


def presets_table() -> PresetsTable:
    """Return our counts, the published ones and their difference, for all presets and ablations.

    The models are counted on the meta device; nothing is allocated. The number of the model with
    three groups cannot be derived from its published description.

    Returns
    -------
    PresetsTable
        Prints as a table.

    References
    ----------
    Liu et al., "Enhancing Scalability of Pre-trained Language Models via Efficient Parameter
    Sharing", Findings of EMNLP 2023.

    Examples
    --------
    >>> table = presets_table()
    >>> table.rows[0].call(), table.rows[0].count
    ("build('mpobert-12', head='none')", 19413936)
    """
    rows = []
    for what, name, options, published in _MODELS:
        model = build(name, device="meta", **options)
        rows.append(PresetRow(what, name, tuple(options.items()), account(model).unique, published))
    return PresetsTable(tuple(rows))
