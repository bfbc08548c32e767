"""Decomposition on a CUDA device: everything stays there, and equals the CPU's result."""

from __future__ import annotations

import numpy as np
import pytest

import tensornet as tn

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

W = np.random.default_rng(0).normal(size=(24, 24))
SITES = ((2, 3, 4), (4, 3, 2))
DTYPES = ["float16", "bfloat16", "float32", "float64", "complex64", "complex128"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("gauge", ["central", "left", "right", "symmetric", "identity"])
def test_cores_stay_on_the_device(dtype, gauge):
    source = torch.as_tensor(W, device="cuda").to(getattr(torch, dtype))
    limits = {} if gauge == "identity" else {"bonds": [4, 5]}
    m = tn.mpo(source, SITES, gauge=gauge, **limits)
    assert {core.device for core in m.cores} == {source.device}
    assert {core.dtype for core in m.cores} == {source.dtype}
    host = tn.mpo(source.cpu(), SITES, gauge=gauge, **limits)
    assert host.bond_dims == m.bond_dims
    error, expected = m.certificate.relative_error, host.certificate.relative_error
    assert error == pytest.approx(expected, rel=1e-3, abs=1e-6)
    x = torch.ones(24, 3, device="cuda", dtype=source.dtype)
    assert (m @ x).device == source.device
    assert m.move_center(0).round(max_bond=3).central.device == source.device


def test_another_default_device_changes_nothing():
    with torch.device("cpu"):
        m = tn.mpo(torch.as_tensor(W, device="cuda", dtype=torch.float32), SITES, bonds=[3, 3])
    assert m.central.device.type == "cuda"
    with torch.device("cuda"):
        m = tn.mpo(torch.as_tensor(W, device="cpu", dtype=torch.float32), SITES, bonds=[3, 3])
    assert m.central.device.type == "cpu"


def test_signs_agree_with_numpy():
    ours = tn.mpo(torch.as_tensor(W, device="cuda"), SITES, max_bond=5)
    for a, b in zip(ours.cores, tn.mpo(W, SITES, max_bond=5).cores, strict=True):
        assert np.abs(a.cpu().numpy() - b).max() < 1e-10


def test_operands_on_two_devices_are_an_error():
    m = tn.mpo(torch.as_tensor(W, device="cuda"), SITES)
    with pytest.raises(tn.errors.ArrayTypeError, match="got cpu with a network on cuda:0"):
        m @ torch.ones(24, dtype=torch.float64)


def test_saved_from_the_device(tmp_path):
    m = tn.mpo(torch.as_tensor(W, device="cuda"), SITES, max_bond=4)
    tn.save(m, tmp_path / "m.safetensors")
    assert torch.equal(tn.load(tmp_path / "m.safetensors").central, m.central.cpu())


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64"])
@pytest.mark.parametrize("share", ["central", "auxiliary"])
def test_joint_decompositions_stay_on_the_device(dtype, share):
    rng = np.random.default_rng(1)
    mean = rng.normal(size=(24, 24))
    stack = mean + 0.3 * rng.normal(size=(4, 24, 24))
    if dtype.startswith("complex"):
        stack = stack + 1j * rng.normal(size=stack.shape)
    source = torch.as_tensor(stack, device="cuda").to(getattr(torch, dtype))
    found, host = (
        tn.shared_mpo(one, SITES, share=share, max_bond=6) for one in (source, source.cpu())
    )
    cores = [core for m in found for core in m.cores]
    assert {core.device for core in cores} == {source.device}
    assert {core.dtype for core in cores} == {source.dtype}
    for k, (ours, theirs) in enumerate(zip(found, host, strict=True)):
        error = torch.linalg.norm(ours.to_matrix() - source[k]) / torch.linalg.norm(source[k])
        assert ours.certificate.relative_error == pytest.approx(float(error), rel=1e-3, abs=1e-6)
        other = theirs.certificate.relative_error
        assert ours.certificate.relative_error == pytest.approx(other, rel=0.02, abs=1e-6)
