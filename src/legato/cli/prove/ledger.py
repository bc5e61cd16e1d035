"""The records of a drill: what clients asked and were told, and what is found in the end. Values only.

`Asked.sent` and `Asked.taken` are places in one order of events over all clients: what was taken before something else
was sent must come before it in a conversation.
"""

import itertools
import re
import threading

from msgspec import Struct, field

_KEY = re.compile(r"\[(\d+\.\d+)\]")


def mark(key: str) -> str:
    """The mark by which an input is known wherever it turns up."""
    return f"[{key}]"


def marks_in(text: str) -> list[str]:
    """The keys of the inputs that a text carries."""
    return _KEY.findall(text)


class Told(Struct):
    """What a follower was shown, over all the streams that were cut and taken up again."""

    numbers: list[int] = field(default_factory=list)
    texts: dict[str, str] = field(default_factory=dict)
    """The prose of each item, put together from its pieces."""

    ended: bool = False
    cuts: int = 0


class Asked(Struct, kw_only=True):
    """One input, and what its client knows of it. Owned by one client."""

    key: str
    way: str
    place: str
    """What the client calls the conversation: a name, a session, a chain."""

    text: str
    sent: int
    taken: int | None = None
    """When it was acknowledged; None when no answer ever came, so that it may or may not be there."""

    gives_up: bool = False
    """Whether the client stops asking when no answer comes."""

    tries: int = 0
    turns: set[str] = field(default_factory=set)
    conversations: set[str] = field(default_factory=set)
    answer: str | None = None
    """The answer, where the client waited for it."""

    expected: str | None = None
    """What the demo must answer, if it answers."""

    told: Told | None = None
    doubles: int = 0
    begun: float = 0.0
    done: float | None = None
    cut: float | None = None
    """When its first try was cut off."""


class Looked(Struct, frozen=True):
    """A read in the middle of the drill: what had been answered before, and which marks were there."""

    conversation: str
    expected: tuple[str, ...]
    found: tuple[str, ...]


class Refusal(Struct, frozen=True):
    """An answer that no client should have got."""

    what: str
    status: int
    body: str


class Ledger:
    """Everything that the clients know. Shared between their threads."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.looked: list[Looked] = []
        self.refusals: list[Refusal] = []
        self.compactions: dict[str, int] = {}
        self._clock = itertools.count(1)
        self._lock = threading.Lock()

    def tick(self) -> int:
        """The next place in the order of events."""
        with self._lock:
            return next(self._clock)

    def compacted(self, outcome: str) -> None:
        with self._lock:
            self.compactions[outcome] = self.compactions.get(outcome, 0) + 1


# -- what is found in the end


class Piece(Struct, frozen=True):
    """One item of a conversation: `user`, `assistant`, `call`, `result` or another word of the wire."""

    kind: str
    text: str = ""
    call_id: str = ""


class Outcome(Struct, frozen=True):
    """How a turn ended."""

    status: str
    conversation: str
    texts: dict[str, str] = {}


class Found(Struct, frozen=True, kw_only=True):
    """Everything that was read back."""

    conversations: dict[str, list[Piece]]
    names: dict[str, list[str]]
    """The conversations that list a name as theirs."""

    turns: dict[str, Outcome]
    runs: dict[str, int]
    """How often the tool began for each key: lines in a file, which the store knows nothing of."""

    verify: list[str]


class Finding(Struct, frozen=True):
    """Something that must not be."""

    kind: str
    what: str
    way: str = ""
