"""Folding: which part of a context a summary may stand for, and what is left out when there is no summary.

Pure functions over the entries of a context and the size of each. A fold never separates a call from its result, and
the latest input stays verbatim; so do the last exchanges, as far as they fit.
"""

from collections.abc import Callable, Collection, Sequence

from msgspec import Struct, structs

from legato.domain.entries import AnyBody, Entry, Item, Message, Reasoning, Text, ToolCall, ToolResult
from legato.domain.ids import ConversationId

Size = Callable[[AnyBody], int]

EXCHANGES = 4  # at most so many of the last ones stay verbatim
CUT_OUT = "[cut here to fit; the conversation's log has all of it]"


class Fold(Struct, frozen=True):
    """What a summary will stand for: the entries up to a position. `pins` of them stay verbatim."""

    upto: int
    entries: tuple[Entry, ...]
    pins: tuple[int, ...]


def fold(
    entries: Sequence[Entry],
    after: int,
    size: Size,
    keep: int,
    exchanges: int = EXCHANGES,
    kept: Collection[int] = (),
) -> Fold | None:
    """Fold the entries after position `after`, so that at most so many of the last exchanges, and of them at most
    `keep` tokens, stay verbatim; None when there is nothing to fold. Of the entries before, those that the last fold
    `kept` are folded now, unless they are still the latest input; others were pinned by someone and stay."""
    fresh = [entry for entry in entries if entry.seq > after or entry.seq in kept]
    whole = whole_places(fresh)
    cut = _between_exchanges(fresh, whole, size, keep, exchanges)
    if cut is None:
        cut = _between_steps(fresh, whole, size, keep)
    if cut == 0:
        return None
    upto = max(after, fresh[cut - 1].seq)
    pins = [entry.seq for entry in _latest_input(fresh) if entry.seq <= upto]
    folded = tuple(entry for entry in fresh[:cut] if entry.seq not in pins)
    return Fold(upto, folded, tuple(pins)) if any(isinstance(entry.body, Item) for entry in folded) else None


def whole_places(entries: Sequence[Entry]) -> list[int]:
    """Where no call waits for its result. One that the model has gone on without (`shape` says so) waits for none: a
    client may never answer, and what came after that must be foldable all the same."""
    waiting: dict[str, int] = {}  # where each call of this step is
    apart: set[int] = set()
    gone_on = False  # whoever speaks next begins a step
    for place, entry in enumerate(entries):
        match entry.body:
            case ToolCall() | Reasoning() | Message(role="assistant"):
                if gone_on:
                    waiting, gone_on = {}, False
                if isinstance(entry.body, ToolCall):
                    waiting[entry.body.call_id] = place
            case ToolResult(call_id=call_id):
                gone_on = True
                if call_id in waiting:
                    apart.update(range(waiting.pop(call_id) + 1, place + 1))
            case Message():
                gone_on = True
    for place in waiting.values():
        apart.update(range(place + 1, len(entries)))
    return [place for place in range(len(entries)) if place not in apart]


def _between_exchanges(entries: Sequence[Entry], whole: list[int], size: Size, keep: int, exchanges: int) -> int | None:
    """Where the last exchanges begin that fit together; None when not even the last one does."""
    starts = [
        place
        for place in whole
        if _is_input(entries[place].body) and not (place and _is_input(entries[place - 1].body))
    ]
    total, end = 0, len(entries)
    cut: int | None = None
    for start in reversed(starts[-exchanges:]):
        total += sum(size(entry.body) for entry in entries[start:end])
        if total > keep:
            break
        cut = end = start
    return cut


def _between_steps(entries: Sequence[Entry], whole: list[int], size: Size, keep: int) -> int:
    """The first place from which everything fits; at least the last step stays."""
    rest = [0]
    for entry in reversed(entries):
        rest.append(rest[-1] + size(entry.body))
    rest.reverse()
    return next((place for place in whole if rest[place] <= keep), whole[-1] if whole else 0)


def _latest_input(entries: Sequence[Entry]) -> list[Entry]:
    """What was said last, by whoever asks."""
    latest: list[Entry] = []
    for entry in reversed(entries):
        if _is_input(entry.body):
            latest.append(entry)
        elif latest:
            break
    return latest


def _is_input(body: AnyBody) -> bool:
    return isinstance(body, Message) and body.role == "user"


def _is_systems(body: AnyBody) -> bool:
    return isinstance(body, Message) and body.role in ("system", "developer")


# -- without a summary


class Trimmed(Struct, frozen=True):
    """Items that fit, and what was left out of them; `cut` where not even the system's own messages are whole."""

    items: tuple[Item, ...]
    outputs: int
    messages: int
    cut: bool = False


def trim(items: Sequence[Item], size: Size, room: int, conversation_id: ConversationId) -> Trimmed | None:
    """Leave out the oldest tool outputs, then the oldest exchanges, then the middle of the system's own messages (a
    summary may have been written for a larger window), until the rest fits into `room`. The last exchange stays; None
    when even that is too much."""
    kept: list[Item] = list(items)
    total = sum(size(item) for item in kept)
    outputs = 0
    for place, item in enumerate(kept):
        if total <= room:
            break
        if isinstance(item, ToolResult) and (shorter := _elided(item)) is not item:
            total += size(shorter) - size(item)
            kept[place] = shorter
            outputs += 1
    head = [item for item in kept if _is_systems(item)]
    rest = [item for item in kept if not _is_systems(item)]
    messages, cut = 0, False
    if total > room:
        total += size(_marker(0, conversation_id))
        while total > room and (following := _next_exchange(rest)) is not None:
            total -= sum(size(item) for item in rest[:following])
            messages += following
            rest = rest[following:]
        for place in sorted(range(len(head)), key=lambda place: -size(head[place])):
            item = head[place]
            if total > room and isinstance(item, Message):
                head[place] = _cut(item, size, size(item) - (total - room))
                total += size(head[place]) - size(item)
                cut = cut or head[place] is not item
        if total > room:
            return None
        head += [_marker(messages, conversation_id)] if messages else []
    return Trimmed((*head, *rest), outputs, messages, cut)


def _next_exchange(items: Sequence[Item]) -> int | None:
    return next((place for place, item in enumerate(items) if place and _is_input(item)), None)


def _cut(message: Message, size: Size, room: int) -> Message:
    """A message of which the beginning and the end fit into `room`; the same where there is nothing to gain."""
    text, shorter = message.text, message
    kept = len(text)
    while kept and size(shorter) > room:
        kept = kept * max(room, 0) * 9 // (10 * size(shorter))
        words = f"{text[: kept - kept // 2]}\n{CUT_OUT}\n{text[len(text) - kept // 2 :]}"
        shorter = Message(message.role, (Text(words),))
    return shorter if size(shorter) < size(message) else message


def _elided(result: ToolResult) -> ToolResult:
    words = f"[{len(result.output)} characters of output left out to fit; they are in the conversation's log]"
    return structs.replace(result, output=words) if len(words) < len(result.output) else result


def _marker(count: int, conversation_id: ConversationId) -> Message:
    words = f"[{count} earlier items left out to fit; search conversation {conversation_id} to find them]"
    return Message("system", (Text(words),))


# -- what was done


def actions(entries: Sequence[Entry]) -> list[str]:
    """One line for each thing that was done to the outside world, so that it is not done again."""
    outcomes = {e.body.call_id: e.body for e in entries if isinstance(e.body, ToolResult)}
    lines = []
    for entry in entries:
        if isinstance(entry.body, ToolCall):
            result = outcomes.get(entry.body.call_id)
            how = "outcome unknown" if result is None or result.unknown else "failed" if result.is_error else "done"
            lines.append(f"{entry.body.name} {_short(entry.body.arguments)}: {how}")
    return lines


def _short(text: str, most: int = 160) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
