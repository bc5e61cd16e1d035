"""Export and import: a conversation leaves the store as lines, and comes back under the same ids.

An export reads in pages and only what has ended, so that it costs a busy gateway little and a turn under way cannot
tear it: the log is append-only, and what was there when it began is there at its end. What a fork inherits goes along
as a stump of its parent. An import is one transaction for each conversation, and never changes one that is there.
"""

from collections.abc import AsyncIterator, Iterable
from typing import Any, Literal

from msgspec import Struct, json, structs

from legato.domain.attachments import referred
from legato.domain.conversations import Conversation
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
STUMP = ("id", "parent_id", "base_seq", "created_at", "updated_at")  # what of a conversation is told of a stump
WHOLE = (*STUMP, "title", "agent", "kind", "settings")


# -- out


async def export(db: Database, principal: PrincipalId, conversation_id: ConversationId) -> AsyncIterator[Line]:
    """Every line of a conversation, with what it inherits."""
    await db.read(directory.find, principal, ById(conversation_id))
    async for line in _with_ancestors(db, principal, conversation_id, set()):
        yield line


async def export_all(db: Database, principal: PrincipalId) -> AsyncIterator[Line]:
    """Every line of everything a principal has, parents before their forks."""
    told: set[ConversationId] = set()
    last, created_at = "", -1.0
    while page := await db.read(_page, principal, created_at, last):
        last, created_at = page[-1]
        for conversation_id, _ in page:
            told.add(conversation_id)
            try:
                async for line in _with_ancestors(db, principal, conversation_id, told):
                    yield line
            except Unreadable as error:  # the rest of it is lost, the other conversations are not
                logger.error("not exported whole", conversation=conversation_id, error=error.message)
            except UnknownHandle:
                logger.info("purged before it was exported", conversation=conversation_id)


async def _page(tx: Tx, principal: PrincipalId, created_at: float, last: str) -> list[Row]:
    return await tx.run("conversations_in_order", principal=principal, created_at=created_at, id=last, limit=PAGE)


async def _with_ancestors(
    db: Database, principal: PrincipalId, conversation_id: ConversationId, told: set[ConversationId]
) -> AsyncIterator[Line]:
    """A conversation, after those that it reads (deleted ones, too) and that were not told before."""
    for stretch in (await db.read(log.lineage, conversation_id))[:-1]:
        if stretch.conversation_id not in told:
            async for line in _exported(db, principal, stretch.conversation_id, stretch.upto):
                yield line
    async for line in _exported(db, principal, conversation_id, None):
        yield line


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
        wanted = set(referred(entry.body for entry in entries)) - told
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
        return ConversationLine(**_kept(found, STUMP), head_seq=stump_upto, stump=True)
    [[end]] = await tx.run("export_end", conversation=conversation_id)
    names = await tx.run("export_aliases", conversation=found.id)
    aliases = tuple((scheme, value, at) for scheme, value, at in names)
    return ConversationLine(**_kept(found, WHOLE), head_seq=max(end, found.base_seq), aliases=aliases)


def _kept(found: Conversation | ConversationLine, names: Iterable[str]) -> dict[str, Any]:
    return {name: getattr(found, name) for name in names}


async def _turns(tx: Tx, conversation_id: ConversationId, after: int, upto: int) -> list[TurnLine]:
    rows = await tx.run("export_turns", conversation=conversation_id, after=after, upto=upto, limit=PAGE)
    names = TurnLine.__struct_fields__[1:]
    return [TurnLine(conversation=conversation_id, **turns.decoded(names, row)) for row in rows]


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
    columns = {**_kept(head, WHOLE), "head_seq": head.head_seq, "settings": json.encode(head.settings).decode()}
    tip, last_n = None if head.stump else given.tip, max((turn.n for turn in given.turns), default=0)
    here = {"principal": principal, "tip": tip, "last_n": last_n, "stump": int(head.stump)}
    if not await tx.run("import_conversation", **columns, **here):
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
    columns = structs.asdict(turn) | {"principal": principal}
    for name in ("input", "usage", "failure"):
        columns[name] = json.encode(columns[name]).decode() if columns[name] is not None else None
    columns["ended_at"] = turn.created_at if turn.ended_at is None else turn.ended_at
    if not await tx.run("import_turn", **columns):
        raise Conflict(f"Turn {turn.id} is part of another conversation here.")


def _entry_row(entry: EntryLine) -> dict[str, object]:
    placed = log.row_of(
        ConversationId(entry.conversation), TurnId(entry.turn), entry.seq, Draft(EntryId(entry.id), entry.body)
    )
    return {**placed, "created_at": entry.created_at}
