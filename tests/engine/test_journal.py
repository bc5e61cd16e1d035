"""The pump: events of many turns in one transaction, and each turn's fate is its own."""

import asyncio

import pytest
from msgspec import structs

from conftest import ALICE
from legato.domain.entries import Message, Text, draft
from legato.domain.events import AnyEvent, Delta
from legato.domain.handles import Slug
from legato.domain.ids import NodeId
from legato.domain.turns import Input, Lease, Outcome, Submission
from legato.engine.journal import Journal, Pump
from legato.engine.live import Live
from legato.errors import LeaseLost
from legato.store import admission, nodes, turns
from legato.store.database import Database

NODE = NodeId("node_pump")
BOUND = 30.0


async def lease_of(db: Database, name: str) -> Lease:
    await db.write(nodes.start, NODE, 60.0, alone=False)
    given = Input((draft(Message("user", (Text("hello"),))),))
    admitted = await db.write(admission.admit, Submission(principal=ALICE, target=Slug(name), input=given), NODE)
    assert admitted.lease is not None
    return admitted.lease


def journal_of(db: Database, live: Live, pump: Pump, lease: Lease) -> Journal:
    """The journal of a turn that someone follows."""
    live.open(lease.turn.id)
    live.begin(lease.turn.id, 0)
    live.watch(lease.turn.id)
    return Journal(db, live, pump, lease, 0)


async def told(live: Live, lease: Lease, count: int) -> list[AnyEvent]:
    """The first events of a turn, once they are durable."""
    events: list[AnyEvent] = []
    async with asyncio.timeout(BOUND):
        async for _, together in live.follow(lease.turn.id):
            events += together
            if len(events) >= count:
                return events
    raise AssertionError("the turn ended")


async def test_one_turn_that_lost_its_lease_harms_no_other(db: Database) -> None:
    """Their events are in one transaction: those of the one are refused, those of the other durable."""
    kept, lost = await lease_of(db, "kept"), await lease_of(db, "lost")
    lost = structs.replace(lost, fence=lost.fence + 1)
    live = Live(db)
    async with asyncio.TaskGroup() as group:
        pump = Pump(db, group.create_task)
        journals = [journal_of(db, live, pump, lease) for lease in (lost, kept)]
        for journal in journals:
            journal.emit(Delta(0, "a"))
        async with asyncio.timeout(BOUND):
            with pytest.raises(LeaseLost):
                await journals[0].watch()
        assert await told(live, kept, 1) == [Delta(0, "a")]
    assert (await db.read(turns.events_from, lost.turn.id, 0))[1] == []
    with pytest.raises(LeaseLost):
        await journals[0].finish(Outcome(status="done"), ())


async def test_nothing_is_lost_or_moved_between_the_pump_and_the_end(db: Database) -> None:
    """What is emitted while the pump writes goes on the next beat, or with the end, in order."""
    lease = await lease_of(db, "order")
    live = Live(db)
    texts = [str(n) for n in range(200)]
    async with asyncio.TaskGroup() as group:
        journal = journal_of(db, live, Pump(db, group.create_task), lease)
        for text in texts:
            journal.emit(Delta(0, text))
            if text.endswith("7"):
                await asyncio.sleep(0)
            if text.endswith("50"):
                await told(live, lease, int(text))
        await journal.finish(Outcome(status="done"), (), [Delta(0, "end")])
        journal.close()
    turn, events = await db.read(turns.events_from, lease.turn.id, 0)
    assert turn.status == "done"
    assert events == [Delta(0, text) for text in [*texts, "end"]]


async def test_what_is_told_of_many_turns_at_once_is_told_of_each_to_the_letter(db: Database) -> None:
    """In one transaction, whatever the words are."""
    words = ["plain", 'a "quote"', "back\\slash", "\x00\x1f", "é 漢字 👩‍👩‍👧", "\n" * 3, "[1, null]", ""]
    leases = [await lease_of(db, f"talk-{n}") for n in range(len(words))]
    told_of = {
        lease.turn.id: [Delta(0, word)] * (n + 1) for n, (lease, word) in enumerate(zip(leases, words, strict=True))
    }
    live = Live(db)
    async with asyncio.TaskGroup() as group:
        pump = Pump(db, group.create_task)
        for lease in leases:
            journal = journal_of(db, live, pump, lease)
            for event in told_of[lease.turn.id]:
                journal.emit(event)
        for lease in leases:
            await told(live, lease, len(told_of[lease.turn.id]))
    for lease in leases:
        assert (await db.read(turns.events_from, lease.turn.id, 0))[1] == told_of[lease.turn.id]
