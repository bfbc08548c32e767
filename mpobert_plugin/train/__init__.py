"""Pre-training: a corpus, samples, an optimizer, and the loop around them."""

from __future__ import annotations

from mpobert_plugin.train.lamb import Lamb

__all__ = ["Lamb"]
