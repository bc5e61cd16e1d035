"""HTTP as uvicorn speaks it, but for two things.

Clients may offer another protocol along with their request, as every Java client offers HTTP/2. Such an offer is
declined by not taking it up. The parser would take what follows the head of the request for that other protocol, and
lose its body; so the head is read once more, without the offer.

And the head of an answer goes out with what is said along with it, in one write: each one wakes the client.
"""

import asyncio
import sys
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


class Http(HttpToolsProtocol):
    """uvicorn's own, which takes no offer up."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(_Joining(transport, self.loop))  # type: ignore[arg-type]  # it is used as one

    def eof_received(self) -> None:
        """A client has said all that it wants to; the transport will be closed without asking ours."""
        self.transport.release()  # type: ignore[attr-defined]  # it is ours
        super().eof_received()

    def data_received(self, data: bytes) -> None:
        while data:
            self._received, self._again = data, b""
            super().data_received(data)
            data = self._again

    def _should_upgrade(self) -> bool:
        return self.parser.get_method() != b"CONNECT"  # which is no offer, and stays one however it is read

    def handle_websocket_upgrade(self) -> None:
        """What uvicorn does about an offer that it takes for one of a WebSocket."""
        offer = sys.exception()
        assert isinstance(offer, httptools.HttpParserUpgrade)
        lines = [self.parser.get_method() + b" " + self.url + b" HTTP/" + self.parser.get_http_version().encode()]
        lines += [name + b": " + value for name, value in self.headers if name != b"upgrade"]
        self._again = b"\r\n".join([*lines, b"", self._received[offer.args[0] :]])
        self.parser = httptools.HttpRequestParser(self)  # a new one: the other reads nothing after a `close`
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)


class _Joining:
    """A transport that holds the head of an answer back until something follows it, or this moment is over."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._held = b""

    def write(self, data: bytes) -> None:
        if self._held:
            data, self._held = self._held + data, b""
        elif data.startswith(b"HTTP/1.1 "):
            self._held = data
            self._loop.call_soon(self.release)
            return
        self._transport.write(data)

    def close(self) -> None:
        self.release()
        self._transport.close()

    def release(self) -> None:
        if self._held:
            held, self._held = self._held, b""
            self._transport.write(held)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)
