"""Speed: the same turns for both, in rounds that alternate between them, so that the machine's moods meet both alike.

A fast server gets more turns a round than a slow one, so that a round of either lasts long enough to be told from
noise. What is compared are turns: latency of each, their rate, and what a turn costs in CPU, bytes and memory.
"""

import asyncio
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import uvloop
from client import Connection
from wire import ROUTES, TALKS, WORDS, ask, talk

from peer.figures import Block, Crowd, Talk
from peer.heard import heard
from peer.servers import LEGATO, Serve, Server, disk

CHAT, NAMED = ROUTES
TEXT = f"{WORDS} say 20"
SAID = 20
BLOCK = 10  # turns of a long talk before it is the other's turn


@dataclass(frozen=True)
class Plan:
    """How much of everything."""

    rounds: int
    crowd: dict[int, int]  # turns of each client's conversations, by the number of clients
    faster: int  # so many conversations of a client of Legato, against one
    tokens: int  # streamed turns a round
    long: dict[str, int]  # turns of the long talks, by route
    others: int  # responses between two turns of a conversation
    races: int


FULL = Plan(3, {1: 20, 8: 5, 32: 5}, faster=10, tokens=20, long={CHAT: 500, NAMED: 100}, others=150, races=5)
QUICK = Plan(1, {1: 3, 8: 1, 32: 1}, faster=10, tokens=5, long={CHAT: 20, NAMED: 20}, others=8, races=1)


@contextmanager
def pair(sides: dict[str, Serve]) -> Iterator[dict[str, tuple[Server, Path]]]:
    """Both at once, on fresh homes."""
    with tempfile.TemporaryDirectory(prefix="bench-peer-") as folder, ExitStack() as stack:
        homes = {name: Path(folder) / str(number) for number, name in enumerate(sides)}
        yield {name: (stack.enter_context(serve(homes[name])), homes[name]) for name, serve in sides.items()}


# -- starts


def starts(sides: dict[str, Serve], rounds: int) -> dict[str, list[tuple[float, float]]]:
    """Seconds until each is ready and until its first answer; one start before, that fills caches, is not counted."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    for _ in range(rounds + 1):
        for name, serve in sides.items():
            with tempfile.TemporaryDirectory(prefix="bench-peer-") as folder:
                with serve(Path(folder) / "home") as server:
                    found[name].append((server.ready, server.ready + uvloop.run(_first(server))))
    return {name: pairs[1:] for name, pairs in found.items()}


async def _first(server: Server) -> float:
    connection = await server.connect()
    answer = await ask(connection, CHAT, next(TALKS), TEXT)
    connection.close()
    return answer.took


# -- many short conversations


async def rates(servers: dict[str, Server], plan: Plan) -> dict[str, dict[int, list[Crowd]]]:
    found: dict[str, dict[int, list[Crowd]]] = {name: {n: [] for n in plan.crowd} for name in servers}
    for server in servers.values():
        await _crowd(server, 4, 2)
    for _ in range(plan.rounds):
        for clients, turns in plan.crowd.items():
            for name, server in servers.items():
                times = plan.faster if name == LEGATO else 1
                found[name][clients].append(await _crowd(server, clients, turns, times))
    return found


async def _crowd(server: Server, clients: int, turns: int, times: int = 1) -> Crowd:
    """So many clients at once; each has so many conversations, one after the other, of so many turns."""
    await server.settle()
    connections = [await server.connect() for _ in range(clients)]
    took: list[float] = []

    async def client(connection: Connection) -> None:
        for _ in range(times):
            took.extend(answer.took * 1e3 for answer in await talk(connection, CHAT, TEXT, times=turns))

    wall, cpu = time.perf_counter(), server.cpu
    await asyncio.gather(*(client(connection) for connection in connections))
    wall = time.perf_counter() - wall
    await server.settle()
    for connection in connections:
        connection.close()
    return Crowd(rate=len(took) / wall, cpu=(server.cpu - cpu) / len(took) * 1e3, took=took)


async def first_tokens(servers: dict[str, Server], plan: Plan) -> dict[str, dict[str, list[float]]]:
    """Milliseconds to the first token of a stream, in conversations of five turns."""
    found: dict[str, dict[str, list[float]]] = {name: {route: [] for route in ROUTES} for name in servers}
    for _ in range(plan.rounds * plan.tokens // 5):
        for route in ROUTES:
            for name, server in servers.items():
                connection = await server.connect()
                answers = await talk(connection, route, TEXT, times=5, stream=True)
                connection.close()
                found[name][route] += [answer.first * 1e3 for answer in answers]
    return found


# -- one long conversation


async def long_talk(servers: dict[str, tuple[Server, Path]], route: str, turns: int) -> dict[str, Talk]:
    """The same conversation with both, a block of turns here, a block there."""
    talks = {name: _Long(server, home, route) for name, (server, home) in servers.items()}
    for long in talks.values():
        await long.begin()
    for _ in range(turns // BLOCK):
        for long in talks.values():
            await long.go_on()
    return {name: await long.end() for name, long in talks.items()}


class _Long:
    def __init__(self, server: Server, home: Path, route: str) -> None:
        self._server, self._home, self._route = server, home, route
        self._took: list[float] = []
        self._blocks: list[Block] = []
        self._number = next(TALKS)

    async def begin(self) -> None:
        """Another talk first: what the first turns of a process load and make does not count."""
        connection = await self._server.connect()
        await talk(connection, self._route, TEXT, times=3)
        connection.close()
        await self._server.settle()
        self._memory = self._server.memory
        self._disk, _ = disk(self._home)

    async def go_on(self) -> None:
        server = self._server
        connection = await server.connect()
        cpu, written, handed = server.cpu, server.written, server.handed
        for _ in range(BLOCK):
            text = f"{len(self._took) + 1}: {TEXT}"
            self._took.append((await ask(connection, self._route, self._number, text)).took * 1e3)
        connection.close()
        await server.settle()
        stays, wal = disk(self._home)
        block = Block(
            turn=len(self._took),
            written=(server.written - written) / BLOCK,
            handed=(server.handed - handed) / BLOCK,
            disk=stays - self._disk,
            wal=wal,
            cpu=(server.cpu - cpu) / BLOCK * 1e3,
        )
        self._blocks.append(block)

    async def end(self) -> Talk:
        memory = self._server.memory
        connection = await self._server.connect()
        last = heard(await ask(connection, self._route, self._number, "say what"))
        connection.close()
        said = len(self._took) * SAID
        return Talk(self._took, self._blocks, (self._memory, memory), sent=last.said, said=said)
