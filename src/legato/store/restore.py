"""A backup put back: as the file of a home, or as the rows of an empty PostgreSQL.

Either the whole of it is there afterwards, or nothing has changed. What the backup owes to addresses is in doubt: time
has gone on since it was taken, and it may have been sent. So it is marked, and never sent again blindly.
"""

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import apsw
from msgspec import Struct, structs

from legato.errors import StoreUnavailable
from legato.store import backup
from legato.store.backup import Contents
from legato.store.database import Tx
from legato.store.files import sync
from legato.store.migrate import migrate, migrations
from legato.store.postgres import Postgres
from legato.store.sqlite import at_once, own

SIDES = ("-wal", "-shm", "-journal")


class Restored(Struct, frozen=True):
    """What is there now, how many deliveries are in doubt, and the name of what was there before."""

    contents: Contents
    doubtful: int
    aside: Path | None = None


def into_file(source: Path, database: Path, *, replace: bool) -> Restored:
    """Make a backup the database of a home that nobody uses. With `replace` a database that is there is kept aside."""
    contents = backup.inspect(source)
    try:
        database.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StoreUnavailable(f"Cannot make the home {database.parent}: {error.strerror}.") from error
    lock = own(database)
    try:
        if database.exists() and not replace:
            raise StoreUnavailable(
                f"{database} is there already. Nothing was changed. Choose another home, or give --replace: it keeps "
                f"the old file under another name."
            )
        with _staged(source, database) as (staged, doubtful):
            there = [side for side in ("", *SIDES) if Path(f"{database}{side}").exists()]
            aside = _keep_aside(database) if there else None
            _clear_sides(database)
            staged.replace(database)
            sync(database.parent)
        return Restored(_newest(contents), doubtful, aside)
    except (OSError, apsw.Error) as error:
        raise StoreUnavailable(f"The backup cannot be put into {database.parent}: {error}.") from error
    finally:
        os.close(lock)


async def into_postgres(source: Path, url: str) -> Restored:
    """Load a backup into a PostgreSQL in which nobody has talked yet."""
    contents = backup.inspect(source)
    try:
        with tempfile.TemporaryDirectory(prefix="legato-") as folder:
            with _staged(source, Path(folder) / "copy") as (staged, doubtful):
                await Postgres.restore(url, staged)
    except (OSError, apsw.Error) as error:
        raise StoreUnavailable(f"A copy of the backup could not be prepared: {error}. Nothing was changed.") from error
    return Restored(_newest(contents), doubtful)


@contextlib.contextmanager
def _staged(source: Path, database: Path) -> Iterator[tuple[Path, int]]:
    """A copy of the backup beside its place, in our newest schema, and how many deliveries in it are in doubt."""
    staged = database.with_name(database.name + ".restoring")
    _remove(staged)  # of a restore that was killed
    try:
        os.close(os.open(staged, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        shutil.copyfile(source, staged)
        doubtful = _brought_up_to_date(staged)
        sync(staged)
        yield staged, doubtful
    finally:
        _remove(staged)


def _newest(contents: Contents) -> Contents:
    return structs.replace(contents, version=migrations("sqlite")[-1].version)


def _brought_up_to_date(path: Path) -> int:
    connection = apsw.Connection(str(path))
    try:
        connection.execute("pragma journal_mode = delete").fetchall()
        connection.execute("begin immediate")
        doubtful = at_once(connection, _up_to_date)
        connection.execute("commit")
    finally:
        connection.close()
    return doubtful


async def _up_to_date(tx: Tx) -> int:
    await migrate(tx)
    await tx.run("end_all_nodes")
    return len(await tx.run("doubt_open_deliveries"))


def _keep_aside(database: Path) -> Path:
    """Another name for the database that is there. Its own name stays until the new one takes it."""
    with contextlib.suppress(apsw.Error):  # a damaged one, or a journal alone, is kept as it is
        connection = apsw.Connection(str(database), flags=apsw.SQLITE_OPEN_READWRITE)
        try:
            [(busy, _, _)] = connection.execute("pragma wal_checkpoint(truncate)").fetchall()
        finally:
            connection.close()
        if busy:
            raise StoreUnavailable(f"Somebody reads {database}. Nothing was changed. Try again when they are done.")
    aside = database.with_name(f"{database.name}.replaced-{time.strftime('%Y%m%d-%H%M%S')}")
    while any(Path(f"{aside}{side}").exists() for side in ("", *SIDES)):
        aside = aside.with_name(aside.name + "x")
    for side in ("", *SIDES):
        with contextlib.suppress(FileNotFoundError):
            _linked(Path(f"{database}{side}"), Path(f"{aside}{side}"))
    sync(database.parent)
    return aside


def _linked(path: Path, other: Path) -> None:
    try:
        os.link(path, other)
    except FileNotFoundError:
        raise
    except OSError:  # a file system without links
        shutil.copy2(path, other)
        sync(other)


def _clear_sides(database: Path) -> None:
    """Journals of an old database never meet a new one."""
    for side in SIDES:
        Path(f"{database}{side}").unlink(missing_ok=True)
    sync(database.parent)


def _remove(path: Path) -> None:
    for side in ("", *SIDES):
        Path(f"{path}{side}").unlink(missing_ok=True)
