"""What is asked and what goes wrong: a pure function of the seed. When things happen is the machine's affair."""

import random
from collections.abc import Iterator
from typing import Literal

from msgspec import Struct

from legato.cli.prove.ledger import mark

Way = Literal["named", "shared", "chained", "session", "background", "stream", "tool", "failing"]
"""How an input comes in: into a conversation of the client's own, into one that all clients write to at once, after a
previous response, with a session header on chat completions, in the background, as a stream, with a tool call, with a
model that fails."""

Aside = Literal["compact", "read", "resend"]
"""What a client does between two inputs."""

Point = Literal["at any moment", "after the acknowledgement", "after the first event", "while a tool runs"]
FaultKind = Literal["kill", "stop", "drain", "jump", "kill all"]

WAYS: dict[Way, int] = {
    "named": 5,
    "shared": 3,
    "chained": 4,
    "session": 3,
    "background": 3,
    "stream": 5,
    "tool": 3,
    "failing": 1,
}
_ASIDES: dict[Aside, int] = {"compact": 1, "read": 2, "resend": 2}
_FAULTS: dict[FaultKind, int] = {"kill": 6, "stop": 2, "drain": 2, "jump": 2, "kill all": 1}
_POINTS: tuple[Point, ...] = (
    "at any moment",
    "after the acknowledgement",
    "after the first event",
    "while a tool runs",
)
TURNS_PER_PLACE = 15


class Act(Struct, frozen=True, kw_only=True):
    """One input of a client, and what the client does around it."""

    key: str
    way: Way
    place: str
    text: str
    expected: str | None = None
    twice: bool = False
    """The same request is sent a second time, at the same moment."""

    gives_up: bool = False
    """When no answer comes it is not asked again."""

    cuts: tuple[int, ...] = ()
    """After how many events the stream is cut, each time it is taken up."""

    aside: Aside | None = None


class Fault(Struct, frozen=True, kw_only=True):
    """Something that goes wrong, so many seconds after what went wrong before."""

    after: float
    kind: FaultKind
    node: int
    point: Point = "at any moment"


def acts(seed: int, client: int) -> Iterator[Act]:
    """What a client asks, without end."""
    chance = random.Random(f"{seed}/client/{client}")
    counts: dict[str, int] = {}
    for n in range(10**9):
        [way] = chance.choices(list(WAYS), list(WAYS.values()))
        nth = counts[way] = counts.get(way, -1) + 1
        yield _act(chance, way, f"{client}.{n}", _place(way, client, nth))


def faults(seed: int, nodes: int) -> Iterator[Fault]:
    """What goes wrong, without end."""
    chance = random.Random(f"{seed}/faults")
    while True:
        [kind] = chance.choices(list(_FAULTS), list(_FAULTS.values()))
        point: Point = chance.choice(_POINTS) if kind == "kill" else "at any moment"
        yield Fault(after=round(chance.uniform(0.5, 3.0), 2), kind=kind, node=chance.randrange(nodes), point=point)


def mute(seed: int, node: int, life: int) -> bool:
    """Whether nobody can write summaries in this life of a node."""
    return random.Random(f"{seed}/mute/{node}/{life}").random() < 1 / 3


def _place(way: Way, client: int, nth: int) -> str:
    """Several ways share a conversation of the client, so that they meet in one log."""
    epoch = nth // TURNS_PER_PLACE
    match way:
        case "shared":
            return f"shared-{nth // 5}"
        case "chained":
            return f"chain-{client}-{epoch}"
        case "session":
            return f"session-{client}-{epoch}"
        case "named" | "failing":
            return f"talk-{client}-{epoch}"
        case _:
            return f"{way}-{client}-{epoch}"


def _act(chance: random.Random, way: Way, key: str, place: str) -> Act:
    text, expected = _text(chance, way, key)
    return Act(
        key=key,
        way=way,
        place=place,
        text=text,
        expected=expected,
        twice=way != "stream" and chance.random() < 0.15,
        gives_up=way in ("named", "session", "shared") and chance.random() < 0.2,
        cuts=tuple(chance.randint(1, 40) for _ in range(chance.randint(0, 3))) if way == "stream" else (),
        aside=chance.choices(list(_ASIDES), list(_ASIDES.values()))[0] if chance.random() < 0.3 else None,
    )


def _text(chance: random.Random, way: Way, key: str) -> tuple[str, str | None]:
    """What is said, and what the demo must answer to it, where that is certain."""
    match way:
        case "stream":
            return f"write {chance.choice((30, 200, 1200))} words {mark(key)}", None
        case "tool":
            return f'call note {{"key": "{mark(key)}", "seconds": {chance.choice((0, 0.1, 0.6))}}}', None
        case "failing":
            return f"fail 1 times {mark(key)}", None
        case _ if chance.random() < 0.25:
            return f"sleep {chance.choice((0.1, 0.5, 1.5))} {mark(key)}", None
        case _ if chance.random() < 0.3:
            return f"What did I say before {mark(key)}?", None
        case _:
            answer = f"{mark(key)} heard, number {chance.randrange(10**6)}"
            return f"reply only {answer}", answer
