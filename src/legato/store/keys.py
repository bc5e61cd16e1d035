"""API keys. Only a hash of a key is stored, so the database gives none away; ids and names grant nothing."""

import base64
import hashlib
import hmac
import secrets

from msgspec import Struct

from legato.domain.ids import PrincipalId
from legato.errors import DedupMismatch
from legato.store import directory
from legato.store.database import Tx, one


class Grant(Struct, frozen=True):
    """Who a key speaks for, and what it may do."""

    principal: PrincipalId
    scopes: frozenset[str]


class Key(Struct, frozen=True):
    """A key as it is listed: everything but itself."""

    name: str
    principal: PrincipalId
    scopes: frozenset[str]
    created_at: float
    revoked_at: float | None


def new_key() -> str:
    return "lg_" + secrets.token_urlsafe(32)


def key_for(secret: str, request: str) -> str:
    """The key that a request makes, the same each time for whoever sends it with the same secret: what is kept only as
    a hash cannot be told again otherwise."""
    digest = hmac.digest(secret.encode("utf-8", "surrogatepass"), request.encode("utf-8", "surrogatepass"), "sha256")
    return "lg_" + base64.urlsafe_b64encode(digest).decode().rstrip("=")


async def add(tx: Tx, key: str, *, name: str, principal: PrincipalId, scopes: frozenset[str] = frozenset()) -> bool:
    """Let a key speak for a principal, once; whether that happened only now. It never comes to mean anything else."""
    if await _added(tx, key, name, principal, scopes):
        return True
    given = await one(tx.run("key_given", hash=_hash(key)))
    if given is None or (given[0], given[1], frozenset(given[2].split())) != (name, principal, scopes):
        raise DedupMismatch()
    return False


async def let_in(tx: Tx, key: str, *, name: str, principal: PrincipalId, scopes: frozenset[str]) -> bool:
    """The same for one that may be known: it stays as it is. Returns whether it opens anything; a revoked one does
    not."""
    await _added(tx, key, name, principal, scopes)
    return not await revoked(tx, key)


async def _added(tx: Tx, key: str, name: str, principal: PrincipalId, scopes: frozenset[str]) -> bool:
    await directory.add_principal(tx, principal)
    given = {"name": name, "principal": principal, "scopes": " ".join(sorted(scopes))}
    return bool(await tx.run("add_key", hash=_hash(key), **given))


async def revoked(tx: Tx, key: str) -> bool:
    """Whether a key was known once, and opens nothing any more."""
    return await one(tx.run("key_revoked", hash=_hash(key))) is not None


async def find(tx: Tx, key: str) -> Grant | None:
    """What a key grants. Keys have 256 random bits, so looking a hash up leaks nothing by its timing."""
    row = await one(tx.run("find_key", hash=_hash(key)))
    return Grant(row[0], frozenset(row[1].split())) if row else None


async def known(tx: Tx) -> list[Key]:
    """Every key, the revoked ones too."""
    rows = await tx.run("list_keys")
    return [Key(name, principal, frozenset(scopes.split()), *times) for name, principal, scopes, *times in rows]


async def revoke(tx: Tx, name: str) -> int:
    """Let the keys of a name open nothing more; returns how many there were."""
    return len(await tx.run("revoke_key", name=name))


def _hash(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()
