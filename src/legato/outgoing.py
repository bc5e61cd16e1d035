"""The least HTTP that goes out: one server, connections that are kept, an answer that is read as it comes.

Written by hand because it was measured (`make bench-outgoing`): a general client takes three to four times the CPU, and
every token goes through here. llhttp parses; the rest is what a model's server or a bridge can make happen: answers
that end with their connection, a kept connection that was just closed at the other end, silence, too much at once. No
redirects, no cookies, no proxies, no compression: neither needs them.
"""

import asyncio
import os
import re
import socket
import ssl
from base64 import b64encode
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import Self, cast
from urllib.parse import unquote, urlsplit

from aiohappyeyeballs import start_connection
from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from legato import __version__
from legato.errors import BadConfig

CONNECT_WITHIN = 10.0
NEXT_AFTER = 0.25  # seconds after which the next address of a host is tried, too
SILENT_AT_MOST = 300.0
KEPT, KEPT_SHORTLY = 60.0, 3.0  # seconds that a connection may be idle
MAX_HEAD = 64 * 1024
MAX_UNREAD = 256 * 1024


class NoConnection(ConnectionError):
    """Nothing was sent."""


class Lost(ConnectionError):
    """The connection ended before the answer did."""


class Server:
    """One server and the connections to it. Whatever fails on the way is an OSError. What is not `repeatable` is never
    sent twice: a connection that is closed instead of an answer may have carried it, so none is used for it that has
    been idle for longer than any server would let it be."""

    def __init__(self, url: str, headers: Mapping[str, str] = MappingProxyType({}), *, repeatable: bool = True) -> None:
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:
            host = None
        if not host or parts.scheme not in ("http", "https") or not re.fullmatch(r"[!-~]+", url):
            raise BadConfig(
                f"{url.rpartition('@')[2]!r} is no address of a server; one looks like https://example.com/v1."
            )
        self._host, self._tls = host, parts.scheme == "https"
        self._port = port or (443 if self._tls else 80)
        self._path, self._query = parts.path, f"?{parts.query}" if parts.query else ""
        if not all(value.isascii() and value.isprintable() for value in headers.values()):
            raise BadConfig(f"What is sent to {host} as a header must be plain text; look at its API key.")
        ours = {"User-Agent": f"legato/{__version__}", "Accept-Encoding": "identity"}  # some refuse who has no name
        lines = {"Host": parts.netloc.rpartition("@")[2], **ours, **headers}
        if parts.username and "Authorization" not in headers:
            secret = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
            lines["Authorization"] = f"Basic {b64encode(secret).decode()}"
        self._lines = _lines(lines)
        self._repeatable = repeatable
        self._context: ssl.SSLContext | None = None
        self._idle: deque[_Connection] = deque()  # the one that was used last on the right

    @asynccontextmanager
    async def ask(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] = MappingProxyType({})
    ) -> AsyncIterator["Answer"]:
        """The answer, once its head is there. Whoever leaves before its end closes the connection."""
        target = (self._path.rstrip("/") + path if path else self._path) or "/"
        lines = f"{self._lines}{_lines(headers)}Content-Length: {len(body)}\r\n"
        request = f"{method} {target}{self._query} HTTP/1.1\r\n{lines}\r\n".encode("ascii") + body
        connection = self._kept()
        if connection is not None:
            try:
                await connection.send(request)
            except Lost:  # closed by the server while our request was on its way
                if not self._repeatable:
                    raise
                connection = None
        if connection is None:
            connection = await self._connect()
            await connection.send(request)
        try:
            yield Answer(connection)
        finally:
            if connection.finish():
                self._idle.append(connection)

    def close(self) -> None:
        for connection in self._idle:
            connection.abort()
        self._idle.clear()

    def _kept(self) -> "_Connection | None":
        most = KEPT if self._repeatable else KEPT_SHORTLY
        while self._idle and not self._idle[0].fresh(most):
            self._idle.popleft().abort()
        while self._idle:
            connection = self._idle.pop()
            if connection.fresh(most):
                return connection
        return None

    async def _connect(self) -> "_Connection":
        if self._tls and self._context is None:
            self._context = ssl.create_default_context()
        try:
            async with asyncio.timeout(CONNECT_WITHIN):
                return await self._connection()
        except (OSError, UnicodeError) as error:  # a name that is none is a UnicodeError
            why = _in_words(error) or f"not within {CONNECT_WITHIN:.0f} seconds"
            raise NoConnection(f"no connection to {self._host}:{self._port}: {why}") from error

    async def _connection(self) -> "_Connection":
        """By whichever of the host's addresses answers first: one of them may lead nowhere."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        link = await start_connection(found, happy_eyeballs_delay=NEXT_AFTER)
        try:
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            name = self._host if self._tls else None
            _, made = await loop.create_connection(_Connection, sock=link, ssl=self._context, server_hostname=name)
        except BaseException:
            link.close()
            raise
        return made


def _lines(headers: Mapping[str, str]) -> str:
    return "".join(f"{name}: {value}\r\n" for name, value in headers.items())


def _in_words(error: OSError | UnicodeError) -> str:
    """Why, as the system says it, without its numbers."""
    if isinstance(error, ConnectionError) and error.errno is not None:
        return os.strerror(error.errno)
    return str(error)


class Answer:
    """A status, headers, and a body to go through once, a read of the network at a time."""

    def __init__(self, connection: "_Connection") -> None:
        self._connection = connection
        self.status = connection.status
        self.headers = connection.headers

    def __aiter__(self) -> Self:
        return self

    def __anext__(self) -> Awaitable[bytes]:
        return self._connection.read()

    @property
    def retry_after(self) -> float | None:
        """How many seconds the server wants us to wait; a date, which few send, is passed over."""
        told = self.headers.get("retry-after", "")
        return float(told) if re.fullmatch(r"\d{1,9}(\.\d{1,9})?", told, re.ASCII) else None

    async def text(self, most: int) -> bytes:
        """The body, or as much of it as anybody wants to see."""
        found = bytearray()
        async for data in self:
            found += data
            if len(found) >= most:
                break
        return bytes(found[:most])


class _Connection(asyncio.Protocol):
    """One exchange after the other. The parser calls the `on_` methods."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.heard = self._loop.time()
        self.open = True
        self._waiter: asyncio.Future[None] | None = None
        self._patience: asyncio.TimerHandle | None = None
        self._begin()

    def _begin(self) -> None:
        self._parser = HttpResponseParser(self)
        self.status = 0
        self.headers: dict[str, str] = {}
        self._head = 0
        self._unread: list[bytes] = []
        self._size = 0
        self._whole = False
        self._keep = False
        self._failure: OSError | None = None

    def fresh(self, most: float) -> bool:
        return self.open and self._loop.time() - self.heard < most

    async def send(self, request: bytes) -> None:
        """Ask, and wait for the head of the answer."""
        self._begin()
        self.heard = self._loop.time()
        self._patience = self._loop.call_later(SILENT_AT_MOST, self._lose_patience)
        self._transport.write(request)
        try:
            while not self.status:
                await self._more()
        except BaseException:
            self.finish()
            raise

    async def read(self) -> bytes:
        """What has come since the last read."""
        while not self._unread:
            if self._whole:
                raise StopAsyncIteration
            await self._more()
        data = b"".join(self._unread)
        self._unread.clear()
        if self._size > MAX_UNREAD:
            self._transport.resume_reading()
        self._size = 0
        return data

    def finish(self) -> bool:
        """The exchange is over; whether there may be another."""
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
        if self._whole and self._keep and self.open and self._size <= MAX_UNREAD:  # beyond that it does not read
            return True
        self.abort()
        return False

    def abort(self) -> None:
        self.open = False
        self._transport.abort()

    async def _more(self) -> None:
        if self._failure is not None:
            raise self._failure
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _fail(self, failure: OSError) -> None:
        self._failure = self._failure or failure
        self.abort()
        self._wake()

    def _lose_patience(self) -> None:
        quiet = self._loop.time() - self.heard
        if quiet >= SILENT_AT_MOST:
            self._fail(TimeoutError(f"it was silent for {SILENT_AT_MOST:.0f} seconds"))
        else:
            self._patience = self._loop.call_later(SILENT_AT_MOST - quiet, self._lose_patience)

    # -- what the network says

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self.heard = self._loop.time()
        if self._patience is None:  # nobody asked
            self.abort()
            return
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade) as error:
            self._fail(ConnectionError(f"what came is not HTTP: {error}"))
        if self._size > MAX_UNREAD:
            self._transport.pause_reading()
        self._wake()

    def connection_lost(self, error: Exception | None) -> None:
        self.open = False
        if self.status and not self._whole and not {"content-length", "transfer-encoding"} & self.headers.keys():
            self._whole = error is None and self._failure is None  # such an answer ends with its connection
        if not self._whole:
            self._failure = self._failure or Lost(str(error or "the connection was closed"))
        self._wake()

    # -- what the parser says

    def on_message_begin(self) -> None:
        if self._whole:
            raise ValueError("an answer too many")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head += len(name) + len(value)
        if self._head > MAX_HEAD:
            raise ValueError("the head of the answer has no end")
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status >= 200:  # what comes before says only that more is to come
            self.status = status

    def on_body(self, data: bytes) -> None:
        self._unread.append(data)
        self._size += len(data)

    def on_message_complete(self) -> None:
        if self.status:
            self._keep = self._parser.should_keep_alive()
            self._whole = True
        else:
            self.headers = {}
