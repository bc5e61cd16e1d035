"""A database from outside: opened as the gateway opens it, or plain SQL as somebody with an editor would run it."""

from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import apsw
import asyncpg

from legato.store.database import Database, Tx
from legato.store.postgres import Postgres, PostgresTx
from legato.store.sqlite import APPLICATION_ID, Sqlite, SqliteTx

T = TypeVar("T")
Place = Path | str
SqliteConnection = apsw.Connection


@asynccontextmanager
async def opened(place: Place) -> AsyncIterator[Database]:
    """Open a database as the gateway does."""
    db: Database = await (Sqlite.open(place) if isinstance(place, Path) else Postgres.open(place))
    try:
        yield db
    finally:
        await db.close()


async def execute(place: Place, sql: str) -> None:
    """Run statements with all guards of the schema in force."""
    async with connected(place) as connection:
        if isinstance(connection, apsw.Connection):
            connection.execute("pragma foreign_keys = on")
            connection.execute(sql).fetchall()  # to the end: what follows a row runs when the row is fetched
        else:
            await connection.execute(sql)


async def rows(place: Place, sql: str) -> list[tuple[Any, ...]]:
    async with connected(place) as connection:
        if isinstance(connection, apsw.Connection):
            return list(connection.execute(sql))
        return [tuple(row) for row in await connection.fetch(sql)]


async def execute_unguarded(connection: Any, sql: str) -> None:
    """Run statements as if no trigger, foreign key or check were there; afterwards the triggers are back."""
    if isinstance(connection, apsw.Connection):
        triggers = connection.execute("select name, sql from sqlite_schema where type = 'trigger'").fetchall()
        for name, _ in triggers:
            connection.execute(f"drop trigger {name}")
        connection.execute("pragma ignore_check_constraints = on; pragma writable_schema = on")
        connection.execute(sql).fetchall()
        connection.execute("pragma writable_schema = reset")
        for _, text in triggers:
            connection.execute(text)
    else:
        await connection.execute("set session_replication_role = replica")
        checks = await connection.fetch(
            "select conrelid::regclass::text, conname from pg_constraint"
            " where contype = 'c' and connamespace = current_schema()::regnamespace"
        )
        for table, name in checks:
            await connection.execute(f"alter table {table} drop constraint {name}")
        await connection.execute(sql)


async def dump(place: Place) -> dict[str, list[str]]:
    """Every row of every table, in an order of its own."""
    async with connected(place) as connection:
        if isinstance(connection, apsw.Connection):
            names = "select name from sqlite_schema where type = 'table' and name not like 'search_grams%'"
            tables = [name for (name,) in connection.execute(names)]
            return {t: sorted(map(repr, connection.execute(f'select * from "{t}"'))) for t in tables}
        names = "select table_name from information_schema.tables where table_schema = current_schema()"
        tables = [name for (name,) in await connection.fetch(names)]
        return {t: sorted(map(repr, map(tuple, await connection.fetch(f'select * from "{t}"')))) for t in tables}


async def transact(place: Place, work: Callable[[Tx], Coroutine[Any, Any, T]]) -> T:
    """Run one of the store's transactions on a database that is not open, and only that."""
    async with connected(place) as connection:
        if not isinstance(connection, apsw.Connection):
            async with connection.transaction():
                return await work(PostgresTx(connection))
        connection.execute(f"pragma journal_mode = wal; pragma application_id = {APPLICATION_ID}").fetchall()
        with connection:
            return await work(SqliteTx(connection))


@asynccontextmanager
async def connected(place: Place) -> AsyncIterator[Any]:
    if isinstance(place, Path):
        connection = apsw.Connection(str(place))
        try:
            yield connection
        finally:
            connection.close()
    else:
        remote = await asyncpg.connect(place)
        try:
            yield remote
        finally:
            await remote.close()
