"""How a stream is written: whole events, together when they are there together, and never faster than they are read."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from legato.api import sse
from legato.api.sse import AT_ONCE, COMMENT, EventStream

BOUND = 10.0


class Client:
    """The other end. `writes` are the bodies as they were sent; it can stop reading, and leave."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.complete = False
        self.reads = asyncio.Event()
        self.reads.set()
        self.wrote = asyncio.Event()
        self.left = asyncio.Event()

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.body":
            if message["body"]:
                self.writes.append(message["body"])
            self.complete = not message["more_body"]
            self.wrote.set()
            await self.reads.wait()

    async def receive(self) -> dict[str, str]:
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def next_write(self) -> bytes:
        async with asyncio.timeout(BOUND):
            await self.wrote.wait()
        self.wrote.clear()
        return self.writes[-1]


@asynccontextmanager
async def streaming(events: AsyncGenerator[bytes, None]) -> AsyncIterator[tuple[Client, "asyncio.Task[None]"]]:
    """A client of a stream, and the task that tells it."""
    client = Client()
    telling = asyncio.create_task(EventStream(events)({"type": "http"}, client.receive, client.send))
    yield client, telling
    telling.cancel()
    await asyncio.wait({telling}, timeout=BOUND)
    assert telling.done()


async def test_events_that_are_there_together_go_out_in_one_write() -> None:
    """What comes after a pause goes out by itself."""
    pause = asyncio.Event()

    async def events() -> AsyncGenerator[bytes, None]:
        yield b"one\n\n"
        yield b"two\n\n"
        await pause.wait()
        yield b"three\n\n"

    async with streaming(events()) as (client, telling):
        assert await client.next_write() == b"one\n\ntwo\n\n"
        pause.set()
        await asyncio.wait({telling}, timeout=BOUND)
        assert client.writes == [b"one\n\ntwo\n\n", b"three\n\n"]
        assert client.complete


async def test_a_client_that_does_not_read_is_not_told_without_end() -> None:
    """What it has not read waits in its turn, not in memory."""
    told, event = 0, b"event\n\n" * 100
    many = 10 * AT_ONCE // len(event)

    async def events() -> AsyncGenerator[bytes, None]:
        nonlocal told
        while told < many:
            told += 1
            yield event

    async with streaming(events()) as (client, telling):
        client.reads.clear()
        await client.next_write()
        for _ in range(100):
            await asyncio.sleep(0)
        assert told * len(event) <= 2 * (AT_ONCE + len(event))
        client.reads.set()
        await asyncio.wait({telling}, timeout=BOUND)
        assert b"".join(client.writes) == event * many


async def test_silence_is_broken_by_a_comment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Again and again, until something is said."""
    monkeypatch.setattr(sse, "KEEP_ALIVE", 0.01)
    pause = asyncio.Event()

    async def events() -> AsyncGenerator[bytes, None]:
        await pause.wait()
        yield b"at last\n\n"

    async with streaming(events()) as (client, telling):
        assert await client.next_write() == COMMENT
        assert await client.next_write() == COMMENT
        pause.set()
        await asyncio.wait({telling}, timeout=BOUND)
        assert client.writes[-1].endswith(b"at last\n\n")
        assert client.complete


async def test_when_the_client_leaves_the_telling_ends() -> None:
    """And what was being followed is let go."""
    let_go = asyncio.Event()

    async def events() -> AsyncGenerator[bytes, None]:
        try:
            yield b"one\n\n"
            await asyncio.Event().wait()
        finally:
            let_go.set()

    async with streaming(events()) as (client, telling):
        await client.next_write()
        client.left.set()
        async with asyncio.timeout(BOUND):
            await let_go.wait()
            await telling


async def test_a_fault_leaves_the_stream_without_an_end() -> None:
    """A client must not take what it has for the whole."""

    async def events() -> AsyncGenerator[bytes, None]:
        yield b"one\n\n"
        raise ZeroDivisionError

    async with streaming(events()) as (client, telling):
        await asyncio.wait({telling}, timeout=BOUND)
        assert isinstance(telling.exception(), ZeroDivisionError)
        assert client.writes == [b"one\n\n"]
        assert not client.complete
