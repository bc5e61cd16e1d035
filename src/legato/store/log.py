"""The log: append with a fence, read as a transcript or as a context.

A fork holds no copy: it reads its ancestors' entries up to where each was left (its *lineage*), in one numbering.
What is read verbatim is decided by `domain.window` from the control entries alone, so a context of 200 entries
costs the same at the end of 100 entries and of 100,000.
"""

from collections.abc import Iterable, Iterator, Sequence

from msgspec import DecodeError, Struct, json

from legato.domain import window
from legato.domain.conversations import life
from legato.domain.entries import (
    AnyBody,
    Compaction,
    Draft,
    Entry,
    Item,
    Message,
    Reasoning,
    Setup,
    ToolCall,
    View,
    kind_of,
    span_of,
)
from legato.domain.ids import TURN_PREFIX, ConversationId, PrincipalId, TurnId, moment_of
from legato.domain.turns import Turn
from legato.domain.window import Control, Known, Span, context, transcript
from legato.errors import LeaseLost, UnknownHandle, Unreadable
from legato.store.database import Row, Tx, one

NO_END = 2**62

_body = json.Decoder(AnyBody)


class Stretch(Struct, frozen=True):
    """Entries of `conversation_id` after `base` and up to `upto`: one part of a lineage."""

    conversation_id: ConversationId
    base: int
    upto: int


async def append(
    tx: Tx,
    conversation_id: ConversationId,
    fence: int,
    turn_id: TurnId,
    drafts: Sequence[Draft],
    *,
    last: bool = False,
) -> tuple[int, int]:
    """Write entries at the head. Returns their first and last position; refused when the lease is lost. With `last`
    the lease is given up in the same step."""
    statement = "close_head" if last else "advance_head"
    row = await one(tx.run(statement, id=conversation_id, fence=fence, count=len(drafts)))
    if row is None:
        raise LeaseLost()
    return await place(tx, conversation_id, turn_id, drafts, row[0])


async def open_head(
    tx: Tx, conversation_id: ConversationId, turn_id: TurnId, drafts: Sequence[Draft]
) -> tuple[int, int]:
    """Write the first entries of a new holder; returns the fence and the last position."""
    [[head, fence]] = await tx.run("open_head", id=conversation_id, count=len(drafts))
    await place(tx, conversation_id, turn_id, drafts, head)
    return fence, head


async def place(
    tx: Tx, conversation_id: ConversationId, turn_id: TurnId, drafts: Sequence[Draft], head: int
) -> tuple[int, int]:
    """Write entries where room was made for them, the last at `head`."""
    first = head - len(drafts) + 1
    if drafts:
        await tx.many("add_entry", (row_of(conversation_id, turn_id, first + i, d) for i, d in enumerate(drafts)))
    return first, head


async def lineage(tx: Tx, conversation_id: ConversationId) -> list[Stretch]:
    """The stretches of log a conversation reads, oldest first."""
    own = await one(tx.run("own_stretch", id=conversation_id))
    if own is None:
        raise UnknownHandle(f"No conversation {conversation_id!r}.", param="conversation")
    parent, base, head = own
    if parent is None:  # most conversations are no forks
        return [Stretch(conversation_id, base, head)]
    return [Stretch(*row) for row in await tx.run("lineage", id=conversation_id)]


async def controls(tx: Tx, stretches: Sequence[Stretch], upto: int | None = None) -> list[Control]:
    """The control entries and setups of a lineage, or of its beginning, that can have a say in what is seen: of a
    long log with many summaries only the last, as long as nothing was undone."""
    found = await _controls(tx, "newest_controls", stretches, upto)
    if any(control.kind in window.REVIVING for control in found):
        return await _controls(tx, "controls", stretches, upto)
    return found


async def _controls(tx: Tx, which: str, stretches: Sequence[Stretch], upto: int | None) -> list[Control]:
    return [
        Control(*row)
        for part in stretches
        for row in await tx.run(
            which,
            conversation=part.conversation_id,
            after=part.base,
            upto=part.upto if upto is None else min(part.upto, upto),
        )
    ]


async def read_context(tx: Tx, conversation_id: ConversationId, upto: int | None = None) -> View:
    """What the model sees now, or saw when the log ended at `upto`."""
    return await _view(tx, await lineage(tx, conversation_id), upto, None)


class Begun(Struct, frozen=True):
    """How a context begins, and of which log that is the beginning: in which life of its conversation, with which entry
    as its last."""

    known: Known
    life: int
    last: str | None


async def check(tx: Tx, conversation_id: ConversationId, fence: int) -> None:
    """Fail unless the lease of this number still holds: whoever lost it does not go on with what others wrote."""
    row = await one(tx.run("fence_of", id=conversation_id))
    if row is None or row[0] != fence:
        raise LeaseLost()


async def read_on(
    tx: Tx, conversation_id: ConversationId, fence: int, begun: Begun | None, upto: int
) -> tuple[View, Begun]:
    """What the model sees now, less what has begun where it still begins so; and how it begins up to a position. For
    whoever holds the lease."""
    await check(tx, conversation_id, fence)
    stretches = await lineage(tx, conversation_id)
    known: Known | None = None
    if begun is not None and begun.life == life(fence):
        same = begun.last == await _id_at(tx, stretches, begun.known.upto)
        known = begun.known if same else None
    view = await _view(tx, stretches, None, known)
    return view, Begun(window.known(view.seen, upto), life(fence), await _id_at(tx, stretches, upto))


async def _id_at(tx: Tx, stretches: Sequence[Stretch], seq: int) -> str | None:
    for conversation, first, _ in _parts(stretches, [(seq, seq)]):
        if row := await one(tx.run("id_of_entry", conversation=conversation, seq=first)):
            return str(row[0])
    return None


async def _view(tx: Tx, stretches: Sequence[Stretch], upto: int | None, known: Known | None) -> View:
    found = await controls(tx, stretches, upto)
    head = stretches[-1].upto if upto is None else upto
    seen = context(head, found)
    after = known.upto if known is not None and window.known(seen, known.upto) == known else 0
    setup = await _body_at(tx, stretches, seen.setup)
    summary = await _body_at(tx, stretches, seen.summary)
    return View(
        setup=setup if isinstance(setup, Setup) else None,
        summary=summary if isinstance(summary, Compaction) else None,
        entries=tuple(await _spans(tx, stretches, _beyond(after, seen.spans))),
        head=head,
        control=newest_control(found),
        seen=seen,
        after=after,
    )


async def summary_in_force(tx: Tx, conversation_id: ConversationId) -> int | None:
    """The position of the compaction that stands for the past, if one does."""
    stretches = await lineage(tx, conversation_id)
    return context(stretches[-1].upto, await controls(tx, stretches)).summary


async def read_transcript(
    tx: Tx, conversation_id: ConversationId, *, after: int = 0, limit: int | None = None
) -> list[Entry]:
    """What people see: everything that was not rewound, from position `after` on."""
    stretches = await lineage(tx, conversation_id)
    spans = transcript(stretches[-1].upto, await controls(tx, stretches))
    return await _spans(tx, stretches, _beyond(after, spans), limit)


async def shows(tx: Tx, conversation_id: ConversationId, seq: int) -> bool:
    """Whether people see a position: it is there, and was not taken back."""
    stretches = await lineage(tx, conversation_id)
    seen = transcript(stretches[-1].upto, await controls(tx, stretches))
    return any(first <= seq <= last for first, last in seen)


async def count_messages(tx: Tx, conversation_id: ConversationId) -> int:
    """How much of what people see was said, called or answered."""
    stretches = await lineage(tx, conversation_id)
    counted = 0
    for conversation, first, last in _parts(stretches, transcript(stretches[-1].upto, await controls(tx, stretches))):
        [[found]] = await tx.run("messages_between", conversation=conversation, first=first, last=last)
        counted += found
    return counted


async def first_said(tx: Tx, conversation_id: ConversationId, *, after: int = 0) -> str | None:
    """The first message that people see after a position, as it is stored."""
    stretches = await lineage(tx, conversation_id)
    for first, last in _beyond(after, transcript(stretches[-1].upto, await controls(tx, stretches))):
        for stretch in stretches:
            place = {"first": max(first, stretch.base + 1), "last": min(last, stretch.upto)}
            if row := await one(tx.run("first_message_between", conversation=stretch.conversation_id, **place)):
                return str(row[0])
    return None


async def removed(tx: Tx, conversation_id: ConversationId) -> set[int]:
    """The positions of a conversation that were taken out of sight one by one."""
    stretches = await lineage(tx, conversation_id)
    return window.removed(stretches[-1].upto, await controls(tx, stretches))


class Receipt(Struct, frozen=True):
    """What a model was shown when the log ended at `head`; spans are positions, both inclusive."""

    head: int
    summary: Compaction | None
    verbatim: tuple[Entry, ...]
    folded: tuple[Span, ...]
    hidden: tuple[Span, ...]


async def receipt(tx: Tx, turn: Turn) -> Receipt:
    """What the model saw when it wrote the last of a turn's output."""
    brought = {d.id for d in turn.input.drafts}
    written = [entry for entry in await entries_of_turn(tx, turn) if entry.id not in brought]
    stretches = await lineage(tx, turn.conversation_id)
    head = stretches[-1].upto if turn.last_seq is None else turn.last_seq
    for entry in reversed(written):
        if not isinstance(entry.body, Message | Reasoning | ToolCall):
            break
        head = entry.seq - 1
    view = await read_context(tx, turn.conversation_id, head)
    upto = view.summary.upto if view.summary is not None else 0
    shown = {entry.seq for entry in view.entries}
    unseen = [
        seq
        for first, last in transcript(head, await controls(tx, stretches, head))
        for seq in range(first, last + 1)
        if seq not in shown
    ]
    return Receipt(
        head=head,
        summary=view.summary,
        verbatim=tuple(entry for entry in view.entries if isinstance(entry.body, Item)),
        folded=_as_spans(seq for seq in unseen if seq <= upto),
        hidden=_as_spans(seq for seq in unseen if seq > upto),
    )


def _beyond(after: int, spans: Iterable[Span]) -> Iterable[Span]:
    return [(max(first, after + 1), last) for first, last in spans if last > after] if after else spans


def _as_spans(positions: Iterable[int]) -> tuple[Span, ...]:
    spans: list[Span] = []
    for seq in positions:
        if spans and spans[-1][1] == seq - 1:
            spans[-1] = spans[-1][0], seq
        else:
            spans.append((seq, seq))
    return tuple(spans)


async def entries_of_turn(tx: Tx, turn: Turn) -> list[Entry]:
    """What a turn wrote, its input included."""
    if turn.first_seq is None:
        return []
    last = turn.last_seq if turn.last_seq is not None else NO_END
    rows = await tx.run(
        "entries_of_turn", conversation=turn.conversation_id, first=turn.first_seq, last=last, turn=turn.id
    )
    return [_entry(row) for row in rows]


async def entries_at(tx: Tx, conversation_id: ConversationId, first: int, last: int) -> list[Entry]:
    """The entries that a conversation itself (not its ancestors) holds at positions."""
    rows = await tx.run("entries_between", conversation=conversation_id, first=first, last=last)
    return [_entry(row) for row in rows]


async def position(tx: Tx, conversation_id: ConversationId, entry_id: str) -> int | None:
    """Where an entry is that a conversation reads, or read before it was taken out of sight."""
    for stretch in await lineage(tx, conversation_id):
        place = {"conversation": stretch.conversation_id, "first": stretch.base + 1, "last": stretch.upto}
        if row := await one(tx.run("place_of_entry", id=entry_id, **place)):
            return int(row[0])
    return None


async def told(tx: Tx, principal: PrincipalId, entry_ids: Iterable[str]) -> list[Entry]:
    """What turns of a principal said, by the ids of the entries alone, as far as it is still there."""
    found = []
    for entry_id in entry_ids:
        first = f"{TURN_PREFIX}{moment_of(entry_id)}"
        row = await one(tx.run("told_by_id", id=entry_id, principal=principal, first=first, next=first + "g"))
        if row is not None:
            found.append(_entry(row))
    return found


async def body_at(tx: Tx, conversation_id: ConversationId, seq: int) -> AnyBody | None:
    """What a conversation reads at a position."""
    return await _body_at(tx, await lineage(tx, conversation_id), seq)


def newest_control(known: Sequence[Control]) -> int:
    """The position of the newest control entry: what a summary made in the background is compared with."""
    return max((c.seq for c in known if c.kind != "setup"), default=0)


async def _spans(tx: Tx, stretches: Sequence[Stretch], spans: Iterable[Span], limit: int | None = None) -> list[Entry]:
    found: list[Entry] = []
    for conversation, first, last in _parts(stretches, spans):
        if limit is not None:
            last = min(last, first + limit - len(found) - 1)
        if first <= last:
            rows = await tx.run("entries_between", conversation=conversation, first=first, last=last)
            found.extend(_entry(row) for row in rows)
    return found


def _parts(stretches: Sequence[Stretch], spans: Iterable[Span]) -> Iterator[tuple[ConversationId, int, int]]:
    """Where spans are kept: of which conversation, from where to where."""
    for first, last in spans:
        for stretch in stretches:
            low, high = max(first, stretch.base + 1), min(last, stretch.upto)
            if low <= high:
                yield stretch.conversation_id, low, high


async def _body_at(tx: Tx, stretches: Sequence[Stretch], seq: int | None) -> AnyBody | None:
    if seq is None:
        return None
    entries = await _spans(tx, stretches, [(seq, seq)])
    return entries[0].body if entries else None


def _entry(row: Row) -> Entry:
    seq, entry_id, turn_id, body, created_at = row
    try:
        return Entry(seq, entry_id, turn_id, _body.decode(body), created_at)
    except DecodeError as error:
        what = f"Position {seq} of the conversation ({entry_id}) cannot be read"
        raise Unreadable.because(what, error) from error


def row_of(conversation_id: ConversationId, turn_id: TurnId, seq: int, draft: Draft) -> dict[str, object]:
    """An entry as its columns keep it."""
    ref_first, ref_seq = span_of(draft.body)
    return {
        "conversation": conversation_id,
        "seq": seq,
        "id": draft.id,
        "turn": turn_id,
        "kind": kind_of(draft.body),
        "ref_first": ref_first,
        "ref_seq": ref_seq,
        "body": json.encode(draft.body).decode(),
    }
