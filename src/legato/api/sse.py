"""Server-sent events: each whole in one write, a comment when there is silence, and a client that leaves is noticed.

Leaving stops only the telling. The turn goes on. Events that are there together go out together: a write costs more
than making the event.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from legato.errors import LegatoError
from legato.logs import logger

KEEP_ALIVE = 15.0
COMMENT = b": keep-alive\n\n"
AT_ONCE = 64 * 1024  # bytes that may wait for a client that reads slowly, but for the last chunk


class EventStream(Response):
    """An answer that is told bit by bit."""

    media_type = "text/event-stream"

    def __init__(self, chunks: AsyncGenerator[bytes, None]) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._chunks = chunks
        self._ready: list[bytes] = []
        self._size = 0
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._ended = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        telling = asyncio.create_task(self._tell())
        leaving = asyncio.create_task(until_left(receive))
        leaving.add_done_callback(lambda _: telling.cancel())
        try:
            await self._write(send)
            if not leaving.done():
                await telling  # a fault there is raised here: the client sees a stream without an end
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            leaving.cancel()
            telling.cancel()
            with suppress(asyncio.CancelledError):
                await telling

    async def _tell(self) -> None:
        """Take the events as they come."""
        try:
            async with aclosing(self._chunks) as chunks:
                async for chunk in chunks:
                    self._put(chunk)
                    if self._size >= AT_ONCE:
                        self._room.clear()
                        await self._room.wait()
        except LegatoError as error:  # deleted, or we are leaving: the client asks again and is told
            logger.info("stream ended early", code=error.code)
        finally:
            self._ended = True
            self._news.set()

    def _put(self, chunk: bytes) -> None:
        if chunk:
            self._ready.append(chunk)
            self._size += len(chunk)
            self._news.set()

    async def _write(self, send: Send) -> None:
        """Send what is there, in one write, until nothing more can come."""
        silence = _Silence(self._put)
        try:
            while self._ready or not self._ended:
                await self._news.wait()
                self._news.clear()
                ready, self._ready, self._size = self._ready, [], 0
                self._room.set()
                if ready:
                    silence.broken()
                    await send({"type": "http.response.body", "body": b"".join(ready), "more_body": True})
        finally:
            silence.end()


class _Silence:
    """Puts a comment into a stream that says nothing for a while. One timer, moved only when it goes off."""

    def __init__(self, put: Callable[[bytes], None]) -> None:
        self._put = put
        self._loop = asyncio.get_running_loop()
        self._since = self._loop.time()
        self._timer = self._loop.call_at(self._since + KEEP_ALIVE, self._look)

    def broken(self) -> None:
        self._since = self._loop.time()

    def end(self) -> None:
        self._timer.cancel()

    def _look(self) -> None:
        now = self._loop.time()
        if now >= self._since + KEEP_ALIVE:
            self._since = now
            self._put(COMMENT)
        self._timer = self._loop.call_at(self._since + KEEP_ALIVE, self._look)


async def until_left(receive: Receive) -> None:
    """Wait until the client is gone."""
    while (await receive())["type"] != "http.disconnect":
        pass
