"""Fixtures of the crash suite: a nursery of processes, and as many empty stores as a test wants."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import asyncpg
import pytest

from conftest import EMPTY
from crash.life import Job
from crash.nursery import Nursery, open_nursery
from legato.domain.ids import new_id

Stores = Callable[[], AbstractAsyncContextManager[Job]]


@pytest.fixture
async def nursery() -> AsyncIterator[Nursery]:
    """Starts processes that may die."""
    async with open_nursery() as nursery:
        yield nursery


class _Databases:
    """PostgreSQL databases with our schema and nothing in it. One that was used is emptied and used again: making one
    takes much longer. They go when their server goes."""

    def __init__(self, server: str, template: str, free: list[str]) -> None:
        self._server, self._template, self._free = server, template, free
        self._making = asyncio.Lock()

    async def take(self) -> str:
        if self._free:
            name = self._free.pop()
            await self._run(name, EMPTY)
        else:
            name = new_id("t")
            async with self._making:  # one at a time: they are all copied from one template
                await self._run("postgres", f"create database {name} template {self._template} strategy file_copy")
        return name

    def give_back(self, name: str) -> None:
        self._free.append(name)

    def url(self, name: str) -> str:
        return self._server.replace("/postgres?", f"/{name}?")

    async def _run(self, name: str, script: str) -> None:
        connection = await asyncpg.connect(self.url(name))
        await connection.execute(script)
        await connection.close()


@pytest.fixture(scope="session")
def free_databases() -> list[str]:
    """The databases that no test uses now."""
    return []


@pytest.fixture(params=["sqlite", "postgres"])
def new_store(request: pytest.FixtureRequest, tmp_path: Path, free_databases: list[str]) -> Stores:
    """Gives empty stores, each as the job of a life on it. Tests that take it run on both databases."""
    databases = None
    if request.param == "postgres":
        server, template = (request.getfixturevalue(name) for name in ("pg_server", "pg_template"))
        databases = _Databases(server, template, free_databases)

    @asynccontextmanager
    async def new() -> AsyncIterator[Job]:
        folder = tmp_path / new_id("store_")
        folder.mkdir()
        if databases is None:
            yield Job(folder=str(folder))
            return
        name = await databases.take()
        yield Job(folder=str(folder), url=databases.url(name))
        databases.give_back(name)

    return new
