"""The oracle: what must be true after any crash, from lists that were kept outside the store."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from crash.life import Report
from crash.script import AGAIN, INPUTS, ONCE, noted, planned
from legato.domain.entries import Compaction, Message, Reasoning, ToolCall, ToolResult
from legato.domain.events import Answered, AnyEvent, Closed, Delta, Joined, Opened
from legato.domain.ids import TurnId


def report_of(folder: Path, life: int) -> Report:
    return msgspec.json.decode((folder / f"report.{life}").read_bytes(), type=Report)


def check(folder: Path, life: int, script: str = "talk") -> None:
    """Everything, after the life that brought all turns to their end."""
    report = report_of(folder, life)
    check_inputs(folder, report, script)
    check_turns(report)
    check_calls(folder, report, script)
    folds = [entry for entry in report.entries if isinstance(entry.body, Compaction)]
    assert bool(folds) == (script == "fold"), "only what is too long is folded"
    check_streams(report)
    check_seen(folder, report, life)
    assert report.findings == []


def check_inputs(folder: Path, report: Report, script: str) -> None:
    """No acknowledged input is lost, none is doubled, and all are in one conversation."""
    inputs = INPUTS[script]
    said = Counter(e.body.text for e in report.entries if isinstance(e.body, Message) and e.body.role == "user")
    assert said == Counter(inputs), "each input is in the log once"
    admitted = {turn.dedup_key: turn.id for turn in report.turns}
    assert sorted(turn.dedup_key or "" for turn in report.turns) == sorted(inputs), "each input is one turn"
    for text, turn_id in noted(folder / "acks"):
        assert admitted[text] == turn_id, f"'{text}' is still the turn that was acknowledged"
    assert report.answers == admitted, "said once more, each is still the same turn"
    assert report.conversations == 1
    assert {turn.conversation_id for turn in report.turns} == {report.conversation}


def check_turns(report: Report) -> None:
    """Each turn has one outcome, and owes its answer once."""
    turns = {turn.id: turn for turn in report.turns}
    for turn in report.turns:
        host = turns[turn.joined_turn] if turn.joined_turn else turn
        assert (host.status, host.failure, host.joined_turn) == ("done", None, None)
        owed = [json.loads(delivery.body)["text"] for delivery in report.deliveries[turn.id]]
        said = [e.body for e in report.entries if e.turn_id == turn.id and isinstance(e.body, Message)]
        assert owed == ([] if turn.joined_turn else [said[-1].text]), "the answer is owed once"
        if not turn.joined_turn:
            assert (said[-1].role, said[-1].incomplete) == ("assistant", False), "the last word is a whole answer"


def check_calls(folder: Path, report: Report, script: str) -> None:
    """Every call is answered once; no effect without its call; what must not happen twice happened once at most."""
    calls = {e.body.call_id: e.body for e in report.entries if isinstance(e.body, ToolCall)}
    results = [e.body for e in report.entries if isinstance(e.body, ToolResult)]
    assert sorted((c.name, _key(c)) for c in calls.values()) == sorted(planned(script)), "each call was made once"
    assert sorted(result.call_id for result in results) == sorted(calls), "each call has one result"
    effects = noted(folder / "effects")
    happened = Counter(effect["call_id"] for effect in effects)
    assert set(happened) <= set(calls), "no effect is without its call in the log"
    assert max(Counter(e["key"] for e in effects if e["name"] == ONCE).values(), default=0) <= 1
    for result in results:
        call = calls[result.call_id]
        if result.unknown:
            assert call.name == ONCE, "what may be repeated is never in doubt"
            assert result.is_error
        else:
            assert result.output.startswith(f"{call.name} {_key(call)}: done")
            assert not result.is_error
            assert happened[call.call_id] == 1 if call.name == ONCE else happened[call.call_id] >= 1
    assert {c.name for c in calls.values()} <= {ONCE, AGAIN}


def check_streams(report: Report) -> None:
    """What is followed is what the log holds: each item opened and closed once, its text the sum of its deltas."""
    for turn in report.turns:
        events = report.followed[turn.id]
        if turn.joined_turn:
            assert events == report.followed[turn.joined_turn], "both ids show the same stream"
            continue
        items = {event.index: event for event in events if isinstance(event, Opened)}
        closed = {event.index: event.incomplete for event in events if isinstance(event, Closed)}
        assert len(items) == sum(isinstance(event, Opened) for event in events), "no place is used twice"
        assert sorted(event.index for event in events if isinstance(event, Closed)) == sorted(items)
        shown = {item.id: (item.kind, _text(events, item.index), closed[item.index]) for item in items.values()}
        kept: dict[str, Any] = {}
        answered = []
        for entry in (entry for entry in report.entries if entry.turn_id == turn.id):
            match entry.body:
                case Message(role="assistant", incomplete=incomplete) as message:
                    kept[entry.id] = "message", message.text, incomplete
                case Reasoning(text=text, incomplete=incomplete):
                    kept[entry.id] = "reasoning", text, incomplete
                case ToolCall(arguments=arguments):
                    kept[entry.id] = "tool_call", arguments, False
                case ToolResult(call_id=call_id, output=output):
                    answered.append((entry.id, call_id, output))
        cut_off_calls = {id for id, (kind, _, cut) in shown.items() if kind == "tool_call" and cut}
        assert {id: item for id, item in shown.items() if id not in cut_off_calls} == kept
        assert not cut_off_calls & set(kept), "a call that was cut off is not in the log"
        assert [(e.id, e.call_id, e.output) for e in events if isinstance(e, Answered)] == answered
        joined = [other.id for other in report.turns if other.joined_turn == turn.id]
        assert [e.turn_id for e in events if isinstance(e, Joined)] == joined, "who joined is told once"


def check_seen(folder: Path, report: Report, lives: int) -> None:
    """What any follower was ever shown is a prefix of what is read now."""
    for life in range(1, lives + 1):
        for turn_id, events in seen_in(folder, life).items():
            assert events == report.followed[turn_id][: len(events)], f"shown in life {life}, and no longer so"


def seen_in(folder: Path, life: int) -> dict[TurnId, list[AnyEvent]]:
    """The events that the followers of one life were shown, in order."""
    seen: dict[TurnId, list[AnyEvent]] = {}
    path = folder / f"seen.{life}"
    for line in path.read_text().splitlines() if path.exists() else ():
        turn_id, n, event = msgspec.json.decode(line, type=tuple[TurnId, int, AnyEvent])
        shown = seen.setdefault(turn_id, [])
        assert n == len(shown), "a follower is shown every event once, in order"
        shown.append(event)
    return seen


def _text(events: list[AnyEvent], index: int) -> str:
    return "".join(event.text for event in events if isinstance(event, Delta) and event.index == index)


def _key(call: ToolCall) -> str:
    return str(json.loads(call.arguments)["key"])
