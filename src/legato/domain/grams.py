"""What full-text search indexes: overlapping three-character grams of any script.

Words are a Western idea: Chinese, Japanese and Thai do not space them, and people search for parts of names, paths
and numbers everywhere. So the index holds, for every character of the normalised text, the gram that starts there
(shorter ones at the end). A query of three characters or more is the AND of its grams, a shorter one a prefix of
one gram, and the candidates are checked with `contains`: the result is exactly the substring truth.

Grams are written in a prefix-free ASCII code, so one text serves FTS5 and tsvector, a prefix of a gram is a prefix
of its code, and nothing a user types can be query syntax. `y…` and `z…` are tags (owner, conversation).
"""

import hashlib
import unicodedata
from functools import lru_cache

PLAIN = frozenset("abcdefghijklmnopqrstuvw0123456789")
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
MAX_QUERY = 200


def normalise(text: str) -> str:
    """One form for what looks the same: width, case, and runs of white space."""
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text)
    folded = text.casefold()
    return " ".join((folded if folded.isascii() else unicodedata.normalize("NFKC", folded)).split())


def contains(text: str, query: str) -> bool:
    """The ground truth of search."""
    return normalise(query) in normalise(text)


def snippet(text: str, query: str, around: int = 60) -> str:
    """The place of a text where the query is, as it was written where that can be told, in one line."""
    line = " ".join(text.split())
    place, wanted = line.lower().find(" ".join(query.split()).lower()), query
    if place < 0:
        line, wanted = normalise(text), normalise(query)
        place = max(0, line.find(wanted))
    first, last = max(0, place - around), place + len(wanted) + around
    return ("…" if first else "") + line[first:last] + ("…" if last < len(line) else "")


def shortened(text: str, most: int = 80) -> str:
    """The beginning of a text, in one line."""
    line = " ".join(text[: most * 4].split())
    return line if len(line) <= most else line[: most - 1].rstrip() + "…"


def grams(text: str) -> set[str]:
    """The codes under which a text is found."""
    plain = normalise(text)
    codes = list(map(_code, plain))
    ends = {"".join(codes[-length:]) for length in (1, 2) if len(codes) >= length}
    return ends.union(map("".join, zip(codes, codes[1:], codes[2:], strict=False)))


def query_grams(query: str) -> tuple[list[str], str | None]:
    """What to look up: codes that must all be there, or else one prefix of a code."""
    codes = [_code(c) for c in normalise(query)]
    if len(codes) < 3:
        return [], "".join(codes)
    return sorted({"".join(codes[i : i + 3]) for i in range(len(codes) - 2)}), None


def tag(letter: str, value: str) -> str:
    """A code no gram can have, for an exact value such as an owner, however long."""
    return letter + hashlib.sha256(value.encode()).hexdigest()[:32]


@lru_cache(maxsize=4096)
def _code(char: str) -> str:
    if char in PLAIN:
        return char
    point, digits = ord(char), ""
    for _ in range(4):
        point, digit = divmod(point, 36)
        digits = _DIGITS[digit] + digits
    return "x" + digits
