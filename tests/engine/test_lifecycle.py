"""The life of a process: it drains, leaves, loses its caller or its store, and no turn is stuck or doubled."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import asyncpg
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
from engine.scripted import Gate, Scripted, Tools, calls, constant, echo, in_turn, one_call_each, words
from engine.waiting import rest, until, within
from legato.app import App
from legato.domain import fingerprint
from legato.domain.entries import Message, Text, ToolResult
from legato.domain.events import Closed, Delta, Opened
from legato.domain.handles import ById, Handle, Slug
from legato.domain.ids import ConversationId, NodeId, TurnId, new_conversation_id, new_turn_id
from legato.domain.turns import After, Dedup, Turn, Usage
from legato.engine import worker
from legato.engine.gateway import Gateway
from legato.engine.keeping import Meant
from legato.engine.protocols import Invocation
from legato.errors import Draining, Unavailable, UnknownHandle, UnknownTurn
from legato.store import nodes, turns
from legato.store.outbox import UnknownDelivery

# -- leaving in good order


async def test_draining_lets_a_running_turn_finish(rooms: Rooms) -> None:
    """What ends within the budget ends here."""
    model = Scripted()
    app = await rooms.open(model)
    turn = await say(app, "one")
    asked = await model.asked()
    app.gateway.drain()
    draining = asyncio.create_task(app.worker.drain(30.0))
    await asyncio.sleep(0)
    asked.finish("1")
    await within(draining)
    assert (await app.gateway.turn(ALICE, turn.id)).status == "done"


async def test_draining_claims_nothing_more(rooms: Rooms) -> None:
    """The turn that waits behind the running one is left for the next process."""
    model = Scripted()
    app = await rooms.open(model)
    await say(app, "one")
    asked = await model.asked()
    waiting = await say(app, "two")
    draining = asyncio.create_task(app.worker.drain(30.0))
    await asyncio.sleep(0)
    asked.finish("1")
    await within(draining)
    assert (await app.gateway.turn(ALICE, waiting.id)).status == "queued"
    model.reply = echo
    app = await rooms.restart()
    assert (await ended(app, waiting)).status == "done"


async def test_draining_hands_back_what_does_not_finish_and_the_attempt_does_not_count(rooms: Rooms) -> None:
    """However often a turn is handed back, the next process goes on with it, after the words that were already seen."""
    model = Scripted()
    app = await rooms.open(model, worker_max_attempts=1)
    turn = await say(app, "one")
    for life in range(5):
        asked = await model.asked()
        asked.say(f"try {life}")
        await until_told(app, turn, Delta(life, f"try {life}"))
        app.gateway.drain()
        await within(app.worker.drain(0))
        left = await app.gateway.turn(ALICE, turn.id)
        assert (left.status, left.attempts, left.owner) == ("queued", 0, None)
        app = await rooms.restart()
    (await model.asked()).finish("at last")
    assert (await ended(app, turn)).status == "done"
    assert await answer(app, turn) == "at last"
    lines = await transcript(app)
    assert lines == ["user: one", *(f"assistant: try {life} (cut off)" for life in range(5)), "assistant: at last"]
    assert model.requests[-1].items == (message("one"),)  # a cut-off try would only confuse


async def test_a_turn_handed_back_is_taken_up_by_a_process_that_is_there(shared: Rooms) -> None:
    """Another node goes on with it without being told."""
    model = Scripted()
    first = await shared.open(model)
    turn = await say(first, "one")
    await model.asked()
    second = await shared.open(model)
    first.gateway.drain()
    await within(first.worker.drain(0))
    (await model.asked()).finish("1")
    done = await ended(second, turn)
    assert (done.status, await answer(second, turn)) == ("done", "1")


async def test_a_turn_that_comes_back_to_a_node_that_still_runs_it_is_not_run_twice_there(shared: Rooms) -> None:
    """It stood still, another took the turn over and handed it back; the old run leaves before the turn is claimed."""
    gate = Gate()
    first = await shared.open(Scripted(one_call_each), Tools(work=gate))
    turn = await say(first, "go")
    await within(gate.entered.wait())
    await first.db.write(nodes.end, first.worker.node)
    model = Scripted()
    second = await shared.open(model)
    await model.asked()
    await shared.close(second)
    assert (await first.gateway.turn(ALICE, turn.id)).status == "queued"
    first.worker.offer(turn.conversation_id)
    await rest()
    assert (await first.gateway.turn(ALICE, turn.id)).status == "queued"
    gate.opened.set()
    done = await ended(first, turn)
    assert (done.status, done.failure) == ("done", None)


async def test_nothing_is_admitted_while_draining_and_everything_can_be_read(rooms: Rooms) -> None:
    """Input and upkeep are told to come back; reading goes on."""
    app = await rooms.open()
    turn = await ask(app, "one")
    await app.gateway.check()
    app.gateway.drain()
    for refused in (
        app.gateway.submit(submission("two")),
        app.gateway.rewind(ALICE, WORK, 0),
        app.gateway.add(ALICE, WORK, [message("posted")]),
        app.gateway.check(),
    ):
        with pytest.raises(Draining):
            await within(refused)
    assert await transcript(app) == ["user: one", "assistant: you said: one"]
    assert await answer(app, turn) == "you said: one"


async def test_whoever_waits_for_a_turn_that_is_handed_back_is_told_to_come_again(rooms: Rooms) -> None:
    """Followers and waiters get a retryable answer, not silence."""
    model = Scripted()
    app = await rooms.open(model)
    turn = await say(app, "one")
    await model.asked()
    waiting, following = asyncio.create_task(app.gateway.ended(turn)), asyncio.create_task(told(app, turn))
    await asyncio.sleep(0)
    app.gateway.drain()
    await within(app.worker.drain(0))
    for told_to_come_again in (waiting, following):
        with pytest.raises(Draining):
            await within(told_to_come_again)


async def test_items_that_were_closed_for_followers_stay_complete_in_the_log(rooms: Rooms) -> None:
    """Words before a call were closed as complete; when the turn is handed back in mid call, the log says the same."""
    model = Scripted()
    app = await rooms.open(model, Tools(work=constant("ok")))
    turn = await say(app, "one")
    asked = await model.asked()
    asked.say("I look it up.")
    asked.call("work", '{"half": ')
    await until_told(app, turn, Delta(1, '{"half": '))
    model.reply = echo
    app = await rooms.restart()
    await ended(app, turn)
    events = await told(app, turn)
    ids = {event.index: event.id for event in events if isinstance(event, Opened)}
    incomplete = {ids[event.index]: event.incomplete for event in events if isinstance(event, Closed)}
    for entry in await app.gateway.output(ALICE, turn.id):
        if entry.id in incomplete and isinstance(entry.body, Message):
            assert entry.body.incomplete == incomplete[entry.id], entry.body.text


async def test_a_tool_call_in_doubt_is_run_again_only_if_that_is_harmless(rooms: Rooms) -> None:
    """Handed back in mid tool: a repeatable tool runs again under its call id, another is answered as unknown."""
    gate = Gate()
    safe, risky = Tools(repeatable=True, work=gate), Tools(work=gate)
    for tools, outputs, name in ((safe, ["done"], "safe"), (risky, [], "risky")):
        gate.entered.clear()
        gate.opened.clear()
        model = Scripted(one_call_each)
        app = await rooms.open(model, tools)
        turn = await say(app, "go", Slug(name))
        await within(gate.entered.wait())
        app = await rooms.restart()
        gate.opened.set()
        assert (await ended(app, turn)).status == "done"
        results = [e.body for e in await app.gateway.output(ALICE, turn.id) if isinstance(e.body, ToolResult)]
        assert [r.output for r in results if not r.unknown] == outputs
        assert len(results) == 1
        assert len({invocation.call_id for invocation in tools.invoked}) == 1
        assert len(tools.invoked) == (2 if tools is safe else 1)
        await rooms.close(app)


# -- leaving in a hurry


async def test_a_process_that_is_left_at_once_lets_go_of_what_it_was_about_to_run(rooms: Rooms) -> None:
    """Left at any moment after it found work, it does not wait for a model that never answers; the next one runs it."""
    app = await rooms.open(worker_concurrency=0)
    waiting = [await say(app, "hello", Slug(f"c{i}")) for i in range(3)]
    for moments in (0, 1, 2, 3, 5, 8, 13, 21):
        app = await rooms.restart(model=Scripted(), worker_concurrency=8)
        for _ in range(moments):
            await asyncio.sleep(0)
        await rooms.close(app, bound=10)
        app = await rooms.open(worker_concurrency=0)
    app = await rooms.restart(worker_concurrency=8)
    assert [(await ended(app, turn)).status for turn in waiting] == ["done"] * 3


async def test_a_caller_that_goes_away_while_the_process_leaves_holds_nothing_up(rooms: Rooms) -> None:
    """The admission is finished, its turn is handed back, and the process does not wait for its model."""
    for moments in (0, 1, 2, 3, 5):
        app = await rooms.open(Scripted())
        caller = asyncio.create_task(app.gateway.submit(submission("hello", Slug(f"c{moments}"))))
        for _ in range(moments):
            await asyncio.sleep(0)
        caller.cancel()
        await rooms.close(app, bound=10)
        with suppress(asyncio.CancelledError):
            await caller
    app = await rooms.open()
    for conversation in await app.gateway.conversations(ALICE):
        await settled(app, ById(conversation.id))


async def test_a_turn_that_ends_while_the_process_leaves_starts_no_other(rooms: Rooms) -> None:
    """The answer comes in the moment the process is left; the turn behind it is for the next process."""
    model = Scripted()
    app = await rooms.open(model)
    first = await say(app, "one")
    asked = await model.asked()
    second = await say(app, "two")
    asked.finish("1")
    await until(lambda: is_done(app, first))
    await rooms.close(app, bound=10)
    app = await rooms.open()
    assert (await ended(app, second)).status == "done"


async def is_done(app: App, turn: Turn) -> bool:
    return (await app.gateway.turn(turn.principal, turn.id)).status == "done"


async def settled(app: App, of: Handle) -> None:
    """A conversation's newest turn has ended, and its input is in the log once, with its answer."""
    newest = await tip(app, of)
    assert newest is not None
    assert (await ended(app, await app.gateway.turn(ALICE, newest))).status == "done"
    assert await transcript(app, of) == ["user: hello", "assistant: you said: hello"]


# -- callers


async def test_a_caller_that_goes_away_never_leaves_a_turn_stuck(rooms: Rooms) -> None:
    """Cancelled at any moment of submitting, the turn runs to its end or was never there; also after a restart."""
    app = await rooms.open()
    for moments in range(40):
        caller = asyncio.create_task(app.gateway.submit(submission("hello", Slug(f"c{moments}"))))
        for _ in range(moments):
            await asyncio.sleep(0)
        caller.cancel()
        with suppress(asyncio.CancelledError):
            await caller
    await ask(app, "hello", Slug("last"))
    app = await rooms.restart()
    known = await app.gateway.conversations(ALICE)
    assert known
    for conversation in known:
        await settled(app, ById(conversation.id))
    for moments in range(40):  # a name whose caller heard nothing is as good as new
        with suppress(UnknownHandle):
            await settled(app, Slug(f"c{moments}"))


async def test_callers_that_go_away_in_a_crowd_lose_nothing(rooms: Rooms) -> None:
    """A hundred callers of one conversation, every second one gone at once: what was admitted is answered in order."""
    app = await rooms.open()
    callers = [asyncio.create_task(app.gateway.submit(submission(f"{i}"))) for i in range(100)]
    await asyncio.sleep(0)
    for caller in callers[::2]:
        caller.cancel()
    heard = await asyncio.gather(*callers, return_exceptions=True)
    stayed = [turn for turn in heard if isinstance(turn, Turn)]
    assert len(stayed) >= 50
    for turn in stayed:
        assert (await ended(app, turn)).status == "done"
    newest = await tip(app)
    assert newest is not None
    await ended(app, await app.gateway.turn(ALICE, newest))
    known = await app.db.read(turns.of_conversation, stayed[0].conversation_id, 0, 1000)
    assert {turn.status for turn in known} == {"done"}
    assert len(await transcript(app)) == 2 * len(known)


# -- room


LIMIT = 3


async def test_more_turns_than_room_are_all_done_in_the_end(rooms: Rooms) -> None:
    """With room for one, forty conversations are all answered, one after the other and without pauses between them."""
    model = Scripted()
    app = await rooms.open(model, worker_concurrency=1)
    first = await say(app, "hello", Slug("first"))
    asked = await model.asked()
    waiting = [await say(app, "hello", Slug(f"c{i}")) for i in range(40)]
    model.reply = echo
    asked.finish("1")
    assert (await ended(app, first)).status == "done"
    async with asyncio.timeout(20):
        for turn in waiting:
            assert (await app.gateway.ended(turn)).status == "done"


async def test_no_more_turns_run_at_once_than_there_is_room_for(rooms: Rooms) -> None:
    """The limit holds for a crowd that comes at once, too."""
    model = Scripted()
    app = await rooms.open(model, worker_concurrency=LIMIT)
    sent = await within(asyncio.gather(*(say(app, "hello", Slug(f"c{i}")) for i in range(12))))
    for finished in range(len(sent)):
        asked = await model.asked()
        await rest()  # whoever else wants to run does so
        assert len(model.requests) - finished <= LIMIT
        asked.finish("1")
    for turn in sent:
        await ended(app, turn)


# -- the lease

ROOMY = 4.0  # seconds: a machine that has much to do may stand still for one or two


async def test_a_turn_that_outlasts_the_lease_stays_on_its_node(shared: Rooms) -> None:
    """The lease is renewed while the model thinks; a hungry neighbour takes nothing away."""
    model = Scripted()
    here = await shared.open(model, worker_lease=ROOMY)
    turn = await say(here, "one")
    asked = await model.asked()
    there = await shared.open(model, worker_lease=ROOMY)
    begun = (await here.gateway.turn(ALICE, turn.id)).claimed_at
    assert begun is not None

    async def outlasted() -> bool:
        await here.db.write(nodes.renew, NodeId("a clock"), 1.0)
        [[now]] = await here.db.read(lambda tx: tx.run("clock"))
        return bool(now > begun + 1.5 * ROOMY)

    await until(outlasted)
    seen = await there.gateway.turn(ALICE, turn.id)
    assert (seen.owner, seen.claimed_at) == (here.worker.node, begun)
    asked.finish("1")
    assert (await ended(there, turn)).status == "done"
    assert len(model.requests) == 1


async def test_a_table_that_is_locked_for_longer_than_a_lease_takes_no_turn_away(shared: Rooms) -> None:
    """An upgrade of a large store locks them all, and a scrub one after the other."""
    model = Scripted()
    here = await shared.open(model, worker_lease=ROOMY)
    turn = await say(here, "one")
    asked = await model.asked()
    there = await shared.open(model, worker_lease=ROOMY)
    locking = await asyncpg.connect(shared.url)
    lease = "select lease_until - extract(epoch from clock_timestamp()) from nodes where id = $1"
    try:
        async with locking.transaction():
            await locking.execute("lock table turns in access exclusive mode")

            async def outlasted() -> bool:
                assert await locking.fetchval(lease, here.worker.node) > 0
                return bool(
                    await locking.fetchval(f"select clock_timestamp() > now() + interval '{1.5 * ROOMY} seconds'")
                )

            await until(outlasted)
    finally:
        await locking.close()
    asked.finish("1")
    assert (await ended(there, turn)).status == "done"
    assert len(model.requests) == 1


@pytest.mark.parametrize("begun", [False, True], ids=["before it began", "after it was taken over"])
async def test_a_node_that_overslept_asks_nobody_with_a_log_that_went_on(shared: Rooms, begun: bool) -> None:
    """It stood still between its claim and its first look at the log. Another ended the turn meanwhile."""
    here, asleep = await shared.open(), await shared.open(model := Scripted(echo), worker_concurrency=0)
    await ask(here, "one")
    await shared.close(here)
    turn = await say(asleep, "two")
    if begun:
        node = NodeId("died")
        await asleep.db.write(nodes.start, node, 60.0, alone=False)
        assert await asleep.db.write(turns.claim, turn.conversation_id, node) is not None
        await asleep.db.write(nodes.end, node)
    lease = await asleep.db.write(turns.claim, turn.conversation_id, asleep.worker.node)
    assert lease is not None
    assert lease.begun == begun
    await asleep.db.write(nodes.end, asleep.worker.node)
    heir = await shared.open()
    assert (await ended(heir, turn)).status == "done"
    asleep.worker.start(lease)
    await until(lambda: nothing_runs(asleep))
    assert model.requests == []
    assert (await transcript(heir))[-2:] == ["user: two", "assistant: you said: two"]


async def test_a_conversation_that_is_locked_for_longer_than_a_lease_takes_no_turn_away(shared: Rooms) -> None:
    """Whoever writes to it waits on the only connection of the node; its other turn goes on there."""
    model = Scripted()
    here = await shared.open(model, worker_lease=ROOMY, database_connections=1)
    locked = await say(here, "one", Slug("locked"))
    (await model.asked()).finish("1")
    await ended(here, locked)
    turn = await say(here, "one")
    asked = await model.asked()
    there = await shared.open(model, worker_lease=ROOMY)
    locking = await asyncpg.connect(shared.url)
    lease = "select lease_until - extract(epoch from clock_timestamp()) from nodes where id = $1"
    begun = "select clock_timestamp() > now() + $1 * interval '1 second'"
    writing: list[asyncio.Task[Turn]] = []
    try:
        async with locking.transaction():
            await locking.execute("select 1 from conversations where id = $1 for update", locked.conversation_id)
            writing = [asyncio.create_task(here.gateway.submit(submission(f"{i}", Slug("locked")))) for i in range(20)]

            async def outlasted() -> bool:
                assert await locking.fetchval(lease, here.worker.node) > 0
                return bool(await locking.fetchval(begun, 1.5 * ROOMY))

            await until(outlasted)
    finally:
        await locking.close()
    model.reply = echo
    asked.finish("1")
    assert (await ended(there, turn)).status == "done"
    assert [request.items[-1] for request in model.requests].count(message("one")) == 2
    for written in await within(asyncio.gather(*writing)):
        assert (await ended(there, written)).status == "done"


async def test_a_turn_that_kills_every_process_is_given_up(rooms: Rooms) -> None:
    """After so many processes died in it without progress the turn fails with that name, and the next one answers."""
    app = await rooms.open(worker_concurrency=0, worker_max_attempts=3)
    turn = await say(app, "one")
    for life in range(3):
        node = NodeId(f"node_{life}")
        await app.db.write(nodes.start, node, 60.0, alone=False)
        assert await app.db.write(turns.claim, turn.conversation_id, node) is not None
        await app.db.write(nodes.end, node)  # it died: its lease is gone, its turn is not
    app = await rooms.restart(worker_concurrency=8)
    failed = await ended(app, turn)
    assert (failed.status, failed.failure and failed.failure.code) == ("failed", "attempts_exhausted")
    assert (await ask(app, "two")).status == "done"
    assert await transcript(app) == ["user: one", "user: two", "assistant: you said: two"]


async def test_a_turn_that_kills_every_process_is_given_up_although_it_spoke_each_time(rooms: Rooms) -> None:
    """Words that were cut off by a death are no progress: the turn is given up after its attempts."""
    model = Scripted()
    app = await rooms.open(model, worker_max_attempts=2)
    turn = await say(app, "one")
    for life in range(2):
        asked = await model.asked()
        asked.say(f"try {life}")
        await until_told(app, turn, Delta(life, f"try {life}"))
        await rooms.crash(app)
        model.reply = echo if life else None  # the third life does not even ask
        app = await rooms.open(model, worker_max_attempts=2)
    failed = await ended(app, turn)
    assert (failed.status, failed.failure and failed.failure.code) == ("failed", "attempts_exhausted")
    assert len(model.requests) == 2
    assert await transcript(app) == ["user: one", "assistant: try 0 (cut off)", "assistant: try 1 (cut off)"]


async def test_a_tool_that_kills_every_process_is_given_up(rooms: Rooms) -> None:
    """A repeatable tool in which processes die is not run for ever."""
    gate = Gate()
    model, tools = Scripted(one_call_each), Tools(repeatable=True, work=gate)
    app = await rooms.open(model, tools, worker_max_attempts=2)
    turn = await say(app, "one")
    for _ in range(3):
        await within(gate.entered.wait())
        gate.entered.clear()
        await rooms.crash(app)
        app = await rooms.open(model, tools, worker_max_attempts=2)
    failed = await ended(app, turn)
    assert (failed.status, failed.failure and failed.failure.code) == ("failed", "attempts_exhausted")
    assert len(tools.invoked) == 3  # the first, and once for each attempt


async def test_a_crash_in_mid_answer_ends_in_one_answer(rooms: Rooms) -> None:
    """The heir closes what was cut off and answers; followers of the first process can tell the two apart."""
    model = Scripted()
    app = await rooms.open(model)
    turn = await say(app, "one")
    asked = await model.asked()
    asked.say("half an ans")
    await until_told(app, turn, Delta(0, "half an ans"))
    await rooms.crash(app)
    app = await rooms.open(model)
    (await model.asked()).finish("whole")
    assert (await ended(app, turn)).status == "done"
    assert await transcript(app) == ["user: one", "assistant: half an ans (cut off)", "assistant: whole"]
    assert [e for e in await told(app, turn) if isinstance(e, Closed)] == [Closed(0, incomplete=True), Closed(1)]


@pytest.mark.parametrize("dies", [False, True], ids=["handed back", "crash"])
async def test_the_bill_counts_the_steps_of_every_process(rooms: Rooms, dies: bool) -> None:
    """A step that finished in a process that is gone was paid for, and stays on the turn's bill."""
    gate = Gate()
    model = Scripted(in_turn(calls(("c1", "work", "{}"), usage=Usage(100, 10)), words("done", usage=Usage(1000, 1))))
    app = await rooms.open(model, Tools(work=gate))
    turn = await say(app, "go")
    await within(gate.entered.wait())
    if dies:
        await rooms.crash(app)
        app = await rooms.open(model, Tools(work=gate))
    else:
        app = await rooms.restart()
    done = await ended(app, turn)
    assert (done.status, done.usage) == ("done", Usage(1100, 11))


# -- the store goes away


class Outage:
    """An administrator's connection that can hold a conversation's row and end everybody else's."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    @asynccontextmanager
    async def holding(self, turn: Turn) -> Any:
        """Nobody writes to the conversation inside."""
        async with self.connection.transaction():
            await self.connection.execute("select 1 from conversations where id = $1 for update", turn.conversation_id)
            yield

    async def somebody_waits(self) -> bool:
        rows = await self.connection.fetch("select 1 from pg_locks where not granted")
        return bool(rows)

    async def strike(self) -> None:
        """End every other connection."""
        await self.connection.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where datname = current_database() and pid <> pg_backend_pid()"
        )


@pytest.fixture
async def outage(pg_empty: str) -> Any:
    connection = await asyncpg.connect(pg_empty)
    yield Outage(connection)
    await connection.close()


LEASE = 1.5


async def test_the_store_goes_away_while_the_model_speaks(shared: Rooms, outage: Outage) -> None:
    """The turn ends done, with one input and one complete answer."""
    model = Scripted()
    app = await shared.open(model, worker_lease=LEASE)
    turn = await say(app, "one")
    asked = await model.asked()
    asked.say("half")
    await until_told(app, turn, Delta(0, "half"))
    model.reply = echo  # for whoever takes it over
    await outage.strike()
    asked.finish(" and half")
    await ends_done_once(app, turn)


@pytest.mark.parametrize("call", ["result", "call", "answer", "words"])
async def test_the_store_goes_away_while_something_is_written(shared: Rooms, outage: Outage, call: str) -> None:
    """In the middle of each kind of write every connection breaks: the turn ends done, once, and no tool runs twice."""
    model, gate = Scripted(), Gate()
    tools = Tools(work=gate)
    app = await shared.open(model, tools, worker_lease=LEASE)
    turn = await say(app, "one")
    asked = await model.asked()
    if call == "result":
        asked.call("work")
        asked.finish()
        await within(gate.entered.wait())
    async with outage.holding(turn):
        model.reply = echo
        match call:
            case "result":
                gate.opened.set()
            case "call":
                gate.opened.set()
                asked.call("work")
                asked.finish()
            case "answer":
                asked.finish("done")
            case "words":
                following = asyncio.create_task(told(app, turn))
                asked.say("some")
        await until(outage.somebody_waits)
        await outage.strike()
    if call == "words":
        asked.finish(" words")
        with suppress(Exception):
            await following
    await ends_done_once(app, turn)
    assert len(tools.invoked) <= 1


async def test_a_turn_that_loses_the_store_again_and_again_is_not_given_up(shared: Rooms, outage: Outage) -> None:
    """No process has died, so that it was cut off counts as no attempt, and its node takes it up again."""
    model = Scripted()
    app = await shared.open(model, worker_max_attempts=1, worker_lease=600.0)
    turn = await say(app, "one")
    for again in range(3):
        await cut_off(app, model, outage, turn, f"try {again}")
    (await model.asked()).finish("done")
    assert (await within(app.gateway.ended(turn))).status == "done"
    assert (await app.gateway.turn(ALICE, turn.id)).failure is None


async def cut_off(app: App, model: Scripted, outage: Outage, turn: Turn, said: str) -> None:
    """The database goes as a turn is about to end, and comes back."""
    asked = await model.asked()
    async with outage.holding(turn):
        asked.finish(said)
        await until(outage.somebody_waits)
        await outage.strike()
    await until(lambda: nothing_runs(app))
    async with asyncio.timeout(30):
        while True:
            try:
                return await app.worker.renew()
            except Unavailable:
                await asyncio.sleep(0.05)


async def test_an_outage_that_a_turn_brings_about_is_an_attempt_in_the_end(
    shared: Rooms, outage: Outage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it happens again and again it may be the turn that takes the database down."""
    monkeypatch.setattr(worker, "OUTAGES", 1)
    model = Scripted()
    app = await shared.open(model, worker_max_attempts=1, worker_lease=600.0)
    turn = await say(app, "one")
    for again in range(2):
        await cut_off(app, model, outage, turn, f"try {again}")
    failed = await ended(app, turn)
    assert (failed.status, failed.failure and failed.failure.code) == ("failed", "attempts_exhausted")
    assert len(model.requests) == 2


async def nothing_runs(app: App) -> bool:
    return app.worker.running == 0


async def ends_done_once(app: App, turn: Turn) -> None:
    async def over() -> bool:
        with suppress(Exception):  # the store may still be coming back
            return (await app.gateway.turn(ALICE, turn.id)).ended
        return False

    await until(over)
    done = await app.gateway.turn(ALICE, turn.id)
    assert (done.status, done.failure) == ("done", None)
    lines = await transcript(app)
    assert lines.count("user: one") == 1
    answers = [line for line in lines if line.startswith("assistant") and not line.endswith("(cut off)")]
    assert len(answers) == 1
    assert (await ask(app, "two")).status == "done"


async def test_a_submission_that_met_an_outage_is_sent_again_and_admitted_once(shared: Rooms, outage: Outage) -> None:
    """The caller does not know whether it was admitted; with its key it may simply send again."""
    app = await shared.open(worker_lease=LEASE)
    first = await ask(app, "one")
    async with outage.holding(first):
        sending = asyncio.create_task(app.gateway.submit(submission("two", key="k")))
        await until(outage.somebody_waits)
        await outage.strike()
    with suppress(Exception):
        await sending
    turn = await ended(app, await say_again(app, "two", key="k"))
    assert turn.status == "done"
    assert (await transcript(app)).count("user: two") == 1


async def say_again(app: App, text: str, key: str) -> Turn:
    async with asyncio.timeout(30):
        while True:
            try:
                return await app.gateway.submit(submission(text, key=key))
            except Unavailable:
                await asyncio.sleep(0.05)


# -- owners


NOBODY: Any = None  # who would answer, if the conversation were there
HISTORY = "0" * 64
RESENT = fingerprint.extend(HISTORY, [Message("assistant", (Text("you said: the secret"),))])
Verb = Callable[[Gateway, TurnId, Handle], Awaitable[Any]]


async def _followed(gateway: Gateway, turn: TurnId) -> None:
    async for _ in gateway.follow(BOB, turn):
        pass


async def _all(told: AsyncIterator[Any]) -> list[Any]:
    return [one async for one in told]


VERBS: dict[str, tuple[Any, list[Verb]]] = {
    "submit": (
        UnknownHandle,
        [lambda g, t, c: g.submit(submission("hi", c, who=BOB)), lambda g, t, c: g.submit(_upkeep(c))],
    ),
    "submit after": (UnknownTurn, [lambda g, t, c: g.submit(submission("hi", After(t), who=BOB))]),
    "turn": (UnknownTurn, [lambda g, t, c: g.turn(BOB, t)]),
    "chats": ([], [lambda g, t, c: g.chats(BOB)]),
    "move_chat": (UnknownHandle, [lambda g, t, c: g.move_chat(BOB, "own", "home", "", c)]),
    "submitted": (UnknownTurn, [lambda g, t, c: g.submitted(BOB, t)]),
    "outcome": (UnknownTurn, [lambda g, t, c: g.outcome(BOB, t)]),
    "follow": (UnknownTurn, [lambda g, t, c: _followed(g, t)]),
    "stop": (UnknownTurn, [lambda g, t, c: g.stop(BOB, t)]),
    "ephemeral": (UnknownHandle, [lambda g, t, c: g.ephemeral(submission("hi", c, who=BOB))]),
    "ephemeral after": (UnknownTurn, [lambda g, t, c: g.ephemeral(submission("hi", After(t), who=BOB))]),
    "cancel": (UnknownTurn, [lambda g, t, c: g.cancel(BOB, t)]),
    "output": (UnknownTurn, [lambda g, t, c: g.output(BOB, t)]),
    "delete_turn": (UnknownTurn, [lambda g, t, c: g.delete_turn(BOB, t)]),
    "watch": (UnknownHandle, [lambda g, t, c: anext(g.watch(BOB, c))]),
    "find": (UnknownHandle, [lambda g, t, c: g.find(BOB, c)]),
    "transcript": (UnknownHandle, [lambda g, t, c: g.transcript(BOB, c)]),
    "told_of": (UnknownHandle, [lambda g, t, c: g.told_of(BOB, c)]),
    "context": (UnknownHandle, [lambda g, t, c: g.context(BOB, c)]),
    "rename": (UnknownHandle, [lambda g, t, c: g.rename(BOB, c, "mine now")]),
    "bind": (
        UnknownHandle,
        [lambda g, t, c: g.bind(BOB, Slug("mine"), c), lambda g, t, c: g.bind(BOB, Slug("mine"), c, move=True)],
    ),
    "fork": (UnknownHandle, [lambda g, t, c: g.fork(BOB, c), lambda g, t, c: g.fork(BOB, c, 1)]),
    "add": (UnknownHandle, [lambda g, t, c: g.add(BOB, c, [message("hi")])]),
    "rewind": (UnknownHandle, [lambda g, t, c: g.rewind(BOB, c, 0)]),
    "compact": (UnknownHandle, [lambda g, t, c: g.compact(BOB, c, 1, "all of it")]),
    "expand": (UnknownHandle, [lambda g, t, c: g.expand(BOB, c, 1)]),
    "pin": (UnknownHandle, [lambda g, t, c: g.pin(BOB, c, 1)]),
    "hide": (UnknownHandle, [lambda g, t, c: g.hide(BOB, c, 1, 1)]),
    "remove": (UnknownHandle, [lambda g, t, c: g.remove(BOB, c, 1)]),
    "summarise": (UnknownHandle, [lambda g, t, c: g.summarise(BOB, c)]),
    "condensed": (UnknownHandle, [lambda g, t, c: g.condensed(submission("hi", c, who=BOB), NOBODY)]),
    "condensed after": (UnknownTurn, [lambda g, t, c: g.condensed(submission("hi", After(t), who=BOB), NOBODY)]),
    "measure": (UnknownHandle, [lambda g, t, c: g.measure(submission("hi", c, who=BOB), NOBODY)]),
    "repeated": (False, [lambda g, t, c: g.repeated(BOB, Dedup("key", "hash"))]),
    "admitted": (None, [lambda g, t, c: g.admitted(BOB, Dedup("key", "hash"))]),
    "change_settings": (UnknownHandle, [lambda g, t, c: g.change_settings(BOB, c, {"mine": "now"})]),
    "delete": (UnknownHandle, [lambda g, t, c: g.delete(BOB, c)]),
    "export": (UnknownHandle, [lambda g, t, c: anext(g.export(BOB, _id(c)))]),
    "export_all": ([], [lambda g, t, c: _all(g.export_all(BOB))]),
    "deleted": ([], [lambda g, t, c: g.deleted(BOB)]),
    "restore": (UnknownHandle, [lambda g, t, c: g.restore(BOB, _id(c))]),
    "purge": (UnknownHandle, [lambda g, t, c: g.purge(BOB, _id(c))]),
    "conversations": ([], [lambda g, t, c: g.conversations(BOB)]),
    "conversations after": (UnknownHandle, [lambda g, t, c: g.conversations(BOB, after=_id(c))]),
    "meant": (
        Meant("none", []),
        [lambda g, t, c: g.meant(BOB, _id(c)), lambda g, t, c: g.meant(BOB, "work")],
    ),
    "search": ([], [lambda g, t, c: g.search(BOB, "secret")]),
    "undelivered": ([], [lambda g, t, c: g.undelivered(BOB)]),
    "resend": (UnknownDelivery, [lambda g, t, c: g.resend(BOB, 1)]),
    "told_by_id": ([], [lambda g, t, c: _told_by_id(g, t)]),
    "recall": (None, [lambda g, t, c: g.recall(BOB, RESENT)]),
    "unbind": (False, [lambda g, t, c: g.unbind(BOB, WORK)]),
}
"""What another owner gets to see for each verb: an error, or nothing."""

WITHOUT_OWNER = {
    "drain": "speaks of the process",
    "check": "speaks of the process",
    "attending": "takes a turn that was read in its owner's name",
    "ended": "takes a turn that was read in its owner's name",
    "told": "takes a turn that was read in its owner's name",
    "answered": "takes a turn that was read in its owner's name",
    "answer": "takes a turn that was read in its owner's name",
    "slug": "takes a turn that was read in its owner's name",
    "follow_on": "takes a turn that was read in its owner's name",
    "hear": "takes a turn that was read in its owner's name",
    "attend": "takes a turn that was read in its owner's name",
    "brought": "takes a turn that was read in its owner's name",
    "taken_back": "takes a turn that was read in its owner's name",
    "receipt": "takes a turn that was read in its owner's name",
    "last_ended": "takes a conversation that was read in its owner's name",
    "under_way": "takes a conversation that was read in its owner's name",
    "position": "takes a conversation that was read in its owner's name",
    "summary_in_force": "takes a conversation that was read in its owner's name",
    "described": "takes conversations that were read in their owner's name",
    "window": "speaks of a model",
    "usage": "takes a conversation that was read in its owner's name",
    "count_messages": "takes a conversation that was read in its owner's name",
    "names": "takes a conversation that was read in its owner's name",
    "create": "makes something new",
    "import_one": "makes something new",
    "scrub": "is for administrators, which the door checks",
    "pair": "is for administrators, which the door checks",
    "paired": "is for administrators, which the door checks",
    "unpair": "is for administrators, which the door checks",
    "receive": "takes a submission, which names its owner",
    "create_key": "is for administrators, which the door checks",
    "keys": "is for administrators, which the door checks",
    "revoke_key": "is for administrators, which the door checks",
}


async def _told_by_id(gateway: Gateway, turn_id: TurnId) -> list[Any]:
    ids = [entry.id for entry in await gateway.output(ALICE, turn_id)]
    assert await gateway.told_by_id(ALICE, ids)
    return await gateway.told_by_id(BOB, ids)


def _upkeep(to: Handle) -> Any:
    given = submission("hi", to, who=BOB)
    return type(given)(principal=BOB, target=to, input=given.input, kind="upkeep")


def _id(handle: Handle) -> ConversationId:
    assert isinstance(handle, ById)
    return handle.id


def test_every_verb_of_the_gateway_has_a_row_here() -> None:
    """A new verb without a row fails, so nobody forgets to ask whose conversation it is."""
    verbs = {name for name, _ in inspect.getmembers(Gateway, inspect.isfunction) if not name.startswith("_")}
    assert verbs == {name.split(" ")[0] for name in VERBS} | set(WITHOUT_OWNER)


async def test_what_belongs_to_another_is_as_unknown_as_what_never_was(rooms: Rooms) -> None:
    """For every verb: another's turn or conversation gives the very error of a made-up id, and nothing changes."""
    app = await rooms.open()
    turn = await ask(app, "the secret", history=HISTORY)
    before = await app.gateway.find(ALICE, WORK)
    assert await app.gateway.recall(ALICE, RESENT) == turn.id
    no_turn, nowhere = new_turn_id(), new_conversation_id()
    for name, (expected, verbs) in VERBS.items():
        for verb in verbs:
            if not isinstance(expected, type):
                assert await within(verb(app.gateway, turn.id, ById(before.id))) == expected, name
                continue
            with pytest.raises(expected) as theirs:
                await within(verb(app.gateway, turn.id, ById(before.id)))
            with pytest.raises(expected) as nobodys:
                await within(verb(app.gateway, no_turn, ById(nowhere)))
            foreign = theirs.value.message.replace(turn.id, no_turn).replace(before.id, nowhere)
            assert foreign == nobodys.value.message, name
    assert await app.gateway.find(ALICE, WORK) == before
    assert await app.gateway.conversations(BOB) == []
    assert await transcript(app) == ["user: the secret", "assistant: you said: the secret"]


async def test_the_same_name_is_another_conversation_for_another_owner(rooms: Rooms) -> None:
    """Names are scoped to their owner: two who choose the same one never meet."""
    app = await rooms.open()
    mine, theirs = await ask(app, "mine"), await ask(app, "theirs", who=BOB)
    assert mine.conversation_id != theirs.conversation_id
    assert await transcript(app, who=BOB) == ["user: theirs", "assistant: you said: theirs"]


async def test_a_tool_is_told_whose_call_it_carries_out(rooms: Rooms) -> None:
    """The invocation names the owner of the turn."""
    told_of: list[Invocation] = []

    async def work(invocation: Invocation) -> str:
        told_of.append(invocation)
        return "ok"

    model = Scripted(in_turn(calls(("c1", "work", "{}")), words("1"), calls(("c1", "work", "{}")), words("2")))
    app = await rooms.open(model, Tools(work=work))
    await ask(app, "mine")
    await ask(app, "theirs", who=BOB)
    assert [invocation.principal for invocation in told_of] == [ALICE, BOB]
    assert shown((await app.gateway.context(BOB, WORK)).entries) == await context(app, who=BOB)


# -- between a request and its turn


async def test_a_client_that_leaves_while_its_turn_is_admitted_stops_nothing(rooms: Rooms) -> None:
    """The turn runs all the same, at once: nobody has to find it by its lease."""
    app = await rooms.open(worker_lease=600.0)
    given = submission("hello", key="k", hash="h")
    leaving = asyncio.create_task(app.gateway.submit(given))
    await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.wait([leaving])
    assert leaving.cancelled()
    turn = await ended(app, await within(app.gateway.submit(given)))
    assert (turn.id, turn.status) == (given.turn_id, "done")
    assert await transcript(app) == ["user: hello", "assistant: you said: hello"]


async def test_a_wish_to_stop_that_comes_before_its_turn_is_kept(rooms: Rooms) -> None:
    """The answer to a claim may come after the wish."""
    app = await rooms.open(Scripted())
    given = submission("hello")
    app.worker.stop(given.turn_id)
    turn = await ended(app, await within(app.gateway.submit(given)))
    assert turn.status == "cancelled"
