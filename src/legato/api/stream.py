"""The stream of a Response: a pure fold of a turn's events into the events of the Responses API.

The fold always begins at the turn's first event, so the numbers are the same for every follower, at any time, on any
node; one that comes back with its last number just skips what it has. Each event of ours becomes one to three of
theirs. Extension data goes into fields; there are no event types of our own.
"""

from collections.abc import Iterator
from typing import Any

from legato.api.custom import input_of
from legato.api.items import answered, called, compacted, custom_called, output_text, refused
from legato.domain.events import Answered, AnyEvent, Closed, Delta, Folded, Opened

WireEvent = dict[str, Any]


class _Item:
    """An item that is being told."""

    def __init__(self, opened: Opened) -> None:
        self.opened = opened
        self.pieces: list[str] = []

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    @property
    def part(self) -> dict[str, Any]:
        """What a message has said so far."""
        return refused(self.text) if self.opened.refusal else output_text(self.text)


class ResponseStream:
    """Numbers and translates the events of one turn."""

    def __init__(self) -> None:
        self._n = 0
        self._items: dict[int, _Item] = {}

    def begin(self, response: dict[str, Any]) -> Iterator[WireEvent]:
        """The turn was admitted."""
        begun = {**response, "status": "in_progress", "output": [], "completed_at": None, "usage": None, "error": None}
        begun["incomplete_details"] = None
        yield self._event("response.created", response=begun)
        yield self._event("response.in_progress", response=begun)

    def take(self, event: AnyEvent) -> Iterator[WireEvent]:
        """One event of the turn."""
        match event:
            case Opened(index=index):
                item = self._items[index] = _Item(event)
                yield from self._opened(item)
            case Delta(index=index, text=text):
                item = self._items[index]
                item.pieces.append(text)
                if not item.opened.custom:  # its text can be told only when it is whole
                    yield self._delta(item, text)
            case Closed(index=index, incomplete=incomplete):
                yield from self._closed(self._items.pop(index), "incomplete" if incomplete else "completed")
            case Answered(index=index, id=id, call_id=call_id, output=output, is_error=is_error):
                told = answered(id, call_id, output, is_error)
                yield self._event("response.output_item.added", output_index=index, item=told)
                yield self._event("response.output_item.done", output_index=index, item=told)
            case Folded(index=index, id=id, compaction=compaction):
                folded = compacted(id, compaction)
                yield self._event("response.output_item.added", output_index=index, item=folded)
                yield self._event("response.output_item.done", output_index=index, item=folded)
            case _:
                pass  # an input that joined: the wire has no word for it

    def end(self, response: dict[str, Any]) -> Iterator[WireEvent]:
        """The turn has ended."""
        error = response["error"]
        if error is not None:
            flat = {name: error[name] for name in ("code", "message", "param")}
            yield self._event("error", **flat, error=error)
        kind = {"completed": "completed", "failed": "failed"}.get(response["status"], "incomplete")
        yield self._event(f"response.{kind}", response=response)

    def _opened(self, item: _Item) -> Iterator[WireEvent]:
        opened = item.opened
        yield self._event("response.output_item.added", output_index=opened.index, item=_shown(item, "in_progress"))
        if opened.kind == "message":
            yield self._of("response.content_part.added", item, content_index=0, part=item.part)
        elif opened.kind == "reasoning":
            part = {"type": "summary_text", "text": ""}
            yield self._of("response.reasoning_summary_part.added", item, summary_index=0, part=part)

    def _delta(self, item: _Item, text: str) -> WireEvent:
        match item.opened.kind:
            case "message" if item.opened.refusal:
                return self._of("response.refusal.delta", item, content_index=0, delta=text)
            case "message":
                return self._of("response.output_text.delta", item, content_index=0, delta=text, logprobs=[])
            case "reasoning":
                return self._of("response.reasoning_summary_text.delta", item, summary_index=0, delta=text)
            case "tool_call":
                return self._of("response.function_call_arguments.delta", item, delta=text)

    def _closed(self, item: _Item, status: str) -> Iterator[WireEvent]:
        match item.opened.kind:
            case "message":
                if item.opened.refusal:
                    yield self._of("response.refusal.done", item, content_index=0, refusal=item.text)
                else:
                    yield self._of("response.output_text.done", item, content_index=0, text=item.text, logprobs=[])
                yield self._of("response.content_part.done", item, content_index=0, part=item.part)
            case "reasoning":
                yield self._of("response.reasoning_summary_text.done", item, summary_index=0, text=item.text)
                part = {"type": "summary_text", "text": item.text}
                yield self._of("response.reasoning_summary_part.done", item, summary_index=0, part=part)
            case "tool_call" if item.opened.custom:
                given = _input(item, status)
                if given:
                    yield self._of("response.custom_tool_call_input.delta", item, delta=given)
                yield self._of("response.custom_tool_call_input.done", item, input=given)
            case "tool_call":
                name = item.opened.name
                yield self._of("response.function_call_arguments.done", item, name=name, arguments=item.text)
        yield self._event("response.output_item.done", output_index=item.opened.index, item=_shown(item, status))

    def _of(self, kind: str, item: _Item, **fields: Any) -> WireEvent:
        return self._event(kind, item_id=item.opened.id, output_index=item.opened.index, **fields)

    def _event(self, kind: str, **fields: Any) -> WireEvent:
        event = {"type": kind, "sequence_number": self._n, **fields}
        self._n += 1
        return event


def _shown(item: _Item, status: str) -> dict[str, Any]:
    opened = item.opened
    match opened.kind:
        case "message":
            content = [] if status == "in_progress" else [item.part]
            return {"id": opened.id, "type": "message", "role": "assistant", "status": status, "content": content}
        case "reasoning":
            thought = [] if status == "in_progress" else [{"type": "summary_text", "text": item.text}]
            return {"id": opened.id, "type": "reasoning", "summary": thought, "status": status}
        case "tool_call" if opened.custom:
            return custom_called(opened.id, opened.call_id, opened.name, _input(item, status), status)
        case "tool_call":
            return called(opened.id, opened.call_id, opened.name, item.text, status)


def _input(item: _Item, status: str) -> str:
    """What a custom tool is called with. Half of it is nothing that anybody should act on."""
    return input_of(item.text) if status == "completed" else ""
