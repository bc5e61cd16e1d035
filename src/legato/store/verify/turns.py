"""The turns of one conversation, a page at a time, with the events they told and the answers they owe."""

from collections.abc import Iterable
from itertools import groupby
from operator import itemgetter

from msgspec import Struct, field, json

from legato.domain.events import Answered, AnyEvent, Closed, Delta, Folded, Joined, Opened
from legato.domain.turns import ENDED, Busy, Failure, Input, Status, TurnKind, Usage
from legato.store.database import Row
from legato.store.outbox import DeliveryStatus
from legato.store.verify.reading import FIRST, KnownTurn, Reading, is_address
from legato.store.verify.rules import Rule

PAGE = 100

_input = json.Decoder(Input)
_usage = json.Decoder(Usage)
_failure = json.Decoder(Failure)
_answer = json.Decoder(dict[str, str])
_events: json.Decoder[list[AnyEvent]] = json.Decoder(list[AnyEvent])


class _Turn(Struct, frozen=True):
    id: str
    n: int
    principal: str
    kind: TurnKind
    status: Status
    busy: Busy
    owner: str | None
    attempts: int
    parent_turn: str | None
    joined_turn: str | None
    first_seq: int | None
    last_seq: int | None
    claimed_at: float | None
    ended_at: float | None
    indexed_at: float | None
    pruned_at: float | None
    input: bytes
    usage: bytes | None
    failure: bytes | None


class _Batch(Struct, frozen=True):
    turn_id: str
    first_n: int
    last_n: int
    payload: bytes


class _Delivery(Struct, frozen=True):
    turn_id: str
    id: int
    address: str
    body: str
    status: DeliveryStatus
    owner: str | None
    attempts: int


async def prove_turns(reading: Reading) -> None:
    """Every turn in order of admission."""
    n, turn_id = FIRST, ""
    while rows := await reading.tx.run("verify_turns", conversation=reading.id, n=n, id=turn_id, limit=PAGE):
        for row in rows:
            if turn := reading.typed(_Turn, row, f"turn {row[0]}"):
                reading.turns[turn.id] = _known(reading, turn)
        first, (turn_id, n) = rows[0][1], (rows[-1][0], rows[-1][1])
        for told_by, batches in groupby(
            await reading.tx.run("verify_events", conversation=reading.id, first=first, last=n), key=itemgetter(0)
        ):
            if known := reading.turns.get(told_by):
                _items(reading, known, _numbered(reading, known, batches))
        for row in await reading.tx.run("verify_deliveries", conversation=reading.id, first=first, last=n):
            _owed(reading, row)


def _known(reading: Reading, turn: _Turn) -> KnownTurn:
    """What is wrong with a turn by itself, and what later rows need of it."""
    subject, where = reading.subject, f"turn {turn.id}"
    if turn.principal != subject.principal:
        reading.add(Rule.owner, where, f"belongs to {turn.principal}, its conversation to {subject.principal}")
    if not 1 <= turn.n <= subject.last_n:
        reading.add(Rule.order, where, f"has number {turn.n}, and {subject.last_n} were admitted")
    for wrong in _disagreements(turn):
        reading.add(Rule.status, where, f"is {turn.status}, and {wrong}")
    first, last = turn.first_seq, turn.last_seq
    if first is not None and not subject.base_seq < first <= subject.head_seq + 1:
        reading.add(
            Rule.span, where, f"begins at {first}; the log goes from {subject.base_seq + 1} to {subject.head_seq}"
        )
    if last is not None and (first is None or not first - 1 <= last <= subject.head_seq):
        reading.add(Rule.span, where, f"goes from {first} to {last}; the log goes to {subject.head_seq}")
    brought: Input | None = reading.decoded(_input, turn.input, Rule.json, f"{where}/input")
    reading.decoded(_usage, turn.usage, Rule.json, f"{where}/usage")
    reading.decoded(_failure, turn.failure, Rule.json, f"{where}/failure")
    begun = first is not None and (turn.kind == "talk" or turn.status == "done")  # upkeep that came too late adds none
    return KnownTurn(
        id=turn.id,
        n=turn.n,
        kind=turn.kind,
        status=turn.status,
        parent=turn.parent_turn,
        joined=turn.joined_turn,
        first=first,
        last=last,
        indexed=turn.indexed_at is not None,
        pruned=turn.pruned_at is not None,
        brought={d.id: hash(json.encode(d.body)) for d in brought.drafts} if brought and begun else {},
    )


def _disagreements(turn: _Turn) -> Iterable[str]:
    """What a turn's status says otherwise than its other columns."""
    running, ended = turn.status == "running", turn.status in ENDED
    if running != (turn.owner is not None):
        yield f"its owner is {turn.owner}"
    if running and turn.claimed_at is None:
        yield "it was never claimed"
    if ended != (turn.ended_at is not None):
        yield f"its end is {turn.ended_at}"
    if (turn.status == "joined") != (turn.joined_turn is not None):
        yield f"it joined {turn.joined_turn}"
    if turn.status == "joined" and (turn.busy != "steer" or turn.kind != "talk"):
        yield f"it is {turn.kind} with policy {turn.busy}"
    if turn.first_seq is None and turn.status in ("running", "done", "failed", "joined"):
        yield "it has no first position"
    if ended and turn.first_seq is not None and turn.last_seq is None:
        yield "it has a first position and no last one"
    if not ended and turn.last_seq is not None:
        yield f"it has a last position, {turn.last_seq}"
    if not ended and (turn.indexed_at is not None or turn.pruned_at is not None):
        yield "it is indexed or pruned"
    if turn.attempts < 0:
        yield f"it was tried {turn.attempts} times"


# -- events


def _numbered(reading: Reading, turn: KnownTurn, batches: Iterable[Row]) -> list[AnyEvent]:
    """A turn's events, whose numbers have to be right."""
    events: list[AnyEvent] = []
    where, n = f"turn {turn.id}", 0
    if turn.first is None or turn.pruned:
        reading.add(Rule.events, where, "has events, and never ran or was pruned")
    for row in batches:
        batch = reading.typed(_Batch, row, where)
        if batch is None:
            continue
        place = f"{where}/event {batch.first_n}"
        if batch.first_n != n:
            reading.add(Rule.events, place, f"comes where event {n} should be")
        n = batch.last_n + 1
        told: list[AnyEvent] | None = reading.decoded(_events, batch.payload, Rule.events, place, exact=False)
        if told is not None and len(told) != batch.last_n - batch.first_n + 1:
            reading.add(Rule.events, place, f"{len(told)} events stand for {batch.first_n} to {batch.last_n}")
        events += told or []
    return events


class _Item(Struct):
    """An item as its followers saw it."""

    id: str
    pieces: list[str] = field(default_factory=list)
    closed: bool = False


def _items(reading: Reading, turn: KnownTurn, events: list[AnyEvent]) -> None:
    """Items open once and grow while open. When the turn is done they are closed, and the log has to say the same."""
    items: dict[int, _Item] = {}
    told: dict[str, int] = {}
    where = f"turn {turn.id}"
    for n, event in enumerate(events):
        match event:
            case Opened(index=index, id=id) | Answered(index=index, id=id) | Folded(index=index, id=id):
                if index in items:
                    reading.add(Rule.items, f"{where}/event {n}", f"opens item {index} again")
                items[index] = _Item(id)
                if not isinstance(event, Opened):
                    items[index].closed = True
                    told[id] = hash(event.output if isinstance(event, Answered) else event.compaction.summary)
            case Delta(index=index) | Closed(index=index):
                item = items.get(index)
                if item is None or item.closed:
                    reading.add(Rule.items, f"{where}/event {n}", f"speaks of item {index}, which is not open")
                elif isinstance(event, Delta):
                    item.pieces.append(event.text)
                else:
                    item.closed = True
                    if not event.incomplete:
                        told[item.id] = hash("".join(item.pieces))
            case Joined(turn_id=joined):
                reading.joins.append((turn.id, joined))
    if turn.status == "done":
        turn.told = told
        if still := [index for index, item in items.items() if not item.closed]:
            reading.add(Rule.items, where, f"is done, and items {still} are open")


# -- deliveries


def _owed(reading: Reading, row: Row) -> None:
    where = f"turn {row[0]}/delivery {row[1]}"
    delivery, turn = reading.typed(_Delivery, row, where), reading.turns.get(row[0])
    if delivery is None or turn is None:
        return
    if turn.status not in ("done", "failed"):
        reading.add(Rule.delivery, where, f"is owed by a turn that is {turn.status}")
    if (delivery.status == "sending") != (delivery.owner is not None):
        reading.add(Rule.delivery, where, f"is {delivery.status}, and its owner is {delivery.owner}")
    if delivery.status in ("sending", "sent", "unknown") and delivery.attempts < 1:
        reading.add(Rule.delivery, where, f"is {delivery.status}, and was never tried")
    if not is_address(delivery.address):
        reading.add(Rule.address, where, f"{delivery.address} is not an address")
    reading.decoded(_answer, delivery.body, Rule.json, where)
