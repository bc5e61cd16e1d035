"""Files that are whole and on the disk before they have their name."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from legato.errors import StoreUnavailable


@contextmanager
def written(path: Path) -> Iterator[Path]:
    """A place to write a file in. It gets its name when it is whole and on the disk; otherwise nothing is left."""
    with _begun(path) as part:
        yield part
        sync(part)
        part.replace(path)
        sync(path.parent)


@asynccontextmanager
async def writing(path: Path) -> AsyncIterator[Path]:
    """The same, while others go on: the disk takes its time for a large file."""
    with _begun(path) as part:
        yield part
        await asyncio.to_thread(sync, part)
        part.replace(path)
        await asyncio.to_thread(sync, path.parent)


@contextmanager
def _begun(path: Path) -> Iterator[Path]:
    part = path.with_name(path.name + ".part")
    try:
        os.close(os.open(part, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600))
        try:
            yield part
        finally:
            for leftover in (part, part.with_name(part.name + "-journal")):
                leftover.unlink(missing_ok=True)
    except OSError as error:
        raise StoreUnavailable(f"{path} cannot be written: {error.strerror}.") from error


def sync(path: Path) -> None:
    """Have a file, or the names in a folder, on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
