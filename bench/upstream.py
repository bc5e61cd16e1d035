"""A provider that takes no time: Chat Completions on loopback, in a process of its own, plain and streamed.

It obeys the last `say N` of a prompt: N words, streamed in one write. `say N every M` streams each word in a write of
its own, M milliseconds apart, and stamps it with the time at which it was due. To `say what` it answers with what it
was sent: how often it said `tok`, and every `mark-…`, in their order. It prints its port and serves until its standard
input ends.

Asked for its version it answers as vLLM does: who wants to know what it talks to asks once, not in every turn.
"""

import asyncio
import re
import sys
import time
from functools import cache
from typing import cast

import uvloop

WISH = re.compile(rb"say (\d+|what)(?: every (\d+))?")
MARK = re.compile(rb"mark-\w+")
SAID = re.compile(rb"\btok\b")
LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
PLAIN = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
ABSENT = b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\n{}"
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
HEAD = b'"id":"chatcmpl-bench","object":"chat.completion.chunk","created":1700000000,"model":"fake"'
USAGE = b'"usage":{"prompt_tokens":9,"completion_tokens":%d,"total_tokens":9}'
DELTA = b'data: {%s,"choices":[{"index":0,"delta":{"content":"%s"},"finish_reason":null}]}\n\n'
STOP = b'data: {%s,"choices":[{"index":0,"delta":{},"finish_reason":"stop"}],%s}\n\n'
ANSWER = b'{%s,"choices":[{"index":0,"message":{"role":"assistant","content":"%s"},"finish_reason":"stop"}],%s}'


class Provider(asyncio.Protocol):
    """One connection of a client."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._loop = asyncio.get_running_loop()
        self._received = bytearray()
        self._wanted = 0

    def data_received(self, data: bytes) -> None:
        self._received += data
        if not self._wanted:
            end = self._received.find(b"\r\n\r\n")
            if end < 0:
                return
            length = LENGTH.search(self._received, 0, end)
            self._wanted = end + 4 + (int(length[1]) if length else 0)
        if len(self._received) >= self._wanted:
            body, self._received, self._wanted = bytes(self._received), bytearray(), 0
            self._answer(body)

    def _answer(self, body: bytes) -> None:
        if body.startswith(b"GET "):
            found = body.startswith(b"GET /version ")
            self._transport.write(PLAIN % (15, b'{"version":"0"}') if found else ABSENT)
            return
        wish = WISH.match(body, body.rfind(b"say "))
        heard = heard_in(body) if wish and wish[1] == b"what" else None
        count = int(wish[1]) if wish and heard is None else 20  # a summary, say, for which nobody gave a length
        if b'"stream":true' not in body:
            self._transport.write(plain(count, heard))
        elif wish is None or wish[2] is None:
            self._transport.write(STREAM + streamed(count, heard))
        else:
            self._transport.write(STREAM)
            self._say(count, time.perf_counter(), int(wish[2]) / 1e3)

    def _say(self, left: int, due: float, gap: float, said: int = 0) -> None:
        if self._transport.is_closing():
            return
        if not left:
            self._transport.write(ending(said))
            return
        self._transport.write(chunk(DELTA % (HEAD, b"tok %.6f " % due)))
        wait = max(0.0, due + gap - time.perf_counter())
        self._loop.call_later(wait, self._say, left - 1, due + gap, gap, said + 1)


def heard_in(body: bytes) -> bytes:
    return b"%d said, %s" % (len(SAID.findall(body)), b" ".join(MARK.findall(body)))


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


@cache
def plain(count: int, text: bytes | None = None) -> bytes:
    body = ANSWER % (HEAD, text or b"tok " * count, USAGE % count)
    return PLAIN % (len(body), body)


@cache
def streamed(count: int, text: bytes | None = None) -> bytes:
    words = [text] if text else [b"tok "] * count
    return b"".join([chunk(DELTA % (HEAD, word)) for word in words]) + ending(count)


@cache
def ending(count: int) -> bytes:
    return chunk(STOP % (HEAD, USAGE % count)) + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"


async def main() -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Provider, "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    uvloop.run(main())
