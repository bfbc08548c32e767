"""Finds the pre-trained ALBERT that the package rxnmapper ships, without importing the package."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from mpobert_plugin.demo.errors import DemoError, MissingPackageError

if TYPE_CHECKING:
    import torch
    from transformers import AlbertForMaskedLM

PACKAGE = "rxnmapper"
REQUIREMENT = "rxnmapper==0.4.3"
INSTALL = f"pip install --no-deps {REQUIREMENT}"
FOLDER = Path("models", "transformers", "albert_heads_8_uspto_all_1310k")
FILES = ("config.json", "pytorch_model.bin", "vocab.txt")


def find_albert() -> Path:
    """Return the folder of the pre-trained ALBERT, found without running the package's code.

    Returns
    -------
    pathlib.Path
        Folder with ``config.json``, ``pytorch_model.bin`` and ``vocab.txt``.

    Raises
    ------
    MissingPackageError
        When the package is not installed; the message is the command that installs it.
    DemoError
        When the package is there and a file of the model is not.
    """
    spec = find_spec(PACKAGE)
    places = spec.submodule_search_locations if spec is not None else None
    if not places:
        raise MissingPackageError(
            f"The demo needs the pre-trained ALBERT of the package {PACKAGE} (3 MB, MIT licence), "
            f"which is not installed. Run: {INSTALL}"
        )
    folder = Path(next(iter(places))) / FOLDER
    missing = [name for name in FILES if not (folder / name).is_file()]
    if missing:
        raise DemoError(
            f"The package {PACKAGE} must hold {', '.join(FILES)} in {FOLDER}, "
            f"{', '.join(missing)} is missing. Run: {INSTALL} --force-reinstall"
        )
    return folder


def load_albert(
    folder: Path | None = None, dtype: torch.dtype | None = None, *, dropout: float = 0.0
) -> AlbertForMaskedLM:
    """Return the pre-trained ALBERT with its masked-LM head, in evaluation mode.

    Parameters
    ----------
    folder : pathlib.Path, optional
        Folder of the model; found by :func:`find_albert` when left out.
    dtype : torch.dtype, optional
        Floating-point type of the weights, float32 when left out.
    dropout : float
        Probability with which training drops an activation. The default trains without.

    Returns
    -------
    transformers.AlbertForMaskedLM
        12 layers that use one set of weights; hidden 256, vocabulary 591.

    Raises
    ------
    MissingPackageError
        When no folder is given and the package is not installed.
    """
    import torch
    from transformers import AlbertForMaskedLM

    from mpobert_plugin.demo.quiet import quiet_transformers

    with quiet_transformers():  # the file also holds a pooler, which the masked-LM head leaves out
        model = AlbertForMaskedLM.from_pretrained(
            folder or find_albert(),
            dtype=dtype or torch.float32,
            local_files_only=True,
            hidden_dropout_prob=dropout,
            attention_probs_dropout_prob=dropout,
        )
    model.eval()  # type: ignore[no-untyped-call]
    return model
