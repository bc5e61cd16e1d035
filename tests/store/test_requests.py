"""Requests that make something without a turn: once per key, whatever happens between."""

from functools import partial

import pytest
from acts import race, rows

from conftest import ALICE, BOB, Opener
from legato.domain.conversations import Conversation
from legato.domain.handles import ById
from legato.domain.ids import PrincipalId
from legato.domain.turns import Dedup
from legato.errors import DedupMismatch, UnknownHandle
from legato.store import directory, requests
from legato.store.database import Database, Tx
from legato.store.requests import Made

KEY = Dedup("k", "h")


async def make(tx: Tx, dedup: Dedup | None = KEY, principal: PrincipalId = ALICE) -> Made:
    async def conversation(tx: Tx) -> Conversation:
        return await directory.create(tx, principal)

    return await requests.once(tx, principal, dedup, conversation)


async def test_a_request_is_carried_out_once_per_key_also_after_a_restart(reopen: Opener) -> None:
    db = await reopen()
    first = await db.write(make)
    again = await db.write(make)
    db = await reopen()
    assert [first.fresh, again.fresh, (await db.write(make)).fresh] == [True, False, False]
    assert first.conversation == again.conversation == (await db.write(make)).conversation
    assert await rows(db, "select count(*) from conversations") == [(1,)]


async def test_eight_requests_under_one_key_make_one_conversation(db: Database) -> None:
    """All eight have looked for the key and not found it before the first of them goes on."""
    made = await race([db], [partial(make) for _ in range(8)], at=["add_conversation"])
    assert [type(m) for m in made] == [Made] * 8, made
    assert len({m.conversation.id for m in made}) == 1
    assert [m.fresh for m in made].count(True) == 1
    assert await rows(db, "select count(*) from conversations") == [(1,)]


async def test_another_request_under_the_key_is_refused(db: Database) -> None:
    await db.write(make)
    with pytest.raises(DedupMismatch):
        await db.write(make, Dedup("k", "another"))
    assert await rows(db, "select count(*) from conversations") == [(1,)]


async def test_a_key_belongs_to_its_principal_and_none_is_none(db: Database) -> None:
    made = [
        await db.write(make),
        await db.write(make, KEY, BOB),
        await db.write(make, None),
        await db.write(make, None),
    ]
    assert len({m.conversation.id for m in made}) == 4
    assert all(m.fresh for m in made)


async def test_what_fails_leaves_no_key_behind(db: Database) -> None:
    """The same request may succeed later."""

    async def nothing(tx: Tx) -> Conversation:
        return await directory.find(tx, ALICE, ById("conv_none"))  # type: ignore[arg-type]

    with pytest.raises(UnknownHandle):
        await db.write(requests.once, ALICE, KEY, nothing)
    assert (await db.write(make)).fresh


async def test_keys_are_kept_for_their_time(db: Database) -> None:
    first = await db.write(make)
    await db.write(requests.forget, 3600.0)
    assert (await db.write(make)).conversation == first.conversation
    await db.write(requests.forget, -1.0)
    assert (await db.write(make)).fresh
