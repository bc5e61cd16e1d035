"""Recovery: what an heir does with a turn that another process left behind.

The log is the journal, so it says where the turn stood. A call with a result is never run again. A call without one
is in doubt: it runs again only if its tool says that is harmless; otherwise the model is told that the outcome is
unknown, and nobody guesses. Text that followers saw and that no entry holds is kept as a cut-off item.
"""

from collections.abc import Iterable
from itertools import pairwise

from msgspec import Struct

from legato.domain.entries import Draft, Entry, Message, Reasoning, Text, ToolCall, ToolResult
from legato.domain.events import AnyEvent, Closed, Delta, Opened, open_items

UNKNOWN = (
    "The gateway stopped while this tool was running. Whether it took effect is unknown: check before doing it again."
)


class Remains(Struct, frozen=True):
    """What a turn left behind: cut-off items, calls in doubt, and the steps it had taken."""

    closing: tuple[Closed, ...]
    cut_off: tuple[Draft, ...]
    in_doubt: tuple[ToolCall, ...]
    steps: int


NOTHING = Remains((), (), (), 0)
"""What a turn has left behind that only begins."""


def remains(events: list[AnyEvent], entries: Iterable[Entry]) -> Remains:
    """Where the turn stood."""
    entries = list(entries)
    kept = {entry.id for entry in entries}
    bodies = [entry.body for entry in entries]
    answered = {b.call_id for b in bodies if isinstance(b, ToolResult)}
    return Remains(
        closing=tuple(Closed(index, incomplete=True) for index in open_items(events)),
        cut_off=tuple(_cut_off(events, [e for e in events if isinstance(e, Opened) and e.id not in kept])),
        in_doubt=tuple(b for b in bodies if isinstance(b, ToolCall) and not b.client and b.call_id not in answered),
        steps=sum(isinstance(b, ToolCall) and not isinstance(a, ToolCall) for a, b in pairwise([None, *bodies])),
    )


def unknown_outcome(call: ToolCall) -> ToolResult:
    """The answer to a call that nobody may repeat and nobody can judge."""
    return ToolResult(call.call_id, UNKNOWN, is_error=True, unknown=True)


def _cut_off(events: list[AnyEvent], lost: list[Opened]) -> Iterable[Draft]:
    """The prose that followers saw and no entry holds. What was closed for them as complete stays complete."""
    complete = {e.index for e in events if isinstance(e, Closed) and not e.incomplete}
    for item in lost:
        text = "".join(e.text for e in events if isinstance(e, Delta) and e.index == item.index)
        incomplete = item.index not in complete
        if item.kind == "message":
            yield Draft(item.id, Message("assistant", (Text(text, refusal=item.refusal),), incomplete=incomplete))
        elif item.kind == "reasoning":
            yield Draft(item.id, Reasoning(text, incomplete=incomplete))
