"""Live: followers of running turns, here and on other nodes.

Events are committed before anyone sees them, so a follower needs no queue: it holds a cursor. What was committed
lately is kept in memory for the readers that keep up; one that falls behind reads the database instead and slows
nobody. With nothing kept at all, every follower sees exactly the same. While nobody follows a turn, its events need
not be committed at once: see `journal`. Who follows it elsewhere says so, and says it again: whoever runs the turn by
then may be another, or may not have heard.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from math import inf

from legato.domain.events import AnyEvent
from legato.domain.ids import TurnId
from legato.domain.turns import Told, Turn
from legato.errors import Draining, StoreUnavailable
from legato.store import turns
from legato.store.database import Database, Hint
from legato.store.turns import Ending

KEEP = 4096
TOGETHER = 256  # events that a follower is given at once
AGAIN = 1.0  # seconds after which a follower says again that it is there
REMEMBERED = 1000  # turns of which a process knows that someone follows them, before they run there
POLL = 2.0  # seconds between looks at the database when no hint arrives


class _Feed:
    """The latest events of a turn that runs here."""

    def __init__(self) -> None:
        self.start: float = inf  # the number of the first event kept
        self.events: list[AnyEvent] = []
        self.ended = False  # nothing comes after them
        self.watched = False
        self.on_watched: Callable[[], None] | None = None

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
        self._shut = False
        self._feeds: dict[TurnId, _Feed] = {}
        self._watched: deque[TurnId] = deque(maxlen=REMEMBERED)  # turns that do not run here, followed elsewhere
        self._bells: dict[str, set[asyncio.Event]] = {}  # those who follow a turn, or a conversation
        self._ends: dict[str, set[asyncio.Future[Ending | None]]] = {}  # those who wait for the end

    # -- the worker's side

    def open(self, turn_id: TurnId) -> None:
        """A turn runs here from now on."""
        self._feeds[turn_id] = _Feed()
        if turn_id in self._bells or turn_id in self._watched:
            self.watch(turn_id)

    def begin(self, turn_id: TurnId, n: int) -> None:
        """Its next event has number `n`; what was before is in the database."""
        self._feeds[turn_id].start = n

    def publish(self, turn_id: TurnId, events: list[AnyEvent]) -> None:
        """These events are durable now."""
        self._feeds[turn_id].add(events, self._keep)
        self._ring(turn_id)
        self._db.tell(Hint("events", turn_id))

    def close(self, turn_id: TurnId, ending: Ending | None) -> None:
        """The turn ended (or left this node: then there is no `ending`, and the database says how it goes on)."""
        feed = self._feeds.pop(turn_id, None)
        if feed is not None:
            feed.ended = ending is not None
        self.nudge(turn_id, ending)
        self._db.tell(Hint("events", turn_id))

    def nudge(self, followed: str, ending: Ending | None = None) -> None:
        """Something may have changed in a turn or a conversation: whoever follows it or waits for it looks again."""
        self._ring(followed)
        for end in self._ends.get(followed, ()):
            if not end.done():
                end.set_result(ending)

    def shut(self) -> None:
        """This process is leaving: whoever follows or waits is told to come back."""
        self._shut = True
        for followed in {*self._bells, *self._ends}:
            self.nudge(followed)

    def watch(self, turn_id: TurnId) -> None:
        """Someone, here or elsewhere, follows this turn."""
        if feed := self._feeds.get(turn_id):
            feed.watched = True
            if feed.on_watched is not None:
                call, feed.on_watched = feed.on_watched, None
                call()
        elif turn_id not in self._watched:
            self._watched.append(turn_id)

    def when_watched(self, turn_id: TurnId, call: Callable[[], None]) -> bool:
        """Call when someone follows this turn; at once, and true, when someone does."""
        feed = self._feeds[turn_id]
        if feed.watched:
            call()
        else:
            feed.on_watched = call
        return feed.watched

    # -- the followers' side

    async def follow(self, turn_id: TurnId, n: int = 0) -> AsyncIterator[tuple[int, list[AnyEvent]]]:
        """Every event of a turn from number `n` on, until it has ended; those that are there together, with the number
        of the first."""
        with self.bell(turn_id) as bell:
            if turn_id in self._feeds:
                self.watch(turn_id)
            feed: _Feed | None = None
            due, clock = -inf, asyncio.get_running_loop().time
            while True:
                bell.clear()  # before looking, so that nothing that comes after is missed
                if feed is None or not feed.ended:
                    feed = self._feeds.get(turn_id)
                if feed is not None and n >= feed.start:
                    events = feed.events[n - int(feed.start) :]
                    ended = feed.ended
                else:
                    if feed is None and clock() >= due:
                        due = clock() + AGAIN
                        self._db.tell(Hint("follow", turn_id))
                    turn, events = await self._events(turn_id, n)
                    ended = turn.ended
                for start in range(0, len(events), TOGETHER):
                    together = events[start : start + TOGETHER]
                    yield n, together
                    n += len(together)
                if ended:
                    return
                self._check_open()
                if not events and feed is None:
                    await _rung(bell)
                elif not events:
                    await bell.wait()  # it runs here, where nothing is missed

    async def news(self, bell: asyncio.Event) -> None:
        """Wait until the bell of a conversation is rung: something may have been admitted to it."""
        self._check_open()
        await _rung(bell)
        self._check_open()

    def awaited(self, turn_id: TurnId) -> bool:
        """Whether somebody here waits for the end of a turn."""
        return turn_id in self._ends

    @contextmanager
    def attending(self, *keys: str) -> Iterator[asyncio.Future[Ending | None]]:
        """Wait for the end of a turn, or for news of what it waits for: what is known of it here is handed over."""
        end: asyncio.Future[Ending | None] = asyncio.get_running_loop().create_future()
        for key in keys:
            self._ends.setdefault(key, set()).add(end)
        try:
            yield end
        finally:
            for key in keys:
                ends = self._ends.get(key, set())
                ends.discard(end)
                if not ends:
                    self._ends.pop(key, None)

    async def ended(
        self, waited_for: Turn, end: asyncio.Future[Ending | None] | None = None
    ) -> tuple[Turn, Told | None]:
        """The turn, once it has ended; with what it wrote when it ended here just now. Whoever was attending gives what
        was handed over."""
        turn_id = waited_for.id
        if end is not None and end.done() and (ending := end.result()) is not None and ending.turn.id == turn_id:
            return ending.turn, ending.told
        keys: set[str] = {turn_id}
        if waited_for.kind == "upkeep":  # done by whoever claims something in its conversation
            keys.add(waited_for.conversation_id)
        while True:
            with self.attending(*keys) as end:
                if turn_id not in self._feeds:
                    turn = await self._db.read(turns.get, turn_id)
                    if turn.ended:
                        return turn, None
                    self._check_open()
                await asyncio.wait({end}, timeout=POLL)
                ending = end.result() if end.done() else None
                if ending is not None:
                    return ending.turn, ending.told

    async def _events(self, turn_id: TurnId, n: int) -> tuple[Turn, list[AnyEvent]]:
        try:
            return await self._db.read(turns.events_from, turn_id, n)
        except StoreUnavailable:
            self._check_open()  # closed because this process is leaving: come back
            raise

    def _check_open(self) -> None:
        if self._shut:
            raise Draining("The gateway is restarting. The turn is safe and goes on: ask for it again in a moment.")

    def _ring(self, followed: str) -> None:
        for bell in self._bells.get(followed, ()):
            bell.set()

    @contextmanager
    def bell(self, followed: str) -> Iterator[asyncio.Event]:
        bell = asyncio.Event()
        bells = self._bells.setdefault(followed, set())
        bells.add(bell)
        try:
            yield bell
        finally:
            bells.discard(bell)
            if not bells and self._bells.get(followed) is bells:
                del self._bells[followed]


async def _rung(bell: asyncio.Event) -> None:
    """Wait for the bell, which rings by itself after a while."""
    timer = asyncio.get_running_loop().call_later(POLL, bell.set)
    try:
        await bell.wait()
    finally:
        timer.cancel()
