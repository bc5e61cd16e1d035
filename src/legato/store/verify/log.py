"""The log of one conversation, read from its beginning to its head.

What a client brought is its own word: a tool's result that answers no call of ours is data, not a defect. What was
written here is held to the rules.
"""

from collections.abc import AsyncIterator

from msgspec import Struct, json

from legato.domain.entries import (
    AnyBody,
    Compaction,
    Expand,
    File,
    Hide,
    Image,
    Message,
    Pin,
    Reasoning,
    Remove,
    Rewind,
    ToolCall,
    ToolResult,
    kind_of,
    span_of,
)
from legato.domain.grams import normalise
from legato.domain.window import VOIDABLE
from legato.store.database import one
from legato.store.search import text_of
from legato.store.verify.reading import FIRST, KnownTurn, Reading
from legato.store.verify.rules import Rule

PAGE = 500
_ITEMS = ("message", "reasoning", "tool_call", "tool_result")

_body: json.Decoder[AnyBody] = json.Decoder(AnyBody)


class _Entry(Struct, frozen=True):
    seq: int
    id: str
    turn_id: str
    kind: str
    ref_first: int | None
    ref_seq: int | None
    body: bytes


async def prove_log(reading: Reading) -> None:
    """Every entry in order, then what no entry was there for."""
    log = _Log(reading)
    log.searched = {seq for (seq,) in await reading.tx.run("verify_searched", conversation=reading.id)}
    base, head = reading.subject.base_seq, reading.subject.head_seq
    due = base + 1
    async for entry in _entries(reading):
        if not base < entry.seq <= head:
            reading.add(Rule.beyond, f"entry {entry.seq}", f"the log goes from {base + 1} to {head}")
        elif entry.seq != due:
            reading.add(Rule.gap, f"entry {due}", f"positions {due} to {entry.seq - 1} are missing")
        due = max(due, entry.seq + 1)
        await log.take(entry)
    if due <= head:
        reading.add(Rule.gap, f"entry {due}", f"positions {due} to {head} are missing")
    for id, first, last in await reading.tx.run("verify_doubled", conversation=reading.id):
        reading.add(Rule.doubled, f"entry {last}", f"{id} stands at {first}, too")
    log.close()


async def _entries(reading: Reading) -> AsyncIterator[_Entry]:
    after = FIRST
    while rows := await reading.tx.run("verify_entries", conversation=reading.id, after=after, limit=PAGE):
        for row in rows:
            after = row[0]
            if entry := reading.typed(_Entry, row, f"entry {after}"):
                yield entry


class _Log:
    """What is remembered from one entry to the next."""

    def __init__(self, reading: Reading) -> None:
        self.reading = reading
        self.searched: set[int] = set()  # positions that search knows and whose entry has not come
        self.attached: set[str] = set()
        self.called: set[str] = set()
        self.unanswered: dict[str, tuple[KnownTurn, int]] = {}  # by call id: who called, and where

    async def take(self, entry: _Entry) -> None:
        reading, where = self.reading, f"entry {entry.seq}"
        turn = reading.turns.get(entry.turn_id)
        if turn is None:
            reading.add(Rule.writer, where, f"its turn {entry.turn_id} is not one of this conversation")
        elif turn.first is None or entry.seq < turn.first or (turn.last is not None and entry.seq > turn.last):
            reading.add(Rule.writer, where, f"its turn {turn.id} goes from {turn.first} to {turn.last}")
        searched = entry.seq in self.searched
        self.searched.discard(entry.seq)
        body: AnyBody | None = reading.decoded(_body, entry.body, Rule.body, where)
        if body is None:
            return
        columns, says = (entry.kind, entry.ref_first, entry.ref_seq), (kind_of(body), *span_of(body))
        if columns != says:
            reading.add(Rule.columns, where, f"the columns say {columns}, the body {says}")
        if not await self._sound_target(body, entry.seq):
            reading.add(Rule.target, where, f"cannot speak of that: {body}")
        await self._attachments(body, where)
        if turn is not None:
            brought = self._as_promised(turn, entry.id, body, where)
            if not brought and reading.subject.purged_at is None:  # of what forks read, the turns' words are gone
                await self._tools(turn, entry.seq, body, where)
            if turn.indexed and not searched and normalise(text_of(body)):
                reading.add(Rule.search, where, "its turn is indexed and it is not; rebuild the search index")

    def _as_promised(self, turn: KnownTurn, entry_id: str, body: AnyBody, where: str) -> bool:
        """An entry says what its turn brought, and what followers were told. Returns whether it was brought."""
        brought, told = turn.brought.pop(entry_id, None), turn.told.pop(entry_id, None)
        if brought is not None and brought != hash(json.encode(body)):
            self.reading.add(Rule.brought, where, f"is not what turn {turn.id} brought")
        if told is not None and told != hash(_said(body)):
            self.reading.add(Rule.items, where, f"is not what followers of turn {turn.id} were told")
        return brought is not None

    async def _sound_target(self, body: AnyBody, seq: int) -> bool:
        match body:
            case Compaction(upto=ref) | Rewind(to=ref):
                return 0 <= ref < seq
            case Hide(first=first, last=last):
                return 1 <= first <= last < seq
            case Expand(of=ref):
                return 1 <= ref < seq and await self._kind_at(ref) in VOIDABLE
            case Pin(at=ref) | Remove(at=ref):
                return 1 <= ref < seq and await self._kind_at(ref) in _ITEMS
            case _:
                return True

    async def _kind_at(self, seq: int) -> str | None:
        """The kind of the entry that this conversation reads at a position."""
        holder, base = self.reading.id, self.reading.subject.base_seq
        for ancestor in self.reading.ancestors:
            if seq > base:
                break
            holder, base = ancestor.id, ancestor.base_seq
        row = await one(self.reading.tx.run("verify_kind_at", conversation=holder, seq=seq))
        return row[0] if row else None

    async def _attachments(self, body: AnyBody, where: str) -> None:
        principal = self.reading.subject.principal
        for part in body.parts if isinstance(body, Message | ToolResult) else ():
            if isinstance(part, Image | File) and part.blob is not None and part.blob not in self.attached:
                self.attached.add(part.blob)
                if not await self.reading.tx.run("verify_blob", principal=principal, sha256=part.blob):
                    self.reading.add(Rule.attachment, where, f"blob {part.blob} is not there")

    async def _tools(self, turn: KnownTurn, seq: int, body: AnyBody, where: str) -> None:
        match body:
            case ToolCall(call_id=call_id):
                self.called.add(call_id)
                if not body.client:
                    self.unanswered[call_id] = turn, seq
            case ToolResult(call_id=call_id):
                self.unanswered.pop(call_id, None)
                if call_id not in self.called and not await self._called_above(call_id):
                    self.reading.add(Rule.call, where, f"no call {call_id} comes before it")

    async def _called_above(self, call_id: str) -> bool:
        """Whether an ancestor made a call, before the fork."""
        wanted = json.encode(call_id).decode()
        upto = self.reading.subject.base_seq
        for ancestor in self.reading.ancestors:
            after = FIRST
            while rows := await self.reading.tx.run(
                "verify_calls", conversation=ancestor.id, after=after, upto=upto, limit=PAGE
            ):
                after = rows[-1][0]
                if any(wanted in body for _, body in rows):
                    return True
            upto = min(upto, ancestor.base_seq)
        return False

    def close(self) -> None:
        """Promises that no entry kept."""
        reading = self.reading
        for call_id, (turn, seq) in self.unanswered.items():
            if turn.status == "done":
                reading.add(Rule.answer, f"entry {seq}", f"call {call_id} has no result, and turn {turn.id} is done")
        for turn in reading.turns.values():
            for id in turn.brought:
                reading.add(Rule.brought, f"turn {turn.id}", f"brought {id}, which is not in the log")
            for id in turn.told:
                reading.add(Rule.items, f"turn {turn.id}", f"followers were told of {id}, which is not in the log")
        for seq in sorted(self.searched):
            reading.add(Rule.search, f"entry {seq}", "search knows it and it is not there; rebuild the search index")


def _said(body: AnyBody) -> str | None:
    """The text of an entry that followers see."""
    match body:
        case Message(text=text) | Reasoning(text=text) | ToolCall(arguments=text) | ToolResult(output=text):
            return text
        case Compaction(summary=text):
            return text
        case _:
            return None
