"""Conversations out and in: all there is to them as JSON lines, or the talk alone as a page to read.

An import is read as it comes and stored conversation by conversation, so a file may be larger than memory. A line that
cannot be read is told by its number, and the rest goes in.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
from starlette.requests import ClientDisconnect
from starlette.responses import Response, StreamingResponse

from legato.api.conversations import find
from legato.api.door import Call
from legato.api.wire import answer, misfit
from legato.domain.handles import ById
from legato.domain.portable import ConversationLine, Line, Parcel, mend
from legato.errors import BadInput, Conflict, Defect

BATCH = 64 * 1024
MOST = 16  # the lines of one conversation may take so many times what a body may
TOLD = 1_000  # how many damaged lines are named one by one

_line: msgspec.json.Decoder[Line] = msgspec.json.Decoder(Line)


async def export(call: Call) -> Response:
    """`GET /v1/conversations/{id}/export`: as JSON lines that can be imported; as `markdown` or `html` to be read."""
    conversation = await find(call)
    form = call.query("format")
    form = "jsonl" if form is None else form
    if form == "jsonl":
        return _streamed(call.gateway.export(call.caller.principal, conversation.id))
    if form not in ("markdown", "html"):
        raise BadInput("'format' must be jsonl, markdown or html.", param="format")
    from legato.api import reading  # noqa: PLC0415 - its Markdown takes a tenth of a start to load

    entries = await call.gateway.told_of(call.caller.principal, ById(conversation.id))
    [row] = await call.gateway.described([conversation])
    if form == "markdown":
        return Response(reading.markdown(row, entries), media_type="text/markdown")
    return Response(reading.html(row, entries), media_type="text/html")


async def export_all(call: Call) -> Response:
    """`GET /v1/export`: everything that is yours."""
    return _streamed(call.gateway.export_all(call.caller.principal))


def _streamed(lines: AsyncIterator[Line]) -> Response:
    async def told() -> AsyncIterator[bytes]:
        batch = bytearray()
        async for line in lines:
            batch += msgspec.json.encode(line) + b"\n"
            if len(batch) >= BATCH:
                yield bytes(batch)
                batch.clear()
        yield bytes(batch)

    return StreamingResponse(told(), media_type="application/jsonl")


async def import_lines(call: Call) -> Response:
    """`POST /v1/import`: the lines of an export. What is here already stays as it is."""
    incoming = _Import(call)
    rest = bytearray()
    try:
        async for chunk in call.request.stream():
            *lines, last = chunk.split(b"\n")
            for line in lines:
                await incoming.take(bytes(rest + line))
                rest.clear()
            rest += last
            incoming.check_size(len(rest))
    except ClientDisconnect as error:
        raise BadInput("The client left before it had sent everything; what was whole is imported.") from error
    await incoming.take(bytes(rest))
    await incoming.close()
    return answer(incoming.told)


class _Import:
    """An import under way: the lines of one conversation at a time."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._number = 0
        self._parcel: Parcel | None = None
        self._size = 0
        self.told: dict[str, Any] = {"object": "import", "lines": 0, "conversations": [], "damaged": [], "omitted": 0}

    async def take(self, text: bytes) -> None:
        self._number += 1
        if not text.strip():
            return
        self.told["lines"] += 1
        try:
            line = _line.decode(text)
            name = line.id if isinstance(line, ConversationLine) else line.conversation
            if self._parcel is None or self._parcel.id != name:
                await self.close()
                self._parcel = Parcel(name)
            self._size += len(text)
            self.check_size(0)
            self._parcel.take(line)
        except msgspec.ValidationError as error:
            self._damaged(misfit(error).message)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
            self._damaged(str(error))

    def _damaged(self, why: str) -> None:
        if len(self.told["damaged"]) < TOLD:
            self.told["damaged"].append({"line": self._number, "why": why[:200]})
        else:
            self.told["omitted"] += 1

    def check_size(self, more: int) -> None:
        most = MOST * self._call.api.max_body
        if self._size + more > most:
            raise BadInput(f"One conversation has more than {most} bytes; raise server.max_body to import it.")

    async def close(self) -> None:
        """Store the conversation whose lines have all come."""
        parcel, self._parcel, self._size = self._parcel, None, 0
        if parcel is None:
            return
        if not parcel.whole:
            self._damaged(f"{parcel.id} has no last line")
        try:
            given = await asyncio.to_thread(mend, parcel)  # its lines may be many
            imported = await self._call.gateway.import_one(self._call.caller.principal, given)
        except (BadInput, Conflict, Defect, ValueError) as error:
            self.told["conversations"].append({"id": parcel.id, "outcome": "refused", "why": str(error)[:500]})
            return
        if not given.head.stump:
            self.told["conversations"].append(msgspec.to_builtins(imported))
