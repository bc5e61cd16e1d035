"""Whoever comes to a turn late, and has one text of it all, is told nothing that was cut off and said anew."""

import pytest

from legato.domain.entries import EntryId
from legato.domain.events import Answered, AnyEvent, Closed, Delta, Latecomer, Opened


def message(index: int, *words: str, whole: bool = True) -> list[AnyEvent]:
    opened = Opened(index, EntryId(f"msg_{index}"), "message")
    return [opened, *(Delta(index, word) for word in words), Closed(index, incomplete=not whole)]


def call(index: int) -> list[AnyEvent]:
    opened = Opened(index, EntryId(f"fc_{index}"), "tool_call", call_id=f"call_{index}", name="look")
    return [opened, Delta(index, "{}"), Closed(index), Answered(index + 1, EntryId("fco_1"), f"call_{index}", "seen")]


TURNS: dict[str, tuple[list[AnyEvent], str]] = {
    "whole": (message(0, "a", "b"), "ab"),
    "cut and begun anew": (message(0, "a", "b", whole=False) + message(1, "a", "b", "c"), "abc"),
    "cut twice": (message(0, "a", whole=False) + message(1, "a", "b", whole=False) + message(2, "abc"), "abc"),
    "cut after a tool": (message(0, "a") + call(1) + message(3, "b", whole=False) + message(4, "bc"), "abc"),
    "cut by its length": (message(0, "a") + call(1) + message(3, "b", whole=False), "ab"),
}


@pytest.mark.parametrize("which", TURNS)
def test_what_is_heard_is_what_was_meant_wherever_somebody_comes_in(which: str) -> None:
    """After any number of events, and however these come together. What is begun and cut off later is heard."""
    events, text = TURNS[which]
    cuts = [place for place, e in enumerate(events) if isinstance(e, Closed) and e.incomplete]
    for known in range(cuts[-1] if cuts else 0, len(events) + 1):
        for size in (1, 2, len(events)):
            late, heard = Latecomer(events[:known]), []
            for n in range(0, len(events), size):
                heard += late.take(n, events[n : n + size])
            heard += late.rest()
            assert "".join(e.text for e in heard if isinstance(e, Delta) and e.text != "{}") == text
            assert heard == [e for e in events if e in heard], "in order"


def test_a_message_that_goes_on_is_told_as_soon_as_that_is_known() -> None:
    """The first new word of it brings all that was held back."""
    events = message(0, "a", "b", "c")
    late = Latecomer(events[:2])
    assert late.take(0, events[:2]) == []
    assert late.take(2, [events[2]]) == events[:3]
    assert late.take(3, events[3:]) == events[3:]
