"""A provider request is well-formed for any log, keeps what was said, and grows only at its end."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from legato.domain.attachments import referred
from legato.domain.entries import (
    AnyBody,
    Compaction,
    Expand,
    Hide,
    Image,
    Item,
    Message,
    Note,
    Pin,
    Reasoning,
    Remove,
    Rewind,
    Setup,
    Text,
    ToolCall,
    ToolResult,
)
from legato.domain.shape import UNANSWERED, Past, made_of, shape
from legato.engine.tokens import bytes_of, of_items
from legato.models.openai_chat import _messages
from well_formed import problems

MAKERS: tuple[Any, ...] = (of_items, bytes_of, referred, _messages)
TOLD = "[Result of an earlier tool call]\n"


def said(role: str, text: str) -> Message:
    return Message(role, (Text(text),))  # type: ignore[arg-type]  # the roles below are all of them


def call(call_id: str, *, client: bool = False) -> ToolCall:
    return ToolCall(call_id, "tool", f'{{"of": "{call_id}"}}', client=client)


def result(call_id: str, output: str = "fine") -> ToolResult:
    return ToolResult(call_id, output)


# -- any sequence of bodies

WORDS = (
    *("user", "user", "assistant", "assistant", "system", "developer", "image", "reasoning", "reasoning"),
    *("call",) * 5,
    *("result",) * 6,
    *("cut", "cut", "cut thought", "no user", "no assistant", "no reasoning", "no parts", "note", "setup", "control"),
)
CALL_IDS = ("a", "b", "c", "d")


def body_of(n: int, word: str, call_id: str) -> AnyBody:
    """A body whose text is its own: `n` tells it from every other."""
    match word:
        case "user" | "assistant" | "system" | "developer":
            return said(word, f"{word} {n}")
        case "image":
            return Message("user", (Text(""), Image(url=f"https://example.org/{n}.png")))
        case "reasoning":
            return Reasoning(f"thought {n}") if n % 2 else Reasoning(encrypted=f"sealed {n}")
        case "call":
            return ToolCall(call_id, "tool", f'{{"n": {n}}}', client=n % 3 == 0)
        case "result":
            return ToolResult(call_id, f"output {n}", is_error=n % 2 == 0, unknown=n % 5 == 0)
        case "cut":
            return Message("assistant", (Text(f"answ {n}"),), incomplete=True)
        case "cut thought":
            return Reasoning(f"thou {n}", incomplete=True)
        case "no user":
            return said("user", "")
        case "no assistant":
            return said("assistant", "")
        case "no reasoning":
            return Reasoning()
        case "no parts":
            return Message("assistant" if n % 2 else "user", ())
        case "note":
            return Note(f"note {n}")
        case "setup":
            return Setup("agent", f"model {n}")
        case _:
            return (Compaction(0, "short"), Expand(0), Rewind(0), Pin(0), Hide(0, 0), Remove(0))[n % 6]


@st.composite
def bodies(draw: st.DrawFn) -> list[AnyBody]:
    size = draw(st.integers(0, 20))
    dice = draw(st.lists(st.integers(0, len(WORDS) * len(CALL_IDS) - 1), min_size=size, max_size=size))
    return [body_of(n, WORDS[die // 4], CALL_IDS[die % 4]) for n, die in enumerate(dice)]


def is_empty(body: Message | Reasoning) -> bool:
    if isinstance(body, Reasoning):
        return body == Reasoning()
    return body.text.strip() == "" and not any(isinstance(part, Image) for part in body.parts)


def without_empty_inputs(log: list[AnyBody]) -> list[AnyBody]:
    return [body for body in log if not (isinstance(body, Message) and body.role != "assistant" and is_empty(body))]


def cut_off(body: AnyBody) -> bool:
    return isinstance(body, Message | Reasoning) and body.incomplete


def is_told(item: Item) -> bool:
    return isinstance(item, Message) and item.text.startswith(TOLD)


def results_in_time(log: Sequence[AnyBody]) -> dict[str, ToolResult]:
    """Of each call the first result that came before the model went on: before anything was said to the model (or
    any result came) and the model then said or called something more."""
    found: dict[str, ToolResult] = {}
    called: set[str] = set()
    for at, body in enumerate(log):
        if not isinstance(body, ToolCall) or body.call_id in called:
            continue
        called.add(body.call_id)
        heard = False
        for later in log[at + 1 :]:
            if isinstance(later, ToolResult) and later.call_id == body.call_id:
                found[body.call_id] = later
                break
            if isinstance(later, ToolResult) or (isinstance(later, Message) and later.role != "assistant"):
                heard = True
            elif isinstance(later, Message | Reasoning | ToolCall) and heard:
                break
    return found


@settings(max_examples=1000, deadline=None)
@given(bodies())
def test_every_sequence_of_bodies_becomes_a_well_formed_request(log: list[AnyBody]) -> None:
    assert problems(shape(log)) == []


@settings(max_examples=600, deadline=None)
@given(bodies())
def test_what_was_said_is_in_the_request_once_and_in_order(log: list[AnyBody]) -> None:
    """Every non-empty message is there verbatim, once, in the order of its role. An answer that was cut off is there
    when a person spoke right after it, and not when the model took a new run at it."""
    log = without_empty_inputs(log)
    sent = [item for item in shape(log) if isinstance(item, Message) and not is_told(item)]
    for role in ("user", "assistant", "system", "developer"):
        wanted = [body for body in log if isinstance(body, Message) and body.role == role and not is_empty(body)]
        wanted = [body for body in wanted if not body.incomplete or spoken_to_after(log, body)]
        assert [item for item in sent if item.role == role] == wanted


def spoken_to_after(log: list[AnyBody], body: AnyBody) -> bool:
    """Whether the next thing for the model after this one, results of tools apart, is an input."""
    after = [later for later in log[log.index(body) + 1 :] if isinstance(later, Message | Reasoning | ToolCall)]
    return bool(after) and isinstance(after[0], Message) and after[0].role != "assistant"


@settings(max_examples=1000, deadline=None)
@given(bodies())
def test_every_call_has_its_first_result_in_time_or_says_that_none_was_recorded(log: list[AnyBody]) -> None:
    """Calls and results are paired, verbatim; what cannot be a result any more is told as text; nothing is lost."""
    log = without_empty_inputs(log)
    sent = shape(log)
    calls = {body.call_id: body for body in reversed(log) if isinstance(body, ToolCall)}
    in_time = results_in_time(log)

    assert {item.call_id: item for item in sent if isinstance(item, ToolCall)} == calls
    assert {item.call_id: item for item in sent if isinstance(item, ToolResult)} == {
        call_id: in_time.get(call_id, ToolResult(call_id, UNANSWERED, is_error=True)) for call_id in calls
    }
    late = [body.output for body in log if isinstance(body, ToolResult) and body not in in_time.values()]
    assert [item.text for item in sent if isinstance(item, Message) and is_told(item)] == [TOLD + out for out in late]


@settings(max_examples=300, deadline=None)
@given(bodies())
def test_reasoning_is_kept_when_it_led_to_a_message_or_a_call(log: list[AnyBody]) -> None:
    sent = shape(log)
    called: set[str] = set()
    for body, after in pairwise(log):
        called |= {body.call_id} if isinstance(body, ToolCall) else set()
        led_on = (isinstance(after, ToolCall) and after.call_id not in called) or (
            isinstance(after, Message) and after.role == "assistant" and not is_empty(after) and not after.incomplete
        )
        if isinstance(body, Reasoning) and not is_empty(body) and not body.incomplete and led_on:
            assert sent.count(body) == 1


@settings(max_examples=300, deadline=None)
@given(bodies())
def test_a_well_formed_request_is_left_as_it_is(log: list[AnyBody]) -> None:
    request = shape([body for body in log if not cut_off(body)])
    assert shape(request) == request


@settings(max_examples=300, deadline=None)
@given(bodies(), st.integers(0, 20))
def test_what_is_not_for_the_model_changes_nothing(log: list[AnyBody], at: int) -> None:
    """Notes, setups and controls may stand anywhere."""
    for aside in (Note("n"), Setup("a", "m"), Compaction(0, "s"), Expand(0), Rewind(0), Pin(0), Hide(0, 0), Remove(0)):
        assert shape([*log[:at], aside, *log[at:]]) == shape(log)


# -- a log that grows the way the engine grows it


class Grown(NamedTuple):
    """A log, and its length at each model call."""

    log: list[AnyBody]
    calls: list[int]


class Engine:
    """Grows a log by turns of: input → [what the model says, its calls, their results in any order]* → an answer. A
    client's calls end the turn and are answered later, or never; steering inputs come between a call and its result;
    a crash leaves an answer that is cut off, and a failure a call without a result. What happens is read from `dice`;
    when they are used up, the plainest thing happens."""

    def __init__(self, dice: list[int]) -> None:
        self.dice = dice[::-1]
        self.log: list[AnyBody] = []
        self.model_calls: list[int] = []
        self.with_client: list[str] = []

    def roll(self, sides: int) -> int:
        return self.dice.pop() % sides if self.dice else 0

    def chance(self, sides: int) -> bool:
        return self.roll(sides) == sides - 1

    def shuffled(self, things: list[AnyBody]) -> list[AnyBody]:
        return [things.pop(self.roll(len(things))) for _ in range(len(things))]

    def hear(self) -> None:
        """The input of a turn or of a steer: messages, and what the client's tools gave."""
        n = len(self.log)
        given: list[AnyBody] = [said("user", f"input {n} {i}") for i in range(self.roll(3))]
        if self.chance(6):
            given.append(said("developer", f"rule {n}"))
        for call_id in [c for c in self.with_client if self.chance(2)]:
            given.append(result(call_id, f"late {n}"))
            if not self.chance(4):  # some clients send a result twice
                self.with_client.remove(call_id)
        self.log.extend(self.shuffled(given) if given else [said("user", f"input {n}")])

    def step(self) -> bool:
        """One model call and what came of it; says whether the turn goes on."""
        log, n = self.log, len(self.log)
        self.model_calls.append(n)
        if self.chance(6):  # cut off: by a crash, and an heir goes on, or by a cancel, a failure or a full window
            log.extend([Reasoning(f"thou {n}", incomplete=True)][self.roll(2) :])
            log.append(Message("assistant", (Text(f"answ {n}"),), incomplete=True))
            return self.chance(2)
        calls = [call(f"call {n} {i}", client=self.chance(4)) for i in range(self.roll(4))]
        if not calls or self.chance(2):
            log.append(said("assistant", f"answer {n}"))
        if self.chance(3):
            log.insert(n, Reasoning(f"thought {n}"))
        log.extend(calls)
        if self.chance(8):  # a model may say something after its calls
            log.append(said("assistant", f"remark {n}"))
        self.with_client.extend(c.call_id for c in calls if c.client)
        for found in self.shuffled([result(c.call_id, f"output {n}") for c in calls if not c.client]):
            if self.chance(6):
                self.hear()
            if self.chance(12):
                return False  # it failed while its tools ran
            log.append(found)
        return bool(calls) and not any(c.client for c in calls)

    def turn(self) -> None:
        self.hear()
        for _ in range(4):
            if not self.step():
                break


@st.composite
def grown(draw: st.DrawFn) -> Grown:
    size = draw(st.integers(0, 100))
    engine = Engine(draw(st.lists(st.integers(0, 11), min_size=size, max_size=size)))
    for _ in range(4):
        engine.turn()
    return Grown(engine.log, engine.model_calls)


@settings(max_examples=800, deadline=None)
@given(grown())
def test_what_was_sent_once_is_the_beginning_of_everything_sent_later(growth: Grown) -> None:
    """The request of each model call is a prefix of the request of every later one, so the prompt stays cached."""
    requests = [shape(growth.log[:length]) for length in growth.calls]
    for earlier, later in pairwise(requests):
        assert later[: len(earlier)] == earlier
    assert all(problems(request) == [] for request in requests)


@settings(max_examples=800, deadline=None)
@given(bodies() | grown().map(lambda growth: growth.log), st.sets(st.integers(0, 40)))
def test_what_was_made_of_a_past_is_not_made_again(log: list[AnyBody], cuts: set[int]) -> None:
    """A past that grew piece by piece, wherever it was settled, and the rest after it: the same items, and the same of
    whatever is made of them, as of the whole log at once."""
    past, rest = Past(), list[AnyBody]()
    for at, body in enumerate([*log, said("user", "at last")]):
        settled = past.grown(rest) if at in cuts else None
        if settled is not None:
            past, rest = settled, []
        rest.append(body)
        items = shape(rest, past)
        if at in cuts or body not in log:
            assert items == shape([*log, body][: at + 1])
            for maker in MAKERS:
                assert made_of(items, maker) == maker(tuple(items))


def assert_grows(*logs: list[AnyBody]) -> None:
    """Each log is the one before and more; each request must be the one before and more, too."""
    requests = [shape([body for piece in logs[: n + 1] for body in piece]) for n in range(len(logs))]
    for earlier, later in pairwise(requests):
        assert later[: len(earlier)] == earlier


def test_a_clients_late_result_is_told_in_its_place() -> None:
    """Once the model went on without a result, the result comes as text where it came, and moves nothing."""
    before: list[AnyBody] = [said("user", "go"), call("a", client=True), said("user", "never mind")]
    after: list[AnyBody] = [said("assistant", "all right"), result("a", "42"), said("user", "and now?")]
    assert_grows(before, after)
    assert shape([*before, *after]) == (
        said("user", "go"),
        call("a", client=True),
        ToolResult("a", UNANSWERED, is_error=True),
        said("user", "never mind"),
        said("assistant", "all right"),
        said("user", TOLD + "42"),
        said("user", "and now?"),
    )


def test_a_steering_message_waits_for_the_results_of_the_step() -> None:
    log: list[AnyBody] = [said("user", "go"), call("a"), call("b"), result("b"), said("user", "faster"), result("a")]
    assert shape(log) == (
        said("user", "go"),
        *(call("a"), call("b"), result("a"), result("b")),
        said("user", "faster"),
    )


def test_a_cut_off_answer_is_shown_to_whoever_answers_a_person_and_not_to_whoever_begins_again() -> None:
    cut = Message("assistant", (Text("The answer is fo"),), incomplete=True)
    asked: list[AnyBody] = [said("user", "what is it?"), cut]
    assert shape(asked) == (said("user", "what is it?"),)
    assert shape([*asked, said("user", "go on")]) == (said("user", "what is it?"), cut, said("user", "go on"))
    assert shape([*asked, said("assistant", "42")]) == (said("user", "what is it?"), said("assistant", "42"))


def test_an_answer_to_an_empty_input_does_not_move_before_an_open_call() -> None:
    """An empty message is not shown, and still the model went on after it: what was sent stays where it was."""
    assert_grows(
        [said("user", "go"), call("a", client=True), said("user", "")],
        [said("assistant", "still waiting for a"), said("user", "yes")],
    )


# -- what `problems` can see


@pytest.mark.parametrize(
    ("request_", "complaint"),
    [
        ([said("user", "")], "empty item"),
        ([Message("user", ())], "empty item"),
        ([said("user", "hi"), Reasoning(), said("assistant", "hi")], "empty item"),
        ([call("a")], "calls not answered"),
        ([call("a"), call("b"), result("a")], "calls not answered"),
        ([call("a"), said("user", "hi"), result("a")], "calls not answered at once"),
        ([call("a"), said("assistant", "hi"), call("b"), result("a"), result("b")], "calls not answered at once"),
        ([call("a"), call("b"), result("a"), call("c"), result("b"), result("c")], "calls not answered at once"),
        ([call("a"), Reasoning("hm"), result("a")], "calls not answered at once"),
        ([result("a")], "result without its call"),
        ([result("a"), call("a"), result("a")], "result without its call"),
        ([call("a"), result("a"), result("a")], "result without its call"),
        ([call("a"), result("a"), call("a"), result("a")], "call id used twice"),
        ([call("a"), call("a"), result("a"), result("a")], "call id used twice"),
        ([Reasoning("hm"), said("user", "hi")], "reasoning that led to nothing"),
        ([Reasoning("hm"), said("developer", "hi")], "reasoning that led to nothing"),
        ([call("a"), result("a"), Reasoning("hm")], "reasoning that led to nothing"),
    ],
)
def test_a_broken_rule_is_named(request_: list[Item], complaint: str) -> None:
    assert [found for found in problems(request_) if found.startswith(complaint)]


def test_a_good_request_has_no_problems() -> None:
    assert not problems(
        [
            *(said("system", "be kind"), said("user", "go"), Reasoning("hm"), Reasoning(encrypted="…")),
            *(said("assistant", "one moment"), call("a"), call("b"), result("b"), result("a")),
            *(call("c"), result("c"), Reasoning("so"), call("d"), result("d"), said("assistant", "done")),
        ]
    )


def test_nothing_becomes_nothing() -> None:
    assert shape([]) == ()
    assert problems([]) == []
