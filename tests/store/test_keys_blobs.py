"""API keys and blobs: a key is known by its hash only, bytes by theirs, and both belong to one principal."""

import asyncio
import hashlib

import pytest
from acts import rows, script

from conftest import ALICE, BOB, Opener
from legato.domain.attachments import Blob
from legato.domain.ids import PrincipalId
from legato.errors import DedupMismatch
from legato.store import blobs, keys
from legato.store.database import Database


async def test_a_key_speaks_for_its_principal_with_its_scopes(reopen: Opener) -> None:
    """Also after a restart, and also for a principal nobody knew before."""
    db = await reopen()
    key, plain = keys.new_key(), keys.new_key()
    carol = PrincipalId("carol")
    await db.write(keys.add, key, name="laptop", principal=carol, scopes=frozenset({"admin", "read"}))
    await db.write(keys.add, plain, name="phone", principal=ALICE)
    db = await reopen()
    assert await db.read(keys.find, key) == keys.Grant(carol, frozenset({"admin", "read"}))
    assert await db.read(keys.find, plain) == keys.Grant(ALICE, frozenset())


async def test_the_database_gives_no_key_away(db: Database) -> None:
    """What is stored is a hash, and the hash is not a key."""
    key = keys.new_key()
    await db.write(keys.add, key, name="laptop", principal=ALICE)
    [stored] = await rows(db, "select * from api_keys")
    assert not any(key in str(value) for value in stored)
    assert hashlib.sha256(key.encode()).hexdigest() in stored
    assert await db.read(keys.find, str(stored[0])) is None


@pytest.mark.parametrize("key", ["", "lg_", "alice", "'; --", "ключ", "\ud800", "x" * 10_000])
async def test_anything_else_is_no_key(db: Database, key: str) -> None:
    """Whatever a client sends as a token is answered with no, not with an error."""
    await db.write(keys.add, keys.new_key(), name="laptop", principal=ALICE)
    assert await db.read(keys.find, key) is None


async def test_a_revoked_key_grants_nothing(db: Database) -> None:
    """From the moment it is revoked; the principal's other keys go on."""
    lost, kept = keys.new_key(), keys.new_key()
    for key, name in ((lost, "lost"), (kept, "kept")):
        await db.write(keys.add, key, name=name, principal=ALICE)
    await script(db, "update api_keys set revoked_at = 1 where name = 'lost'")
    assert await db.read(keys.find, lost) is None
    assert await db.read(keys.find, kept) == keys.Grant(ALICE, frozenset())


async def test_a_key_is_given_once(db: Database) -> None:
    """The same key cannot be made to speak for another, or for more."""
    key = keys.new_key()
    assert await db.write(keys.add, key, name="laptop", principal=ALICE)
    assert not await db.write(keys.add, key, name="laptop", principal=ALICE)
    with pytest.raises(DedupMismatch):
        await db.write(keys.add, key, name="laptop", principal=BOB)
    with pytest.raises(DedupMismatch):
        await db.write(keys.add, key, name="laptop", principal=ALICE, scopes=frozenset({"admin"}))
    assert await db.read(keys.find, key) == keys.Grant(ALICE, frozenset())
    await db.write(keys.revoke, "laptop")
    with pytest.raises(DedupMismatch):
        await db.write(keys.add, key, name="laptop", principal=ALICE)


async def test_a_key_that_is_let_in_twice_stays_as_it_was(db: Database) -> None:
    """By two nodes that share its file and start together, say; and one that was revoked opens nothing again."""
    key, admin = keys.new_key(), frozenset({"admin"})
    both = [db.write(keys.let_in, key, name="local", principal=who, scopes=admin) for who in (ALICE, ALICE)]
    assert await asyncio.gather(*both) == [True, True]
    assert await db.write(keys.let_in, key, name="local", principal=BOB, scopes=admin)
    assert await db.read(keys.find, key) == keys.Grant(ALICE, admin)
    await db.write(keys.revoke, "local")
    assert not await db.write(keys.let_in, key, name="local", principal=ALICE, scopes=admin)
    assert await db.read(keys.find, key) is None


async def test_keys_are_long_and_random() -> None:
    """256 bits each, so that nothing is gained by trying."""
    made = {keys.new_key() for _ in range(100)}
    assert len(made) == 100
    assert all(key.startswith("lg_") and len(key) >= 45 for key in made)


DATA = bytes(range(256)) * 4096


async def test_bytes_come_back_as_they_were_put(reopen: Opener) -> None:
    """By their hash, with their type, also after a restart; a megabyte and nothing alike."""
    db = await reopen()
    put = {hashlib.sha256(data).hexdigest(): Blob.of(data, "image/png") for data in (DATA, b"")}
    await db.write(blobs.put, ALICE, put.values())
    db = await reopen()
    assert await db.read(blobs.get, ALICE, put) == put


async def test_the_same_bytes_of_one_owner_are_kept_once(db: Database) -> None:
    """Putting them again stores nothing."""
    first, again = Blob.of(DATA, "image/png"), Blob.of(DATA, "image/webp")
    await db.write(blobs.put, ALICE, [first, again])
    assert await db.read(blobs.get, ALICE, [again.sha256]) == {first.sha256: first}
    assert await rows(db, "select size from blobs") == [(len(DATA),)]


async def test_a_hash_grants_nothing(db: Database) -> None:
    """Who knows the hash of another's bytes does not get them; who has the same bytes has their own."""
    hers, his = Blob.of(DATA, "image/png"), Blob.of(DATA, "image/webp")
    await db.write(blobs.put, ALICE, [hers])
    assert await db.read(blobs.get, BOB, [hers.sha256]) == {}
    assert await db.read(blobs.get, ALICE, ["0" * 64]) == {}
    await db.write(blobs.put, BOB, [his])
    assert await db.read(blobs.get, BOB, [hers.sha256]) == {his.sha256: his}
    assert await db.read(blobs.get, ALICE, [hers.sha256]) == {hers.sha256: hers}


async def test_keys_are_listed_without_themselves_and_a_revoked_one_grants_nothing(reopen: Opener) -> None:
    """All keys of a name are revoked together; the list still knows them."""
    db = await reopen()
    one, two = keys.new_key(), keys.new_key()
    await db.write(keys.add, one, name="phone", principal=ALICE)
    await db.write(keys.add, two, name="laptop", principal=BOB, scopes=frozenset({"admin"}))
    assert await db.write(keys.revoke, "phone") == 1
    assert await db.write(keys.revoke, "phone") == 0
    db = await reopen()
    assert await db.read(keys.find, one) is None
    assert await db.read(keys.find, two) == keys.Grant(BOB, frozenset({"admin"}))
    listed = sorted(await db.read(keys.known), key=lambda key: key.name)
    assert [(k.name, k.principal, k.scopes, k.revoked_at is None) for k in listed] == [
        ("laptop", BOB, frozenset({"admin"}), True),
        ("phone", ALICE, frozenset(), False),
    ]
    assert one not in str(listed)
