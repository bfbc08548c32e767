"""The table of presets: exact counts, published numbers and residuals."""

from __future__ import annotations

import json

import pytest

import mpobert_plugin as mp
from mpobert_plugin.presets import PRESETS

# Counted exactly, in parameters.
COUNTS = {
    "body, 12 layers, without adapters": 19_413_936,
    "body, 12 layers, adapters of rank 4": 19_718_576,
    "body, 12 layers, adapters of rank 8": 20_023_216,
    "body, 12 layers, adapters of rank 64": 24_288_176,
    "body, 12 layers, everything shared": 12_327_780,
    "body, 12 layers, everything shared, rank 8": 12_937_060,
    "24 layers": 46_232_754,
    "48 layers": 74_618_034,
    "48 layers in three groups": 99_783_858,
    "96 layers": 131_388_594,
}


@pytest.fixture(scope="module")
def table():
    return mp.presets_table()


def test_counts_are_exact(table):
    assert {row.what: row.count for row in table.rows} == COUNTS


def test_published_numbers_to_their_rounding(table):
    misses = [
        row.what
        for row in table.rows
        if row.published is not None and abs(row.residual) > (0.05 if row.published < 30 else 0.5)
    ]
    # It cannot be derived from the published description.
    assert misses == ["48 layers in three groups"]


def test_every_preset_has_a_row_and_rows_say_how_they_are_built(table):
    assert {row.name for row in table.rows} == set(PRESETS)
    row = table.rows[2]
    assert row.call() == "build('mpobert-12', head='none', adapter_rank=8)"
    built = mp.build(row.name, device="meta", **dict(row.options))
    assert mp.account(built).unique == row.count


def test_sums_of_the_deep_models():
    counts = {
        name: mp.account(mp.build(name, device="meta")) for name in ("mpobert-48", "mpobert-96")
    }
    small, large = counts["mpobert-48"], counts["mpobert-96"]
    assert large.by_kind["auxiliary"] == 2 * small.by_kind["auxiliary"]
    for kind in ("central", "bias", "norm", "embedding", "head", "dense"):
        assert large.by_kind[kind] == small.by_kind[kind]


def test_text_and_json(table):
    lines = str(table).splitlines()
    assert lines[0].split() == ["millions", "of", "parameters", "ours", "published", "residual"]
    assert lines[1].split()[-3:] == ["19.41", "19.4", "+0.01"]
    assert lines[-1].split()[-3:] == ["131.39", "-", "-"]
    stored = json.loads(json.dumps(table.to_dict()))
    assert stored[0]["options"] == {"head": "none"}
    assert stored[-1]["residual"] is None
