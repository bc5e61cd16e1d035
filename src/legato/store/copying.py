"""Rows between PostgreSQL and a backup file, table by table, a few at a time.

What is copied follows from the schema of the file, so a table or column that a migration adds is copied, too. Search
is derived and stays behind: the turns are marked as not indexed, and the index fills itself again.
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw

from legato.errors import StoreUnavailable
from legato.store import backup
from legato.store.database import Row
from legato.store.migrate import known_version, migrate
from legato.store.sqlite import APPLICATION_ID, at_once
from legato.store.statements import statements

MOST_ROWS = 512
MOST_BYTES = 4 * 2**20  # of one batch; where rows are larger, fewer are taken at a time


async def dump(source: Any, path: Path) -> None:
    """Copy everything that a connection sees, on the snapshot of its transaction, into an empty file."""
    applied = dict(await source.fetch(statements("postgres")["schema_versions"].text))
    target = await asyncio.to_thread(_made, path, known_version(applied, "postgres"))
    try:
        for table, columns in backup.tables(target):
            places = ", ".join("?" for _ in columns)
            insert = f"insert into {table} ({', '.join(columns)}) values ({places})"
            cursor = await source.cursor(f"select {', '.join(map(_taken, columns))} from {table}")
            size = 8
            while rows := await cursor.fetch(size):
                await asyncio.to_thread(target.executemany, insert, [tuple(row) for row in rows])
                size = _next_size(size, rows)
        await asyncio.to_thread(target.execute, "commit")
    except apsw.Error as error:
        raise StoreUnavailable(f"The backup cannot be written: {error}. Check the space on the disk.") from error
    finally:
        await asyncio.to_thread(target.close)


async def load(target: Any, path: Path) -> None:
    """Copy everything of a backup into the tables of a connection, inside its transaction. What is there already (keys,
    principals) stays; what refers to what is asked at the end."""
    named = statements("postgres")
    constraints = await target.fetch(named["foreign_keys"].text)
    for table, constraint in constraints:
        await target.execute(f"alter table {table} alter constraint {constraint} deferrable initially deferred")
    source = backup.opened(path)
    try:
        for table, columns in backup.tables(source):
            await _load_table(target, source, table, columns)
    finally:
        source.close()
    await target.execute("set constraints all immediate")
    for table, constraint in constraints:
        await target.execute(f"alter table {table} alter constraint {constraint} not deferrable")
    for table, column in await target.fetch(named["counters"].text):
        counter = f"pg_get_serial_sequence('{table}', '{column}')"
        await target.execute(f"select setval({counter}, coalesce(max({column}), 0) + 1, false) from {table}")


async def _load_table(target: Any, source: apsw.Connection, table: str, columns: list[str]) -> None:
    rows = _rows(source, f"select {', '.join(map(_taken, columns))} from {table}")
    if not await target.fetchval(f"select exists (select 1 from {table})"):
        await target.copy_records_to_table(table, records=rows, columns=columns)
        return
    await target.execute(f"create temporary table loaded (like {table}) on commit drop")
    await target.copy_records_to_table("loaded", records=rows, columns=columns)
    names = ", ".join(columns)
    await target.execute(
        f"insert into {table} ({names}) overriding system value select {names} from loaded on conflict do nothing"
    )
    await target.execute("drop table loaded")


def _rows(source: apsw.Connection, select: str) -> Iterator[Row]:
    """Rows one by one, so that no more of them are in memory than are on their way."""
    yield from source.execute(select)


def _made(path: Path, version: int) -> apsw.Connection:
    """A file with an empty schema of this version, and a transaction in it. It is thrown away if anything fails."""
    connection = apsw.Connection(str(path))
    for setting in ("journal_mode = off", "synchronous = off", f"application_id = {APPLICATION_ID}"):
        connection.execute(f"pragma {setting}").fetchall()
    connection.execute("begin")
    at_once(connection, lambda tx: migrate(tx, version))
    return connection


def _taken(column: str) -> str:
    return "null as indexed_at" if column == "indexed_at" else column


def _next_size(size: int, rows: list[Row]) -> int:
    """How many rows to ask for next, by how large these were."""
    taken = sum(len(value) for row in rows for value in row if isinstance(value, str | bytes))
    return max(1, min(MOST_ROWS, size * 2, MOST_BYTES * len(rows) // max(1, taken)))
