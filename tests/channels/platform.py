"""A platform as a person sees it: write into a chat, read what the bot says there. A new channel joins the conformance
suite by one of these, added to `PLATFORMS`."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from typing import Any, Protocol

import httpx

from api.server import Server
from channels.telegram_chats import telegram
from legato.channels.signing import TIMESTAMP, proven, sign

BOUND = 60.0
SECRET = "canary-secret-of-the-bridge"
_numbers = count(1)


class Platform(Protocol):
    """What the suite does on a platform. `ann` may speak; `eve` is a stranger."""

    settings: dict[str, str]
    name: str

    def say(self, server: Server, chat: str, text: str, *, sender: str = "ann", again: str | None = None) -> str:
        """Write a message; returns its id when it was taken. `again` sends the message of that id once more."""
        ...

    def heard(self, chat: str, least: int = 1) -> list[str]:
        """Everything that the bot has said in a chat, once it is that much."""
        ...


class Bridge:
    """The other end of a webhook channel. `answer_with` says what it answers to the next posts: a status, or None to
    hang up after having taken it."""

    name = "mine"

    def __init__(self) -> None:
        self._news = threading.Condition()
        self.posts: list[dict[str, Any]] = []
        self.forged = 0
        self.faults: list[tuple[int, dict[str, str]] | None] = []
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._http.daemon_threads = True
        threading.Thread(target=self._http.serve_forever, daemon=True).start()
        self.settings = {
            "LEGATO_CHANNELS__MINE__KIND": "webhook",
            "LEGATO_CHANNELS__MINE__SECRET": SECRET,
            "LEGATO_CHANNELS__MINE__URL": f"http://127.0.0.1:{self._http.server_address[1]}/",
            "LEGATO_CHANNELS__MINE__ALLOW": "ann, bob",
            "LEGATO_CHANNELS__MINE__GATHER": "0.1",
        }

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()

    # -- what people do

    def say(
        self, server: Server, chat: str, text: str, *, sender: str = "ann", again: str | None = None, **more: Any
    ) -> str:
        message = again or f"m{next(_numbers)}"
        told = {"id": message, "chat": chat, "sender": _person(sender), "text": text, "nonce": next(_numbers), **more}
        answer = self.post(server, told)
        assert answer.status_code == 200, answer.text
        return message

    def post(self, server: Server, body: Any, **headers: str) -> httpx.Response:
        data = json.dumps(body).encode()
        signed = {**sign(SECRET, int(time.time()), data), **headers}
        return httpx.post(f"{server.url}/channels/mine", content=data, headers=signed, timeout=BOUND)

    def heard(self, chat: str, least: int = 1) -> list[str]:
        def said() -> list[str]:
            return [post["text"] for post in self.posts if post["chat"] == chat]

        self.wait(lambda: len(said()) >= least, lambda: f"{chat}: {said()}")
        return said()

    def wait(self, happened: Callable[[], bool], told: Callable[[], str]) -> None:
        with self._news:
            assert self._news.wait_for(happened, BOUND), told()

    # -- what the gateway does

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        bridge = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                signature = self.headers.get("x-legato-signature", "")
                genuine = proven(SECRET, self.headers.get(TIMESTAMP, ""), signature, body, time.time())
                with bridge._news:
                    fault = bridge.faults.pop(0) if bridge.faults else (200, {})
                    bridge.forged += not genuine
                    if fault is None or fault[0] == 200:
                        bridge._take(json.loads(body))
                    bridge._news.notify_all()
                if fault is None:
                    self.close_connection = True
                    return
                self.send_response(fault[0])
                for name, value in fault[1].items():
                    self.send_header(name, value)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        return Handler

    def _take(self, post: dict[str, Any]) -> None:
        """As a good bridge does: a key that was seen is not said again."""
        if not post["key"] or post["key"] not in {known["key"] for known in self.posts}:
            self.posts.append(post)


@contextmanager
def bridge() -> Iterator[Bridge]:
    made = Bridge()
    try:
        yield made
    finally:
        made.close()


def _person(name: str) -> dict[str, str]:
    return {"id": name, "name": name.title()}


PLATFORMS: dict[str, Callable[[], Any]] = {"webhook": bridge, "telegram": telegram}
"""Every channel that the conformance suite is run on."""
