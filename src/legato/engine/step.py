"""A step: one model call, gathered into items as its chunks arrive.

Each item gets its id and its place when it opens, so what a follower sees and what the log keeps are the same items.
A call gets an id of ours: servers number theirs from 0 in every answer, and a log needs each to mean one call.

Items are told one after the other. Servers may mix the pieces of several calls, and only the end of the step says that
a call is whole; so the first call is told as it comes, and what comes after it when the step ends.
"""

from collections.abc import Iterable, Iterator

from legato.domain.entries import Body, Draft, Message, Note, Reasoning, Text, Tool, ToolCall, draft, new_entry_id
from legato.domain.events import AnyEvent, Closed, Delta, ItemKind, Opened
from legato.domain.ids import moment_of, new_call_id
from legato.domain.turns import CUT_SHORT, CutBy, Turn, Usage, cut_by
from legato.engine.protocols import (
    CallChunk,
    CallOpened,
    Finished,
    ModelEvent,
    ReasoningChunk,
    RefusalChunk,
    TextChunk,
)


class _Open:
    """An item that is growing."""

    def __init__(
        self, index: int, begins: TextChunk | RefusalChunk | ReasoningChunk | CallOpened, moment: str, tool: Tool | None
    ) -> None:
        self.index, self.says = index, type(begins)
        self.kind = _KINDS[self.says]
        self.call = begins if isinstance(begins, CallOpened) else None
        self.client, self.custom = tool is not None, tool is not None and tool.custom
        self.pieces: list[str] = []
        self.id = new_entry_id(_BODIES[self.kind], custom=self.custom, moment=moment)
        self.call_id = new_call_id() if self.call is not None else ""
        self.incomplete = False
        self.held = False  # nobody is told of it before the step ends
        self.closed = False

    @property
    def text(self) -> str:
        return "".join(self.pieces)


_KINDS: dict[type[ModelEvent], ItemKind] = {
    TextChunk: "message",
    RefusalChunk: "message",
    ReasoningChunk: "reasoning",
    CallOpened: "tool_call",
}
_BODIES: dict[ItemKind, type[Body]] = {"message": Message, "reasoning": Reasoning, "tool_call": ToolCall}


class Step:
    """Takes model events, gives events for followers, ends as drafts for the log. Its items begin with the moment of
    the turn."""

    def __init__(self, turn: Turn, index: int) -> None:
        self.moment = moment_of(turn.id)
        self.next_index = index
        self.usage = Usage()
        self.cut_by: CutBy | None = None
        self.client_tools = turn.input.options.tools_by_name
        self._items: list[_Open] = []
        self._prose: _Open | None = None  # the message or reasoning that is growing
        self._calls: dict[str, _Open] = {}  # the calls that are growing

    @property
    def begun(self) -> bool:
        """Whether the model has said anything."""
        return bool(self._items)

    def take(self, event: ModelEvent) -> Iterable[AnyEvent]:
        """One thing the model said."""
        prose = self._prose
        if type(event) is TextChunk and event.text and prose is not None and prose.says is TextChunk and not prose.held:
            prose.pieces.append(event.text)  # nearly everything is this
            return (Delta(prose.index, event.text),)
        return self._take(event)

    def _take(self, event: ModelEvent) -> Iterator[AnyEvent]:
        match event:
            case TextChunk(text=text) | RefusalChunk(text=text) | ReasoningChunk(text=text):
                if text:
                    if self._prose is None or self._prose.says is not type(event):
                        yield from self._close_prose()
                        self._prose = self._new(event)
                        yield from self._open(self._prose)
                    yield from self._grow(self._prose, text)
            case CallOpened(call_id=call_id):
                yield from self._close_prose()
                item = self._calls[call_id] = self._new(event)  # the same number again is another call
                yield from self._open(item)
            case CallChunk(call_id=call_id, text=text):
                yield from self._grow(self._calls[call_id], text)
            case Finished(usage=usage, truncated=truncated, filtered=filtered):
                self.usage = usage
                self.cut_by = "max_output_tokens" if truncated else "content_filter" if filtered else None

    def close(self, *, incomplete: bool) -> Iterator[AnyEvent]:
        """Tell what was held back, and close what is open. When the step was cut off, what was growing is incomplete.
        A call that many servers send without a word of arguments has none, in the JSON that whoever reads it expects.
        These events belong into the transaction that writes the entries: nobody is told of an end that a crash could
        take back."""
        for item in (self._prose, *self._calls.values()):
            if item is not None:
                item.incomplete = incomplete
        self._prose, self._calls = None, {}
        for item in self._items:
            if not item.closed:
                item.closed = True
                if item.call is not None and not item.incomplete and not item.text:
                    yield from self._grow(item, "{}")
                if item.held:
                    yield from (self._opened(item), Delta(item.index, item.text))
                yield Closed(item.index, item.incomplete)

    def drafts(self) -> list[Draft]:
        """What the log keeps, in order. A call whose arguments were cut off never ran and is not kept; where no call is
        left, the turn ends here, and a note says why, unless the last message does."""
        kept = [Draft(item.id, body) for item in self._items if (body := self._body(item)) is not None]
        bodies = [d.body for d in kept]
        if self.cut_by not in (None, cut_by(bodies)) and not any(isinstance(body, ToolCall) for body in bodies):
            kept.append(draft(Note(CUT_SHORT[self.cut_by], reason=self.cut_by)))
        return kept

    def _new(self, begins: TextChunk | RefusalChunk | ReasoningChunk | CallOpened) -> _Open:
        tool = self.client_tools.get(begins.name) if isinstance(begins, CallOpened) else None
        item = _Open(self.next_index, begins, self.moment, tool)
        item.held = any(before.call is not None for before in self._items)
        self.next_index += 1
        self._items.append(item)
        return item

    def _open(self, item: _Open) -> Iterator[AnyEvent]:
        if not item.held:
            yield self._opened(item)

    def _grow(self, item: _Open, text: str) -> Iterator[AnyEvent]:
        item.pieces.append(text)
        if not item.held:
            yield Delta(item.index, text)

    def _close_prose(self) -> Iterator[AnyEvent]:
        prose, self._prose = self._prose, None
        if prose is not None and not prose.held:
            prose.closed = True
            yield Closed(prose.index)

    def _opened(self, item: _Open) -> Opened:
        if item.call is None:
            return Opened(item.index, item.id, item.kind, refusal=item.says is RefusalChunk)
        name = item.call.name
        return Opened(item.index, item.id, item.kind, item.call_id, name, item.client, custom=item.custom)

    def _body(self, item: _Open) -> Message | Reasoning | ToolCall | None:
        if item.kind == "message":
            said = Text(item.text, refusal=item.says is RefusalChunk)
            return Message("assistant", (said,), incomplete=item.incomplete)
        if item.kind == "reasoning":
            return Reasoning(item.text, incomplete=item.incomplete)
        if item.incomplete or item.call is None:
            return None
        return ToolCall(item.call_id, item.call.name, item.text, client=item.client, custom=item.custom)
