"""A conversation as lines of JSON: everything there is to it, so that it can leave one store and live on in another
under the same ids.

A file may be damaged. What can be told from the lines that are left is told again (a turn knows what it brought); where
an entry is lost for good, a note stands in its place, so that the log has no gap and nobody is misled.
"""

from collections.abc import Collection, Iterable
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field, structs

from legato.domain.attachments import Blob
from legato.domain.entries import AnyBody, Message, Note, ToolCall, ToolResult, draft, span_of
from legato.domain.turns import ENDED, Busy, Failure, Input, Status, TurnKind, Usage

Id = Annotated[str, Meta(min_length=1, max_length=255, pattern=r"^[^\x00]+$")]
Place = Annotated[int, Meta(ge=0, le=2**53)]
Text = Annotated[str, Meta(pattern=r"^[^\x00]*$")]


class ConversationLine(Struct, frozen=True, tag="conversation", tag_field="type", kw_only=True):
    """The first line of a conversation. A `stump` is the part of it that its forks read."""

    format: Literal[1] = 1
    id: Annotated[str, Meta(pattern=r"^conv_[A-Za-z0-9_-]{1,200}$")]
    title: Text = ""
    agent: Text = ""
    kind: Text = "chat"
    settings: dict[str, Any] = {}
    parent_id: Id | None = None
    base_seq: Place = 0
    head_seq: Place = 0
    created_at: float = 0.0
    updated_at: float = 0.0
    aliases: tuple[tuple[Literal["slug", "external", "address", "fingerprint"], Text, float], ...] = ()
    stump: bool = False


class TurnLine(Struct, frozen=True, tag="turn", tag_field="type", kw_only=True):
    conversation: Id
    id: Annotated[str, Meta(pattern=r"^resp_[A-Za-z0-9_-]{1,200}$")]
    n: Annotated[int, Meta(ge=1, le=2**53)]
    parent_turn: Id | None = None
    joined_turn: Id | None = None
    kind: TurnKind
    status: Status
    busy: Busy = "queue"
    input: Input = Input()
    first_seq: Place | None = None
    last_seq: Place | None = None
    usage: Usage | None = None
    failure: Failure | None = None
    fingerprint: Id | None = None
    created_at: float = 0.0
    claimed_at: float | None = None
    ended_at: float | None = None
    deleted_at: float | None = None


class EntryLine(Struct, frozen=True, tag="entry", tag_field="type", kw_only=True):
    conversation: Id
    seq: Annotated[int, Meta(ge=1, le=2**53)]
    id: Id
    turn: Id
    body: AnyBody
    created_at: float = 0.0


class BlobLine(Struct, frozen=True, tag="blob", tag_field="type", kw_only=True):
    conversation: Id
    sha256: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")]
    media_type: Id
    data: bytes


class EndLine(Struct, frozen=True, tag="end", tag_field="type", kw_only=True):
    """The last line of a conversation: nothing of it comes after."""

    conversation: Id


Line = ConversationLine | TurnLine | EntryLine | BlobLine | EndLine


class Parcel(Struct):
    """The lines of one conversation, as they were found."""

    id: str
    head: ConversationLine | None = None
    turns: dict[str, TurnLine] = field(default_factory=dict)
    entries: dict[int, EntryLine] = field(default_factory=dict)
    blobs: dict[str, Blob] = field(default_factory=dict)
    whole: bool = False  # its end was seen

    def take(self, line: Line) -> None:
        match line:
            case ConversationLine():
                self.head = line
            case TurnLine():
                self.turns[line.id] = line
            case EntryLine():
                self.entries[line.seq] = line
            case BlobLine(data=data, media_type=media_type):
                blob = Blob.of(data, media_type)
                if blob.sha256 != line.sha256:
                    raise ValueError("the bytes are not those of the hash")
                self.blobs[blob.sha256] = blob
            case EndLine():
                self.whole = True


class Mended(Struct, frozen=True):
    """A conversation that can be stored: no gap in its log, every entry written by one of its turns. `lost` counts the
    entries in whose place a note stands."""

    head: ConversationLine
    turns: list[TurnLine]
    entries: list[EntryLine]
    blobs: list[Blob]
    lost: int

    @property
    def tip(self) -> str | None:
        talk = [turn for turn in self.turns if turn.kind == "talk"]
        return max(talk, key=lambda turn: turn.n).id if talk else None


LOST = "An entry was lost here: its line of the import was damaged."


def mend(parcel: Parcel) -> Mended:
    """What can be stored of the lines that were found."""
    last = max(parcel.entries, default=0)
    head = parcel.head or _unknown_head(parcel, last)
    if not parcel.whole or head.head_seq < last:  # the rest of the file is missing: it ends where the lines end
        head = structs.replace(head, head_seq=max(last, head.base_seq))
    entries = {seq: e for seq, e in parcel.entries.items() if head.base_seq < seq <= head.head_seq and _sound(e)}
    turns = _turns(head, parcel.turns.values(), entries.values())
    lost = 0
    for seq in range(head.base_seq + 1, head.head_seq + 1):
        if seq not in entries:
            entries[seq] = _found_again(seq, turns, entries) or _stand_in(seq, turns, entries)
            lost += isinstance(entries[seq].body, Note)
    ordered = [entries[seq] for seq in sorted(entries)]
    return Mended(head, sorted(turns.values(), key=lambda turn: turn.n), ordered, list(parcel.blobs.values()), lost)


def _unknown_head(parcel: Parcel, last: int) -> ConversationLine:
    """A conversation of which only the log is known."""
    times = [entry.created_at for entry in parcel.entries.values()] or [0.0]
    return ConversationLine(id=parcel.id, head_seq=last, created_at=min(times), updated_at=max(times))


def _sound(entry: EntryLine) -> bool:
    """Whether a control entry speaks of earlier positions."""
    return all(place is None or 0 <= place < entry.seq for place in span_of(entry.body))


def _turns(head: ConversationLine, found: Iterable[TurnLine], entries: Collection[EntryLine]) -> dict[str, TurnLine]:
    """The turns that have ended and of which something is there, and one for each writer whose line is missing."""
    there = {entry.id for entry in entries}
    turns = {turn.id: turn for turn in found if turn.status in ENDED}
    for turn in list(turns.values()):
        if turn.joined_turn is not None and turn.joined_turn not in turns:
            turns[turn.id] = turn = structs.replace(turn, joined_turn=None, status="cancelled")
        if turn.last_seq is not None and turn.last_seq > head.head_seq:
            turns[turn.id] = _cut_short(turn, head.head_seq, there)
    for turn in list(turns.values()):
        if turn.first_seq is not None and turn.first_seq > head.head_seq + 1:
            del turns[turn.id]
    talkers = {turn.parent_turn for turn in turns.values()} | {
        entry.turn for entry in entries if isinstance(entry.body, Message) and entry.body.role == "assistant"
    }
    for entry in sorted(entries, key=lambda entry: entry.seq):
        writer = turns.get(entry.turn)
        if writer is None:
            turns[entry.turn] = _unknown(entry, turns, "talk" if entry.turn in talkers else "upkeep")
        elif not (writer.first_seq or 0) <= entry.seq <= (writer.last_seq or 0):
            first, last = writer.first_seq or entry.seq, writer.last_seq or entry.seq
            turns[entry.turn] = structs.replace(writer, first_seq=min(first, entry.seq), last_seq=max(last, entry.seq))
    return turns


def _cut_short(turn: TurnLine, upto: int, there: set[str]) -> TurnLine:
    """A turn whose end is missing."""
    drafts = tuple(d for d in turn.input.drafts if d.id in there)
    return structs.replace(
        turn,
        input=structs.replace(turn.input, drafts=drafts),
        last_seq=upto,
        status=turn.status if turn.status == "joined" else "failed",
        failure=Failure("import_damaged", "The end of this turn was lost: the import was damaged."),
    )


def _unknown(entry: EntryLine, turns: dict[str, TurnLine], kind: TurnKind) -> TurnLine:
    """A turn of which only what it wrote is known."""
    numbers = {turn.n for turn in turns.values()}
    n = next(n for n in range(1, len(numbers) + 2) if n not in numbers)
    return TurnLine(
        conversation=entry.conversation,
        id=entry.turn,
        n=n,
        kind=kind,
        status="done",
        first_seq=entry.seq,
        last_seq=entry.seq,
        created_at=entry.created_at,
        claimed_at=entry.created_at,
        ended_at=entry.created_at,
    )


def _writer(seq: int, turns: dict[str, TurnLine]) -> TurnLine | None:
    """The turn that wrote at a position; of one that joined another, the narrower one."""
    around = [t for t in turns.values() if t.first_seq is not None and t.first_seq <= seq <= (t.last_seq or 0)]
    return min(around, key=lambda turn: (turn.last_seq or 0) - (turn.first_seq or 0), default=None)


def _found_again(seq: int, turns: dict[str, TurnLine], entries: dict[int, EntryLine]) -> EntryLine | None:
    """An entry that its turn had brought along."""
    turn = _writer(seq, turns)
    if turn is None:
        return None
    there = {entry.id for entry in entries.values() if entry.turn == turn.id}
    for brought in turn.input.drafts:
        if brought.id not in there:
            return _line(seq, turn, brought.id, brought.body)
    return None


def _stand_in(seq: int, turns: dict[str, TurnLine], entries: dict[int, EntryLine]) -> EntryLine:
    """What stands for an entry that is lost: a call that was answered, an answer that was awaited, or a note."""
    turn = _writer(seq, turns)
    if turn is None:
        near = min(entries.values(), key=lambda entry: abs(entry.seq - seq), default=None)
        turn = turns[near.turn] if near is not None else next(iter(turns.values()))
        first, last = turn.first_seq or seq, turn.last_seq or seq
        turn = turns[turn.id] = structs.replace(turn, first_seq=min(first, seq), last_seq=max(last, seq))
    own = sorted((entry for entry in entries.values() if entry.turn == turn.id), key=lambda entry: entry.seq)
    called = [entry.body for entry in own if isinstance(entry.body, ToolCall) and not entry.body.client]
    answered = [entry.body for entry in own if isinstance(entry.body, ToolResult)]
    brought = {d.body.call_id for d in turn.input.drafts if isinstance(d.body, ToolResult)}
    body: AnyBody = Note(LOST, reason="import")
    for result in answered:
        if result.call_id not in brought and result.call_id not in {call.call_id for call in called}:
            body = ToolCall(result.call_id, "unknown", "{}")
    for call in called:
        if call.call_id not in {result.call_id for result in answered}:
            body = ToolResult(call.call_id, LOST, is_error=True, unknown=True)
    made = draft(body)
    return _line(seq, turn, made.id, body)


def _line(seq: int, turn: TurnLine, id: str, body: AnyBody) -> EntryLine:
    return EntryLine(
        conversation=turn.conversation, seq=seq, id=id, turn=turn.id, body=body, created_at=turn.created_at
    )
