"""Where the numbers in the banks come from: decomposed weights, an ALBERT, or fresh ones."""

from __future__ import annotations
