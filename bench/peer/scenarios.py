"""Does a conversation keep its thread? The same requests to both, and the same look at what became of them.

The look is what the model was sent in the turn after (`heard`): a mark in each thing that was said, and the words of
the answers. So nothing depends on how a server stores or names things. What is asked for is in each docstring; what
was seen is told as it was found, and nothing here knows which server it asks.
"""

import asyncio
import re
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import uvloop
from client import Answer, Connection
from wire import BOUND

from peer.figures import Outcome
from peer.heard import Heard, heard
from peer.load import CHAT, NAMED, Plan
from peer.servers import Serve, Server

WORDS, GAP = 40, 50  # an answer of forty words, 50 ms apart
SLOW = f"say {WORDS} every {GAP}"
WAYS = {CHAT: "by session header", NAMED: "by name"}


class Seen(NamedTuple):
    held: bool
    text: str


def all_scenarios(serve: Serve, plan: Plan) -> list[Outcome]:
    scenarios: list[tuple[str, Callable[[Serve, Path], Seen]]] = [
        ("ten turns by name: each thing said is sent to the model once", once),
        (f"a name is used again after {plan.others} other responses", partial(evicted, others=plan.others)),
        (f"two first turns of one new name at once ({plan.races} times)", partial(race, times=plan.races)),
        ("one Idempotency-Key, sent twice", partial(idempotent, restart=False)),
        ("one Idempotency-Key, sent again after a restart", partial(idempotent, restart=True)),
    ]
    for route, way in WAYS.items():
        scenarios.append((f"the client goes in mid stream ({way})", partial(gone, route=route)))
        scenarios.append((f"kill -9 in mid stream, and a new start ({way})", partial(killed, route=route)))
    found = []
    for what, scenario in scenarios:
        with tempfile.TemporaryDirectory(prefix="bench-peer-") as folder:
            try:
                seen = scenario(serve, Path(folder) / "home")
            except (RuntimeError, OSError) as error:  # it refused, or was not there: that is a result, too
                seen = Seen(False, " ".join(str(error).split())[:200] or type(error).__name__)
        found.append(Outcome(what, seen.held, seen.text))
        print(f"    {'held' if seen.held else 'NOT HELD':9} {what}: {seen.text}", flush=True)
    return found


# -- what is said, and how


def body(route: str, name: str, text: str, *, stream: bool = False) -> dict[str, object]:
    if route == NAMED:
        return {"model": "fake", "stream": stream, "conversation": name, "input": text}
    return {"model": "fake", "stream": stream, "messages": [{"role": "user", "content": text}]}


async def say(connection: Connection, route: str, name: str, text: str, **headers: str) -> Answer:
    if route == CHAT:
        headers["X_Hermes_Session_Id"] = name
    return await asyncio.wait_for(connection.post(route, body(route, name, text), **headers), BOUND * 2)


async def what_is_known(server: Server, route: str, name: str) -> Heard:
    connection = await server.connect()
    known = heard(await say(connection, route, name, "say what"))
    connection.close()
    return known


async def stream(server: Server, route: str, name: str) -> Connection:
    """Begin a slow answer, and come back when a part of it is there."""
    connection = await server.connect()
    headers = {"X_Hermes_Session_Id": name} if route == CHAT else {}
    request = body(route, name, f"mark-asked {SLOW}", stream=True)
    answer = await connection.begin(route, request, **headers)
    async with asyncio.timeout(BOUND):
        while not answer.tokens:  # noqa: ASYNC110 - nothing tells of a token, only of the end
            await asyncio.sleep(0.01)
    await asyncio.sleep(WORDS * GAP / 1e3 / 4)
    return connection


# -- the scenarios


def once(serve: Serve, home: Path) -> Seen:
    """After ten turns the next prompt holds each of their ten marks once."""

    async def run(server: Server) -> Seen:
        connection = await server.connect()
        for number in range(10):
            await say(connection, NAMED, "garden", f"mark-{number} say 20")
        known = await what_is_known(server, NAMED, "garden")
        counts = [known.marks[f"mark-{number}"] for number in range(10)]
        often = "once" if set(counts) == {1} else f"{min(counts):,} to {max(counts):,} times"
        text = f"each mark was there {often}; of 200 words of answers there were {known.said:,}"
        return Seen(counts == [1] * 10 and known.said == 200, text)

    with serve(home) as server:
        return uvloop.run(run(server))


def evicted(serve: Serve, home: Path, others: int) -> Seen:
    """The name leads to what was said under it before."""

    async def run(server: Server) -> Seen:
        connection = await server.connect()
        await say(connection, NAMED, "garden", "mark-first say 20")
        for number in range(others):
            await say(connection, NAMED, f"other-{number}", "say 20")
        known = await what_is_known(server, NAMED, "garden")
        return Seen("mark-first" in known.marks, str(known))

    with serve(home) as server:
        return uvloop.run(run(server))


def race(serve: Serve, home: Path, times: int) -> Seen:
    """Both turns are in the one conversation of that name."""

    async def run(server: Server) -> Seen:
        left, right = await server.connect(), await server.connect()
        kept = []
        for number in range(times):
            name = f"garden-{number}"
            turns = say(left, NAMED, name, "mark-left say 20"), say(right, NAMED, name, "mark-right say 20")
            await asyncio.gather(*turns)
            kept.append(len((await what_is_known(server, NAMED, name)).marks))
        return Seen(kept == [2] * times, f"of the two turns the next prompt held {_each(kept)}")

    with serve(home) as server:
        return uvloop.run(run(server))


def idempotent(serve: Serve, home: Path, *, restart: bool) -> Seen:
    """The second request changes nothing: what was said is there once."""

    async def ask(server: Server) -> None:
        connection = await server.connect()
        await say(connection, CHAT, "garden", "mark-once say 20", Idempotency_Key="one-key")
        connection.close()

    async def look(server: Server, *, again: bool) -> Seen:
        if again:
            await ask(server)
        await ask(server)
        known = await what_is_known(server, CHAT, "garden")
        return Seen(known.marks["mark-once"] == 1, str(known))

    with serve(home) as server:
        if not restart:
            return uvloop.run(look(server, again=True))
        uvloop.run(ask(server))
    with serve(home) as server:
        return uvloop.run(look(server, again=False))


def gone(serve: Serve, home: Path, route: str) -> Seen:
    """The turn ends without its client: question and whole answer are in the conversation."""

    async def run(server: Server) -> Seen:
        await warm(server)
        connection = await stream(server, route, "garden")
        connection.close()
        await asyncio.sleep(WORDS * GAP / 1e3 + 2)
        return whole(await what_is_known(server, route, "garden"))

    with serve(home) as server:
        return uvloop.run(run(server))


def killed(serve: Serve, home: Path, route: str) -> Seen:
    """The next start ends the turn: question and whole answer are in the conversation."""

    async def begin(server: Server) -> None:
        await warm(server)
        await stream(server, route, "garden")
        server.kill()

    async def look(server: Server) -> Seen:
        return whole(await what_is_known(server, route, "garden"))

    with serve(home) as server:
        uvloop.run(begin(server))
    with serve(home) as server:
        return uvloop.run(look(server))


async def warm(server: Server) -> None:
    connection = await server.connect()
    await say(connection, CHAT, "elsewhere", "say 20")
    connection.close()


def whole(known: Heard) -> Seen:
    held = known.marks["mark-asked"] > 0 and known.said >= WORDS
    asked = "the question" if known.marks["mark-asked"] else "no question"
    return Seen(held, f"the next prompt held {asked} and {known.said} of {WORDS} words of the answer")


def _each(counts: list[int]) -> str:
    return re.sub(r", ([^,]*)$", r" and \1", ", ".join(map(str, counts)))
