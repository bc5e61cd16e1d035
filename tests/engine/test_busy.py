"""What happens to an input that finds its conversation busy: queue, steer, interrupt, reject; and upkeep, and retries.

The promise (P13): whatever the policy and whatever restarts, one linear order, nothing lost, nothing doubled.
"""

import asyncio
import random
from collections.abc import Callable
from itertools import pairwise

import pytest

from conftest import ALICE, BOB
from engine.rooms import (
    WORK,
    Rooms,
    answer,
    ask,
    context,
    ended,
    message,
    say,
    shown,
    submission,
    tip,
    told,
    transcript,
    until_told,
)
from engine.scripted import Gate, Scripted, Tools, constant, echo, in_turn, one_call_each, words
from engine.waiting import until, within
from legato.app import App
from legato.domain.entries import Message, Text
from legato.domain.events import Answered, Closed, Delta, Joined
from legato.domain.handles import ById, Slug
from legato.domain.ids import ConversationId
from legato.domain.turns import After, Busy, Fresh, Lease, Turn
from legato.engine import commands, live
from legato.engine.protocols import TextChunk
from legato.errors import (
    ConversationBusy,
    DedupMismatch,
    Draining,
    ModelUnavailable,
    Stale,
    UnfinishedTurn,
    UnknownHandle,
)
from legato.store import nodes, turns
from legato.store.database import Tx

MANY = 50


async def admitted(app: App, conversation_id: ConversationId) -> list[Turn]:
    """Every turn of a conversation, in order of admission."""
    return await app.db.read(turns.of_conversation, conversation_id, 0, 10_000)


async def admitted_to(app: App, name: Slug = WORK) -> list[Turn]:
    return await admitted(app, (await app.gateway.find(ALICE, name)).id)


# -- many at once


class Crowd:
    """Clients that all send to one conversation, and send again when the gateway was going away."""

    def __init__(self, app: App, policy: Callable[[int], Busy]) -> None:
        self.app, self.policy = app, policy
        self.acknowledged: dict[int, Turn] = {}
        self.refused: set[int] = set()
        self.heard = asyncio.Event()
        self.back = asyncio.Event()

    async def send(self, i: int) -> None:
        while True:
            sent = submission(f"message {i}", busy=self.policy(i), key=f"key {i}", hash=f"hash {i}")
            try:
                self.acknowledged[i] = await self.app.gateway.submit(sent)
            except Draining:
                await self.back.wait()
                continue
            except ConversationBusy:
                self.refused.add(i)
            self.heard.set()
            return

    async def heard_of(self, count: int) -> None:
        while len(self.acknowledged) + len(self.refused) < count:
            self.heard.clear()
            await self.heard.wait()


async def flood(rooms: Rooms, policy: Callable[[int], Busy], *, restart: bool) -> Crowd:
    """Send many at once, half of them while the gateway restarts if that is wanted; returns when all have ended."""
    app = await rooms.open(Scripted(one_call_each), Tools(repeatable=True, work=constant("ok")))
    crowd = Crowd(app, policy)
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        for i in range(MANY // 2 if restart else MANY):
            group.create_task(crowd.send(i))
        if restart:
            await crowd.heard_of(MANY // 5)
            for i in range(MANY // 2, MANY):
                group.create_task(crowd.send(i))
            app.gateway.drain()
            await app.worker.drain(0)
            crowd.app = await rooms.restart()
            crowd.back.set()
    for turn in crowd.acknowledged.values():
        await ended(crowd.app, turn)
    return crowd


async def check_order(crowd: Crowd) -> list[Turn]:
    """One linear order: every acknowledged input is one turn, every turn one stretch of the log."""
    app = crowd.app
    known = await admitted_to(app)
    assert {turn.id for turn in known} == {turn.id for turn in crowd.acknowledged.values()}
    assert [turn.n for turn in known] == list(range(1, len(known) + 1))
    assert all(turn.ended for turn in known)

    entries = await app.gateway.transcript(ALICE, WORK)
    said = [e.body.text for e in entries if isinstance(e.body, Message) and e.body.role == "user"]
    sent = {i: f"message {i}" for i in crowd.acknowledged}
    assert sorted(said) == sorted(sent.values())  # none lost, none doubled, none of those refused

    own = sorted((t.first_seq, t.last_seq) for t in known if t.status != "joined")
    assert all(last < first for (_, last), (first, _) in pairwise(own))
    return known


@pytest.mark.parametrize("restart", [False, True], ids=["", "restart"])
async def test_queued_inputs_are_answered_in_the_order_of_admission(rooms: Rooms, restart: bool) -> None:
    """Fifty at once: each is answered for itself, first come first served, over a restart."""
    crowd = await flood(rooms, lambda _: "queue", restart=restart)
    known = await check_order(crowd)
    assert len(known) == MANY
    assert {turn.status for turn in known} == {"done"}
    assert [turn.first_seq for turn in known] == sorted(turn.first_seq or 0 for turn in known)
    for i, turn in crowd.acknowledged.items():
        assert await answer(crowd.app, turn) == f"you said: message {i}"


@pytest.mark.parametrize("restart", [False, True], ids=["", "restart"])
async def test_steered_inputs_join_or_run_and_each_id_has_an_answer(rooms: Rooms, restart: bool) -> None:
    """Fifty at once: each joined a running turn or ran itself, and its id answers with what that turn said."""
    crowd = await flood(rooms, lambda _: "steer", restart=restart)
    known = await check_order(crowd)
    assert len(known) == MANY
    assert {turn.status for turn in known} == {"done", "joined"}
    for turn in known:
        outcome = await crowd.app.gateway.turn(ALICE, turn.id)
        assert outcome.status == "done"
        assert outcome.id == (turn.joined_turn or turn.id)
        assert await answer(crowd.app, turn) == await answer(crowd.app, outcome) != ""


@pytest.mark.parametrize("restart", [False, True], ids=["", "restart"])
async def test_interrupting_inputs_are_all_heard_and_the_last_is_answered(rooms: Rooms, restart: bool) -> None:
    """Fifty at once: each is in the log, done or cancelled, and the last one admitted is answered."""
    crowd = await flood(rooms, lambda _: "interrupt", restart=restart)
    known = await check_order(crowd)
    assert len(known) == MANY
    assert {turn.status for turn in known} <= {"done", "cancelled"}
    assert known[-1].status == "done"
    assert [turn.first_seq for turn in known] == sorted(turn.first_seq or 0 for turn in known)


@pytest.mark.parametrize("restart", [False, True], ids=["", "restart"])
async def test_rejected_inputs_leave_no_trace(rooms: Rooms, restart: bool) -> None:
    """Fifty at once: some are answered, the others were refused and are nowhere."""
    crowd = await flood(rooms, lambda _: "reject", restart=restart)
    known = await check_order(crowd)
    assert len(known) + len(crowd.refused) == MANY
    assert known
    assert {turn.status for turn in known} == {"done"}


@pytest.mark.parametrize("seed", range(4))
async def test_any_mixture_of_policies_has_one_linear_order(rooms: Rooms, seed: int) -> None:
    """Fifty at once with policies drawn by lot, over a restart: nothing is lost and nothing doubled."""
    drawn = random.Random(seed).choices(["queue", "steer", "interrupt", "reject"], k=MANY)
    crowd = await flood(rooms, lambda i: drawn[i], restart=True)
    known = await check_order(crowd)
    assert len(known) + len(crowd.refused) == MANY
    assert {turn.busy for turn in known if turn.status == "joined"} <= {"steer"}
    assert crowd.refused <= {i for i in range(MANY) if drawn[i] == "reject"}


# -- queue


async def test_a_waiting_turn_can_be_seen_by_its_id_and_not_yet_in_the_log(rooms: Rooms) -> None:
    """Queued input has an id and a status; the log does not hold it until its turn comes."""
    model = Scripted()
    app = await rooms.open(model)
    await say(app, "one")
    asked = await model.asked()
    waiting = await say(app, "two")
    assert (await app.gateway.turn(ALICE, waiting.id)).status == "queued"
    assert await transcript(app) == ["user: one"]
    asked.finish("1")
    (await model.asked()).finish("2")
    await ended(app, waiting)
    assert await transcript(app) == ["user: one", "assistant: 1", "user: two", "assistant: 2"]


async def test_a_waiting_turn_is_cancelled_at_once_and_never_runs(rooms: Rooms) -> None:
    """Cancelling in the queue needs no worker; the ones behind it move up."""
    model = Scripted()
    app = await rooms.open(model)
    await say(app, "one")
    asked = await model.asked()
    second, third = await say(app, "two"), await say(app, "three")
    assert (await within(app.gateway.cancel(ALICE, second.id))).status == "cancelled"
    asked.finish("1")
    (await model.asked()).finish("3")
    await ended(app, third)
    assert await transcript(app) == ["user: one", "assistant: 1", "user: three", "assistant: 3"]
    assert len(model.requests) == 2


async def test_other_conversations_do_not_wait(rooms: Rooms) -> None:
    """A busy conversation holds nobody else up."""
    model = Scripted()
    app = await rooms.open(model)
    busy = await say(app, "one")
    asked = await model.asked()
    other = await say(app, "two", Slug("other"))
    (await model.asked()).finish("2")
    assert (await ended(app, other)).status == "done"
    asked.finish("1")
    await ended(app, busy)


async def test_nothing_branches_off_a_turn_that_has_not_finished(rooms: Rooms) -> None:
    """`after` a running turn continues while it is the tip, and is refused when the conversation has gone on."""
    model = Scripted()
    app = await rooms.open(model)
    first = await say(app, "one")
    asked = await model.asked()
    second = await say(app, "two", After(first.id))
    assert second.conversation_id == first.conversation_id
    with pytest.raises(UnfinishedTurn):
        await say(app, "other", After(first.id))
    model.reply = echo
    asked.finish("1")
    await ended(app, second)
    assert (await ask(app, "other", After(first.id))).conversation_id != first.conversation_id


# -- steer


async def held_in_a_tool(rooms: Rooms) -> tuple[App, Scripted, Gate, Turn]:
    """A turn whose tool waits for the test."""
    model, gate = Scripted(one_call_each), Gate()
    app = await rooms.open(model, Tools(work=gate))
    host = await say(app, "go")
    await within(gate.entered.wait())
    return app, model, gate, host


async def test_a_steered_input_joins_at_the_next_step_and_keeps_its_id(rooms: Rooms) -> None:
    """Its words follow the tool's result; both ids answer with the same output; its followers see the host's events."""
    app, model, gate, host = await held_in_a_tool(rooms)
    steered = await say(app, "rather left", busy="steer")
    followed = asyncio.create_task(told(app, steered))
    gate.opened.set()
    done = await ended(app, steered)
    assert (done.id, done.status) == (host.id, "done")
    assert model.requests[1].items[-1] == message("rather left")
    assert await transcript(app) == [
        "user: go",
        "calls work {}",
        "result: done",
        "user: rather left",
        "assistant: you said: rather left",
    ]
    assert (await app.db.read(turns.get, steered.id)).joined_turn == host.id
    assert await app.gateway.output(ALICE, steered.id) == await app.gateway.output(ALICE, host.id)
    assert await answer(app, steered) == "you said: rather left"
    events = await told(app, host)
    assert await followed == await told(app, steered) == events
    assert Joined(steered.id) in events


async def test_retry_after_a_steered_input_asks_that_input_again(rooms: Rooms) -> None:
    """What its host was asked, and what came of it until then, stays."""
    app, model, gate, _ = await held_in_a_tool(rooms)
    steered = await say(app, "rather left", busy="steer")
    gate.opened.set()
    await ended(app, steered)
    here = await app.gateway.find(ALICE, WORK)
    reply = await commands.run(commands.Desk(app.gateway, ALICE, here), "/retry")
    assert reply.text == "Once more: 'rather left'"
    assert reply.turn is not None
    await ended(app, await app.gateway.turn(ALICE, reply.turn))
    said = [item.text for item in model.requests[-1].items if isinstance(item, Message)]
    assert said == ["go", "rather left"]
    assert (await context(app))[-2:] == ["user: rather left", "assistant: you said: rather left"]


async def test_several_steered_inputs_join_in_their_order(rooms: Rooms) -> None:
    """All that wait join together, first come first."""
    app, model, gate, host = await held_in_a_tool(rooms)
    steered = [await say(app, f"aside {i}", busy="steer") for i in range(3)]
    gate.opened.set()
    assert {(await ended(app, turn)).id for turn in steered} == {host.id}
    assert model.requests[1].items[-3:] == tuple(message(f"aside {i}") for i in range(3))
    joined = [e.turn_id for e in await told(app, host) if isinstance(e, Joined)]
    assert joined == [turn.id for turn in steered]


async def test_a_steered_input_that_finds_nothing_running_is_an_ordinary_turn(rooms: Rooms) -> None:
    """There is nothing to join, so it runs."""
    app = await rooms.open()
    turn = await ask(app, "hello", busy="steer")
    assert turn.status == "done"
    assert await answer(app, turn) == "you said: hello"


async def test_a_steered_input_that_comes_after_the_last_step_runs_next(rooms: Rooms) -> None:
    """A turn that gives its answer has no next step; the input becomes a turn of its own."""
    model = Scripted()
    app = await rooms.open(model)
    host = await say(app, "one")
    asked = await model.asked()
    steered = await say(app, "two", busy="steer")
    asked.finish("1")
    (await model.asked()).finish("2")
    done = await ended(app, steered)
    assert (done.id, done.status) == (steered.id, "done")
    assert (await ended(app, host)).status == "done"


async def test_a_steered_input_goes_before_the_queue_and_the_queue_goes_on(rooms: Rooms) -> None:
    """What joins a running turn does not wait for those that queue behind it."""
    app, _, gate, host = await held_in_a_tool(rooms)
    queued = await say(app, "later")
    steered = await say(app, "now", busy="steer")
    gate.opened.set()
    assert (await ended(app, steered)).id == host.id
    assert (await ended(app, queued)).status == "done"
    lines = await transcript(app)
    assert lines.index("user: now") < lines.index("assistant: you said: now") < lines.index("user: later")


async def test_a_steered_input_that_was_cancelled_does_not_join(rooms: Rooms) -> None:
    """Cancelled while it waited, it is not in the log and the host goes on without it."""
    app, _, gate, host = await held_in_a_tool(rooms)
    steered = await say(app, "never mind", busy="steer")
    assert (await within(app.gateway.cancel(ALICE, steered.id))).id == steered.id
    gate.opened.set()
    assert (await ended(app, host)).status == "done"
    assert (await app.gateway.turn(ALICE, steered.id)).status == "cancelled"
    assert "user: never mind" not in await transcript(app)


async def test_cancelling_an_input_that_joined_cancels_the_turn_it_joined(rooms: Rooms) -> None:
    """Both ids stand for one turn, so stopping one stops both."""
    app, model, gate, host = await held_in_a_tool(rooms)
    steered = await say(app, "aside", busy="steer")
    model.reply = None
    gate.opened.set()
    asked = await model.asked()
    cancelled = await within(app.gateway.cancel(ALICE, steered.id))
    assert (cancelled.id, cancelled.status) == (host.id, "cancelled")
    await within(asked.left.wait())


async def test_an_input_waiting_to_steer_does_not_join_a_turn_that_is_being_cancelled(rooms: Rooms) -> None:
    """The host is stopped in its tool; the input that wanted to join it is answered as a turn of its own."""
    app, model, _, host = await held_in_a_tool(rooms)
    steered = await say(app, "and this?", busy="steer")
    model.reply = echo
    assert (await within(app.gateway.cancel(ALICE, host.id))).status == "cancelled"
    done = await ended(app, steered)
    assert (done.id, done.status) == (steered.id, "done")
    assert await answer(app, steered) == "you said: and this?"


async def test_a_conversation_is_continued_after_the_id_of_an_input_that_joined(rooms: Rooms) -> None:
    """The steered id is the tip, stands for the host, and both continue the conversation."""
    app, model, gate, host = await held_in_a_tool(rooms)
    steered = await say(app, "aside", busy="steer")
    model.reply = echo
    gate.opened.set()
    await ended(app, host)
    assert await tip(app) == steered.id
    third = await ask(app, "three", After(steered.id))
    assert third.conversation_id == host.conversation_id
    fork = await ask(app, "four", After(host.id))
    assert fork.conversation_id != host.conversation_id
    assert (await transcript(app, ById(fork.conversation_id)))[-2:] == ["user: four", "assistant: you said: four"]


async def test_an_input_that_waits_to_steer_survives_a_restart(rooms: Rooms) -> None:
    """The host is handed back, the next process goes on with it, and the input joins there."""
    model = Scripted(one_call_each)
    gate = Gate()
    app = await rooms.open(model, Tools(repeatable=True, work=gate))
    host = await say(app, "go")
    await within(gate.entered.wait())
    steered = await say(app, "aside", busy="steer")
    app = await rooms.restart()
    gate.opened.set()
    assert (await ended(app, steered)).id == host.id
    assert (await transcript(app))[-2:] == ["user: aside", "assistant: you said: aside"]


async def test_cancel_and_joining_never_both_win(shared: Rooms) -> None:
    """While the worker is about to let an input join, a cancel takes it: it is cancelled and nowhere in the log."""
    app = await shared.open(worker_concurrency=0)
    host = await say(app, "host")
    node = app.worker.node
    await app.db.write(nodes.start, node, 60.0, alone=False)
    lease = await app.db.write(turns.claim, host.conversation_id, node)
    assert isinstance(lease, Lease)
    steered = await say(app, "aside", busy="steer")
    holding, joining = asyncio.Event(), asyncio.Event()

    async def cancel_slowly(tx: Tx) -> Turn:
        turn = await turns.cancel(tx, ALICE, steered.id)  # holds the conversation's row lock
        holding.set()
        await joining.wait()
        return turn

    async def blocked(tx: Tx) -> bool:
        rows = await tx._connection.fetch("select 1 from pg_locks where not granted")  # type: ignore[attr-defined]
        return bool(rows)

    cancelling = asyncio.create_task(app.db.write(cancel_slowly))
    await within(holding.wait())
    absorbing = asyncio.create_task(app.db.write(turns.absorb, lease))
    await until(lambda: app.db.read(blocked))
    joining.set()
    assert (await within(cancelling)).status == "cancelled"
    assert await within(absorbing) == []
    assert "user: aside" not in await transcript(app)


# -- interrupt


async def test_an_interrupt_stops_the_running_turn_and_goes_before_the_queue(rooms: Rooms) -> None:
    """The running turn is cancelled with its partial answer kept; the interrupt is next; then those that waited."""
    model = Scripted()
    app = await rooms.open(model)
    first = await say(app, "one")
    asked = await model.asked()
    asked.say("half an ans")
    await until_told(app, first, Delta(0, "half an ans"))
    queued = await say(app, "two")
    urgent = await say(app, "stop!", busy="interrupt")
    await within(asked.left.wait())
    model_sees = await model.asked()
    assert model_sees.request.items[-1] == message("stop!")
    model_sees.finish("stopped")
    (await model.asked()).finish("2")
    assert [(await ended(app, turn)).status for turn in (first, urgent, queued)] == ["cancelled", "done", "done"]
    assert await transcript(app) == [
        "user: one",
        "assistant: half an ans (cut off)",
        "user: stop!",
        "assistant: stopped",
        "user: two",
        "assistant: 2",
    ]


async def test_an_interrupt_of_a_running_tool_leaves_its_outcome_unknown(rooms: Rooms) -> None:
    """Nobody guesses whether the tool took effect: its call is answered so, and the next model is told."""
    app, model, _, host = await held_in_a_tool(rooms)
    model.reply = echo
    urgent = await ask(app, "stop!", busy="interrupt")
    assert (await ended(app, host)).status == "cancelled"
    assert urgent.status == "done"
    assert [line.split(":")[0] for line in await context(app)] == [
        "user",
        "calls work {}",
        "error",
        "user",
        "assistant",
    ]
    [answered] = [event for event in await told(app, host) if isinstance(event, Answered)]
    assert answered.is_error


async def test_an_interrupt_that_finds_nothing_running_is_an_ordinary_turn(rooms: Rooms) -> None:
    """There is nothing to stop, so it runs."""
    app = await rooms.open()
    assert (await ask(app, "hello", busy="interrupt")).status == "done"


async def test_an_interrupt_stops_a_turn_that_was_handed_back(rooms: Rooms) -> None:
    """A turn that began and waits for another process counts as running: it is stopped, not resumed afterwards."""
    model = Scripted()
    app = await rooms.open(model)
    first = await say(app, "one")
    asked = await model.asked()
    asked.say("half an ans")
    await until_told(app, first, Delta(0, "half an ans"))
    app = await rooms.restart(worker_concurrency=0)  # nobody goes on with it yet
    urgent = await say(app, "stop!", busy="interrupt")
    model.reply = echo
    app = await rooms.restart(worker_concurrency=8)
    assert (await ended(app, urgent)).status == "done"
    assert (await ended(app, first)).status == "cancelled"
    assert await transcript(app) == [
        "user: one",
        "assistant: half an ans (cut off)",
        "user: stop!",
        "assistant: you said: stop!",
    ]


async def handed_back_and_cancelled(rooms: Rooms) -> tuple[App, Scripted, Turn, Turn]:
    """A turn that began, was handed back in mid answer, and was cancelled before another process went on with it."""
    model = Scripted(in_turn(words("1")))
    app = await rooms.open(model)
    parent = await ask(app, "one")
    model.reply = None
    begun = await say(app, "two", After(parent.id))
    asked = await model.asked()
    asked.say("half an ans")
    await until_told(app, begun, Delta(0, "half an ans"))
    app = await rooms.restart(worker_concurrency=0)
    cancelling = asyncio.create_task(app.gateway.cancel(ALICE, begun.id))
    await until(lambda: wants_to_stop(app, begun))
    cancelling.cancel()
    model.reply = echo
    app = await rooms.restart(worker_concurrency=8)
    assert (await ended(app, begun)).status == "cancelled"
    return app, model, parent, begun


async def test_a_turn_cancelled_after_it_was_handed_back_is_hidden_by_a_retry(rooms: Rooms) -> None:
    """It ends like one cancelled while it ran: a retry stays in the conversation and does not see it."""
    app, model, parent, _ = await handed_back_and_cancelled(rooms)
    retry = await ask(app, "three", After(parent.id))
    assert retry.conversation_id == parent.conversation_id
    assert model.requests[-1].items == (message("one"), Message("assistant", (Text("1"),)), message("three"))


async def test_a_turn_cancelled_after_it_was_handed_back_keeps_the_words_that_were_seen(rooms: Rooms) -> None:
    """What its followers saw is in the log, marked as cut off, and their stream closes it."""
    app, _, _, begun = await handed_back_and_cancelled(rooms)
    assert (await transcript(app))[-1] == "assistant: half an ans (cut off)"
    assert (await told(app, begun))[-1] == Closed(0, incomplete=True)


async def test_going_on_after_an_interrupt_never_hides_the_interrupt(rooms: Rooms) -> None:
    """The interrupted turn was handed back and came to a bad end later; what continues the interrupt still sees it."""
    model = Scripted()
    app = await rooms.open(model)
    first = await say(app, "one")
    await model.asked()
    app = await rooms.restart(worker_concurrency=0)
    urgent = await say(app, "stop!", busy="interrupt")
    model.reply = in_turn(words("stopped"), [TextChunk("as I"), ModelUnavailable()])
    app = await rooms.restart(worker_concurrency=8)
    await ended(app, urgent)
    assert (await ended(app, first)).status in ("cancelled", "failed")
    model.reply = echo
    more = await ask(app, "more", After(urgent.id))
    assert more.conversation_id == first.conversation_id
    assert message("stop!") in model.requests[-1].items


async def wants_to_stop(app: App, turn: Turn) -> bool:
    seen = await app.gateway.turn(turn.principal, turn.id)
    return seen.ended or seen.cancel_at is not None


# -- reject


async def test_a_busy_conversation_rejects_and_writes_nothing(rooms: Rooms) -> None:
    """The refusal has a name, and the conversation is as it was: no turn, no entry, the same tip."""
    model = Scripted()
    app = await rooms.open(model)
    running = await say(app, "one")
    asked = await model.asked()
    before = await app.gateway.find(ALICE, WORK)
    with pytest.raises(ConversationBusy):
        await say(app, "two", busy="reject")
    with pytest.raises(ConversationBusy):
        await say(app, "two", After(running.id), busy="reject")
    assert await app.gateway.find(ALICE, WORK) == before
    assert [turn.id for turn in await admitted_to(app)] == [running.id]
    asked.finish("1")
    await ended(app, running)
    model.reply = echo
    assert (await ask(app, "two", busy="reject")).status == "done"


async def test_a_rejected_input_may_be_sent_again_with_its_key(rooms: Rooms) -> None:
    """A refusal admitted nothing, so the same key is free."""
    model = Scripted()
    app = await rooms.open(model)
    running = await say(app, "one")
    asked = await model.asked()
    with pytest.raises(ConversationBusy):
        await say(app, "two", busy="reject", key="k")
    asked.finish("1")
    await ended(app, running)
    model.reply = echo
    assert (await ask(app, "two", busy="reject", key="k")).status == "done"


# -- upkeep


async def test_upkeep_waits_its_place_and_never_moves_the_tip(rooms: Rooms) -> None:
    """A rewind and posted items come after the turn that runs and before the one that was sent after them."""
    model = Scripted()
    app = await rooms.open(model)
    running = await say(app, "one")
    asked = await model.asked()
    items = asyncio.create_task(app.gateway.add(ALICE, WORK, [message("posted")]))
    await until(lambda: has_admitted(app, 2))
    queued = await say(app, "two")
    assert not items.done()
    assert await tip(app) == queued.id
    asked.finish("1")
    assert (await within(items)).status == "done"
    (await model.asked()).finish("2")
    await ended(app, queued)
    assert await tip(app) == queued.id
    lines = ["user: one", "assistant: 1", "user: posted", "user: two", "assistant: 2"]
    assert await transcript(app) == lines

    await within(app.gateway.rewind(ALICE, WORK, 3))
    assert await tip(app) == queued.id
    assert (await ended(app, running)).status == "done"
    assert await transcript(app) == lines[:2]
    model.reply = echo
    assert (await ask(app, "three", After(queued.id))).conversation_id == running.conversation_id


async def has_admitted(app: App, count: int) -> bool:
    return len(await admitted_to(app)) == count


async def test_who_waits_in_one_process_is_woken_and_does_not_poll(
    rooms: Rooms, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With polling as good as switched off, upkeep, joining and cancelling still end: someone rings."""
    monkeypatch.setattr(live, "POLL", 600.0)
    model = Scripted()
    app = await rooms.open(model, Tools(work=constant("ok")))
    await say(app, "one")
    asked = await model.asked()
    items = asyncio.create_task(app.gateway.add(ALICE, WORK, [message("posted")]))
    await until(lambda: has_admitted(app, 2))
    waiting = await say(app, "two")
    waits = asyncio.create_task(app.gateway.ended(waiting))
    follows = asyncio.create_task(told(app, waiting))
    steered = await say(app, "aside", busy="steer")
    joins = asyncio.create_task(app.gateway.ended(steered))
    await asyncio.sleep(0)
    await within(app.gateway.cancel(ALICE, waiting.id), 10)
    assert (await within(waits, 10)).status == "cancelled"
    assert await within(follows, 10) == []
    asked.call("work")
    asked.finish()
    (await model.asked()).finish("1")
    assert (await within(joins, 10)).status == "done"
    assert (await within(items, 10)).status == "done"


async def test_a_summary_prepared_from_an_older_state_is_not_published(rooms: Rooms) -> None:
    """`expects` names the newest control entry it was made from; with another one it is stale and changes nothing."""
    app = await rooms.open()
    await ask(app, "one")
    seen = await app.gateway.context(ALICE, WORK)
    await ask(app, "two")  # a busy conversation does not discard a summary
    await within(app.gateway.compact(ALICE, WORK, 2, "a summary", expects=seen.control))
    after = await context(app)
    with pytest.raises(Stale):
        await within(app.gateway.compact(ALICE, WORK, 4, "too late", expects=seen.control))
    assert await context(app) == after
    assert (await ask(app, "three")).status == "done"


# -- the same submission again


async def test_a_submission_sent_again_is_the_same_turn(rooms: Rooms) -> None:
    """In flight, after the end, and after a restart: one turn, one input, one answer."""
    model = Scripted()
    app = await rooms.open(model)
    first = await say(app, "one", key="k", hash="h")
    assert (await say(app, "one", key="k", hash="h")).id == first.id
    (await model.asked()).finish("1")
    await ended(app, first)
    assert (await say(app, "one", key="k", hash="h")).id == first.id
    app = await rooms.restart()
    again = await say(app, "one", key="k", hash="h")
    assert (again.id, again.status) == (first.id, "done")
    assert await transcript(app) == ["user: one", "assistant: 1"]
    assert len(model.requests) == 1


async def test_twenty_of_the_same_at_once_are_one_turn(rooms: Rooms) -> None:
    """A race of one submission with itself, into a conversation that does not exist yet, makes one of each."""
    model = Scripted(echo)
    app = await rooms.open(model)
    sent = [submission("one", Fresh(), key="k", hash="h") for _ in range(20)]
    admitted_turns = await within(asyncio.gather(*(app.gateway.submit(s) for s in sent)))
    assert len({turn.id for turn in admitted_turns}) == 1
    await ended(app, admitted_turns[0])
    assert len(await app.gateway.conversations(ALICE)) == 1
    assert len(model.requests) == 1


async def test_a_key_used_for_another_request_is_refused(rooms: Rooms) -> None:
    """The same key with another body is a mistake of the client, told as one, while it runs and after."""
    model = Scripted()
    app = await rooms.open(model)
    first = await say(app, "one", key="k", hash="h")
    with pytest.raises(DedupMismatch):
        await say(app, "two", key="k", hash="other")
    (await model.asked()).finish("1")
    await ended(app, first)
    with pytest.raises(DedupMismatch):
        await say(app, "two", Slug("elsewhere"), key="k", hash="other")
    with pytest.raises(UnknownHandle):
        await app.gateway.find(ALICE, Slug("elsewhere"))
    assert await transcript(app) == ["user: one", "assistant: 1"]


async def test_keys_of_two_owners_have_nothing_to_do_with_each_other(rooms: Rooms) -> None:
    """A key is one principal's: another one's turn is not found by it."""
    app = await rooms.open()
    mine, theirs = await ask(app, "one", key="k"), await ask(app, "two", key="k", who=BOB)
    assert mine.id != theirs.id
    assert shown(await app.gateway.output(BOB, theirs.id)) == ["user: two", "assistant: you said: two"]
