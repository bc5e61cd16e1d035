"""A conversation as lines of JSON: everything there is to it, so that it can leave one store and live on in another
under the same ids.

A file may be damaged. What can be told from the lines that are left is told again (a turn knows what it brought); where
an entry is lost for good, a note stands in its place, so that the log has no gap and nobody is misled. A file may also
be made to do harm: numbers in it are claims, and what is done for them is bounded by what is there.
"""

from collections.abc import Collection, Iterable
from heapq import heappop, heappush
from itertools import count
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field, structs

from legato.domain.attachments import Blob
from legato.domain.entries import AnyBody, Draft, Message, Note, ToolCall, ToolResult, draft, span_of
from legato.domain.turns import ENDED, Busy, Failure, Input, Status, TurnKind, Usage
from legato.errors import BadInput

Id = Annotated[str, Meta(min_length=1, max_length=255, pattern=r"^[^\x00]+$")]
OurConversation = Annotated[str, Meta(pattern=r"^conv_[A-Za-z0-9_-]{22,200}\Z")]
OurTurn = Annotated[str, Meta(pattern=r"^resp_[A-Za-z0-9_-]{22,200}\Z")]
Place = Annotated[int, Meta(ge=0, le=2**53)]
Text = Annotated[str, Meta(pattern=r"^[^\x00]*$")]


class ConversationLine(Struct, frozen=True, tag="conversation", tag_field="type", kw_only=True):
    """The first line of a conversation. A `stump` is the part of it that its forks read."""

    format: Literal[1] = 1
    id: OurConversation
    title: Text = ""
    agent: Text = ""
    kind: Text = "chat"
    settings: dict[str, Any] = {}
    parent_id: OurConversation | None = None
    base_seq: Place = 0
    head_seq: Place = 0
    created_at: float = 0.0
    updated_at: float = 0.0
    aliases: tuple[tuple[Literal["slug", "external", "address", "fingerprint"], Text, float], ...] = ()
    stump: bool = False


class TurnLine(Struct, frozen=True, tag="turn", tag_field="type", kw_only=True):
    conversation: OurConversation
    id: OurTurn
    n: Annotated[int, Meta(ge=1, le=2**53)]
    parent_turn: OurTurn | None = None
    joined_turn: OurTurn | None = None
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
    conversation: OurConversation
    seq: Annotated[int, Meta(ge=1, le=2**53)]
    id: Id
    turn: OurTurn
    body: AnyBody
    created_at: float = 0.0


class BlobLine(Struct, frozen=True, tag="blob", tag_field="type", kw_only=True):
    conversation: OurConversation
    sha256: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")]
    media_type: Id
    data: bytes


class EndLine(Struct, frozen=True, tag="end", tag_field="type", kw_only=True):
    """The last line of a conversation: nothing of it comes after."""

    conversation: OurConversation


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
FEW, TIMES = 1_000, 10  # so many entries may be lost, or so many times what was found


def mend(parcel: Parcel) -> Mended:
    """What can be stored of the lines that were found."""
    if parcel.head is None and not parcel.turns and not parcel.entries:
        raise BadInput(f"There is nothing of {parcel.id} but its end.")
    last = max(parcel.entries, default=0)
    head = parcel.head or _unknown_head(parcel, last)
    if not parcel.whole or head.head_seq < last:  # the rest of the file is missing: it ends where the lines end
        head = structs.replace(head, head_seq=max(last, head.base_seq))
    reached = max((turn.last_seq or 0 for turn in parcel.turns.values() if turn.status in ENDED), default=0)
    head = structs.replace(head, head_seq=min(head.head_seq, max(head.base_seq, last, reached)))
    entries = {seq: e for seq, e in parcel.entries.items() if head.base_seq < seq <= head.head_seq and _sound(e)}
    turns = _turns(head, parcel.turns.values(), entries.values())
    missing = head.head_seq - head.base_seq - len(entries)
    if missing > max(FEW, TIMES * (len(entries) + len(turns))):
        raise BadInput(f"{missing} entries of {parcel.id} are missing, so many that the rest tells nothing.")
    lost = _fill(range(head.base_seq + 1, head.head_seq + 1), turns, entries) if missing else 0
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
    taken = {turn.n for turn in turns.values()}
    free = (n for n in count(1) if n not in taken)
    for entry in sorted(entries, key=lambda entry: entry.seq):
        writer = turns.get(entry.turn)
        if writer is None:
            turns[entry.turn] = _unknown(entry, next(free), "talk" if entry.turn in talkers else "upkeep")
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


def _unknown(entry: EntryLine, n: int, kind: TurnKind) -> TurnLine:
    """A turn of which only what it wrote is known."""
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


def _fill(places: range, turns: dict[str, TurnLine], entries: dict[int, EntryLine]) -> int:
    """Put something at each position that is missing; returns how many notes there are among it."""
    own: dict[str, list[EntryLine]] = {}
    for entry in entries.values():
        own.setdefault(entry.turn, []).append(entry)
    writers, left = _Writers(turns.values()), dict[str, list[Draft]]()
    near = entries[min(entries)].turn if entries else None  # whoever wrote before, or else first
    lost = 0
    for seq in places:
        if seq not in entries:
            turn = turns.get(writers.at(seq) or "") or _stretched(seq, near, turns)
            if turn.id not in left:
                left[turn.id] = _left_of(turn, own.get(turn.id, []))
            found = left[turn.id].pop() if left[turn.id] else draft(Note(LOST, reason="import"))
            entries[seq] = EntryLine(
                conversation=turn.conversation,
                seq=seq,
                id=found.id,
                turn=turn.id,
                body=found.body,
                created_at=turn.created_at,
            )
            lost += isinstance(found.body, Note)
        near = entries[seq].turn
    return lost


class _Writers:
    """The turn that wrote at a position; of one that joined another, the narrower one. Asked in the order of positions,
    so that each turn is looked at once."""

    def __init__(self, turns: Collection[TurnLine]) -> None:
        spans = [(turn.first_seq, turn.last_seq or 0, turn.id) for turn in turns if turn.first_seq is not None]
        self._ahead = sorted(spans, reverse=True)
        self._around: list[tuple[int, int, str]] = []

    def at(self, seq: int) -> str | None:
        while self._ahead and self._ahead[-1][0] <= seq:
            first, last, id = self._ahead.pop()
            heappush(self._around, (last - first, last, id))
        while self._around and self._around[0][1] < seq:
            heappop(self._around)
        return self._around[0][2] if self._around else None


def _stretched(seq: int, near: str | None, turns: dict[str, TurnLine]) -> TurnLine:
    """The turn nearby, which is taken to have written at a position that no turn speaks of."""
    id = near or next(iter(turns), None)
    if id is None:
        raise BadInput("Nothing is left of what was said in it.")
    first, last = turns[id].first_seq or seq, turns[id].last_seq or seq
    turns[id] = structs.replace(turns[id], first_seq=min(first, seq), last_seq=max(last, seq))
    return turns[id]


def _left_of(turn: TurnLine, own: Collection[EntryLine]) -> list[Draft]:
    """What can be told of the entries that a turn is missing, the first of it last: what it had brought along, an
    answer that was awaited, a call that was answered."""
    there = {entry.id for entry in own}
    brought = [found for found in turn.input.drafts if found.id not in there]
    bodies = [entry.body for entry in own] + [found.body for found in brought]
    calls = {body.call_id: None for body in bodies if isinstance(body, ToolCall) and not body.client}
    results = {body.call_id: None for body in bodies if isinstance(body, ToolResult)}
    given = {found.body.call_id for found in turn.input.drafts if isinstance(found.body, ToolResult)}
    stand_ins: list[AnyBody] = [ToolCall(id, "unknown", "{}") for id in results if id not in calls and id not in given]
    stand_ins += [ToolResult(id, LOST, is_error=True, unknown=True) for id in calls if id not in results]
    return [*map(draft, stand_ins), *reversed(brought)]
