"""The trash: what was deleted comes back whole; what is purged is gone from the disk, but for what its forks read."""

import random
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from acts import DONE, N1, admit, end, rows, said, script, start, talk, transcript

from conftest import ALICE, BOB
from golden import raw
from legato.domain.attachments import Blob
from legato.domain.conversations import Conversation
from legato.domain.entries import Image, Message, draft
from legato.domain.handles import Address, ById, Slug
from legato.domain.ids import ConversationId
from legato.domain.turns import After, Fresh, Input, Submission
from legato.errors import ConversationBusy, UnknownHandle
from legato.store import admission, blobs, directory, search, trash, turns
from legato.store.database import Database
from legato.store.verify import verify

CANARY = "the canary sings at midnight"
WORK = Slug("work")
CHAT = Address("telegram", "bot", "42")
TABLES = (
    *("conversations", "aliases", "freed_aliases", "turns", "entries", "turn_events", "deliveries", "blobs"),
    *("search_documents", "requests"),
)


async def delete(db: Database, conversation: ConversationId) -> None:
    await db.write(directory.delete, ALICE, ById(conversation))


async def purge(db: Database, conversation: ConversationId) -> None:
    await db.write(trash.purge, ALICE, conversation)


async def fork(db: Database, parent: ConversationId, base: int) -> ConversationId:
    made: Conversation = await db.write(directory.create, ALICE, parent=parent, base=base)
    return made.id


async def index(db: Database) -> None:
    while await search.index_some(db):
        pass


async def found(db: Database, text: str) -> set[ConversationId]:
    return {hit.conversation_id for hit in await db.read(search.search, ALICE, text)}


async def check(db: Database) -> None:
    assert [str(finding) async for finding in verify(db)] == []


# -- back again


async def test_what_was_deleted_comes_back_with_its_names_and_all_that_was_said(db: Database) -> None:
    turn = await talk(db, WORK, "remember me")
    here = turn.conversation_id
    await db.write(directory.bind, ALICE, CHAT, here, move=False)
    before = await db.read(directory.find, ALICE, WORK)
    await delete(db, here)
    with pytest.raises(UnknownHandle):
        await db.read(directory.find, ALICE, WORK)
    [row] = await db.read(trash.deleted, ALICE, 10)
    assert (row.conversation.id, row.name, row.opening) == (here, "work", "remember me")
    restored = await db.write(trash.restore, ALICE, here)
    assert restored.lost == []
    for handle in (ById(here), WORK, CHAT):
        assert await db.read(directory.find, ALICE, handle) == before
    assert await transcript(db, here) == ["remember me", "REMEMBER ME"]
    assert (await db.write(admission.admit, _submission(After(turn.id)), N1)).turn.conversation_id == here
    assert await db.read(trash.deleted, ALICE, 10) == []
    await check(db)


async def test_a_name_that_somebody_took_meanwhile_stays_theirs(db: Database) -> None:
    old = (await talk(db, WORK)).conversation_id
    await delete(db, old)
    new = (await talk(db, WORK)).conversation_id
    assert new != old
    assert (await db.write(trash.restore, ALICE, old)).lost == ["work"]
    assert (await db.read(directory.find, ALICE, WORK)).id == new
    assert (await db.read(directory.find, ALICE, ById(old))).id == old
    await check(db)


async def test_the_trash_is_read_on_after_what_was_read_of_it(db: Database) -> None:
    """Those that were deleted in one moment have an order, too."""
    for name in "abcde":
        await delete(db, (await talk(db, Slug(name))).conversation_id)
    await script(db, "update conversations set deleted_at = 1794857339.25 where deleted_at is not null")
    whole = [row.conversation.id for row in await db.read(trash.deleted, ALICE, 10)]
    assert len(whole) == 5
    for place, last in enumerate(whole, 1):
        assert [row.conversation.id for row in await db.read(trash.deleted, ALICE, 10, last)] == whole[place:]
    with pytest.raises(UnknownHandle):
        await db.read(trash.deleted, BOB, 10, whole[0])


async def test_nobody_reaches_into_the_trash_of_another(db: Database) -> None:
    here = (await talk(db, WORK)).conversation_id
    await delete(db, here)
    assert await db.read(trash.deleted, BOB, 10) == []
    for verb in (trash.restore, trash.purge):
        with pytest.raises(UnknownHandle):
            await db.write(verb, BOB, here)
    assert [row.conversation.id for row in await db.read(trash.deleted, ALICE, 10)] == [here]


async def test_what_lives_is_not_purged(db: Database) -> None:
    here = (await talk(db, WORK)).conversation_id
    with pytest.raises(UnknownHandle):
        await purge(db, here)
    lease = await start(db, Slug("busy"))
    await delete(db, lease.turn.conversation_id)
    with pytest.raises(ConversationBusy):
        await purge(db, lease.turn.conversation_id)
    await end(db, lease, DONE)
    await purge(db, lease.turn.conversation_id)
    assert await transcript(db, here) == ["hello", "HELLO"]


async def test_only_what_has_been_in_the_trash_for_long_is_due(db: Database) -> None:
    gone = (await talk(db, WORK)).conversation_id
    await talk(db, Slug("other"))
    await delete(db, gone)
    assert await db.read(trash.expired, 3600.0, 10) == []
    assert await db.read(trash.expired, -1.0, 10) == [(ALICE, gone)]


# -- gone


async def test_nothing_of_a_purged_conversation_is_in_any_table(db: Database) -> None:
    """Rows of every kind: names, entries, turns that never ran, events, attachments, search, requests."""
    here = await _rich(db)
    await delete(db, here)
    await purge(db, here)
    for table in TABLES:
        assert await rows(db, f"select * from {table}") == [], table
    with pytest.raises(UnknownHandle):
        await db.write(trash.restore, ALICE, here)
    await check(db)


async def test_after_a_scrub_the_files_do_not_contain_what_was_said(place: Any) -> None:
    """Raw bytes: the database, its journal, and on PostgreSQL the tables and indexes."""
    async with raw.opened(place) as db:
        await db.write(directory.add_principal, ALICE)
        for n in range(30):
            await talk(db, Slug(f"kept-{n}"), f"kept for ever {n} " * 20)
        here = await _rich(db)
        for n in range(30):
            await talk(db, ById(here), f"{n} {CANARY} " * (n * 10 + 1))
            await talk(db, Slug(f"kept-{n}"), f"and this {n} " * 20)
        await db.write(directory.rename, ALICE, ById(here), CANARY + " as a title")
        await db.write(directory.rename, ALICE, ById(here), "another")
        await index(db)
        assert CANARY in await _raw(place)
        await script(db, "analyze")
        await delete(db, here)
        await purge(db, here)
        await db.scrub()
        assert CANARY not in await _raw(place)
        assert "kept for ever 7" in await _raw(place)
        assert await transcript(db, (await db.read(directory.find, ALICE, Slug("kept-3"))).id)
        assert await found(db, "kept for ever 7")
        await check(db)


async def test_no_words_are_in_the_planners_samples(db: Database) -> None:
    """They would stay when the table is emptied: nothing replaces the samples of a table without rows."""
    if db.dialect == "sqlite":
        pytest.skip("only PostgreSQL takes samples")
    here = await _rich(db)
    for _ in range(3):
        await talk(db, ById(here), CANARY)
    await db.write(directory.rename, ALICE, ById(here), CANARY)
    await db.write(directory.bind, ALICE, Slug(CANARY), here, move=False)
    await script(db, "analyze")
    samples = str(await rows(db, "select cast(s as text) from pg_stats s where schemaname = current_schema()"))
    assert "talk" in samples
    assert CANARY not in samples


async def test_an_attachment_goes_with_the_last_conversation_that_has_it(db: Database) -> None:
    shared, own = Blob.of(b"shared", "image/png"), Blob.of(b"own", "image/png")
    await db.write(blobs.put, ALICE, [shared, own])
    one = await _attached(db, shared, own)
    other = await _attached(db, shared)
    await delete(db, one)
    await purge(db, one)
    assert set(await db.read(blobs.get, ALICE, [shared.sha256, own.sha256])) == {shared.sha256}
    await check(db)
    await delete(db, other)
    await purge(db, other)
    assert await db.read(blobs.get, ALICE, [shared.sha256]) == {}


# -- forks


async def test_forks_keep_what_they_read_and_no_more(db: Database) -> None:
    """And the last of them takes it along."""
    first = await talk(db, WORK, "shared past")
    here = first.conversation_id
    await talk(db, WORK, CANARY)
    living = (await talk(db, After(first.id), "only in the fork")).conversation_id
    assert living != here
    await index(db)
    await delete(db, here)
    assert await found(db, "shared past") == {living}
    await purge(db, here)
    assert await transcript(db, living) == ["shared past", "SHARED PAST", "only in the fork", "ONLY IN THE FORK"]
    assert await found(db, "shared past") == {living}
    assert CANARY not in str(await rows(db, "select * from turns")) + str(await rows(db, "select * from entries"))
    await check(db)
    await talk(db, ById(living), "and on")
    await delete(db, living)
    await purge(db, living)
    assert await rows(db, "select * from conversations") == []


async def test_a_fork_in_the_trash_is_still_a_reader(db: Database) -> None:
    here = (await talk(db, WORK, "shared past")).conversation_id
    other = await fork(db, here, 2)
    await talk(db, ById(other), "own words")
    await delete(db, other)
    await delete(db, here)
    await purge(db, here)
    await db.write(trash.restore, ALICE, other)
    assert await transcript(db, other) == ["shared past", "SHARED PAST", "own words", "OWN WORDS"]
    await check(db)


@pytest.mark.parametrize("seed", range(8))
async def test_whatever_is_purged_the_others_read_the_same(db: Database, seed: int) -> None:
    """A random family of forks, cut anywhere, dies in a random order; in the end nothing is left."""
    chance = random.Random(seed)
    family = [(await talk(db, Slug("root"), "root 0")).conversation_id]
    for n in range(14):
        parent = chance.choice(family)
        if chance.random() < 0.5:
            head = (await db.read(directory.find, ALICE, ById(parent))).head_seq
            family.append(await fork(db, parent, chance.randint(0, head)))
        await talk(db, ById(chance.choice(family)), f"said {n}")
    read = {member: await transcript(db, member) for member in family}
    chance.shuffle(family)
    while family:
        gone = family.pop()
        await delete(db, gone)
        await purge(db, gone)
        assert {member: await transcript(db, member) for member in family} == {m: read[m] for m in family}
        await check(db)
    assert await rows(db, "select * from conversations") == []
    assert await rows(db, "select * from entries") == []


async def test_what_is_left_for_a_fork_continues_no_turn_that_is_gone(db: Database) -> None:
    """An input that was cancelled before it began goes with the purge, and what came after it stays for the fork."""
    lease = await start(db, WORK, "one")
    waiting = (await admit(db, WORK, "two")).turn
    await db.write(turns.cancel, ALICE, waiting.id)
    await end(db, lease, DONE, "ONE")
    three = await talk(db, WORK, "three")
    assert three.parent_turn == waiting.id
    here = three.conversation_id
    living = await fork(db, here, three.last_seq or 0)
    await delete(db, here)
    await purge(db, here)
    assert await transcript(db, living) == ["one", "ONE", "three", "THREE"]
    await check(db)


# -- what they share


async def _rich(db: Database) -> ConversationId:
    """A conversation with a row in every table."""
    picture = Blob.of(CANARY.encode(), "image/png")
    await db.write(blobs.put, ALICE, [picture])
    here = await _attached(db, picture)
    await db.write(directory.bind, ALICE, Slug("rich"), here, move=False)
    await db.write(directory.bind, ALICE, CHAT, here, move=False)
    lease = await start(db, ById(here), CANARY)
    await admit(db, ById(here), CANARY, busy="steer")
    await db.write(turns.absorb, lease, 0)
    await admit(db, ById(here), f"never {CANARY}", dedup_key="k", request_hash="h")
    await end(db, lease, DONE, CANARY)
    await db.write(turns.cancel_all, here)
    await index(db)
    return here


async def _attached(db: Database, *given: Blob) -> ConversationId:
    drafts = (said("look"), *(draft(Message("user", (Image(blob=blob.sha256),))) for blob in given))
    admitted = await db.write(admission.admit, Submission(principal=ALICE, target=Fresh(), input=Input(drafts)), None)
    lease = await db.write(turns.claim, admitted.turn.conversation_id, N1)
    await end(db, lease, DONE)
    return admitted.turn.conversation_id


def _submission(target: Any) -> Submission:
    return Submission(principal=ALICE, target=target, input=Input((said("and on"),)))


async def _raw(place: Any) -> str:
    """Everything that is on the disk of a database, as Latin-1."""
    if isinstance(place, Path):
        return "".join(path.read_bytes().decode("latin-1") for path in place.parent.glob("legato.db*"))
    connection = await asyncpg.connect(place)
    await connection.execute("checkpoint")
    [[folder]] = await connection.fetch("show data_directory")
    [[number]] = await connection.fetch("select oid from pg_database where datname = current_database()")
    await connection.close()
    return _contents(Path(folder, "base", str(number)))


def _contents(folder: Path) -> str:
    return "".join(path.read_bytes().decode("latin-1") for path in folder.iterdir())
