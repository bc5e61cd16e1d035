"""The trash: what was deleted comes back within a time, and what is purged is gone from the disk.

A fork reads its parent's log by reference. So a purge takes everything that nobody reads any more, and leaves of the
log what forks (living, or in the trash themselves) still begin with: a *stump* without a title, names or inputs. When
the last of them is purged the stump goes, too.
"""

import re

from msgspec import Struct

from legato.domain.conversations import Conversation, Described
from legato.domain.handles import ById
from legato.domain.ids import ConversationId, PrincipalId
from legato.errors import ConversationBusy, UnknownHandle
from legato.store import directory
from legato.store.database import Tx, one
from legato.store.turns import under_way

_BLOB = re.compile(r'"blob":"([0-9a-f]{64})"')


class Restored(Struct, frozen=True):
    """A conversation that came back, the names that it lost to others meanwhile, and whether that happened only now; of
    one that came back before, what it lost then is no longer known."""

    conversation: Conversation
    lost: list[str]
    fresh: bool = True


async def deleted(tx: Tx, principal: PrincipalId, limit: int, after: ConversationId | None = None) -> list[Described]:
    """What is in a principal's trash, newest first, from the one after `after` on, each with the name it had."""
    before, before_id = 1e18, ""
    if after is not None:
        last = await one(tx.run("place_in_trash", id=after, principal=principal))
        if last is None:
            raise _not_there(after)
        before, before_id = last
    rows = await tx.run("list_deleted", principal=principal, before=before, before_id=before_id, limit=limit)
    found = directory.listed(rows)
    described = []
    for row in await directory.described(tx, found):
        names = await tx.run("freed_aliases_of", conversation=row.conversation.id)
        name = directory.slug_among((scheme, value) for scheme, value in names)
        described.append(Described(row.conversation, name, row.opening))
    return described


async def get(tx: Tx, principal: PrincipalId, conversation_id: ConversationId) -> Conversation:
    """A conversation in the trash, held until the transaction ends."""
    row = await one(tx.run("lock_deleted", id=conversation_id, principal=principal))
    if row is None:
        raise _not_there(conversation_id)
    return directory.conversation_of(row)


def _not_there(conversation_id: ConversationId) -> UnknownHandle:
    return UnknownHandle(f"No conversation {conversation_id!r} in the trash.", param="conversation")


async def restore(tx: Tx, principal: PrincipalId, conversation_id: ConversationId) -> Restored:
    """Take a conversation out of the trash. It gets back the names that are still free."""
    conversation = await get(tx, principal, conversation_id)
    await tx.run("undelete_conversation", id=conversation.id)
    had = await tx.run("freed_aliases_of", conversation=conversation.id)
    back = await tx.run("give_aliases_back", conversation=conversation.id)
    await tx.run("forget_freed_aliases", conversation=conversation.id)
    lost = [value for scheme, value in had if (scheme, value) not in set(back)]
    return Restored(await directory.find(tx, principal, ById(conversation.id)), lost)


async def expired(tx: Tx, keep: float, limit: int) -> list[tuple[PrincipalId, ConversationId]]:
    """What has been in the trash for more than `keep` seconds."""
    return [(principal, found) for principal, found in await tx.run("expired", keep=keep, limit=limit)]


async def purge(tx: Tx, principal: PrincipalId, conversation_id: ConversationId) -> None:
    """Let nothing be left of a conversation in the trash, but for what its forks read."""
    conversation = await get(tx, principal, conversation_id)
    if await under_way(tx, conversation.id):
        raise ConversationBusy(
            "A turn of it is still stopping; try again in a moment.", conversation_id=conversation.id
        )
    await tx.run("forget_freed_aliases", conversation=conversation.id)
    await tx.run("forget_previous", id=conversation.id)
    await _cut(tx, conversation)


async def _cut(tx: Tx, conversation: Conversation) -> None:
    """Keep of a log what its forks read; a fork from before its own entries reads its parent's instead."""
    forks = await tx.run("forks_of", id=conversation.id)
    for fork, base in forks:
        if base <= conversation.base_seq:
            await tx.run("reparent", id=fork, parent=conversation.parent_id)
    keep = max((base for _, base in forks if base > conversation.base_seq), default=None)
    await _purge_after(tx, conversation, conversation.base_seq if keep is None else keep)
    if keep is None:
        await tx.run("purge_conversation", id=conversation.id)
    else:
        await tx.run("empty_turns", id=conversation.id, keep=keep)
        await tx.run("shorten_conversation", id=conversation.id, keep=keep)
    for left in (conversation.id, *(fork for fork, _ in forks)):
        await tx.run("orphan_turns", id=left)
    if conversation.parent_id is not None and await one(tx.run("is_purged", id=conversation.parent_id)):
        [row] = await tx.run("lock_conversation", id=conversation.parent_id)
        await _cut(tx, directory.conversation_of(row))


async def _purge_after(tx: Tx, conversation: Conversation, keep: int) -> None:
    going = await tx.run("attached", id=conversation.id, keep=keep)
    if tx.dialect == "sqlite":
        await tx.run("purge_grams", id=conversation.id, keep=keep)
    for everything in ("purge_events", "purge_deliveries", "purge_previews", "purge_requests"):
        await tx.run(everything, id=conversation.id)
    for rest in ("purge_documents", "purge_entries", "purge_joined_turns", "purge_turns"):
        await tx.run(rest, id=conversation.id, keep=keep)
    for sha256 in sorted({found for (text,) in going for found in _BLOB.findall(text)}):
        await tx.run("lock_blob", principal=conversation.principal, sha256=sha256)
        if not await tx.run("blob_in_use", principal=conversation.principal, sha256=sha256):
            await tx.run("purge_blob", principal=conversation.principal, sha256=sha256)
