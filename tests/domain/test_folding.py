"""Folding: a summary never separates a pair, the latest input stays, and what is trimmed fits."""

from hypothesis import given, settings
from hypothesis import strategies as st

from legato.domain.entries import AnyBody, Entry, Item, Message, Note, Text, ToolCall, ToolResult
from legato.domain.folding import actions, fold, trim, whole_places
from legato.domain.ids import ConversationId, EntryId, TurnId
from legato.domain.shape import shape
from well_formed import problems

TALK = ConversationId("conv_1")


def size(body: AnyBody) -> int:
    match body:
        case Message(text=text):
            return 1 + len(text)
        case ToolCall(arguments=text) | ToolResult(output=text):
            return 1 + len(text)
        case _:
            return 0


def said(role: str, length: int) -> Message:
    return Message(role, (Text("x" * length),))  # type: ignore[arg-type]


@st.composite
def logs(draw: st.DrawFn) -> list[Entry]:
    """Exchanges with steps of tools in them; now and then a note, and a call that nobody answered yet."""
    bodies: list[AnyBody] = []
    for exchange in range(draw(st.integers(0, 8))):
        bodies.append(said("user", draw(st.integers(0, 30))))
        for step in range(draw(st.integers(0, 3))):
            calls = [f"c{exchange}.{step}.{n}" for n in range(draw(st.integers(1, 3)))]
            bodies += [ToolCall(call, "work", "y" * draw(st.integers(0, 9))) for call in calls]
            answered = calls if draw(st.booleans()) else calls[: draw(st.integers(0, len(calls)))]
            bodies += [ToolResult(call, "z" * draw(st.integers(0, 40))) for call in answered]
        if draw(st.booleans()):
            bodies.append(said("assistant", draw(st.integers(0, 30))))
        if draw(st.integers(0, 4)) == 0:
            bodies.append(Note("aside"))
    return [Entry(seq, EntryId(f"e{seq}"), TurnId("t"), body, 0.0) for seq, body in enumerate(bodies, 1)]


@settings(max_examples=300, deadline=None)
@given(logs(), st.integers(0, 200), st.integers(1, 5))
def test_a_fold_keeps_pairs_together_and_the_latest_input_verbatim(
    entries: list[Entry], keep: int, exchanges: int
) -> None:
    plan = fold(entries, 0, size, keep, exchanges)
    inputs = [e for e in entries if isinstance(e.body, Message) and e.body.role == "user"]
    if plan is None:
        return
    folded = {e.seq for e in plan.entries}
    stays = {e.seq for e in entries if e.seq > plan.upto} | set(plan.pins)
    assert folded | stays == {e.seq for e in entries}
    assert not folded & stays
    assert any(isinstance(e.body, Item) for e in plan.entries)
    assert inputs[-1].seq in stays
    for entry in entries:
        if isinstance(entry.body, ToolResult):
            [call] = [e.seq for e in entries if isinstance(e.body, ToolCall) and e.body.call_id == entry.body.call_id]
            assert (call in folded) == (entry.seq in folded)


def test_a_late_result_stays_with_its_call_until_the_model_has_gone_on_without_it() -> None:
    """As `shape` pairs them: before that a person may speak in between, and after it the result is told as text."""
    call, result, asks = ToolCall("c", "work", "{}"), ToolResult("c", "late"), said("user", 1)
    for bodies, whole in (
        ([asks, call, asks, result, said("assistant", 1)], [0, 1, 4]),
        ([asks, call, asks, said("assistant", 1), result], [0, 1, 2, 3, 4]),
        ([asks, call, asks], [0, 1]),
        ([asks, call, ToolCall("d", "work", "{}"), ToolResult("d", "ok"), asks], [0, 1]),
    ):
        entries = [Entry(seq, EntryId(f"e{seq}"), TurnId("t"), body, 0.0) for seq, body in enumerate(bodies, 1)]
        assert whole_places(entries) == whole


@settings(max_examples=300, deadline=None)
@given(logs(), st.integers(0, 30), st.integers(0, 200), st.integers(0, 200))
def test_what_one_fold_kept_is_folded_by_the_next_unless_it_is_still_the_latest_input(
    entries: list[Entry], then: int, keep: int, later: int
) -> None:
    """Nothing is lost between them, nothing that was folded comes back, and what someone else pinned stays."""
    first = fold(entries[:then], 0, size, keep)
    if first is None:
        return
    mine = first.entries[:1]
    view = [*mine, *(e for e in entries if e.seq > first.upto or e.seq in first.pins)]
    view.sort(key=lambda e: e.seq)
    second = fold(view, first.upto, size, later, kept=first.pins)
    if second is None:
        return
    assert second.upto >= first.upto
    folded = {e.seq for e in second.entries}
    stays = {e.seq for e in view if e.seq > second.upto} | set(second.pins) | {e.seq for e in mine}
    assert folded | stays == {e.seq for e in view}
    assert not folded & stays
    inputs = [e.seq for e in entries if isinstance(e.body, Message) and e.body.role == "user"]
    assert inputs[-1] in stays


@settings(max_examples=300, deadline=None)
@given(logs(), st.integers(0, 400), st.sampled_from([5, 500]))
def test_what_is_trimmed_fits_and_is_well_formed(entries: list[Entry], room: int, summary: int) -> None:
    """The last exchange stays, and the system's own words as far as they fit; the rest goes from the oldest on."""
    items = shape([said("system", summary), *(e.body for e in entries)])
    trimmed = trim(items, size, room, TALK)
    last = next((p for p in reversed(range(len(items))) if _is_input(items[p])), 0)
    if trimmed is None:
        return
    assert sum(size(item) for item in trimmed.items) <= max(room, 0) + 8  # the digits of the marker
    assert problems(trimmed.items) == []
    assert trimmed.cut != (said("system", summary) in trimmed.items)
    rest = [item for item in trimmed.items if not (isinstance(item, Message) and item.role == "system")]
    assert not trimmed.cut or not any(map(_is_input, rest[1:]))
    if last:
        assert items[last] in trimmed.items
    if sum(size(item) for item in items) <= room:
        assert trimmed.items == items


def _is_input(item: Item) -> bool:
    return isinstance(item, Message) and item.role == "user"


def test_what_was_done_is_listed_with_its_outcome() -> None:
    bodies: list[AnyBody] = [
        ToolCall("1", "send", '{"to": "ann"}'),
        ToolCall("2", "send", '{"to": "bob"}'),
        ToolResult("1", "ok"),
        ToolResult("2", "no such person", is_error=True),
        ToolCall("3", "pay", "{}"),
        ToolResult("3", "?", is_error=True, unknown=True),
        ToolCall("4", "pay", "{}"),
    ]
    entries = [Entry(seq, EntryId(f"e{seq}"), TurnId("t"), body, 0.0) for seq, body in enumerate(bodies, 1)]
    assert actions(entries) == [
        'send {"to": "ann"}: done',
        'send {"to": "bob"}: failed',
        "pay {}: outcome unknown",
        "pay {}: outcome unknown",
    ]
