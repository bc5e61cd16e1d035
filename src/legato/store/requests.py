"""Requests that change a conversation without a turn (make, fork, settings), each carried out once per dedup key.

A turn keeps its own dedup key. For the rest, the key and what it made are written in the transaction that makes it,
so a retry finds either both or neither.
"""

from collections.abc import Awaitable, Callable

from msgspec import Struct

from legato.domain.conversations import Conversation
from legato.domain.handles import ById
from legato.domain.ids import ConversationId, PrincipalId
from legato.domain.turns import Dedup
from legato.errors import AliasTaken, DedupMismatch
from legato.store import admission, directory
from legato.store.database import Tx, one


class Made(Struct, frozen=True):
    """The conversation that a request made or changed, and whether that happened only now."""

    conversation: Conversation
    fresh: bool


async def once(
    tx: Tx, principal: PrincipalId, dedup: Dedup | None, make: Callable[[Tx], Awaitable[Conversation]]
) -> Made:
    """Carry a request out, unless it was."""
    if dedup is None:
        return Made(await make(tx), fresh=True)
    if made := await _made(tx, principal, dedup):
        return Made(await directory.find(tx, principal, ById(made)), fresh=False)
    try:
        conversation = await make(tx)
    except AliasTaken:  # before it wrote anything; maybe by this very request, which has been carried out since
        made = await _made(tx, principal, dedup)
        if made is None:
            raise
        return Made(await directory.find(tx, principal, ById(made)), fresh=False)
    await tx.run(
        "add_request",
        principal=principal,
        dedup_key=dedup.key,
        request_hash=dedup.request_hash,
        made=conversation.id,
    )
    return Made(conversation, fresh=True)


async def repeated(tx: Tx, principal: PrincipalId, dedup: Dedup) -> bool:
    """Whether a request was carried out, with a turn or without; another under its key is refused."""
    made = await _made(tx, principal, dedup)
    return made is not None or await admission.repeated(tx, principal, dedup) is not None


async def _made(tx: Tx, principal: PrincipalId, dedup: Dedup) -> ConversationId | None:
    row = await one(tx.run("find_request", principal=principal, dedup_key=dedup.key))
    if row is not None and row[0] != dedup.request_hash:
        raise DedupMismatch()
    return row[1] if row is not None else None


async def forget(tx: Tx, age: float) -> None:
    """Forget keys that nobody retries any more."""
    await tx.run("forget_requests", age=age)
