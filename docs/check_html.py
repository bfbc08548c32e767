"""Checks the built pages: no unrendered markup, no unknown abbreviation, no missing name."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from types import ModuleType

from bs4 import BeautifulSoup

PACKAGES = ("tensornet", "mpobert_plugin")
UNRENDERED = (":param", ":math:", ":ref:", ":class:", ":func:", ":term:", "{term}", "\\(", "``")

# Abbreviations that a page may use: defined in the glossary, or known to every reader.
KNOWN = {"ALBERT", "BERT", "MPO", "MPOBERT", "MPOs", "PEFT", "SVD", "SVDs", "TT"}
KNOWN |= {"BART", "CLIP"}
KNOWN |= {"CPUs", "ELECTRA", "EMNLP", "GPT", "GPUs", "ICLR", "IDs", "LAMB", "LM", "MPOBERTs", "OPT"}
KNOWN |= {"NOT", "NOTE", "RMS", "SDPA", "SGD", "SHA", "SIGTERM", "WITHOUT", "XL", "XLM", "YAML"}
KNOWN |= {"API", "CI", "CPU", "CUDA", "GPU", "JSON", "MIT", "PNG", "QR", "URL"}
ABBREVIATION = re.compile(r"\b[A-Z]{2,}s?\b")


def prose(page: Path) -> str:
    """Return the text of a page's article, without code, signatures and references."""
    soup = BeautifulSoup(page.read_text(encoding="utf-8"), "html.parser")
    article = soup.find("article") or soup
    for node in article.select("script, style, pre, code, dt.sig, .citation, .highlight"):
        node.decompose()
    return article.get_text(" ")


def faults(page: Path) -> list[str]:
    text = prose(page)
    found = [f"unrendered {mark!r}" for mark in UNRENDERED if mark in text]
    unknown = sorted({word for word in ABBREVIATION.findall(text) if word not in KNOWN})
    return found + [f"undefined abbreviation {word}" for word in unknown]


def missing_names(root: Path) -> list[str]:
    """Return the public names that have no page of their own in the reference."""
    folder = root / "reference" / "generated"
    names = []
    for package in PACKAGES:
        module = importlib.import_module(package)
        for name in module.__all__:
            if name.startswith("__") or isinstance(getattr(module, name), ModuleType):
                continue
            if not any(folder.glob(f"{package}.{name}*.html")):
                names.append(f"{package}.{name}")
    return names


def main(root: Path) -> int:
    pages = [
        p for p in sorted(root.rglob("*.html")) if p.name not in {"genindex.html", "search.html"}
    ]
    problems = [f"{page.relative_to(root)}: {fault}" for page in pages for fault in faults(page)]
    problems += [f"{name} is public and not in the reference" for name in missing_names(root)]
    for problem in problems:
        print(problem)
    print(f"{len(pages)} pages, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
