"""Preparing a corpus: what comes in, what lies on the disk, and what goes wrong."""

from __future__ import annotations

import gzip
import json
import lzma
import shutil
from itertools import pairwise
from multiprocessing import get_context

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from mpobert_plugin.errors import DataError
from mpobert_plugin.train.data import prepare as preparing
from mpobert_plugin.train.data.encoded import encode_documents
from mpobert_plugin.train.data.prepare import Vocabulary, prepare
from mpobert_plugin.train.data.sentences import split_sentences
from mpobert_plugin.train.data.store import open_corpus
from mpobert_plugin.train.data.texts import Reading, documents
from mpobert_plugin.train.data.vocabulary import load_tokenizer

TEXT = "The cat sat. The dog ran away!\nA new paragraph here.\n\nSecond document. It is short.\n"
SMALL = Vocabulary(size=60)


def words_of(corpus):
    tokenizer = load_tokenizer(corpus.folder)
    ends = corpus.sentences
    return [tokenizer.decode(corpus.tokens[a:b].tolist()) for a, b in pairwise(ends)]


def contents(folder):
    return {p.name: p.read_bytes() for p in sorted(folder.iterdir()) if p.is_file()}


def test_sentences_and_documents_come_back(tmp_path):
    (tmp_path / "a.txt").write_text(TEXT)
    corpus = prepare(tmp_path / "a.txt", tmp_path / "out", SMALL)
    assert corpus.documents.tolist() == [0, 3, 5]
    found = [text.replace(" ", "") for text in words_of(corpus)]
    assert found[0] == "thecatsat."
    assert found[-1] == "itisshort."
    assert open_corpus(tmp_path / "out", verify=True).checksum == corpus.checksum
    assert "5 sentences, 2 documents" in repr(corpus)


def test_one_of_a_kind_is_singular(tmp_path):
    known = prepare([TEXT], tmp_path / "a", SMALL)
    assert "tokens, 1 document, " in repr(known).replace("5 sentences, ", "")
    assert "1 token, 1 sentence, 1 document" in repr(
        prepare(["a"], tmp_path / "b", Vocabulary(known.folder))
    )


@pytest.mark.parametrize("form", ["txt", "xz", "gz", "jsonl", "list", "records", "folder"])
def test_every_form_of_the_same_text_is_the_same_corpus(tmp_path, form):
    docs = [d.strip() for d in TEXT.split("\n\n")]
    forms = {
        "txt": lambda: (tmp_path / "a.txt").write_text(TEXT) and tmp_path / "a.txt",
        "xz": lambda: (
            (tmp_path / "a.txt.xz").write_bytes(lzma.compress(TEXT.encode()))
            and [tmp_path / "a.txt.xz"]
        ),
        "gz": lambda: (
            (tmp_path / "a.txt.gz").write_bytes(gzip.compress(TEXT.encode()))
            and str(tmp_path / "a.txt.gz")
        ),
        "jsonl": lambda: (
            (tmp_path / "a.jsonl").write_text("\n".join(json.dumps({"text": d}) for d in docs))
            and tmp_path / "a.jsonl"
        ),
        "list": lambda: docs,
        "records": lambda: [{"text": d, "id": 1} for d in docs],
        "folder": lambda: folder_of(tmp_path / "texts", docs),
    }
    corpus = prepare(forms[form](), tmp_path / "out", SMALL)
    (tmp_path / "b.txt").write_text(TEXT)
    again = prepare(tmp_path / "b.txt", tmp_path / "again", SMALL)
    assert corpus.checksum == again.checksum


def folder_of(folder, docs):
    folder.mkdir()
    for number, text in enumerate(docs):
        (folder / f"{number}.txt").write_text(text)
    (folder / "picture.png").write_bytes(b"\x89PNG")
    (folder / ".hidden.txt").write_text("not this")
    return folder


# Workers that are started afresh import everything, which takes them ten seconds each.
@pytest.mark.parametrize("way", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_any_number_of_workers_gives_the_same_bytes(tmp_path, monkeypatch, way):
    monkeypatch.setattr(preparing, "get_context", lambda _usual: get_context(way))
    monkeypatch.setattr(preparing, "CHUNK", 40)
    docs = [f"Document {k} says this. And number {k * k} too." for k in range(12)]
    one = prepare(docs, tmp_path / "one", SMALL)
    two = prepare(docs, tmp_path / "two", SMALL, workers=2)
    assert contents(one.folder) == contents(two.folder)


def test_an_interrupted_run_goes_on_and_ends_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(preparing, "CHUNK", 40)
    docs = [f"Document {k} says this. And number {k * k} too." for k in range(12)]
    whole = prepare(docs, tmp_path / "whole", SMALL)
    done = []

    def stop(characters):
        done.append(characters)
        if len(done) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(docs, tmp_path / "out", SMALL, progress=stop)
    with pytest.raises(DataError, match="goes on when it is run again"):
        open_corpus(tmp_path / "out")
    encoded = []
    real = preparing.work
    monkeypatch.setattr(preparing, "work", lambda *a: encoded.append(a) or real(*a))
    corpus = prepare(docs, tmp_path / "out", SMALL)
    assert len(encoded) == len(list(preparing._chunks(iter([[d] for d in docs])))) - 3
    assert contents(corpus.folder) == contents(whole.folder)


def test_a_part_of_other_text_is_made_again(tmp_path, monkeypatch):
    monkeypatch.setattr(preparing, "CHUNK", 40)
    first = [f"Document {k} says this." for k in range(6)]

    def stop(_characters):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(first, tmp_path / "out", SMALL, progress=stop)
    other = ["Another text.", *first]
    corpus = prepare(other, tmp_path / "out", SMALL)
    assert contents(corpus.folder) == contents(prepare(other, tmp_path / "b", SMALL).folder)


def test_a_full_disk_is_said_and_keeps_what_was_there(tmp_path, monkeypatch):
    corpus = prepare([TEXT], tmp_path / "out", SMALL)
    before = contents(corpus.folder)

    def full(*_arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(preparing, "work", full)
    with pytest.raises(DataError, match="No space left on device"):
        prepare([TEXT + "more"], tmp_path / "out", SMALL, overwrite=True)
    assert contents(corpus.folder) == before


def test_an_existing_corpus_is_not_replaced_unasked(tmp_path):
    prepare([TEXT], tmp_path / "out", SMALL)
    with pytest.raises(DataError, match=r"holds a prepared corpus\. Give another name"):
        prepare([TEXT], tmp_path / "out", SMALL)


@pytest.mark.parametrize("name", ["tokens.bin", "sentences.bin", "documents.bin", "tokenizer.json"])
def test_missing_truncated_and_changed_files_are_named(tmp_path, name):
    corpus = prepare([TEXT], tmp_path / "out", SMALL)
    file = corpus.folder / name
    data = file.read_bytes()
    file.write_bytes(data[:-1])
    with pytest.raises(DataError, match=f"{name} must have {len(data)} bytes, got {len(data) - 1}"):
        open_corpus(corpus.folder)
    file.write_bytes(bytes([data[0] ^ 1]) + data[1:])
    with pytest.raises(DataError, match=f"{name} has another checksum"):
        open_corpus(corpus.folder, verify=True)
    file.unlink()
    with pytest.raises(DataError, match=f"{name} is missing"):
        open_corpus(corpus.folder)


@pytest.mark.parametrize(
    "change",
    [{"version": 2}, {"dtype": "object"}, {"tokens": -1}, {"files": {}}, {"files": 3}],
)
def test_a_damaged_manifest_is_refused(tmp_path, change):
    corpus = prepare([TEXT], tmp_path / "out", SMALL)
    file = corpus.folder / "manifest.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(DataError, match="Prepare the text again"):
        open_corpus(corpus.folder)
    file.write_text("{")
    with pytest.raises(DataError, match="must be JSON"):
        open_corpus(corpus.folder)


@pytest.mark.parametrize(
    ("sources", "message"),
    [
        ("nowhere.txt", "existing files or folders, got nowhere.txt"),
        (["nowhere.txt"], "existing files or folders, got nowhere.txt"),
        ([], "a vocabulary needs text, got none"),
        ([""], "got none"),
        (["\n \n"], "got none"),
        ([{"body": "x"}], r"record 0 must have its text in the field 'text', got \['body'\]"),
        (3, "paths or an iterable of texts, got 3"),
        (iter(["a b"]), "can be read once"),
    ],
)
def test_sources_that_cannot_be_used(tmp_path, sources, message):
    with pytest.raises(DataError, match=message):
        prepare(sources, tmp_path / "out", SMALL)


def test_empty_files_among_others_are_left_out(tmp_path):
    for name, text in {"a.txt": "", "b.txt": "\n\n", "c.txt": "One sentence only."}.items():
        (tmp_path / name).write_text(text)
    assert len(prepare(tmp_path, tmp_path / "out", SMALL).documents) == 2


def test_bytes_that_are_no_text_are_named(tmp_path):
    (tmp_path / "a.txt").write_bytes("Grüße".encode("latin-1"))
    with pytest.raises(DataError, match=r"a.txt must be UTF-8 text"):
        prepare(tmp_path / "a.txt", tmp_path / "out", SMALL)
    (tmp_path / "b.txt.xz").write_bytes(lzma.compress(TEXT.encode())[:-9])
    with pytest.raises(DataError, match=r"b.txt.xz must be a readable text file"):
        prepare(tmp_path / "b.txt.xz", tmp_path / "out", SMALL)
    (tmp_path / "c.jsonl").write_text('{"text": "a"}\n{"text": ')
    with pytest.raises(DataError, match=r"line 2 of .*c\.jsonl must be JSON"):
        prepare(tmp_path / "c.jsonl", tmp_path / "out", SMALL)


def test_one_file_one_document_when_asked(tmp_path):
    (tmp_path / "a.txt").write_text(TEXT)
    assert len(list(documents(tmp_path / "a.txt", Reading("file")))) == 1
    assert len(list(documents(tmp_path / "a.txt", Reading()))) == 2
    with pytest.raises(DataError, match="'blank_line' or 'file', got 'line'"):
        Reading("line")


def test_half_of_a_surrogate_pair_becomes_a_question_mark(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "odd \\ud800 text"}')
    assert list(documents(tmp_path / "a.jsonl", Reading())) == [["odd ? text"]]


@pytest.mark.parametrize("kind", ["wordpiece", "unigram"])
def test_trained_tokenizers_know_words_and_special_tokens(tmp_path, kind):
    corpus = prepare([TEXT * 3], tmp_path / "out", Vocabulary(kind=kind, size=64))
    special = corpus.special
    assert (special.pad, special.start, special.end, special.mask) == (0, 2, 3, 4)
    assert corpus.is_special[:5].all()
    assert not corpus.is_special[5:].any()
    assert 0 < corpus.starts_word.sum() < corpus.vocab_size


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "bpe"}, "'wordpiece' or 'unigram', got 'bpe'"),
        ({"size": 3}, "integer >= 10, got 3"),
        ({"size": 60.0}, "integer >= 10, got 60.0"),
        ({"path": "nowhere"}, "tokenizer must be a tokenizer.json"),
    ],
)
def test_vocabularies_that_cannot_be_made(tmp_path, options, message):
    with pytest.raises(DataError, match=message):
        prepare([TEXT], tmp_path / "out", Vocabulary(**options))


def test_a_tokenizer_without_a_mask_is_refused_by_name(tmp_path):
    tokenizer = load_tokenizer(prepare([TEXT], tmp_path / "a", SMALL).folder)
    data = json.loads(tokenizer.to_str())
    data["added_tokens"] = [t for t in data["added_tokens"] if t["content"] != "[MASK]"]
    del data["model"]["vocab"]["[MASK]"]
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    with pytest.raises(DataError, match=r"must have a mask token \(\[MASK\] or <mask>\)"):
        prepare([TEXT], tmp_path / "b", Vocabulary(tmp_path / "tokenizer.json"))


def test_large_vocabularies_take_four_bytes(tmp_path):
    corpus = prepare([TEXT], tmp_path / "out", SMALL)
    assert corpus.tokens.dtype == np.uint16
    tokenizer = json.loads((corpus.folder / "tokenizer.json").read_text())
    words = tokenizer["model"]["vocab"]
    words |= {f"extra{k}": len(words) + k for k in range(1 << 16)}
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    wide = prepare([TEXT], tmp_path / "wide", Vocabulary(tmp_path / "tokenizer.json"))
    assert wide.tokens.dtype == np.uint32
    assert wide.tokens.tolist() == corpus.tokens.tolist()


def test_sentences_without_tokens_do_not_count(tmp_path):
    tokenizer = load_tokenizer(prepare([TEXT], tmp_path / "out", SMALL).folder)
    part = encode_documents([["The cat."], ["\u200b"], ["The dog.", "\u200b"]], tokenizer)
    assert part.sentence_lengths.min() > 0
    assert part.document_lengths.tolist() == [1, 1]


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("One. Two? Three!", ["One.", "Two?", "Three!"]),
        ("At 3.5 per cent. Then J. R. Smith left.", ["At 3.5 per cent.", "Then J. R. Smith left."]),
        ("He said (softly.) Nothing", ["He said (softly.)", "Nothing"]),
        ("e.g. This stays. no capital here. ok", ["e.g. This stays. no capital here. ok"]),
        ("", []),
        ("   ", []),
        ("没有。还有\uff01", ["没有。", "还有\uff01"]),
        ("." * 5000, ["." * 5000]),
    ],
)
def test_sentences(text, sentences):
    assert split_sentences(text) == sentences


def test_workers_must_be_a_count(tmp_path):
    with pytest.raises(DataError, match="workers must be an integer >= 1, got 0"):
        prepare([TEXT], tmp_path / "out", SMALL, workers=0)


def test_nothing_is_left_beside_the_corpus(tmp_path):
    corpus = prepare([TEXT], tmp_path / "out", SMALL)
    assert sorted(contents(corpus.folder)) == [
        "documents.bin",
        "manifest.json",
        "sentences.bin",
        "tokenizer.json",
        "tokens.bin",
    ]
    assert not any(p.is_dir() for p in corpus.folder.iterdir())
    moved = shutil.move(corpus.folder, tmp_path / "ünî côde")
    assert open_corpus(moved).checksum == corpus.checksum


def test_ids_behind_a_gap_in_the_vocabulary_are_kept(tmp_path):
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words = {**{name: k for k, name in enumerate(special)}, "near": 5, "far": 70_000}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    corpus = prepare(["near far"], tmp_path / "out", Vocabulary(tmp_path / "tokenizer.json"))
    assert corpus.tokens.tolist() == [5, 70_000]
    assert corpus.tokens.dtype == np.uint32
