"""A `legato serve` process, and how a client talks to it."""

import http.client
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from forked import Process

LEGATO = str(Path(sys.executable).with_name("legato"))
BOUND = 60.0
Env = dict[str, str]
Preparation = Callable[[], None]


class Answer(Struct, frozen=True):
    """What a request got back."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def text(self) -> str:
        """What the agent said last."""
        said = [item for item in self.json["output"] if item["type"] == "message"]
        return "".join(part["text"] for part in said[-1]["content"])

    @property
    def error(self) -> dict[str, Any]:
        """The error in its envelope."""
        envelope = self.json
        assert list(envelope) == ["error"], envelope
        error: dict[str, Any] = envelope["error"]
        return error


class Output:
    """The lines of a stream as they come."""

    def __init__(self, stream: IO[bytes]) -> None:
        self.lines: list[str] = []
        self._news = threading.Condition()
        self._ended = False
        self._reader = threading.Thread(target=self._read, args=(stream,), daemon=True)
        self._reader.start()

    def wait_for(self, count: int, wanted: Callable[[str], bool] = lambda line: True) -> list[str]:
        """The first `count` lines that are wanted, once they are there."""

        def found() -> list[str]:
            return [line for line in self.lines if wanted(line)][:count]

        with self._news:
            assert self._news.wait_for(lambda: self._ended or len(found()) == count, BOUND), self.lines
            assert len(found()) == count, self.lines
            return found()

    def close(self) -> list[str]:
        """All lines, when nothing more will come."""
        self._reader.join(BOUND)
        return self.lines

    def _read(self, stream: IO[bytes]) -> None:
        with stream:
            for line in stream:
                with self._news:
                    self.lines.append(line.decode().rstrip("\n"))
                    self._news.notify_all()
        with self._news:
            self._ended = True
            self._news.notify_all()


class Server:
    """A gateway that listens. Made by the fixture `serve`."""

    def __init__(
        self,
        home: Path,
        *options: str,
        env: Env | None = None,
        prepare: Preparation | None = None,
        anew: bool = False,
    ) -> None:
        self.home = home
        self.process = start(
            ["serve", "--home", str(home), *(options or ("--port", "0"))], env=env, prepare=prepare, anew=anew
        )
        assert self.process.stdout
        assert self.process.stderr
        self.stdout, self.stderr = Output(self.process.stdout), Output(self.process.stderr)
        self.banner = self.stdout.wait_for(5)
        self.url = self.banner[0].split()[-1]
        self.key = (home / "key").read_text().strip()

    # -- what clients do

    def get(self, path: str, **headers: str) -> Answer:
        return self._request("GET", path, None, headers)

    def say(self, text: str | list[dict[str, Any]], conversation: str = "talk", **more: Any) -> Answer:
        """Say something in a named conversation, and wait for the answer."""
        body = {"conversation": conversation, "input": text, **more}
        return self._request("POST", "/v1/responses", body, {"authorization": f"Bearer {self.key}"})

    def post(self, body: Any, **headers: str) -> Answer:
        return self._request("POST", "/v1/responses", body, headers)

    def said(self, conversation: str = "talk") -> list[tuple[str, str]]:
        """Everything that was said in a conversation, as (role, text)."""
        path = f"/v1/conversations/{conversation}/items?limit=100&order=asc"
        answer = self.get(path, authorization=f"Bearer {self.key}")
        assert answer.status == 200, answer
        messages = [item for item in answer.json["data"] if item["type"] == "message"]
        return [(item["role"], "".join(part["text"] for part in item["content"])) for item in messages]

    def _request(self, method: str, path: str, body: Any, headers: dict[str, str]) -> Answer:
        address = urlsplit(self.url)
        connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=BOUND)
        try:
            data = None if body is None else msgspec.json.encode(body)
            connection.request(method, path, data, headers)
            response = connection.getresponse()
            return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
        finally:
            connection.close()

    # -- what its operator sees and does

    def logged(self, event: str, count: int = 1) -> list[dict[str, Any]]:
        """The first lines of the log that tell of this, once they are there."""
        return [json.loads(line) for line in self.stderr.wait_for(count, lambda line: f'"event":"{event}"' in line)]

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def end(self) -> int:
        """Wait for the process; its exit code."""
        code = self.process.wait(BOUND)
        self.stdout.close()
        self.stderr.close()
        return code

    def kill(self) -> None:
        self.process.kill()
        self.end()


def environment(more: Env | None = None) -> Env:
    """The environment without settings of ours but those given."""
    return {**{k: v for k, v in os.environ.items() if not k.startswith("LEGATO_")}, **(more or {})}


def start(
    command: list[str], *, env: Env | None = None, prepare: Preparation | None = None, anew: bool = False
) -> "Process | subprocess.Popen[bytes]":
    """Start a command of ours; from nothing where that matters, or where the process is prepared."""
    if prepare is None and not anew:
        return Process([LEGATO, *command], env=environment(env), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    return subprocess.Popen(
        [LEGATO, *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(env),
        preexec_fn=prepare,
    )


def run(*command: str, env: Env | None = None, prepare: Preparation | None = None) -> tuple[int, str]:
    """Run a command of ours that ends by itself: its exit code, and everything it said."""
    process = start(list(command), env=env, prepare=prepare)
    assert process.stdout
    assert process.stderr
    stdout, stderr = Output(process.stdout), Output(process.stderr)
    code = process.wait(BOUND)
    return code, "".join(f"{line}\n" for line in (*stdout.close(), *stderr.close()))
