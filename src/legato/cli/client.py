"""How commands reach a gateway: over HTTP, and nothing else, because one process owns the store.

`LEGATO_URL` names it, with the path under which a proxy has it, else the home does; OpenAI's clients are given the same
address with `/v1` behind it, so that is left out. Where none runs, a private one serves the command and ends with it,
however the command ends: it holds the other end of the gateway's standard input. A private gateway may serve other
commands meanwhile, and leaves them when its owner leaves; a command that lasts finds its gateway again (`Way.find`).
Only the standard library is used here: a command should be done before a larger client is imported.
"""

import fcntl
import http.client
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote, urlencode, urlsplit

import click

from legato.config import Config, home_key, load
from legato.errors import BadConfig, BadInput, LegatoError, StoreUnavailable

PLACE = "url"
"""The file in the home that says where its gateway listens."""

PRIVATE = "private"
"""What stands beside the address of a private one."""

ANOTHER_KEY = "delete the file and start the gateway again, which makes another."
"""What helps where the key of a home was revoked."""

ANOTHERS_KEY = "Whoever looks after it makes one with `legato key create NAME`; set LEGATO_API_KEY to that."
"""What helps where the gateway is not that of the home."""

QUICK = 5.0
CHUNK = 256 * 1024
SILENT = 45.0
"""A stream says something every fifteen seconds; one that is silent for three times that is broken."""

Told = tuple[str, dict[str, Any]]


class Refused(LegatoError):
    """The gateway refused."""

    def __init__(self, status: int, error: dict[str, Any]) -> None:
        super().__init__(str(error.get("message", "The gateway refused.")))
        self.status, self.wire_code = status, error.get("code")


class Client:
    """A gateway, and the key that opens it."""

    def __init__(self, url: str, key: str, patience: float | None = None, source: str = "") -> None:
        self.url = url.rstrip("/").removesuffix("/v1")
        self._key, self._patience, self._source = key, patience, source

    def get(self, path: str, **query: Any) -> Any:
        given = {name: value for name, value in query.items() if value is not None}
        with _said_in_text():
            asked = urlencode(given)
        return self._json("GET", f"{path}?{asked}" if given else path)

    def post(self, path: str, body: Any = None, *, key: str | None = None) -> Any:
        """What is sent again under the same key is done once."""
        return self._json("POST", path, body, {"Idempotency-Key": key} if key is not None else None)

    def patch(self, path: str, body: Any) -> Any:
        return self._json("PATCH", path, body)

    def put(self, path: str, body: Any = None) -> Any:
        return self._json("PUT", path, body)

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

    def follow(self, path: str, after: str | None) -> "Following":
        """A stream that is told from event `after` on, until somebody closes it."""
        connection = self._connection(SILENT)
        return Following(connection, self._under(path), self._headers | ({"Last-Event-ID": after} if after else {}))

    def lines(self, path: str) -> Iterator[dict[str, Any]]:
        """What is told in JSON lines, line by line."""
        with self._asked("POST", path) as response:
            for line in response:
                yield json.loads(line)

    def download(self, path: str, file: IO[bytes], on_bytes: Callable[[int, int], None]) -> None:
        """Write what is answered into a file; `on_bytes` hears how many came now, and how many there are."""
        with self._asked("POST", path) as response:
            total = left = int(response.headers["content-length"])
            while chunk := response.read(CHUNK):
                left -= len(chunk)
                try:
                    file.write(chunk)
                except OSError as error:
                    raise StoreUnavailable(f"{file.name} cannot be written: {error.strerror}.") from error
                on_bytes(len(chunk), total)
        if left:
            raise StoreUnavailable(f"The gateway at {self.url} left before it had sent everything.")

    def greet(self) -> None:
        """Make sure that a gateway answers there; the key is not shown to whoever that is."""
        with Client(self.url, "")._asked("GET", "/healthz", timeout=QUICK) as response:
            told = response.read()
        try:
            healthy = json.loads(told)["status"] == "ok"
        except (ValueError, KeyError, TypeError):
            healthy = False
        if not healthy:
            raise StoreUnavailable(f"What answers at {self.url} is no Legato gateway. Check LEGATO_URL.")

    def alive(self) -> bool:
        """Whether one answers."""
        try:
            self.greet()
        except LegatoError:
            return False
        return True

    def _json(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: dict[str, str] | None = None,
    ) -> Any:
        with self._asked(method, path, body, headers) as response:
            return json.loads(response.read())

    @contextmanager
    def _asked(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: dict[str, str] | None = None,
        timeout: float | None = None,
        chunks: Iterable[bytes] | None = None,
    ) -> Iterator[http.client.HTTPResponse]:
        connection = self._connection(timeout or self._patience)
        path = self._under(path)
        given = self._headers | (headers or {})
        if chunks is not None:
            given |= {"Content-Type": "application/jsonl", "Transfer-Encoding": "chunked"}
        try:
            with _told_plainly(self.url):
                sent = chunks if chunks is not None else _encoded(body) if body is not None else None
                connection.request(method, path, sent, given, encode_chunked=chunks is not None)
                response = connection.getresponse()
                _check_ours(response, self.url)
                if response.status >= 400:
                    raise self._refused(response.status, _error(response.read()))
                yield response
        finally:
            connection.close()

    def _refused(self, status: int, error: dict[str, Any]) -> Refused:
        if status == 401 and self._source:
            error = {**error, "message": f"The gateway at {self.url} does not know the key {self._source}"}
        if status == 404 and urlsplit(self.url).path and str(error.get("message")).startswith("There is no such route"):
            error = {**error, "message": f"There is no gateway at {self.url}. Check the path in LEGATO_URL."}
        return Refused(status, error)

    def _connection(self, timeout: float | None) -> http.client.HTTPConnection:
        scheme, host, port = parsed(self.url)
        kind = http.client.HTTPSConnection if scheme == "https" else http.client.HTTPConnection
        return kind(host, port, timeout=timeout)

    def _under(self, path: str) -> str:
        """A path where the gateway has it."""
        return urlsplit(self.url).path + path

    @property
    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._key}", "Content-Type": "application/json"}


class Following:
    """Events as they come, each with its id. Any thread may close it, and whoever reads is told that it ended."""

    def __init__(self, connection: http.client.HTTPConnection, path: str, headers: dict[str, str]) -> None:
        self._connection, self._where = connection, f"{connection.host}:{connection.port}"
        self.cursor: str | None = None
        with _told_plainly(self._where):
            connection.connect()
            self._socket: socket.socket = connection.sock
            connection.request("GET", path, None, headers)
            self._response = connection.getresponse()
        if self._response.status >= 400:
            raise Refused(self._response.status, _error(self._response.read()))

    def batches(self) -> Iterator[list[Told]]:
        """What came together is given together. The first may hold no event: it says where the stream begins, which is
        the `cursor` from then on."""
        rest = b""
        with _told_plainly(self._where):
            while got := self._response.read1(65536):
                *whole, rest = (rest + got).split(b"\n\n")
                told = [event for block in whole if (event := _event(block)) is not None]
                if told:
                    self.cursor = told[-1][0]
                    yield [(place, data) for place, data in told if data is not None]
        self._connection.close()

    def close(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)


def parsed(url: str) -> tuple[str, str, int | None]:
    """The scheme, host and port of a gateway's address."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = None
    if not host or parts.scheme not in ("http", "https"):
        raise BadConfig(f"{url!r} is no address of a gateway; one looks like http://127.0.0.1:8420.")
    return parts.scheme, host, port


def path_of(*parts: str) -> str:
    """A path with its parts quoted."""
    with _said_in_text():
        return "/" + "/".join(quote(part, safe="") for part in parts)


@contextmanager
def gateway(home: Path | None) -> Iterator[Client]:
    """The gateway that `LEGATO_URL` names or that runs on this home, or a private one."""
    way = Way(home, lambda line: click.echo(line, err=True))
    try:
        yield way.find()
    finally:
        way.close()


def running(config: Config, patience: float | None = None) -> Client | None:
    """The gateway that `LEGATO_URL` names, or that runs on this home, if one does."""
    if config.client.url:
        return _opened(config, config.client.url, patience)
    url = _read(config.home / PLACE).partition(" ")[0]
    if url and (config.database.url or owned(config.home)) and Client(url, "").alive():
        return _opened(config, url, patience)
    return None


def _opened(config: Config, url: str, patience: float | None) -> Client:
    """A gateway with the key that is configured, or the one of the home."""
    if config.client.key:
        return Client(url, config.client.key, patience, f"of LEGATO_API_KEY (client.key). {ANOTHERS_KEY}")
    if config.client.url:
        return Client(url, home_key(config.home), patience, f"in {config.home / 'key'}. {ANOTHERS_KEY}")
    return _opened_by_home(config.home, url, patience)


def _opened_by_home(home: Path, url: str, patience: float | None) -> Client:
    key = home_key(home)
    if not key:
        return Client(url, key, patience, f"in {home / 'key'}, for there is none. Start it again, and it makes one.")
    return Client(url, key, patience, f"in {home / 'key'}. If it was revoked: {ANOTHER_KEY}")


class Way:
    """The way to the gateway of a home. Where a private one ended, whoever needs one starts the next; where it was
    `legato serve`, it is waited for, because a private one would take its place."""

    def __init__(
        self,
        home: Path | None,
        say: Callable[[str], None],
        what: str = "command",
        patience: float | None = None,
    ) -> None:
        self._config, _ = load(home)
        self.home = self._config.home
        self._say, self._what, self._patience = say, what, patience
        self._process: subprocess.Popen[bytes] | None = None
        self._kept = False
        self._finding = threading.Lock()

    def find(self) -> Client:
        """Where the gateway is now. Any thread may ask."""
        with self._finding:
            return self._found()

    def hush(self) -> None:
        """Say nothing from now on: the terminal is drawn upon."""
        self._say = lambda line: None

    def _found(self) -> Client:
        config = self._config
        if (client := running(config, self._patience)) is not None:
            if not config.client.url:
                self._kept = _read(config.home / PLACE).partition(" ")[2] != PRIVATE
            return client
        if self._kept:
            raise StoreUnavailable(f"No gateway runs on {self.home} any more. Start it again with: legato serve")
        if not config.database.url and owned(config.home):
            raise StoreUnavailable(
                f"A process holds the database in {config.home} and does not answer (legato.db.lock says which). "
                f"Wait until it has started, or end it."
            )
        return _opened_by_home(config.home, self._start(), self._patience)

    def close(self) -> None:
        """End the private gateway, if there is one of ours, once the turns that run are done. Ctrl-C leaves them for
        the next gateway."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.communicate(timeout=60)
        except KeyboardInterrupt:
            self._process.terminate()
            self._process.communicate(timeout=60)
        self._process = None

    @property
    def owner(self) -> bool:
        """Whether a private gateway of ours runs."""
        return self._process is not None

    def _start(self) -> str:
        """A gateway that ends with us."""
        self.close()
        self._say(f"legato: no gateway runs on {self.home}; a private one serves this {self._what}")
        command = [
            sys.executable,
            "-m",
            "legato.cli.main",
            "serve",
            "--private",
            "--home",
            str(self.home),
            "--host",
            "127.0.0.1",
            "--port",
            "0",
        ]
        environ = {**os.environ, "LEGATO_LOG__LEVEL": "error"}
        with tempfile.TemporaryFile() as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environ,
                start_new_session=True,  # Ctrl-C is for the command
            )
            assert self._process.stdout is not None
            first = self._process.stdout.readline().decode().split()
            if len(first) < 4:
                self.close()
                errors.seek(0)
                raise StoreUnavailable(errors.read().decode().strip().removeprefix("legato: "))
        return first[3]


def owned(home: Path) -> bool:
    """Whether a process owns the store. One that was killed left its address behind, where anyone may listen now."""
    try:
        with (home / "legato.db.lock").open("rb") as file:
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
    except (OSError, UnicodeDecodeError) as error:
        raise StoreUnavailable(f"{path} cannot be read: {error}.") from error


@contextmanager
def _told_plainly(where: str) -> Iterator[None]:
    try:
        yield
    except (OSError, http.client.HTTPException) as error:
        why = (isinstance(error, OSError) and error.strerror) or error
        raise StoreUnavailable(
            f"The gateway at {where} does not answer: {why}. Start it, or check LEGATO_URL."
        ) from error


def _check_ours(response: http.client.HTTPResponse, url: str) -> None:
    """Every answer of a gateway has a request id. A proxy before it may speak for itself, when it is not there."""
    if response.headers["x-request-id"] is None:
        what = f"{response.status}, {response.headers.get_content_type()}"
        raise StoreUnavailable(f"What answers at {url} is no Legato gateway ({what}). Check LEGATO_URL.")


def _encoded(body: Any) -> bytes:
    with _said_in_text():
        return json.dumps(body, ensure_ascii=False).encode()


@contextmanager
def _said_in_text() -> Iterator[None]:
    """A shell hands on any bytes; a gateway takes text."""
    try:
        yield
    except UnicodeEncodeError as error:
        raise BadInput("What was given is no text: it is not UTF-8.") from error


def _event(block: bytes) -> tuple[str, dict[str, Any] | None] | None:
    """One event of a stream, or only its place; a comment is none."""
    place, data = "", None
    for line in block.split(b"\n"):
        if line.startswith(b"id: "):
            place = line[4:].decode()
        elif line.startswith(b"data: "):
            data = json.loads(line[6:])
    return (place, data) if place else None


def _error(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body)["error"]
        return found if isinstance(found, dict) else {"message": str(found)}
    except (ValueError, KeyError, TypeError):
        return {"message": body[:200].decode(errors="replace")}
