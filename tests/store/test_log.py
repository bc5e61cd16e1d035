"""The log: entries are appended without a gap, kept for ever, and read as a transcript or as a context."""

import asyncio
from itertools import count
from typing import Any

import pytest
from acts import (
    DONE,
    N1,
    N2,
    admit,
    context,
    conversation,
    end,
    enter,
    expire,
    heir,
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
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from msgspec import structs

from conftest import ALICE
from legato.domain.entries import (
    AnyBody,
    Compaction,
    ControlBody,
    Expand,
    File,
    Hide,
    Image,
    Message,
    Note,
    Pin,
    Reasoning,
    Remove,
    Rewind,
    Setup,
    Text,
    Tool,
    ToolCall,
    ToolResult,
    View,
    draft,
    kind_of,
    span_of,
)
from legato.domain.events import Answered, AnyEvent, Closed, Delta, Joined, Opened
from legato.domain.handles import ById, Slug
from legato.domain.ids import ConversationId, TurnId
from legato.domain.turns import After
from legato.domain.window import Control
from legato.domain.window import context as window_context
from legato.domain.window import transcript as window_transcript
from legato.errors import Defect
from legato.store import admission, batches, directory, log, search, turns
from legato.store.database import Database, Tx

WORK = Slug("work")


# -- appending


async def test_entries_are_numbered_without_a_gap(db: Database) -> None:
    """Each append gets the positions right after the last one, and is told which."""
    lease = await start(db, WORK, "one")
    places = [
        await db.write(turns.append, lease, [said(str(i), "assistant") for i in range(size)]) for size in (1, 3, 0, 2)
    ]
    assert places == [(2, 2), (3, 5), (6, 5), (6, 7)]
    entries = await db.read(log.read_transcript, lease.turn.conversation_id)
    assert [entry.seq for entry in entries] == [1, 2, 3, 4, 5, 6, 7]
    assert (await conversation(db, lease.turn.conversation_id)).head_seq == 7


async def test_an_append_that_fails_takes_no_position(db: Database) -> None:
    """The head moves with the entries or not at all."""
    lease = await start(db, WORK, "one")
    with pytest.raises(Defect):
        await db.write(turns.append, lease, [said("two", "assistant"), draft(Pin(99))])
    assert await db.write(turns.append, lease, [said("two", "assistant")]) == (2, 2)
    assert await transcript(db, lease.turn.conversation_id) == ["one", "two"]


@pytest.mark.parametrize("bad", [1, 7, 19])
async def test_one_that_fails_among_many_at_once_fails_alone(db: Database, bad: int) -> None:
    leases = [await start(db, Slug(f"talk-{n}"), "one") for n in range(20)]
    drafts = [[said("two", "assistant"), draft(Pin(99) if n == bad else Note("three"))] for n in range(20)]
    places = await asyncio.gather(
        *(db.write(turns.append, lease, some) for lease, some in zip(leases, drafts, strict=True)),
        return_exceptions=True,
    )
    assert [place for place in places if place != (2, 3)] == [places[bad]]
    assert isinstance(places[bad], Defect)
    for n, lease in enumerate(leases):
        there = await db.read(log.read_transcript, lease.turn.conversation_id)
        assert [entry.seq for entry in there] == ([1] if n == bad else [1, 2, 3])


async def test_the_schema_refuses_a_second_entry_at_a_position(db: Database) -> None:
    """Whoever writes it, and whatever it took the head for."""
    await talk(db, WORK, "one")
    with pytest.raises(Defect):
        await script(
            db,
            "insert into entries (conversation_id, seq, id, turn_id, kind, body, created_at) "
            "select conversation_id, seq, 'msg_2', turn_id, kind, body, 0 from entries where seq = 2",
        )
    assert await rows(db, "select count(*) from entries") == [(2,)]


BODIES: list[AnyBody] = [
    Message("user", (Text("naïve 東京都 🎼 \x00 'quoted' \"twice\" \\ :name ? $1 {now}"),), sender="ann"),
    Message("user", (Image(url="https://example.org/a.png", detail="low"), File(blob="ab", name="b.txt"))),
    Message("assistant", (Text("cut"),), incomplete=True),
    Message("developer", ()),
    Reasoning("because", encrypted="…", incomplete=True),
    ToolCall("call_1", "clock", '{"zone": "UTC"}', client=True),
    ToolResult("call_1", "noon", is_error=True, unknown=True),
    Note("only for people", reason="summary failed"),
    Setup("agent", "model", "Be brief.", (Tool("clock", "Tells the time.", {"type": "object"}, repeatable=True),)),
    Compaction(1, "in short", by="ann", why="by hand"),
    Expand(10),
    Pin(2),
    Hide(2, 3, why="noise"),
    Remove(3),
    Rewind(14),
]


async def test_every_kind_of_body_comes_back_as_it_was_written(db: Database) -> None:
    """Letters of any script, empty parts and SQL's own signs included."""
    lease = await start(db, WORK, "one")
    drafts = [draft(body) for body in BODIES]
    await db.write(turns.append, lease, drafts)
    entries = await db.read(log.entries_of_turn, await turn(db, lease.turn.id))
    assert [(entry.id, entry.body) for entry in entries[1:]] == [(d.id, d.body) for d in drafts]
    assert {kind_of(body) for body in BODIES} == {kind for (kind,) in await rows(db, "select kind from entries")}


# -- reading


async def test_a_turns_entries_are_its_own(db: Database) -> None:
    """Input and output of one turn, without those of the inputs that joined it or of the turn behind it."""
    lease = await start(db, WORK, "one")
    also = (await admit(db, WORK, "also", busy="steer")).turn
    waiting = (await admit(db, WORK, "two")).turn
    assert await db.read(log.entries_of_turn, waiting) == []
    await db.write(turns.absorb, lease)
    await end(db, lease, DONE, "both")
    await end(db, await db.write(turns.claim, waiting.conversation_id, N1), DONE, "TWO")

    async def seqs(turn_id: TurnId) -> list[int]:
        return [entry.seq for entry in await db.read(log.entries_of_turn, await turn(db, turn_id))]

    assert [await seqs(turn_id) for turn_id in (lease.turn.id, also.id, waiting.id)] == [[1, 3], [2], [4, 5]]


async def test_a_context_names_the_state_of_the_log_it_shows(db: Database) -> None:
    """Setup in force, summary in force, the entries verbatim, the head, and the newest control."""
    setup, newer = Setup("agent", "model", "Be brief."), Setup("agent", "model", "Be kind.")
    await tend(db, WORK, setup)
    done = await talk(db, WORK, "one")
    view = await db.read(log.read_context, done.conversation_id)
    assert (view.setup, view.summary, view.head, view.control) == (setup, None, 3, 0)
    await tend(db, WORK, Compaction(2, "in short"))
    await tend(db, WORK, newer)
    view = await db.read(log.read_context, done.conversation_id)
    assert (view.setup, view.summary, view.head, view.control) == (newer, Compaction(2, "in short"), 5, 4)
    assert [entry.seq for entry in view.entries] == [3, 4, 5]


async def test_a_fork_from_before_a_compaction_sees_the_originals(db: Database) -> None:
    """One from after it sees the summary; the transcript is whole on every side."""
    one = await talk(db, WORK, "one")
    two = await talk(db, WORK, "two")
    await tend(db, WORK, Compaction(3, "in short"))
    three = await talk(db, WORK, "three")
    await talk(db, WORK, "four")
    before = await talk(db, After(one.id), "other")
    after = await talk(db, After(three.id), "else")
    assert await context(db, before.conversation_id) == ["one", "ONE", "other", "OTHER"]
    assert await context(db, after.conversation_id) == ["TWO", "three", "THREE", "else", "ELSE"]
    assert (await db.read(log.read_context, before.conversation_id)).summary is None
    assert (await db.read(log.read_context, after.conversation_id)).summary == Compaction(3, "in short")
    whole = ["one", "ONE", "two", "TWO", "three", "THREE"]
    assert await transcript(db, after.conversation_id) == [*whole, "else", "ELSE"]
    assert await transcript(db, two.conversation_id) == [*whole, "four", "FOUR"]


# -- any log, forked anywhere: it reads as if every fork had been copied


Roll = tuple[str, int, int]
KINDS = ["said", "said", "fork", "fork", "setup", "compaction", "pin", "hide", "remove"]


def scripts(kinds: list[str]) -> st.SearchStrategy[list[Roll]]:
    die = st.integers(0, 2**10)
    return st.lists(st.tuples(st.sampled_from(kinds), die, die), min_size=8, max_size=32)


rolls = scripts(KINDS) | scripts([*KINDS, "expand", "rewind"])
"""What is written; in half of it nothing is ever undone."""
ROUND_THE_BACK: list[Roll] = [("said", 0, 0)] * 4 + [("fork", 0, 3), ("said", 1, 1), ("fork", 1, 1), ("said", 2, 2)]
"""A fork at 3, and a fork of it at 1: before the place where the fork itself began."""
UNDONE: list[Roll] = [("said", 0, 0), ("setup", 0, 1), ("compaction", 0, 0), ("setup", 0, 2), ("compaction", 0, 2)]
REWOUND: list[Roll] = [*UNDONE, ("rewind", 0, 3)]
"""Back to between two setups and two compactions: the older ones are in force again."""
EXPANDED: list[Roll] = [*UNDONE, ("expand", 0, 7)]
"""The newer of two compactions is voided: the older one is in force again."""


def rolled(kind: str, die: int, head: int, known: list[AnyBody]) -> AnyBody | None:
    """A body for position `head + 1` that points somewhere into the log; half of the references are to controls."""
    controls = [seq for seq, body in enumerate(known, 1) if not isinstance(body, Message)]
    at = controls[die // 2 % len(controls)] if controls and die % 2 else (1 + die // 2 % head if head else 0)
    if kind == "rewind":
        return Rewind(die % (head + 1))
    if kind == "setup":
        return Setup("agent", "model", f"Be {die}.")
    if head == 0 or kind == "said":
        return Message("user", (Text(f"said {die}"),))
    match kind:
        case "compaction":
            return Compaction(at, f"in short {die}")
        case "expand":
            return Expand(at)
        case "pin":
            return Pin(at, with_summary=die % 3 == 0)
        case "remove":
            return Remove(at)
        case _:
            return Hide(max(1, at - die % 4), at)


def seen_of(bodies: list[AnyBody]) -> tuple[list[int], Any]:
    """Transcript and context by the pure window, over a plain list that holds everything."""
    known = []
    for seq, body in enumerate(bodies, 1):
        if isinstance(body, Setup | ControlBody):
            first, ref = span_of(body)
            known.append(Control(seq, kind_of(body), ref or 0, first or 0))
    return _positions(window_transcript(len(bodies), known)), window_context(len(bodies), known)


def _positions(spans: Any) -> list[int]:
    return [seq for first, last in spans for seq in range(first, last + 1)]


FORKS = count()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rolls)
@example(ROUND_THE_BACK)
@example(REWOUND)
@example(EXPANDED)
async def test_forks_of_forks_read_as_if_they_had_been_copied(db: Database, script_: list[Roll]) -> None:
    """Whatever is written and wherever it is forked, each conversation shows what a copy of its own would show: to
    people, to the model (also to who knows how it began), and page by page."""
    turn_id = (await admit(db, Slug(f"log-{next(FORKS)}"))).turn.id
    copies: dict[ConversationId, list[AnyBody]] = {}
    early: dict[ConversationId, tuple[View, log.Begun]] = {}  # as someone saw it once

    async def play(tx: Tx) -> None:
        copies.clear()
        early.clear()
        copies[(await turns.get(tx, turn_id)).conversation_id] = []
        for kind, which, die in script_:
            conversation_id = list(copies)[which % len(copies)]
            bodies = copies[conversation_id]
            if kind == "fork":
                base = die % (len(bodies) + 1)
                fork = await directory.create(tx, ALICE, parent=conversation_id, base=base)
                copies[fork.id] = bodies[:base]
            else:
                body = rolled(kind, die, len(bodies), bodies)
                await log.append(tx, conversation_id, 0, turn_id, [draft(body)])
                bodies.append(body)
                if die % 3 == 0:
                    early[conversation_id] = await log.read_on(tx, conversation_id, 0, None, len(bodies))

    await db.write(play)

    async def look(tx: Tx) -> None:
        for conversation_id, bodies in copies.items():
            shown, seen = seen_of(bodies)
            told = await log.read_transcript(tx, conversation_id)
            assert [(e.seq, e.body) for e in told] == [(seq, bodies[seq - 1]) for seq in shown]
            messages = [e for e in told if isinstance(e.body, Message | ToolCall | ToolResult)]
            assert await log.count_messages(tx, conversation_id) == len(messages)
            view = await log.read_context(tx, conversation_id)
            assert [(e.seq, e.body) for e in view.entries] == [(s, bodies[s - 1]) for s in _positions(seen.spans)]
            assert view.setup == (bodies[seen.setup - 1] if seen.setup else None)
            assert view.summary == (bodies[seen.summary - 1] if seen.summary else None)
            assert view.head == len(bodies)
            for upto in range(1, len(bodies) + 1, 3):
                _, seen = seen_of(bodies[:upto])
                assert (await log.read_context(tx, conversation_id, upto)).seen == seen
            if conversation_id in early:
                saw, begun = early[conversation_id]
                rest, _ = await log.read_on(tx, conversation_id, 0, begun, len(bodies))
                before = [entry for entry in saw.entries if entry.seq <= rest.after]
                assert structs.replace(rest, entries=(*before, *rest.entries), after=0) == view
            pages, after = [], 0
            while page := await log.read_transcript(tx, conversation_id, after=after, limit=3):
                assert len(page) <= 3
                pages += page
                after = page[-1].seq
            assert pages == told

    await db.read(look)


# -- compaction by compare-and-set


async def test_a_summary_made_in_the_background_is_published_though_the_talk_went_on(db: Database) -> None:
    """Only another control makes it stale: a busy conversation must not throw every summary away."""
    one = await talk(db, WORK, "one")
    view = await db.read(log.read_context, one.conversation_id)
    await talk(db, WORK, "two")
    await tend(db, WORK, Setup("agent", "model", "Be kind."))
    published = await tend(db, WORK, Compaction(2, "in short"), expects=view.control)
    assert (published.status, published.failure) == ("done", None)
    assert await context(db, one.conversation_id) == ["two", "TWO"]


@pytest.mark.parametrize("between", [Rewind(2), Compaction(1, "shorter"), Hide(1, 1), Pin(1)], ids=kind_of)
async def test_a_summary_of_what_is_no_longer_seen_is_refused(db: Database, between: AnyBody) -> None:
    """It fails as stale, and nothing of it is written."""
    one = await talk(db, WORK, "one")
    view = await db.read(log.read_context, one.conversation_id)
    await tend(db, WORK, between)
    stale = await tend(db, WORK, Compaction(2, "in short"), expects=view.control)
    assert stale.status == "failed"
    assert stale.failure is not None
    assert stale.failure.code == "stale"
    assert (await conversation(db, one.conversation_id)).head_seq == 3
    newer = (await db.read(log.read_context, one.conversation_id)).control
    assert newer == 3
    assert (await tend(db, WORK, Compaction(2, "in short"), expects=newer)).status == "done"


async def test_a_control_of_the_parent_counts_in_a_fork(db: Database) -> None:
    """A fork is compared with the newest control of all that it reads."""
    one = await talk(db, WORK, "one")
    await tend(db, WORK, Compaction(1, "in short"))
    two = await talk(db, WORK, "two")
    await talk(db, WORK, "three")
    fork = ById((await talk(db, After(two.id), "other")).conversation_id)
    assert (await db.read(log.read_context, fork.id)).control == 3
    assert (await tend(db, fork, Compaction(2, "shorter"), expects=0)).status == "failed"
    assert (await tend(db, fork, Compaction(2, "shorter"), expects=3)).status == "done"
    assert (await db.read(log.read_context, one.conversation_id)).control == 3


async def test_upkeep_that_points_past_the_log_fails_and_blocks_nothing(db: Database) -> None:
    """A control that cannot be written ends as failed; the turns behind it run."""
    await enter(db, N1)
    bad = (await db.write(admission.admit, upkeep(WORK, Rewind(99)))).turn
    behind = (await admit(db, WORK, "one")).turn
    lease = await db.write(turns.claim, bad.conversation_id, N1)
    assert (await turn(db, bad.id)).status == "failed"
    assert lease.turn.id == behind.id


# -- events


EVENTS: list[AnyEvent] = [
    Opened(0, "msg_1", "message"),
    Delta(0, "hé 東\x00"),
    Closed(0, incomplete=True),
    Opened(1, "fc_1", "tool_call", "call_1", "clock", client=True),
    Answered(1, "fco_1", "call_1", "noon", is_error=True),
    Joined("resp_2"),
]


async def test_events_are_read_from_any_cursor_whatever_the_batches(db: Database) -> None:
    """Event n is the same for every follower, whether its batch came alone, in company or with entries."""
    lease = await start(db, WORK)
    await db.write(batches.add, lease, 0, EVENTS[:1])
    await db.write(turns.append, lease, [said("hi", "assistant")], first_n=1, events=EVENTS[1:4])
    await db.write(turns.finish, lease, DONE, first_n=4, events=EVENTS[4:])
    for n in range(len(EVENTS) + 2):
        told, events = await db.read(turns.events_from, lease.turn.id, n)
        assert events == EVENTS[n:]
        assert told.status == "done"


async def test_who_has_nearly_everything_is_told_the_rest_at_the_cost_of_the_rest(db: Database) -> None:
    """A follower elsewhere looks at every beat: what it has heard is not looked at again."""
    lease = await start(db, Slug("work"))

    async def stream(tx: Tx) -> None:
        for n in range(2_000):
            await batches.add(tx, lease, n, [Delta(0, "word")])

    await db.write(stream)
    everything, rest = [await db.read(_cost_of_events, lease.turn.id, n) for n in (0, 1_999)]
    assert 0 < rest * 10 < everything


async def _cost_of_events(tx: Any, turn_id: TurnId, n: int) -> int:
    """What a look at the events costs: steps of SQLite's machine, rows that PostgreSQL touches."""
    if tx.dialect == "sqlite":
        steps = count()
        tx._cursor.connection.set_progress_handler(lambda: next(steps) < 0, 1)
        await turns.events_from(tx, turn_id, n)
        tx._cursor.connection.set_progress_handler(None)
        return next(steps)
    touched = "select seq_tup_read + idx_tup_fetch from pg_stat_xact_user_tables where relname = 'turn_events'"
    await tx._connection.execute("set local enable_seqscan = off")  # as in a table of many turns
    before = await tx._connection.fetchval(touched)
    await turns.events_from(tx, turn_id, n)
    return int(await tx._connection.fetchval(touched) - before)


async def test_an_event_number_is_given_once(db: Database) -> None:
    """A batch that would tell another story at the same place is refused, and takes its entries with it."""
    lease = await start(db, WORK)
    await db.write(batches.add, lease, 0, [Delta(0, "a"), Delta(0, "b")])
    with pytest.raises(Defect):
        await db.write(batches.add, lease, 0, [Delta(0, "c")])
    with pytest.raises(Defect):
        await db.write(turns.append, lease, [said("hi", "assistant")], first_n=0, events=[Delta(0, "c")])
    assert (await db.read(turns.events_from, lease.turn.id, 0))[1] == [Delta(0, "a"), Delta(0, "b")]
    assert (await conversation(db, lease.turn.conversation_id)).head_seq == 1


async def test_an_heir_goes_on_from_the_last_committed_event(db: Database) -> None:
    """Numbers go on over a takeover without a gap or a repetition."""
    lease = await start(db, WORK)
    await db.write(batches.add, lease, 0, EVENTS[:2])
    taken = await heir(db, lease)
    _, told = await db.read(turns.events_from, lease.turn.id, 0)
    await db.write(batches.add, taken, len(told), EVENTS[2:])
    assert (await db.read(turns.events_from, lease.turn.id, 0))[1] == EVENTS


async def test_events_of_turns_that_ended_long_ago_are_forgotten(db: Database) -> None:
    """Those of running turns and of fresh ends stay, the entries stay, and nothing is pruned twice."""
    old, fresh = await start(db, WORK, "old"), await start(db, Slug("fresh"))
    running = await start(db, Slug("running"))
    leases = (old, fresh, running)
    for lease in leases:
        await db.write(batches.add, lease, 0, EVENTS)
    await end(db, old, DONE, "OLD")
    await end(db, fresh)
    await script(db, f"update turns set ended_at = ended_at - 1000 where id = '{old.turn.id}'")
    assert await db.write(turns.prune_events, 500.0) == 0, "it is not searched yet"
    await search.index_some(db)
    assert await db.write(turns.prune_events, 500.0) == 1
    assert await db.write(turns.prune_events, 500.0) == 0
    left = [await rows(db, f"select turn_id from turn_events where turn_id = '{lease.turn.id}'") for lease in leases]
    assert [len(batches) for batches in left] == [0, 1, 1]
    assert await transcript(db, old.turn.conversation_id) == ["old", "OLD"]


async def test_forgotten_events_are_told_again_from_the_entries(db: Database) -> None:
    """Whoever comes later hears of every item, from any cursor, each text in one piece; the input is not output."""
    lease = await start(db, WORK, "old")
    call, result = draft(ToolCall("call_1", "clock", "{}")), draft(ToolResult("call_1", "noon"))
    answer = said("OLD", "assistant")
    await db.write(turns.finish, lease, DONE, [call, result, answer], first_n=0, events=EVENTS)
    await search.index_some(db)
    assert await db.write(turns.prune_events, -1.0) == 1
    told = [
        *(Opened(0, call.id, "tool_call", "call_1", "clock"), Delta(0, "{}"), Closed(0)),
        Answered(1, result.id, "call_1", "noon"),
        *(Opened(2, answer.id, "message"), Delta(2, "OLD"), Closed(2)),
    ]
    for n in range(len(told) + 1):
        assert (await db.read(turns.events_from, lease.turn.id, n))[1] == told[n:]


async def test_pruning_goes_in_strides(db: Database) -> None:
    """At most so many turns in one transaction, oldest first, until none is left."""
    for number in range(5):
        lease = await start(db, Slug(f"talk-{number}"))
        await db.write(turns.finish, lease, DONE, first_n=0, events=EVENTS)
    await search.index_some(db)
    left, pruned = [], []
    while not pruned or pruned[-1]:
        pruned.append(await db.write(turns.prune_events, -1.0, limit=2))
        left += await rows(db, "select count(*) from turn_events")
    assert (pruned, left) == ([2, 2, 1, 0], [(3,), (1,), (0,), (0,)])


async def test_what_a_dead_node_wrote_stays(db: Database) -> None:
    """Progress of a turn that was taken over twice is all there, in order."""
    lease = await start(db, WORK, "one")
    for number, node in enumerate((N2, N1, N2)):
        await db.write(turns.append, lease, [said(str(number), "assistant")])
        await expire(db, lease.turn.owner)
        await enter(db, node)
        lease = await db.write(turns.claim, lease.turn.conversation_id, node)
    await end(db, lease, DONE, "ONE")
    assert await transcript(db, lease.turn.conversation_id) == ["one", "0", "1", "2", "ONE"]
