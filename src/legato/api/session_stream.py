"""The stream of a session's turn, in the words that clients of the Hermes API server know.

It begins with `run.started` and `message.started`. All text and all tools of the turn belong to that one message. It
ends with `assistant.completed` and `run.completed` (`run.cancelled`), or with `error` and `run.failed`; the last event
of all is `done`. Every event has a number, from 1 on, and the time at which it was told.
"""

import time
from collections.abc import AsyncGenerator, Iterator
from typing import Any

import msgspec

from legato.api.door import Call
from legato.api.wire import named_event
from legato.domain.entries import Entry, Message, ToolCall, ToolResult
from legato.domain.events import Answered, AnyEvent, Closed, Delta, Opened
from legato.domain.grams import shortened
from legato.domain.turns import Turn, Usage

THINKING = "_thinking"  # the name under which thoughts are told as the progress of a tool


async def told(call: Call, session_id: str, turn: Turn) -> AsyncGenerator[bytes, None]:
    """What happens in a turn, as it happens."""
    telling = _Telling(session_id, turn)
    yield telling.event("run.started", user_message={"role": "user", "content": _asked(turn)})
    yield telling.event("message.started", message={"id": telling.message_id, "role": "assistant"})
    with call.gateway.attending(turn) as end:
        async for events in call.gateway.hear(turn):
            yield b"".join(line for event in events for line in telling.take(event))
        outcome = await call.gateway.answered(turn, end)
    brought = {d.id for d in outcome.turn.input.drafts}
    for line in telling.end(outcome.turn, [entry for entry in outcome.entries if entry.id not in brought]):
        yield line


class _Telling:
    """Numbers and translates the events of one turn."""

    def __init__(self, session_id: str, turn: Turn) -> None:
        self.message_id = f"msg_{turn.id.partition('_')[2]}"
        self._about = {"session_id": session_id, "run_id": turn.id}
        self._seq = 0
        self._opened: dict[int, Opened] = {}
        self._pieces: dict[int, list[str]] = {}
        self._names: dict[str, str] = {}

    def event(self, name: str, **fields: Any) -> bytes:
        self._seq += 1
        return named_event(name, {**self._about, **fields, "seq": self._seq, "ts": time.time()})

    def take(self, event: AnyEvent) -> Iterator[bytes]:
        match event:
            case Opened(index=index):
                self._opened[index], self._pieces[index] = event, []
                self._names[event.call_id] = event.name
            case Delta(index=index, text=text):
                self._pieces[index].append(text)
                names = {"message": "assistant.delta", "reasoning": "reasoning.delta"}
                if name := names.get(self._opened[index].kind):
                    yield self._within(name, delta=text)
            case Closed(index=index):
                yield from self._closed(self._opened[index], "".join(self._pieces.pop(index)))
            case Answered(call_id=call_id, is_error=is_error):
                tool = self._names.get(call_id, "")
                yield self._within("tool.completed", tool_name=tool, call_id=call_id, error=is_error)
            case _:
                pass

    def end(self, turn: Turn, written: list[Entry]) -> Iterator[bytes]:
        """How it ended."""
        if turn.failure is not None:
            yield self.event("error", message=turn.failure.message, code=turn.failure.code)
            yield self._within("run.failed", error=turn.failure.message)
        else:
            done = turn.status == "done"
            output = answer(written)
            state = {"completed": done, "partial": not done, "interrupted": not done}
            yield self._within("assistant.completed", content=output, **state)
            lines = [line for entry in written if (line := message(entry)) and line["role"] in ("assistant", "tool")]
            ended = {"completed": done, "output": output, "messages": lines, "usage": usage(turn)}
            yield self._within("run.completed" if done else "run.cancelled", **ended)
        yield self.event("done")

    def _closed(self, opened: Opened, text: str) -> Iterator[bytes]:
        if opened.kind == "tool_call":
            about = {"call_id": opened.call_id, "preview": shortened(text), "args": _arguments(text)}
            yield self._within("tool.started", tool_name=opened.name, **about)
        elif opened.kind == "reasoning":
            yield self._within("tool.progress", tool_name=THINKING, delta=text)

    def _within(self, name: str, **fields: Any) -> bytes:
        return self.event(name, message_id=self.message_id, **fields)


def message(entry: Entry) -> dict[str, Any] | None:
    """An entry as a message of a session; what clients have no word for is left out."""
    line: dict[str, Any] = {"id": entry.id, "timestamp": entry.created_at, "turn": entry.turn_id}
    match entry.body:
        case Message(role=role) as said:
            return line | {"role": role, "content": said.text}
        case ToolCall(call_id=call_id, name=name, arguments=arguments):
            function = {"name": name, "arguments": arguments}
            made = [{"id": call_id, "type": "function", "function": function}]
            return line | {"role": "assistant", "content": None, "tool_calls": made}
        case ToolResult(call_id=call_id, output=output):
            return line | {"role": "tool", "tool_call_id": call_id, "content": output}
        case _:
            return None


def answer(written: list[Entry]) -> str:
    """The last thing that was said of what a turn wrote."""
    said = [e.body.text for e in written if isinstance(e.body, Message) and e.body.role == "assistant"]
    return said[-1] if said else ""


def usage(turn: Turn) -> dict[str, int]:
    counted = turn.usage or Usage()
    return {
        "input_tokens": counted.input_tokens,
        "output_tokens": counted.output_tokens,
        "total_tokens": counted.input_tokens + counted.output_tokens,
    }


def _asked(turn: Turn) -> str:
    """The last thing that a turn's input says."""
    said = [d.body.text for d in turn.input.drafts if isinstance(d.body, Message) and d.body.role == "user"]
    return said[-1] if said else ""


def _arguments(text: str) -> dict[str, Any] | None:
    """The arguments of a call, where they can be read."""
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        return None
