"""Compaction changes what the model sees and nothing else (P21); one that fails loses nothing, nor wedges (P22)."""

import asyncio
import re
from collections.abc import AsyncGenerator, Iterable
from itertools import cycle, pairwise
from typing import Any

import pytest

from conftest import ALICE
from engine.rooms import Rooms, ask, ended, say, submission, transcript
from engine.scripted import Scripted, Tools, calls, constant, last_said, words
from engine.waiting import within
from legato.domain.entries import Compaction, Entry, Message, Note, Text, Tool, ToolResult
from legato.domain.events import Folded
from legato.domain.handles import ById, Slug
from legato.domain.turns import Fresh, Turn, Usage
from legato.engine import compaction, tokens
from legato.engine.compaction import FAILED, INSTRUCTIONS, SummaryFailed
from legato.engine.protocols import ModelEvent, ModelRequest, TextChunk
from legato.errors import BadInput, ContextTooLarge, ModelUnavailable, Stale
from legato.store import search

WORK, OTHER = Slug("work"), Slug("other")
WINDOW = 4_000
SMALL = {"models_scripted": {"kind": "demo", "context_window": WINDOW}}
FILLER = "and then some more words that take their room in the window of the model, as words do " * 5


def is_summary(request: ModelRequest) -> bool:
    return request.instructions == INSTRUCTIONS


def asked(model: Scripted) -> list[ModelRequest]:
    """The requests of turns."""
    return [request for request in model.requests if not is_summary(request)]


def summaries(model: Scripted) -> list[ModelRequest]:
    return [request for request in model.requests if is_summary(request)]


def talk_and(summarise: Any) -> Any:
    """A model that answers turns with few words, and summaries as told."""

    def reply(request: ModelRequest) -> Iterable[ModelEvent | Exception]:
        return summarise(request) if is_summary(request) else words("heard: ", last_said(request)[:20])

    return reply


async def compactions(app: Any) -> list[Entry]:
    return [e for e in await app.gateway.transcript(ALICE, WORK) if isinstance(e.body, Compaction)]


async def notes(app: Any) -> list[str]:
    bodies = [e.body for e in await app.gateway.transcript(ALICE, WORK)]
    return [body.text for body in bodies if isinstance(body, Note) and body.reason == FAILED]


async def settled(app: Any) -> None:
    """Wait until no summary is being made."""

    chores = [task for task in app.worker._chores if "_summarise_long" in repr(task)]
    if chores:
        await within(asyncio.wait(chores))


# -- the long run

FAULTS: dict[str, Any] = {
    "refused": lambda r: [BadInput("The model's server answered 400: no.")],
    "unavailable": lambda r: [ModelUnavailable("The model's server answered 503: busy.")],
    "cut off": lambda r: [TextChunk("They spoke of"), ModelUnavailable("The stream was cut.")],
    "empty": lambda r: words(" ", "\n"),
    "garbage": lambda r: words("\x00\x01<<<>>>###" * 40),
    "one word": lambda r: words("the " * 400),
    "longer": lambda r: words(" ".join(f"word{n}" for n in range(9_000))),
    "too long": lambda r: [ContextTooLarge("That is too long.")],
    "good": lambda r: words("A summary of what was said."),
}


class Late(Scripted):
    """Never answers every fourth time that it is asked for a summary, the first included."""

    late = 0

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        if is_summary(request) and len(summaries(self)) % 4 == 0:
            self.requests.append(request)
            self.late += 1
            await asyncio.Event().wait()
        async for event in super().stream(request):
            yield event


async def test_500_turns_go_through_a_small_window_whatever_the_summariser_does(rooms: Rooms) -> None:
    """Every turn answers, in one conversation; nothing that was said is lost; no request is larger than the window;
    and the original context can be had again."""
    faults = cycle(FAULTS.values())
    surprises = iter(range(10_000))

    def reply(request: ModelRequest) -> Iterable[ModelEvent | Exception]:
        assert tokens.of_request(request) <= WINDOW
        if is_summary(request):
            return next(faults)(request)  # type: ignore[no-any-return]
        if next(surprises) % 97 == 96:
            return [ContextTooLarge("maximum context length")]  # though we thought that it fits
        return words(f"answer to {last_said(request)[:12]}")

    turns = 500 if rooms.url == "" else 200
    model = Late(reply)
    app = await rooms.open(model, compaction_timeout=0.1, **SMALL)
    places = set()
    for n in range(turns):
        turn = await ask(app, f"message {n:04} {FILLER if n % 3 else ''}")
        assert turn.status == "done", (n, turn.failure)
        places.add(turn.conversation_id)
    await settled(app)

    assert len(places) == 1
    said = [line for line in await transcript(app) if line.startswith("user: ")]
    assert [line[6:18] for line in said] == [f"message {n:04}" for n in range(turns)]
    made = await compactions(app)
    assert len(made) >= 3
    assert model.late > 0
    assert any("took longer than 0.1 s" in note for note in await notes(app))
    while await search.index_some(app.db):
        pass
    assert await app.gateway.search(ALICE, "message 0001")

    for entry in reversed(made):
        await app.gateway.expand(ALICE, WORK, entry.seq)
    context = await app.gateway.context(ALICE, WORK)
    assert context.summary is None
    restored = [e.body.text for e in context.entries if isinstance(e.body, Message) and e.body.role == "user"]
    assert [text[:12] for text in restored] == [f"message {n:04}" for n in range(turns)]
    await rooms.close(app)
    assert await rooms.findings() == []


# -- in the background


async def test_a_summary_is_made_after_the_turn_and_no_turn_waits_for_it(rooms: Rooms) -> None:
    """Who comes meanwhile is answered; the summary is published after, and says who made it, why and of how much."""
    model = Scripted()
    app = await rooms.open(model, **SMALL)
    while not app.gateway._summarising:
        turn = await say(app, FILLER)
        (await model.asked()).finish("heard")
        assert (await ended(app, turn)).status == "done"
    summary = await model.asked()
    assert is_summary(summary.request)
    meanwhile = await say(app, "meanwhile")
    (await model.asked()).finish("also heard")
    assert (await ended(app, meanwhile)).status == "done"
    summary.finish("They began.", usage=Usage(input_tokens=90, output_tokens=5))
    (await model.asked()).finish("They began to talk.")  # the past is longer than a piece
    await settled(app)

    usage = await app.gateway.usage(await app.gateway.find(ALICE, WORK))
    assert usage.input_tokens == 10 * len(asked(model)) + 90 + 10  # the summary's cost is on the bill
    [entry] = await compactions(app)
    assert isinstance(entry.body, Compaction)
    assert (entry.body.summary, entry.body.by) == ("They began to talk.", "default")
    assert entry.body.why
    assert entry.body.before > 2_000 > 100 > entry.body.after > 0
    after = await say(app, "after")
    last = await model.asked()
    assert "They began to talk." in str(last.request.items[0])
    assert tokens.of_request(last.request) < 2_500
    last.finish("yes")
    await ended(app, after)


async def long_talk(app: Any, turns: int = 12) -> None:
    for n in range(turns):
        assert (await ask(app, f"message {n} {FILLER}")).status == "done"
        await settled(app)


async def test_a_summary_of_what_has_changed_meanwhile_is_void(rooms: Rooms) -> None:
    """A rewind while the summary was being made wins; the summary is dropped without a trace."""
    writing, go = asyncio.Event(), asyncio.Event()
    model = Scripted(talk_and(lambda r: words("A summary.")))
    plain = model.stream

    async def stream(request: ModelRequest) -> Any:
        if is_summary(request):
            writing.set()
            await go.wait()
        async for event in plain(request):
            yield event

    model.stream = stream  # type: ignore[method-assign]
    app = await rooms.open(model, **SMALL)
    n = 0
    while not writing.is_set():
        await ask(app, f"message {n} {FILLER}")
        n += 1
        assert n < 40
        if any("_summarise_long" in repr(task) for task in app.worker._chores):
            await within(writing.wait())  # in the background, before a turn has to wait for one of its own
    await app.gateway.rewind(ALICE, WORK, 1)
    go.set()
    await settled(app)
    assert await compactions(app) == []
    assert (await ask(app, "still there?")).status == "done"


async def test_a_failed_summary_is_noted_and_not_tried_again_until_the_context_has_grown(rooms: Rooms) -> None:
    model = Scripted(talk_and(lambda r: [ModelUnavailable("down")]))
    app = await rooms.open(model, **SMALL)
    await long_talk(app, 40)
    tries, grown = len(summaries(model)), 40 * tokens.count(FILLER)
    assert len(await notes(app)) == tries
    assert 2 <= tries <= grown / (0.1 * WINDOW) + 1
    assert all(tokens.of_request(request) <= WINDOW for request in asked(model))
    assert "earlier items left out" in str(asked(model)[-1].items[0])


async def test_a_summary_stands_on_the_one_before(rooms: Rooms) -> None:
    numbers = iter(range(100))
    model = Scripted(talk_and(lambda r: words(f"Summary number {next(numbers)}.")))
    app = await rooms.open(model, **SMALL)
    await long_talk(app, 60)
    given = [str(request.items[0]) for request in summaries(model)]
    assert len(given) >= 2
    assert "Summary number 0." not in given[0]
    assert all(f"Summary number {n}." in text for n, text in enumerate(given[1:]))


async def test_a_call_that_the_client_never_answers_keeps_nothing_from_being_summarised(rooms: Rooms) -> None:
    """The talk goes on without it, and every request has all of the past: in words, or in a summary."""

    def reply(request: ModelRequest) -> list[ModelEvent]:
        if is_summary(request):
            return words("Short.")
        return calls(("c", "theirs", "{}")) if last_said(request) == "ask me" else words("heard")

    app = await rooms.open(Scripted(reply), **SMALL)
    await ask(app, "ask me", tools=(Tool("theirs", "", {}),))
    await long_talk(app, 60)
    folded = [body for e in await compactions(app) if isinstance(body := e.body, Compaction)]
    assert len(folded) >= 2
    assert folded[-1].upto > 60
    assert not any("earlier items left out" in str(request.items[0]) for request in asked(rooms.model))


async def test_what_was_done_is_told_for_ever_and_pins_stay_verbatim(rooms: Rooms) -> None:
    """Ten effects, one a turn; after several compactions the model still reads each of them, and the pinned words."""

    def reply(request: ModelRequest) -> list[ModelEvent]:
        if is_summary(request):
            return words("A summary that forgets everything.")
        said = last_said(request)
        if said.startswith("send") and not isinstance(request.items[-1], ToolResult):
            return calls(("c", "send", f'{{"to": "{said.split()[1]}"}}'))
        return words("done")

    app = await rooms.open(Scripted(reply), Tools(send=constant("sent")), **SMALL)
    await ask(app, "my name is Ada")
    [first] = [e for e in await app.gateway.transcript(ALICE, WORK) if getattr(e.body, "text", "") == "my name is Ada"]
    await app.gateway.pin(ALICE, WORK, first.seq)
    for n in range(10):
        await ask(app, f"send person{n}")
        await long_talk(app, 8)
    assert len(await compactions(app)) >= 3
    await ask(app, "what have you done?")
    last = str(rooms.model.requests[-1].items)
    assert all(f'"to": "person{n}"' in last for n in range(10))
    assert 'person0"}: done' in last
    assert "my name is Ada" in last


async def test_an_agent_that_does_something_in_every_turn_never_runs_out_of_room(rooms: Rooms) -> None:
    """The list of what was done is in every request: the newest is told, and how much there was before."""

    def reply(request: ModelRequest) -> list[ModelEvent]:
        if is_summary(request):
            return words("A summary.")
        if isinstance(request.items[-1], ToolResult):
            return words("done")
        return calls(("c", "send", f'{{"to": "{last_said(request)}", "what": "{"a letter, a book, a flower; " * 3}"}}'))

    app = await rooms.open(Scripted(reply), Tools(send=constant("sent")), **SMALL)
    for n in range(100):
        turn = await ask(app, f"person{n}")
        assert turn.status == "done", (n, turn.failure)
        await settled(app)
    body = (await compactions(app))[-1].body
    assert isinstance(body, Compaction)
    first, *newest = body.actions
    counted = re.fullmatch(r"earlier calls, which the log alone has \(× (\d+)\)", first)
    assert counted is not None
    told = [int(re.findall(r"person(\d+)", line)[0]) for line in newest]
    assert told == list(range(int(counted[1]), int(counted[1]) + len(told)))
    assert len(told) > 5


# -- inside a turn


async def test_a_long_turn_is_folded_between_its_steps_and_keeps_its_task(rooms: Rooms) -> None:
    """Twenty tool outputs of a quarter of the window each: every request fits, is well-formed, and has the input."""
    task = "count the pages, and do not forget the cover"

    def reply(request: ModelRequest) -> list[ModelEvent]:
        if is_summary(request):
            return words("Pages were counted.")
        assert tokens.of_request(request) <= WINDOW
        assert any(isinstance(item, Message) and item.text == task for item in request.items)
        done = len(rooms.model.requests) - len(summaries(rooms.model))
        return calls((f"c{done}", "look", "{}")) if done <= 20 else words("counted")

    app = await rooms.open(Scripted(reply), Tools(look=constant("page " * (WINDOW // 5))), **SMALL)
    seen: list[Any] = []
    turn = await say(app, task)

    async def follow() -> None:
        async for _, event in app.gateway.follow(ALICE, turn.id):
            seen.append(event)

    await within(follow())
    turn = await ended(app, turn)
    assert turn.status == "done", turn.failure
    folded = [event for event in seen if isinstance(event, Folded)]
    assert [f.id for f in folded] == [e.id for e in await compactions(app)] != []
    places = [event.index for event in seen if hasattr(event, "id")]
    assert places == list(range(len(places)))
    await rooms.close(app)
    assert await rooms.findings() == []


async def test_what_long_turns_were_asked_is_kept_until_the_next_summary(rooms: Rooms) -> None:
    """A dozen of them: each request has its own task, and of the earlier ones only what was not folded yet."""

    def reply(request: ModelRequest) -> list[ModelEvent]:
        if is_summary(request):
            return words("Pages were counted.")
        tasks = [item.text for item in request.items if isinstance(item, Message) and item.text.startswith("task ")]
        assert tasks[-1].startswith(f"task {turn} ")
        assert len(tasks) <= 2, tasks
        steps.append(turn)
        return calls((f"c{len(steps)}", "look", "{}")) if steps.count(turn) <= 6 else words("counted")

    steps: list[int] = []
    app = await rooms.open(Scripted(reply), Tools(look=constant("page " * (WINDOW // 4))), **SMALL)
    for turn in range(12):
        done = await ask(app, f"task {turn} " + "and do not forget the cover " * 20)
        assert done.status == "done", done.failure
        await settled(app)
    folded = [body for e in await compactions(app) if isinstance(body := e.body, Compaction)]
    assert len(folded) >= 12
    assert [c.upto for c in folded] == sorted(c.upto for c in folded)
    read = "\n".join(str(request.items) for request in summaries(rooms.model))
    assert all(f"task {n} " in read for n in range(10))
    await rooms.close(app)
    assert await rooms.findings() == []


async def test_a_threshold_of_the_request_folds_inside_the_turn(rooms: Rooms) -> None:
    model = Scripted(talk_and(lambda r: words("Short.")))
    app = await rooms.open(model, models_scripted={"kind": "demo", "context_window": 100_000})
    await long_talk(app, 20)
    assert await compactions(app) == []
    await ask(app, "now", compact_threshold=1_000)
    assert len(await compactions(app)) == 1
    assert tokens.of_request(asked(model)[-1]) < 1_200


async def test_a_long_past_that_is_folded_in_mid_turn_is_told_by_its_summary(rooms: Rooms) -> None:
    """Though it was kept in memory from the turn before: in the first step of the turn, in its second, and later."""

    def reply(request: ModelRequest) -> list[ModelEvent]:
        if is_summary(request):
            return words("Short.")
        return calls(("c", "look", "{}")) if last_said(request) == "now" and len(asked(model)) == 21 else words("fine")

    model = Scripted(reply)
    app = await rooms.open(
        model, Tools(look=constant("seen")), models_scripted={"kind": "demo", "context_window": 100_000}
    )
    await long_talk(app, 20)
    await ask(app, "now", compact_threshold=1_000)
    await ask(app, "and now?")
    first, second, later = (request.items for request in asked(model)[-3:])
    assert "Short." in str(first[0])
    assert tokens.of_request(asked(model)[-3]) < 1_200
    assert isinstance(second[-1], ToolResult)
    assert second[: len(first)] == first
    assert later[: len(second)] == second


async def test_an_input_larger_than_the_window_fails_with_advice(rooms: Rooms) -> None:
    app = await rooms.open(Scripted(talk_and(lambda r: words("Short."))), **SMALL)
    turn = await ask(app, FILLER * 60)
    assert turn.status == "failed"
    assert turn.failure is not None
    assert turn.failure.code == "context_length_exceeded"
    assert "larger window" in turn.failure.message
    await app.gateway.rewind(ALICE, WORK, 0)
    assert (await ask(app, "hello")).status == "done"


async def test_a_summary_made_for_a_larger_window_is_cut_until_there_is_a_shorter_one(rooms: Rooms) -> None:
    """The agent is given a small model, and nobody can write a summary at first: every turn is answered all the same,
    by a model that sees how the summary begins and ends."""
    down = [True]
    model = Scripted(talk_and(lambda r: [ModelUnavailable("down")] if down else words("Short.")))
    app = await rooms.open(model, models_scripted={"kind": "demo", "context_window": 100_000})
    await long_talk(app, 2)
    upto = (await app.gateway.find(ALICE, WORK)).head_seq
    await app.gateway.compact(ALICE, WORK, upto, " ".join(f"word{n}." for n in range(5_000)))
    app = await rooms.restart(**SMALL)
    await long_talk(app, 12)
    for request in asked(model)[2:]:
        assert tokens.of_request(request) <= WINDOW
        summary = str(request.items[0])
        assert "word0." in summary
        assert "word4999." in summary
        assert "cut here to fit" in summary
    turn = await ask(app, "what was left out?")
    assert "What stands for the past was cut." in str((await app.gateway.receipt(turn))[1])
    down.clear()
    await long_talk(app, 12)
    assert "Short." in str(asked(model)[-1].items[0])


async def test_a_turn_that_leaves_nothing_behind_fits_as_well(rooms: Rooms) -> None:
    """It is trimmed, and the log is as it was."""
    app = await rooms.open(Scripted(talk_and(lambda r: [ModelUnavailable("down")])), **SMALL)
    await app.gateway.create(ALICE, {}, WORK)
    past = [Message("user" if n % 2 == 0 else "assistant", (Text(f"{n} {FILLER}"),)) for n in range(60)]
    await app.gateway.add(ALICE, WORK, past)
    run = await app.gateway.ephemeral(submission("now"))
    assert [event async for event in run.events()] != []
    assert run.turn.status == "done"
    assert tokens.of_request(rooms.model.requests[-1]) <= WINDOW
    assert len(await app.gateway.transcript(ALICE, WORK)) == 60


async def test_what_a_provider_counts_is_believed(rooms: Rooms) -> None:
    """A provider whose tokens are smaller than ours reaches its window sooner, so we send less."""

    def reply(request: ModelRequest) -> list[ModelEvent]:
        if is_summary(request):
            return words("Short.")
        return words("heard", usage=Usage(input_tokens=2 * tokens.of_request(request), output_tokens=1))

    app = await rooms.open(Scripted(reply), **SMALL)
    await long_talk(app, 40)
    assert max(tokens.of_request(request) for request in asked(rooms.model)[20:]) <= WINDOW // 2


# -- by hand


async def test_a_refusal_is_believed_for_a_while_and_then_forgotten(
    rooms: Rooms, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A smaller model had stood in, say: what it refused must not fold every other conversation for good."""
    small = True

    def reply(request: ModelRequest) -> Iterable[ModelEvent | Exception]:
        if is_summary(request):
            return words("Short.")
        return [ContextTooLarge("Too long.")] if small and tokens.of_request(request) > 2_000 else words("heard")

    app = await rooms.open(Scripted(reply), models_scripted={"kind": "demo", "context_window": 100_000})
    await long_talk(app, 30)
    assert len(await compactions(app)) >= 1
    small = False
    known = len(await compactions(app))
    await long_talk(app, 30)
    assert len(await compactions(app)) > known
    monkeypatch.setattr(compaction, "REMEMBERED", 0.0)
    known = len(await compactions(app))
    await long_talk(app, 30)
    assert len(await compactions(app)) == known


async def test_a_refusal_of_a_long_answer_is_no_word_on_the_window(rooms: Rooms) -> None:
    """The request that asked for it is made to fit; nobody else is sent less."""

    def reply(request: ModelRequest) -> Iterable[ModelEvent | Exception]:
        if is_summary(request):
            return words("Short.")
        wanted = request.params.get("max_output_tokens", 100)
        over = tokens.of_request(request) + wanted > WINDOW
        return [ContextTooLarge("Input and answer are longer than the window.")] if over else words("heard")

    app = await rooms.open(Scripted(reply), **SMALL)
    await long_talk(app, 20)
    refused = await ask(app, "tell me all", OTHER, params={"max_output_tokens": 10 * WINDOW})
    assert refused.failure is not None
    assert refused.failure.message == "Input and answer are longer than the window."
    assert (await ask(app, "and more", OTHER, params={"max_output_tokens": WINDOW - 1_500})).status == "done"
    await ask(app, "go on")
    assert await compactions(app) == []
    assert (await ask(app, "now tell me much", params={"max_output_tokens": WINDOW // 2})).status == "done"
    assert len(await compactions(app)) == 1


async def test_a_summary_by_hand_keeps_the_last_exchange_and_minds_the_focus(rooms: Rooms) -> None:
    app = await rooms.open(Scripted(talk_and(lambda r: words("Of cats."))), **SMALL)
    assert await app.gateway.summarise(ALICE, await _made(app)) is None
    for n in range(3):
        await ask(app, f"about cats {n}, " + "purr " * 60)
    turn = await app.gateway.summarise(ALICE, WORK, focus="their names")
    assert turn is not None
    assert "Pay special attention to: their names" in str(summaries(rooms.model)[-1].items)
    context = await app.gateway.context(ALICE, WORK)
    assert context.summary is not None
    seen = [e.body.text[:12] for e in context.entries if isinstance(e.body, Message)]
    assert seen == ["about cats 2", "heard: about"]


async def _made(app: Any) -> Any:
    await ask(app, "hello")
    return WORK


async def test_a_summary_by_hand_that_fails_says_so_and_changes_nothing(rooms: Rooms) -> None:
    app = await rooms.open(Scripted(talk_and(lambda r: [ModelUnavailable("down")])), **SMALL)
    for n in range(3):
        await ask(app, f"message {n}")
    before = await app.gateway.context(ALICE, WORK)
    with pytest.raises(SummaryFailed):
        await app.gateway.summarise(ALICE, WORK)
    after = await app.gateway.context(ALICE, WORK)
    assert [e.body for e in after.entries if not isinstance(e.body, Note)] == [e.body for e in before.entries]
    assert len(await notes(app)) == 1


async def test_what_a_summary_of_a_part_leaves_over_stays_word_for_word(rooms: Rooms) -> None:
    """A long turn was asked in three messages, which the summary inside it kept. The next one fails after the first
    two of them: the third, and all that came after, is shown as it was."""
    good = 1

    def reply(request: ModelRequest) -> Iterable[ModelEvent | Exception]:
        if is_summary(request):
            return words("Pages.") if len(summaries(rooms.model)) <= good else [ModelUnavailable("down")]
        done = len(asked(rooms.model))
        return calls((f"c{done}", "look", "{}")) if done <= 3 else words("counted")

    app = await rooms.open(Scripted(reply), Tools(look=constant("page " * 600)), **SMALL)
    tasks = [Message("user", (Text(f"task {n}: " + "look there " * 300),)) for n in range(3)]
    assert (await ask(app, tasks)).status == "done"
    await settled(app)
    assert (await ask(app, "and now?")).status == "done"
    await settled(app)
    before = await app.gateway.context(ALICE, WORK)
    assert before.summary is not None
    assert [e.body for e in before.entries if e.seq <= before.summary.upto] == tasks
    good = len(summaries(rooms.model)) + 1
    await app.gateway.summarise(ALICE, WORK)
    after = await app.gateway.context(ALICE, WORK)
    assert after.summary is not None
    assert after.seen.summary != before.seen.summary
    assert after.summary.upto == before.summary.upto
    folded = [e for e in before.entries if e.seq not in {left.seq for left in after.entries}]
    assert [e.body for e in folded] == tasks[:2]
    assert (await ask(app, "and then?")).status == "done"


async def test_a_past_of_which_only_a_part_can_be_summarised_is_not_condensed(rooms: Rooms) -> None:
    """Whoever sends the summary instead of a history would lose the rest."""
    model = Scripted(talk_and(lambda r: words("Short.") if len(summaries(model)) < 4 else [ModelUnavailable("down")]))
    app = await rooms.open(model, **SMALL)
    past = [Message("user" if n % 2 == 0 else "assistant", (Text(f"{n} {FILLER}"),)) for n in range(60)]
    with pytest.raises(SummaryFailed, match="a part"):
        await app.gateway.condensed(submission(past, Fresh()), app.gateway.roster.cast(None))


async def test_a_receipt_says_what_was_verbatim_folded_hidden_and_left_out(rooms: Rooms) -> None:
    app = await rooms.open(Scripted(talk_and(lambda r: words("In short."))), **SMALL)
    turns = [await ask(app, f"message {n}") for n in range(4)]
    await app.gateway.summarise(ALICE, WORK)
    fifth = await ask(app, "message 4")
    entries = await app.gateway.transcript(ALICE, WORK)
    await app.gateway.hide(ALICE, WORK, entries[-1].seq, entries[-1].seq)
    sixth = await ask(app, "message 5")

    first, _ = await app.gateway.receipt(turns[0])
    assert [e.body.text for e in first.verbatim if isinstance(e.body, Message)] == ["message 0"]
    assert (first.summary, first.folded, first.hidden) == (None, (), ())
    second, left_out = await app.gateway.receipt(fifth)
    assert second.summary is not None
    assert [e.body.text for e in second.verbatim if isinstance(e.body, Message)][-1] == "message 4"
    assert second.folded
    assert second.folded[-1][1] <= second.summary.upto
    assert left_out is None
    third, _ = await app.gateway.receipt(sixth)
    assert (entries[-1].seq, entries[-1].seq) in third.hidden


# -- crashes, forks, other nodes, very long logs


async def test_forks_from_before_and_after_a_compaction_see_their_own_past(rooms: Rooms) -> None:
    app = await rooms.open(Scripted(talk_and(lambda r: words("In short."))), **SMALL)
    for n in range(4):
        await ask(app, f"message {n}")
    before = (await app.gateway.find(ALICE, WORK)).head_seq
    await app.gateway.summarise(ALICE, WORK)
    early = (await app.gateway.fork(ALICE, WORK, before)).conversation
    late = (await app.gateway.fork(ALICE, WORK)).conversation
    assert (await app.gateway.context(ALICE, ById(early.id))).summary is None
    view = await app.gateway.context(ALICE, ById(late.id))
    assert view.summary is not None
    assert (await ask(app, "on", ById(late.id))).status == (await ask(app, "on", ById(early.id))).status == "done"


async def test_of_two_nodes_that_summarise_at_once_one_is_heard(shared: Rooms) -> None:
    """The other's summary was made from a view that is no longer true."""
    one = await shared.open(Scripted(talk_and(lambda r: words("By one."))), **SMALL)
    two = await shared.open(Scripted(talk_and(lambda r: words("By two."))), **SMALL)
    for n in range(4):
        await ask(one, f"message {n}")
    done = await asyncio.gather(
        *(app.gateway.summarise(ALICE, WORK) for app in (one, two, one, two)), return_exceptions=True
    )
    made = await compactions(one)
    assert len(made) == 1
    others = [outcome for outcome in done if not isinstance(outcome, Turn)]
    assert len(others) == 3
    assert all(outcome is None or isinstance(outcome, Stale) for outcome in others), others
    assert (await ask(two, "on")).status == "done"


async def test_a_very_long_log_is_folded_in_one_pass(rooms: Rooms, request: pytest.FixtureRequest) -> None:
    """No entry is told to the summariser twice, and the next turn is quick to fit."""
    entries = 100_000 if request.config.getoption("--long") else 10_000
    app = await rooms.open(
        Scripted(talk_and(lambda r: words("In short."))),
        models_scripted={"kind": "demo", "context_window": 100_000},
    )
    await filled_with(app, entries)
    turn = await ask(app, "and now?")
    assert turn.status == "done", turn.failure
    await settled(app)
    told = [line for r in summaries(rooms.model) for line in r.items[0].text.splitlines()]  # type: ignore[union-attr]
    numbers = [int(line.split()[2]) for line in told if line.startswith(("user: entry", "assistant: entry"))]
    assert numbers == list(range(len(numbers)))
    assert len(numbers) > entries * 0.9
    assert len(await compactions(app)) == 1
    await ask(app, "and then?")
    assert tokens.of_request(asked(rooms.model)[-1]) < 50_000


async def filled_with(app: Any, entries: int) -> None:
    await app.gateway.create(ALICE, {}, WORK)
    for first in range(0, entries, 2_000):
        roles = ("user", "assistant")
        past = [Message(roles[n % 2], (Text(f"entry {n} of many"),)) for n in range(first, min(first + 2_000, entries))]
        await app.gateway.add(ALICE, WORK, past)


async def test_the_prompt_only_grows_at_its_end_whichever_node_answers(shared: Rooms) -> None:
    """Two nodes in turn: each request begins with the one before, item by item."""
    nodes = [(await shared.open(Scripted(talk_and(lambda r: words("Short.")))), shared.model) for _ in range(2)]
    sent: list[ModelRequest] = []
    for n in range(6):
        app, model = nodes[n % 2]
        await ask(app, f"message {n}")
        sent.append(model.requests[-1])
    for earlier, later in pairwise(sent):
        assert later.items[: len(earlier.items)] == earlier.items
        assert (later.instructions, later.tools) == (earlier.instructions, earlier.tools)
