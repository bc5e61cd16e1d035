"""A bot on Telegram, over aiogram; every failure becomes one of ours.

Loading aiogram takes seconds, so this file is imported when a bot is first needed, beside everything else. The token
is part of every URL, and the client's errors print URLs: nothing of them leaves this file but our own sentences.
"""

import logging
from typing import Any, TypeVar

import aiohttp
import structlog
from aiogram import Bot
from aiogram import exceptions as said
from aiogram.client.session.aiohttp import AiohttpSession
from aiogram.client.telegram import PRODUCTION, TelegramAPIServer
from aiogram.methods import (
    DeleteWebhook,
    EditMessageText,
    GetFile,
    GetMe,
    SendChatAction,
    SendMessage,
    SetMyCommands,
    SetWebhook,
    TelegramMethod,
)
from aiogram.types import BotCommand, ReplyParameters
from aiogram.utils.token import TokenValidationError

from legato.channels.telegram_message import User
from legato.engine.protocols import Doubtful, NotSent, Rejected

logger = structlog.get_logger(__name__)

T = TypeVar("T")

CONNECT, ANSWER = 10.0, 60.0
HEARD = ["message"]
PLAINLY = ("can't parse entities", "message is too long", "message text is empty", "text must be non-empty")

logging.getLogger("aiogram").setLevel(logging.CRITICAL)  # its lines may hold a URL


class RawUpdates(TelegramMethod[list[dict[str, Any]]]):
    """`getUpdates` with updates as they come: one that cannot be read must not hide the others."""

    __returning__ = list[dict[str, Any]]
    __api_method__ = "getUpdates"

    offset: int
    timeout: int
    allowed_updates: list[str] = HEARD


class Moved(Rejected):
    """The group has another number now."""

    def __init__(self, chat: int) -> None:
        super().__init__()
        self.chat = chat


class TelegramBot:
    """Calls to the Bot API. Fails with `NotSent`, `Rejected` or `Doubtful`, nothing else."""

    def __init__(self, account: str, token: str, base_url: str, answer: float = ANSWER) -> None:
        self._account, self._token, self._answer = account, token, answer
        server = TelegramAPIServer.from_base(base_url) if base_url else PRODUCTION
        self._bot: Bot | None = None
        try:
            self._bot = Bot(token, AiohttpSession(api=server))
        except TokenValidationError:
            logger.error("that is no token", channel=account)

    async def me(self) -> User:
        me = await self._ask(GetMe())
        return User(me.id, True, me.first_name, username=me.username or "")

    async def offer(self, commands: list[tuple[str, str]]) -> None:
        """Show the commands in the menu."""
        menu = [BotCommand(command=name, description=help[:256]) for name, help in commands]
        await self._ask(SetMyCommands(commands=menu))

    async def updates(self, offset: int, wait: int) -> list[dict[str, Any]]:
        """What is there from an update on; those before it are acknowledged by this."""
        return await self._ask(RawUpdates(offset=offset, timeout=wait), wait)

    async def come_to(self, url: str, secret: str) -> None:
        """Let Telegram post what it has."""
        await self._ask(SetWebhook(url=url, secret_token=secret, allowed_updates=HEARD))

    async def wait_for_us(self) -> None:
        """Let Telegram keep what it has until we ask."""
        await self._ask(DeleteWebhook())

    async def send(self, chat: str, thread: str, text: str, html: str, reply_to: str | None) -> str:
        """Send a message; plainly where Telegram does not understand the formatted one."""
        reply = ReplyParameters(message_id=int(reply_to), allow_sending_without_reply=True) if reply_to else None
        message = SendMessage(
            chat_id=int(chat),
            message_thread_id=int(thread) if thread else None,
            text=html or text,
            parse_mode="HTML" if html else None,
            reply_parameters=reply,
        )
        try:
            sent = await self._ask(message)
        except Moved as moved:
            return await self.send(str(moved.chat), thread, text, html, None)
        except Rejected as refusal:
            if not html or not any(reason in refusal.message.lower() for reason in PLAINLY):
                raise
            return await self.send(chat, thread, text, "", reply_to)
        return str(sent.message_id)

    async def edit(self, chat: str, message: str, text: str, html: str) -> None:
        """Change a message; one that says so already is fine."""
        change = EditMessageText(
            chat_id=int(chat), message_id=int(message), text=html or text, parse_mode="HTML" if html else None
        )
        try:
            await self._ask(change)
        except Rejected as refusal:
            if html and any(reason in refusal.message.lower() for reason in PLAINLY):
                await self.edit(chat, message, text, "")
            elif "message is not modified" not in refusal.message.lower():
                raise

    async def typing(self, chat: str, thread: str) -> None:
        where = int(thread) if thread else None
        await self._ask(SendChatAction(chat_id=int(chat), message_thread_id=where, action="typing"))

    async def fetch(self, file_id: str, most: int) -> tuple[bytes, str]:
        """A file, and its path there; `Rejected` when it has more bytes than that."""
        path = (await self._ask(GetFile(file_id=file_id))).file_path or ""
        data, bot = bytearray(), self._connected()
        try:
            async for chunk in bot.session.stream_content(bot.session.api.file_url(self._token, path), timeout=60):
                data += chunk
                if len(data) > most:
                    break
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            failure = type(error).__name__
        else:
            if len(data) <= most:
                return bytes(data), path
            raise Rejected("The file is too large.")
        raise NotSent(f"The file could not be fetched: {failure}.")

    async def close(self) -> None:
        if self._bot is not None:
            await self._bot.session.close()

    def _connected(self) -> Bot:
        if self._bot is None:
            raise self._bad_token()
        return self._bot

    async def _ask(self, method: TelegramMethod[T], held: float = 0.0) -> T:
        """Ask Telegram. A failure is raised outside of the handler, so that the client's own is not attached."""
        bot = self._connected()
        try:
            return await bot(method, request_timeout=_within(held + self._answer))
        except (said.AiogramError, aiohttp.ClientError, TimeoutError, OSError) as error:
            failure = self._failure(error)
        raise failure

    def _failure(self, error: Exception) -> NotSent | Rejected | Doubtful:
        """Our sentence for a failure of the client."""
        match error:
            case said.TelegramRetryAfter():
                return NotSent(f"Telegram asks to wait {error.retry_after} seconds.", float(error.retry_after))
            case said.TelegramUnauthorizedError() | said.TelegramNotFound():
                return self._bad_token()
            case said.TelegramMigrateToChat():
                return Moved(error.migrate_to_chat_id)
            case said.TelegramConflictError():
                return NotSent("Another program takes this bot's messages; only one can. Stop it, or use another bot.")
            case said.TelegramServerError():
                return Doubtful("Telegram had trouble of its own, and may have taken it.")
            case said.TelegramEntityTooLarge() | said.TelegramBadRequest() | said.TelegramForbiddenError():
                return Rejected(f"Telegram refused: {error.message.replace(self._token, '…')}.")
            case said.TelegramNetworkError():
                return _broken(error.__cause__)
            case said.TelegramAPIError():
                return Rejected(f"Telegram refused: {error.message.replace(self._token, '…')}.")
            case said.ClientDecodeError():
                return Doubtful("Telegram's answer could not be read.")
            case _:
                return _broken(error)

    def _bad_token(self) -> NotSent:
        return NotSent(
            f"Telegram does not know the bot's token. Set channels.{self._account}.token as BotFather gave it."
        )


def _broken(cause: BaseException | None) -> NotSent | Doubtful:
    """A connection that was not made has carried nothing; one that broke may have."""
    match cause:
        case aiohttp.ClientConnectorError():
            return NotSent(f"Telegram cannot be reached: {cause.os_error.strerror or type(cause).__name__}.")
        case aiohttp.ConnectionTimeoutError():
            return NotSent("Telegram cannot be reached: it does not answer.")
        case aiohttp.InvalidURL() | aiohttp.NonHttpUrlClientError():
            return NotSent("The channel's base_url is no URL.")
        case TimeoutError():
            return Doubtful("Telegram did not answer in time, and may have taken it.")
        case _:
            return Doubtful(f"The connection to Telegram broke ({type(cause).__name__}); it may have been taken.")


def _within(seconds: float) -> Any:
    """A bound for a request, with a nearer one for the connection: what did not connect was surely not sent. aiogram
    hands it to aiohttp as it is."""
    return aiohttp.ClientTimeout(total=seconds, sock_connect=CONNECT)
