"""A bridge between Legato and anything that can send and receive text, in the standard library alone.

    python examples/bridge.py http://127.0.0.1:8420/channels/mine 9000 SECRET

Here the platform is this terminal: each line that you type is a message of chat `desk`, each answer is printed. Replace
`typed` and `said` with your platform's own. Everything else stays: both ways are signed over the time and the raw body,
what comes in is known by its key when it is sent again, and what goes out is repeated until it was taken.
"""

import hashlib
import hmac
import json
import sys
import threading
import time
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

GATEWAY, PORT, SECRET = sys.argv[1], int(sys.argv[2]), sys.argv[3]
SEEN: set[str] = set()  # keep it on disk, if your platform must never hear a thing twice


def signature(timestamp: str, body: bytes) -> str:
    return "v1=" + hmac.new(SECRET.encode(), timestamp.encode() + b"." + body, hashlib.sha256).hexdigest()


class Answers(BaseHTTPRequestHandler):
    """What Legato posts to us."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        timestamp = self.headers.get("X-Legato-Timestamp", "0")
        genuine = hmac.compare_digest(signature(timestamp, body), self.headers.get("X-Legato-Signature", ""))
        if not genuine or abs(time.time() - float(timestamp)) > 300:
            self.send_error(403)
            return
        message = json.loads(body)
        if not message["key"] or message["key"] not in SEEN:
            said(message["chat"], message["text"])
            SEEN.add(message["key"])
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def said(chat: str, text: str) -> None:
    print(f"[{chat}] {text}", flush=True)


def typed(text: str, message_id: str) -> None:
    body = json.dumps({"id": message_id, "chat": "desk", "sender": {"id": "me", "name": "Me"}, "text": text}).encode()
    while True:
        timestamp = str(int(time.time()))
        headers = {"X-Legato-Timestamp": timestamp, "X-Legato-Signature": signature(timestamp, body)}
        try:
            urllib.request.urlopen(urllib.request.Request(GATEWAY, body, headers), timeout=60).close()
            return
        except (urllib.error.URLError, OSError) as error:
            if isinstance(error, urllib.error.HTTPError) and error.code < 500:
                print(f"refused: {error.read().decode()}", flush=True)
                return
            time.sleep(1)


if __name__ == "__main__":
    threading.Thread(target=ThreadingHTTPServer(("127.0.0.1", PORT), Answers).serve_forever, daemon=True).start()
    for number, line in enumerate(sys.stdin):
        typed(line.rstrip("\n"), f"{time.time_ns()}-{number}")
    time.sleep(600)
