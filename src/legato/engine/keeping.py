"""Keeping: the verbs that find conversations and look after them: names, trash, export and import, keys, people.

They are part of the gateway, and stand here to be read alone. Every verb takes the principal; what belongs to another
is not there.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Any, Literal

from msgspec import Struct

from legato.domain.conversations import Conversation, Described
from legato.domain.handles import Address, Handle, Name, nearest
from legato.domain.ids import ConversationId, PrincipalId, TurnId
from legato.domain.portable import Line, Mended
from legato.domain.turns import Dedup, Turn, Usage
from legato.engine.worker import Worker
from legato.errors import BadInput, Draining, Unavailable
from legato.store import directory, identities, inbox, keys, log, outbox, portable, requests, search, trash, turns
from legato.store.database import Database, Hint, Tx
from legato.store.identities import Identity
from legato.store.outbox import Undelivered
from legato.store.portable import Imported
from legato.store.requests import Made
from legato.store.search import Hit
from legato.store.trash import Restored

NEAR = 1_000  # how many of the newest conversations are looked at for one whose name is like another
CATCH_UP = 10  # strides of indexing that a search waits for


class Meant(Struct, frozen=True):
    """What someone may have meant, and how it was found."""

    match: Literal["exact", "prefix", "near", "none"]
    found: list[Described]


class Keeping(ABC):
    """Find, name, delete, restore, export, import; and what an administrator does."""

    def __init__(self, db: Database, worker: Worker) -> None:
        self._db, self._worker = db, worker
        self._draining = False

    @abstractmethod
    async def ended(self, turn: Turn) -> Turn: ...

    def _check_open(self) -> None:
        if self._draining:
            raise Draining()

    # -- conversations

    async def find(self, principal: PrincipalId, handle: Handle) -> Conversation:
        """The conversation that a handle means; never creates."""
        return await self._db.read(directory.find, principal, handle)

    async def conversations(
        self,
        principal: PrincipalId,
        limit: int = 100,
        after: ConversationId | None = None,
        *,
        query: str | None = None,
        kind: str | None = None,
    ) -> list[Conversation]:
        """Conversations that hold something (with a query: that), newest first."""
        if query is not None:
            await self._index()
            return await self._db.read(search.conversations, principal, query, limit, after, kind)
        return await self._db.read(directory.newest, principal, limit, after, kind)

    async def meant(self, principal: PrincipalId, what: str, limit: int = 20) -> Meant:
        """What someone may mean by an id, a name, a title, or the beginning of one; where there is nothing, what is
        called nearly so. Never creates."""
        if found := await self._db.read(directory.meant, principal, what, limit):
            shown = await self.described(found)
            first = found[0]  # either all are called so, or all only begin so
            called = {first.id, first.title, *(value for _, value in await self.names(first))}
            return Meant("exact" if what in called else "prefix", shown)
        known = await self.described(await self.conversations(principal, NEAR))
        begun = what.casefold()  # as it is shown in a list, in letters of any size
        if alike := [d for d in known if d.called.casefold().startswith(begun)]:
            return Meant("prefix", alike[:limit])
        near = await asyncio.to_thread(nearest, what, [[d.conversation.title, d.name or ""] for d in known])
        return Meant("near" if near else "none", [known[place] for place in near])

    async def described(self, conversations: Iterable[Conversation]) -> list[Described]:
        """Conversations that were read, as a list shows them."""
        return await self._db.read(directory.described, conversations)

    async def create(
        self, principal: PrincipalId, settings: dict[str, Any], name: Name | None = None, *, dedup: Dedup | None = None
    ) -> Made:
        """A new, empty conversation; with a name that is already known, the one it means."""
        return await self._once(principal, dedup, lambda tx: _create(tx, principal, settings, name))

    async def change_settings(
        self, principal: PrincipalId, handle: Handle, changes: dict[str, Any], *, dedup: Dedup | None = None
    ) -> Made:
        """Change some of what is kept beside the log."""
        return await self._once(principal, dedup, lambda tx: directory.change_settings(tx, principal, handle, changes))

    async def _once(
        self, principal: PrincipalId, dedup: Dedup | None, make: Callable[[Tx], Awaitable[Conversation]]
    ) -> Made:
        self._check_open()
        return await self._db.write(requests.once, principal, dedup, make)

    async def delete(self, principal: PrincipalId, handle: Handle) -> Conversation:
        """Put a conversation into the trash; its names are free at once. What runs in it is stopped."""
        conversation, running = await self._db.write(_delete, principal, handle)
        for turn_id in running:
            self._worker.stop(turn_id)
            self._db.tell(Hint("cancel", turn_id))
        self._worker.pasts.drop(conversation.id)
        return conversation

    async def deleted(
        self, principal: PrincipalId, limit: int = 100, after: ConversationId | None = None
    ) -> list[Described]:
        """What is in the trash, newest first."""
        return await self._db.read(trash.deleted, principal, limit, after)

    async def restore(
        self, principal: PrincipalId, conversation_id: ConversationId, *, dedup: Dedup | None = None
    ) -> Restored:
        """Take a conversation out of the trash, with those of its names that are still free."""
        lost: list[str] = []

        async def make(tx: Tx) -> Conversation:
            restored = await trash.restore(tx, principal, conversation_id)
            lost[:] = restored.lost
            return restored.conversation

        made = await self._once(principal, dedup, make)
        return Restored(made.conversation, lost, made.fresh)

    async def purge(self, principal: PrincipalId, conversation_id: ConversationId) -> None:
        """Let nothing be left of a conversation in the trash, but for what its forks read."""
        for turn in await self._db.read(turns.under_way, conversation_id):
            if turn.principal == principal:
                await self.ended(turn)  # it was stopped when the conversation was deleted
        await self._db.write(trash.purge, principal, conversation_id)
        self._worker.pasts.drop(conversation_id)

    async def scrub(self) -> None:
        """Write the files anew, so that nothing that was purged is left in them."""
        await self._db.scrub()

    def export(self, principal: PrincipalId, conversation_id: ConversationId) -> AsyncIterator[Line]:
        """Everything there is to a conversation, as lines."""
        return portable.export(self._db, principal, conversation_id)

    def export_all(self, principal: PrincipalId) -> AsyncIterator[Line]:
        """Everything there is to all conversations of a principal."""
        return portable.export_all(self._db, principal)

    async def import_one(self, principal: PrincipalId, given: Mended) -> Imported:
        """Make a conversation as it was elsewhere, under the same ids."""
        self._check_open()
        imported = await self._db.write(portable.import_one, principal, given)
        self._worker.index_soon()
        return imported

    async def last_ended(self, conversation: Conversation) -> int:
        """The number of the turn before everything that is under way in a conversation that was read."""
        return await self._db.read(turns.last_ended, conversation.id)

    async def under_way(self, conversation: Conversation) -> list[Turn]:
        """What runs or waits in a conversation that was read, in the order in which it comes."""
        return await self._db.read(turns.under_way, conversation.id)

    async def usage(self, conversation: Conversation) -> Usage:
        """What a conversation that was read has cost."""
        return await self._db.read(turns.usage_of, conversation.id)

    async def count_messages(self, conversation: Conversation) -> int:
        """How many messages people see of a conversation that was read, calls and results of tools included."""
        return await self._db.read(log.count_messages, conversation.id)

    async def names(self, conversation: Conversation) -> list[tuple[str, str]]:
        """Every (scheme, value) by which a conversation that was read is known."""
        return await self._db.read(directory.names, conversation.id)

    async def unbind(self, principal: PrincipalId, name: Name) -> bool:
        """Take a name away; the conversation stays."""
        return await self._db.write(directory.unbind, principal, name)

    async def search(self, principal: PrincipalId, query: str, limit: int = 20) -> list[Hit]:
        """What was said, newest first, up to now: what the index does not know yet is added first."""
        await self._index()
        return await self._db.read(search.search, principal, query, limit=limit)

    async def _index(self) -> None:
        """Let search know what has been said up to now, as far as it can be written and is not too much to wait for."""
        with suppress(Unavailable):
            await search.catch_up(self._db, CATCH_UP)

    async def rename(
        self, principal: PrincipalId, handle: Handle, title: str, *, dedup: Dedup | None = None
    ) -> Conversation:
        """Change the title people see. A request that has done so is not in the way of who changed it since."""

        async def make(tx: Tx) -> Conversation:
            return await directory.rename(tx, principal, handle, title)

        made: Made = await self._db.write(requests.once, principal, dedup, make)
        return made.conversation

    async def bind(self, principal: PrincipalId, name: Name, handle: Handle, *, move: bool = False) -> None:
        """Give a conversation another name; with `move`, take the name from where it points now."""
        conversation = await self.find(principal, handle)
        await self._db.write(directory.bind, principal, name, conversation.id, move=move)

    async def chats(self, principal: PrincipalId) -> list[tuple[Address, ConversationId]]:
        """The chats of a principal, and what goes on in each."""
        return await self._db.read(directory.addresses, principal)

    async def move_chat(
        self, principal: PrincipalId, account: str, chat: str, thread: str, handle: Handle
    ) -> tuple[Address, Conversation]:
        """Let a chat of a principal go on in another conversation."""
        conversation = await self.find(principal, handle)
        return await self._db.write(inbox.move_chat, principal, account, chat, thread, conversation.id), conversation

    async def fork(
        self,
        principal: PrincipalId,
        handle: Handle,
        at: int | None = None,
        *,
        name: Name | None = None,
        dedup: Dedup | None = None,
    ) -> Made:
        """A new conversation that begins at a position of another (its head when not given), by reference."""
        return await self._once(principal, dedup, lambda tx: _fork(tx, principal, handle, at, name))

    # -- administration

    async def create_key(
        self, name: str, principal: PrincipalId, scopes: frozenset[str], *, secret: str = "", request: str | None = None
    ) -> tuple[str, bool]:
        """A key that speaks for a principal, and whether it was made only now. The same `request` with the same secret
        is told the same one."""
        key = keys.key_for(secret, request) if request is not None else keys.new_key()
        return key, await self._db.write(keys.add, key, name=name, principal=principal, scopes=scopes)

    async def keys(self) -> list[keys.Key]:
        """Every key, as it is listed."""
        return await self._db.read(keys.known)

    async def pair(self, code: str, principal: PrincipalId) -> Identity:
        """Join whoever was given a code on a channel to a principal."""
        return await self._db.write(identities.confirm, code, principal)

    async def paired(self) -> list[Identity]:
        """Everybody who speaks on channels."""
        return await self._db.read(identities.known)

    async def unpair(self, channel: str, sender: str) -> int:
        """Let a person speak for nobody any more."""
        return await self._db.write(identities.remove, channel, sender)

    async def undelivered(self, principal: PrincipalId, limit: int = 100) -> list[Undelivered]:
        """Answers that did not arrive on a channel, or may not have."""
        return await self._db.read(outbox.undelivered, principal, limit)

    async def resend(self, principal: PrincipalId, delivery_id: int) -> None:
        """Try to deliver one of them again."""
        await self._db.write(outbox.resend, principal, delivery_id)

    async def revoke_key(self, name: str) -> int:
        """Let the keys of a name open nothing more."""
        return await self._db.write(keys.revoke, name)


async def _create(tx: Tx, principal: PrincipalId, settings: dict[str, Any], name: Name | None) -> Conversation:
    if name is not None and (known := await directory.lookup(tx, principal, name)) is not None:
        return known
    conversation = await directory.create(tx, principal, settings=settings)
    if name is not None:
        await directory.add_name(tx, principal, name, conversation.id)
    return conversation


async def _delete(tx: Tx, principal: PrincipalId, handle: Handle) -> tuple[Conversation, list[TurnId]]:
    conversation = await directory.delete(tx, principal, handle)
    return conversation, await turns.cancel_all(tx, conversation.id)


async def _fork(
    tx: Tx, principal: PrincipalId, handle: Handle, at: int | None, name: Name | None = None
) -> Conversation:
    if name is not None:
        await directory.check_unused(tx, principal, name)
    origin = await directory.find(tx, principal, handle, lock=True)
    base = origin.head_seq if at is None else at
    if not 0 <= base <= origin.head_seq:
        raise BadInput(f"There is no position {base}; the log ends at {origin.head_seq}.", param="at")
    fork = await directory.fork(tx, principal, origin, base)
    if name is not None:
        await directory.add_name(tx, principal, name, fork.id)
    return fork
