"""One request over one socket, with nothing but the standard library. What goes wrong on the way is `Cut`."""

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct

PATIENCE = 20.0


class Cut(Exception):
    """No answer came: nobody knows whether the request was taken."""


class Answer(Struct, frozen=True):
    """What came back."""

    status: int
    headers: dict[str, str]
    body: Any


def ask(url: str, key: str, method: str, path: str, body: Any = None, **headers: str) -> Answer:
    """Ask, and wait for the answer."""
    with _sent(url, key, method, path, body, headers) as response:
        data = response.read()
        try:
            parsed = json.loads(data)
        except ValueError:
            parsed = {"error": {"message": data[:200].decode(errors="replace")}}
        return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, parsed)


@contextmanager
def follow(
    url: str, key: str, method: str, path: str, body: Any = None, **headers: str
) -> Iterator[tuple[Answer, Iterator[dict[str, Any]]]]:
    """Ask, and take the events of the answer as they come; leaving cuts the connection."""
    with _sent(url, key, method, path, body, headers) as response:
        told = {k.lower(): v for k, v in response.getheaders()}
        if response.status != 200:
            yield Answer(response.status, told, json.loads(response.read() or b"{}")), iter(())
        else:
            yield Answer(200, told, None), _events(response)


def _events(response: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    for line in response:
        if line == b"data: [DONE]\n":
            return
        if line.startswith(b"data: ") and line.endswith(b"\n"):
            yield json.loads(line[6:])
    raise Cut("the stream broke off")


@contextmanager
def _sent(
    url: str, key: str, method: str, path: str, body: Any, headers: dict[str, str]
) -> Iterator[http.client.HTTPResponse]:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=PATIENCE)
    given = {"Authorization": f"Bearer {key}", **{name.replace("_", "-"): value for name, value in headers.items()}}
    try:
        connection.request(method, path, None if body is None else json.dumps(body), given)
        yield connection.getresponse()
    except (OSError, http.client.HTTPException) as error:
        raise Cut(f"{type(error).__name__}: {error}") from error
    finally:
        connection.close()
