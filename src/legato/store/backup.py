"""A backup: one SQLite file of our schema, whichever database it was taken from.

So it is also the way from SQLite to PostgreSQL and back. Nothing half-written ever stands under the name of a backup,
and before one is used everything is looked at: that it is ours, that it is whole, that we know its schema.
"""

import contextlib
from pathlib import Path

import apsw
from msgspec import Struct

from legato.errors import BadBackup
from legato.store.migrate import migrations
from legato.store.sqlite import APPLICATION_ID, SqliteTx, at_once

MAGIC = b"SQLite format 3\0"


class Contents(Struct, frozen=True):
    """What a backup holds."""

    version: int
    conversations: int
    entries: int
    turns: int
    attachments: int


def inspect(path: Path) -> Contents:
    """What is in a backup that is sound; else why it cannot be used. Nothing is written."""
    _look_at(path)
    connection = opened(path)
    try:
        [(application,)] = connection.execute("pragma application_id").fetchall()
        if application != APPLICATION_ID:
            raise BadBackup(f"{path} is a SQLite file of another program, not a backup of Legato. Nothing was changed.")
        damage = [line for (line,) in connection.execute("pragma integrity_check(1)") if line != "ok"]
        if damage:
            raise BadBackup(f"{path} is damaged: {' '.join(damage[0].split())}. Nothing was changed. Use another one.")
        version = _known_version(connection, path)
        [counts] = at_once(connection, lambda tx: tx.run("backup_counts"))
        return Contents(version, *counts)
    except apsw.Error as error:
        raise BadBackup(f"{path} is damaged: {error}. Nothing was changed. Use another one.") from error
    finally:
        connection.close()


def opened(path: Path) -> apsw.Connection:
    """A file that nobody else writes, for reading; nothing appears beside it."""
    flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    return apsw.Connection(f"{path.absolute().as_uri()}?immutable=1", flags=flags)


def tables(connection: apsw.Connection) -> list[tuple[str, list[str]]]:
    """The tables that are copied row by row, with their columns."""

    async def found(tx: SqliteTx) -> list[tuple[str, list[str]]]:
        names = [name for (name,) in await tx.run("backup_objects")]
        return [(name, [column for (column,) in await tx.run("backup_columns", table=name)]) for name in names]

    return at_once(connection, found)


def _look_at(path: Path) -> None:
    """The beginning of the file, and its neighbours."""
    try:
        with path.open("rb") as file:
            begins = file.read(len(MAGIC))
    except OSError as error:
        raise BadBackup(f"{path} cannot be read: {error.strerror}.") from error
    if begins != MAGIC:
        raise BadBackup(f"{path} is not a backup: it is no SQLite file. Nothing was changed.")
    journal = path.with_name(path.name + "-wal")
    with contextlib.suppress(FileNotFoundError):
        if journal.stat().st_size:
            raise BadBackup(
                f"{path} is a database in use, not a backup: a part of it is still in {journal.name}. Nothing was "
                f"changed. Make a backup of it with `legato backup`."
            )


def _known_version(connection: apsw.Connection, path: Path) -> int:
    applied: dict[int, str] = dict(at_once(connection, lambda tx: tx.run("schema_versions")))
    newest, known = max(applied, default=0), migrations("sqlite")[-1]
    if newest > known.version:
        raise BadBackup(
            f"{path} has schema {newest} ('{applied[newest]}'), made by a newer Legato; this one knows up to "
            f"{known.version} ('{known.name}'). Nothing was changed. Upgrade Legato."
        )
    return newest
