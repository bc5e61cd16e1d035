"""Server-sent events: each in one write, a comment when there is silence, and a client that leaves is noticed.

Leaving stops only the telling. The turn goes on.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress

import structlog
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from legato.errors import LegatoError

logger = structlog.get_logger(__name__)

KEEP_ALIVE = 15.0
COMMENT = b": keep-alive\n\n"


class EventStream(Response):
    """An answer that is told bit by bit."""

    media_type = "text/event-stream"

    def __init__(self, chunks: AsyncGenerator[bytes, None], headers: dict[str, str] | None = None) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no", **(headers or {})})
        del self.headers["content-length"]
        self._chunks = chunks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        telling = asyncio.create_task(self._tell(send))
        leaving = asyncio.create_task(_left(receive))
        try:
            await asyncio.wait({telling, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            leaving.cancel()
            telling.cancel()
            with suppress(asyncio.CancelledError):
                await telling

    async def _tell(self, send: Send) -> None:
        async with aclosing(self._chunks) as chunks:
            coming = asyncio.ensure_future(anext(chunks, None))
            try:
                while True:
                    done, _ = await asyncio.wait({coming}, timeout=KEEP_ALIVE)
                    if not done:
                        await send({"type": "http.response.body", "body": COMMENT, "more_body": True})
                        continue
                    try:
                        chunk = coming.result()
                    except LegatoError as error:  # deleted, or we are leaving: the client asks again and is told
                        logger.info("stream ended early", code=error.code)
                        break
                    if chunk is None:
                        break
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
                    coming = asyncio.ensure_future(anext(chunks, None))
            finally:
                if not coming.done():
                    coming.cancel()
                    with suppress(asyncio.CancelledError):
                        await coming
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
