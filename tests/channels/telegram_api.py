"""A stand-in of Telegram's Bot API: a real HTTP server in a thread, with what a platform does wrong on request.

Updates are kept until they are acknowledged by an offset beyond them; of two who ask at once the earlier is turned
away. Formatted text is parsed, and refused when its tags do not match or what is left of it is too long.
"""

import asyncio
import json
import threading
from collections.abc import Callable
from html.parser import HTMLParser
from typing import Any

from aiohttp import web
from msgspec import Struct, structs

TOKEN = "12345:canary-token-AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw"
ME = {"id": 12345, "is_bot": True, "first_name": "Legato", "username": "legato_bot"}
BOUND = 60.0
LIMIT = 4096


class Sent(Struct, frozen=True):
    """A message that Telegram took, as a person sees it."""

    id: int
    chat: int
    thread: int | None
    text: str
    reply_to: int | None
    formatted: str


class Fault(Struct):
    """What goes wrong with a call: `taken` says whether Telegram takes it nevertheless."""

    status: int = 0  # 0: the connection is cut
    description: str = ""
    taken: bool = False
    retry_after: int = 0
    delay: float = 0.0
    chat: int | None = None
    times: int = 1
    only_formatted: bool = False
    migrate_to_chat_id: int = 0
    body: str = ""  # something that is no JSON


class TelegramApi:
    """The platform. Everything public may be called from the thread of a test."""

    def __init__(self, token: str = TOKEN) -> None:
        self.token = token
        self.sent: list[Sent] = []
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.files: dict[str, bytes] = {}
        self.webhook: dict[str, Any] = {}
        self.news = threading.Condition(threading.RLock())
        self._updates: dict[int, dict[str, Any]] = {}
        self._history: dict[int, dict[str, Any]] = {}
        self._faults: dict[str, list[Fault]] = {}
        self._ids: dict[int, int] = {}
        self._runner = asyncio.Runner()
        self._loop = self._runner.get_loop()
        self._arrived = asyncio.Event()
        self._asking = 0
        self._stop = asyncio.Event()
        started = threading.Event()
        self._thread = threading.Thread(target=lambda: self._runner.run(self._serve(started)), daemon=True)
        self._thread.start()
        assert started.wait(BOUND)

    # -- what people do

    def write(self, text: str, *, by: int = 7, chat: int | None = None, name: str = "Ada", **more: Any) -> int:
        """Somebody writes; a private chat has the number of the person. Returns the update's number."""
        chat = by if chat is None else chat
        kind = more.pop("kind", "private" if chat > 0 else "supergroup")
        with self.news:
            message = {
                "message_id": self._next(chat),
                "date": 0,
                "chat": {"id": chat, "type": kind},
                "from": {"id": by, "is_bot": False, "first_name": name},
                **({"text": text, "entities": _entities(text)} if text else {}),
                **more,
            }
            update: dict[str, Any] = {"update_id": 1000 + len(self._history), "message": message}
            self._history[update["update_id"]] = self._updates[update["update_id"]] = update
        self._loop.call_soon_threadsafe(self._arrived.set)
        return int(update["update_id"])

    def redeliver(self, update: int | None = None) -> None:
        """One update, or every one, comes once more, as after an acknowledgement that was lost."""
        with self.news:
            again = self._history if update is None else {update: self._history[update]}
            self._updates = {**again, **self._updates}
        self._loop.call_soon_threadsafe(self._arrived.set)

    def fault(self, method: str, **how: Any) -> None:
        """Let the next calls fail."""
        with self.news:
            self._faults.setdefault(method, []).append(Fault(**how))

    # -- what people see

    def texts(self, chat: int) -> list[str]:
        return [sent.text for sent in self.sent if sent.chat == chat]

    def wait_for(self, condition: Callable[[], Any]) -> Any:
        """What a condition says, once it holds."""
        with self.news:
            assert self.news.wait_for(condition, BOUND), (self.sent[-5:], self.calls[-5:])
            return condition()

    def answers(self, chat: int, count: int) -> list[str]:
        """The first messages to a chat, once so many are there."""
        self.wait_for(lambda: len(self.texts(chat)) >= count)
        return self.texts(chat)

    def called(self, method: str) -> list[dict[str, Any]]:
        return [given for name, given in self.calls if name == method]

    def acknowledged(self, update: int | None = None) -> bool:
        """Whether an update, or every one, was taken for all that Telegram knows."""
        return not self._updates if update is None else update not in self._updates

    def message(self, update: int) -> int:
        """The number of a message in its chat."""
        return int(self._history[update]["message"]["message_id"])

    def unheard(self) -> list[dict[str, Any]]:
        """The updates that nobody has acknowledged."""
        return [self._updates[id] for id in sorted(self._updates)]

    def stop_listening(self) -> None:
        """The platform is gone."""
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(BOUND)

    def stop(self) -> None:
        if self._thread.is_alive():
            self.stop_listening()
        self._runner.close()

    # -- the API

    async def _serve(self, started: threading.Event) -> None:
        app = web.Application()
        app.router.add_post("/bot{token}/{method}", self._call)
        app.router.add_get("/file/bot{token}/{path:.*}", self._file)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        started.set()
        await self._stop.wait()
        await runner.cleanup()

    async def _file(self, request: web.Request) -> web.Response:
        data = self.files.get(request.match_info["path"])
        if request.match_info["token"] != self.token or data is None:
            return web.Response(status=404)
        return web.Response(body=data)

    async def _call(self, request: web.Request) -> web.Response:
        if request.match_info["token"] != self.token:
            return _no(401, "Unauthorized")
        form = await request.post()
        method = request.match_info["method"]
        given: dict[str, Any] = {
            name: str(value) if name == "text" else _value(str(value)) for name, value in form.items()
        }
        with self.news:
            self.calls.append((method, given))
            fault = self._fault_for(method, given)
            self.news.notify_all()
        if fault is None:
            return await self._done(method, given)
        if fault.taken:
            await self._done(method, given)
        await asyncio.sleep(fault.delay)
        if fault.status == 0:
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        if fault.body:
            return web.Response(status=fault.status, text=fault.body)
        more = {"retry_after": fault.retry_after, "migrate_to_chat_id": fault.migrate_to_chat_id}
        return _no(fault.status, fault.description, **more) if fault.status != 200 else _yes(True)

    def _fault_for(self, method: str, given: dict[str, Any]) -> Fault | None:
        for fault in self._faults.get(method, []):
            if fault.times and fault.chat in (None, given.get("chat_id")):
                if fault.only_formatted and "parse_mode" not in given:
                    continue
                fault.times -= 1
                return fault
        return None

    async def _done(self, method: str, given: dict[str, Any]) -> web.Response:
        match method:
            case "getMe":
                return _yes(ME)
            case "getUpdates":
                return await self._get_updates(given)
            case "sendMessage" | "editMessageText":
                return self._send(given)
            case "getFile":
                path = str(given["file_id"])
                return _yes({"file_id": path, "file_unique_id": path, "file_path": path})
            case "setWebhook" | "deleteWebhook":
                self.webhook = given
                return _yes(True)
            case _:
                return _yes(True)

    async def _get_updates(self, given: dict[str, Any]) -> web.Response:
        self._asking = asking = self._asking + 1
        self._arrived.set()  # whoever asked before is turned away
        offset, until = given.get("offset", 0), self._loop.time() + given.get("timeout", 0)
        while True:
            self._arrived.clear()
            with self.news:
                self._updates = {id: update for id, update in self._updates.items() if id >= offset}
                found = [self._updates[id] for id in sorted(self._updates)][:100]
                self.news.notify_all()
            if asking != self._asking:
                return _no(409, "Conflict: terminated by other getUpdates request")
            if found or self._loop.time() >= until:
                return _yes(found)
            try:
                async with asyncio.timeout(until - self._loop.time()):
                    await self._arrived.wait()
            except TimeoutError:
                return _yes([])

    def _send(self, given: dict[str, Any]) -> web.Response:
        """A new message, or another text for one that was sent."""
        text = str(given["text"])
        if given.get("parse_mode") == "HTML":
            parsed = shown(text)
            if parsed is None:
                return _no(400, "Bad Request: can't parse entities: the tags do not match")
            text = parsed
        if not text.strip():
            return _no(400, "Bad Request: message text is empty")
        if len(text.encode("utf-16-le")) // 2 > LIMIT:
            return _no(400, "Bad Request: message is too long")
        chat = int(given["chat_id"])
        reply = given.get("reply_parameters") or {}
        with self.news:
            old = [
                place for place, sent in enumerate(self.sent) if (sent.chat, sent.id) == (chat, given.get("message_id"))
            ]
            if "message_id" in given and (not old or self.sent[old[0]].text == text):
                return _no(400, "Bad Request: message is not modified" if old else "Bad Request: message not found")
            if old:
                id = self.sent[old[0]].id
                self.sent[old[0]] = structs.replace(self.sent[old[0]], text=text, formatted=str(given["text"]))
            else:
                id = self._next(chat)
                self.sent.append(
                    Sent(id, chat, given.get("message_thread_id"), text, reply.get("message_id"), str(given["text"]))
                )
            self.news.notify_all()
        kind = "private" if chat > 0 else "supergroup"
        return _yes({"message_id": id, "date": 0, "chat": {"id": chat, "type": kind}, "from": ME, "text": text})

    def _next(self, chat: int) -> int:
        self._ids[chat] = self._ids.get(chat, 0) + 1
        return self._ids[chat]


def shown(html: str) -> str | None:
    """What Telegram shows of formatted text; None when it refuses it."""
    parsed = _Tags()
    return parsed.text if parsed.read(html) else None


class _Tags(HTMLParser):
    KNOWN = frozenset({"b", "i", "s", "u", "code", "pre", "a", "blockquote"})

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.text, self._open, self._wrong = "", list[str](), False

    def read(self, text: str) -> bool:
        self.feed(text)
        self.close()
        return not self._wrong and not self._open

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self._wrong = self._wrong or tag not in self.KNOWN
        self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        self._wrong = self._wrong or not self._open or self._open.pop() != tag

    def handle_data(self, data: str) -> None:
        self.text += data


def _entities(text: str) -> list[dict[str, Any]]:
    """Commands and mentions, as Telegram finds them; places are counted in UTF-16 units."""
    found, place = [], 0
    for word in text.replace("\n", " ").split(" "):
        length = len(word.encode("utf-16-le")) // 2
        if word.startswith(("/", "@")) and len(word) > 1:
            kind = "bot_command" if word.startswith("/") else "mention"
            found.append({"type": kind, "offset": place, "length": length})
        place += length + 1
    return found


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _yes(result: Any) -> web.Response:
    return web.json_response({"ok": True, "result": result})


def _no(status: int, description: str, **parameters: int) -> web.Response:
    more = {name: value for name, value in parameters.items() if value}
    answer = {"ok": False, "error_code": status, "description": description, "parameters": more}
    return web.json_response(answer, status=status)
