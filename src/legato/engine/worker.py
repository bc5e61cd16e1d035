"""The worker: claims turns, runs them, keeps the node's lease, and does the chores.

One task group owns every task of a process. The tables are the truth about what there is to do; hints only make it
quicker. Whatever happens to a turn here, its row says so, and another process (or this one, later) goes on.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from msgspec import Struct

from legato.domain.ids import ConversationId, NodeId, TurnId, new_node_id
from legato.domain.turns import Lease, Turn
from legato.engine import metrics
from legato.engine.compaction import CompactionSettings, Compactor
from legato.engine.journal import Pump
from legato.engine.live import Live
from legato.engine.pasts import Pasts
from legato.engine.roster import Roster
from legato.engine.turn import TurnRun
from legato.errors import Conflict, NotFound, StoreAway, Unavailable
from legato.logs import bound, logger
from legato.store import inbox, nodes, requests, search, trash, turns
from legato.store.database import Database, Hint

T = TypeVar("T")

KEEP_INBOX = 30 * 86_400.0  # seconds after which no platform sends a message again
LEAVING = 5.0  # seconds that turns get to hand themselves back
INDEX_EVERY = 2.0  # seconds; whoever searches does not wait for it
AFTER_OUTAGE = 1.0  # seconds between looks at what an outage has left, until all of it runs again
OUTAGES = 20  # in one turn, before they count as attempts: it may be the turn that takes the database down
LOOK_AGAIN = 60.0  # seconds after which the search index is looked at though nobody said so


class WorkerSettings(Struct, frozen=True):
    """How a process works. A lease lasts `lease` seconds and is renewed three times within it."""

    concurrency: int = 256
    lease: float = 9.0
    scan_every: float = 1.0
    max_attempts: int = 3
    keep_events: float = 48 * 3600.0
    keep_deleted: float = 30 * 86400.0
    compaction: CompactionSettings = CompactionSettings()


class Worker:
    """Runs turns in this process. Use as an async context manager."""

    def __init__(self, db: Database, live: Live, roster: Roster, settings: WorkerSettings) -> None:
        self._db, self._live, self.roster, self._settings = db, live, roster, settings
        self.compactor = Compactor(roster, settings.compaction)
        self.pasts = Pasts()
        self.on_ended: Callable[[Turn], None] = lambda turn: None  # told of every turn that has ended here
        self.on_long: Callable[[Turn], None] = lambda turn: None  # told of a turn whose context has grown long
        self.node: NodeId = new_node_id()
        self._running: dict[TurnId, TurnRun] = {}
        self._unheard: deque[TurnId] = deque(maxlen=100)  # wishes to stop that found nobody
        self._claiming: set[ConversationId] = set()  # conversations that a task here is seeing to
        self._cut_off: dict[TurnId, int] = {}  # how often turns lost the database here, and were not told the end
        self._reserved = 0  # places for claims under way
        self._backlog = False  # something waits that there was no room for
        self._leaving = False
        self._scan_now = asyncio.Event()
        self._index_now = asyncio.Event()
        self._idle = asyncio.Event()
        self._group = asyncio.TaskGroup()
        self._pump = Pump(db, self._group.create_task)
        self._chores: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> "Worker":
        await self._db.write(nodes.start, self.node, self._settings.lease, alone=self._db.dialect == "sqlite")
        await self._group.__aenter__()
        self._db.on_hint(self._heard)
        for chore in (self._renew(), self._scan(), self._index(), self._prune()):
            self._chores.add(self._group.create_task(chore))
        self._scan_now.set()
        return self

    async def __aexit__(self, *error: object) -> None:
        self._leaving = True
        for chore in tuple(self._chores):
            chore.cancel()
        for run in self._running.values():
            run.interrupts.leave()
        await self._group.__aexit__(None, None, None)
        with suppress(Unavailable):  # the lease runs out by itself
            await self._db.write(nodes.end, self.node)

    def detach(self, job: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
        """Run something to its end, whoever stops waiting for it."""
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        async def run() -> None:
            try:
                result = await job
            except Exception as error:  # noqa: BLE001 - it is handed to whoever waits
                if not done.cancelled():
                    done.set_exception(error)
            else:
                if not done.cancelled():
                    done.set_result(result)

        self._group.create_task(run())
        return done

    def background(self, job: Coroutine[Any, Any, None]) -> None:
        """Run something that may be given up when this process ends."""

        name = getattr(job, "__qualname__", "work in the background")

        async def run() -> None:
            with _chore(name):
                await job

        task = self._group.create_task(run(), name=name)
        self._chores.add(task)
        task.add_done_callback(self._chores.discard)

    @property
    def has_room(self) -> bool:
        return not self._leaving and len(self._running) + self._reserved < self._settings.concurrency

    @contextmanager
    def room(self) -> Iterator[NodeId | None]:
        """A place for a turn that may be claimed inside, for this node; None when there is none."""
        if not self.has_room:
            self._backlog = True
            yield None
            return
        self._reserved += 1
        try:
            yield self.node
        finally:
            self._reserved -= 1

    @property
    def running(self) -> int:
        return len(self._running)

    # -- work

    def start(self, lease: Lease) -> None:
        """Run a turn that was claimed for this node. Until it ends, nothing else is claimed in its conversation: a turn
        that comes back to a node which still runs it would be run twice there."""
        self._claiming.add(lease.turn.conversation_id)
        self._group.create_task(self._work(lease.turn.conversation_id, self._begin(lease)))

    def offer(self, conversation_id: ConversationId, lost: TurnId | None = None) -> None:
        """There may be a turn to claim in this conversation."""
        if not self.has_room:
            self._backlog = True  # looked for again when there is room
        elif conversation_id not in self._claiming:
            self._claiming.add(conversation_id)
            self._group.create_task(self._work(conversation_id, None, lost))

    def index_soon(self) -> None:
        """Something was written that search does not know yet."""
        self._index_now.set()

    def stop(self, turn_id: TurnId) -> None:
        """Stop a turn if it runs here, or is about to: the answer to its claim may still be on its way."""
        if run := self._running.get(turn_id):
            run.interrupts.stop()
        else:
            self._unheard.append(turn_id)

    async def drain(self, budget: float) -> None:
        """Claim nothing more; let what runs finish within the budget (seconds), hand the rest back."""
        self._leaving = True
        await self._quiet(budget)
        for run in self._running.values():
            run.interrupts.leave()
        await self._quiet(LEAVING)
        self._live.shut()

    async def _quiet(self, seconds: float) -> None:
        """Wait until nothing runs here, at most so long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._running:
                    self._idle.clear()
                    await self._idle.wait()

    async def _work(self, conversation_id: ConversationId, run: TurnRun | None, lost: TurnId | None = None) -> None:
        """Run the conversation's turns, one after the other, as long as there are any."""
        try:
            if run is None:
                run = await self._claim(conversation_id, lost)
            while run is not None:
                more = await self._run(run)
                run = await self._claim(conversation_id) if more and not self._leaving else None
        except Exception as error:  # the turn boundary: one turn's fault is not another's
            if run is not None and _is_outage(error, StoreAway):
                self._cut_off[run.turn.id] = self._cut_off.get(run.turn.id, 0) + 1
            metrics.ABANDONED.inc()
            logger.error(
                "turn abandoned; it is claimed again later",
                conversation=conversation_id,
                exc_info=error if not _is_outage(error) else None,
                error=str(error),
            )
        finally:
            self._claiming.discard(conversation_id)

    async def _claim(self, conversation_id: ConversationId, lost: TurnId | None = None) -> TurnRun | None:
        with self.room() as node:
            if node is None:
                return None
            cut_off = lost is not None and 0 < self._cut_off.get(lost, 0) <= OUTAGES
            lease = await self._db.write(turns.claim, conversation_id, node, lost, cut_off=cut_off)
            run = self._begin(lease) if lease is not None else None
        self._live.nudge(conversation_id)  # upkeep that stood in the way is done
        self._index_now.set()
        return run

    def _begin(self, lease: Lease) -> TurnRun:
        run = TurnRun(
            lease,
            db=self._db,
            live=self._live,
            pump=self._pump,
            roster=self.roster,
            compactor=self.compactor,
            pasts=self.pasts,
            max_attempts=self._settings.max_attempts,
        )
        self._running[lease.turn.id] = run
        if lease.turn.id in self._unheard:
            run.interrupts.stop()
        if self._leaving:
            run.interrupts.leave()
        metrics.RUNNING.set(len(self._running))
        if lease.begun:
            metrics.TAKEN_OVER.inc()
        return run

    async def _run(self, run: TurnRun) -> bool:
        turn = run.turn
        try:
            with bound(conversation=turn.conversation_id, turn=turn.id):
                logger.info("turn started", attempt=turn.attempts)
                ending = await run.run()
                failure = ending.turn.failure if ending else None
                why = {"code": failure.code} if failure else {}
                logger.info("turn ended", status=ending.turn.status if ending else "left", **why)
        finally:
            del self._running[turn.id]
            metrics.RUNNING.set(len(self._running))
            self._idle.set()
            if self._backlog:
                self._scan_now.set()
        if ending is None:
            return False
        metrics.ENDED.labels(ending.turn.status).inc()
        self.on_ended(ending.turn)
        self._index_now.set()
        if run.long and not self._leaving:
            self.on_long(ending.turn)
        return ending.more

    async def renew(self) -> None:
        """Hold the lease; stop what someone wants stopped; take back what this node holds and does not run."""
        await self._db.urgent(nodes.renew, self.node, self._settings.lease)
        with suppress(TimeoutError):  # the lease is renewed again before what is held can be seen
            async with asyncio.timeout(self._settings.lease / 3):
                cut_off = dict(self._cut_off)
                held = await self._db.read(nodes.held, self.node)
                for turn in held:
                    if turn.stop:
                        self.stop(turn.turn_id)
                    lost = turn.turn_id in cut_off or turn.age > self._settings.lease
                    if turn.turn_id not in self._running and lost:
                        self.offer(turn.conversation_id, lost=turn.turn_id)
                for ended in cut_off.keys() - {turn.turn_id for turn in held}:
                    self._cut_off.pop(ended, None)

    # -- chores

    async def _renew(self) -> None:
        while True:
            idle = self._cut_off.keys() <= self._running.keys()
            await asyncio.sleep(self._settings.lease / 3 if idle else min(AFTER_OUTAGE, self._settings.lease / 3))
            with _chore("renewing the lease"):
                await self.renew()

    async def _scan(self) -> None:
        """Look for turns that nobody told us of: after a start, after another node died, after a full house."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._settings.scan_every):
                    await self._scan_now.wait()
            self._scan_now.clear()
            if self.has_room:
                self._backlog = False
                room = self._settings.concurrency - len(self._running) - self._reserved
                with _chore("looking for turns"):
                    found = await self._db.read(turns.claimable, self.node, room + 1)
                    self._backlog = self._backlog or len(found) > room
                    for conversation_id in found[:room]:
                        self.offer(conversation_id)

    async def _index(self) -> None:
        """Fill the search index behind the turns."""
        while True:
            await asyncio.sleep(INDEX_EVERY)
            self._index_now.clear()
            with _chore("indexing"):
                while await search.index_some(self._db):
                    pass
            with suppress(TimeoutError):  # what another process was at when it died is looked for again
                async with asyncio.timeout(LOOK_AGAIN):
                    await self._index_now.wait()

    async def _prune(self) -> None:
        while True:
            with _chore("pruning events"):
                while await self._db.write(turns.prune_events, self._settings.keep_events):
                    pass
                await self._db.write(requests.forget, self._settings.keep_events)
                await self._db.write(inbox.forget, KEEP_INBOX)
            with _chore("emptying the trash"):
                await self._empty_trash()
            await asyncio.sleep(600)

    async def _empty_trash(self) -> None:
        """Purge what has been in the trash for long enough."""
        for principal, found in await self._db.read(trash.expired, self._settings.keep_deleted, 100):
            # another process was quicker, or a turn of it is still stopping; one that cannot go keeps no other
            with _chore("purging"), suppress(NotFound, Conflict):
                await self._db.write(trash.purge, principal, found)
                self.pasts.drop(found)
                logger.info("purged", conversation=found)

    def _heard(self, hint: Hint) -> None:
        """Another process tells of something."""
        match hint.kind:
            case "queued":
                self.offer(ConversationId(hint.id))
            case "admitted":
                self._live.nudge(ConversationId(hint.id))
            case "cancel":
                self.stop(TurnId(hint.id))
            case "follow":
                self._live.watch(TurnId(hint.id))
            case _:
                self._live.nudge(TurnId(hint.id))


def _is_outage(error: BaseException, kind: type[Unavailable] = Unavailable) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return all(_is_outage(inner, kind) for inner in error.exceptions)
    return isinstance(error, kind)


@contextmanager
def _chore(what: str) -> Iterator[None]:
    """One that fails is logged and tried again at its next time: it takes nothing else down with it."""
    try:
        yield
    except Exception as error:  # the boundary of a chore
        logger.error(f"{what} failed", error=str(error), exc_info=None if _is_outage(error) else error)
