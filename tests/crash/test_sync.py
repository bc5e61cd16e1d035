"""An acknowledgement waits for the disk (P3). `kill -9` cannot show that: what the kernel has, a killed process does
not lose. So a shim between SQLite and the disk counts the syncs of the write-ahead log, and holds them at a gate."""

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest

from conftest import ALICE
from legato.domain.entries import Message, Text, draft
from legato.domain.handles import Slug
from legato.domain.turns import Input, Submission
from legato.engine.gateway import Gateway
from legato.engine.live import Live
from legato.engine.roster import Agent, Roster
from legato.engine.worker import Worker, WorkerSettings
from legato.models.demo import Demo
from legato.store import directory
from legato.store.database import Tx
from legato.store.sqlite import Sqlite

BOUND = 30.0


class Disk(apsw.VFS):
    """A disk that counts the syncs of the log. While `gate` is shut a sync has begun and does not come back."""

    _numbers = itertools.count()

    def __init__(self) -> None:
        self.name = f"counting-{next(self._numbers)}"
        super().__init__(self.name, "")
        self.gate = threading.Event()
        self.gate.set()
        self.begun = threading.Event()
        self.synced = 0

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:
        return _File(self, name, flags)


class _File(apsw.VFSFile):
    def __init__(self, disk: Disk, name: Any, flags: list[int]) -> None:
        self._disk = disk
        self._is_log = str(name.filename() if isinstance(name, apsw.URIFilename) else name).endswith("-wal")
        super().__init__("", name, flags)

    def xSync(self, flags: int) -> None:
        if self._is_log:
            self._disk.begun.set()
            assert self._disk.gate.wait(BOUND)
        super().xSync(flags)
        if self._is_log:
            self._disk.synced += 1


class Careless(Sqlite):
    """What the tests below must catch: a database that does not wait for the disk."""

    def _connect(self, *, writable: bool) -> apsw.Connection:
        connection = super()._connect(writable=writable)
        connection.execute("pragma synchronous = off").fetchall()
        return connection


@pytest.fixture
def disk() -> Iterator[Disk]:
    disk = Disk()
    yield disk
    disk.gate.set()
    disk.unregister()


@asynccontextmanager
async def opened(kind: type[Sqlite], path: Path, disk: Disk) -> AsyncIterator[Sqlite]:
    db = await kind.open(path, vfs=disk.name)
    try:
        await db.write(directory.add_principal, ALICE)
        yield db
    finally:
        disk.gate.set()
        await db.close()


async def early(db: Sqlite, disk: Disk, count: int, together: Callable[..., Any]) -> tuple[int, int]:
    """Write so many times; returns how many were acknowledged without a sync after their execution, and the syncs."""

    async def write() -> bool:
        executed_at: list[int] = []

        async def transaction(tx: Tx) -> None:
            await directory.create(tx, ALICE)
            executed_at.append(disk.synced)

        await db.write(transaction)
        return disk.synced <= executed_at[-1]

    before = disk.synced
    return sum(await together([write() for _ in range(count)])), disk.synced - before


async def one_by_one(writes: list[Any]) -> list[bool]:
    return [await write for write in writes]


async def all_at_once(writes: list[Any]) -> list[bool]:
    return list(await asyncio.gather(*writes))


async def test_each_of_many_writes_in_a_row_has_a_sync_of_its_own(tmp_path: Path, disk: Disk) -> None:
    """Nobody is told of a commit that a power cut could take back."""
    async with opened(Sqlite, tmp_path / "legato.db", disk) as db:
        acknowledged_early, syncs = await early(db, disk, 50, one_by_one)
        assert acknowledged_early == 0
        assert syncs >= 50


async def test_writes_at_the_same_time_share_syncs_and_each_still_waits_for_one(tmp_path: Path, disk: Disk) -> None:
    """Group commit: far fewer syncs than writes, and none of the writes is acknowledged before its own."""
    async with opened(Sqlite, tmp_path / "legato.db", disk) as db:
        acknowledged_early, syncs = await early(db, disk, 64, all_at_once)
        assert acknowledged_early == 0
        assert 1 <= syncs <= 16


async def test_these_tests_catch_a_database_that_does_not_sync(tmp_path: Path, disk: Disk) -> None:
    """With `synchronous = off` every write is acknowledged early, and this is how it shows."""
    async with opened(Careless, tmp_path / "legato.db", disk) as db:
        assert await early(db, disk, 10, one_by_one) == (10, 0)
        assert await early(db, disk, 10, all_at_once) == (10, 0)


async def test_a_submit_does_not_return_while_the_disk_has_not_answered(tmp_path: Path, disk: Disk) -> None:
    """The sync is held at a gate: no input is acknowledged and nobody can read it; then it is let go, and all are."""
    async with (
        opened(Sqlite, tmp_path / "legato.db", disk) as db,
        gateway_on(db) as gateway,
        asyncio.timeout(BOUND),
    ):
        disk.begun.clear()
        disk.gate.clear()
        submits = [asyncio.create_task(gateway.submit(said(f"input {n}"))) for n in range(8)]
        await asyncio.to_thread(disk.begun.wait, BOUND)
        assert await gateway.conversations(ALICE) == []  # a reader comes and goes meanwhile
        assert not any(submit.done() for submit in submits)
        disk.gate.set()
        for turn in await asyncio.gather(*submits):
            assert (await gateway.ended(turn)).status == "done"
        assert len(await gateway.conversations(ALICE)) == 8


async def test_an_answer_is_not_shown_while_the_disk_has_not_answered(tmp_path: Path, disk: Disk) -> None:
    """Followers see what is durable: with the sync of the first words held, they see nothing."""
    async with (
        opened(Sqlite, tmp_path / "legato.db", disk) as db,
        gateway_on(db) as gateway,
        asyncio.timeout(BOUND),
    ):
        turn = await gateway.submit(said("sleep 0.05"))
        disk.begun.clear()
        disk.gate.clear()
        first = asyncio.create_task(anext(aiter(gateway.follow(ALICE, turn.id))))
        await asyncio.to_thread(disk.begun.wait, BOUND)
        assert not (await gateway.turn(ALICE, turn.id)).ended
        assert not first.done()
        disk.gate.set()
        assert (await first)[0] == 0


@asynccontextmanager
async def gateway_on(db: Sqlite) -> AsyncIterator[Gateway]:
    """A gateway with the demo model. Its chores do not write meanwhile."""
    roster = Roster(models={"demo": Demo()}, toolsets={}, agents={"a": Agent("a", "demo")}, default="a")
    live = Live(db)
    async with Worker(db, live, roster, WorkerSettings(lease=600)) as worker:
        await db.write(_nothing)  # the chores of the start are behind this one
        yield Gateway(db, live, worker)


async def _nothing(tx: Tx) -> None:
    """A write that comes after those before it."""


def said(text: str) -> Submission:
    name = Slug(text.replace(" ", "-"))
    return Submission(principal=ALICE, target=name, input=Input((draft(Message("user", (Text(text),))),)))
