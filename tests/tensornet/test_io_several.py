"""Files of several networks, batches and all libraries; mapped reads; forged records."""

from __future__ import annotations

import json

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file
from safetensors.numpy import save as save_bytes

import tensornet as tn
from tensornet import files
from tensornet.record import described
from tests.tensornet.test_libraries import host, made

W = np.random.default_rng(0).normal(size=(24, 24)).astype("float32")
SITES = ((2, 3, 4), (4, 3, 2))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "n.safetensors"


@pytest.fixture(params=["numpy", "torch", "jax"])
def library(request):
    pytest.importorskip(request.param, reason=f"{request.param} is not installed")
    return request.param


def assert_same(a, b):
    assert type(a) is type(b)
    assert a.shape == b.shape
    assert a.center == b.center
    assert all(np.array_equal(host(x), host(y)) for x, y in zip(a.cores, b.cores, strict=True))
    assert all(x.dtype == y.dtype for x, y in zip(a.cores, b.cores, strict=True))


class TestSharing:
    def shared(self, n=3):
        torch = pytest.importorskip("torch")
        middle = torch.randn(4, 3, 3, 5)
        return [
            tn.MPO([torch.randn(1, 2, 4, 4), middle, torch.randn(5, 4, 2, 1)]) for _ in range(n)
        ]

    def test_a_shared_core_is_stored_once_and_shared_again(self, path):
        networks = self.shared()
        tn.save(networks, path)
        assert len(load_file(path)) == 2 * 3 + 1
        back = tn.load(path)
        assert isinstance(back, tuple)
        for a, b in zip(networks, back, strict=True):
            assert_same(a, b)
        assert back[0].cores[1] is back[1].cores[1] is back[2].cores[1]
        assert tn.account(back).unique == tn.account(networks).unique
        assert tn.account(back).shared == 4 * 3 * 3 * 5

    @pytest.mark.parametrize("target", ["numpy", "torch", "jax"])
    @pytest.mark.parametrize("mmap", [False, True])
    def test_in_every_library(self, path, target, mmap):
        pytest.importorskip(target, reason=f"{target} is not installed")
        networks = self.shared()
        tn.save(networks, path)
        back = tn.load(path, target, mmap=mmap)
        assert tn.account(back).unique == tn.account(networks).unique
        for a, b in zip(networks, back, strict=True):
            assert all(
                np.array_equal(host(x), host(y)) for x, y in zip(a.cores, b.cores, strict=True)
            )

    def test_one_network_that_repeats_a_core(self, path):
        torch = pytest.importorskip("torch")
        m = tn.MPO([torch.ones(1, 2, 2, 1)] * 72)
        tn.save(m, path)
        assert len(load_file(path)) == 1
        back = tn.load(path)
        assert isinstance(back, tn.MPO)
        assert back.account().unique == 4
        assert back.account().dense == 2**144

    def test_matrices_and_tensors_of_different_types_together(self, path):
        networks = [tn.mpo(W, SITES), tn.tt(W.astype("complex128")), tn.mpo(W[:5].astype("f8"), 2)]
        tn.save(networks, path)
        back = tn.load(path)
        for a, b in zip(networks, back, strict=True):
            assert_same(a, b)
            assert b.certificate.relative_error == a.certificate.relative_error

    @pytest.mark.parametrize("mmap", [False, True])
    def test_joint_decompositions(self, path, library, mmap):
        Ws = made(np.random.default_rng(0).normal(size=(3, 12, 12)).astype("float32"), library)
        joint = tn.shared_mpo(Ws, ((3, 4), (4, 3)), share=(1,), max_bond=4)
        tn.save(joint, path)
        assert len(load_file(path)) == 4
        back = tn.load(path, mmap=mmap)
        for a, b in zip(joint.mpos, back, strict=True):
            assert all(
                np.array_equal(host(x), host(y)) for x, y in zip(a.cores, b.cores, strict=True)
            )
            assert isinstance(b.certificate, tn.SharedCertificate)
            assert b.certificate.relative_error == a.certificate.relative_error
        assert tn.account(back).unique == joint.account().unique
        assert back[0].cores[1] is back[2].cores[1]

    def test_a_list_of_one_stays_a_list(self, path):
        tn.save([tn.mpo(W, SITES)], path)
        assert isinstance(tn.load(path), tuple)


class TestBatches:
    def test_round_trip(self, path, library):
        Ws = np.random.default_rng(0).normal(size=(4, 11, 17)).astype("float32")
        batch = tn.mpo(made(Ws, library), tn.MatrixLayout((3, 4), (3, 6), 11, 17), max_bond=5)
        tn.save(batch, path)
        back = tn.load(path)
        assert_same(batch, back)
        assert back.layout == batch.layout
        assert [c.relative_error for c in back.certificates] == [
            c.relative_error for c in batch.certificates
        ]
        assert_same(batch[2], back[2])

    def test_complex_batches(self, path):
        batch = tn.mpo(np.stack([W + 1j * W.T, W]).astype("complex64"), SITES)
        tn.save(batch, path)
        assert_same(batch, tn.load(path))


class TestLibraries:
    @pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "complex64"])
    def test_round_trip(self, path, library, dtype):
        if library == "numpy" and dtype == "bfloat16":
            dtype = "complex128"
        m = tn.mpo(made(W, library, dtype), SITES, max_bond=6)
        tn.save(m, path)
        for mmap in (False, True):
            assert_same(m, tn.load(path, mmap=mmap))

    @pytest.mark.parametrize("target", ["numpy", "torch", "jax"])
    @pytest.mark.parametrize("dtype", ["float32", "complex64"])
    def test_from_one_library_to_another(self, path, library, target, dtype):
        pytest.importorskip(target, reason=f"{target} is not installed")
        m = tn.mpo(made(W, library, dtype), SITES)
        tn.save(m, path)
        back = tn.load(path, target)
        assert all(
            np.array_equal(host(x), host(y)) for x, y in zip(m.cores, back.cores, strict=True)
        )

    def test_double_precision_survives_without_the_switch_of_jax(self, path):
        pytest.importorskip("jax", reason="jax is not installed")
        tn.save(tn.mpo(W.astype("float64"), SITES), path)
        assert str(tn.load(path, "jax").dtype) == "float64"

    def test_numpy_cores_stay_read_only(self, path):
        tn.save(tn.mpo(W, SITES), path)
        for mmap in (False, True):
            core = tn.load(path, mmap=mmap).cores[0]
            with pytest.raises(ValueError, match="read-only"):
                core[:] = 0

    def test_torch_cores_can_be_trained(self, path):
        torch = pytest.importorskip("torch")
        tn.save(tn.mpo(torch.as_tensor(W), SITES), path)
        before = path.read_bytes()
        for mmap in (False, True):
            m = tn.load(path, mmap=mmap)
            for core in m.cores:
                core.requires_grad_()
            m.to_matrix().sum().backward()
            with torch.no_grad():
                m.cores[0].add_(1.0)
        assert path.read_bytes() == before


class TestOtherPrograms:
    def test_safetensors_reads_the_cores(self, path):
        m = tn.mpo(W, SITES)
        tn.save(m, path)
        with safe_open(path, framework="numpy") as file:
            assert sorted(file.keys()) == ["core.0", "core.1", "core.2"]
            assert np.array_equal(file.get_tensor("core.1"), m.cores[1])

    def test_cores_written_there_become_a_network(self, path):
        m = tn.mpo(W, SITES)
        path.write_bytes(save_bytes({f"tt.{k}": c for k, c in enumerate(m.cores)}))
        arrays = load_file(path)
        back = tn.interop.from_arrays([arrays[f"tt.{k}"] for k in range(3)])
        assert np.array_equal(back.to_matrix(), m.to_matrix())


class TestMapped:
    def test_numbers_are_read_when_used(self, path, monkeypatch):
        tn.save(tn.mpo(W, SITES), path)
        monkeypatch.setattr(files, "read", None)  # nothing reads the file as a whole
        m = tn.load(path, mmap=True)
        base = m.cores[0]
        while isinstance(base.base, np.ndarray):
            base = base.base
        assert isinstance(base, np.memmap)
        assert np.allclose(m.to_matrix(), W, atol=1e-5)

    @pytest.mark.parametrize("cut", [0, 1, 8, 200, -1, -100])
    def test_short_files(self, path, cut):
        tn.save(tn.mpo(W, SITES), path)
        path.write_bytes(path.read_bytes()[:cut])
        with pytest.raises(tn.errors.FileFormatError):
            tn.load(path, mmap=True)

    def test_foreign_and_missing_files(self, path):
        with pytest.raises(tn.errors.FileAccessError, match="existing file"):
            tn.load(path, mmap=True)
        path.write_bytes(b"\xff" * 100)
        with pytest.raises(tn.errors.FileFormatError, match="be a safetensors file"):
            tn.load(path, mmap=True)
        path.write_bytes(save_bytes({"weight": W}))
        with pytest.raises(tn.errors.FileFormatError, match=r"tensornet\.save"):
            tn.load(path, mmap=True)
        with pytest.raises(tn.errors.FileAccessError, match="path must be"):
            tn.load("a\0b", mmap=True)


def forged(network, path, change):
    """Write a file whose record was changed by somebody who knows how to make a checksum."""
    record, cores = described(network)
    change(record, cores)
    metadata = {files.RECORD: json.dumps(record)}
    metadata[files.CHECKSUM] = files.digest(save_bytes(cores, metadata))
    path.write_bytes(save_bytes(cores, metadata))


SEVERAL = [
    (lambda r, c: r.update(kind="MPO"), "kind must have"),
    (lambda r, c: r.update(networks=[]), "networks must have"),
    (lambda r, c: r.update(networks=[3]), "networks must have"),
    (lambda r, c: r["networks"][0].update(kind="MPOBatch"), "kind must have"),
    (lambda r, c: r["networks"][0].update(cores=["core.0"]), "cores must have"),
    (lambda r, c: r["networks"][0].update(cores=[0, 1, 2]), "cores must have"),
    (lambda r, c: r["networks"][0].update(cores=["a", "b", "c"]), "hold 6 cores, got 6 tensors"),
    (lambda r, c: r["networks"][0].update(n_sites=2), "certificate must have"),
    (lambda r, c: c.pop("core.5"), "hold 6 cores, got 5 tensors"),
    (lambda r, c: c.update(extra=np.ones(1)), "hold 6 cores, got 7 tensors"),
    (lambda r, c: c.update({"core.1": np.ones((2, 3, 3, 2))}), "agree in the bond"),
    (lambda r, c: c.update({"core.1": np.ones(3)}), "must have 4 dimensions"),
    (lambda r, c: c.update({"core.1": np.ones(3, dtype="int32")}), "of a known type"),
    (lambda r, c: c.update({"core.0": np.full(c["core.0"].shape, np.nan)}), "be finite"),
    (lambda r, c: r["networks"][0].update(complex=True), "pairs of a complex number"),
]


@pytest.mark.parametrize(("change", "text"), SEVERAL)
def test_forged_files_of_several(path, change, text):
    W8 = W.astype("float64")
    forged([tn.mpo(W8, SITES), tn.mpo(2 * W8, SITES)], path, change)
    with pytest.raises(tn.errors.FileFormatError) as caught:
        tn.load(path)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda r, c: r.update(certificates=[]), "be of as many matrices, got [2] and 0"),
        (lambda r, c: r.update(certificates=3), "certificates must have"),
        (lambda r, c: r.update(shape=[1, 2, 3]), "shape must have"),
        (lambda r, c: c.update({"core.0": c["core.0"][:1]}), "be of as many matrices"),
        (lambda r, c: c.update({"core.0": c["core.0"][0]}), "must have 5 dimensions"),
        (lambda r, c: c.update({"core.0": c["core.0"] + np.inf}), "be finite"),
        (lambda r, c: r.update(dtype="float16"), "core 0 must be float16, got float32"),
    ],
)
def test_forged_batches(path, change, text):
    forged(tn.mpo(np.stack([W, W.T]) + 1.0, SITES), path, change)
    with pytest.raises(tn.errors.FileFormatError) as caught:
        tn.load(path)
    assert text in str(caught.value)


def test_what_cannot_be_saved(path):
    with pytest.raises(tn.errors.ShapeError, match="hold at least one network"):
        tn.save([], path)
    with pytest.raises(tn.errors.ArrayTypeError, match="sequence of MPO and TensorTrain, got nda"):
        tn.save([tn.mpo(W, SITES), W], path)
    torch = pytest.importorskip("torch")
    with pytest.raises(tn.errors.ArrayTypeError, match="come from one library, got numpy and py"):
        tn.save([tn.mpo(W, SITES), tn.mpo(torch.as_tensor(W), SITES)], path)
    assert not path.exists()


def test_files_of_the_first_version_are_the_same(path):
    """A network with cores of its own is written as before, so that older versions read it."""
    tn.save(tn.mpo(W, SITES), path)
    header = files.parts(path.read_bytes())[0]
    record = json.loads(header["__metadata__"][files.RECORD])
    assert record["version"] == 1
    assert "networks" not in record


def in_metric(path):
    half = np.random.default_rng(1).normal(size=(24, 30))
    m = tn.mpo(W.astype("float64"), SITES, metric=half @ half.T, max_bond=3)
    tn.save(m, path)
    return m


def test_certificates_in_a_metric_are_kept(path):
    m = in_metric(path)
    back = tn.load(path).certificate
    assert isinstance(back, tn.MetricCertificate)
    for name in ("relative_error", "frobenius_error", "history", "lower_bound", "norm"):
        assert getattr(back, name) == getattr(m.certificate, name)


@pytest.mark.parametrize("metric", [None, {}, {"history": 3}, {"history": ["a"]}])
def test_forged_certificates_in_a_metric(path, metric):
    forged(in_metric(path), path, lambda r, c: r["certificate"].update(metric=metric))
    with pytest.raises(tn.errors.FileFormatError, match="certificate must have a possible value"):
        tn.load(path)


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        ({"shape": [1, 4, 4, 3]}, "hold a whole tensor 'core.0'"),
        ({"shape": [-1, 4, -8, 1]}, "hold a whole tensor 'core.0'"),
        ({"shape": ["a"]}, "describe a tensor 'core.0' of a known type"),
        ({"dtype": "I32"}, "describe a tensor 'core.0' of a known type"),
        ({"data_offsets": [0, 10**9]}, "hold a whole tensor 'core.0'"),
        ({"data_offsets": [10**9, 10**9 + 32]}, "hold a whole tensor 'core.0'"),
        ({"data_offsets": [-32, 0]}, "hold a whole tensor 'core.0'"),
        ({"data_offsets": [0]}, "describe a tensor 'core.0' of a known type"),
    ],
)
@pytest.mark.parametrize("mmap", [False, True])
def test_forged_headers(path, entry, text, mmap):
    tn.save(tn.MPO([np.ones((1, 2, 4, 1), dtype="float32")]), path)
    header, data = files.parts(path.read_bytes())
    header["core.0"].update(entry)

    def blob():
        packed = json.dumps(header).encode()
        return len(packed).to_bytes(8, "little") + packed + data

    header["__metadata__"][files.CHECKSUM] = files.digest(blob())
    path.write_bytes(blob())
    with pytest.raises(tn.errors.FileFormatError) as caught:
        tn.load(path, mmap=mmap)
    assert text in str(caught.value)
