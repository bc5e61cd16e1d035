"""This version beside an earlier one, in turn: `make bench-before COMMIT=…`.

A machine's speed changes from minute to minute, by more than most changes bring. Two versions that take turns meet the
same machine, so their ratio holds where neither of their figures does.
"""

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from statistics import median

import uvloop
from client import Connection
from wire import ROUTES, WORDS, Gateway, chunk_cost, late, p99, provider, slow_stream, talk

ROOT = Path(__file__).parent.parent
ROUNDS = 6
TURNS = 480
Figures = dict[str, list[float]]


def main(commit: str) -> None:
    with tempfile.TemporaryDirectory(prefix="legato-before-") as folder, provider() as upstream:
        earlier = Path(folder) / "earlier"
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", str(earlier), commit], cwd=ROOT, check=True)
        try:
            found = [(earlier, Figures()), (ROOT, Figures())]
            for _ in range(ROUNDS):
                for tree, figures in found:
                    measured = measure(tree, Path(tempfile.mkdtemp(dir=folder)), upstream)
                    for what, figure in measured.items():
                        figures.setdefault(what, []).append(figure)
                found.reverse()
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(earlier)], cwd=ROOT, check=True)
    before, now = (dict(found)[tree] for tree in (earlier, ROOT))
    print(f"{'':48} {commit:>12} {'now':>12} {'ratio':>7}   (medians of {ROUNDS} rounds)")
    for what in now:
        then, today = median(before[what]), median(now[what])
        print(f"{what:48} {then:12,.2f} {today:12,.2f} {today / then:7.2f}")


def measure(tree: Path, folder: Path, upstream: int) -> dict[str, float]:
    """The figures of one round of one version."""
    os.environ["PYTHONPATH"] = str(tree / "src")
    with Gateway.serve(folder / "home", upstream) as gateway:
        return uvloop.run(figures_of(gateway))


async def figures_of(gateway: Gateway) -> dict[str, float]:
    found: dict[str, float] = {}
    for clients in (1, 8, 32):
        connections = [await gateway.connect() for _ in range(clients)]
        await asyncio.gather(*(talk(connection, ROUTES[0], WORDS) for connection in connections))
        cpu, wall = gateway.cpu, time.perf_counter()
        took = await asyncio.gather(*(_talks(connection, TURNS // clients // 10) for connection in connections))
        wall = time.perf_counter() - wall
        await gateway.settle()
        named = "one client" if clients == 1 else f"{clients} clients"
        turns = sum(map(len, took))
        found[f"turns a second, {named}"] = turns / wall
        found[f"CPU a turn, {named} (ms)"] = (gateway.cpu - cpu) / turns * 1e3
        found[f"latency p50, {named} (ms)"] = median(second for each in took for second in each) * 1e3
        for connection in connections:
            connection.close()
    found["CPU a chunk, 8 streams of 500 a second (µs)"] = await chunk_cost(gateway, ROUTES[0], "say 500 every 2", 8)
    slow = await late(partial(slow_stream, gateway))
    found["500 slow streams: a chunk is late by, p99 (ms)"] = p99(slow)
    return found


async def _talks(connection: Connection, count: int) -> list[float]:
    text = f"{WORDS} say 20"
    return [answer.took for _ in range(max(1, count)) for answer in await talk(connection, ROUTES[0], text)]


if __name__ == "__main__":
    main(sys.argv[1])
