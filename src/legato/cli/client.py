"""How commands reach a gateway: over HTTP, and nothing else, because one process owns the store.

`LEGATO_URL` names it, else the home does. Where none runs, a private one serves the command and ends with it. Only the
standard library is used here: a command should be done before a larger client is imported.
"""

import fcntl
import http.client
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import click

from legato.config import load
from legato.errors import LegatoError, StoreUnavailable

PLACE = "url"
"""The file in the home that says where its gateway listens."""

QUICK = 5.0


class Refused(LegatoError):
    """The gateway refused."""

    def __init__(self, status: int, error: dict[str, Any]) -> None:
        super().__init__(str(error.get("message", "The gateway refused.")))
        self.status, self.wire_code = status, error.get("code")


class Client:
    """A gateway, and the key that opens it."""

    def __init__(self, url: str, key: str) -> None:
        self.url = url.rstrip("/")
        self._key = key

    def get(self, path: str, **query: Any) -> Any:
        given = {name: value for name, value in query.items() if value is not None}
        return self._json("GET", f"{path}?{urlencode(given)}" if given else path)

    def post(self, path: str, body: Any = None) -> Any:
        return self._json("POST", path, body)

    def patch(self, path: str, body: Any) -> Any:
        return self._json("PATCH", path, body)

    def put(self, path: str) -> Any:
        return self._json("PUT", path)

    def delete(self, path: str) -> Any:
        return self._json("DELETE", path)

    def chunks(self, path: str) -> Iterator[bytes]:
        """An answer as it comes."""
        with self._asked("GET", path) as response:
            while chunk := response.read1(256 * 1024):
                yield chunk

    def send(self, path: str, chunks: Iterable[bytes]) -> Any:
        """Post something larger than memory."""
        with self._asked("POST", path, chunks=chunks) as response:
            return json.loads(response.read())

    def events(self, path: str, body: Any) -> Iterator[dict[str, Any]]:
        """What a stream tells, event by event."""
        with self._asked("POST", path, body) as response:
            for line in response:
                if line.startswith(b"data: {"):
                    yield json.loads(line[6:])

    def alive(self) -> bool:
        """Whether somebody answers there; the key is not shown to whoever that is."""
        try:
            with Client(self.url, "")._asked("GET", "/healthz", timeout=QUICK) as response:
                return bool(json.loads(response.read()).get("status") == "ok")
        except (OSError, http.client.HTTPException, ValueError, AttributeError, LegatoError):
            return False

    def _json(self, method: str, path: str, body: Any = None) -> Any:
        with self._asked(method, path, body) as response:
            return json.loads(response.read())

    @contextmanager
    def _asked(
        self,
        method: str,
        path: str,
        body: Any = None,
        timeout: float | None = None,
        chunks: Iterable[bytes] | None = None,
    ) -> Iterator[http.client.HTTPResponse]:
        parts = urlsplit(self.url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(parts.hostname or "", parts.port, timeout=timeout)
        headers = {"Authorization": f"Bearer {self._key}", "Content-Type": "application/json"}
        if chunks is not None:
            headers |= {"Content-Type": "application/jsonl", "Transfer-Encoding": "chunked"}
        try:
            given = chunks if chunks is not None else json.dumps(body) if body is not None else None
            connection.request(method, path, given, headers, encode_chunked=chunks is not None)
            response = connection.getresponse()
            if response.status >= 400:
                raise Refused(response.status, _error(response.read()))
            yield response
        except (OSError, http.client.HTTPException) as error:
            raise StoreUnavailable(f"The gateway at {self.url} does not answer: {error}.") from error
        finally:
            connection.close()


def path_of(*parts: str) -> str:
    """A path with its parts quoted."""
    return "/" + "/".join(quote(part, safe="") for part in parts)


@contextmanager
def gateway(home: Path | None) -> Iterator[Client]:
    """The gateway that `LEGATO_URL` names or that runs on this home, or a private one."""
    config, _ = load(home)
    key = config.client.key or _read(config.home / "key")
    if config.client.url:
        yield Client(config.client.url, key)
        return
    url = _read(config.home / PLACE)
    if url and (config.database.url or _owned(config.home / "legato.db.lock")) and Client(url, key).alive():
        yield Client(url, key)
        return
    with _private(config.home) as url:
        yield Client(url, _read(config.home / "key"))


@contextmanager
def _private(home: Path) -> Iterator[str]:
    """A gateway for one command."""
    click.echo(f"legato: no gateway runs on {home}; a private one serves this command", err=True)
    command = [sys.executable, "-m", "legato.cli.main", "serve", "--home", str(home), "--port", "0"]
    environ = {**os.environ, "LEGATO_LOG__LEVEL": "error"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environ)
    try:
        assert process.stdout is not None
        first = process.stdout.readline().decode().split()
        if len(first) < 4:
            assert process.stderr is not None
            raise StoreUnavailable(process.stderr.read().decode().strip().removeprefix("legato: "))
        yield first[3]
    finally:
        process.terminate()
        process.communicate(timeout=60)


def _owned(lock: Path) -> bool:
    """Whether a process owns the store. One that was killed left its address behind, where anyone may listen now."""
    try:
        with lock.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8").strip()
    except FileNotFoundError:
        return ""


def _error(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body)["error"]
        return found if isinstance(found, dict) else {"message": str(found)}
    except (ValueError, KeyError, TypeError):
        return {"message": body[:200].decode(errors="replace")}
