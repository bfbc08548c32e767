"""Attention over lengths beside torch's fused kernels with a mask and without one, on a GPU.

$ python benchmarks/attention.py --samples 32 --heads 16 --length 512 --size 64

Microseconds of forward and backward, medians; samples are 2 to 24 tokens shorter than the length.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from mpobert_plugin.train.attention import attention, kernels_for

PEERS = {
    "cuDNN": SDPBackend.CUDNN_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}


def timed(work: Callable[[], object]) -> float:
    """Return the microseconds of a call."""
    from triton.testing import do_bench

    return 1e3 * float(do_bench(work, warmup=10, rep=60, return_mode="median"))


def show(name: str, attend: Callable[..., Tensor], parts: list[Tensor], grad: Tensor) -> None:
    """Print the times of one way to attend, or why it cannot be taken."""
    own = [x.detach().requires_grad_() for x in parts]
    try:
        with torch.no_grad():
            forward = timed(lambda: attend(*parts))
        out = attend(*own)
        backward = timed(lambda: torch.autograd.grad(out, own, grad, retain_graph=True))
    except RuntimeError as error:
        print(f"{name}: {' '.join(str(error).split())[:90]}")
        return
    print(f"{name}: forward {forward:.0f}, backward {backward:.0f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, usual in (("samples", 32), ("heads", 16), ("length", 512), ("size", 64)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    given = parser.parse_args()
    device = torch.device("cuda")
    if not torch.cuda.is_available() or not kernels_for(given.size, device):
        raise SystemExit("a GPU and Triton are needed, and heads of 16, 32, 64 or 128 dimensions.")
    torch.manual_seed(0)
    shape = (given.samples, given.length, given.heads, given.size)
    *parts, grad = (torch.randn(shape, device=device).half().transpose(1, 2) for _ in range(4))
    least = max(given.length - 24, 1)
    lengths = torch.randint(least, max(given.length - 2, 2), (given.samples,), device=device).int()
    seen = torch.arange(given.length, device=device) < lengths[:, None, None, None]
    mask = seen.expand(given.samples, 1, given.length, given.length)
    print(torch.cuda.get_device_name(), torch.__version__, shape)
    show(
        "own, lengths",
        lambda q, k, v: attention(q, k, v, lengths, q.shape[-1] ** -0.5)[0],
        parts,
        grad,
    )
    for name, backend in PEERS.items():
        for label, hidden in (("a mask", mask), ("no mask", None)):
            with sdpa_kernel(backend):
                show(
                    f"{name}, {label}",
                    lambda q, k, v, m=hidden: scaled_dot_product_attention(q, k, v, m),
                    parts,
                    grad,
                )


if __name__ == "__main__":
    main()
