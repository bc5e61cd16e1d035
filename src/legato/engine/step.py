"""A step: one model call, gathered into items as its chunks arrive.

Each item gets its id and its place when it opens, so what a follower sees and what the log keeps are the same items.
A call gets an id of ours: servers number theirs from 0 in every answer, and a log needs each to mean one call.
"""

from collections.abc import Iterable, Iterator

from legato.domain.entries import AnyBody, Draft, Message, Reasoning, Text, ToolCall, draft
from legato.domain.events import AnyEvent, Closed, Delta, ItemKind, Opened
from legato.domain.ids import new_call_id
from legato.domain.turns import Usage
from legato.engine.protocols import CallChunk, CallOpened, Finished, ModelEvent, ReasoningChunk, TextChunk


class _Open:
    """An item that is growing."""

    def __init__(self, index: int, kind: ItemKind, call: CallOpened | None = None) -> None:
        self.index, self.kind, self.call = index, kind, call
        self.pieces: list[str] = []
        self.id = draft(_SEED[kind]).id
        self.call_id = new_call_id() if call is not None else ""
        self.incomplete = False


_SEED: dict[ItemKind, AnyBody] = {
    "message": Message("assistant", ()),
    "reasoning": Reasoning(),
    "tool_call": ToolCall("", "", ""),
}


class Step:
    """Takes model events, gives events for followers, ends as drafts for the log."""

    def __init__(self, index: int, client_tools: frozenset[str]) -> None:
        self.next_index = index
        self.usage = Usage()
        self.truncated = False
        self.client_tools = client_tools
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
        if type(event) is TextChunk and event.text and prose is not None and prose.kind == "message":
            prose.pieces.append(event.text)  # nearly everything is this
            return (Delta(prose.index, event.text),)
        return self._take(event)

    def _take(self, event: ModelEvent) -> Iterator[AnyEvent]:
        match event:
            case TextChunk(text=text) | ReasoningChunk(text=text):
                if text:
                    kind: ItemKind = "message" if isinstance(event, TextChunk) else "reasoning"
                    if self._prose is None or self._prose.kind != kind:
                        yield from self._close_prose()
                        self._prose = self._new(kind)
                        yield Opened(self._prose.index, self._prose.id, kind)
                    self._prose.pieces.append(text)
                    yield Delta(self._prose.index, text)
            case CallOpened(call_id=call_id, name=name):
                yield from self._close_prose()
                if call_id in self._calls:  # the same number again: the call before it is complete
                    yield Closed(self._calls.pop(call_id).index)
                item = self._calls[call_id] = self._new("tool_call", event)
                client = name in self.client_tools
                yield Opened(item.index, item.id, "tool_call", item.call_id, name, client)
            case CallChunk(call_id=call_id, text=text):
                item = self._calls[call_id]
                item.pieces.append(text)
                yield Delta(item.index, text)
            case Finished(usage=usage, truncated=truncated):
                self.usage, self.truncated = usage, truncated

    def close(self, *, incomplete: bool) -> Iterator[AnyEvent]:
        """Close what is open. When the step was cut off, the open items are incomplete. These events belong into the
        transaction that writes the entries: nobody is told of an end that a crash could take back."""
        yield from self._close_prose(incomplete)
        for item in self._calls.values():
            item.incomplete = incomplete
            yield Closed(item.index, incomplete)
        self._calls = {}

    def drafts(self) -> list[Draft]:
        """What the log keeps, in order. A call whose arguments were cut off never ran and is not kept."""
        return [Draft(item.id, body) for item in self._items if (body := self._body(item)) is not None]

    def _new(self, kind: ItemKind, call: CallOpened | None = None) -> _Open:
        item = _Open(self.next_index, kind, call)
        self.next_index += 1
        self._items.append(item)
        return item

    def _close_prose(self, incomplete: bool = False) -> Iterator[AnyEvent]:
        if self._prose is not None:
            self._prose.incomplete = incomplete
            yield Closed(self._prose.index, incomplete)
            self._prose = None

    def _body(self, item: _Open) -> Message | Reasoning | ToolCall | None:
        text = "".join(item.pieces)
        if item.kind == "message":
            return Message("assistant", (Text(text),), incomplete=item.incomplete)
        if item.kind == "reasoning":
            return Reasoning(text, incomplete=item.incomplete)
        if item.incomplete or item.call is None:
            return None
        return ToolCall(item.call_id, item.call.name, text, client=item.call.name in self.client_tools)
