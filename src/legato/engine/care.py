"""Care: what an administrator asks of a store that is in use. Back it up, re-prove it, count it, look after it.

The door checks who asks; nothing here speaks of one conversation, except the figures of one principal.
"""

import asyncio
import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import BinaryIO

from msgspec import Struct

from legato.domain.checks import Check
from legato.domain.ids import PrincipalId
from legato.engine import diagnosis
from legato.errors import StoreUnavailable
from legato.store import figures, search
from legato.store.database import Database
from legato.store.figures import Figures, StoreFigures
from legato.store.verify import Finding, verify

SCRATCH = ".backup-"
SPARE = 64 * 2**20  # bytes that are left to those who write while a backup is made
TELL = 0.5  # seconds between two words about progress


class Progress(Struct, frozen=True):
    """How many of how many conversations are checked."""

    checked: int
    total: int


class Care:
    """Backup, verify, figures, diagnosis."""

    def __init__(self, db: Database, home: Path, on_rebuild: Callable[[], None]) -> None:
        self._db, self._home, self._on_rebuild = db, home, on_rebuild
        self._one = asyncio.Lock()
        clear_leftovers(home)

    async def backup(self) -> BinaryIO:
        """A backup of this moment, as a file without a name: it is gone when it is closed, however that comes."""
        async with self._one:  # each takes the room of a whole store
            size = await self._db.read(figures.size)
            with _scratch(self._home, size) as folder:
                await self._db.backup(folder / "backup")
                return (folder / "backup").open("rb")  # whoever asked closes it

    async def verify(self) -> AsyncGenerator[Finding | Progress, None]:
        """Everything that is wrong with the store, and now and then how far it is."""
        async for told in proved(self._db):
            yield told

    async def figures(self, principal: PrincipalId) -> Figures:
        return await self._db.read(figures.of_principal, principal)

    async def store_figures(self) -> StoreFigures:
        return await self._db.read(figures.of_store)

    async def diagnose(self) -> list[Check]:
        return diagnosis.judge(await self._db.read(figures.health), running=True)

    async def rebuild_search(self) -> None:
        """Forget the search index; it fills itself again."""
        await self._db.write(search.rebuild)
        self._on_rebuild()


async def proved(db: Database) -> AsyncGenerator[Finding | Progress, None]:
    """Re-prove a store, telling of progress where nothing is found for a while."""
    heard, said = Progress(0, 0), Progress(0, 0)

    def hear(checked: int, total: int) -> None:
        nonlocal heard
        heard = Progress(checked, total)

    async with aclosing(verify(db, hear)) as findings:
        while True:
            step = asyncio.ensure_future(anext(findings, None))
            try:
                while not (await asyncio.wait({step}, timeout=TELL))[0]:
                    if heard != said:
                        said = heard
                        yield said
                finding = step.result()
            finally:
                step.cancel()
                await asyncio.wait({step})
            if finding is None:
                return
            yield finding


def shown(finding: Finding) -> dict[str, str]:
    """A finding as it is told to others."""
    return {"rule": finding.rule.name, "where": finding.where, "what": finding.what, "message": str(finding)}


@contextlib.contextmanager
def _scratch(home: Path, size: int) -> Iterator[Path]:
    """A folder for a file of about this size, for its owner only. It is locked, so that others know it is in use."""
    free = shutil.disk_usage(home).free
    if free < size + SPARE:
        raise StoreUnavailable(
            f"There is no room for a backup in {home}: it needs about {size >> 20} MB and {free >> 20} MB are free."
        )
    folder = Path(tempfile.mkdtemp(prefix=SCRATCH, dir=home))
    lock = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def clear_leftovers(home: Path) -> None:
    """Remove what a process that was killed in the middle of a backup has left; what another works on stays."""
    for folder in home.glob(f"{SCRATCH}*"):
        lock = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        except BlockingIOError:
            continue
        finally:
            os.close(lock)
