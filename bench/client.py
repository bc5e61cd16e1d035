"""A light HTTP client, so that a bench measures the server: one request at a time on a connection that stays open."""

import asyncio
import re
import time
from typing import cast

import msgspec

TOKEN = re.compile(rb'"(?:content|delta)": ?"tok ([\d.]*)')  # not the texts at the end that repeat them
LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)


class Answer:
    """What came back, and when."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.asked = time.perf_counter()
        self.took = 0.0  # seconds to the last byte
        self.first = 0.0  # seconds to the first token
        self.tokens = 0
        self.late: list[float] = []  # for each token with a stamp, the seconds since it was due
        self._read = 0
        self._end: int | None = None  # where it ends; -1 when it comes in chunks

    @property
    def status(self) -> int:
        return int(self.data[9:12])

    def take(self, data: bytes) -> bool:
        """Some more of it; whether that was the last."""
        now = time.perf_counter()
        self.data += data
        for token in TOKEN.finditer(self.data, self._read):
            self._read = token.end()
            self.tokens += 1
            if token[1]:
                self.late.append(now - float(token[1]))
        if self.tokens and not self.first:
            self.first = now - self.asked
        self.took = now - self.asked
        if self._end is None and (head := self.data.find(b"\r\n\r\n")) >= 0:
            length = LENGTH.search(self.data, 0, head)
            self._end = head + 4 + int(length[1]) if length else -1
        if self._end == -1:
            return self.data.endswith(b"\r\n0\r\n\r\n")
        return self._end is not None and len(self.data) >= self._end


class Connection(asyncio.Protocol):
    """One connection. `post` and `get` wait for the whole answer, `begin` only for its first bytes."""

    def __init__(self, host: str, key: str) -> None:
        self._head = f"Host: {host}\r\nAuthorization: Bearer {key}\r\nContent-Type: application/json\r\n"
        self._answer = Answer()
        self._waits_for_end = True
        self._done: asyncio.Future[Answer] | None = None

    @classmethod
    async def open(cls, port: int, key: str = "none") -> "Connection":
        host = f"127.0.0.1:{port}"
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(lambda: cls(host, key), "127.0.0.1", port)
        return connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        ended = self._answer.take(data)
        if (ended or not self._waits_for_end) and self._done is not None and not self._done.done():
            self._done.set_result(self._answer)

    def connection_lost(self, error: Exception | None) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_exception(error or ConnectionResetError("the server closed the connection"))

    def close(self) -> None:
        self._transport.close()

    async def post(self, path: str, body: object, **headers: str) -> Answer:
        return await self._ask("POST", path, msgspec.json.encode(body), headers, to_end=True)

    async def get(self, path: str) -> Answer:
        return await self._ask("GET", path, b"", {}, to_end=True)

    async def begin(self, path: str, body: object = None, **headers: str) -> Answer:
        data = b"" if body is None else msgspec.json.encode(body)
        return await self._ask("GET" if body is None else "POST", path, data, headers, to_end=False)

    async def _ask(self, method: str, path: str, body: bytes, headers: dict[str, str], *, to_end: bool) -> Answer:
        more = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
        head = f"{method} {path} HTTP/1.1\r\n{self._head}{more}Content-Length: {len(body)}\r\n\r\n"
        self._answer = Answer()
        self._waits_for_end = to_end
        self._done = asyncio.get_running_loop().create_future()
        self._transport.write(head.encode() + body)
        answer = await self._done
        if answer.status != 200:
            raise RuntimeError(f"{method} {path}: {bytes(answer.data[:1000]).decode(errors='replace')}")
        return answer
