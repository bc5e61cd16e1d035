"""How a node uses its connections to PostgreSQL: what its role or database has set for itself changes nothing, and one
thing that is locked holds up nothing else."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from acts import BOUND, N1, admit, interleave, start, submission, talk

from conftest import ALICE, open_database
from golden import raw
from legato import logs
from legato.domain.handles import Slug
from legato.errors import StoreUnavailable
from legato.store import admission, directory, nodes, postgres
from legato.store.database import Database, Hint, Tx
from legato.store.postgres import Postgres

WORK, PLAY = Slug("work"), Slug("play")
LISTENS = "select 1 from pg_stat_activity where datname = current_database() and query ilike 'listen%'"
WAITS = "select 1 from pg_locks where not granted"


def settled(url: str, **settings: str) -> str:
    """The statements that give a database settings of its own, for everyone who connects from now on."""
    name = url.split("/")[3].split("?")[0]
    return ";".join(f"alter database {name} set {setting} = '{value}'" for setting, value in settings.items())


@asynccontextmanager
async def locked(url: str, what: str) -> AsyncIterator[Any]:
    """Somebody else holds something, inside."""
    holder = await asyncpg.connect(url)
    try:
        async with holder.transaction():
            await holder.execute(what)
            yield holder
    finally:
        await holder.close()


# -- what the role or the database has set


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
async def test_whatever_isolation_a_database_has_who_waited_for_another_goes_on(pg_ready: str, isolation: str) -> None:
    """It sees what the other has committed, and is not run again."""
    await raw.execute(pg_ready, settled(pg_ready, default_transaction_isolation=isolation))
    crowd: list[Database] = [await open_database(pg_ready), await Postgres.open(pg_ready)]
    await start(crowd[0], WORK, "one")
    runs = []

    async def first(tx: Tx) -> int:
        return (await admission.admit(tx, submission(WORK, "two"), None)).turn.n

    async def second(tx: Tx) -> int:
        runs.append("second")
        return (await admission.admit(tx, submission(WORK, "three"), None)).turn.n

    try:
        assert await interleave(crowd, first, second, at=["draw_turn"]) == [2, 3]
        assert runs == ["second"]
    finally:
        for db in crowd:
            await db.close()


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
async def test_whatever_isolation_a_database_has_processes_that_start_at_once_all_start(
    pg_url: str, isolation: str
) -> None:
    """One of them makes the tables, and the others see them."""
    await raw.execute(pg_url, settled(pg_url, default_transaction_isolation=isolation))
    opened = await asyncio.gather(*(Postgres.open(pg_url, connections=2) for _ in range(6)), return_exceptions=True)
    assert [type(db) for db in opened] == [Postgres] * 6
    for db in opened:
        assert isinstance(db, Postgres)
        await db.close()


async def test_a_backup_and_a_scrub_may_take_longer_than_a_statement_may_by_default(
    pg_ready: str, tmp_path: Path
) -> None:
    """Each waits for a table for longer than the database lets statements take, and then gets through."""
    db = await open_database(pg_ready)
    await start(db, WORK, "one")
    await raw.execute(pg_ready, settled(pg_ready, statement_timeout="100ms", lock_timeout="100ms"))
    try:
        for table, work in (("turns", db.backup(tmp_path / "backup")), ("previews", db.scrub())):
            async with locked(pg_ready, "set statement_timeout = 0") as holder:
                await holder.execute(f"lock table {table} in access exclusive mode")
                working = asyncio.create_task(work)
                async with asyncio.timeout(BOUND):
                    while not await holder.fetch(WAITS):
                        assert not working.done(), await working
                with pytest.raises(asyncpg.QueryCanceledError):
                    await raw.rows(pg_ready, "select pg_sleep(60)")
            await asyncio.wait_for(working, BOUND)
        assert (tmp_path / "backup").exists()
    finally:
        await db.close()


async def test_a_node_that_has_nothing_to_do_is_not_cut_off(pg_ready: str) -> None:
    """The database ends sessions that are idle: another that came later is gone, and those of the node are there."""
    await raw.execute(pg_ready, settled(pg_ready, idle_session_timeout="200ms"))
    ours = "select pid from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid() order by 1"
    db = await Postgres.open(pg_ready)
    other, gone = await asyncpg.connect(pg_ready), asyncio.Event()
    try:
        async with asyncio.timeout(BOUND):
            while len(await other.fetch(LISTENS)) < 1:
                pass
        before = await other.fetch(ours)
        other.add_termination_listener(lambda _: gone.set())
        await asyncio.wait_for(gone.wait(), BOUND)
        assert await raw.rows(pg_ready, ours) == [tuple(row) for row in before]
    finally:
        await other.close()
        await db.close()


# -- what the server has no room for, or ends


@asynccontextmanager
async def as_nobody(url: str, connections: int) -> AsyncIterator[str]:
    """The URL of a database for a role that may have so many connections and no privileges."""
    name = url.split("/")[3].split("?")[0]
    grant = f"grant all on all tables in schema public to {name}; grant create on schema public to {name}"
    await raw.execute(url, f"create role {name} login connection limit {connections}; {grant}")
    try:
        yield url.replace("postgres:@", f"{name}:@")
    finally:
        await raw.execute(url, f"drop owned by {name}; drop role {name}")


async def until_it_listens(url: str) -> None:
    async with asyncio.timeout(BOUND):
        while not await raw.rows(url, LISTENS):
            pass


async def test_where_the_server_has_room_for_no_more_connections_those_that_are_there_do_the_work(
    pg_ready: str,
) -> None:
    """A node may have ten, and gets one: what comes at once is done on that."""
    async with as_nobody(pg_ready, 3) as url:
        db = await Postgres.open(url)
        try:
            await until_it_listens(pg_ready)
            await db.write(directory.add_principal, ALICE)
            made = await asyncio.wait_for(asyncio.gather(*(admit(db, WORK) for _ in range(20))), BOUND)
            assert sorted(a.turn.n for a in made) == list(range(1, 21))
        finally:
            await db.close()


async def test_a_server_without_room_is_told_with_what_to_do(pg_ready: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the start, and when the connections that there are stay busy."""
    monkeypatch.setattr(postgres, "BUSY", 0.3)
    go, entered = asyncio.Event(), asyncio.Event()

    async def take_long(tx: Tx) -> None:
        entered.set()
        await go.wait()

    async with as_nobody(pg_ready, 3) as url:
        db = await Postgres.open(url)
        await until_it_listens(pg_ready)
        taking = asyncio.create_task(db.write(take_long))
        try:
            await asyncio.wait_for(entered.wait(), BOUND)
            for refused in (db.read(directory.newest, ALICE, 1), Postgres.open(url)):
                with pytest.raises(StoreUnavailable, match=r"raise max_connections .* or lower database\.connections"):
                    await asyncio.wait_for(refused, BOUND)
        finally:
            go.set()
            await taking
            await db.close()


@pytest.mark.parametrize(
    ("end", "words"),
    [("pg_cancel_backend", "somebody stopped it.* Try again"), ("pg_terminate_backend", "has ended a connection")],
)
async def test_what_an_administrator_stops_is_told_as_that(pg_ready: str, end: str, words: str) -> None:
    """And not as a matter of rights."""
    db = await Postgres.open(pg_ready)
    sleeping = asyncio.create_task(db.write(lambda tx: tx.script("select pg_sleep(60)")))
    stop = f"select {end}(pid) from pg_stat_activity where query like '%pg_sleep%' and pid <> pg_backend_pid()"
    try:
        async with asyncio.timeout(BOUND):
            while not await raw.rows(pg_ready, stop):
                assert not sleeping.done()
            with pytest.raises(StoreUnavailable, match=words):
                await sleeping
    finally:
        await db.close()


async def test_it_is_logged_when_hints_of_other_nodes_stop_and_when_they_arrive_again(
    pg_server: str, pg_ready: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The connection that listens is ended, and cannot be made again at once."""
    logs.set_up("warning", "json")
    name = pg_ready.split("/")[3].split("?")[0]
    here, there, heard = await Postgres.open(pg_ready), await Postgres.open(pg_ready), asyncio.Event()
    here.on_hint(lambda hint: heard.set())
    said = ""

    async def until_said(words: str) -> None:
        nonlocal said
        async with asyncio.timeout(BOUND):
            while words not in said:
                await asyncio.sleep(0.01)
                said += capsys.readouterr().err

    try:
        await until_it_listens(pg_ready)
        admin = await asyncpg.connect(pg_ready)
        await raw.execute(pg_server, f"alter database {name} allow_connections false")
        await admin.execute(f"select pg_terminate_backend(pid) from ({LISTENS.replace('1', 'pid', 1)}) ears")
        await admin.close()
        await until_said("no hints of other nodes arrive")
        await raw.execute(pg_server, f"alter database {name} allow_connections true")
        await until_said("hints of other nodes arrive again")
        async with asyncio.timeout(BOUND):
            while not heard.is_set():
                there.tell(Hint("events", "something"))
                await asyncio.sleep(0.01)
    finally:
        await here.close()
        await there.close()


# -- what is locked, and who waits


async def test_writers_that_wait_for_one_conversation_hold_up_no_other(
    pg_ready: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else holds it; twenty wait on a node with two connections, and another conversation is written to. When
    it is free again all of the twenty get through."""
    monkeypatch.setattr(postgres, "_SHORT", postgres._SHORT.replace("500ms", "100ms"))
    db = await Postgres.open(pg_ready, connections=2)
    await db.write(directory.add_principal, ALICE)
    kept = await talk(db, WORK)
    crowd = []
    try:
        async with locked(pg_ready, "select 1 from conversations for update") as holder:
            crowd = [asyncio.create_task(admit(db, WORK, f"number {i}")) for i in range(20)]
            async with asyncio.timeout(BOUND):
                while not await holder.fetch(WAITS):
                    pass
                assert (await admit(db, PLAY, "elsewhere")).turn.n == 1
            assert not any(task.done() for task in crowd)
        admitted = await asyncio.wait_for(asyncio.gather(*crowd), BOUND)
        assert {a.turn.conversation_id for a in admitted} == {kept.conversation_id}
        assert sorted(a.turn.n for a in admitted) == list(range(2, 22))
    finally:
        await db.close()


async def test_what_stays_locked_is_told_in_the_end(pg_ready: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is next in line, and who never gets there."""
    monkeypatch.setattr(postgres, "PATIENCE", 0.2)
    db = await open_database(pg_ready)
    await talk(db, WORK)
    try:
        async with locked(pg_ready, "select 1 from conversations for update"):
            crowd = asyncio.gather(*(admit(db, WORK) for _ in range(5)), return_exceptions=True)
            for refused in await asyncio.wait_for(crowd, BOUND):
                assert isinstance(refused, StoreUnavailable)
                assert "keeps locked" in refused.message
        assert (await admit(db, WORK)).turn.n == 2
    finally:
        await db.close()


async def test_a_node_without_a_free_connection_says_so(pg_ready: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what to do; a lease is renewed all the same."""
    monkeypatch.setattr(postgres, "BUSY", 0.2)
    db = await Postgres.open(pg_ready, connections=1)
    entered, go = asyncio.Event(), asyncio.Event()

    async def take_long(tx: Tx) -> None:
        entered.set()
        await go.wait()

    taking = asyncio.create_task(db.write(take_long))
    try:
        await asyncio.wait_for(entered.wait(), BOUND)
        with pytest.raises(StoreUnavailable, match=r"All 1 connections of this node .* raise database\.connections"):
            await asyncio.wait_for(db.read(directory.newest, ALICE, 1), BOUND)
        await asyncio.wait_for(db.urgent(nodes.renew, N1, 9.0), BOUND)
    finally:
        go.set()
        await taking
        await db.close()
