"""Clients that offer another protocol along with their request: those of Java offer HTTP/2 with each one."""

import http.client
import json
import socket
from collections.abc import Iterable, Iterator
from contextlib import closing
from urllib.parse import urlsplit

import pytest

from api.server import BOUND, Server

HTTP2 = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2-Settings": "AAEAAEAAAAIAAAAB"}
WEBSOCKET = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
}


@pytest.fixture
def wire(server: Server) -> Iterator[http.client.HTTPConnection]:
    """One connection, for everything that a test sends."""
    with closing(http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=BOUND)) as connection:
        yield connection


def asked(
    wire: http.client.HTTPConnection, server: Server, offer: dict[str, str], body: bytes | Iterable[bytes] | None = None
) -> http.client.HTTPResponse:
    """What is answered to a request with an offer. A body of several pieces comes without a length."""
    method = "GET" if body is None else "POST"
    wire.request(method, "/v1/responses", body, {"Authorization": f"Bearer {server.key}", **offer})
    return wire.getresponse()


@pytest.mark.parametrize("pieces", [1, 3])
def test_a_request_that_offers_another_protocol_is_read_whole(
    server: Server, wire: http.client.HTTPConnection, pieces: int
) -> None:
    """The offer is not taken up, whatever the body comes in; and the next request on the connection is served, too."""
    last = {**HTTP2, "Connection": f"{HTTP2['Connection']}, close"}
    for text, offer in (("one", HTTP2), ("two", {}), ("three", HTTP2), ("four", last)):
        body = json.dumps({"input": f"reply only {text}"}).encode()
        size = len(body) // pieces + 1
        cut = [body[place : place + size] for place in range(0, len(body), size)]
        answer = asked(wire, server, offer, body if pieces == 1 else cut)
        assert answer.status == 200
        assert json.load(answer)["output"][0]["content"][0]["text"] == text


def test_a_websocket_is_declined_with_the_word_upon_which_clients_do_without(
    server: Server, wire: http.client.HTTPConnection
) -> None:
    """There is none here, and the refusal says so as every refusal does. What the client sends next is served."""
    answer = asked(wire, server, WEBSOCKET)
    assert (answer.status, answer.headers["upgrade"]) == (426, "HTTP/1.1")
    assert answer.headers["x-request-id"]
    assert json.load(answer)["error"]["code"] == "upgrade_required"
    answer = asked(wire, server, {}, json.dumps({"input": "reply only hello"}).encode())
    assert json.load(answer)["output"][0]["content"][0]["text"] == "hello"
    plain = asked(wire, server, {})
    assert (plain.status, plain.headers["allow"]) == (405, "POST")


@pytest.mark.parametrize("path", ["/healthz", "/docs", "/metrics"])
def test_a_client_that_says_no_more_is_answered(server: Server, path: str) -> None:
    """Some checkers of a port close their side as soon as they have asked."""
    address = urlsplit(server.url)
    with socket.create_connection((address.hostname, address.port), BOUND) as asker:
        asker.sendall(f"HEAD {path} HTTP/1.1\r\nHost: {address.netloc}\r\n\r\n".encode())
        asker.shutdown(socket.SHUT_WR)
        assert asker.recv(65536).startswith(b"HTTP/1.1 200")
