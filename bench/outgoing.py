"""What asking a model's server costs in CPU: our client beside aiohttp, on the same upstream, in turn. Run with
`make bench-outgoing`."""

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from contextlib import closing

import aiohttp
import msgspec
import uvloop
from wire import WORDS, provider

from legato.outgoing import Server

ROUNDS, REQUESTS = 7, 800
HEADERS = {"Content-Type": "application/json", "Accept": "text/event-stream", "Authorization": "Bearer key"}
BODY = msgspec.json.encode({"model": "m", "messages": [{"role": "user", "content": f"{WORDS} say 20"}], "stream": True})


async def compare(port: int) -> None:
    connector, jar = aiohttp.TCPConnector(limit=0), aiohttp.DummyCookieJar()
    url = f"http://127.0.0.1:{port}/v1"
    with closing(Server(url, HEADERS)) as server:
        async with aiohttp.ClientSession(connector=connector, cookie_jar=jar) as session:

            async def ours() -> int:
                async with server.ask("POST", "/chat/completions", BODY) as answer:
                    return sum([len(data) async for data in answer])

            async def theirs() -> int:
                async with session.post(f"{url}/chat/completions", data=BODY, headers=HEADERS) as answer:
                    return sum([len(data) async for data in answer.content.iter_any()])

            assert await ours() == await theirs()
            for clients in (1, 8):
                spent = [(await cost(ours, clients), await cost(theirs, clients)) for _ in range(ROUNDS)]
                mine, general = (statistics.median(each) for each in zip(*spent, strict=True))
                print(f"an answer of 20 words, {clients} at a time: {mine:.0f} µs, aiohttp {general:.0f} µs")


async def cost(ask: Callable[[], Awaitable[int]], clients: int) -> float:
    """Microseconds of CPU for a request."""

    async def client() -> None:
        for _ in range(REQUESTS // clients):
            await ask()

    before = time.process_time()
    await asyncio.gather(*(client() for _ in range(clients)))
    return (time.process_time() - before) / REQUESTS * 1e6


if __name__ == "__main__":
    with provider() as port:
        uvloop.run(compare(port))
