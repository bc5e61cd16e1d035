"""Following a turn: leave and come back anywhere, late or slow, here or on another node, and see the same events.

The promises P15 to P17 below HTTP: a disconnect cancels nothing; from any event on there is no gap and no repeat, also
across restarts; everybody sees the same order, and a slow reader slows nobody.
"""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress

import pytest

from conftest import ALICE
from engine.rooms import WORK, Rooms, ask, ended, message, say, told, transcript, until_told
from engine.scripted import USAGE, Gate, Scripted, Tools, constant, one_call_each, words
from engine.waiting import until, within
from legato.app import App
from legato.domain.conversations import Conversation
from legato.domain.entries import ToolResult
from legato.domain.events import Answered, AnyEvent, Closed, Delta, Opened
from legato.domain.handles import Slug
from legato.domain.ids import TurnId
from legato.domain.turns import Turn
from legato.engine import journal, live
from legato.engine.protocols import CallChunk, CallOpened, Finished, ModelEvent, ModelRequest, ReasoningChunk, TextChunk
from legato.errors import Unavailable, UnknownTurn
from legato.store import search, turns
from legato.store.database import Hint


def rich(request: ModelRequest) -> list[ModelEvent]:
    """An answer with everything in it: reasoning, words, two calls and their results, and more words."""
    if isinstance(request.items[-1], ToolResult):
        return words(*["this", "took", "two", "tools", "and", "some", "thought"])
    return [
        ReasoningChunk("let me "),
        ReasoningChunk("think"),
        TextChunk("I ask "),
        TextChunk("around."),
        CallOpened("c1", "work"),
        CallChunk("c1", "{"),
        CallChunk("c1", "}"),
        CallOpened("c2", "work"),
        CallChunk("c2", "{}"),
        Finished(USAGE),
    ]


TOOLS = {"work": constant("found")}


async def some(app: App, turn: Turn, count: int, n: int = 0) -> list[AnyEvent]:
    """Follow for so many events, then hang up."""
    seen: list[AnyEvent] = []
    if count:
        async with aclosing(app.gateway.follow(turn.principal, turn.id, n)) as events:
            async for place, event in events:
                assert place == n + len(seen)
                seen.append(event)
                if len(seen) == count:
                    break
    return seen


def texts(events: list[AnyEvent]) -> dict[int, str]:
    """What the items of a turn said, as put together by a follower."""
    said: dict[int, str] = {}
    for event in events:
        match event:
            case Opened(index=index):
                said[index] = ""
            case Delta(index=index, text=text):
                said[index] += text
            case Answered(index=index, output=output):
                said[index] = output
            case _:
                pass
    return said


# -- leaving


@pytest.mark.parametrize("keep", [0, 5, live.KEEP])
async def test_hanging_up_at_any_event_changes_nothing(rooms: Rooms, keep: int) -> None:
    """At every event index a follower leaves: the turn ends as the uncut one does, and the rest can be had later."""
    app = await rooms.open(Scripted(rich), Tools(**TOOLS), keep_events=keep)
    uncut = await say(app, "go", Slug("uncut"))
    whole = await told(app, uncut)
    assert len(whole) > 20
    answer, lines = await app.gateway.answer(uncut), await transcript(app, Slug("uncut"))
    for index in range(len(whole) + 1):
        turn = await say(app, "go", Slug(f"cut-{index}"))
        before = await within(some(app, turn, index))
        assert len(before) == index
        assert (await ended(app, turn)).status == "done"
        assert await app.gateway.answer(turn) == answer
        assert sorted(await transcript(app, Slug(f"cut-{index}"))) == sorted(lines)  # tools may answer in any order
        events = await told(app, turn)
        assert before + await told(app, turn, index) == events
        assert sorted(texts(events).values()) == sorted(texts(whole).values())


async def test_what_a_follower_puts_together_is_what_the_log_says(rooms: Rooms) -> None:
    """The items of the stream, opened, grown and closed, are the entries of the turn."""
    app = await rooms.open(Scripted(rich), Tools(**TOOLS))
    turn = await ask(app, "go")
    events = await told(app, turn)
    ids = {event.index: event.id for event in events if isinstance(event, Opened | Answered)}
    entries = {entry.id: entry.body for entry in await app.gateway.output(ALICE, turn.id)}
    assert sorted(ids) == list(range(len(ids)))
    for index, said in texts(events).items():
        body = entries[ids[index]]
        assert said in (getattr(body, name, None) for name in ("text", "arguments", "output"))
    assert {e.index for e in events if isinstance(e, Closed)} == {e.index for e in events if isinstance(e, Opened)}


# -- coming back


class Readers:
    """Followers that hang up and come back by lot, each from its own place."""

    def __init__(self, app: App, turn: Turn, lot: random.Random) -> None:
        self.app, self.turn, self.lot = app, turn, lot
        self.back = asyncio.Event()
        self.back.set()
        self.seen: list[tuple[int, list[AnyEvent]]] = []

    async def read(self, start: int) -> None:
        seen: list[AnyEvent] = []
        self.seen.append((start, seen))
        for _ in range(self.lot.randint(0, 30)):  # late to join
            await asyncio.sleep(0)
        while True:
            await self.back.wait()
            n, patience = start + len(seen), self.lot.randint(1, 9)
            try:
                async with aclosing(self.app.gateway.follow(ALICE, self.turn.id, n)) as events:
                    async for place, event in events:
                        assert place == start + len(seen)
                        seen.append(event)
                        patience -= 1
                        if not patience:
                            break
                    else:
                        return
            except Unavailable:  # sent away by a restart
                await asyncio.sleep(0)

    def check(self, log: list[AnyEvent]) -> None:
        for start, seen in self.seen:
            assert seen == log[start:]


@pytest.mark.parametrize("seed", range(6))
async def test_any_schedule_of_cutting_and_coming_back_sees_the_log(
    rooms: Rooms, seed: int, request: pytest.FixtureRequest
) -> None:
    """One to twenty readers leave and return by lot, each from its own place: no gap, no repeat, the whole log."""
    lot = random.Random(seed)
    app = await rooms.open(Scripted(), Tools(), keep_events=lot.choice([0, 3, 16, live.KEEP]))
    for round_ in range(10 if request.config.getoption("--long") else 2):
        model = rooms.model
        turn = await say(app, "go", Slug(f"round-{round_}"))
        readers = Readers(app, turn, lot)
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            for _ in range(lot.randint(1, 20)):
                group.create_task(readers.read(lot.choice([0, 0, 1, 7, 40, 1000])))
            asked = await model.asked()
            for i in range(60):
                asked.say(f"{i} ")
                for _ in range(lot.randint(0, 4)):
                    await asyncio.sleep(0)
            asked.finish()
        log = await told(app, turn)
        assert texts(log) == {0: "".join(f"{i} " for i in range(60))}
        readers.check(log)


@pytest.mark.parametrize("seed", range(3))
async def test_readers_come_back_to_another_process_and_go_on_where_they_were(rooms: Rooms, seed: int) -> None:
    """The gateway restarts in mid answer, twice: numbers go on, partial items are closed, nobody misses anything."""
    lot = random.Random(seed)
    model = Scripted()
    app = await rooms.open(model, keep_events=lot.choice([0, 3, live.KEEP]))
    turn = await say(app, "go")
    readers = Readers(app, turn, lot)
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        for _ in range(lot.randint(1, 20)):
            group.create_task(readers.read(lot.choice([0, 0, 3, 12])))
        for life in range(3):
            asked = await model.asked()
            for i in range(15):
                asked.say(f"{life}.{i} ")
                if lot.random() < 0.3:
                    await until_told(app, turn, Delta(life, f"{life}.{i} "))
            if life < 2:
                await until_told(app, turn, Delta(life, f"{life}.14 "))
                readers.back.clear()
                app.gateway.drain()
                await app.worker.drain(0)
                app = readers.app = await rooms.restart(keep_events=lot.choice([0, 3, live.KEEP]))
                readers.back.set()
        asked.finish("done")
    log = await told(app, turn)
    readers.check(log)
    assert [event for event in log if isinstance(event, Closed)] == [Closed(0, True), Closed(1, True), Closed(2)]
    assert (await ended(app, turn)).status == "done"
    assert await app.gateway.answer(turn) == texts(log)[2]


async def test_a_finished_turn_is_followed_from_any_event_after_a_restart(rooms: Rooms) -> None:
    """The stream of a turn that ended in another process is the same from every place on, and ends."""
    app = await rooms.open(Scripted(rich), Tools(**TOOLS))
    turn = await ask(app, "go")
    log = await told(app, turn)
    app = await rooms.restart()
    for n in range(len(log) + 3):
        assert await told(app, turn, n) == log[n:]


async def test_the_stream_of_a_turn_is_made_again_when_its_events_were_pruned(rooms: Rooms) -> None:
    """Long after the end the events are forgotten; a follower still gets every item, from the entries."""
    app = await rooms.open(Scripted(rich), Tools(**TOOLS))
    turn = await ask(app, "go")
    log = await told(app, turn)
    await search.index_some(app.db)
    assert await app.db.write(turns.prune_events, -1.0) == 1
    again = await told(app, turn)
    assert texts(again) == texts(log)


# -- many readers


@pytest.mark.parametrize("seed", range(3))
async def test_a_stuck_reader_slows_nobody(rooms: Rooms, seed: int) -> None:
    """Of twenty readers at random places one never reads on: the others and the turn finish, and it can go on later."""
    lot = random.Random(seed)
    model = Scripted()
    app = await rooms.open(model, keep_events=4)
    turn = await say(app, "go")
    asked = await model.asked()
    asked.say("first ")
    async with aclosing(app.gateway.follow(ALICE, turn.id)) as stuck:
        first = await within(anext(stuck))
        starts = [lot.randint(0, 60) for _ in range(19)]
        reading = [asyncio.create_task(told(app, turn, start)) for start in starts]
        for i in range(200):
            asked.say(f"{i} ")
            await asyncio.sleep(0)
        asked.finish("last")
        assert (await ended(app, turn)).status == "done"
        log = await told(app, turn)
        for start, reader in zip(starts, reading, strict=True):
            assert await within(reader) == log[start:]
        rest = [event async for _, event in stuck]
    assert [first[1], *rest] == log


async def test_late_joiners_see_the_same_order(rooms: Rooms) -> None:
    """One that joins at each chunk of a long answer, and one after its end, see what the first one saw."""
    model = Scripted()
    app = await rooms.open(model, keep_events=6)
    turn = await say(app, "go")
    asked = await model.asked()
    reading = [asyncio.create_task(told(app, turn))]
    for i in range(30):
        asked.say(f"{i} ")
        await until_told(app, turn, Delta(0, f"{i} "))
        reading.append(asyncio.create_task(told(app, turn)))
    asked.finish()
    first, *others = [await within(reader) for reader in reading]
    assert len(first) == 32
    assert all(seen == first for seen in others)
    assert await told(app, turn) == first


async def test_a_follower_may_come_before_the_turn_begins(rooms: Rooms) -> None:
    """Whoever follows a turn that still waits sees it from its first event on."""
    model = Scripted(one_call_each)
    gate = Gate()
    app = await rooms.open(model, Tools(work=gate))
    await say(app, "one")
    await within(gate.entered.wait())
    waiting = await say(app, "two")
    reading = asyncio.create_task(told(app, waiting))
    gate.opened.set()
    seen = await within(reading)
    assert seen == await told(app, waiting)
    assert len(seen) > 3


async def test_hanging_up_leaves_nothing_behind(rooms: Rooms) -> None:
    """A thousand that come and go are forgotten."""
    model = Scripted()
    app = await rooms.open(model)
    turn = await say(app, "go")
    asked = await model.asked()
    asked.say("one")
    await until_told(app, turn, Delta(0, "one"))
    for _ in range(50):
        await asyncio.gather(*(some(app, turn, 2) for _ in range(20)))
    asked.finish()
    await ended(app, turn)
    followed = app.gateway._live
    assert (followed._bells, followed._ends, followed._feeds) == ({}, {}, {})


# -- a whole conversation


async def test_who_watches_a_conversation_is_told_of_every_turn(rooms: Rooms, monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns and upkeep, each sent the moment the one before was seen: none is missed, and nobody polls."""
    monkeypatch.setattr(live, "POLL", 600.0)
    app = await rooms.open()
    turn = await ask(app, "first")
    seen: asyncio.Queue[tuple[TurnId, list[AnyEvent]]] = asyncio.Queue()

    async def watch() -> None:
        async with aclosing(app.gateway.watch(ALICE, WORK)) as watched:
            async for news in watched:
                assert not isinstance(news, Conversation)
                seen.put_nowait((news[0].id, [event async for _, events in news[1] for event in events]))

    watching = asyncio.create_task(watch())
    for i in range(100):
        watched_id, events = await within(seen.get(), 10)
        before = turn
        for _ in range(i % 20):
            await asyncio.sleep(0)  # the watcher is at another point of looking for more each time
        turn = await app.gateway.add(ALICE, WORK, [message("posted")]) if i % 5 == 4 else await say(app, f"{i}")
        assert (watched_id, events) == (before.id, await told(app, before))
    watching.cancel()
    with suppress(asyncio.CancelledError):
        await watching


# -- on another node


async def two_nodes(shared: Rooms, model: Scripted, tools: Tools | None = None) -> tuple[App, App]:
    """Two processes that hear each other: the first runs turns, the second has no room for any."""
    here = await shared.open(model, tools)
    there = await shared.open(model, tools, worker_concurrency=0)
    heard: set[str] = set()
    for app in (here, there):
        app.db.on_hint(lambda hint: heard.add(hint.id))

    async def both_hear() -> bool:
        here.db.tell(Hint("events", "from here"))
        there.db.tell(Hint("events", "from there"))
        return heard >= {"from here", "from there"}

    await until(both_hear)
    return here, there


async def test_a_follower_on_another_node_is_told_live(shared: Rooms, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each chunk arrives over there before the next one is said here, and without polling."""
    monkeypatch.setattr(live, "POLL", 600.0)
    model = Scripted()
    here, there = await two_nodes(shared, model)
    turn = await say(here, "go")
    asked = await model.asked()
    async with aclosing(there.gateway.follow(ALICE, turn.id)) as events:
        seen: list[AnyEvent] = []
        for i in range(10):
            asked.say(f"{i} ")
            while Delta(0, f"{i} ") not in seen:
                seen.append((await within(anext(events)))[1])
        asked.finish()
        seen += [event async for _, event in events]
    assert seen == await told(here, turn) == await told(there, turn)
    assert (await within(there.gateway.ended(turn))).status == "done"


@pytest.mark.parametrize("when", ["before it begins", "before it is taken over"])
async def test_who_follows_a_turn_elsewhere_before_it_runs_there_is_told_live(
    shared: Rooms, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """Whoever runs it in the end has heard of the follower by then: its events wait for nothing."""
    monkeypatch.setattr(live, "POLL", 600.0)
    monkeypatch.setattr(journal, "QUIET", 600.0)
    model = Scripted()
    here, there = await two_nodes(shared, model)
    before = await say(here, "one")
    asked = await model.asked()
    turn = await say(here, "two") if when == "before it begins" else before
    heard = asyncio.Event()
    third = here if turn is not before else await shared.open(model)
    third.db.on_hint(lambda hint: heard.set() if hint == Hint("follow", turn.id) else None)
    following = asyncio.create_task(until_told(there, turn, Delta(0, "here")))
    await within(heard.wait())
    if turn is before:
        await shared.crash(here)
        third.worker.offer(turn.conversation_id)
    else:
        asked.finish("1")
    (await model.asked()).say("here")
    await within(following)


async def test_a_new_title_is_heard_on_another_node(shared: Rooms, monkeypatch: pytest.MonkeyPatch) -> None:
    """By whoever watches the conversation, with the title that it had when it was read, and without polling."""
    monkeypatch.setattr(live, "POLL", 600.0)
    here, there = await two_nodes(shared, Scripted())
    made = (await here.gateway.create(ALICE, {}, WORK)).conversation
    await here.gateway.rename(ALICE, WORK, "before")
    async with aclosing(there.gateway.watch(ALICE, WORK, title=made.title)) as news:
        for title in ("before", "one", "two"):
            if title != "before":
                await here.gateway.rename(ALICE, WORK, title)
            renamed = await within(anext(news))
            assert isinstance(renamed, Conversation)
            assert renamed.title == title


async def test_the_end_is_heard_on_another_node(shared: Rooms, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits over there is woken when the turn ends here."""
    monkeypatch.setattr(live, "POLL", 600.0)
    model = Scripted()
    here, there = await two_nodes(shared, model)
    turn = await say(here, "go")
    asked = await model.asked()
    waiting = asyncio.create_task(there.gateway.ended(turn))
    await asyncio.sleep(0)
    asked.finish("done")
    assert (await within(waiting)).status == "done"


async def test_a_turn_is_cancelled_from_another_node(shared: Rooms, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wish travels to the node that runs it, the end travels back."""
    monkeypatch.setattr(live, "POLL", 600.0)
    model = Scripted()
    here, there = await two_nodes(shared, model)
    turn = await say(here, "go")
    asked = await model.asked()
    asked.say("half")
    await until_told(here, turn, Delta(0, "half"))
    assert (await within(there.gateway.cancel(ALICE, turn.id))).status == "cancelled"
    await within(asked.left.wait())
    assert await transcript(there) == ["user: go", "assistant: half (cut off)"]


async def test_a_turn_is_interrupted_from_another_node(shared: Rooms) -> None:
    """An interrupt that is admitted over there stops the turn here and is answered."""
    model = Scripted()
    here, there = await two_nodes(shared, model)
    turn = await say(here, "go")
    asked = await model.asked()
    urgent = await say(there, "stop!", busy="interrupt")
    await within(asked.left.wait())
    (await model.asked()).finish("stopped")
    assert (await ended(there, turn)).status == "cancelled"
    assert (await ended(there, urgent)).status == "done"


async def test_an_input_admitted_where_there_is_no_room_runs_where_there_is(shared: Rooms) -> None:
    """A node without room admits; another one runs it, and its follower is where it was admitted."""
    here, there = await two_nodes(shared, Scripted(rich), Tools(**TOOLS))
    turn = await say(there, "go")
    events = await told(there, turn)
    assert events == await told(here, turn)
    assert (await ended(there, turn)).status == "done"


async def test_a_steered_input_from_another_node_joins_and_its_follower_sees_the_host(shared: Rooms) -> None:
    """Joining works across nodes; both ids give the same events there."""
    model, gate = Scripted(one_call_each), Gate()
    here, there = await two_nodes(shared, model, Tools(work=gate))
    host = await say(here, "go")
    await within(gate.entered.wait())
    steered = await say(there, "aside", busy="steer")
    following = asyncio.create_task(told(there, steered))
    gate.opened.set()
    assert (await ended(there, steered)).id == host.id
    assert await within(following) == await told(here, host)


async def test_who_reads_on_after_a_purge_is_told_that_the_turn_is_gone(rooms: Rooms) -> None:
    """A slow reader, or one on another node, comes too late for the end: an answer, not a fault of the gateway."""
    gate = Gate()
    app = await rooms.open(Scripted(one_call_each), Tools(work=gate), keep_events=0)
    other = await rooms.open() if rooms.url else app
    turn = await say(app, "hello")
    await within(gate.entered.wait())
    async with aclosing(other.gateway.follow_on(turn)) as events:
        await within(anext(events))
        await app.gateway.delete(ALICE, WORK)
        await app.gateway.purge(ALICE, turn.conversation_id)
        with pytest.raises(UnknownTurn):
            await within(_all(events))
    with pytest.raises(UnknownTurn):
        await within(other.gateway.ended(turn))


async def _all(events: AsyncIterator[tuple[int, list[AnyEvent]]]) -> list[tuple[int, list[AnyEvent]]]:
    return [together async for together in events]
