"""Live: followers of running turns, here and on other nodes.

Events are committed before anyone sees them, so a follower needs no queue: it holds a cursor. What was committed
lately is kept in memory for the readers that keep up; one that falls behind reads the database instead and slows
nobody. With nothing kept at all, every follower sees exactly the same.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress

from legato.domain.events import AnyEvent
from legato.domain.ids import TurnId
from legato.domain.turns import Turn
from legato.store import turns
from legato.store.database import Database, Hint

KEEP = 4096
POLL = 2.0  # seconds between looks at the database when no hint arrives


class _Feed:
    """The latest events of a turn that runs here."""

    def __init__(self, start: int) -> None:
        self.start = start
        self.events: list[AnyEvent] = []

    def add(self, events: list[AnyEvent], keep: int) -> None:
        self.events += events
        surplus = len(self.events) - keep
        if surplus > keep // 4:  # trimmed in strides: moving a list costs its length
            del self.events[:surplus]
            self.start += surplus


class Live:
    """Who follows what."""

    def __init__(self, db: Database, *, keep: int = KEEP) -> None:
        self._db = db
        self._keep = keep
        self._feeds: dict[TurnId, _Feed] = {}
        self._bells: dict[TurnId, set[asyncio.Event]] = {}

    # -- the worker's side

    def open(self, turn_id: TurnId, n: int) -> None:
        """A turn runs here; its next event has number `n`."""
        self._feeds[turn_id] = _Feed(n)

    def publish(self, turn_id: TurnId, events: list[AnyEvent]) -> None:
        """These events are durable now."""
        self._feeds[turn_id].add(events, self._keep)
        self._tell(turn_id)

    def close(self, turn_id: TurnId) -> None:
        """The turn ended or left this node; the database says how."""
        self._feeds.pop(turn_id, None)
        self._tell(turn_id)

    def nudge(self, turn_id: TurnId) -> None:
        """Something may have changed: whoever follows this turn looks again."""
        for bell in self._bells.get(turn_id, ()):
            bell.set()

    def _tell(self, turn_id: TurnId) -> None:
        self.nudge(turn_id)
        self._db.tell(Hint("events", turn_id))

    # -- the followers' side

    async def follow(self, turn_id: TurnId, n: int = 0) -> AsyncIterator[tuple[int, AnyEvent]]:
        """Every event of a turn from number `n` on, until it has ended."""
        with self._bell(turn_id) as bell:
            while True:
                bell.clear()  # before looking, so that nothing that comes after is missed
                feed = self._feeds.get(turn_id)
                ended = False
                if feed is not None and n >= feed.start:
                    events = feed.events[n - feed.start :]
                else:
                    turn, events = await self._db.read(turns.events_from, turn_id, n)
                    ended = turn.ended
                for event in events:
                    yield n, event
                    n += 1
                if ended:
                    return
                if not events:
                    await _ring(bell)

    async def ended(self, turn_id: TurnId) -> Turn:
        """The turn, once it has ended."""
        with self._bell(turn_id) as bell:
            while True:
                bell.clear()
                if turn_id not in self._feeds:
                    turn = await self._db.read(turns.get, turn_id)
                    if turn.ended:
                        return turn
                await _ring(bell)

    @contextmanager
    def _bell(self, turn_id: TurnId) -> Iterator[asyncio.Event]:
        bell = asyncio.Event()
        bells = self._bells.setdefault(turn_id, set())
        bells.add(bell)
        try:
            yield bell
        finally:
            bells.discard(bell)
            if not bells:
                self._bells.pop(turn_id, None)


async def _ring(bell: asyncio.Event) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(POLL):
            await bell.wait()
