"""P7: an upgrade never loses a conversation, and a newer schema is refused loudly. And the schema's own guards, tried
by plain SQL: what a trigger refuses, no code can do."""

import asyncio
from itertools import product
from pathlib import Path
from typing import Any, get_args

import apsw
import asyncpg
import pytest

from conftest import ALICE
from golden import raw, story
from golden.make import FOLDER, all_golden, load
from legato.domain.turns import LEGAL, Status
from legato.errors import StoreUnavailable
from legato.store import blobs, directory, postgres
from legato.store.database import Tx
from legato.store.migrate import migrate, migrations
from legato.store.postgres import Postgres
from legato.store.verify import verify

GOLDEN = all_golden()
NEWEST = migrations("sqlite")[-1]
WAITS = """select 1 from pg_locks where not granted
    and database = (select oid from pg_database where datname = current_database())"""
REFUSED = (apsw.ConstraintError, asyncpg.IntegrityConstraintViolationError)


async def a_story(place: Any) -> dict[str, str]:
    """A store in which much has happened, closed again."""
    async with raw.opened(place) as db:
        return await story.tell(db)


async def contents(place: Any) -> Any:
    """What is in a database: the bytes of the file, or every row and the version of the schema."""
    return place.read_bytes() if isinstance(place, Path) else await raw.dump(place)


async def versions(place: Any) -> list[tuple[int, str]]:
    return await raw.rows(place, "select version, name from schema_version order by version")


# -- migrations


def test_both_databases_have_the_same_versions() -> None:
    sqlite, postgres = ([(m.version, m.name) for m in migrations(d)] for d in ("sqlite", "postgres"))
    assert sqlite == postgres
    assert [version for version, _ in sqlite] == list(range(1, NEWEST.version + 1))


async def test_a_fresh_database_gets_every_version(place: Any) -> None:
    async with raw.opened(place) as db:
        assert [f async for f in verify(db)] == []
    assert await versions(place) == [(m.version, m.name) for m in migrations("sqlite")]


async def test_a_second_opening_changes_nothing(place: Any) -> None:
    await a_story(place)
    before = await contents(place)
    async with raw.opened(place) as db:
        assert await db.write(migrate) == []
    assert await contents(place) == before


async def test_a_newer_schema_is_refused_by_name_and_left_untouched(place: Any) -> None:
    await a_story(place)
    await raw.execute(place, "insert into schema_version values (9041, 'from_tomorrow')")
    before = await contents(place)
    for _ in range(2):
        with pytest.raises(StoreUnavailable) as refusal:
            async with raw.opened(place):
                pass
        assert "9041 ('from_tomorrow')" in refusal.value.message
        assert f"{NEWEST.version} ('{NEWEST.name}')" in refusal.value.message
        assert "Upgrade Legato" in refusal.value.message
        assert await contents(place) == before


async def test_processes_that_start_at_once_migrate_once(pg_url: str) -> None:
    opened = await asyncio.gather(*(Postgres.open(pg_url, connections=2) for _ in range(6)))
    assert await versions(pg_url) == [(m.version, m.name) for m in migrations("postgres")]
    for db in opened:
        assert await db.write(migrate) == []
        await db.close()


async def test_a_migration_and_a_node_at_work_that_wait_for_each_other_both_get_through(pg_url: str) -> None:
    async def older(tx: Tx) -> list[str]:
        return await migrate(tx, upto=7)

    await raw.transact(pg_url, older)
    at_work = await asyncpg.connect(pg_url, server_settings={"deadlock_timeout": "60s"})  # so the migration is undone
    try:
        async with at_work.transaction():
            await at_work.execute("delete from turns")
            opening = asyncio.create_task(Postgres.open(pg_url, connections=2))
            while not await raw.rows(pg_url, WAITS):
                assert not opening.done(), "it did not wait for us"
            await at_work.execute("delete from conversations")
        await (await asyncio.wait_for(opening, 30)).close()
    finally:
        await at_work.close()
    assert await versions(pg_url) == [(m.version, m.name) for m in migrations("postgres")]


async def test_a_migration_that_is_kept_waiting_too_long_says_by_what(
    pg_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "MAX_TRIES", 1)
    async with raw.opened(pg_url):
        pass
    await raw.execute(pg_url, "delete from schema_version where version = 8")
    holding = await asyncpg.connect(pg_url)
    try:
        async with holding.transaction():
            await holding.execute("lock table conversations in access share mode")
            with pytest.raises(StoreUnavailable) as refusal:
                await asyncio.wait_for(Postgres.open(pg_url, connections=2), 30)
        assert "holds the tables" in refusal.value.message
    finally:
        await holding.close()


@pytest.mark.parametrize("obstacle", ["blobs", "search_documents"])
async def test_a_migration_that_fails_leaves_nothing(place: Any, obstacle: str) -> None:
    """A table stands in the way of one of the last statements: what came before it is taken back, too."""

    async def stand_in_the_way(tx: Tx) -> None:
        await tx.script(f"create table {obstacle} (mine text)")

    await raw.transact(place, stand_in_the_way)
    before = await raw.dump(place)
    with pytest.raises(StoreUnavailable) as failure:
        async with raw.opened(place):
            pass
    assert obstacle in failure.value.message
    assert await raw.dump(place) == before == {obstacle: []}
    await raw.execute(place, f"drop table {obstacle}")
    async with raw.opened(place) as db:
        assert [f async for f in verify(db)] == []


@pytest.mark.parametrize("version", range(1, NEWEST.version))
async def test_every_older_version_migrates_to_the_newest(place: Any, version: int) -> None:
    async def older(tx: Tx) -> list[str]:
        return await migrate(tx, upto=version)

    assert len(await raw.transact(place, older)) == version
    async with raw.opened(place) as db:
        await story.tell(db)
        assert [f async for f in verify(db)] == []
    assert await versions(place) == [(m.version, m.name) for m in migrations("sqlite")]


# -- golden databases


def test_the_newest_version_has_a_golden_database() -> None:
    assert f"{NEWEST.version:04}" in GOLDEN, f"run: python {FOLDER / 'make.py'}"


@pytest.mark.parametrize("name", GOLDEN)
async def test_a_golden_database_opens_and_reads_equal(place: Any, name: str) -> None:
    """Transcripts, contexts, names, turns, search and blobs are what they were when that version wrote them."""
    golden = GOLDEN[name]
    await load(place, golden)
    assert (await versions(place))[-1][0] == golden.version
    async with raw.opened(place) as db:
        assert await story.seen(db, golden.conversations) == golden.expected
        assert await db.read(blobs.get, ALICE, [story.PICTURE.sha256]) == {story.PICTURE.sha256: story.PICTURE}
        assert [str(f) async for f in verify(db)] == []


@pytest.mark.parametrize("name", GOLDEN)
async def test_a_golden_database_lives_on(place: Any, name: str) -> None:
    """After the upgrade the talk goes on where it was, and nothing of it moves."""
    golden = GOLDEN[name]
    await load(place, golden)
    async with raw.opened(place) as db:
        await story.go_on(db, golden.conversations)
        after = await story.seen(db, golden.conversations)
        assert [str(f) async for f in verify(db)] == []
    for conversation, was in golden.expected["conversations"].items():
        now = after["conversations"][conversation]
        assert now["transcript"][: len(was["transcript"])] == was["transcript"]
        assert [turn[0] for turn in now["turns"]][: len(was["turns"])] == [turn[0] for turn in was["turns"]]


# -- the guards of the schema

STATES = get_args(Status)
_ENDED = {"owner": "null", "ended_at": "1", "joined_turn": "null"}
BESIDE = {
    "queued": {"owner": "null", "ended_at": "null", "joined_turn": "null"},
    "running": {"owner": "'node_x'", "ended_at": "null", "joined_turn": "null"},
    "done": _ENDED,
    "failed": _ENDED,
    "cancelled": _ENDED,
    "joined": _ENDED | {"joined_turn": "'resp_host'"},
}
"""What the checks want beside each status, so that only the trigger is left to refuse."""


async def test_the_trigger_knows_the_same_transitions_as_the_domain(place: Any) -> None:
    """Every pair of states is tried by plain SQL; what passes is exactly what the domain calls legal."""
    async with raw.opened(place) as db:
        await db.write(directory.add_principal, ALICE)
    script = [_conversation("host"), _turn("host", "done")]
    for old, new in product(STATES, STATES):
        script += [_conversation(f"{old}_{new}"), _turn(f"{old}_{new}", old)]
    await raw.execute(place, ";".join(script))
    passed: set[tuple[str, str]] = set()
    for old, new in product(STATES, STATES):
        columns = ", ".join(f"{name} = {value}" for name, value in BESIDE[new].items())
        try:
            await raw.execute(place, f"update turns set status = '{new}', {columns} where id = 'resp_{old}_{new}'")
        except REFUSED as refusal:
            assert "illegal turn transition" in str(refusal)  # noqa: PT017 - another refusal is no answer
        else:
            passed.add((old, new))
    assert passed == {(old, new) for old in STATES for new in (*LEGAL[old], old)}


def _conversation(name: str) -> str:
    return f"insert into conversations (id, principal, created_at, updated_at) values ('conv_{name}', 'alice', 1, 1)"


def _turn(name: str, status: str) -> str:
    columns = {"id": f"'resp_{name}'", "conversation_id": f"'conv_{name}'", "n": "1", "principal": "'alice'"}
    columns |= {"kind": "'talk'", "status": f"'{status}'", "busy": "'queue'", "input": "'{}'", "created_at": "1"}
    columns |= BESIDE[status]
    return f"insert into turns ({', '.join(columns)}) values ({', '.join(columns.values())})"


async def test_entries_are_never_changed(place: Any) -> None:
    await a_story(place)
    for change in ("body = 'x'", "seq = seq + 100", "kind = kind", "turn_id = 'resp_x'", "created_at = 0"):
        with pytest.raises(REFUSED, match="append-only"):
            await raw.execute(place, f"update entries set {change} where seq = 1")


@pytest.mark.parametrize("known", ["talk", "done", "queue"])
async def test_a_turn_is_only_what_the_schema_knows(place: Any, known: str) -> None:
    async with raw.opened(place) as db:
        await db.write(directory.add_principal, ALICE)
    await raw.execute(place, _conversation("odd"))
    with pytest.raises(REFUSED, match=r"(?i)check constraint"):
        await raw.execute(place, _turn("odd", "done").replace(f"'{known}'", "'other'"))
    await raw.execute(place, _turn("odd", "done"))


async def test_no_entry_is_looked_at_for_a_turn_that_is_purged(tmp_path: Path) -> None:
    """A file of any version has lost the foreign key that would look through all of them."""
    for name, golden in GOLDEN.items():
        await load(tmp_path / name, golden)
        async with raw.opened(tmp_path / name):
            pass
        keys = await raw.rows(tmp_path / name, "select \"table\" from pragma_foreign_key_list('entries')")
        assert keys == [("conversations",)]


async def test_an_entry_belongs_to_a_turn_which_is_kept_for_it(place: Any) -> None:
    ids = await a_story(place)
    stray = (
        "insert into entries (conversation_id, seq, id, turn_id, kind, body, created_at) "
        f"values ('{ids['main']}', 1000, 'msg_x', '{{}}', 'message', '{{{{}}}}', 1)"
    )
    with pytest.raises(REFUSED):
        await raw.execute(place, stray.format("resp_none"))
    await raw.execute(place, stray.format(ids["first"]))
    with pytest.raises(REFUSED):
        await raw.execute(place, f"delete from turns where id = '{ids['first']}'")


async def test_entries_are_kept_while_their_conversation_lives(place: Any) -> None:
    ids = await a_story(place)
    of_bob = f"delete from entries where conversation_id = '{ids['bobs']}'"
    with pytest.raises(REFUSED, match="kept"):
        await raw.execute(place, of_bob)
    with pytest.raises(REFUSED, match="kept"):
        await raw.execute(place, "delete from entries")
    before = await raw.dump(place)
    await raw.execute(place, f"update conversations set deleted_at = 1 where id = '{ids['bobs']}'; {of_bob}")
    after = await raw.dump(place)
    assert len(after["entries"]) == len(before["entries"]) - 1
