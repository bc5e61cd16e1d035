"""Care: backup, verify, figures and diagnosis, for whoever looks after the gateway. All but one's own figures need a
key with the scope `admin`."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import BinaryIO

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from legato import __version__
from legato.api.admin import ADMIN, check_admin
from legato.api.door import Call
from legato.api.sse import until_left
from legato.api.wire import answer
from legato.engine.care import Progress, shown
from legato.errors import LegatoError
from legato.logs import logger

SQLITE, JSONL = "application/vnd.sqlite3", "application/jsonl"
CHUNK = 256 * 1024


async def backup(call: Call) -> Response:
    """`POST /v1/backup`: everything as one SQLite file, as it is at this moment."""
    check_admin(call)
    return FileAnswer(await call.api.care.backup(), SQLITE)


async def verify(call: Call) -> Response:
    """`POST /v1/verify`: re-prove the store; a JSON line for each finding, some of progress, a last one that counts."""
    check_admin(call)
    return LinesAnswer(_verified(call), JSONL)


async def stats(call: Call) -> Response:
    """`GET /v1/stats`: what the caller has; for an administrator also what the store holds."""
    own = await call.api.care.figures(call.caller.principal)
    store = await call.api.care.store_figures() if ADMIN in call.caller.scopes else None
    return answer({"object": "stats", "principal": call.caller.principal, "own": own, "store": store})


async def doctor(call: Call) -> Response:
    """`GET /v1/doctor`: what of the store needs somebody's attention."""
    check_admin(call)
    return answer({"object": "diagnosis", "version": __version__, "checks": await call.api.care.diagnose()})


async def rebuild_search(call: Call) -> Response:
    """`POST /v1/search/rebuild`: forget the search index; it fills itself again."""
    check_admin(call)
    await call.api.care.rebuild_search()
    return answer({"object": "search.rebuilt"})


async def _verified(call: Call) -> AsyncGenerator[bytes, None]:
    count = 0
    try:
        async with aclosing(call.api.care.verify()) as told:
            async for line in told:
                if isinstance(line, Progress):
                    yield _line({"progress": line})
                else:
                    count += 1
                    yield _line({"finding": shown(line)})
    except LegatoError as error:
        logger.error("verify failed", code=error.code, error=error.message)
        yield _line({"error": {"code": error.code, "message": error.message}})
    else:
        yield _line({"findings": count})


def _line(body: object) -> bytes:
    return msgspec.json.encode(body) + b"\n"


class LinesAnswer(Response):
    """An answer line by line, as the lines come. A client that leaves ends it."""

    def __init__(self, lines: AsyncGenerator[bytes, None], media_type: str) -> None:
        super().__init__(headers={"Cache-Control": "no-store"}, media_type=media_type)
        del self.headers["content-length"]
        self._lines = lines

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        telling = asyncio.create_task(self._tell(send))
        leaving = asyncio.create_task(until_left(receive))
        leaving.add_done_callback(lambda _: telling.cancel())
        try:
            await asyncio.wait({telling})
        finally:
            for task in (telling, leaving):
                task.cancel()
            await asyncio.wait({telling, leaving})
        if not telling.cancelled():
            telling.result()

    async def _tell(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async with aclosing(self._lines) as lines:
            async for line in lines:
                await send({"type": "http.response.body", "body": line, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class FileAnswer(LinesAnswer):
    """An answer from a file, which is closed at the end, whatever the end is."""

    def __init__(self, file: BinaryIO, media_type: str) -> None:
        super().__init__(_chunks(file), media_type)
        self._file = file
        self.headers["content-length"] = str(file.seek(0, 2))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._file:
            await super().__call__(scope, receive, send)


async def _chunks(file: BinaryIO) -> AsyncGenerator[bytes, None]:
    file.seek(0)
    while chunk := await asyncio.to_thread(file.read, CHUNK):
        yield chunk
