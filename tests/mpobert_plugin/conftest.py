"""One thread: the matrices of the tests are tiny, and threads that wait for each other are slow."""

from __future__ import annotations

import torch

torch.set_num_threads(1)
