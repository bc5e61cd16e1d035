"""A backup is one SQLite file, whichever database it is of, and says the same in whichever it is put back."""

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import apsw
import pytest

from conftest import pg_database
from golden import raw, story
from golden.make import all_golden, load
from legato.domain.ids import new_id
from legato.errors import BadBackup, StoreUnavailable
from legato.store import backup, figures, restore, search
from legato.store.migrate import migrations
from legato.store.postgres import Postgres
from legato.store.sqlite import Sqlite
from legato.store.verify import verify

GOLDEN = all_golden()
NEWEST = migrations("sqlite")[-1].version
NewPlace = Callable[[str], Any]


@pytest.fixture
def new_place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[NewPlace]:
    """A place for another database of a kind."""
    with ExitStack() as stack:

        def new(kind: str) -> Any:
            if kind == "sqlite":
                return tmp_path / new_id("home_") / "legato.db"
            return stack.enter_context(pg_database(request.getfixturevalue("pg_server")))

        yield new


async def taken(place: Any, path: Path) -> None:
    """A backup of a database that is not in use."""
    db = Sqlite.look(place) if isinstance(place, Path) else await Postgres.open(place, look=True)
    try:
        await db.backup(path)
    finally:
        await db.close()


async def put_back(path: Path, place: Any) -> restore.Restored:
    if isinstance(place, Path):
        return restore.into_file(path, place, replace=False)
    return await restore.into_postgres(path, place)


@pytest.mark.parametrize("target", ["sqlite", "postgres"])
@pytest.mark.parametrize("source", ["sqlite", "postgres"])
@pytest.mark.parametrize("name", GOLDEN)
def test_a_backup_of_any_version_says_the_same_in_either_database(
    new_place: NewPlace, tmp_path: Path, name: str, source: str, target: str
) -> None:
    """Transcripts, contexts, names, turns and search; and the store that it came from stays as it was."""
    golden, path = GOLDEN[name], tmp_path / "backup"
    here, there = new_place(source), new_place(target)
    if isinstance(here, Path):
        here.parent.mkdir()

    async def carried() -> None:
        await load(here, golden)
        before = await raw.dump(here)
        await taken(here, path)
        assert await raw.dump(here) == before
        assert backup.inspect(path).version == golden.version
        restored = await put_back(path, there)
        assert restored.contents.version == NEWEST
        async with raw.opened(there) as db:
            while await search.index_some(db):
                pass
            seen = await story.seen(db, golden.conversations)
            assert seen["conversations"] == golden.expected["conversations"]
            for query, hits in golden.expected["found"].items():
                assert set(hits) <= set(seen["found"][query])  # turns that waited for the index are found now, too
            assert [str(f) async for f in verify(db)] == []
            await story.go_on(db, golden.conversations)  # what numbers itself goes on after what is there
            assert [str(f) async for f in verify(db)] == []

    with asyncio.Runner() as runner:
        runner.run(carried())


async def test_every_row_but_those_of_processes_and_of_search_is_in_a_backup(place: Any, tmp_path: Path) -> None:
    """And so is every row of a table that is new, because it is copied by what the schema says."""
    async with raw.opened(place) as db:
        await story.tell(db)
        await db.backup(tmp_path / "backup")
    before, after = await raw.dump(place), await raw.dump(tmp_path / "backup")
    assert set(before) == set(after)
    unlike = {table for table, rows in before.items() if rows != after[table]}
    assert unlike <= ({"turns", "nodes", "search_documents"} if isinstance(place, str) else set())
    assert len(before["turns"]) == len(after["turns"])


async def test_a_backup_that_fails_leaves_nothing(place: Any, tmp_path: Path) -> None:
    async with raw.opened(place) as db:
        await story.tell(db)
        with pytest.raises(StoreUnavailable):
            await db.backup(tmp_path / "nowhere" / "backup")
        (tmp_path / "out").mkdir()
        for _ in range(20):
            taking = asyncio.ensure_future(db.backup(tmp_path / "out" / "backup"))
            await asyncio.wait({taking}, timeout=0.0005)
            taking.cancel()
            await asyncio.wait({taking})
            assert {path.name for path in (tmp_path / "out").iterdir()} <= {"backup"}
        await db.backup(tmp_path / "out" / "backup")
    assert backup.inspect(tmp_path / "out" / "backup").conversations == 8


async def test_nobody_waits_while_a_backup_gets_to_the_disk(
    place: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is slow, and everything else goes on meanwhile."""
    waits, asked, sync = threading.Event(), asyncio.Event(), os.fsync
    loop = asyncio.get_running_loop()

    def slow(descriptor: int) -> None:
        loop.call_soon_threadsafe(asked.set)
        assert waits.wait(60)
        sync(descriptor)

    async with raw.opened(place) as db:
        await story.tell(db)
        monkeypatch.setattr(os, "fsync", slow)
        taking = asyncio.ensure_future(db.backup(tmp_path / "backup"))
        await asyncio.wait_for(asked.wait(), 60)
        assert await db.read(figures.versions)
        assert not (tmp_path / "backup").exists()
        waits.set()
        await taking
    assert backup.inspect(tmp_path / "backup").conversations == 8


async def test_what_was_owed_is_in_doubt_after_a_restore(place: Any, tmp_path: Path, new_place: NewPlace) -> None:
    """It may have been sent since the backup was taken: it is marked, and not sent again blindly."""
    async with raw.opened(place) as db:
        await story.tell(db)
        await db.backup(tmp_path / "backup")
    status = "select id, status from deliveries order by id"
    owed = {id for id, status in await raw.rows(place, status) if status in ("pending", "sending")}
    assert owed
    there = new_place("sqlite")
    assert restore.into_file(tmp_path / "backup", there, replace=False).doubtful == len(owed)
    now = dict(await raw.rows(there, status))
    assert {now[id] for id in owed} == {"unknown"}


async def test_whatever_is_overwritten_in_a_backup_it_is_refused(place: Any, tmp_path: Path) -> None:
    """Page by page, and cut off anywhere."""
    path = tmp_path / "backup"
    async with raw.opened(place) as db:
        await story.tell(db)
        await db.backup(path)
    whole = path.read_bytes()
    with apsw.Connection(str(path)) as connection:
        [[size]] = connection.execute("pragma page_size")
    for start in range(0, len(whole), size):
        path.write_bytes(whole[:start] + b"\xa5" * size + whole[start + size :])
        with pytest.raises(BadBackup):
            backup.inspect(path)
        path.write_bytes(whole[:start] + whole[: size // 2] * bool(start))
        with pytest.raises(BadBackup):
            backup.inspect(path)
