"""Loads a saved MPOBERT in a process of its own and predicts: ``python -m`` this module."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from mpobert_plugin.demo.errors import DemoError
from mpobert_plugin.demo.masking import Batch


def predict_in_new_process(folder: Path, batch: Batch, scratch: Path) -> Tensor:
    """Return the logits (batch, length, vocabulary) of the saved model, from a new process.

    Parameters
    ----------
    folder : pathlib.Path
        What ``save_pretrained`` wrote.
    batch : Batch
        Masked reactions.
    scratch : pathlib.Path
        Folder for the two files that the processes exchange; they are removed.

    Returns
    -------
    Tensor
        Logits.

    Raises
    ------
    DemoError
        When the process fails; the message ends with what it said.
    """
    asked, answered = scratch / "asked.safetensors", scratch / "answered.safetensors"
    save_file({"input_ids": batch.input_ids, "attention_mask": batch.attention_mask}, asked)
    threads = str(torch.get_num_threads())  # sums are only bit-identical with as many threads
    command = [sys.executable, "-m", "mpobert_plugin.demo.reload"]
    try:
        done = subprocess.run(  # noqa: S603  (our own module, no shell)
            [*command, str(folder), str(asked), str(answered), threads],
            capture_output=True,
            text=True,
            check=False,
            env=_environment(),
        )
        if done.returncode:
            raise DemoError(
                f"The new process must load {folder.name} and predict, it ended with code "
                f"{done.returncode}:\n{done.stderr.strip()[-2000:]}"
            )
        return load_file(answered)["logits"]
    finally:
        asked.unlink(missing_ok=True)
        answered.unlink(missing_ok=True)


def _environment() -> dict[str, str]:
    """Return the environment of a process that finds the same packages, installed or not."""
    root = str(Path(__file__).parents[2])
    others = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([root, *([others] if others else [])])}


def main(folder: str, asked: str, answered: str, threads: str) -> None:
    """Load the model of ``folder`` as any program would, and write its logits."""
    from transformers import AutoModelForMaskedLM

    import mpobert_plugin  # noqa: F401  (registers the format)

    torch.set_num_threads(int(threads))
    model = AutoModelForMaskedLM.from_pretrained(folder, local_files_only=True)
    model.eval()
    with torch.no_grad():
        logits = model(**load_file(asked)).logits
    save_file({"logits": logits.contiguous()}, answered)


if __name__ == "__main__":
    main(*sys.argv[1:])
