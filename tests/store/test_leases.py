"""Leases: one turn of a conversation runs at a time, and who lost it can write nothing more."""

from typing import Any

import pytest
from acts import (
    CANCELLED,
    DONE,
    FAILED,
    N1,
    N2,
    N3,
    admit,
    all_of,
    context,
    conversation,
    end,
    enter,
    expire,
    heir,
    joined,
    rows,
    said,
    script,
    start,
    talk,
    tend,
    transcript,
    turn,
    upkeep,
)

from conftest import ALICE, BOB
from legato.domain.entries import Note
from legato.domain.events import Delta
from legato.domain.handles import Address, Slug
from legato.domain.turns import After, Lease, Usage
from legato.errors import Defect, LeaseLost, UnknownTurn
from legato.store import admission, batches, directory, log, nodes, outbox, turns
from legato.store.database import Database

WORK = Slug("work")


# -- claiming


async def test_a_claim_takes_the_oldest_turn_and_writes_its_input(db: Database) -> None:
    """Claimed means running, owned, and its input in the log, all at once."""
    first = (await admit(db, WORK, "one")).turn
    await admit(db, WORK, "two")
    await enter(db, N1)
    lease = await db.write(turns.claim, first.conversation_id, N1)
    held = await turn(db, first.id)
    assert lease.turn.id == first.id
    assert lease.fence == (await conversation(db, first.conversation_id)).fence == 1
    assert (held.status, held.owner, held.attempts, held.first_seq) == ("running", N1, 1, 1)
    assert held.claimed_at is not None
    assert await transcript(db, first.conversation_id) == ["one"]


@pytest.mark.parametrize("node", [N1, N2], ids=["the same node", "another node"])
async def test_while_a_turn_runs_nothing_else_of_its_conversation_is_claimed(db: Database, node) -> None:
    """One running turn per conversation, whoever asks."""
    lease = await start(db, WORK, "one")
    await admit(db, WORK, "two")
    await enter(db, N2)
    assert await db.write(turns.claim, lease.turn.conversation_id, node) is None
    assert [t.status for t in await all_of(db, lease.turn.conversation_id)] == ["running", "queued"]


async def test_conversations_run_side_by_side(db: Database) -> None:
    """The rule is one turn per conversation, not one in all."""
    one, two = await start(db, WORK), await start(db, Slug("play"))
    assert {t.owner for t in (await turn(db, one.turn.id), await turn(db, two.turn.id))} == {N1}


async def test_the_schema_refuses_a_second_running_turn(db: Database) -> None:
    """Whoever writes it, and whatever it believed before."""
    lease = await start(db, WORK, "one")
    waiting = (await admit(db, WORK, "two")).turn
    with pytest.raises(Defect):
        await script(db, f"update turns set status = 'running', owner = 'node_2' where id = '{waiting.id}'")
    assert [t.status for t in await all_of(db, lease.turn.conversation_id)] == ["running", "queued"]


async def test_a_claim_of_an_idle_conversation_takes_nothing(db: Database) -> None:
    """There is nothing to run, and the fence stays as it was."""
    done = await talk(db, WORK)
    fence = (await conversation(db, done.conversation_id)).fence
    assert await db.write(turns.claim, done.conversation_id, N1) is None
    assert (await conversation(db, done.conversation_id)).fence == fence


async def test_an_interrupt_goes_before_the_queue(db: Database) -> None:
    """It runs next, in the order of interrupts; what waited goes on waiting."""
    lease = await start(db, WORK, "one")
    await admit(db, WORK, "two")
    await admit(db, WORK, "three", busy="interrupt")
    await admit(db, WORK, "four", busy="interrupt")
    order = []
    while lease is not None:
        order.append(lease.turn.input.drafts[0].body.text)
        await end(db, lease, DONE)
        lease = await db.write(turns.claim, lease.turn.conversation_id, N1)
    assert order == ["one", "three", "four", "two"]


async def test_a_turn_that_was_handed_back_goes_before_everything(db: Database) -> None:
    """It has begun, so nothing comes between what it said and what it will say; an interrupt asks it to stop."""
    lease = await start(db, WORK, "one", busy="steer")
    await db.write(turns.append, lease, [said("half", "assistant")])
    await db.write(turns.release, lease)
    interrupt = await admit(db, WORK, "rather", busy="interrupt")
    assert interrupt.stopped == (lease.turn.id,)
    again = await db.write(turns.claim, lease.turn.conversation_id, N1)
    assert (again.turn.id, again.begun) == (lease.turn.id, True)
    assert again.turn.cancel_at is not None
    await end(db, again, CANCELLED)
    assert (await db.write(turns.claim, lease.turn.conversation_id, N1)).turn.id == interrupt.turn.id
    assert await transcript(db, lease.turn.conversation_id) == ["one", "half", "rather"]


async def test_upkeep_in_the_way_is_done_on_the_spot(db: Database) -> None:
    """A claim carries out the upkeep that stands before a turn, and takes the turn behind it."""
    await enter(db, N1)
    before = (await db.write(admission.admit, upkeep(WORK, Note("first")))).turn
    behind = (await admit(db, WORK, "two")).turn
    after = (await db.write(admission.admit, upkeep(WORK, Note("third")))).turn
    lease = await db.write(turns.claim, before.conversation_id, N1)
    assert lease.turn.id == behind.id
    assert [t.status for t in await all_of(db, before.conversation_id)] == ["done", "running", "queued"]
    await end(db, lease)
    assert await db.write(turns.claim, before.conversation_id, N1) is None
    kept = await turn(db, after.id)
    assert (kept.status, kept.first_seq, kept.last_seq) == ("done", 3, 3)
    entries = await db.read(log.read_transcript, before.conversation_id)
    assert [(e.seq, e.turn_id) for e in entries] == [(1, before.id), (2, behind.id), (3, after.id)]


async def test_upkeep_waits_for_the_turn_that_runs(db: Database) -> None:
    """Nothing is written between the entries of a running turn."""
    lease = await start(db, WORK, "one")
    tended = await tend(db, WORK, Note("noted"))
    assert tended.status == "queued"
    await end(db, lease, DONE, "ONE")
    await db.write(turns.claim, lease.turn.conversation_id, N1)
    assert [e.seq for e in await db.read(log.entries_of_turn, await turn(db, tended.id))] == [3]


async def test_claimable_names_conversations_with_work_and_nobody_at_it(db: Database) -> None:
    """Waiting turns and those of dead nodes, oldest first; not what a living node runs, nor what is done."""
    waiting = (await admit(db, Slug("waiting"))).turn
    await script(db, "update turns set created_at = 1")  # a clock may not tell two fast admissions from each other
    await talk(db, Slug("done"))
    running = await start(db, Slug("running"))
    await admit(db, Slug("running"), "behind")
    orphan = await start(db, Slug("orphan"), node=N2)
    assert await db.read(turns.claimable, N3, 10) == [waiting.conversation_id]
    await expire(db, N2)
    assert await db.read(turns.claimable, N3, 10) == [waiting.conversation_id, orphan.turn.conversation_id]
    assert await db.read(turns.claimable, N3, 1) == [waiting.conversation_id]
    await expire(db, N1)
    assert running.turn.conversation_id in await db.read(turns.claimable, N3, 10)


# -- taking over


async def test_a_turn_is_taken_over_only_after_its_nodes_lease_ran_out(db: Database) -> None:
    """While the node lives its turn is its own; afterwards the heir goes on where it stood."""
    lease = await start(db, WORK, "one")
    conversation_id = lease.turn.conversation_id
    await enter(db, N2)
    assert await db.write(turns.claim, conversation_id, N2) is None
    await expire(db, N1)
    taken = await db.write(turns.claim, conversation_id, N2)
    assert taken.turn.id == lease.turn.id
    assert taken.fence > lease.fence
    assert (taken.turn.owner, taken.turn.attempts) == (N2, 2)
    assert await transcript(db, conversation_id) == ["one"]
    assert await end(db, taken, DONE, "ONE") == await turn(db, lease.turn.id)
    assert await transcript(db, conversation_id) == ["one", "ONE"]


async def test_a_renewed_lease_keeps_its_turns(db: Database) -> None:
    """A node that was late, but renews before anyone came, has lost nothing."""
    lease = await start(db, WORK, "one")
    await expire(db, N1)
    await enter(db, N1)
    await enter(db, N2)
    assert await db.write(turns.claim, lease.turn.conversation_id, N2) is None
    assert (await end(db, lease, DONE, "ONE")).status == "done"


async def test_a_node_that_overslept_takes_no_turn_from_itself(db: Database) -> None:
    """Its lease ran out while nobody came: the turn still runs here, and a second run of it beside the first is
    not what anyone wants."""
    lease = await start(db, WORK, "one")
    await expire(db, N1)
    assert await db.read(turns.claimable, N1, 10) == []
    assert await db.read(turns.claimable, N2, 10) == [lease.turn.conversation_id]
    assert await db.write(turns.claim, lease.turn.conversation_id, N1) is None
    assert (await end(db, lease, DONE, "ONE")).status == "done"


async def test_a_node_that_left_has_no_turns(db: Database) -> None:
    """Whoever leaves in good order gives its lease back at once."""
    lease = await start(db, WORK)
    await enter(db, N2)
    await db.write(nodes.end, N1)
    assert (await db.write(turns.claim, lease.turn.conversation_id, N2)).turn.id == lease.turn.id


async def test_who_owns_the_database_alone_knows_that_every_earlier_node_is_gone(db: Database) -> None:
    """A restart need not wait for the lease of the process before it."""
    lease = await start(db, WORK)
    await db.write(nodes.start, N2, 600.0, alone=False)
    assert await db.write(turns.claim, lease.turn.conversation_id, N2) is None
    await db.write(nodes.start, N2, 600.0, alone=True)
    assert (await db.write(turns.claim, lease.turn.conversation_id, N2)).turn.id == lease.turn.id


async def test_a_running_turn_is_taken_over_before_anything_else_runs(db: Database) -> None:
    """Not even an interrupt goes before a turn that has begun."""
    lease = await start(db, WORK, "one")
    await admit(db, WORK, "two", busy="interrupt")
    assert (await heir(db, lease)).turn.id == lease.turn.id


async def test_a_node_takes_back_a_turn_that_it_holds_and_does_not_run(db: Database) -> None:
    """The answer to a claim may get lost on its way; the turn is then named as lost and claimed again."""
    lease = await start(db, WORK, "one")
    conversation_id = lease.turn.conversation_id
    assert await db.write(turns.claim, conversation_id, N1) is None
    again = await db.write(turns.claim, conversation_id, N1, lease.turn.id)
    assert again.turn.id == lease.turn.id
    assert again.fence > lease.fence
    assert await transcript(db, conversation_id) == ["one"]
    with pytest.raises(LeaseLost):
        await end(db, lease)


async def test_a_node_takes_back_nothing_that_another_living_node_runs(db: Database) -> None:
    """Between noticing a lost turn and claiming it, another may have taken it over: then it is the other's."""
    lease = await start(db, WORK, "one")
    taken = await heir(db, lease)
    await enter(db, N1)
    assert await db.write(turns.claim, lease.turn.conversation_id, N1, lease.turn.id) is None
    assert (await end(db, taken, DONE, "ONE")).status == "done"


async def test_what_a_node_holds_is_told_with_what_should_stop(db: Database) -> None:
    """Wishes reach a worker when it renews its lease the next time, whatever became of the hint."""
    one, two = await start(db, WORK), await start(db, Slug("play"))
    await start(db, Slug("elsewhere"), node=N2)
    await talk(db, Slug("done"))
    await db.write(turns.cancel, ALICE, two.turn.id)
    held = await db.read(nodes.held, N1)
    assert {(h.turn_id, h.conversation_id, h.stop) for h in held} == {
        (one.turn.id, one.turn.conversation_id, False),
        (two.turn.id, two.turn.conversation_id, True),
    }
    assert all(h.age >= 0 for h in held)


async def test_takeovers_are_counted_until_the_turn_moves_on(db: Database) -> None:
    """A turn that kills its workers is found out, though each clears up behind the last; one that gets somewhere earns
    its attempts back, and its bill so far is kept."""
    lease = await start(db, WORK)
    counts = [lease.turn.attempts]
    for node in (N2, N1):
        await db.write(turns.append, lease, [said("cleared up", "assistant")])
        await expire(db, lease.turn.owner)
        await enter(db, node)
        lease = await db.write(turns.claim, lease.turn.conversation_id, node)
        counts.append(lease.turn.attempts)
    assert counts == [1, 2, 3]
    await db.write(turns.append, lease, [said("on", "assistant")], progress=Usage(7, 3))
    moved = await turn(db, lease.turn.id)
    assert (moved.attempts, moved.usage) == (0, Usage(7, 3))


# -- the fence


async def state_of(db: Database) -> list[Any]:
    """Everything that a writer could have changed."""
    tables = ("entries", "turn_events", "deliveries", "turns", "conversations")
    keys = ("conversation_id, seq", "turn_id, first_n", "id", "id", "id")
    return [await rows(db, f"select * from {table} order by {key}") for table, key in zip(tables, keys, strict=True)]


WRITES = {
    "append": lambda db, lease: db.write(turns.append, lease, [said("late", "assistant")]),
    "append nothing": lambda db, lease: db.write(turns.append, lease, []),
    "add_events": lambda db, lease: db.write(batches.add, lease, 1, [Delta(0, "late")]),
    "finish": lambda db, lease: db.write(turns.finish, lease, DONE, [said("late", "assistant")]),
    "fail": lambda db, lease: db.write(turns.finish, lease, FAILED),
    "absorb": lambda db, lease: db.write(turns.absorb, lease),
    "release": lambda db, lease: db.write(turns.release, lease),
}


async def taken_over(db: Database, lease: Lease) -> None:
    await heir(db, lease)


async def taken_over_and_ended(db: Database, lease: Lease) -> None:
    await end(db, await heir(db, lease), DONE, "ONE")


async def ended(db: Database, lease: Lease) -> None:
    await end(db, lease, CANCELLED, "ONE")


async def released(db: Database, lease: Lease) -> None:
    await db.write(turns.release, lease)


async def released_and_claimed(db: Database, lease: Lease) -> None:
    await db.write(turns.release, lease)
    await db.write(turns.claim, lease.turn.conversation_id, N1)


@pytest.mark.parametrize("loss", [taken_over, taken_over_and_ended, ended, released, released_and_claimed])
async def test_whoever_lost_the_lease_writes_nothing(db: Database, loss) -> None:
    """Each kind of write under an old fence is refused, and leaves every table as it was."""
    lease = await start(db, WORK, "one")
    await db.write(directory.bind, ALICE, Address("chat", "a", "c"), lease.turn.conversation_id, move=False)
    await db.write(batches.add, lease, 0, [Delta(0, "O")])
    await admit(db, WORK, "also", busy="steer")
    await loss(db, lease)
    before = await state_of(db)
    for name, write in WRITES.items():
        with pytest.raises(LeaseLost):
            await write(db, lease)
        assert await state_of(db) == before, name


async def test_every_change_of_holder_raises_the_fence(db: Database) -> None:
    """Claimed, taken over, handed back, claimed again, ended: a new number each time."""
    lease = await start(db, WORK)
    fences = [lease.fence]

    async def note() -> None:
        fences.append((await conversation(db, lease.turn.conversation_id)).fence)

    lease = await heir(db, lease)
    await note()
    await db.write(turns.release, lease)
    await note()
    lease = await db.write(turns.claim, lease.turn.conversation_id, N2)
    await note()
    await end(db, lease)
    await note()
    assert fences == [1, 2, 3, 4, 5]


async def test_another_conversations_fence_is_not_touched(db: Database) -> None:
    """Losing one lease costs nothing elsewhere."""
    one, two = await start(db, WORK), await start(db, Slug("play"))
    await heir(db, one)
    await db.write(turns.append, two, [said("still here", "assistant")])


async def test_a_turn_that_is_handed_back_goes_on_elsewhere(db: Database) -> None:
    """It waits again, the attempt does not count, and its input is not written twice."""
    lease = await start(db, WORK, "one")
    await db.write(turns.append, lease, [said("ON", "assistant")])
    await db.write(turns.release, lease)
    waiting = await turn(db, lease.turn.id)
    assert (waiting.status, waiting.owner, waiting.attempts, waiting.first_seq) == ("queued", None, 0, 1)
    await enter(db, N2)
    again = await db.write(turns.claim, lease.turn.conversation_id, N2)
    assert (again.turn.id, again.turn.attempts) == (lease.turn.id, 1)
    await end(db, again, DONE, "ONE")
    assert await transcript(db, lease.turn.conversation_id) == ["one", "ON", "ONE"]


# -- the end


async def test_an_end_is_the_last_entries_the_status_and_the_answers_owed(db: Database) -> None:
    """All of it is there when `finish` returns."""
    lease = await start(db, WORK, "one")
    await db.write(directory.bind, ALICE, Address("chat", "a", "c"), lease.turn.conversation_id, move=False)
    ending = await db.write(turns.finish, lease, DONE, [said("ONE", "assistant")], first_n=0, events=[Delta(0, "ONE")])
    kept = await turn(db, lease.turn.id)
    assert ending.turn == kept
    assert (kept.status, kept.owner, kept.first_seq, kept.last_seq) == ("done", None, 1, 2)
    assert kept.ended_at is not None
    assert await transcript(db, kept.conversation_id) == ["one", "ONE"]
    assert (await db.read(turns.events_from, kept.id, 0))[1] == [Delta(0, "ONE")]
    assert len(await db.read(outbox.of_turn, kept.id)) == 1


async def test_an_end_that_cannot_be_written_leaves_nothing_of_it(db: Database) -> None:
    """The last entries, the status and the answers owed stand or fall together."""
    lease = await start(db, WORK, "one")
    await db.write(directory.bind, ALICE, Address("chat", "a", "c"), lease.turn.conversation_id, move=False)
    await script(
        db,
        f"insert into deliveries (turn_id, address, body, status, created_at, updated_at) select '{lease.turn.id}', "
        "value, '', 'sent', 0, 0 from aliases where scheme = 'address'",
    )
    before = await state_of(db)
    with pytest.raises(Defect):
        await db.write(turns.finish, lease, DONE, [said("ONE", "assistant")], first_n=0, events=[Delta(0, "ONE")])
    assert await state_of(db) == before
    await script(db, "delete from deliveries")
    assert (await end(db, lease, DONE, "ONE")).status == "done"


async def test_an_end_says_whether_more_waits(db: Database) -> None:
    """The worker goes on with the conversation without looking for it."""
    lease = await start(db, WORK, "one")
    await admit(db, WORK, "two")
    assert (await db.write(turns.finish, lease, DONE)).more
    lease = await db.write(turns.claim, lease.turn.conversation_id, N1)
    assert not (await db.write(turns.finish, lease, DONE)).more


async def test_a_failed_turn_keeps_what_was_said_and_why_it_failed(db: Database) -> None:
    """Input, progress and reason stay in the tables."""
    lease = await start(db, WORK, "one")
    await db.write(turns.append, lease, [said("half", "assistant")])
    await end(db, lease, FAILED)
    kept = await turn(db, lease.turn.id)
    assert (kept.status, kept.failure, kept.last_seq) == ("failed", FAILED.failure, 2)
    assert await transcript(db, kept.conversation_id) == ["one", "half"]


# -- cancelling


async def test_a_waiting_turn_is_cancelled_at_once(db: Database) -> None:
    """It never runs, and what waits behind it moves up."""
    await enter(db, N1)
    first = (await admit(db, WORK, "one")).turn
    second = (await admit(db, WORK, "two")).turn
    assert (await db.write(turns.cancel, ALICE, first.id)).status == "cancelled"
    assert (await db.write(turns.claim, first.conversation_id, N1)).turn.id == second.id
    assert await transcript(db, first.conversation_id) == ["two"]


async def test_a_turn_cancelled_after_it_was_handed_back_is_ended_by_its_next_holder(db: Database) -> None:
    """It has begun, so someone has to close what is open; it ends with a first and a last position like any other, and
    a retry hides what it said."""
    one = await talk(db, WORK, "one")
    lease = await start(db, WORK, "try")
    await admit(db, WORK, "also", busy="steer")
    await db.write(turns.append, lease, [said("half", "assistant")])
    await db.write(turns.absorb, lease)
    await db.write(turns.release, lease)
    wished = await db.write(turns.cancel, ALICE, lease.turn.id)
    again = await db.write(turns.claim, one.conversation_id, N1)
    assert wished.cancel_at == again.turn.cancel_at is not None
    assert (wished.status, again.turn.id) == ("queued", lease.turn.id)
    cancelled = await end(db, again, CANCELLED)
    assert (cancelled.status, cancelled.first_seq, cancelled.last_seq) == ("cancelled", 3, 5)
    await talk(db, After(one.id), "retry")
    assert await context(db, one.conversation_id) == ["one", "ONE", "retry", "RETRY"]


async def test_a_running_turn_is_asked_to_stop_by_whoever_holds_it(db: Database) -> None:
    """The wish is durable, and an heir finds it; asking again changes nothing."""
    lease = await start(db, WORK, "one")
    wish = (await db.write(turns.cancel, ALICE, lease.turn.id)).cancel_at
    assert wish is not None
    assert (await db.write(turns.cancel, ALICE, lease.turn.id)).cancel_at == wish
    assert (await heir(db, lease)).turn.cancel_at == wish


async def test_cancelling_an_ended_turn_changes_nothing(db: Database) -> None:
    """Done is done."""
    done = await talk(db, WORK)
    assert await db.write(turns.cancel, ALICE, done.id) == done
    assert await turn(db, done.id) == done


async def test_cancelling_a_joined_turn_stops_its_host(db: Database) -> None:
    """Its outcome is its host's, so that is what can be stopped."""
    lease = await start(db, WORK, "one")
    also = (await admit(db, WORK, "also", busy="steer")).turn
    await db.write(turns.absorb, lease)
    assert (await db.write(turns.cancel, ALICE, also.id)).id == lease.turn.id
    assert (await turn(db, lease.turn.id)).cancel_at is not None


async def test_everything_in_a_conversation_can_be_stopped_at_once(db: Database) -> None:
    """What waits is cancelled, what runs is named and asked to stop, and what has ended stays as it was."""
    done = await talk(db, WORK, "one")
    lease = await start(db, WORK, "two")
    waiting = [(await admit(db, WORK, text)).turn for text in ("three", "four")]
    assert await db.write(turns.cancel_all, done.conversation_id) == [lease.turn.id]
    assert [t.status for t in await all_of(db, done.conversation_id)] == ["done", "running", "cancelled", "cancelled"]
    assert (await turn(db, lease.turn.id)).cancel_at is not None
    assert [(await turn(db, t.id)).first_seq for t in waiting] == [None, None]


async def test_nobody_cancels_anothers_turn(db: Database) -> None:
    """It is not there for them."""
    lease = await start(db, WORK, "one")
    with pytest.raises(UnknownTurn):
        await db.write(turns.cancel, BOB, lease.turn.id)
    assert (await turn(db, lease.turn.id)).cancel_at is None


# -- steering


async def test_steered_inputs_join_the_running_turn_in_order(db: Database) -> None:
    """They keep their ids and their entries, share its outcome, and nothing else that waits is touched."""
    lease = await start(db, WORK, "one")
    second = (await admit(db, WORK, "two", busy="steer")).turn
    third = (await admit(db, WORK, "three")).turn
    fourth = (await admit(db, WORK, "four", busy="steer")).turn
    assert await db.read(turns.steering, lease.turn.conversation_id)
    assert [t.id for t in await db.write(turns.absorb, lease)] == [second.id, fourth.id]
    assert not await db.read(turns.steering, lease.turn.conversation_id)
    assert await transcript(db, lease.turn.conversation_id) == ["one", "two", "four"]
    kept = await turn(db, fourth.id)
    assert (kept.status, kept.joined_turn, kept.first_seq, kept.last_seq) == ("joined", lease.turn.id, 3, 3)
    assert (await turn(db, third.id)).status == "queued"
    await end(db, lease, DONE, "all")
    assert (await db.read(turns.outcome_of, ALICE, fourth.id)).status == "done"


async def test_what_is_under_way_is_told_when_it_has_ended(db: Database) -> None:
    """All of a turn at once, with what has joined it; what was said before is told meanwhile."""
    before = await talk(db, WORK, "before")
    lease = await start(db, WORK, "one")
    await joined(db, lease)
    assert len(await db.read(turns.told_of, before.conversation_id)) == 2
    assert await transcript(db, before.conversation_id) == ["before", "BEFORE", "one", "also"]
    await end(db, lease, DONE, "all")
    told = await db.read(turns.told_of, before.conversation_id)
    assert told == await db.read(log.read_transcript, before.conversation_id)


async def test_a_steered_input_with_nothing_to_join_is_a_turn_like_any_other(db: Database) -> None:
    """It runs by itself."""
    assert (await talk(db, WORK, "one", busy="steer")).status == "done"
