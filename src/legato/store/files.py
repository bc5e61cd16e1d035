"""Files that are whole and on the disk before they have their name."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from legato.errors import StoreUnavailable


@contextmanager
def written(path: Path) -> Iterator[Path]:
    """A place to write a file in. It gets its name when it is whole and on the disk; otherwise nothing is left."""
    part = path.with_name(path.name + ".part")
    try:
        os.close(os.open(part, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise StoreUnavailable(f"{part} cannot be written: {error.strerror}.") from error
    try:
        yield part
        try:
            sync(part)
            part.replace(path)
            sync(path.parent)
        except OSError as error:
            raise StoreUnavailable(f"{path} cannot be written: {error.strerror}.") from error
    finally:
        for leftover in (part, part.with_name(part.name + "-journal")):
            leftover.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Have a file, or the names in a folder, on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
