"""A provider that says what a test tells it to say, when the test tells it to: a Chat Completions server on loopback.

Each request takes the next talk, one for a summary the next summary: when a past is summarised beside its talk, which
of the two asks first is nobody's promise. A talk is fed chunk by chunk, so a test knows exactly how far a turn can have
come.
"""

import json
import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from api.server import BOUND
from legato.engine.compaction import INSTRUCTIONS


class Talk:
    """One answer, in the making."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.status = 200
        self.headers = {"Content-Type": "text/event-stream"}
        self._chunks: queue.Queue[dict[str, Any] | None] = queue.Queue()

    def say(self, text: str) -> None:
        self.delta(content=text)

    def refuse(self, text: str) -> None:
        self.delta(refusal=text)

    def think(self, text: str) -> None:
        self.delta(reasoning_content=text)

    def call(self, name: str, arguments: str, index: int = 0) -> None:
        """Call a tool, the arguments in two pieces."""
        half = len(arguments) // 2
        function = {"name": name, "arguments": arguments[:half]}
        self.delta(tool_calls=[{"index": index, "id": f"call_{name}_{index}", "function": function}])
        self.delta(tool_calls=[{"index": index, "function": {"arguments": arguments[half:]}}])

    def delta(self, **delta: Any) -> None:
        self._chunks.put({"choices": [{"index": 0, "delta": delta}]})

    def end(self, reason: str = "stop") -> None:
        usage = {"prompt_tokens": 7, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 3}}
        self._chunks.put({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}], "usage": usage})
        self._chunks.put(None)

    def turn_down(self, status: int, message: str, **headers: str) -> None:
        """Answer with nothing but an error. It must be known before the request comes."""
        self.status, self.headers = status, {name.replace("_", "-"): value for name, value in headers.items()}
        self.fail(message)

    def fail(self, message: str) -> None:
        self._chunks.put({"error": {"message": message}})
        self._chunks.put(None)

    def chunks(self) -> Iterator[dict[str, Any]]:
        self.asked.set()
        while (chunk := self._chunks.get(timeout=BOUND)) is not None:
            yield chunk


class Upstream:
    """The provider. `received` are the bodies it was sent."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.received: list[dict[str, Any]] = []
        self._talks: queue.Queue[Talk] = queue.Queue()
        self._summaries: queue.Queue[Talk] = queue.Queue()

    @property
    def settings(self) -> dict[str, str]:
        """What makes a server use it."""
        return {"LEGATO_MODELS__UPSTREAM__KIND": "openai-chat", "LEGATO_MODELS__UPSTREAM__BASE_URL": self.url}

    def talk(self) -> Talk:
        """What the next request is answered."""
        talk = Talk()
        self._talks.put(talk)
        return talk

    def summary(self) -> Talk:
        """What the next request for a summary is answered."""
        talk = Talk()
        self._summaries.put(talk)
        return talk

    def take(self, body: dict[str, Any]) -> Talk:
        self.received.append(body)
        is_summary = INSTRUCTIONS in str(body["messages"][0]["content"])
        return (self._summaries if is_summary else self._talks).get(timeout=BOUND)


@contextmanager
def open_upstream() -> Iterator[Upstream]:
    """A provider that listens until the end of the block."""

    class Requests(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            talk = upstream.take(body)
            prefix, end = (b"data: ", b"data: [DONE]\n\n") if talk.status == 200 else (b"", b"")
            with suppress(OSError):  # the gateway was killed, or stopped listening
                self.send_response(talk.status)
                for name, value in talk.headers.items():
                    self.send_header(name, value)
                self.end_headers()
                for chunk in talk.chunks():
                    self.wfile.write(prefix + json.dumps(chunk).encode() + b"\n\n")
                self.wfile.write(end)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Requests) as listener:
        listener.daemon_threads = True
        upstream = Upstream(f"http://127.0.0.1:{listener.server_address[1]}/v1")
        thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        yield upstream
        listener.shutdown()
        thread.join(BOUND)
