"""The journal of one running turn: what it writes, in order, before anyone sees it.

Events wait here while the last commit is under way and then go together: batches form by themselves, and the first
token waits for one commit only. While nobody follows the turn they wait longer, since nobody can tell. Entries take
the events that told of them along in the same transaction.
"""

import asyncio
from collections.abc import Iterable, Sequence

from legato.domain.entries import Draft
from legato.domain.events import AnyEvent, Joined
from legato.domain.turns import Lease, Outcome, Turn, Usage
from legato.engine.live import Live
from legato.store import turns
from legato.store.database import Database
from legato.store.turns import Ending

QUIET = 1.0  # seconds that events may wait while nobody follows


class Journal:
    """Writes for one lease. `pump` runs beside the turn and commits events as they come."""

    def __init__(self, db: Database, live: Live, lease: Lease, n: int) -> None:
        self._db, self._live, self._lease = db, live, lease
        self._n = n
        self._pending: list[AnyEvent] = []
        self._wake = asyncio.Event()
        self._order = asyncio.Lock()

    def emit(self, event: AnyEvent) -> None:
        """Something happened; followers learn of it once it is durable."""
        self._pending.append(event)
        self._wake.set()

    async def pump(self) -> None:
        """Commit events until cancelled."""
        while True:
            await self._wake.wait()
            await self._live.audience(self._lease.turn.id, QUIET)
            async with self._order:
                self._wake.clear()
                if batch := self._take():
                    await self._db.write(turns.add_events, self._lease, self._n, batch)
                    self._published(batch)

    async def append(
        self, drafts: Sequence[Draft], events: Iterable[AnyEvent] = (), *, progress: Usage | None = None
    ) -> tuple[int, int]:
        """Write entries and the events that tell of them."""
        async with self._order:
            batch = [*self._take(), *events]
            places = await self._db.write(
                turns.append, self._lease, drafts, first_n=self._n, events=batch, progress=progress
            )
            self._published(batch)
        return places

    async def absorb(self) -> list[Turn]:
        """Let waiting inputs join, and tell of it in the same transaction."""
        async with self._order:
            batch = self._take()
            joined = await self._db.write(turns.absorb, self._lease, self._n, batch)
            self._published([*batch, *(Joined(turn.id) for turn in joined)])
        return joined

    async def finish(self, outcome: Outcome, drafts: Sequence[Draft], events: Iterable[AnyEvent] = ()) -> Ending:
        """End the turn, with the last entries and events."""
        async with self._order:
            batch = [*self._take(), *events]
            return await self._db.write(turns.finish, self._lease, outcome, drafts, first_n=self._n, events=batch)

    def _take(self) -> list[AnyEvent]:
        batch, self._pending = self._pending, []
        return batch

    def _published(self, batch: list[AnyEvent]) -> None:
        self._n += len(batch)
        if batch:
            self._live.publish(self._lease.turn.id, batch)
