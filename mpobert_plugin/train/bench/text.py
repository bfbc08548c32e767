"""Made-up text, prepared as real text is, for measurements that need no meaning."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mpobert_plugin.train.aside import written_aside
from mpobert_plugin.train.data.prepare import Vocabulary, prepare
from mpobert_plugin.train.data.store import MANIFEST, TOKENIZER, Corpus, open_corpus

if TYPE_CHECKING:
    from pathlib import Path

_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_SENTENCE, _DOCUMENT = 20, 50


def made_up_corpus(folder: Path, words: int = 29_000, tokens: int = 500_000) -> Corpus:
    """Return a prepared corpus of random words; one that is there is used again.

    Parameters
    ----------
    folder : Path
        Where it lies or is made.
    words : int
        Size of the vocabulary, special tokens not counted.
    tokens : int
        About how many tokens.

    Returns
    -------
    Corpus
        Sentences of 20 words, documents of 50 sentences; drawn as words of a language are, the
        n-th as often as 1 / n.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     corpus = made_up_corpus(Path(folder), words=50, tokens=2000)
    ...     len(corpus.tokens), corpus.vocab_size
    (2000, 55)
    """
    if (folder / MANIFEST).is_file():
        return open_corpus(folder)
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"w{number}" for number in range(words)]
    # Hidden, for a corpus goes into a folder without other things.
    source = folder / f".made-up-{TOKENIZER}"
    _write_tokenizer(source, names)
    corpus = prepare(_texts(names, tokens), folder, Vocabulary(source))
    source.unlink()
    return corpus


def _texts(names: list[str], tokens: int) -> list[str]:
    draw = np.random.default_rng(0)
    weights = 1.0 / np.arange(1, len(names) + 1)
    drawn = draw.choice(len(names), size=tokens, p=weights / weights.sum())
    pieces = [names[number] for number in drawn]
    size = _SENTENCE * _DOCUMENT
    return [_document(pieces[start : start + size]) for start in range(0, tokens, size)]


def _document(pieces: list[str]) -> str:
    starts = range(0, len(pieces), _SENTENCE)
    return "\n".join(" ".join(pieces[start : start + _SENTENCE]) for start in starts)


def _write_tokenizer(path: Path, names: list[str]) -> None:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit

    ids = {name: number for number, name in enumerate((*_SPECIAL, *names))}
    tokenizer = Tokenizer(WordLevel(ids, unk_token="[UNK]"))  # noqa: S106
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.add_special_tokens(list(_SPECIAL))
    with written_aside(path) as file:
        file.write(tokenizer.to_str().encode())
