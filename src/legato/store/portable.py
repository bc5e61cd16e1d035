"""Export and import: a conversation leaves the store as lines, and comes back under the same ids.

An export reads in pages and only what has ended, so that it costs a busy gateway little and a turn under way cannot
tear it: the log is append-only, and what was there when it began is there at its end. What a fork inherits goes along
as a stump of its parent. An import is one transaction for each conversation, and never changes one that is there.
"""

from collections.abc import AsyncIterator
from typing import Literal

from msgspec import Struct, json, structs

from legato.domain.attachments import references
from legato.domain.entries import Draft
from legato.domain.handles import ById
from legato.domain.ids import ConversationId, EntryId, PrincipalId, TurnId
from legato.domain.portable import BlobLine, ConversationLine, EndLine, EntryLine, Line, Mended, TurnLine
from legato.domain.turns import Input
from legato.errors import Conflict, UnknownHandle, Unreadable
from legato.logs import logger
from legato.store import blobs, directory, log, turns
from legato.store.database import Database, Row, Tx, one

PAGE = 500


# -- out


async def export(db: Database, principal: PrincipalId, conversation_id: ConversationId) -> AsyncIterator[Line]:
    """Every line of a conversation, with what it inherits."""
    await db.read(directory.find, principal, ById(conversation_id))
    stretches = await db.read(log.lineage, conversation_id)
    for stretch in stretches[:-1]:
        async for line in _exported(db, principal, stretch.conversation_id, stretch.upto):
            yield line
    async for line in _exported(db, principal, conversation_id, None):
        yield line


async def export_all(db: Database, principal: PrincipalId) -> AsyncIterator[Line]:
    """Every line of everything a principal has, parents before their forks."""
    told: set[ConversationId] = set()
    last, created_at = "", -1.0
    while page := await db.read(_next_ones, principal, created_at, last):
        last, created_at = page[-1]
        for conversation_id, _ in page:
            told.add(conversation_id)
            try:
                for stretch in (await db.read(log.lineage, conversation_id))[:-1]:
                    if stretch.conversation_id not in told:  # deleted, and read by this one still
                        async for line in _exported(db, principal, stretch.conversation_id, stretch.upto):
                            yield line
                async for line in _exported(db, principal, conversation_id, None):
                    yield line
            except Unreadable as error:  # the rest of it is lost, the other conversations are not
                logger.error("not exported whole", conversation=conversation_id, error=error.message)
            except UnknownHandle:
                logger.info("purged before it was exported", conversation=conversation_id)


async def _next_ones(
    tx: Tx, principal: PrincipalId, created_at: float, last: str
) -> list[tuple[ConversationId, float]]:
    place = {"created_at": created_at, "id": last}
    rows = await tx.run("conversations_in_order", principal=principal, **place, limit=PAGE)
    return [(found, at) for found, at in rows]


async def _exported(
    db: Database, principal: PrincipalId, conversation_id: ConversationId, stump_upto: int | None
) -> AsyncIterator[Line]:
    head = await db.read(_head, conversation_id, stump_upto)
    yield head
    n = 0
    while turns := await db.read(_turns, conversation_id, n, head.head_seq):
        for turn in turns:
            yield _stumped(turn, head.head_seq) if head.stump else turn
        n = turns[-1].n
    told: set[str] = set()
    seq = head.base_seq
    while seq < head.head_seq:
        upto = min(seq + PAGE, head.head_seq)
        entries = await db.read(log.entries_at, conversation_id, seq + 1, upto)
        wanted = references(entry.body for entry in entries) - told
        for sha256 in sorted(wanted):
            for blob in (await db.read(blobs.get, principal, [sha256])).values():
                yield BlobLine(conversation=conversation_id, sha256=sha256, media_type=blob.media_type, data=blob.data)
        told |= wanted
        for e in entries:
            yield EntryLine(
                conversation=conversation_id, seq=e.seq, id=e.id, turn=e.turn_id, body=e.body, created_at=e.created_at
            )
        seq = upto
    yield EndLine(conversation=conversation_id)


async def _head(tx: Tx, conversation_id: ConversationId, stump_upto: int | None) -> ConversationLine:
    row = await one(tx.run("get_conversation", id=conversation_id))
    if row is None:
        raise UnknownHandle(f"No conversation {conversation_id!r}.", param="conversation")
    found = directory.conversation_of(row)
    if stump_upto is not None:
        return ConversationLine(
            id=found.id,
            parent_id=found.parent_id,
            base_seq=found.base_seq,
            head_seq=stump_upto,
            created_at=found.created_at,
            updated_at=found.updated_at,
            stump=True,
        )
    [[end]] = await tx.run("export_end", conversation=conversation_id)
    return ConversationLine(
        id=found.id,
        title=found.title,
        agent=found.agent,
        kind=found.kind,
        settings=found.settings,
        parent_id=found.parent_id,
        base_seq=found.base_seq,
        head_seq=max(end, found.base_seq),
        created_at=found.created_at,
        updated_at=found.updated_at,
        aliases=tuple(
            (scheme, value, at) for scheme, value, at in await tx.run("export_aliases", conversation=found.id)
        ),
    )


async def _turns(tx: Tx, conversation_id: ConversationId, after: int, upto: int) -> list[TurnLine]:
    rows = await tx.run("export_turns", conversation=conversation_id, after=after, upto=upto, limit=PAGE)
    return [_turn(conversation_id, row) for row in rows]


def _turn(conversation_id: ConversationId, row: Row) -> TurnLine:
    return TurnLine(conversation=conversation_id, **turns.decoded(TurnLine.__struct_fields__[1:], row))


def _stumped(turn: TurnLine, upto: int) -> TurnLine:
    """What is left of a turn in a stump."""
    last = min(turn.last_seq, upto) if turn.last_seq is not None else None
    return structs.replace(turn, input=Input(), failure=None, fingerprint=None, last_seq=last)


# -- in


class Imported(Struct, frozen=True):
    """What became of a conversation: `imported`, or `present` where it was there already. `lost_names` mean another
    conversation here; `lost_entries` were damaged."""

    id: str
    outcome: Literal["imported", "present"]
    lost_names: list[str] = []
    lost_entries: int = 0


async def import_one(tx: Tx, principal: PrincipalId, given: Mended) -> Imported:
    """Make a conversation as it was elsewhere; one that is here already stays as it is."""
    head = given.head
    known = await one(tx.run("known_conversation", id=head.id))
    if known is not None and not _may_fill(principal, head, known):
        return Imported(head.id, "present")
    await _check_parent(tx, principal, head)
    made = await tx.run(
        "import_conversation",
        id=head.id,
        principal=principal,
        title=head.title,
        agent=head.agent,
        kind=head.kind,
        settings=json.encode(head.settings).decode(),
        parent=head.parent_id,
        base=head.base_seq,
        head=head.head_seq,
        tip=None if head.stump else given.tip,
        last_n=max((turn.n for turn in given.turns), default=0),
        created_at=head.created_at,
        updated_at=head.updated_at,
        stump=int(head.stump),
    )
    if not made:
        raise Conflict(f"{head.id} is in use.")
    if known is not None:  # what was a stump is indexed anew, as a whole
        if tx.dialect == "sqlite":
            await tx.run("purge_grams", id=head.id, keep=0)
        await tx.run("purge_documents", id=head.id, keep=0)
    await blobs.put(tx, principal, given.blobs)
    for turn in sorted(given.turns, key=lambda turn: turn.joined_turn is not None):
        await _put_turn(tx, principal, turn)
    await tx.run("orphan_turns", id=head.id)
    await tx.many("import_entry", (_entry_row(entry) for entry in given.entries))
    lost = [
        value
        for scheme, value, at in head.aliases
        if not await tx.run(
            "import_alias", principal=principal, scheme=scheme, value=value, conversation=head.id, created_at=at
        )
    ]
    return Imported(head.id, "imported", lost, given.lost)


def _may_fill(principal: PrincipalId, head: ConversationLine, known: Row) -> bool:
    """Whether what is here under an id is less than what comes: a stump that is shorter, or that comes whole."""
    owner, parent, base, present_head, is_deleted, is_purged = known
    if owner != principal:
        raise Conflict(f"{head.id} is in use.")
    if head.stump and (not is_purged or present_head >= head.head_seq):
        return False
    if is_purged:
        if (parent, base) != (head.parent_id, head.base_seq):
            raise Conflict(f"What is left here of {head.id} begins elsewhere.")
        if present_head > head.head_seq:
            raise Conflict(f"Forks here read {head.id} up to {present_head}, and what comes ends at {head.head_seq}.")
        return True
    if is_deleted:
        raise Conflict(f"{head.id} is in the trash; restore it, or purge it first.")
    return False


async def _check_parent(tx: Tx, principal: PrincipalId, head: ConversationLine) -> None:
    if head.base_seq > head.head_seq or (head.parent_id is None and head.base_seq):
        raise Conflict(f"{head.id} begins at {head.base_seq}, which is nowhere.")
    if head.parent_id is not None:
        parent = await one(tx.run("known_conversation", id=head.parent_id))
        if parent is None or parent[0] != principal or parent[3] < head.base_seq:
            raise Conflict(f"{head.id} is a fork of {head.parent_id}, which is not here up to {head.base_seq}.")


async def _put_turn(tx: Tx, principal: PrincipalId, turn: TurnLine) -> None:
    kept = await tx.run(
        "import_turn",
        id=turn.id,
        conversation=turn.conversation,
        n=turn.n,
        parent_turn=turn.parent_turn,
        joined_turn=turn.joined_turn,
        principal=principal,
        kind=turn.kind,
        status=turn.status,
        busy=turn.busy,
        input=json.encode(turn.input).decode(),
        first_seq=turn.first_seq,
        last_seq=turn.last_seq,
        usage=json.encode(turn.usage).decode() if turn.usage else None,
        failure=json.encode(turn.failure).decode() if turn.failure else None,
        fingerprint=turn.fingerprint,
        created_at=turn.created_at,
        claimed_at=turn.claimed_at,
        ended_at=turn.ended_at if turn.ended_at is not None else turn.created_at,
        deleted_at=turn.deleted_at,
    )
    if not kept:
        raise Conflict(f"Turn {turn.id} is part of another conversation here.")


def _entry_row(entry: EntryLine) -> dict[str, object]:
    placed = log.row_of(
        ConversationId(entry.conversation), TurnId(entry.turn), entry.seq, Draft(EntryId(entry.id), entry.body)
    )
    return {**placed, "created_at": entry.created_at}
