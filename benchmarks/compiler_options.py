"""Which options of torch's compiler make pre-training faster on this card.

$ python benchmarks/compiler_options.py mpobert-48 triton.enable_pdl=True shorter=0
$ python benchmarks/compiler_options.py mpobert-48 coordinate_descent_tuning=True micro_batch=40

Words with a name that torch's compiler has are its options, tried one by one beside none; other
words are settings of pre-training and hold for all. Milliseconds of a micro-batch of MPOBERT,
forward and backward, with matrices rebuilt once for four of them.
"""

from __future__ import annotations

import ast
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch._inductor.config as inductor

from mpobert_plugin.train.bench.networks import make_mpo
from mpobert_plugin.train.bench.options import BenchOptions
from mpobert_plugin.train.bench.run import corpus_for
from mpobert_plugin.train.bench.scene import Scene
from mpobert_plugin.train.bench.timing import Pace, wait
from mpobert_plugin.train.bench.trained import let_go, trained
from mpobert_plugin.train.processes import joined
from mpobert_plugin.train.settings_file import split_settings

_COUNT, _WARM_UPS, _ROUNDS = 4, 4, 5


def is_option(word: str) -> bool:
    name, _, value = word.partition("=")
    return bool(value) and name in inductor.get_config_copy()


def measured(scene: Scene, options: dict[str, Any]) -> float:
    """Return the milliseconds of a micro-batch, after compiling with some options."""
    torch.compiler.reset()
    with inductor.patch(options):
        one = trained(scene, make_mpo(scene), _COUNT)
        for _ in range(_WARM_UPS):
            one.passes()
        times = []
        for _ in range(_ROUNDS):
            wait(scene.device)
            start = time.perf_counter()
            one.passes()
            wait(scene.device)
            times.append(time.perf_counter() - start)
    one.rest()
    return 1e3 * sorted(times)[_ROUNDS // 2] / _COUNT


def main(words: Sequence[str]) -> None:
    model, *others = words
    tried = [word for word in others if is_option(word)]
    config, sizes = split_settings(
        None, ["compile=layers", *[word for word in others if word not in tried]], ("model",)
    )
    given = BenchOptions(models=(model,), config=config, sizes=sizes.get("model", {}))
    with tempfile.TemporaryDirectory() as folder, joined(None) as processes:
        corpus = corpus_for(given, model, Path(folder), processes)
        scene = Scene(model, given.sizes, config, corpus, processes, pace=Pace())
        first = measured(scene, {})
        print(f"none: {first:.2f} ms", flush=True)
        for word in tried:
            name, _, value = word.partition("=")
            found = measured(scene, {name: ast.literal_eval(value)})
            print(f"{word}: {found:.2f} ms, {first / found:.3f} times as fast", flush=True)
            let_go(scene.device)


if __name__ == "__main__":
    main(sys.argv[1:])
