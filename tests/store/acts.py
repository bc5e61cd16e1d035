"""What store tests do: say something, run a turn, let a node die, make two transactions meet.

Everything goes through the store's own functions on a real database. Where a test has to look at rows or to break a
rule on purpose, it says so in plain SQL (`rows`, `script`).
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any

from conftest import ALICE
from legato.domain.conversations import Conversation
from legato.domain.entries import Draft, Message, Text, draft
from legato.domain.handles import ById, Slug
from legato.domain.ids import ConversationId, NodeId, PrincipalId, TurnId
from legato.domain.turns import Admission, Failure, Input, Lease, Outcome, Submission, Target, Turn
from legato.store import admission, directory, log, nodes, turns
from legato.store.database import Database, Row, Tx

N1, N2, N3 = NodeId("node_1"), NodeId("node_2"), NodeId("node_3")
BOUND = 60.0

DONE = Outcome(status="done", answer="answer")
FAILED = Outcome(status="failed", failure=Failure("broken", "It broke."))
CANCELLED = Outcome(status="cancelled")

Job = Callable[[Tx], Coroutine[Any, Any, Any]]


# -- saying and answering


def said(text: str, role: Any = "user") -> Draft:
    return draft(Message(role, (Text(text),)))


def submission(target: Target, text: str = "hello", *, principal: PrincipalId = ALICE, **more: Any) -> Submission:
    return Submission(principal=principal, target=target, input=Input((said(text),)), **more)


def upkeep(target: Target, *bodies: Any, expects: int | None = None, principal: PrincipalId = ALICE) -> Submission:
    given = Input(tuple(draft(body) for body in bodies), expects=expects)
    return Submission(principal=principal, target=target, input=given, kind="upkeep")


async def admit(
    db: Database, target: Target, text: str = "hello", *, node: NodeId | None = None, **more: Any
) -> Admission:
    return await db.write(admission.admit, submission(target, text, **more), node)


async def tend(db: Database, target: Target, *bodies: Any, expects: int | None = None) -> Turn:
    """An upkeep turn, done on the spot."""
    admitted = await db.write(admission.admit, upkeep(target, *bodies, expects=expects), N1)
    return await db.read(turns.get, admitted.turn.id)


async def enter(db: Database, node: NodeId) -> None:
    """A node that lives."""
    await db.write(nodes.renew, node, 600.0)


async def expire(db: Database, node: NodeId) -> None:
    """A node whose lease has run out."""
    await db.write(nodes.renew, node, -1.0)


async def start(db: Database, target: Target, text: str = "hello", *, node: NodeId = N1, **more: Any) -> Lease:
    """Admit a turn and hold its lease."""
    await enter(db, node)
    admitted = await admit(db, target, text, node=node, **more)
    assert admitted.lease is not None
    assert admitted.lease.turn.id == admitted.turn.id
    return admitted.lease


async def end(db: Database, lease: Lease, outcome: Outcome = DONE, *texts: str) -> Turn:
    ending = await db.write(turns.finish, lease, outcome, [said(text, "assistant") for text in texts])
    return ending.turn


async def talk(db: Database, target: Target, text: str = "hello", outcome: Outcome = DONE, **more: Any) -> Turn:
    """A whole turn: an input, and an answer that repeats it in capitals."""
    lease = await start(db, target, text, **more)
    return await end(db, lease, outcome, text.upper())


async def joined(db: Database, lease: Lease, text: str = "also") -> Turn:
    """An input that joined the turn that runs under this lease."""
    admitted = await admit(db, Slug("work"), text, busy="steer")
    assert admitted.turn.conversation_id == lease.turn.conversation_id
    await db.write(turns.absorb, lease)
    return await db.read(turns.get, admitted.turn.id)


async def heir(db: Database, lease: Lease) -> Lease:
    """The holder's node dies and another takes its turn over."""
    await expire(db, N1)
    await enter(db, N2)
    taken = await db.write(turns.claim, lease.turn.conversation_id, N2)
    assert taken is not None
    assert taken.turn.id == lease.turn.id
    return taken


# -- looking


async def rows(db: Database, sql: str) -> list[Row]:
    """Rows by plain SQL."""

    async def run(tx: Any) -> list[Row]:
        if tx.dialect == "sqlite":
            return list(tx._cursor.execute(sql).fetchall())
        return [tuple(row) for row in await tx._connection.fetch(sql)]

    return await db.read(run)


async def script(db: Database, sql: str) -> None:
    """Plain SQL that writes, past every function of the store."""

    async def run(tx: Tx) -> None:
        await tx.script(sql)

    await db.write(run)


async def context(db: Database, conversation_id: ConversationId) -> list[str]:
    """What the model sees, as text."""
    view = await db.read(log.read_context, conversation_id)
    return _texts([entry.body for entry in view.entries])


async def transcript(db: Database, conversation_id: ConversationId) -> list[str]:
    """What people see, as text."""
    return _texts([entry.body for entry in await db.read(log.read_transcript, conversation_id)])


def _texts(bodies: Iterable[Any]) -> list[str]:
    return [body.text for body in bodies if isinstance(body, Message)]


async def conversation(db: Database, conversation_id: ConversationId) -> Conversation:
    return await db.read(directory.find, ALICE, ById(conversation_id))


async def turn(db: Database, turn_id: TurnId) -> Turn:
    return await db.read(turns.get, turn_id)


async def all_of(db: Database, conversation_id: ConversationId) -> list[Turn]:
    return await db.read(turns.of_conversation, conversation_id, 0, 1000)


# -- transactions that meet


class _Watched:
    """A transaction's statements, with something to do before each."""

    def __init__(self, tx: Tx) -> None:
        self._tx = tx
        self.dialect = tx.dialect
        self._connection: Any = getattr(tx, "_connection", None)

    async def _before(self, name: str) -> None:
        raise NotImplementedError

    async def run(self, name: str, /, **params: object) -> list[Row]:
        await self._before(name)
        return await self._tx.run(name, **params)

    async def many(self, name: str, sets: Iterable[dict[str, object]], /) -> None:
        await self._before(name)
        await self._tx.many(name, sets)

    async def script(self, text: str, /) -> None:
        await self._tx.script(text)


class Bounded(_Watched):
    """Fails after so many statements: a transaction that would never end becomes a failure."""

    def __init__(self, tx: Tx, statements: int = 300) -> None:
        super().__init__(tx)
        self._left = statements

    async def _before(self, name: str) -> None:
        self._left -= 1
        assert self._left > 0, "the transaction does not end"


class _Halting(_Watched):
    """Stops before one statement until it may go on. A second run, after a lost race, goes straight through."""

    def __init__(self, tx: Tx, at: Sequence[str], stop: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        super().__init__(tx)
        self._at, self._stop = at, stop
        self._stopped = False

    async def _before(self, name: str) -> None:
        if name in self._at and not self._stopped:
            self._stopped = True
            await self._stop()


class Gate:
    """Opens when all have come, and then stays open."""

    def __init__(self, expected: int) -> None:
        self._missing = expected
        self._open = asyncio.Event()

    async def enter(self) -> None:
        self._missing -= 1
        if self._missing <= 0:
            self._open.set()
        await self._open.wait()


def _held(job: Job, at: Sequence[str], stop: Callable[[], Coroutine[Any, Any, Any]]) -> Job:
    async def run(tx: Tx) -> Any:
        return await job(_Halting(tx, at, stop))

    return run


async def race(databases: Sequence[Database], jobs: Sequence[Job], *, at: Sequence[str]) -> list[Any]:
    """Run transactions at once, spread over the databases. PostgreSQL: none passes its first statement of those named
    before all have come to theirs. SQLite runs one transaction at a time: there they all wait in its queue together."""
    gate = Gate(len(jobs))

    async def one(place: int, job: Job) -> Any:
        database = databases[place % len(databases)]
        if database.dialect == "sqlite":
            await gate.enter()
            return await database.write(job)
        return await database.write(_held(job, at, gate.enter))

    async with asyncio.timeout(BOUND):
        return await asyncio.gather(*(one(*pair) for pair in enumerate(jobs)), return_exceptions=True)


async def interleave(
    databases: Sequence[Database], first: Job, second: Job, *, at: Sequence[str], until: Sequence[str] = ()
) -> list[Any]:
    """Hold the first transaction before its first statement of those named, run the second until it is done, waits for
    a lock or comes to a statement of its own that is named (there it waits until the first has ended), then let the
    first go on. SQLite runs them one after the other, as it would any two."""
    here, there = databases[0], databases[-1]
    async with asyncio.timeout(BOUND):
        if here.dialect == "sqlite":
            return await asyncio.gather(here.write(first), there.write(second), return_exceptions=True)
        reached, go, there_too = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def stop() -> None:
            reached.set()
            await go.wait()

        async def stop_too() -> None:
            there_too.set()
            await asyncio.wait([one])

        one = asyncio.create_task(here.write(_held(first, at, stop)))
        arrival = asyncio.create_task(reached.wait())
        await asyncio.wait([one, arrival], return_when=asyncio.FIRST_COMPLETED)
        arrival.cancel()
        assert reached.is_set(), f"the first transaction never came to {at}"
        two = asyncio.create_task(there.write(_held(second, until, stop_too)))
        while not two.done() and not there_too.is_set() and not await rows(here, WAITING):
            pass
        go.set()
        return await asyncio.gather(one, two, return_exceptions=True)


WAITING = "select pid from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
