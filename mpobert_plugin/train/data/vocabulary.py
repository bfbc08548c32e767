"""The tokenizer of a corpus: a given one, or one trained on the text; and what its tokens are."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from mpobert_plugin.errors import DataError
from mpobert_plugin.train.data.foreign import told

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

KINDS = ("wordpiece", "unigram")
_ROLES = {
    "pad": ("[PAD]", "<pad>"),
    "unknown": ("[UNK]", "<unk>"),
    "start": ("[CLS]", "<s>"),
    "end": ("[SEP]", "</s>"),
    "mask": ("[MASK]", "<mask>"),
}
SPECIAL = tuple(names[0] for names in _ROLES.values())
UNKNOWN = SPECIAL[1]


@dataclass(frozen=True)
class Special:
    """Ids of the tokens that samples need.

    Parameters
    ----------
    pad, start, end, mask : int
        Ids of padding, of the first token, of the token behind each segment, and of the mask.
    """

    pad: int
    start: int
    end: int
    mask: int


def load_tokenizer(path: str | os.PathLike[str]) -> Tokenizer:
    """Return the tokenizer of a ``tokenizer.json``, or of the folder that holds one.

    Parameters
    ----------
    path : path
        A file or a folder.

    Returns
    -------
    tokenizers.Tokenizer
        Without padding and truncation.

    Raises
    ------
    DataError
        When there is none, or it is damaged.
    """
    file = Path(path)
    file = file / "tokenizer.json" if file.is_dir() else file
    if not file.is_file():
        raise DataError(
            f"tokenizer must be a tokenizer.json or a folder with one, got {path}. Save one with "
            "tokenizer.save_pretrained(folder), or leave it out to train a new one."
        )
    with told(f"{file} must be a tokenizer"):
        tokenizer = Tokenizer.from_file(str(file))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def train_tokenizer(texts: Iterator[str], kind: str, size: int, lowercase: bool) -> Tokenizer:
    """Return a tokenizer trained on texts.

    Parameters
    ----------
    texts : iterator of str
        Paragraphs.
    kind : str
        'wordpiece' as BERT has it, or 'unigram' as SentencePiece makes for ALBERT.
    size : int
        Number of tokens at most, the five special ones included.
    lowercase : bool
        Whether letters lose their case (and accents, for word pieces).

    Returns
    -------
    tokenizers.Tokenizer
        With [PAD], [UNK], [CLS], [SEP] and [MASK] as ids 0 to 4. The same texts give the same word
        pieces; a unigram tokenizer may break ties in another way each time it is trained.

    Raises
    ------
    DataError
        When the kind is unknown, the size too small, or the texts are empty.
    """
    if kind not in KINDS:
        raise DataError(f"tokenizer kind must be {' or '.join(map(repr, KINDS))}, got {kind!r}.")
    if type(size) is not int or size < 2 * len(SPECIAL):
        raise DataError(f"vocabulary size must be an integer >= {2 * len(SPECIAL)}, got {size!r}.")
    with told(f"texts must give a {kind} vocabulary"):
        tokenizer = (_wordpiece if kind == "wordpiece" else _unigram)(texts, size, lowercase)
    if tokenizer.get_vocab_size() <= len(SPECIAL):
        raise DataError("a vocabulary needs text, got none. Look at the files and the separator.")
    return tokenizer


def _wordpiece(texts: Iterator[str], size: int, lowercase: bool) -> Tokenizer:
    counts = Counter(word for text in texts for word in text.split())
    tokenizer = _empty_wordpiece({}, lowercase)
    # The library numbers pieces such as ##a in the order of a hash table, and breaks ties by those
    # numbers. Given beforehand they have an order, and the result is the same each time.
    pieces = sorted({f"##{letter}" for letter in _inner_letters(tokenizer, counts)})
    special = [*SPECIAL, *pieces[: max(0, size - len(SPECIAL))]]
    trainer = trainers.WordPieceTrainer(
        vocab_size=size, special_tokens=special, show_progress=False
    )
    tokenizer.train_from_iterator(_repeated(counts), trainer)
    return _empty_wordpiece(tokenizer.get_vocab(), lowercase)


def _empty_wordpiece(vocabulary: dict[str, int], lowercase: bool) -> Tokenizer:
    model = models.WordPiece(vocabulary, unk_token=UNKNOWN, max_input_chars_per_word=100)
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    if vocabulary:
        tokenizer.add_special_tokens(list(SPECIAL))
    return tokenizer


def _inner_letters(tokenizer: Tokenizer, counts: Iterable[str]) -> set[str]:
    letters: set[str] = set()
    for word in counts:
        text = tokenizer.normalizer.normalize_str(word)
        for piece, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text):
            letters.update(piece[1:])
    return letters


def _repeated(counts: Counter[str]) -> Iterator[str]:
    """Yield every word as often as it was met, some at a time."""
    for word, count in sorted(counts.items()):
        for start in range(0, count, 1000):
            yield " ".join([word] * min(1000, count - start))


def _unigram(texts: Iterator[str], size: int, lowercase: bool) -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    steps = [normalizers.NFKC(), *([normalizers.Lowercase()] if lowercase else [])]
    tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=size, special_tokens=list(SPECIAL), unk_token=UNKNOWN, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def special_ids(tokenizer: Tokenizer) -> Special:
    """Return the ids of the tokens that samples need.

    Parameters
    ----------
    tokenizer : tokenizers.Tokenizer
        With BERT's or RoBERTa's names of special tokens.

    Returns
    -------
    Special
        Their ids.

    Raises
    ------
    DataError
        When one is missing; it is named.
    """
    found = {}
    for role, names in _ROLES.items():
        ids = [tokenizer.token_to_id(name) for name in names]
        known = [number for number in ids if number is not None]
        if known:
            found[role] = known[0]
        elif role != "unknown":
            raise DataError(
                f"the tokenizer must have a {role} token ({' or '.join(names)}), got "
                f"{tokenizer.get_vocab_size()} tokens without it. Add it to the tokenizer with "
                "add_special_tokens, or train a tokenizer here."
            )
    return Special(found["pad"], found["start"], found["end"], found["mask"])


def word_starts(tokenizer: Tokenizer) -> NDArray[np.bool_]:
    """Return, for each id, whether its token begins a word.

    Word pieces go on with ``##``; SentencePiece marks the beginning by U+2581, byte-level
    tokenizers by U+0120. Where no token has such a mark, every token is a word.

    Parameters
    ----------
    tokenizer : tokenizers.Tokenizer
        Any tokenizer.

    Returns
    -------
    ndarray of bool
        (vocabulary,).
    """
    size = 1 + max(tokenizer.get_vocab().values(), default=-1)
    tokens = [""] * size
    for token, number in tokenizer.get_vocab().items():
        tokens[number] = token
    if any(token.startswith("##") for token in tokens):
        return np.array([not token.startswith("##") for token in tokens])
    for mark in ("\u2581", "\u0120"):
        if any(token.startswith(mark) for token in tokens):
            return np.array([token.startswith(mark) for token in tokens])
    return np.ones(size, dtype=np.bool_)


def special_flags(tokenizer: Tokenizer) -> NDArray[np.bool_]:
    """Return, for each id, whether it is a special token, which is neither masked nor drawn.

    Parameters
    ----------
    tokenizer : tokenizers.Tokenizer
        Any tokenizer.

    Returns
    -------
    ndarray of bool
        (vocabulary,).
    """
    flags = np.zeros(1 + max(tokenizer.get_vocab().values(), default=-1), dtype=np.bool_)
    for number, token in tokenizer.get_added_tokens_decoder().items():
        flags[number] |= token.special
    for names in _ROLES.values():
        known = [number for number in map(tokenizer.token_to_id, names) if number is not None]
        flags[known] = True
    return flags
