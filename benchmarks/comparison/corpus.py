"""The text of the comparison: every fiftieth document is held out, the others are trained on.

$ python -m benchmarks.comparison.corpus corpus.txt.xz prepared --workers 2

writes ``prepared/train`` and ``prepared/held-out``, as `mpobert prepare` does, with one vocabulary.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path

from mpobert_plugin import train
from mpobert_plugin.train.data.texts import Reading, documents

VOCABULARY = 8192
EVERY = 50


def divided(source: Path, held_out: bool, every: int) -> Iterator[str]:
    """Yield the documents of one part, paragraphs in lines."""
    for number, paragraphs in enumerate(documents(source, Reading())):
        if (number % every == every - 1) == held_out:
            yield "\n".join(paragraphs)


def prepare(
    source: Path, out: Path, size: int = VOCABULARY, workers: int = 1, every: int = EVERY
) -> None:
    """Write both parts; the vocabulary is that of the part that is trained on."""
    with tempfile.TemporaryDirectory() as folder:
        for part, held_out in (("train", False), ("held-out", True)):
            text = Path(folder) / f"{part}.txt"
            with text.open("w", encoding="utf-8") as file:
                file.writelines(f"{document}\n\n" for document in divided(source, held_out, every))
            known = train.Vocabulary(out / "train") if held_out else train.Vocabulary(size=size)
            print(part, train.prepare(text, out / part, known, workers=workers))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=Path, help="text, an empty line between documents")
    parser.add_argument("out", type=Path)
    parser.add_argument("--size", type=int, default=VOCABULARY)
    parser.add_argument("--workers", type=int, default=1)
    given = parser.parse_args()
    prepare(given.source, given.out, given.size, given.workers)


if __name__ == "__main__":
    main()
