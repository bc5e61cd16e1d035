"""What a server can do to whoever asks it. The server is a plain socket."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Any

import pytest
import trustme

from legato import __version__, outgoing
from legato.errors import BadConfig
from legato.outgoing import Lost, NoConnection, Server

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]


@asynccontextmanager
async def serving(
    handle: Handler, tls: ssl.SSLContext | None = None, *, repeatable: bool = True
) -> AsyncIterator[Server]:
    under_way: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        under_way.add(task)
        try:
            await handle(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client has left
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    listener = await asyncio.start_server(connected, "127.0.0.1", 0, ssl=tls)
    port = listener.sockets[0].getsockname()[1]
    url = f"http{'s' if tls else ''}://{'localhost' if tls else '127.0.0.1'}:{port}/v1/"
    server = Server(url, {"X-Key": "k"}, repeatable=repeatable)
    try:
        async with asyncio.timeout(30):
            yield server
    finally:
        server.close()
        listener.close()
        await asyncio.wait_for(asyncio.gather(*under_way), 10)


async def request_of(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    return head, await reader.readexactly(int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0]))


def whole(body: bytes, *more: bytes) -> bytes:
    return b"".join([b"HTTP/1.1 200 OK\r\n", *more, b"Content-Length: %d\r\n\r\n" % len(body), body])


async def asked(server: Server, body: bytes = b"hi") -> bytes:
    async with server.ask("POST", "/said", body) as answer:
        assert answer.status == 200
        return b"".join([data async for data in answer])


class Talking:
    """A server that writes the same for every request, and counts who came."""

    def __init__(self, *pieces: bytes, then: str = "go on") -> None:
        self.pieces, self.then = pieces, then
        self.connections = 0
        self.requests: list[tuple[bytes, bytes]] = []
        self.left = asyncio.Event()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                self.requests.append(await request_of(reader))
                for piece in self.pieces:
                    writer.write(piece)
                    await writer.drain()
                if self.then == "close":
                    break
        finally:
            self.left.set()


async def test_requests_follow_each_other_on_one_connection() -> None:
    talking = Talking(whole(b"yes", b"X-Say: more\r\n"))
    async with serving(talking) as server:
        assert [await asked(server, body) for body in (b"a", b"", b"c" * 100_000)] == [b"yes"] * 3
        async with server.ask("GET", "/x") as answer:
            assert answer.headers["x-say"] == "more"
            assert await answer.text(2) == b"ye"
    assert talking.connections == 1
    assert [body for _, body in talking.requests] == [b"a", b"", b"c" * 100_000, b""]
    head = talking.requests[0][0].decode()
    assert head.startswith("POST /v1/said HTTP/1.1\r\nHost: 127.0.0.1:")
    assert "\r\nX-Key: k\r\n" in head
    assert f"\r\nUser-Agent: legato/{__version__}\r\n" in head


async def test_requests_side_by_side_have_a_connection_each_and_both_are_kept() -> None:
    talking = Talking(whole(b"yes"))
    async with serving(talking) as server:
        async with server.ask("GET", "/a") as one, server.ask("GET", "/b") as other:
            assert [await one.text(9), await other.text(9)] == [b"yes", b"yes"]
        assert await asked(server) + await asked(server) == b"yesyes"
    assert talking.connections == 2


@pytest.mark.parametrize("size", [1, 5, 10_000])
async def test_an_answer_may_come_in_any_pieces(size: int) -> None:
    data = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    data += b"3\r\nabc\r\n4\r\ndefg\r\n0\r\n\r\n"
    async with serving(Talking(*(data[i : i + size] for i in range(0, len(data), size)))) as server:
        assert [await asked(server), await asked(server)] == [b"abcdefg"] * 2


async def test_an_answer_without_a_length_ends_with_its_connection() -> None:
    async with serving(Talking(b"HTTP/1.1 200 OK\r\n\r\n", b"all of it", then="close")) as server:
        assert [await asked(server), await asked(server)] == [b"all of it"] * 2


@pytest.mark.parametrize(
    "cut",
    [
        b"",
        b"HTTP/1.1 200 O",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzzz\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X-Long: " + b"y" * 70_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 40_000 + b"\r\n",
    ],
    ids=["nothing", "half a head", "less than told", "no last chunk", "no HTTP", "no chunk", "a long header", "many"],
)
async def test_what_is_no_whole_answer_is_an_error(cut: bytes) -> None:
    async with serving(Talking(cut, then="close")) as server:
        with pytest.raises(OSError):
            await asked(server)


async def test_a_kept_connection_that_the_server_has_closed_is_not_noticed() -> None:
    talking = Talking(whole(b"yes"), then="close")
    async with serving(talking) as server:
        assert [await asked(server) for _ in range(5)] == [b"yes"] * 5
    assert len(talking.requests) == 5


async def test_a_server_that_closes_when_it_is_asked_again_is_asked_anew() -> None:
    """The close and the second request pass each other on the way."""
    answered = 0

    async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal answered
        await request_of(reader)
        writer.write(whole(b"yes"))
        answered += 1
        await reader.read(1)
        writer.transport.abort()

    async with serving(once) as server:
        assert [await asked(server) for _ in range(3)] == [b"yes"] * 3
    assert answered == 3


async def test_what_must_not_happen_twice_is_not_sent_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server took the second request and closed instead of answering. A connection that was idle for a while is
    not used for such a thing at all, so that this stays rare."""
    heard = 0

    async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal heard
        await request_of(reader)
        heard += 1
        writer.write(whole(b"yes"))
        await request_of(reader)
        heard += 1
        writer.transport.abort()

    async with serving(once, repeatable=False) as server:
        assert await asked(server) == b"yes"
        with pytest.raises(Lost):
            await asked(server)
        assert heard == 2
        assert await asked(server) == b"yes"
        monkeypatch.setattr(outgoing, "KEPT_SHORTLY", 0.0)
        assert await asked(server) == b"yes"
        assert heard == 4


async def test_what_nobody_asked_for_is_never_an_answer() -> None:
    unasked, left = asyncio.Event(), asyncio.Event()

    async def chatty(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        writer.write(whole(b"yes"))
        await writer.drain()
        await unasked.wait()
        writer.write(whole(b"no"))
        await reader.read()
        left.set()

    async with serving(chatty) as server:
        assert await asked(server) == b"yes"
        unasked.set()
        await left.wait()
        assert await asked(server) == b"yes"
    async with serving(Talking(whole(b"yes") + whole(b"no"))) as server:
        assert [await asked(server) for _ in range(3)] == [b"yes"] * 3


async def test_whoever_leaves_in_mid_answer_closes_the_connection() -> None:
    talking = Talking(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n")
    async with serving(talking) as server:
        async with server.ask("GET", "/x") as answer:
            assert await anext(aiter(answer)) == b"abc"
        await talking.left.wait()


async def test_a_server_that_says_more_than_is_read_has_to_wait() -> None:
    sent = 0

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await request_of(reader)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        for _ in range(1000):
            writer.write(b"x" * 65_536)
            await writer.drain()
            sent += 65_536

    async with serving(flood) as server, server.ask("GET", "/x") as answer:
        before = -1
        while before != sent:
            before = sent
            await asyncio.sleep(0.2)
        assert sent < 20_000_000
        assert sum([len(data) async for data in answer]) == sent == 65_536_000


async def test_an_answer_that_nobody_reads_holds_up_no_later_one() -> None:
    async with serving(Talking(whole(b"x" * 400_000))) as server:
        for _ in range(3):
            async with server.ask("GET", "/x") as answer:
                assert answer.status == 200
                await asyncio.sleep(0.1)  # all of it has come
        assert len(await asked(server)) == 400_000


@pytest.mark.parametrize(
    ("told", "wait"),
    [("7", 7.0), ("0.5", 0.5), ("", None), ("-1", None), ("nan", None), ("Wed, 21 Oct 2026 07:28:00 GMT", None)],
)
async def test_how_long_to_wait_is_a_number_of_seconds(told: str, wait: float | None) -> None:
    async with serving(Talking(whole(b"", f"Retry-After: {told}\r\n".encode()))) as server:
        async with server.ask("GET", "/x") as answer:
            assert answer.retry_after == wait


async def test_silence_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outgoing, "SILENT_AT_MOST", 0.2)
    async with serving(Talking(b"HTTP/1.1 200 OK\r\n\r\n", b"a")) as server:
        async with server.ask("GET", "/x") as answer:
            assert await anext(aiter(answer)) == b"a"
            with pytest.raises(TimeoutError, match="silent"):
                await anext(aiter(answer))


async def test_one_who_is_told_something_now_and_then_has_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outgoing, "SILENT_AT_MOST", 0.5)

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        for _ in range(8):
            writer.write(b"a")
            await asyncio.sleep(0.1)

    async with serving(slow) as server:
        assert await asked(server) == b"a" * 8


async def test_a_certificate_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = trustme.CA()
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("localhost").configure_cert(tls)
    async with serving(Talking(whole(b"secret")), tls) as server:
        with pytest.raises(OSError, match="certificate"):
            await asked(server)
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    async with serving(Talking(whole(b"secret")), tls) as server:
        assert [await asked(server), await asked(server)] == [b"secret"] * 2


async def test_where_nobody_listens_nothing_was_sent() -> None:
    with pytest.raises(NoConnection, match=r"no connection to 127\.0\.0\.1:1: "):
        await asked(Server("http://127.0.0.1:1"))


async def test_an_address_may_be_bare_or_carry_a_query() -> None:
    talking = Talking(whole(b"yes"))
    async with serving(talking) as server:
        port = server._port
        for url in ("", "/", "/a/?b=c&d=e"):
            with closing(Server(f"http://127.0.0.1:{port}{url}")) as other:
                async with other.ask("POST", "", b"", {"X-One": "more"}) as answer:
                    assert await answer.text(9) == b"yes"
    assert [head.split(b"\r\n")[0] for head, _ in talking.requests] == [
        b"POST / HTTP/1.1",
        b"POST / HTTP/1.1",
        b"POST /a/?b=c&d=e HTTP/1.1",
    ]
    assert b"\r\nX-One: more\r\n" in talking.requests[0][0]


async def test_a_name_and_a_password_in_the_address_are_sent_as_such() -> None:
    talking = Talking(whole(b"yes"))
    async with serving(talking) as server:
        with closing(Server(f"http://me:p%40ss@127.0.0.1:{server._port}/v1")) as other:
            assert await asked(other) == b"yes"
    head = talking.requests[0][0]
    assert b"\r\nAuthorization: Basic bWU6cEBzcw==\r\n" in head
    assert b"\r\nHost: 127.0.0.1:" in head


async def test_an_address_that_leads_nowhere_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(Talking(whole(b"yes"))) as server:
        loop, real = asyncio.get_running_loop(), server._port

        async def found(host: str, port: int, **_: Any) -> list[Any]:
            with_nobody, here = ("127.0.0.1", 1), ("127.0.0.1", real)
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", place) for place in (with_nobody, here)]

        monkeypatch.setattr(loop, "getaddrinfo", found)
        with closing(Server("http://several.example/v1")) as other:
            assert await asked(other) == b"yes"


@pytest.mark.parametrize(
    "url",
    ["", "localhost:80", "ftp://x/v1", "http://", "http://x:y/", "http://[::1", "http://x/a b", "http://x/\u00e4"],
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(BadConfig, match="no address"):
        Server(url)


@pytest.mark.parametrize("key", ["two\r\nX-More: lines", "schlüssel", "a\0b"])
def test_a_header_is_one_plain_line(key: str) -> None:
    with pytest.raises(BadConfig, match="API key"):
        Server("http://x/v1", {"Authorization": f"Bearer {key}"})
