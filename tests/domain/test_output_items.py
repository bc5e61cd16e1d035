"""Events: which items of a turn's output a crash left open, and where its heir goes on."""

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from legato.domain.events import Answered, AnyEvent, Closed, Delta, Joined, Opened, next_index, open_items
from legato.domain.ids import EntryId, TurnId

ITEM = EntryId("msg_1")


def opened(index: int) -> Opened:
    return Opened(index, ITEM, "message")


def answered(index: int) -> Answered:
    return Answered(index, ITEM, "call_1", "fine")


@st.composite
def streams(draw: st.DrawFn) -> tuple[list[AnyEvent], set[int], int]:
    """The events of a turn cut off anywhere, with the places still open and the number of places used, kept by hand."""
    events: list[AnyEvent] = []
    still_open: set[int] = set()
    used = 0
    for die in draw(st.lists(st.integers(0, 99), max_size=30)):
        what, place = die % 5, die // 5
        chosen = sorted(still_open)[place % len(still_open)] if still_open else None
        if what == 0:
            events.append(opened(used))
            still_open.add(used)
            used += 1
        elif what == 1:
            events.append(answered(used))
            used += 1
        elif what == 2 and chosen is not None:
            events.append(Closed(chosen, incomplete=place % 2 == 0))
            still_open.remove(chosen)
        elif what == 3 and chosen is not None:
            events.append(Delta(chosen, "more"))
        elif what == 4:
            events.append(Joined(TurnId("resp_2")))
    return events, still_open, used


@settings(max_examples=200, deadline=None)
@given(streams())
def test_open_items_are_those_opened_and_not_closed(stream: tuple[list[AnyEvent], set[int], int]) -> None:
    """In the order in which they were opened."""
    events, still_open, _ = stream
    assert open_items(events) == tuple(sorted(still_open))


@settings(max_examples=200, deadline=None)
@given(streams())
def test_the_next_place_is_the_first_that_was_never_used(stream: tuple[list[AnyEvent], set[int], int]) -> None:
    events, _, used = stream
    assert next_index(events) == used


@settings(max_examples=200, deadline=None)
@given(streams())
def test_closing_what_is_open_leaves_nothing_open_and_uses_no_place(
    stream: tuple[list[AnyEvent], set[int], int],
) -> None:
    """What an heir does first with the stream of a turn it takes over."""
    events, _, used = stream
    closed = [*events, *(Closed(index, incomplete=True) for index in open_items(events))]
    assert open_items(closed) == ()
    assert next_index(closed) == used


def test_a_turn_that_said_nothing_begins_at_place_zero() -> None:
    assert next_index([]) == 0
    assert open_items([]) == ()


def test_an_input_that_joined_takes_no_place_in_the_output() -> None:
    assert next_index([Joined(TurnId("resp_2"))]) == 0


@settings(max_examples=100, deadline=None)
@given(streams(), st.text(max_size=20))
def test_events_are_read_as_they_were_written(stream: tuple[list[AnyEvent], set[int], int], text: str) -> None:
    events = [*stream[0], Delta(0, text), Opened(0, ITEM, "tool_call", "call_1", text, True)]
    assert msgspec.json.decode(msgspec.json.encode(events), type=list[AnyEvent]) == events
