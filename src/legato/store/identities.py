"""Who speaks on channels: a platform's person, by an id that never changes, joined to a principal.

A stranger is given a code that holds for a while and opens nothing by itself: the owner confirms it with a key. Only
its hash is kept.
"""

import hashlib
import secrets

from msgspec import Struct

from legato.domain.channels import Sender
from legato.domain.ids import PrincipalId
from legato.errors import NotFound
from legato.store.database import Tx, one

LETTERS = "23456789ABCDEFGHJKLMNPQRSTUVWXYZ"  # none that is taken for another
LENGTH = 8
KEEP = 3600.0
MOST = 100  # codes that wait on one account; a crowd of strangers fills no disk


class UnknownCode(NotFound):
    """That code is not known, was used, or has expired."""

    code = "pairing_code_not_found"


class Identity(Struct, frozen=True):
    """A paired person."""

    channel: str
    account: str
    sender: str
    principal: PrincipalId
    name: str
    paired_at: float


async def find(tx: Tx, sender: Sender) -> PrincipalId | None:
    """For whom a sender speaks."""
    row = await one(tx.run("find_identity", channel=sender.channel, account=sender.account, sender=sender.id))
    return PrincipalId(row[0]) if row else None


async def offer(tx: Tx, sender: Sender) -> str | None:
    """A new code for a stranger; None while an earlier one holds, or when too many wait."""
    who = {"channel": sender.channel, "account": sender.account}
    if await one(tx.run("waiting_code", **who, sender=sender.id)):
        return None
    [[waiting]] = await tx.run("count_codes", **who)
    if waiting >= MOST:
        return None
    code = "".join(secrets.choice(LETTERS) for _ in range(LENGTH))
    await tx.run("put_code", **who, sender=sender.id, name=sender.name, hash=_hash(code), keep=KEEP)
    return code


async def confirm(tx: Tx, code: str, principal: PrincipalId) -> Identity:
    """Join whoever was given a code to a principal; it works once."""
    row = await one(tx.run("use_code", hash=_hash(code)))
    if row is None:
        raise UnknownCode("That code is not known, was used, or has expired. Write to the bot again for another.")
    channel, account, sender, name = row
    await tx.run("add_principal", principal=principal)
    who = {"channel": channel, "account": account, "sender": sender}
    [paired] = await tx.run("add_identity", **who, principal=principal, name=name)
    return Identity(*paired)


async def known(tx: Tx) -> list[Identity]:
    return [Identity(*row) for row in await tx.run("list_identities")]


async def remove(tx: Tx, channel: str, sender: str) -> int:
    """Let a person speak for nobody any more."""
    return len(await tx.run("remove_identity", channel=channel, sender=sender))


def _hash(code: str) -> str:
    return hashlib.sha256(code.strip().upper().encode()).hexdigest()
