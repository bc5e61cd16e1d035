"""The journal of one running turn: what it writes, in order, before anyone sees it. And the pump, which commits the
events of all of them.

The first event of a turn is committed at once, so the first token waits for one commit only. Later ones wait for the
next beat and go together with those of every other turn: a commit costs the same for one event and for a hundred.
While nobody follows a turn its events wait longer, since nobody can tell. Entries take the events that told of them
along in the same transaction.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from legato.domain.entries import Draft
from legato.domain.events import AnyEvent, Joined
from legato.domain.turns import Lease, Outcome, Turn, Usage
from legato.engine.live import Live
from legato.errors import LeaseLost
from legato.store import batches, turns
from legato.store.batches import Batch
from legato.store.database import Database
from legato.store.turns import Ending

BEAT = 0.02  # seconds between commits of events
QUIET = 1.0  # seconds that events may wait while nobody follows
TOGETHER = 64  # turns whose events share a transaction


class Pump:
    """Commits events. `spawn` runs something in the task group of the process."""

    def __init__(self, db: Database, spawn: Callable[[Coroutine[Any, Any, None]], object]) -> None:
        self._db, self._spawn = db, spawn
        self._due: list[Journal] = []
        self._last = 0.0
        self._beat: asyncio.Handle | None = None

    def add(self, journal: "Journal", *, at_once: bool) -> None:
        """A journal has events to commit."""
        loop = asyncio.get_running_loop()
        self._due.append(journal)
        if at_once and self._beat is not None:
            self._beat.cancel()
        if at_once:
            self._beat = loop.call_soon(self._go)
        elif self._beat is None:
            self._beat = loop.call_at(self._last + BEAT, self._go)

    def _go(self) -> None:
        self._beat, self._last = None, asyncio.get_running_loop().time()
        due, self._due = self._due, []
        taken = [(journal, batch) for journal in due if (batch := journal.take()) is not None]
        together = TOGETHER if self._db.dialect == "sqlite" else 1  # there each would hold the locks of all
        for start in range(0, len(taken), together):
            self._spawn(self._commit(taken[start : start + together]))

    async def _commit(self, taken: list[tuple["Journal", Batch]]) -> None:
        try:
            kept = await self._db.write(batches.add_all, [batch for _, batch in taken])
        except Exception as error:  # noqa: BLE001 - it is handed to the turns whose events these are
            for journal, _ in taken:
                journal.fail(error)
            return
        for (journal, (_, _, events)), ok in zip(taken, kept, strict=True):
            if ok:
                journal.committed(events)
            else:
                journal.fail(LeaseLost())


class Journal:
    """Writes for one lease. `watch` runs beside the turn and fails when the events cannot be written."""

    def __init__(self, db: Database, live: Live, pump: Pump, lease: Lease, n: int) -> None:
        self._db, self._live, self._pump, self._lease = db, live, pump, lease
        self._n = self._first_n = n
        self._pending: list[AnyEvent] = []
        self._announced = False  # the pump knows, or will when someone follows
        self._quiet: asyncio.TimerHandle | None = None
        self._order = asyncio.Lock()
        self._free = asyncio.Event()  # the pump writes nothing of ours
        self._free.set()
        self._closed = False
        self._failed = asyncio.Event()
        self._error: Exception | None = None

    def emit(self, event: AnyEvent) -> None:
        """Something happened; followers learn of it once it is durable."""
        self._pending.append(event)
        if not self._announced:
            self._announce()

    async def watch(self) -> None:
        """Wait until the events cannot be written, and raise why."""
        await self._failed.wait()
        self._check()

    def close(self) -> None:
        """The turn has ended here; what is still on its way concerns nobody any more."""
        self._closed = True
        if self._quiet is not None:
            self._quiet.cancel()

    async def append(
        self, drafts: Sequence[Draft], events: Iterable[AnyEvent] = (), *, progress: Usage | None = None
    ) -> tuple[int, int]:
        """Write entries and the events that tell of them."""
        async with self._alone():
            batch = [*self._rest(), *events]
            places = await self._db.write(
                turns.append, self._lease, drafts, first_n=self._n, events=batch, progress=progress
            )
            self._published(batch)
        return places

    async def absorb(self) -> list[Turn]:
        """Let waiting inputs join, and tell of it in the same transaction."""
        async with self._alone():
            batch = self._rest()
            joined = await self._db.write(turns.absorb, self._lease, self._n, batch)
            self._published([*batch, *(Joined(turn.id) for turn in joined)])
        return joined

    async def finish(self, outcome: Outcome, drafts: Sequence[Draft], events: Iterable[AnyEvent] = ()) -> Ending:
        """End the turn, with the last entries and events."""
        async with self._alone():
            batch = [*self._rest(), *events]
            tell = self._live.awaited(self._lease.turn.id)
            ending = await self._db.write(
                turns.finish, self._lease, outcome, drafts, first_n=self._n, events=batch, tell=tell
            )
            self._published(batch)
        return ending

    # -- the pump's side

    def take(self) -> Batch | None:
        """What is to be committed now; nothing while something else of this turn is being written."""
        self._announced = False
        if self._closed or not self._pending or self._order.locked() or not self._free.is_set():
            return None
        self._free.clear()
        return self._lease, self._n, self._rest()

    def committed(self, events: list[AnyEvent]) -> None:
        """What was taken is durable."""
        self._free.set()
        if not self._closed:
            self._published(events)
            self._announce_rest()

    def fail(self, error: Exception) -> None:
        """What was taken could not be written, so nothing can follow it."""
        self._error = error
        self._free.set()
        self._failed.set()

    # -- within

    def _announce(self) -> None:
        self._announced = True
        if not self._live.when_watched(self._lease.turn.id, self._ready):
            self._quiet = asyncio.get_running_loop().call_later(QUIET, self._ready)

    def _announce_rest(self) -> None:
        if self._pending and not self._announced:
            self._announce()

    def _ready(self) -> None:
        if self._quiet is not None:
            self._quiet.cancel()
            self._quiet = None
        self._pump.add(self, at_once=self._n == self._first_n)

    @asynccontextmanager
    async def _alone(self) -> AsyncIterator[None]:
        """Write while nothing else of this turn is being written."""
        async with self._order:
            await self._free.wait()
            self._check()
            yield
        self._announce_rest()

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def _rest(self) -> list[AnyEvent]:
        batch, self._pending = self._pending, []
        return batch

    def _published(self, batch: list[AnyEvent]) -> None:
        self._n += len(batch)
        if batch:
            self._live.publish(self._lease.turn.id, batch)
