"""Where the sentences of a paragraph end: rules that need no model and no language pack."""

from __future__ import annotations

import re

_CLOSING, _OPENING = "\"')\\]\u2019\u201d", "\"'(\\[\u2018\u201c"
_CAPITAL = "A-Z0-9\u00c0-\u00d6\u00d8-\u00de\u0410-\u042f"
# A closing mark, perhaps quotes or brackets behind it, a space, and what may begin a sentence; or
# the wide marks of Chinese and Japanese, which need no space.
_END = re.compile(
    rf"(?<=[.!?\u2026])[{_CLOSING}]*\s+(?=[{_OPENING}]*[{_CAPITAL}])|(?<=[\u3002\uff01\uff1f])(?=.)"
)
_SHORT = frozenset(
    "mr mrs ms dr prof st sr jr vs etc fig figs no nos vol pp p cf ca al e.g i.e approx dept est "  # noqa: SIM905
    "gen gov hon inc ltd co corp rep sen rev capt col lt sgt maj jan feb mar apr jun jul aug sep "
    "sept oct nov dec u.s u.k ed eds trans sec ch art op viz".split()
)
_LAST_WORD = re.compile(rf"([^\s{_OPENING}]+)\.[{_CLOSING}]*\s*$")


def split_sentences(paragraph: str) -> list[str]:
    """Return the sentences of a paragraph, in order, without the space around them.

    A full stop after a common abbreviation or a single initial ends no sentence.

    Parameters
    ----------
    paragraph : str
        Text without line breaks.

    Returns
    -------
    list of str
        None of them empty.

    Examples
    --------
    >>> split_sentences('He met Dr. Who. "Really?" she asked. Yes!')
    ['He met Dr. Who.', '"Really?" she asked.', 'Yes!']
    """
    pieces: list[str] = []
    start = 0
    for match in _END.finditer(paragraph):
        cut = match.end()
        if _is_abbreviation(paragraph[start : match.start() + len(match.group().rstrip())]):
            continue
        pieces.append(paragraph[start:cut].strip())
        start = cut
    pieces.append(paragraph[start:].strip())
    return [piece for piece in pieces if piece]


def _is_abbreviation(text: str) -> bool:
    found = _LAST_WORD.search(text[-40:])
    if found is None:
        return False
    word = found.group(1)
    return word.lower() in _SHORT or (len(word) == 1 and word.isalpha() and word.isupper())
