"""Writes the demo's reactions.txt: textbook reactions composed from families and substituents.

Run from the repository root: ``python scripts/compose_reactions.py`` (``--check`` only compares).
A reaction is held out when its family is, or when one of its substituents is; no training family
takes those, so the held-out reactions ask for more than recall.
"""

from __future__ import annotations

import sys
from pathlib import Path

from reaction_families import HELD_OUT, TRAINED, filled

TARGET = Path(__file__).resolve().parents[1] / "mpobert_plugin" / "demo" / "reactions.txt"
HEADER = """\
# Textbook reactions written for this project; composed by scripts/compose_reactions.py.
# Columns, separated by tabs: part, family, reaction SMILES (reactants>>product).
# Parts: train; new-group (a substituent that no training family takes); new-family.
"""


def rows() -> dict[str, tuple[str, str]]:
    """Return reaction -> (part, family): each reaction once, in a fixed order."""
    result: dict[str, tuple[str, str]] = {}
    for family in TRAINED:
        for new_group, reaction in filled(family):
            result.setdefault(reaction, ("new-group" if new_group else "train", family[0]))
    for family in HELD_OUT:
        for _, reaction in filled(family):
            result.setdefault(reaction, ("new-family", family[0]))
    return result


def main() -> int:
    """Write the file, or with ``--check`` return 1 when it is not what would be written."""
    lines = [f"{part}\t{family}\t{reaction}\n" for reaction, (part, family) in rows().items()]
    text = HEADER + "".join(lines)
    if "--check" in sys.argv[1:]:
        same = TARGET.read_text(encoding="utf-8") == text
        print(f"{TARGET.name} is {'as composed' if same else 'not what the script composes'}")
        return 0 if same else 1
    TARGET.write_text(text, encoding="utf-8")
    print(f"{len(lines)} reactions written to {TARGET.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
