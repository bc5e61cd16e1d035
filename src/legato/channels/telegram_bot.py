"""A bot on Telegram: the few calls of its Bot API that a conversation needs; every failure becomes one of ours.

The API is a form to post and JSON to read, and the libraries for it bring every type that it has: loading one took 4 s
of CPU and 147 MB at each start (decision 0018). The tests hold what is sent here against what such a library sends.

The token is part of every path, so no path is ever part of a sentence.
"""

import asyncio
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

import msgspec
from msgspec import Raw, Struct

from legato.channels.telegram_message import User
from legato.engine.protocols import Doubtful, NotSent, Rejected
from legato.errors import BadConfig
from legato.outgoing import NoConnection, Server

PLATFORM = "https://api.telegram.org"
ANSWER = 60.0  # seconds
LARGEST = 32 * 1024 * 1024  # bytes of an answer
HEARD = ["message"]
PLAINLY = ("can't parse entities", "message is too long", "message text is empty", "text must be non-empty")

_TOKEN = re.compile(r"[0-9]{1,32}:[A-Za-z0-9_-]{1,256}")
_FORM = {"Content-Type": "application/x-www-form-urlencoded"}

T = TypeVar("T")


class _More(Struct, frozen=True):
    """What a refusal tells besides its reason."""

    retry_after: float | None = None
    migrate_to_chat_id: int | None = None


class _Told(Struct):
    """Every answer of Telegram."""

    ok: bool
    result: Raw = Raw(b"null")
    description: str = ""
    parameters: _More = _More()


class _Sent(Struct):
    message_id: int


class _File(Struct):
    file_path: str = ""


class Moved(Rejected):
    """The group has another number now."""

    def __init__(self, chat: int) -> None:
        super().__init__()
        self.chat = chat


class TelegramBot:
    """Calls to the Bot API. Fails with `NotSent`, `Rejected` or `Doubtful`, nothing else."""

    def __init__(self, account: str, token: str, base_url: str, answer: float = ANSWER) -> None:
        self._account, self._token, self._answer = account, token, answer
        try:
            self._server: Server | None = Server(base_url or PLATFORM, repeatable=False)
        except BadConfig:
            self._server = None

    async def me(self) -> User:
        return await self._ask("getMe", User)

    async def offer(self, commands: list[tuple[str, str]]) -> None:
        """Show the commands in the menu."""
        menu = [{"command": name, "description": help[:256]} for name, help in commands]
        await self._ask("setMyCommands", bool, {"commands": menu})

    async def updates(self, offset: int, wait: int) -> list[dict[str, Any]]:
        """What is there from an update on, as it comes: one that cannot be read must not hide the others. Those before
        it are acknowledged by this."""
        asked = {"offset": offset, "timeout": wait, "allowed_updates": HEARD}
        return await self._ask("getUpdates", list[dict[str, Any]], asked, held=wait)

    async def come_to(self, url: str, secret: str) -> None:
        """Let Telegram post what it has."""
        await self._ask("setWebhook", bool, {"url": url, "secret_token": secret, "allowed_updates": HEARD})

    async def wait_for_us(self) -> None:
        """Let Telegram keep what it has until we ask."""
        await self._ask("deleteWebhook", bool)

    async def send(
        self, chat: str, thread: str, text: str, html: str, reply_to: str | None, *, moved: bool = False
    ) -> str:
        """Send a message; plainly where Telegram does not understand the formatted one, and after a group that has
        moved, once."""
        reply = {"message_id": int(reply_to), "allow_sending_without_reply": True} if reply_to else None
        said = {"text": html or text, "parse_mode": "HTML" if html else None, "reply_parameters": reply}
        try:
            sent = await self._ask("sendMessage", _Sent, _place(chat, thread) | said)
        except Moved as group:
            if moved:
                raise
            return await self.send(str(group.chat), thread, text, html, None, moved=True)
        except Rejected as refusal:
            if not html or not any(reason in refusal.message.lower() for reason in PLAINLY):
                raise
            return await self.send(chat, thread, text, "", reply_to, moved=moved)
        return str(sent.message_id)

    async def edit(self, chat: str, message: str, text: str, html: str) -> None:
        """Change a message; one that says so already is fine."""
        which = {"message_id": int(message)}
        said = {"text": html or text, "parse_mode": "HTML" if html else None}
        try:
            await self._ask("editMessageText", Raw, _place(chat) | which | said)
        except Rejected as refusal:
            if html and any(reason in refusal.message.lower() for reason in PLAINLY):
                await self.edit(chat, message, text, "")
            elif "message is not modified" not in refusal.message.lower():
                raise

    async def typing(self, chat: str, thread: str) -> None:
        await self._ask("sendChatAction", bool, _place(chat, thread) | {"action": "typing"})

    async def fetch(self, file_id: str, most: int) -> tuple[bytes, str]:
        """A file, and its path there; `Rejected` when it has more bytes than that."""
        path = (await self._ask("getFile", _File, {"file_id": file_id})).file_path
        try:
            status, data = await self._exchange("GET", f"/file/bot{self._token}/{quote(path)}", most=most + 1)
        except OSError as error:
            raise NotSent(f"The file could not be fetched: {type(error).__name__}.") from error
        if status != 200:
            raise NotSent(f"The file could not be fetched: Telegram answered {status}.")
        if len(data) > most:
            raise Rejected("The file is too large.")
        return data, path

    def close(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _ask(
        self, method: str, answer: type[T], given: Mapping[str, object] = MappingProxyType({}), *, held: float = 0.0
    ) -> T:
        """Ask Telegram, which may hold the question for so many seconds."""
        if not _TOKEN.fullmatch(self._token):
            raise self._bad_token()
        form = urlencode({name: _written(value) for name, value in given.items() if value is not None}).encode()
        try:
            status, data = await self._exchange("POST", f"/bot{self._token}/{method}", form, held=held)
        except NoConnection as error:
            raise NotSent(f"Telegram cannot be reached: {error}.") from error
        except TimeoutError as error:
            raise Doubtful("Telegram did not answer in time, and may have taken it.") from error
        except OSError as error:
            name = type(error).__name__
            raise Doubtful(f"The connection to Telegram broke ({name}); it may have been taken.") from error
        try:
            told = msgspec.json.decode(data, type=_Told)
            if told.ok and status == 200:
                return msgspec.json.decode(told.result, type=answer)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            told = _Told(False)
        raise self._refused(status, told)

    async def _exchange(
        self, method: str, path: str, body: bytes = b"", *, held: float = 0.0, most: int = LARGEST
    ) -> tuple[int, bytes]:
        if self._server is None:
            raise NotSent("The channel's base_url is no URL.")
        async with (
            asyncio.timeout(held + self._answer),
            self._server.ask(method, path, body, _FORM if body else {}) as answer,
        ):
            return answer.status, await answer.text(most)

    def _refused(self, status: int, told: _Told) -> NotSent | Rejected | Doubtful:
        """Our sentence for what is no answer."""
        wait, moved = told.parameters.retry_after, told.parameters.migrate_to_chat_id
        if status == 200:
            return Doubtful("Telegram's answer could not be read.")
        if status >= 500:
            return Doubtful("Telegram had trouble of its own, and may have taken it.")
        if status == 429:
            return NotSent(f"Telegram asks to wait{f' {wait:.0f} seconds' if wait else ''}.", wait)
        if status in (401, 404):
            return self._bad_token()
        if status == 409:
            return NotSent("Another program takes this bot's messages; only one can. Stop it, or use another bot.")
        if moved is not None:
            return Moved(moved)
        return Rejected(f"Telegram refused: {told.description.replace(self._token, '…') or status}.")

    def _bad_token(self) -> NotSent:
        return NotSent(
            f"Telegram does not know the bot's token. Set channels.{self._account}.token as BotFather gave it."
        )


def _place(chat: str, thread: str = "") -> dict[str, object]:
    return {"chat_id": int(chat), "message_thread_id": int(thread) if thread else None}


def _written(value: object) -> str:
    """A value as a form carries it."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
