"""The inbox: what comes in on channels acts once, and begins a new conversation when a reset is due.

A platform sends a message again until it hears that it was taken. So its id is written in the transaction that admits
the turn, and the platform hears of it after that: a message that comes again, also after a crash, is known.
"""

from collections.abc import Callable

from msgspec import Struct

from legato.domain.channels import MessageKey
from legato.domain.handles import Address, ById
from legato.domain.ids import ConversationId, NodeId, PrincipalId
from legato.domain.turns import Admission, Submission
from legato.errors import UnknownHandle
from legato.store import admission, directory
from legato.store.database import Tx, one

Due = Callable[[float, float], bool]
"""Whether a reset is due, by when somebody last spoke and what time it is."""


class Received(Struct, frozen=True):
    """What became of messages. `left` is the conversation that a reset has left behind."""

    admission: Admission
    left: ConversationId | None = None


async def receive(
    tx: Tx,
    address: Address,
    keys: list[MessageKey],
    submission_of: Callable[[list[MessageKey]], Submission],
    due: Due,
    node: NodeId | None,
) -> Received | None:
    """Admit those messages that have not acted yet as one turn; None when all of them have."""
    fresh = [key for key in keys if await take(tx, key)]
    if not fresh:
        return None
    submission = submission_of(fresh)
    left = await _reset_if_due(tx, submission.principal, address, due)
    await tx.run("spoken", address=address.value)
    if left is not None:
        await tx.run("remember_previous", address=address.value, previous=left)
    return Received(await admission.admit(tx, submission, node), left)


async def take(tx: Tx, key: MessageKey) -> bool:
    """Note that a message acts now; false when it has."""
    return bool(await tx.run("add_to_inbox", channel=key.channel, account=key.account, message=key.message))


async def taken(tx: Tx, key: MessageKey) -> bool:
    """Whether a message has acted."""
    return bool(await tx.run("in_inbox", channel=key.channel, account=key.account, message=key.message))


async def move(tx: Tx, principal: PrincipalId, address: Address, to: ConversationId | None) -> ConversationId:
    """Let an address go on in another conversation, or in a new one."""
    present = await directory.lookup(tx, principal, address)
    if to is None:
        to = (await directory.create(tx, principal)).id
    await directory.bind(tx, principal, address, to, move=True)
    await tx.run("spoken", address=address.value)
    if present is not None and present.id != to:
        await tx.run("remember_previous", address=address.value, previous=present.id)
    return to


async def move_chat(
    tx: Tx, principal: PrincipalId, account: str, chat: str, thread: str, to: ConversationId
) -> Address:
    """Let a chat go on elsewhere. Only one where its owner has written: nobody is sent what he never asked for."""
    known = {(a.account, a.chat, a.thread): a for a, _ in await directory.addresses(tx, principal)}
    address = known.get((account, chat, thread))
    if address is None:
        here = ", ".join(":".join(filter(None, place)) for place in [*known][:20])
        raise UnknownHandle(
            f"You have no chat {chat!r} on {account!r}; write something there first."
            + (f" Known are: {here}." if here else ""),
            param="chat",
        )
    await move(tx, principal, address, to)
    return address


async def readdress(tx: Tx, before: Address, now: Address) -> None:
    """What goes on at one address goes on at another, unless something does there already."""
    owner = await directory.owner_of(tx, before)
    if owner is None or await directory.owner_of(tx, now) is not None:
        return
    present = await directory.lookup(tx, owner, before, lock=True)
    if present is not None:
        await directory.unbind(tx, owner, before)  # an answer is owed to every address: it would come twice
        await directory.bind(tx, owner, now, present.id, move=False)
        await tx.run("spoken", address=now.value)


async def previous(tx: Tx, principal: PrincipalId, address: Address) -> ConversationId | None:
    """Where the talk at an address was before it moved, if that is still there."""
    row = await one(tx.run("last_spoken", address=address.value))
    if row is None or row[1] is None:
        return None
    found = await directory.lookup(tx, principal, ById(row[1]))
    return found.id if found else None


async def _reset_if_due(tx: Tx, principal: PrincipalId, address: Address, due: Due) -> ConversationId | None:
    present = await directory.lookup(tx, principal, address, lock=True)
    spoken = await one(tx.run("last_spoken", address=address.value))
    if present is None or spoken is None or not due(spoken[0], spoken[2]):
        return None
    fresh = await directory.create(tx, principal)
    await directory.bind(tx, principal, address, fresh.id, move=True)
    return present.id


async def forget(tx: Tx, age: float) -> None:
    """Forget messages that no platform sends again."""
    await tx.run("forget_inbox", age=age)
    await tx.run("forget_codes")
