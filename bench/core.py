"""Speed of the core, as ratios to a baseline measured in the same run. `make bench` runs it.

Machines differ and are noisy, so what counts is the ratio: admissions against the disk's own limit and against one
sync each, a context read at the end of a long log against the same at the end of a short one, a whole turn against
the goal in CPU time. Each figure is the best of many short rounds in turn, which is what noise disturbs least.
"""

import asyncio
import gc
import itertools
import os
import platform
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import apsw
import uvloop

from legato import logs
from legato.app import LOCAL, open_app
from legato.config import load
from legato.domain.entries import Compaction, Draft, Message, Text, draft
from legato.domain.handles import Slug
from legato.domain.ids import NodeId, PrincipalId
from legato.domain.turns import Input, Lease, Submission
from legato.store import admission, directory, log, nodes, sqlite, turns
from legato.store.sqlite import Sqlite

ROUNDS = 12
SECONDS = 0.25
SLOWER = 2e-3  # seconds that an emulated disk takes longer to sync
OWNER = PrincipalId("bench")
NODE = NodeId("node_bench")
WORDS = "Nineteen words of ordinary text, about as long as the things that people really say to one another here."


def main() -> None:
    logs.set_up("error", "console")
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)  # as in `legato serve`
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores, SQLite {apsw.sqlite_lib_version()}\n")
    with tempfile.TemporaryDirectory(prefix="legato-bench-") as folder:
        uvloop.run(bench(Path(folder)))


async def bench(folder: Path) -> None:
    await admissions(folder)
    await context_reads(folder)
    await whole_turns(folder)


# -- admissions


async def admissions(folder: Path) -> None:
    floor = max(raw_syncs(folder / "raw") for _ in range(ROUNDS))
    rates: dict[tuple[int, int], float] = {}
    slow: dict[int, float] = {}
    for round_ in range(ROUNDS):
        for clients, group in ((1, 512), (32, 512), (256, 512), (256, 1)):
            rate = await admission_rate(folder / f"admit-{round_}-{clients}-{group}.db", clients, group)
            rates[clients, group] = max(rate, rates.get((clients, group), 0))
        for group in (512, 1):
            rate = await admission_rate(folder / f"slow-{round_}-{group}.db", 256, group, SlowDisk)
            slow[group] = max(rate, slow.get(group, 0))
    print("Durable admissions a second")
    print(f"  the disk: one write and fdatasync each     {floor:8,.0f}")
    print(f"  Legato, 256 clients, one sync each         {rates[256, 1]:8,.0f}   {rates[256, 1] / floor:5.2f} x disk")
    for clients in (1, 32, 256):
        rate = rates[clients, 512]
        print(
            f"  Legato, {clients:3} clients, group commit          {rate:8,.0f}   {rate / floor:5.2f} x disk"
            f"   {rate / rates[256, 1]:5.2f} x one sync each   {rate / rates[1, 512]:5.2f} x one client"
        )
    print(
        f"  The same on a disk made {SLOWER * 1e3:.0f} ms slower (emulated: the writer waits so long after each commit)"
    )
    print(f"  Legato, 256 clients, one sync each         {slow[1]:8,.0f}")
    print(
        f"  Legato, 256 clients, group commit          {slow[512]:8,.0f}   {slow[512] / slow[1]:5.2f} x one sync each"
    )
    print()


def raw_syncs(path: Path) -> float:
    """How often a second the disk takes a small write and a sync."""
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    end, count = time.perf_counter() + SECONDS, 0
    while time.perf_counter() < end:
        os.write(descriptor, b"x" * 512)
        os.fdatasync(descriptor)
        count += 1
    os.close(descriptor)
    return count / SECONDS


class SlowDisk(Sqlite):
    """A disk whose sync takes as long as that of a cloud volume: the ratio depends on it, and the one here is quick."""

    def _commit(self, connection: apsw.Connection, group: list[sqlite.Job]) -> list[sqlite.Outcome]:
        outcomes = super()._commit(connection, group)
        time.sleep(SLOWER)
        return outcomes


async def admission_rate(path: Path, clients: int, group: int, disk: type[Sqlite] = Sqlite) -> float:
    """Admissions a second by so many clients, each waiting for its answer before the next."""
    sqlite.MAX_GROUP = group
    db = await disk.open(path)
    await db.write(directory.add_principal, OWNER)
    for client in range(clients):
        await db.write(admission.admit, submission(client))
    start, count = time.perf_counter(), 0

    async def client(number: int) -> None:
        nonlocal count
        while time.perf_counter() < start + SECONDS:
            await db.write(admission.admit, submission(number))
            count += 1

    await asyncio.gather(*(client(number) for number in range(clients)))
    rate = count / (time.perf_counter() - start)  # what was begun in time is waited for
    await db.close()
    sqlite.MAX_GROUP = 512
    return rate


def submission(number: int, text: str = WORDS, owner: PrincipalId = OWNER) -> Submission:
    return Submission(principal=owner, target=Slug(f"talk-{number}"), input=Input((message("user", text),)))


def message(role: str, text: str) -> Draft:
    return draft(Message(role, (Text(text),)))  # type: ignore[arg-type]


# -- context reads


async def context_reads(folder: Path) -> None:
    """The last 200 entries, at the end of logs of different lengths, compacted every 1,000 entries."""
    db = await Sqlite.open(folder / "reads.db")
    await db.write(directory.add_principal, OWNER)
    await db.write(nodes.start, NODE, 3600.0, alone=True)
    lengths = (100, 10_000, 100_000)
    talks = [(await long_talk(db, number, length)).turn.conversation_id for number, length in enumerate(lengths)]
    best = [float("inf")] * len(lengths)
    for _ in range(ROUNDS):
        for place, talk in enumerate(talks):
            best[place] = min(best[place], await timed(lambda talk=talk: db.read(log.read_context, talk), 20))
    await db.close()
    print("Reading a context of 200 entries")
    for length, seconds in zip(lengths, best, strict=True):
        print(
            f"  after {length:7,} entries of history   {seconds * 1e3:6.2f} ms   {seconds / best[0]:5.2f} x the first"
        )
    print()


async def long_talk(db: Sqlite, number: int, length: int) -> Lease:
    admitted = await db.write(admission.admit, submission(number), NODE)
    lease = admitted.lease
    assert lease is not None
    written = 1
    while written < length + 200:
        batch = [message("user" if i % 2 else "assistant", WORDS) for i in range(min(1000, length + 200 - written))]
        if written + len(batch) > 200 and len(batch) > 1:
            upto = min(written, length)
            batch[-1] = draft(Compaction(upto, "A summary of what was said before."))
        await db.write(turns.append, lease, batch)
        written += len(batch)
    await db.write(turns.append, lease, [draft(Compaction(length, "A summary of what was said before."))])
    return lease


async def timed(action: Callable[[], Awaitable[object]], times: int) -> float:
    start = time.perf_counter()
    for _ in range(times):
        await action()
    return (time.perf_counter() - start) / times


# -- whole turns


async def whole_turns(folder: Path) -> None:
    """A demo turn from submission to its end, with nothing of HTTP."""
    config, _ = load(folder / "home", environ={})
    async with open_app(config) as app:

        async def turn(number: int, n: int) -> None:
            given = submission(number, f"reply only answer {n}", LOCAL)
            submitted = await app.gateway.submit(given)
            ended = await app.gateway.ended(submitted)
            assert ended.status == "done"

        talks = itertools.count()

        async def client(count: int) -> None:
            """Talks of ten turns each, so that the length of a context does not grow with the length of the bench."""
            for _ in range(count // 10):
                number = next(talks)
                for n in range(10):
                    await turn(number, n)

        await asyncio.gather(*(client(10) for _ in range(32)))
        results: dict[int, tuple[float, float]] = {}
        for _ in range(3 * ROUNDS):  # short ones: somewhere among them the machine is quiet
            for clients in (1, 32):
                count = 100 if clients == 1 else 10
                wall, cpu = time.perf_counter(), time.process_time()
                await asyncio.gather(*(client(count) for _ in range(clients)))
                total = clients * count
                found = (time.process_time() - cpu) / total, total / (time.perf_counter() - wall)
                results[clients] = min(found, results.get(clients, found))
    print("A whole demo turn below HTTP (goal: at most 1.5 ms of CPU)")
    for clients, (cpu, rate) in results.items():
        share = cpu / 1.5e-3
        print(
            f"  {clients:3} clients   {cpu * 1e3:5.2f} ms CPU a turn   {share:5.2f} x the goal   {rate:5,.0f} a second"
        )


if __name__ == "__main__":
    main()
