"""The output folder is whole or absent, and never replaces what the demo did not write."""

from __future__ import annotations

import pytest

from mpobert_plugin.demo.errors import DemoError
from mpobert_plugin.demo.output import MARKER, OutputFolder


def write(folder, text):
    with OutputFolder(folder) as output:
        (output.path / MARKER).write_text(text)
        return output.publish()


def test_a_new_folder_and_again(tmp_path):
    target = tmp_path / "deep" / "out"
    assert write(target, "one") == target
    assert write(target, "two") == target
    assert (target / MARKER).read_text() == "two"
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["out"]


def test_an_empty_folder_may_be_used(tmp_path):
    (tmp_path / "out").mkdir()
    write(tmp_path / "out", "one")
    assert (tmp_path / "out" / MARKER).read_text() == "one"


def test_nothing_is_left_when_the_work_stops(tmp_path):
    def stop():
        with OutputFolder(tmp_path / "out") as output:
            (output.path / "half").write_text("x")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stop()
    assert not list(tmp_path.iterdir())


def test_an_earlier_result_stays_when_the_work_stops(tmp_path):
    write(tmp_path / "out", "one")

    def stop():
        with OutputFolder(tmp_path / "out"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stop()
    assert (tmp_path / "out" / MARKER).read_text() == "one"


@pytest.mark.parametrize("kind", ["file", "other folder"])
def test_other_things_are_never_replaced(tmp_path, kind):
    target = tmp_path / "out"
    if kind == "file":
        target.write_text("mine")
    else:
        target.mkdir()
        (target / "thesis.txt").write_text("mine")
    with pytest.raises(DemoError, match=r"holds other things\. Choose another place with --out"):
        OutputFolder(target)
    assert target.exists()


def test_a_place_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DemoError, match="must be in a folder that can be written"):
        write(tmp_path / "file" / "out", "one")
