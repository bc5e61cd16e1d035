"""Events: what the followers of a turn see while it runs.

An output item is opened, grows by deltas, and is closed; a server tool's result is one event, and so is a summary.
Event *n* of a turn is the same for every follower, for ever; the edges translate them into their own protocols. The
beginning and the end of a turn are not events: they are the turn's status.
"""

from collections.abc import Iterable
from typing import Literal

from msgspec import Struct

from legato.domain.entries import Compaction, Entry, Item, Message, Reasoning, ToolCall, ToolResult
from legato.domain.ids import EntryId, TurnId

ItemKind = Literal["message", "reasoning", "tool_call"]


class Event(Struct, frozen=True, array_like=True):
    """Something that happened in a turn."""


class Opened(Event, frozen=True, array_like=True, tag="o"):
    """An item begins at place `index` of the turn's output. A message may be a `refusal`, a call `custom`."""

    index: int
    id: EntryId
    kind: ItemKind
    call_id: str = ""
    name: str = ""
    client: bool = False
    refusal: bool = False
    custom: bool = False


class Delta(Event, frozen=True, array_like=True, tag="d"):
    """More text of the item at `index`: of the message, the reasoning, or the arguments."""

    index: int
    text: str


class Closed(Event, frozen=True, array_like=True, tag="c"):
    index: int
    incomplete: bool = False


class Answered(Event, frozen=True, array_like=True, tag="a"):
    """A tool that ran here gave its result."""

    index: int
    id: EntryId
    call_id: str
    output: str
    is_error: bool = False


class Folded(Event, frozen=True, array_like=True, tag="f"):
    """The past was folded into a summary while the turn ran."""

    index: int
    id: EntryId
    compaction: Compaction


class Joined(Event, frozen=True, array_like=True, tag="j"):
    """The input of another turn joined this one (`steer`)."""

    turn_id: TurnId


AnyEvent = Opened | Delta | Closed | Answered | Folded | Joined


class Latecomer:
    """What somebody who comes to a turn late is told of it, where text is all one: without what a crash cut off and the
    model began anew. `told` is what there is when they come; of a message that is not whole there, only what comes next
    says whether it goes on."""

    def __init__(self, told: list[AnyEvent]) -> None:
        messages = [e.index for e in told if isinstance(e, Opened) and e.kind == "message"]
        whole = {e.index for e in told if isinstance(e, Closed) and not e.incomplete}
        self._gone = set(messages) - whole
        self._doubtful = messages[-1] if messages and messages[-1] in self._gone else None
        self._gone.discard(messages[-1] if messages else -1)
        self._known = len(told)
        self._held: list[AnyEvent] = []

    def take(self, n: int, events: list[AnyEvent]) -> list[AnyEvent]:
        """Events, the first of which has number n; returns those that are told by now."""
        told: list[AnyEvent] = []
        for place, event in enumerate(events, n):
            index = -1 if isinstance(event, Joined) else event.index
            if index == self._doubtful:
                self._held.append(event)
                cut = isinstance(event, Closed) and event.incomplete
                if place >= self._known and not cut:  # it goes on, or is whole
                    told += self.rest()
            elif index not in self._gone:
                message = isinstance(event, Opened) and event.kind == "message"
                if message and self._doubtful is not None and index > self._doubtful:  # it was said anew
                    self._gone.add(self._doubtful)
                    self._doubtful, self._held = None, []
                told.append(event)
        return told

    def rest(self) -> list[AnyEvent]:
        """What was held back, and is told after all."""
        held, self._held, self._doubtful = self._held, [], None
        return held


def open_items(events: list[AnyEvent]) -> tuple[int, ...]:
    """Places of items that were opened and never closed: what a crash cut off."""
    opened = [e.index for e in events if isinstance(e, Opened)]
    closed = {e.index for e in events if isinstance(e, Closed)}
    return tuple(i for i in opened if i not in closed)


def next_index(events: list[AnyEvent]) -> int:
    """The first free place in the turn's output."""
    return 1 + max((e.index for e in events if isinstance(e, Opened | Answered | Folded)), default=-1)


def retell(entries: Iterable[Entry]) -> list[AnyEvent]:
    """The events of a turn made again from what it wrote: every item, each text in one piece."""
    told: list[AnyEvent] = []
    shown = [(e.id, e.body) for e in entries if isinstance(e.body, Item | Compaction)]
    for index, (entry_id, body) in enumerate(shown):
        match body:
            case Compaction():
                told.append(Folded(index, entry_id, body))
            case ToolResult(call_id=call_id, output=output, is_error=is_error):
                told.append(Answered(index, entry_id, call_id, output, is_error))
            case ToolCall(call_id=call_id, name=name, arguments=text, client=client, custom=custom):
                opened = Opened(index, entry_id, "tool_call", call_id, name, client, custom=custom)
                told += [opened, Delta(index, text), Closed(index)]
            case Reasoning(text=text, incomplete=incomplete):
                told += [Opened(index, entry_id, "reasoning"), Delta(index, text), Closed(index, incomplete)]
            case Message(text=text, incomplete=incomplete):
                opened = Opened(index, entry_id, "message", refusal=body.refusal)
                told += [opened, Delta(index, text), Closed(index, incomplete)]
    return told
