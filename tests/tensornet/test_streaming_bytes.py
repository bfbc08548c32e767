"""Files of weights to the byte: ties of bfloat16, whole files, aligned numbers, parts by name."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import torch

from tensornet import errors
from tensornet.streaming import Options, Row, decompose_file, inspect_file
from tensornet.streaming.parts import Parts
from tensornet.streaming.source import narrowed, open_source, widened
from tensornet.streaming.target import Piece, copied, write_pieces
from tests.tensornet.weights import small_model

TIES = [1 + k * 2.0**-8 for k in range(-8, 9)] + [2.0**-126 * (1 + 2.0**-8), -3 - 2.0**-7, 0.0]


def test_bfloat16_rounds_ties_to_even():
    values = np.array(TIES, dtype=np.float32)
    theirs = torch.from_numpy(values).to(torch.bfloat16).float().numpy()
    assert np.array_equal(widened(narrowed(values)), theirs)
    near = np.concatenate([np.nextafter(values, np.float32(9)), np.nextafter(values, -values)])
    theirs = torch.from_numpy(near).to(torch.bfloat16).float().numpy()
    assert np.array_equal(widened(narrowed(near)), theirs)


@pytest.mark.parametrize(("cut", "added"), [(0, b"\0"), (0, b"\0" * 64), (1, b""), (9, b"")])
def test_a_file_has_exactly_the_bytes_of_its_header(cut, added, tmp_path):
    path, _ = small_model(tmp_path)
    blob = path.read_bytes()
    path.write_bytes(blob[: len(blob) - cut] + added)
    size = len(blob) - cut + len(added)
    text = f"must be a whole safetensors file, got {size} bytes where its header accounts for"
    with pytest.raises(errors.FileFormatError, match=f"{text} {len(blob)}"):
        open_source(path)


@pytest.mark.parametrize("length", range(1, 10))
def test_numbers_start_at_a_multiple_of_eight(length, tmp_path):
    path, name = tmp_path / "m.safetensors", "w" * length
    numbers = np.arange(3.0)
    piece = Piece(name, "F64", (3,), 24, lambda: [numbers.tobytes()])
    write_pieces([piece], {}, path)
    (entry,) = open_source(path).entries.values()
    assert entry.start % 8 == 0
    assert entry.matrix().tolist() == [0.0, 1.0, 2.0]
    assert b"".join(copied(path, entry.start, entry.stop)) == numbers.tobytes()


def test_a_piece_of_another_length_is_refused_and_nothing_is_left(tmp_path):
    piece = Piece("w", "F64", (3,), 24, lambda: [b"\0" * 16])
    with pytest.raises(errors.FileAccessError, match="w must have 24 bytes, got 16"):
        write_pieces([piece], {}, tmp_path / "m.safetensors")
    assert not list(tmp_path.iterdir())


def test_parts_belong_to_their_name(tmp_path):
    parts = Parts(tmp_path / "o.parts", {"source": "x"})
    parts.begin(overwrite=False)
    for name in ("a", "b"):
        parts.keep(Row(name, "F32", (2, 2), 4, 4, "not selected"), [])
    assert parts.row("a").name == "a"
    assert parts.row("c") is None
    shutil.copy(parts.path("a"), parts.path("b"))
    assert parts.row("b") is None
    parts.path("a").write_bytes(b"damaged")
    assert parts.row("a") is None


def test_rows_that_were_left_are_copied_to_the_byte(tmp_path):
    path, tensors = small_model(tmp_path)
    out = tmp_path / "o.safetensors"
    decompose_file(path, out, Options(max_bond=4, include=("a.weight",)))
    assert [row.name for row in inspect_file(out).chains] == ["a.weight"]
    entries = open_source(out).entries
    for name, tensor in tensors.items():
        if name != "a.weight":
            found = b"".join(copied(out, entries[name].start, entries[name].stop))
            assert found == tensor.tobytes()
