"""The rooms of a gateway on SQLite and on PostgreSQL; after every test the store is proved sound."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from conftest import EMPTY, Admin, pg_database
from engine.rooms import Rooms
from legato import logs


@pytest.fixture(autouse=True)
def _quiet() -> None:
    """No log lines but errors: they cost more than the turns."""
    logs.set_up("error", "console")


@pytest.fixture(scope="session")
def pg_store(pg_server: str, pg_template: str) -> Iterator[str]:
    """One database for all tests here: making one for each would take longer than most of them."""
    with pg_database(pg_server, pg_template) as url:
        yield url


@pytest.fixture(scope="session")
def pg_owner(pg_store: str) -> Iterator[Admin]:
    """A connection to that database."""
    owner = Admin(pg_store)
    yield owner
    owner.close()


@pytest.fixture
def pg_empty(pg_store: str, pg_owner: Admin) -> str:
    """The URL of that database, without anything that an earlier test left."""
    pg_owner.run(
        "select pg_terminate_backend(pid) from pg_stat_activity"
        " where datname = current_database() and pid <> pg_backend_pid()"
    )
    pg_owner.run(EMPTY)
    return pg_store


async def _opened(home: Path, url: str = "") -> AsyncIterator[Rooms]:
    rooms = Rooms(home, url)
    try:
        yield rooms
    finally:
        await rooms.close_all()
    assert await rooms.findings() == []


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest) -> str:
    """Which database: nothing for SQLite, or a URL."""
    return request.getfixturevalue("pg_empty") if request.param == "postgres" else ""


@pytest.fixture
async def rooms(url: str, tmp_path: Path) -> AsyncIterator[Rooms]:
    """Where processes can be started, on both databases in turn."""
    async for opened in _opened(tmp_path / "home", url):
        yield opened


@pytest.fixture
async def shared(pg_empty: str, tmp_path: Path) -> AsyncIterator[Rooms]:
    """Where several processes can run at once: PostgreSQL."""
    async for opened in _opened(tmp_path / "home", pg_empty):
        yield opened
