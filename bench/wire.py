"""Speed on the wire: a real `legato serve` against the bare provider, measured in the same run. `make bench` runs it.

The provider (see `upstream`) takes no time, so what is measured is what Legato adds: latency as the difference to the
provider asked directly, CPU time as the operating system counts it for the gateway's process. The machine is shared
by gateway, provider and client, so rates are given for each core that the gateway had.

Virtual machines run at half their pace whenever a neighbour is busy, many times a second. So what is measured is
measured in many short rounds, in turn with its baseline, and the best of them is held against the goal, as in `core`:
that is the figure of the program, all others are of the program and its neighbours. What half of the rounds stayed
below is printed beside it.
"""

import asyncio
import itertools
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import time
import timeit
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from typing import Any, Self

import uvloop
from client import Answer, Connection

BOUND = 30.0
WORDS = "Nineteen words of ordinary text, about as long as the things that people really say to one another here."
ROUTES = ("/v1/chat/completions", "/v1/responses")
TALKS = itertools.count()
STREAMS, TOKENS = 500, 60  # of slow streams side by side
SLOWLY = f"say {TOKENS} every 100"


def main() -> None:
    loop = min(timeit.repeat("for n in range(1_000_000): total += n", "total = 0", number=1, repeat=7)) * 1e3
    print(
        f"Python {platform.python_version()}, {os.cpu_count()} cores, a loop of a million additions takes {loop:.0f} ms"
    )
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="legato-bench-") as folder, provider() as port:
        with Gateway.serve(Path(folder) / "home", port) as gateway:
            uvloop.run(bench(gateway, port))
    print(f"\n{time.perf_counter() - started:.0f} seconds in all")


async def bench(gateway: "Gateway", upstream: int) -> None:
    await idle(gateway)
    await turns(gateway, upstream)
    await streams(gateway, upstream)
    await length(gateway, upstream)


def quietest(rounds: list[float]) -> tuple[float, str]:
    """The best of some rounds, and what half of them stayed below, in words."""
    return min(rounds), f"half of {len(rounds)} rounds: {median(rounds):.2f}"


def heading(text: str) -> None:
    print(f"\n{text}")


def row(what: str, figure: float, unit: str, goal: float | None = None, *, least: bool = False, note: str = "") -> None:
    """One line of the table; `least` when the goal is to be reached, not to be kept below."""
    aim = verdict = ""
    if goal is not None:
        aim = f"{'>=' if least else '<='} {goal:g}"
        verdict = "ok" if (figure >= goal if least else figure <= goal) else "MISSED"
    print(f"  {what:54} {figure:9,.2f} {unit:8} {aim:8} {verdict:7} {note}".rstrip(), flush=True)


# -- the processes


@contextmanager
def provider() -> Iterator[int]:
    """The bare upstream; yields its port."""
    command = [sys.executable, str(Path(__file__).with_name("upstream.py"))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline())
        process.communicate(timeout=BOUND)


class Gateway:
    """A `legato serve` process, seen from outside."""

    def __init__(self, process: "subprocess.Popen[bytes]", port: int, key: str, ready: float) -> None:
        self._process, self.port, self.key, self.ready = process, port, key, ready

    @classmethod
    @contextmanager
    def serve(cls, home: Path, upstream: int) -> Iterator[Self]:
        home.mkdir(mode=0o700, exist_ok=True)
        (home / "legato.toml").write_text(
            f'[models.fake]\nkind = "openai-chat"\nbase_url = "http://127.0.0.1:{upstream}/v1"\n'
            f'[models.wide]\nkind = "openai-chat"\nbase_url = "http://127.0.0.1:{upstream}/v1"\n'
            "context_window = 2000000\n[worker]\nconcurrency = 1000\n"
        )
        environ = {name: value for name, value in os.environ.items() if not name.startswith("LEGATO_")}
        command = [str(Path(sys.executable).with_name("legato")), "serve", "--home", str(home), "--port", "0"]
        started = time.perf_counter()
        with (home / "log").open("wb") as log:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, env=environ)
        try:
            assert process.stdout is not None
            line = process.stdout.readline().decode()
            assert line.startswith("Legato listens"), (home / "log").read_text()
            port = int(line.rpartition(":")[2])
            uvloop.run(_is_ready(port))
            yield cls(process, port, (home / "key").read_text().strip(), time.perf_counter() - started)
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=BOUND)

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        """As `kill -9` does: without a word."""
        self._process.kill()
        self._process.wait(BOUND)

    async def connect(self) -> Connection:
        return await Connection.open(self.port, self.key)

    @property
    def cpu(self) -> float:
        """Seconds of CPU so far: the clock of that process, which Linux numbers by its id."""
        return time.clock_gettime((~self.pid << 3) | 2)

    async def settle(self) -> None:
        """Wait until it has done what it puts off (filling the search index, which whoever searches brings about): that
        is part of what a turn costs."""
        connection = await self.connect()
        await connection.get("/v1/search?q=settle")
        connection.close()
        await self._quiet()

    async def _quiet(self) -> None:
        deadline = time.perf_counter() + BOUND
        while time.perf_counter() < deadline:
            before = self.cpu
            await asyncio.sleep(0.12)
            if self.cpu - before < 0.002:
                return

    @property
    def memory(self) -> int:
        """Resident bytes."""
        pages = Path(f"/proc/{self.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    @property
    def written(self) -> int:
        """Bytes it had written to files so far."""
        lines = Path(f"/proc/{self.pid}/io").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("write_bytes"))


async def _is_ready(port: int) -> None:
    connection = await Connection.open(port)
    await asyncio.wait_for(connection.get("/readyz"), BOUND)
    connection.close()


# -- one turn, asked for in either way


async def ask(
    connection: Connection, route: str, talk: int, text: str, *, stream: bool = False, model: str = "fake"
) -> Answer:
    body: dict[str, Any] = {"model": model, "stream": stream}
    if route == "/v1/responses":
        return await connection.post(route, body | {"input": text, "conversation": f"talk-{talk}"})
    body["messages"] = [{"role": "user", "content": text}]
    return await connection.post(route, body, X_Hermes_Session_Id=f"talk-{talk}")


async def ask_bare(connection: Connection, text: str, past: int = 0, *, stream: bool = False) -> Answer:
    """The provider itself, with the prompt that a gateway would send after so many turns."""
    said = [{"role": "user", "content": f"{WORDS} say 20"}, {"role": "assistant", "content": "tok " * 20}] * past
    body = {"model": "fake", "messages": [*said, {"role": "user", "content": text}], "stream": stream}
    return await connection.post("/v1/chat/completions", body)


async def talk(connection: Connection, route: str, text: str, *, times: int = 10, stream: bool = False) -> list[Answer]:
    """A fresh conversation of so many turns."""
    number = next(TALKS)
    return [await ask(connection, route, number, text, stream=stream) for _ in range(times)]


async def timed(action: Callable[[], Awaitable[object]]) -> float:
    start = time.perf_counter()
    await action()
    return (time.perf_counter() - start) * 1e3


# -- nothing to do


async def idle(gateway: Gateway, count: int = 500) -> None:
    heading("Idle")
    row("ready after", gateway.ready, "s", 1)
    row("resident memory", gateway.memory / 1e6, "MB", 90)
    connection = await gateway.connect()
    answers = [await connection.post("/v1/conversations", {}) for _ in range(count)]
    ids = [answer.data.partition(b'"id":"')[2].partition(b'"')[0].decode() for answer in answers]
    before = gateway.memory
    followers = [await gateway.connect() for _ in ids]
    for follower, name in zip(followers, ids, strict=True):
        await asyncio.wait_for(follower.begin(f"/v1/conversations/{name}/events"), BOUND)
    cpu = gateway.cpu
    await asyncio.sleep(3)
    row(f"memory of each of {count} idle streams", (gateway.memory - before) / count / 1e3, "kB", 40)
    row(f"CPU with {count} idle streams", (gateway.cpu - cpu) / 3 * 100, "% a core")
    for follower in [*followers, connection]:
        follower.close()


# -- turns that are not streamed


async def turns(gateway: Gateway, upstream: int) -> None:
    text = f"{WORDS} say 20"
    bare, connection = await Connection.open(upstream), await gateway.connect()
    for route in ROUTES:
        await talk(connection, route, text, times=20)
    added: dict[str, list[float]] = {route: [] for route in ROUTES}
    cpu: dict[str, list[float]] = {route: [] for route in ROUTES}
    for _ in range(30):
        base = median([(await ask_bare(bare, text, past)).took * 1e3 for past in range(10)])
        for route in ROUTES:
            start = gateway.cpu
            added[route].append(median([answer.took * 1e3 for answer in await talk(connection, route, text)]) - base)
            await gateway.settle()
            cpu[route].append((gateway.cpu - start) * 1e3 / 10)
    for route in ROUTES:
        heading(f"POST {route}, an answer of 20 tokens, conversations of ten turns")
        best, note = quietest(added[route])
        row("added latency, p50, one client", best, "ms", 3, note=f"{note}, bare {base:.2f}")
        best, note = quietest(cpu[route])
        row("CPU a turn, one client", best, "ms", 2.5, note=note)
        await crowd(gateway, route, text)


async def crowd(gateway: Gateway, route: str, text: str, clients: int = 32) -> None:
    """All clients at once, each with a talk of ten turns a round."""
    connections = [await gateway.connect() for _ in range(clients)]
    count = clients * 10
    costs: list[float] = []
    rates: list[float] = []
    for _ in range(6):
        wall, cpu = time.perf_counter(), gateway.cpu
        await asyncio.gather(*(talk(connection, route, text) for connection in connections))
        rates.append(count / (time.perf_counter() - wall))
        await gateway.settle()
        costs.append((gateway.cpu - cpu) * 1e3 / count)
    best, note = quietest(costs)
    row(f"CPU a turn, {clients} clients", best, "ms", 2.5, note=note)
    note = f"half of {len(costs)} rounds: {1e3 / median(costs):.2f}; {median(rates):,.0f} a second in all"
    row(f"turns a second and core, {clients} clients", 1e3 / best, "", 300, least=True, note=note)
    for connection in connections:
        connection.close()


# -- streams


async def streams(gateway: Gateway, upstream: int) -> None:
    text = f"{WORDS} say 20"
    bare, connection = await Connection.open(upstream), await gateway.connect()
    added: dict[str, list[float]] = {route: [] for route in ROUTES}
    for _ in range(30):
        base = median([(await ask_bare(bare, text, past, stream=True)).first * 1e3 for past in range(10)])
        for route in ROUTES:
            told = await talk(connection, route, text, stream=True)
            added[route].append(median([answer.first * 1e3 for answer in told]) - base)
    for route in ROUTES:
        heading(f"POST {route}, streamed")
        best, note = quietest(added[route])
        row("time to first token, added, p50, one client", best, "ms", 3, note=f"{note}, bare {base:.2f}")
        best, note = quietest([await chunk_cost(gateway, route, "say 500", 4) for _ in range(8)])
        row("CPU a chunk, 500 at once, with its durable event", best, "µs", 60, note=note)
        best, note = quietest([await chunk_cost(gateway, route, "say 500 every 2", 8) for _ in range(8)])
        row("CPU a chunk, 8 streams of 500 a second each", best, "µs", 60, note=note)
    await paced(gateway, upstream)


async def chunk_cost(gateway: Gateway, route: str, text: str, clients: int) -> float:
    """Microseconds of CPU for each chunk, with what the turn itself costs."""
    connections = [await gateway.connect() for _ in range(clients)]
    start = gateway.cpu
    told = await asyncio.gather(*(talk(c, route, text, times=1, stream=True) for c in connections))
    await gateway.settle()
    cost = gateway.cpu - start
    for connection in connections:
        connection.close()
    tokens = sum(answer.tokens for answers in told for answer in answers)
    assert tokens == 500 * clients, f"{tokens} tokens came"
    return cost / tokens * 1e6


async def paced(gateway: Gateway, upstream: int) -> None:
    """Many slow streams side by side: ten tokens a second each."""
    heading(f"{STREAMS} streams at once, ten tokens a second each, half of them on either route")

    async def bare(_: int) -> Answer:
        connection = await Connection.open(upstream)
        answer = await ask_bare(connection, SLOWLY, stream=True)
        connection.close()
        return answer

    base = await late(bare)
    start = gateway.cpu
    found = await late(partial(slow_stream, gateway))
    await gateway.settle()
    cost = (gateway.cpu - start) / len(found)
    row("a chunk is late by, p99", p99(found), "ms", 250, note=f"bare {p99(base):.2f}, worst {max(found):.0f}")
    row("CPU a chunk, with the turns", cost * 1e6, "µs")


async def slow_stream(gateway: Gateway, n: int) -> Answer:
    connection = await gateway.connect()
    answer = await ask(connection, ROUTES[n % 2], next(TALKS), SLOWLY, stream=True)
    connection.close()
    return answer


async def late(stream: Callable[[int], Awaitable[Answer]]) -> list[float]:
    """By how many milliseconds each token of many streams is late, which begin one after the other."""

    async def one(n: int) -> Answer:
        await asyncio.sleep(n * 0.006)
        return await stream(n)

    answers = await asyncio.gather(*(one(n) for n in range(STREAMS)))
    found = [seconds * 1e3 for answer in answers for seconds in answer.late]
    assert len(found) == STREAMS * TOKENS, f"{len(found)} tokens came"
    return found


def p99(figures: list[float]) -> float:
    return quantiles(figures, n=100)[98]


# -- a long conversation


async def length(gateway: Gateway, upstream: int) -> None:
    """Turn 1,000 of a conversation: as it is by then, with everything in the prompt, and after a compaction."""
    heading("One long conversation: turn 1,000 against turn 10")
    text = f"{WORDS} say 20"
    bare, connection = await Connection.open(upstream), await gateway.connect()

    async def base(past: int) -> float:
        return median([await timed(lambda: ask_bare(bare, text, past)) for _ in range(20)])

    async def beside(number: int, model: str, rounds: int = 24) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Milliseconds, CPU and bytes of a turn of a long talk, and of turn 10 of others, in turn: the quietest of some
        rounds, and the bytes of half of them (now and then a file is brought up to date, for many turns at once)."""
        long, short = [], []
        for _ in range(rounds):
            short.append(await sample(gateway, connection, next(TALKS), text, skip=5))
            long.append(await sample(gateway, connection, number, text, model, skip=5))
        (took, cpu, written), (took_10, cpu_10, written_10) = zip(*long, strict=True), zip(*short, strict=True)
        return (min(took), min(cpu), median(written)), (min(took_10), min(cpu_10), median(written_10))

    for model, what in (("fake", "folded in the background"), ("wide", "whole history in the prompt")):
        number = next(TALKS)
        await sample(gateway, connection, number, text, model, count=820)
        long, short = await beside(number, model)
        shown = await verbatim(connection, await ask(connection, ROUTES[1], number, text, model=model))
        added, start = long[0] - await base(shown // 2), short[0] - await base(10)
        note = f"{added:.2f} against {start:.2f} ms, {shown:,} items"
        row(f"latency over bare, {what}", added / start, "x", 1.2, note=note)
        row(f"CPU, {what}", long[1] / short[1], "x", note=f"{long[1]:.2f} against {short[1]:.2f} ms")
        row(f"bytes written, {what}", long[2] / short[2], "x", 1.2, note=f"{long[2]:,.0f} against {short[2]:,.0f}")
    await connection.post(f"/v1/conversations/talk-{number}/compact", {"summary": WORDS, "upto": shown - 20})
    long, short = await beside(number, "wide", 12)
    row("latency, compacted", long[0] / short[0], "x", 1.2, note=f"{long[0]:.2f} against {short[0]:.2f} ms")
    row("CPU, compacted", long[1] / short[1], "x", 1.2, note=f"{long[1]:.2f} against {short[1]:.2f} ms")


async def verbatim(connection: Connection, answer: Answer) -> int:
    """How many items the model was shown word for word."""
    found = re.search(rb'"id":"(resp_\w+)"', answer.data)
    assert found is not None
    context = await connection.get(f"/v1/responses/{found[1].decode()}/context")
    return context.data.count(b'"position":') - 1


async def sample(
    gateway: Gateway,
    connection: Connection,
    number: int,
    text: str,
    model: str = "fake",
    *,
    skip: int = 0,
    count: int = 10,
) -> tuple[float, float, float]:
    """Milliseconds, milliseconds of CPU and bytes written of a turn, after the first `skip` turns of a talk."""
    for _ in range(skip):
        await ask(connection, ROUTES[1], number, text, model=model)
    await gateway.settle()
    cpu, written = gateway.cpu, gateway.written
    took = [await timed(lambda: ask(connection, ROUTES[1], number, text, model=model)) for _ in range(count)]
    await gateway.settle()
    return median(took), (gateway.cpu - cpu) / count * 1e3, (gateway.written - written) / count


if __name__ == "__main__":
    main()
