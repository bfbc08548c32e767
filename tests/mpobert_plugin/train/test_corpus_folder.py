"""What a corpus is made of and where it goes: other files are neither read nor mixed with it."""

from __future__ import annotations

import gzip
import json

import pytest

from mpobert_plugin.errors import DataError
from mpobert_plugin.train.data import prepare as preparing
from mpobert_plugin.train.data.prepare import Vocabulary, prepare

TEXT = "The cat sat. The dog ran away!\nA new paragraph here.\n\nSecond document. It is short.\n"
OTHERS = ("a.txt", "manifest.json", "tokenizer.json", "tokens.bin")


@pytest.fixture(scope="module")
def known(tmp_path_factory):
    """A vocabulary that is there; to train one takes most of the time of a small corpus."""
    folder = tmp_path_factory.mktemp("known")
    return Vocabulary(prepare([TEXT], folder, Vocabulary(size=60)).folder)


def contents(folder):
    return {p.name: p.read_bytes() for p in sorted(folder.iterdir()) if p.is_file()}


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("names", [OTHERS[:1], OTHERS[:2], OTHERS[1:3], OTHERS[2:3], OTHERS])
def test_a_folder_with_other_things_is_refused_and_stays_as_it_is(
    tmp_path, known, names, overwrite
):
    mine = tmp_path / "mine"
    mine.mkdir()
    for name in names:
        (mine / name).write_text('{"format": "mine"}')
    before = contents(mine)
    with pytest.raises(DataError) as error:
        prepare(mine, mine, known, overwrite=overwrite)
    assert str(error.value) == (
        f"out must be a new or an empty folder, or that of a corpus, got {mine}, which holds other "
        f"things: {', '.join(names)}. Nothing was changed. Name another folder, such as "
        f"{mine / 'corpus'}."
    )
    assert contents(mine) == before
    assert not (mine / ".parts").exists()


def test_a_corpus_with_notes_beside_it_and_a_damaged_one_are_replaced_when_asked(tmp_path, known):
    corpus = prepare([TEXT], tmp_path / "out", known)
    before = contents(corpus.folder)
    (corpus.folder / "notes.txt").write_text("mine")
    assert prepare([TEXT], corpus.folder, known, overwrite=True).checksum == corpus.checksum
    assert (corpus.folder / "notes.txt").read_text() == "mine"
    (corpus.folder / "notes.txt").unlink()
    (corpus.folder / "manifest.json").write_text("{")
    with pytest.raises(DataError, match=r"holds a prepared corpus\. Give another name"):
        prepare([TEXT], corpus.folder, known)
    prepare([TEXT], corpus.folder, known, overwrite=True)
    assert contents(corpus.folder) == before


@pytest.mark.parametrize(
    "killed_at", ["tokens.bin", pytest.param("manifest.json", marks=pytest.mark.slow)]
)
def test_one_that_was_killed_while_it_joined_goes_on(tmp_path, known, monkeypatch, killed_at):
    whole = prepare([TEXT], tmp_path / "whole", known)
    out, real = tmp_path / "out", preparing.write_json

    def killed(target, value):
        if target.name == "manifest.json":
            raise KeyboardInterrupt
        real(target, value)

    with monkeypatch.context() as patch:
        patch.setattr(preparing, "write_json", killed)
        with pytest.raises(KeyboardInterrupt):
            prepare([TEXT], out, known)
    if killed_at == "tokens.bin":
        for name in ("sentences.bin", "documents.bin"):
            (out / name).unlink()
    (out / ".tokens.bin.0123abcd.tmp").write_text("of a killed process")
    assert contents(prepare([TEXT], out, known).folder) == contents(whole.folder)


def test_an_empty_folder_and_hidden_files_are_fine_and_one_that_cannot_be_read_is_said(
    tmp_path, known, monkeypatch
):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / ".gitkeep").touch()
    prepare([TEXT], tmp_path / "out", known)

    def refused(_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(type(tmp_path), "iterdir", refused)
    with pytest.raises(DataError, match=r"out must be a folder that can be read: .*denied"):
        prepare([TEXT], tmp_path, known)


@pytest.mark.parametrize("name", ["c.csv", "c.csv.gz", "c.PDF", "c", "c.gz"])
def test_a_file_of_another_kind_is_refused_by_name(tmp_path, known, name):
    (tmp_path / name).write_text(TEXT)
    for sources in (tmp_path / name, [str(tmp_path / name)]):
        with pytest.raises(DataError) as error:
            prepare(sources, tmp_path / "out", known)
        assert str(error.value) == (
            "sources must be files that end in .txt, .text, .md, .jsonl, .ndjson (also with .xz or "
            f".gz behind it), got {tmp_path / name}. Give plain text the ending .txt; of tables "
            "and pages make lines of JSON with the text in a field, and a file that ends in .jsonl."
        )
    assert not (tmp_path / "out").exists()


def test_endings_are_known_in_capitals_too(tmp_path, known):
    (tmp_path / "A.TXT").write_text(TEXT)
    (tmp_path / "B.Txt.GZ").write_bytes(gzip.compress(TEXT.encode()))
    (tmp_path / "C.JSONL").write_text(json.dumps({"text": TEXT}))
    assert len(prepare(tmp_path, tmp_path / "out", known).sentences) - 1 == 15


def test_files_of_a_folder_that_are_left_out_are_counted_by_kind(tmp_path, known):
    folder = tmp_path / "texts"
    (folder / "deeper").mkdir(parents=True)
    (folder / "0.txt").write_text("One text.")
    for name in ("a.csv", "b.CSV", "deeper/c.csv", "d.tar.gz", "e.png", "README", ".git"):
        (folder / name).write_text("x")
    said = []
    prepare(folder, tmp_path / "out", known, say=said.append)
    assert len(said) == 1
    assert said[0] == (
        f"Left out of {folder}: 6 files of other kinds than text (3 .csv, 1 without an ending, "
        "1 .tar.gz, 1 .png)."
    )
    (folder / "0.txt").unlink()
    with pytest.raises(DataError, match=r"behind it\), which has 3 \.csv, 1 without an ending, "):
        prepare(folder, tmp_path / "new", known)


def test_a_folder_of_text_alone_needs_no_word(tmp_path, known):
    (tmp_path / "a.txt").write_text(TEXT)
    said = []
    prepare(tmp_path, tmp_path / "out", known, say=said.append)
    assert said == []
