"""One conversation re-proved: its place among others, then its turns with what they told and owe, then its log."""

from typing import Any, Literal

from msgspec import DecodeError, Struct, convert, json

from legato.domain.ids import ConversationId
from legato.store.database import Tx, one
from legato.store.verify.log import prove_log
from legato.store.verify.reading import Ancestor, KnownTurn, Reading, Subject, is_address
from legato.store.verify.rules import Finding, Rule
from legato.store.verify.turns import prove_turns

_settings = json.Decoder(dict[str, Any])


class _Alias(Struct, frozen=True):
    principal: str
    scheme: Literal["slug", "external", "address", "fingerprint"]
    value: str


async def prove(tx: Tx, conversation_id: ConversationId) -> list[Finding]:
    """Everything that is wrong with one conversation."""
    row = await one(tx.run("verify_conversation", id=conversation_id))
    if row is None:
        return [Finding(Rule.reference, conversation_id, "rows speak of this conversation, and it is not there")]
    try:
        subject = convert(dict(zip(Subject.__struct_fields__, row, strict=True)), Subject)
    except DecodeError as error:
        return [Finding(Rule.value, conversation_id, str(error))]
    reading = Reading(tx, subject)
    _itself(reading)
    await _lineage(reading)
    await _aliases(reading)
    await prove_turns(reading)
    await _links(reading)
    await prove_log(reading)
    return reading.found


def _itself(reading: Reading) -> None:
    subject = reading.subject
    if not subject.principals:
        reading.add(Rule.reference, "", f"principal {subject.principal} is not there")
    if not 0 <= subject.base_seq <= subject.head_seq:
        reading.add(Rule.lineage, "", f"begins at {subject.base_seq}, and its head is {subject.head_seq}")
    reading.decoded(_settings, subject.settings, Rule.json, "settings")
    if subject.purged_at is not None and (subject.deleted_at is None or subject.head_seq != subject.read_upto):
        reading.add(Rule.purged, "", f"ends at {subject.head_seq}, and its forks read up to {subject.read_upto}")


async def _lineage(reading: Reading) -> None:
    """The conversations that this one reads. A circle of them would be read for ever."""
    subject = reading.subject
    by_id: dict[str, Ancestor] = {}
    for row in await reading.tx.run("verify_ancestors", id=subject.id):
        if ancestor := reading.typed(Ancestor, row, ""):
            by_id[ancestor.id] = ancestor
    above = subject.parent_id
    while above is not None and above in by_id:
        ancestor = by_id.pop(above)
        if ancestor.id == subject.id:
            reading.add(Rule.lineage, "", "is its own ancestor")
            break
        reading.ancestors.append(ancestor)
        above = ancestor.parent_id
    _parent(reading)


def _parent(reading: Reading) -> None:
    subject = reading.subject
    if subject.parent_id is None:
        if subject.base_seq != 0:
            reading.add(Rule.lineage, "", f"begins at {subject.base_seq}, and has no parent")
    elif not reading.ancestors:
        if subject.parent_id != subject.id:
            reading.add(Rule.reference, "", f"its parent {subject.parent_id} is not there")
    else:
        parent = reading.ancestors[0]
        if subject.base_seq > parent.head_seq:
            reading.add(
                Rule.lineage, "", f"begins at {subject.base_seq}; its parent {parent.id} ends at {parent.head_seq}"
            )
        if subject.principal != parent.principal:
            reading.add(Rule.owner, "", f"its parent {parent.id} belongs to {parent.principal}")


async def _aliases(reading: Reading) -> None:
    owner = reading.subject.principal
    for row in await reading.tx.run("verify_aliases", conversation=reading.id):
        where = f"alias {row[1]}:{row[2]}"
        alias = reading.typed(_Alias, row, where)
        if alias is None:
            continue
        if alias.principal != owner:
            reading.add(Rule.owner, where, f"belongs to {alias.principal}, its conversation to {owner}")
        if reading.subject.deleted_at is not None:
            reading.add(Rule.deleted, where, "still means this conversation, so nobody can use it")
        if alias.scheme == "address" and not is_address(alias.value):
            reading.add(Rule.address, where, "is not an address")


async def _links(reading: Reading) -> None:
    """What turns, their followers and the conversation say of turns."""
    numbers: dict[int, str] = {}
    for turn in reading.turns.values():
        where = f"turn {turn.id}"
        if (other := numbers.setdefault(turn.n, turn.id)) != turn.id:
            reading.add(Rule.order, where, f"has number {turn.n}, and so has {other}")
        if turn.parent is not None and not await _continues(reading, turn, turn.parent):
            reading.add(Rule.parent, where, f"cannot continue {turn.parent}")
        if turn.joined is not None:
            host = reading.turns.get(turn.joined)
            if host is None or host.kind != "talk" or host.joined is not None:
                reading.add(Rule.joined, where, f"cannot have joined {turn.joined}")
    for turn_id, joined in reading.joins:
        if joined not in reading.turns or reading.turns[joined].joined != turn_id:
            reading.add(Rule.items, f"turn {turn_id}", f"followers were told that {joined} joined it, and it did not")
    if reading.subject.purged_at is None:
        _tip(reading)
    _running(reading)


async def _continues(reading: Reading, turn: KnownTurn, parent_id: str) -> bool:
    """Whether a turn may continue another: an earlier talk turn here, or one of an ancestor."""
    parent = reading.turns.get(parent_id)
    if parent is not None:
        return turn.kind == parent.kind == "talk" and parent.n < turn.n
    place = await one(reading.tx.run("verify_turn", id=parent_id))
    above = {ancestor.id for ancestor in reading.ancestors}
    return place is not None and place[0] in above and turn.kind == place[1] == "talk"


def _tip(reading: Reading) -> None:
    talk = [turn for turn in reading.turns.values() if turn.kind == "talk"]
    newest = max(talk, key=lambda turn: turn.n).id if talk else None
    if reading.subject.tip_turn != newest:
        reading.add(Rule.tip, "", f"the tip is {reading.subject.tip_turn}, and the newest turn is {newest}")


def _running(reading: Reading) -> None:
    running = [turn.id for turn in reading.turns.values() if turn.status == "running"]
    if len(running) > 1:
        reading.add(Rule.running, "", f"{' and '.join(running)} run at once")
    if reading.subject.fence < (1 if running else 0):
        reading.add(Rule.fence, "", f"the fence is {reading.subject.fence}, and {len(running)} turns run")
