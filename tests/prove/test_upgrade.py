"""A newer Legato is rolled out under load, one node after the other, with a migration; nothing is lost."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from legato.cli.prove import drill, plan
from legato.cli.prove.drill import Scratch
from legato.cli.prove.plan import Fault
from legato.cli.prove.report import Terms, table

NEXT = '''\
"""The next Legato: this one, with a migration more. Python loads it before everything else."""

import functools

from legato.store import migrate

present = migrate.migrations
TEXT = """
alter table turns add column mood text;
alter table conversations add column colour text not null default 'blue';
create index turns_by_mood on turns (mood);
"""


@functools.cache
def migrations(dialect):
    return (*present(dialect), migrate.Migration(9001, "next", TEXT))


migrate.migrations = migrations
'''


def test_nothing_is_lost_while_a_newer_version_is_rolled_out(
    pg_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first new node migrates while the old ones work on; then they are drained and replaced, too."""
    newer = tmp_path / "newer"
    newer.mkdir()
    (newer / "sitecustomize.py").write_text(NEXT)
    versions: list[tuple[int, ...]] = []
    rolled_out = threading.Event()

    def rollout(seed: int, nodes: int) -> Iterator[Fault]:
        try:
            yield Fault(after=1, kind="kill", node=0)
            versions.append(asyncio.run(_versions(pg_url)))
            monkeypatch.setenv("PYTHONPATH", str(newer), prepend=":")
            for node in range(nodes):
                yield Fault(after=1, kind="drain", node=node)
                versions.append(asyncio.run(_versions(pg_url)))
        finally:
            rolled_out.set()

    monkeypatch.setattr(plan, "faults", rollout)
    monkeypatch.setattr(drill, "_wait", lambda stopping, seconds: rolled_out.wait(seconds))
    terms = Terms(seed=6, minutes=2, nodes=2, clients=4, lease=3.0, database="PostgreSQL")
    told = drill.drill(terms, Scratch(tmp_path / "drill", pg_url))
    assert told["held"], table(told)
    assert told["faults"] == {"kill": 1, "drain": 2}
    assert max(versions[0]) < 9001
    assert [max(seen) for seen in versions[1:]] == [9001, 9001]


async def _versions(url: str) -> tuple[int, ...]:
    connection = await asyncpg.connect(url)
    try:
        return tuple(row[0] for row in await connection.fetch("select version from schema_version"))
    finally:
        await connection.close()
