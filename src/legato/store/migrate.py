"""Forward migrations. `migrations/NNNN_name[.dialect].sql` are applied in order, all in one transaction.

A database from a newer Legato is refused by name and left untouched; a second run is a no-op.
"""

import re
from functools import cache
from importlib.resources import files

from msgspec import Struct

from legato.errors import StoreUnavailable
from legato.store.database import Tx
from legato.store.statements import Dialect, expand_macros

_FILE = re.compile(r"(\d{4})_(\w+?)(?:\.(sqlite|postgres))?\.sql$")

VERSION_TABLE = "create table if not exists schema_version (version bigint primary key, name text not null)"


class Migration(Struct, frozen=True):
    version: int
    name: str
    text: str


@cache
def migrations(dialect: Dialect) -> tuple[Migration, ...]:
    """The migrations for one database, in order."""
    found = []
    for file in files("legato.store").joinpath("migrations").iterdir():
        match = _FILE.match(file.name)
        if match and match[3] in (None, dialect):
            found.append(Migration(int(match[1]), match[2], expand_macros(file.read_text("utf-8"), dialect)))
    return tuple(sorted(found, key=lambda m: m.version))


async def migrate(tx: Tx, upto: int | None = None) -> list[str]:
    """Bring the schema to the newest version (or to `upto`); returns the names of what was applied."""
    known = migrations(tx.dialect)
    await tx.script(VERSION_TABLE)
    applied: dict[int, str] = dict(await tx.run("schema_versions"))
    known_version(applied, tx.dialect)
    done = []
    for migration in known:
        if migration.version not in applied and (upto is None or migration.version <= upto):
            await tx.script(migration.text)
            await tx.run("add_schema_version", version=migration.version, name=migration.name)
            done.append(migration.name)
    return done


def known_version(applied: dict[int, str], dialect: Dialect) -> int:
    """The version of a schema that has had these migrations; one that a newer Legato made is refused."""
    newest, known = max(applied, default=0), migrations(dialect)[-1]
    if newest > known.version:
        raise StoreUnavailable(
            f"The database has schema {newest} ('{applied[newest]}'), made by a newer Legato; this one knows up to "
            f"{known.version} ('{known.name}'). Nothing was changed. Upgrade Legato, or use another database."
        )
    return newest
