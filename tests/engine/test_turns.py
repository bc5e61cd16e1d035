"""The step loop, from a submission to its end: model, tools, failures, retries, and the prefix the model is sent."""

import asyncio
from itertools import pairwise

import msgspec
import pytest

from conftest import ALICE, BOB
from engine.rooms import WORK, Rooms, ask, context, ended, message, say, shown, tip, told, transcript, until_told
from engine.scripted import Gate, Scripted, Tools, calls, constant, echo, in_turn, one_call_each, words
from engine.waiting import rest, until, within
from legato import logs
from legato.app import App
from legato.domain.entries import Image, Message, Reasoning, Setup, Text, Tool, ToolCall, ToolResult, draft
from legato.domain.events import Answered, Closed, Delta, Opened, retell
from legato.domain.handles import Address, ById, Handle, Slug
from legato.domain.ids import ConversationId
from legato.domain.turns import After, Fresh, Input, Submission, Usage
from legato.engine.protocols import (
    CallChunk,
    CallOpened,
    Finished,
    Invocation,
    ModelEvent,
    ModelRequest,
    ReasoningChunk,
    TextChunk,
    ToolOutput,
)
from legato.errors import AliasTaken, BadInput, ModelUnavailable, UnknownHandle

# -- answers


async def test_a_turn_answers_and_the_log_holds_what_was_said(rooms: Rooms) -> None:
    """An input and its answer are the conversation's first two messages, and the id answers with them."""
    app = await rooms.open()
    turn = await ask(app, "hello")
    assert turn.status == "done"
    assert await transcript(app) == ["user: hello", "assistant: you said: hello"]
    assert await app.gateway.answer(turn) == "you said: hello"
    assert await tip(app) == turn.id


async def test_a_picture_is_kept_with_the_turn_that_brings_it_or_not_at_all(rooms: Rooms) -> None:
    """What was refused leaves no bytes behind, which nobody could ever purge; what was admitted has them at once."""
    app = await rooms.open()
    look = Message("user", (Image(url="data:image/png;base64,aGVsbG8="),))
    given = Submission(principal=ALICE, target=ById(ConversationId("conv_none")), input=Input((draft(look),)))
    with pytest.raises(UnknownHandle):
        await app.gateway.submit(given)
    assert (await app.care.figures(ALICE)).attachments == 0
    await app.gateway.ended(await app.gateway.submit(msgspec.structs.replace(given, target=WORK)))
    assert (await app.care.figures(ALICE)).attachments == 1


async def test_followers_are_told_of_the_item_that_the_log_keeps(rooms: Rooms) -> None:
    """The entry of an answer has the id and the text that followers saw."""
    app = await rooms.open()
    turn = await ask(app, "hello")
    [opened, *deltas, closed] = await told(app, turn)
    answer = (await app.gateway.output(ALICE, turn.id))[-1]
    assert opened == Opened(0, answer.id, "message")
    assert deltas == [Delta(0, "you said: "), Delta(0, "hello")]
    assert closed == Closed(0)


async def test_reasoning_is_kept_before_what_it_led_to(rooms: Rooms) -> None:
    """Reasoning, an aside, more reasoning and the answer are items of their own, in order, and are sent again."""
    thinking: list[ModelEvent] = [ReasoningChunk("hm "), ReasoningChunk("so"), *words("because")]
    model = Scripted(in_turn(thinking))
    app = await rooms.open(model)
    await ask(app, "why?")
    assert await transcript(app) == ["user: why?", "thinks: hm so", "assistant: because"]
    await ask(app, "really?")
    assert model.requests[1].items[:3] == (
        message("why?"),
        Reasoning("hm so"),
        Message("assistant", (Text("because"),)),
    )


async def test_an_answer_cut_by_a_length_limit_is_marked_and_done(rooms: Rooms) -> None:
    """What a provider truncated is kept as incomplete; the turn is done."""
    app = await rooms.open(Scripted(in_turn([TextChunk("once upon a"), Finished(Usage(), truncated=True)])))
    turn = await ask(app, "tell")
    assert turn.status == "done"
    assert await transcript(app) == ["user: tell", "assistant: once upon a (cut off)"]


async def test_a_model_that_says_nothing_ends_the_turn_and_the_next_one_is_well_formed(rooms: Rooms) -> None:
    """An empty answer is no entry; the conversation goes on."""
    app = await rooms.open(Scripted(in_turn([Finished(Usage())])))
    assert (await ask(app, "hello?")).status == "done"
    assert (await ask(app, "anyone?")).status == "done"
    assert await transcript(app) == ["user: hello?", "user: anyone?", "assistant: you said: anyone?"]


async def test_usage_is_summed_over_the_steps(rooms: Rooms) -> None:
    """A turn's bill is the sum of its model calls."""
    first, second = Usage(10, 2, 3, 4, 5), Usage(100, 20, 30, 40, 50)
    model = Scripted(in_turn(calls(("c1", "work", "{}"), usage=first), words("done", usage=second)))
    app = await rooms.open(model, Tools(work=constant("ok")))
    assert (await ask(app)).usage == Usage(110, 22, 33, 44, 55)


async def test_a_failed_turn_is_billed_for_the_steps_that_finished(rooms: Rooms) -> None:
    """The usage of a finished step counts although a later one failed."""
    model = Scripted(in_turn(calls(("c1", "work", "{}"), usage=Usage(10, 2)), [ModelUnavailable("away")]))
    app = await rooms.open(model, Tools(work=constant("ok")))
    assert (await ask(app)).usage == Usage(10, 2)


# -- tools


async def test_tools_of_one_step_run_side_by_side_and_answer_in_the_order_of_their_calls(rooms: Rooms) -> None:
    """Two calls wait for each other, the second ends first, and the model is shown the results in call order."""
    both_run, second_ended = asyncio.Barrier(2), asyncio.Event()

    async def first(_: Invocation) -> str:
        await both_run.wait()
        await second_ended.wait()
        return "one"

    async def second(_: Invocation) -> str:
        await both_run.wait()
        second_ended.set()
        return "two"

    model = Scripted(in_turn(calls(("c1", "first", '{"a": 1}'), ("c2", "second", "{}"))))
    tools = Tools(first=first, second=second)
    app = await rooms.open(model, tools)
    turn = await ask(app, "both")
    assert turn.status == "done"
    one, two = call_ids(model.requests[1])
    assert model.requests[1].items == (
        message("both"),
        ToolCall(one, "first", '{"a": 1}'),
        ToolCall(two, "second", "{}"),
        ToolResult(one, "one"),
        ToolResult(two, "two"),
    )
    [of_first] = [i for i in tools.invoked if i.name == "first"]
    assert of_first == Invocation(ALICE, turn.conversation_id, turn.id, one, "first", {"a": 1})
    answered = [event for event in await told(app, turn) if isinstance(event, Answered)]
    assert {(event.call_id, event.output) for event in answered} == {(one, "one"), (two, "two")}


def call_ids(request: ModelRequest) -> list[str]:
    return [item.call_id for item in request.items if isinstance(item, ToolCall)]


async def test_a_model_that_numbers_its_calls_anew_each_time_makes_new_calls(rooms: Rooms) -> None:
    """The same number in two steps and two turns means four calls, each with its own result."""
    same = calls(("0", "work", "{}"))
    model = Scripted(in_turn(same, same, words("1"), same, same, words("2")))
    results = iter(range(4))

    async def work(_: Invocation) -> str:
        return f"result {next(results)}"

    app = await rooms.open(model, Tools(work=work))
    await ask(app, "one")
    await ask(app, "two")
    assert len(set(call_ids(model.requests[-1]))) == 4
    outputs = [item.output for item in model.requests[-1].items if isinstance(item, ToolResult)]
    assert outputs == [f"result {i}" for i in range(4)]


async def test_a_tool_call_is_durable_before_the_tool_runs(rooms: Rooms) -> None:
    """While a tool runs, the log already holds the call."""
    gate = Gate()
    app = await rooms.open(Scripted(in_turn(calls(("c1", "work", "{}")))), Tools(work=gate))
    turn = await say(app)
    await within(gate.entered.wait())
    assert await transcript(app) == ["user: hello", "calls work {}"]
    gate.opened.set()
    await ended(app, turn)


@pytest.mark.parametrize(
    ("called", "says"),
    [
        (("c1", "polite", "{}"), "I could not"),
        (("c1", "raising", "{}"), "ValueError: oops"),
        (("c1", "halving", "{}"), "no file caf?"),
        (("c1", "refusing", "{}"), "not today"),
        (("c1", "missing", "{}"), "There is no tool 'missing'. There are: polite, raising, halving, refusing."),
        (("c1", "polite", "{not json"), "not a JSON object"),
        (("c1", "polite", "[1, 2]"), "not a JSON object"),
    ],
)
async def test_a_tool_that_fails_is_a_result_that_the_model_reads(
    rooms: Rooms, called: tuple[str, str, str], says: str
) -> None:
    """Whatever goes wrong with a call, the model is told and the turn goes on."""
    model = Scripted(in_turn(calls(called)))
    tools = Tools(
        polite=constant(ToolOutput("I could not", is_error=True)),
        raising=constant(ValueError("oops")),
        halving=constant(ValueError("no file caf\udce9")),  # as names of files have it that are no UTF-8
        refusing=constant(BadInput("not today")),
    )
    app = await rooms.open(model, tools)
    turn = await ask(app)
    assert turn.status == "done"
    [result] = [item for item in model.requests[1].items if isinstance(item, ToolResult)]
    assert result.is_error
    assert says in result.output


async def test_a_failing_tool_does_not_stop_the_ones_beside_it(rooms: Rooms) -> None:
    """One call raises at once; the other, which runs longer, gives its result."""
    gate = Gate("slow but fine")

    async def raising(_: Invocation) -> str:
        await gate.entered.wait()
        asyncio.get_running_loop().call_soon(gate.opened.set)
        raise RuntimeError("at once")

    model = Scripted(in_turn(calls(("c1", "slow", "{}"), ("c2", "raising", "{}"))))
    app = await rooms.open(model, Tools(slow=gate, raising=raising))
    assert (await ask(app)).status == "done"
    assert next(i.output for i in model.requests[1].items if isinstance(i, ToolResult)) == "slow but fine"


async def test_an_agent_that_never_answers_is_stopped_after_its_steps(rooms: Rooms) -> None:
    """After `max_steps` the turn fails with that name, and what its tools gave stays."""
    model = Scripted(lambda request: calls((f"c{len(request.items)}", "work", "{}")))
    app = await rooms.open(model, Tools(work=constant("ok")), agent={"max_steps": 3})
    turn = await ask(app)
    assert (turn.status, turn.failure and turn.failure.code) == ("failed", "max_steps")
    assert len(model.requests) == 3
    assert (await context(app))[1:] == ["calls work {}", "result: ok"] * 3


# -- tools of the client

SEARCH = Tool("search", "Looks something up in the client's files.")


async def test_a_call_of_a_client_tool_is_handed_back_unanswered_and_answered_by_a_later_turn(rooms: Rooms) -> None:
    """The turn is done with the call open; the next turn brings the result, and the model goes on."""
    model = Scripted(in_turn(calls(("c1", "search", '{"q": "x"}'))))
    app = await rooms.open(model)
    turn = await ask(app, "find x", tools=(SEARCH,))
    assert turn.status == "done"
    assert await transcript(app) == ["user: find x", 'asks the client for search {"q": "x"}']
    [opened, _, _] = await told(app, turn)
    assert isinstance(opened, Opened)
    assert opened.client
    call_id = opened.call_id

    later = await ask(app, [ToolResult(call_id, "found")], After(turn.id), tools=(SEARCH,))
    assert later.conversation_id == turn.conversation_id
    assert model.requests[1].items == (
        message("find x"),
        ToolCall(call_id, "search", '{"q": "x"}', client=True),
        ToolResult(call_id, "found"),
    )


async def test_a_client_call_that_is_never_answered_does_not_wedge_the_conversation(rooms: Rooms) -> None:
    """The next message comes instead of a result, and the request is well-formed all the same."""
    model = Scripted(in_turn(calls(("c1", "search", "{}"))))
    app = await rooms.open(model)
    await ask(app, "find x", tools=(SEARCH,))
    assert (await ask(app, "never mind")).status == "done"
    [result] = [item for item in model.requests[1].items if isinstance(item, ToolResult)]
    assert ([result.call_id], result.is_error) == (call_ids(model.requests[1]), True)
    assert model.requests[1].items[-1] == message("never mind")


async def test_a_step_that_mixes_calls_runs_ours_and_hands_back_the_rest(rooms: Rooms) -> None:
    """The call of a tool here has its result when the turn is done; the client's has none."""
    model = Scripted(in_turn(calls(("c1", "search", "{}"), ("c2", "work", "{}"))))
    app = await rooms.open(model, Tools(work=constant("ours")))
    turn = await ask(app, "go", tools=(SEARCH,))
    assert turn.status == "done"
    assert len(model.requests) == 1
    assert await transcript(app) == ["user: go", "asks the client for search {}", "calls work {}", "result: ours"]

    [call_id] = [event.call_id for event in await told(app, turn) if isinstance(event, Opened) and event.client]
    await ask(app, [ToolResult(call_id, "theirs")], After(turn.id), tools=(SEARCH,))
    assert [i.output for i in model.requests[1].items if isinstance(i, ToolResult)] == ["theirs", "ours"]


async def test_an_heir_of_a_step_that_mixes_calls_leaves_the_clients_to_the_client(rooms: Rooms) -> None:
    """It settles what was called here, and asks the model nothing: the next word is the client's."""
    gate = Gate()
    app = await rooms.open(Scripted(in_turn(calls(("c1", "search", "{}"), ("c2", "work", "{}")))), Tools(work=gate))
    turn = await say(app, "go", tools=(SEARCH,))
    await within(gate.entered.wait())
    await rooms.crash(app)
    heir = Scripted()
    app = await rooms.open(heir, Tools(work=gate))
    assert (await ended(app, turn)).status == "done"
    assert heir.requests == []
    assert (await transcript(app))[:3] == ["user: go", "asks the client for search {}", "calls work {}"]


PATCH = Tool("patch", custom=True)


async def test_a_call_of_a_custom_tool_is_marked_where_it_is_told_and_where_it_is_kept(rooms: Rooms) -> None:
    """To followers, in the log, in what is told again from the log alone, and in an answer to it; the model sees its
    own words."""
    given = '{"input": "x"}'
    model = Scripted(in_turn(calls(("c1", "patch", given), ("c2", "search", "{}"))))
    app = await rooms.open(model)
    turn = await ask(app, "mend x", tools=(PATCH, SEARCH))
    opened = [event for event in await told(app, turn) if isinstance(event, Opened)]
    assert [(event.id.partition("_")[0], event.client, event.custom) for event in opened] == [
        ("ctc", True, True),
        ("fc", True, False),
    ]
    app = await rooms.restart()
    made = [entry for entry in await app.gateway.output(ALICE, turn.id) if isinstance(entry.body, ToolCall)]
    assert [event for event in retell(made) if isinstance(event, Opened)] == opened
    call = ToolCall(opened[0].call_id, "patch", given, client=True, custom=True)
    assert made[0].body == call
    result = ToolResult(call.call_id, "done", custom=True)
    await ask(app, [result], After(turn.id), tools=(PATCH, SEARCH))
    assert model.requests[-1].items[1:4:2] == (call, result)


async def test_a_tool_of_the_client_takes_the_place_of_ours_for_its_turn(rooms: Rooms) -> None:
    """The model is offered each name once; the call is the client's to answer, and the next turn has ours again."""
    theirs = Tool("work", "The client's.")
    model = Scripted(in_turn(calls(("c1", "work", "{}")), calls(("c2", "work", "{}"))))
    tools = Tools(work=constant("ours"), rest=constant("ours"))
    app = await rooms.open(model, tools)
    await ask(app, "go", tools=(SEARCH, theirs))
    assert model.requests[0].tools == (theirs, Tool("rest"), SEARCH)
    assert tools.invoked == []
    assert await transcript(app) == ["user: go", "asks the client for work {}"]
    await ask(app, "go on")
    assert model.requests[1].tools == (Tool("work"), Tool("rest"))
    assert [invocation.name for invocation in tools.invoked] == ["work"]


@pytest.mark.parametrize("moment", ["in mid call", "beside a call of ours"])
async def test_an_heir_leaves_a_call_to_the_client_whose_tool_takes_the_place_of_ours(
    rooms: Rooms, moment: str
) -> None:
    """Whether the call was being told when the process died, or waits for the turn's end: ours never runs."""
    gate, theirs = Gate(), Tool("work")
    tools = Tools(repeatable=True, work=constant("ours"), rest=gate)
    model = Scripted()
    app = await rooms.open(model, tools)
    turn = await say(app, "go", tools=(theirs,))
    asked = await model.asked()
    if moment == "in mid call":
        asked.call("work", "{")
        await until_told(app, turn, Delta(0, "{"))
    else:
        asked.call("work", call_id="c1")
        asked.call("rest", call_id="c2")
        asked.finish()
        await within(gate.entered.wait())
    await rooms.crash(app)
    gate.opened.set()
    app = await rooms.open(Scripted(in_turn(calls(("c3", "work", "{}")))), tools)
    assert (await ended(app, turn)).status == "done"
    assert {invocation.name for invocation in tools.invoked} <= {"rest"}
    assert (await transcript(app))[:2] == ["user: go", "asks the client for work {}"]


# -- failures


async def test_a_model_that_fails_at_once_fails_the_turn_and_keeps_what_was_said(rooms: Rooms) -> None:
    """The failure is named, and the input stays in log and context for the next turn."""
    model = Scripted(in_turn([ModelUnavailable("try later")]))
    app = await rooms.open(model)
    turn = await ask(app, "hello")
    assert turn.status == "failed"
    assert turn.failure is not None
    assert (turn.failure.code, turn.failure.message) == ("model_unavailable", "try later")
    assert await context(app) == ["user: hello"]
    await ask(app, "again")
    assert model.requests[1].items == (message("hello"), message("again"))


async def test_an_unexpected_fault_of_a_model_fails_its_turn_and_nothing_else(rooms: Rooms) -> None:
    """Any exception is one failed turn; the next one of the same conversation answers."""
    app = await rooms.open(Scripted(in_turn([RuntimeError("bug in a provider")])))
    turn = await ask(app, "hello")
    assert (turn.status, turn.failure and turn.failure.code) == ("failed", "internal_error")
    assert (await ask(app, "again")).status == "done"


async def test_text_that_was_cut_off_by_a_failure_is_kept_as_incomplete(rooms: Rooms) -> None:
    """What followers saw before the model failed is an entry, and is marked."""
    app = await rooms.open(Scripted(in_turn([TextChunk("It is"), TextChunk(" beca"), ModelUnavailable()])))
    turn = await ask(app, "why?")
    assert turn.status == "failed"
    assert await transcript(app) == ["user: why?", "assistant: It is beca (cut off)"]
    assert (await told(app, turn))[-1] == Closed(0, incomplete=True)


async def test_a_call_whose_arguments_were_cut_off_is_neither_kept_nor_run(rooms: Rooms) -> None:
    """Half a call is no call; the words before it stay."""
    cut = [TextChunk("I look."), CallOpened("c1", "work"), CallChunk("c1", '{"pa'), ModelUnavailable()]
    tools = Tools(work=constant("ok"))
    app = await rooms.open(Scripted(in_turn(cut)), tools)
    turn = await ask(app, "go")
    assert turn.status == "failed"
    assert await transcript(app) == ["user: go", "assistant: I look."]
    assert tools.invoked == []
    assert (await told(app, turn))[-1] == Closed(1, incomplete=True)


async def test_tools_that_ran_stay_when_a_later_step_fails(rooms: Rooms) -> None:
    """A failed turn keeps its calls and results, and the next turn's model sees them."""
    model = Scripted(in_turn(calls(("c1", "work", "{}")), [ModelUnavailable()]))
    app = await rooms.open(model, Tools(work=constant("ok")))
    assert (await ask(app, "go")).status == "failed"
    assert await context(app) == ["user: go", "calls work {}", "result: ok"]


async def test_a_turn_for_an_unknown_agent_fails_by_name_where_that_is_wanted(rooms: Rooms) -> None:
    """With `unknown_model = "reject"` nobody else answers in its place."""
    app = await rooms.open(server_unknown_model="reject")
    turn = await ask(app, agent="nobody")
    assert (turn.status, turn.failure and turn.failure.code) == ("failed", "model_not_found")
    assert (await ask(app)).status == "done"


@pytest.mark.parametrize("named", [True, False], ids=["there", "nowhere"])
async def test_a_turn_for_an_agent_that_only_another_node_has_is_logged(
    shared: Rooms, capsys: pytest.CaptureFixture[str], named: bool
) -> None:
    """Where the node that admitted it knew the name; a name that nobody knew is a matter of `unknown_model`."""
    there = await shared.open(worker_concurrency=0, agents_new={"model": "scripted"})
    here = await shared.open()
    logs.set_up("warning", "json")
    told_as = {"model": there.roster.cast("new" if named else "nobody").name}
    turn = await say(there, agent="new" if named else "nobody", echo=told_as)
    assert (await ended(here, turn)).status == "done"
    assert ("nobody here has the name asked for" in capsys.readouterr().err) == named


# -- retries


async def test_a_retry_after_a_failed_turn_stays_in_the_conversation_and_hides_the_failed_try(rooms: Rooms) -> None:
    """`after` the failed turn's parent continues; the model does not see the failed try, people do."""
    model = Scripted(in_turn(words("one"), [TextChunk("par"), ModelUnavailable()], words("two")))
    app = await rooms.open(model)
    parent = await ask(app, "first", Fresh())
    failed = await ask(app, "second", After(parent.id))
    assert failed.status == "failed"
    retry = await ask(app, "second", After(parent.id))
    home = ById(parent.conversation_id)
    assert retry.conversation_id == failed.conversation_id == parent.conversation_id
    assert model.requests[2].items == (message("first"), Message("assistant", (Text("one"),)), message("second"))
    shown_to_model = await context(app, home)
    assert "assistant: par (cut off)" not in shown_to_model
    assert shown_to_model.count("user: second") == 1
    people_see = await transcript(app, home)
    assert people_see.count("user: second") == 2
    assert "assistant: par (cut off)" in people_see
    assert len(await app.gateway.conversations(ALICE)) == 1


async def test_a_retry_goes_around_every_failed_try_before_it(rooms: Rooms) -> None:
    """Three tries fail, two of them each after the parent and one after a failed one; the fourth sees none of them."""
    model = Scripted(in_turn(words("one"), [ModelUnavailable()], [ModelUnavailable()], [ModelUnavailable()]))
    app = await rooms.open(model)
    parent = await ask(app, "first")
    await ask(app, "try a", After(parent.id))
    second = await ask(app, "try b", After(parent.id))
    await ask(app, "try c", After(second.id))
    last = await ask(app, "try d", After(parent.id))
    assert last.conversation_id == parent.conversation_id
    assert model.requests[-1].items == (message("first"), Message("assistant", (Text("one"),)), message("try d"))


async def test_a_retry_after_a_cancelled_turn_hides_the_cancelled_try(rooms: Rooms) -> None:
    """A cancelled turn is gone around like a failed one; its partial answer stays in the transcript."""
    model = Scripted(in_turn(words("one")))
    app = await rooms.open(model)
    parent = await ask(app, "first")
    model.reply = None
    turn = await say(app, "second", After(parent.id))
    asked = await model.asked()
    asked.say("half an")
    await until_told(app, turn, Delta(0, "half an"))
    cancelled = await within(app.gateway.cancel(ALICE, turn.id))
    assert cancelled.status == "cancelled"
    await within(asked.left.wait())

    model.reply = echo
    retry = await ask(app, "second again", After(parent.id))
    assert retry.conversation_id == parent.conversation_id
    assert model.requests[-1].items[2:] == (message("second again"),)
    assert "assistant: half an (cut off)" in await transcript(app)


async def test_a_retry_after_a_turn_cancelled_while_it_waited_has_nothing_to_hide(rooms: Rooms) -> None:
    """A turn cancelled in the queue never reached the log; `after` its parent continues."""
    model = Scripted()
    app = await rooms.open(model)
    parent = await say(app, "first")
    asked = await model.asked()
    waiting = await say(app, "second", After(parent.id))
    assert (await within(app.gateway.cancel(ALICE, waiting.id))).status == "cancelled"
    asked.finish("one")
    await ended(app, parent)
    model.reply = echo
    retry = await ask(app, "third", After(parent.id))
    assert retry.conversation_id == parent.conversation_id
    assert await transcript(app) == ["user: first", "assistant: one", "user: third", "assistant: you said: third"]


async def test_going_on_after_the_failed_turn_itself_keeps_it_in_the_context(rooms: Rooms) -> None:
    """`after` a failed turn means that it counts."""
    model = Scripted(in_turn([ModelUnavailable()]))
    app = await rooms.open(model)
    failed = await ask(app, "first")
    await ask(app, "second", After(failed.id))
    assert model.requests[1].items == (message("first"), message("second"))


async def test_an_older_turn_is_continued_in_a_fork(rooms: Rooms) -> None:
    """`after` a turn that is not the tip makes a conversation that shares the past and leaves the other alone."""
    model = Scripted(echo)
    app = await rooms.open(model)
    first = await ask(app, "one")
    await ask(app, "two")
    fork = await ask(app, "other", After(first.id))
    assert fork.conversation_id != first.conversation_id
    assert model.requests[-1].items == (
        message("one"),
        Message("assistant", (Text("you said: one"),)),
        message("other"),
    )
    assert (await transcript(app))[2:] == ["user: two", "assistant: you said: two"]
    assert (await transcript(app, ById(fork.conversation_id)))[2:] == ["user: other", "assistant: you said: other"]


# -- setup and prefix


async def setups(app: App, of: Handle = WORK) -> list[Setup]:
    entries = await app.gateway.transcript(ALICE, of)
    return [entry.body for entry in entries if isinstance(entry.body, Setup)]


async def test_a_setup_is_written_once_and_again_only_when_the_agent_changes(rooms: Rooms) -> None:
    """Turns and restarts repeat no setup; another spec makes one at the next turn."""
    app = await rooms.open(agent={"instructions": "Be brief."})
    await ask(app, "one")
    await ask(app, "two")
    app = await rooms.restart()
    await ask(app, "three")
    assert [s.instructions for s in await setups(app)] == ["Be brief."]
    app = await rooms.restart(agent={"instructions": "Be kind."})
    await ask(app, "four")
    await ask(app, "five")
    assert [s.instructions for s in await setups(app)] == ["Be brief.", "Be kind."]


async def test_a_new_tool_is_a_changed_agent(rooms: Rooms) -> None:
    """The setup holds the exact tools, so another toolset makes a new one."""
    model = Scripted(echo)
    app = await rooms.open(model, Tools(a=constant("")))
    await ask(app)
    app = await rooms.restart(tools=Tools(a=constant(""), b=constant("")))
    await ask(app)
    assert [[tool.name for tool in setup.tools] for setup in await setups(app)] == [["a"], ["a", "b"]]
    assert [tool.name for tool in model.requests[1].tools] == ["a", "b"]


async def test_a_failed_turn_keeps_the_setup_that_it_ran_with(rooms: Rooms) -> None:
    """The setup is written although the model failed, stays in force when the try is hidden, and is not repeated."""
    app = await rooms.open(Scripted(in_turn(words("one"), [ModelUnavailable()])))
    parent = await ask(app, "one")
    app = await rooms.restart(agent={"instructions": "new"})
    await ask(app, "two", After(parent.id))
    await ask(app, "two", After(parent.id))
    assert [s.instructions for s in await setups(app)] == ["", "new"]


async def test_instructions_of_a_request_hold_for_that_turn(rooms: Rooms) -> None:
    """They replace the agent's for one turn, are not kept, and the agent's are back at the next."""
    model = Scripted(echo)
    app = await rooms.open(model, agent={"instructions": "the agent's"})
    await ask(app, instructions="just now")
    await ask(app)
    await ask(app, instructions="")
    assert [request.instructions for request in model.requests] == ["just now", "the agent's", ""]
    assert [setup.instructions for setup in await setups(app)] == ["the agent's"]


async def test_the_parameters_of_a_request_reach_the_model(rooms: Rooms) -> None:
    """What a request asks for beyond its input holds for one turn."""
    model = Scripted(echo)
    app = await rooms.open(model)
    await ask(app, params={"temperature": 0.5})
    await ask(app)
    assert [request.params for request in model.requests] == [{"temperature": 0.5}, {}]


async def test_what_the_model_was_sent_is_extended_and_never_rewritten(rooms: Rooms) -> None:
    """Byte for byte, each request begins with the one before: over steps, tools, a failure, steering and restarts."""
    model = Scripted(one_call_each)
    gate = Gate()
    gate.opened.set()
    app = await rooms.open(model, Tools(work=gate), agent={"instructions": "Be brief."})
    await ask(app, "one")
    await ask(app, "two")
    app = await rooms.restart()
    await ask(app, "three")
    model.reply = in_turn([ReasoningChunk("hm"), TextChunk("cut"), ModelUnavailable()])
    await ask(app, "four")
    app = await rooms.restart()
    model.reply = one_call_each
    gate.opened.clear()
    gate.entered.clear()
    host = await say(app, "five")
    await within(gate.entered.wait())
    await say(app, "aside", busy="steer")
    gate.opened.set()
    await ended(app, host)
    app = await rooms.restart(keep_events=0)
    await ask(app, "six")
    prefixes = [_bytes(request) for request in model.requests]
    assert len(prefixes) == 11
    for before, after in pairwise(prefixes):
        assert after[: len(before)] == before


def _bytes(request: ModelRequest) -> bytes:
    items = b"\n".join(msgspec.json.encode(item) for item in request.items)
    return msgspec.json.encode([request.instructions, request.tools]) + b"\n" + items


# -- what is seen of a log


async def test_posted_items_are_seen_by_the_next_turn_and_run_no_agent(rooms: Rooms) -> None:
    """Items take their place in the log; the tip and the model's rest are left alone."""
    model = Scripted(echo)
    app = await rooms.open(model)
    turn = await ask(app, "one")
    await within(app.gateway.add(ALICE, WORK, [message("by the way"), Message("assistant", (Text("noted"),))]))
    assert len(model.requests) == 1
    assert await tip(app) == turn.id
    await ask(app, "two")
    assert model.requests[1].items[2:] == (
        message("by the way"),
        Message("assistant", (Text("noted"),)),
        message("two"),
    )


async def test_posted_items_are_found_by_search(rooms: Rooms) -> None:
    """Search finds what a client posted without waiting for a turn to end."""
    app = await rooms.open()
    await ask(app, "one")

    async def found(what: str) -> bool:
        return bool(await app.gateway.search(ALICE, what))

    await until(lambda: found("you said: one"))
    await rest()  # the indexer has nothing to do and waits to be woken
    await within(app.gateway.add(ALICE, WORK, [message("zebra crossing")]))
    await until(lambda: found("zebra"), bound=5)


async def test_a_control_entry_speaks_only_of_what_it_can(rooms: Rooms) -> None:
    """Expanding a message, or pinning a control entry, is refused and writes nothing."""
    app = await rooms.open()
    await ask(app, "one")
    await within(app.gateway.hide(ALICE, WORK, 1, 1))
    head = (await app.gateway.find(ALICE, WORK)).head_seq
    with pytest.raises(BadInput):
        await within(app.gateway.expand(ALICE, WORK, 1))
    with pytest.raises(BadInput):
        await within(app.gateway.pin(ALICE, WORK, head))
    assert (await app.gateway.find(ALICE, WORK)).head_seq == head


@pytest.mark.parametrize("position", [-1, 99])
async def test_a_position_that_is_not_there_is_refused(rooms: Rooms, position: int) -> None:
    """Every verb that takes a position says so when the log has none such."""
    app = await rooms.open()
    await ask(app, "one")
    gateway = app.gateway
    for refused in (
        gateway.rewind(ALICE, WORK, position),
        gateway.compact(ALICE, WORK, position, "all of it"),
        gateway.expand(ALICE, WORK, position),
        gateway.pin(ALICE, WORK, position),
        gateway.hide(ALICE, WORK, position, position),
        gateway.fork(ALICE, WORK, position),
    ):
        with pytest.raises(BadInput):
            await within(refused)


async def test_a_summary_stands_for_the_past_until_it_is_expanded(rooms: Rooms) -> None:
    """The model sees the summary instead; people see everything; expanding brings the originals back."""
    model = Scripted(echo)
    app = await rooms.open(model)
    await ask(app, "one")
    head = (await app.gateway.find(ALICE, WORK)).head_seq
    compaction = await within(app.gateway.compact(ALICE, WORK, head, "they greeted"))
    await ask(app, "two")
    assert len(model.requests[-1].items) == 2
    assert "they greeted" in shown_item(model.requests[-1].items[0])
    assert (await transcript(app))[:2] == ["user: one", "assistant: you said: one"]
    assert compaction.first_seq is not None
    await within(app.gateway.expand(ALICE, WORK, compaction.first_seq))
    await ask(app, "three")
    assert model.requests[-1].items[:2] == (message("one"), Message("assistant", (Text("you said: one"),)))


async def test_an_address_of_somebody_else_is_refused_as_taken(rooms: Rooms) -> None:
    """An address means one conversation in the whole installation; a second owner is told so, not of a defect."""
    app = await rooms.open()
    place = Address("telegram", "bot", "42")
    await ask(app, "mine")
    await app.gateway.bind(ALICE, place, WORK)
    await ask(app, "theirs", who=BOB)
    with pytest.raises(AliasTaken):
        await within(app.gateway.bind(BOB, place, WORK))
    with pytest.raises(AliasTaken):
        await say(app, "hello", place, who=BOB)
    assert (await app.gateway.find(ALICE, place)).id == (await app.gateway.find(ALICE, WORK)).id


async def test_two_names_of_one_conversation_share_its_context(rooms: Rooms) -> None:
    """A talk goes on under another name, and a taken name is not given away."""
    app = await rooms.open()
    await ask(app, "one")
    await app.gateway.bind(ALICE, Slug("other"), WORK)
    await ask(app, "two", Slug("other"))
    assert (await transcript(app))[2:] == ["user: two", "assistant: you said: two"]
    await ask(app, "three", Slug("third"))
    with pytest.raises(AliasTaken):
        await app.gateway.bind(ALICE, Slug("other"), Slug("third"))


def shown_item(item: object) -> str:
    assert isinstance(item, Message)
    return item.text


async def test_output_shows_what_a_turn_wrote_and_nothing_of_others(rooms: Rooms) -> None:
    """The entries of a turn are its own, its input included."""
    app = await rooms.open()
    await ask(app, "one")
    second = await ask(app, "two")
    assert shown(await app.gateway.output(ALICE, second.id)) == ["user: two", "assistant: you said: two"]
