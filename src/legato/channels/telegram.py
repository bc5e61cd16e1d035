"""Telegram: what people write to a bot comes in by asking for it (or by a webhook), what is owed to them goes out.

Telegram forgets a message when we ask for what comes after it. So we ask from the first one that is not safe yet, and
go on asking while it becomes so: what is typed in quick succession arrives together and is gathered into one turn.
"""

import asyncio
import hmac
import mimetypes
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Literal
from weakref import WeakValueDictionary

import msgspec

from legato.channels.telegram_bot import TelegramBot
from legato.channels.telegram_html import to_html
from legato.channels.telegram_message import KIND, Heard, Posted, Update, User, Wanted, heard
from legato.domain.attachments import Blob
from legato.domain.channels import Attached, Inbound
from legato.domain.handles import Address
from legato.engine.protocols import Doubtful, Inlet, NotSent, Rejected
from legato.errors import BadInput, Forbidden, LegatoError, Unavailable
from legato.logs import logger

LIMIT = 4096
SECRET_HEADER = "x-telegram-bot-api-secret-token"
LONG = 25  # seconds for which Telegram holds our question when nothing is there
PAUSE, MOST_PAUSE = 0.2, 1.0  # between questions while something is being taken; it would be told us again at once
AGAIN, MOST_AGAIN = 0.5, 30.0  # seconds until a message that could not be taken is tried again
FETCHED_AT_ONCE = 4
TRIES = 5  # of a message that cannot be taken for a reason that does not pass

_SECRET = re.compile(r"[A-Za-z0-9_-]{1,256}\Z")


class Telegram:
    """One bot."""

    kind = KIND
    repeatable = False

    def __init__(
        self,
        account: str,
        *,
        token: str,
        base_url: str = "",
        mode: Literal["poll", "webhook"] = "poll",
        url: str = "",
        secret: str = "",
        limit: int = LIMIT,
        max_attachment: int = 20_000_000,
    ) -> None:
        self.account, self.limit = account, min(limit, LIMIT)
        self.exclusive = mode == "poll"  # of two who ask, Telegram turns one away
        self._token = token
        self._bot = TelegramBot(account, token, base_url)
        self._mode, self._url, self._secret = mode, url, secret
        self._max_attachment = max_attachment
        self._me: User | None = None
        self._inlet: Inlet | None = None
        self._fetching = asyncio.Semaphore(FETCHED_AT_ONCE)
        self._order: WeakValueDictionary[int, asyncio.Lock] = WeakValueDictionary()

    def size(self, text: str) -> int:
        """Telegram counts UTF-16 units."""
        return len(text) + sum(ord(letter) > 0xFFFF for letter in text)

    # -- in

    async def run(self, inlet: Inlet) -> None:
        if not self._token:
            raise Rejected(f"The channel {self.account!r} has no token. Set the one that @BotFather gives.")
        try:
            self._me = await self._bot.me()
            await self._bot.offer(inlet.commands)
            if self._mode == "webhook":
                await self._be_called(inlet)
            else:
                await self._bot.wait_for_us()
                inlet.up()
                await self._ask_on(inlet)
        except ExceptionGroup as failed:  # of the group in which messages are taken
            raise failed.exceptions[0] from None
        except Doubtful as error:
            raise NotSent(error.message) from None
        finally:
            self._inlet = None

    async def _be_called(self, inlet: Inlet) -> None:
        if not _SECRET.match(self._secret) or not self._url:
            raise Rejected(
                f"A webhook needs channels.{self.account}.url, and channels.{self.account}.secret of 1 to 256 letters, "
                "digits, '_' and '-'."
            )
        self._inlet = inlet
        await self._bot.come_to(self._url, self._secret)
        inlet.up()
        await asyncio.Event().wait()

    async def hook(self, headers: Mapping[str, str], body: bytes) -> dict[str, Any]:
        """An update from Telegram, proven by the secret that we gave it. When it is answered, it is safe."""
        told = headers.get(SECRET_HEADER, "").encode("utf-8", "replace")
        if self._mode != "webhook" or not self._secret or not hmac.compare_digest(self._secret.encode(), told):
            raise Forbidden("The secret is missing or wrong.")
        if self._inlet is None:
            raise Unavailable("Another process takes the messages of this channel; try again.")
        try:
            update = msgspec.json.decode(body, type=Update)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise BadInput(f"That is no update: {error}") from error
        if update.message is not None:
            await self._take(self._inlet, update.message)
        return {"ok": True}

    async def _ask_on(self, inlet: Inlet) -> None:
        window, pause = Window(), PAUSE
        before = WeakValueDictionary[int | None, asyncio.Task[None]]()  # the last that is being taken of a chat
        async with asyncio.TaskGroup() as group:
            while True:
                raw = await self._bot.updates(window.offset, 0 if window.taking else LONG)
                fresh = [_update(one) for one in raw if window.begin(one["update_id"])]
                for update in fresh:
                    chat = update.message.chat.id if update.message else None
                    task = group.create_task(self._until_taken(inlet, update, window, before.get(chat)))
                    before[chat] = task
                pause = PAUSE if fresh else min(pause * 1.1, MOST_PAUSE)
                await window.moved(pause)

    async def _until_taken(
        self, inlet: Inlet, update: Update, window: "Window", before: asyncio.Task[None] | None
    ) -> None:
        """Hand an update over until it is safe; again only when the one before it in its chat is. One that never will
        be is let go, so that it holds up nobody."""
        tries, wait = 0, AGAIN
        while update.message is not None:
            try:
                await self._take(inlet, update.message)
                break
            except LegatoError as error:
                tries += 1
                logger.warning("a message is not taken yet", channel=self.account, error=error.message, tries=tries)
                if not error.retryable and tries >= TRIES:
                    logger.error("a message was let go", channel=self.account, update=update.update_id)
                    break
            if before is not None:
                await asyncio.wait({before})
            await asyncio.sleep(wait)
            wait = min(wait * 2, MOST_AGAIN)
        window.safe(update.update_id)

    async def _take(self, inlet: Inlet, posted: Posted) -> None:
        """Hand a message over, after those before it in its chat, without waiting until they are safe."""
        assert self._me is not None
        if posted.migrate_from_chat_id is not None:  # a group became a supergroup, which has another number
            before, now = (Address(KIND, self.account, str(n)) for n in (posted.migrate_from_chat_id, posted.chat.id))
            await inlet.moved(before, now)
            return
        meant = heard(posted, self._me, self.account, self._max_attachment)
        if meant is None:
            return
        order = self._order.setdefault(posted.chat.id, asyncio.Lock())
        async with order:
            inbound = await self._with_files(meant, welcome=not meant.files or await inlet.knows(meant.sender))
            taking = asyncio.ensure_future(inlet.take(inbound))
        await taking

    async def _with_files(self, meant: Heard, *, welcome: bool) -> Inbound:
        attached, missing = [], []
        for wanted in meant.files if welcome else ():  # a stranger makes us fetch nothing
            try:
                async with self._fetching:
                    attached.append(await self._fetched(wanted))
            except LegatoError as error:
                missing.append(f"[{wanted.what} {wanted.name or ''}".rstrip() + f": not received. {error.message}]")
        return Inbound(
            address=meant.address,
            sender=meant.sender,
            message=meant.message,
            text="\n".join(part for part in (meant.text, *missing) if part),
            attached=tuple(attached),
            group=meant.group,
            for_us=meant.for_us,
        )

    async def _fetched(self, wanted: Wanted) -> Attached:
        if wanted.size > self._max_attachment:
            raise Rejected("The file is too large.")
        data, path = await self._bot.fetch(wanted.file_id, self._max_attachment)
        media_type = wanted.media_type
        if wanted.what == "photo":
            media_type = mimetypes.guess_type(path)[0] or media_type
        return Attached(Blob.of(data, media_type), wanted.name)

    # -- out

    async def send(self, address: Address, text: str, *, key: str, reply_to: str | None = None) -> str:
        return await self._bot.send(address.chat, address.thread, text, to_html(text), reply_to)

    async def edit(self, address: Address, message: str, text: str) -> None:
        await self._bot.edit(address.chat, message, text, to_html(text))

    async def typing(self, address: Address) -> None:
        try:
            await self._bot.typing(address.chat, address.thread)
        except LegatoError as error:
            logger.debug("typing is not shown", channel=self.account, error=error.message)

    async def close(self) -> None:
        self._bot.close()


class Window:
    """Which updates are safe. We ask from the first that is not, so that Telegram keeps it."""

    def __init__(self) -> None:
        self.offset = 0
        self.taking: set[int] = set()
        self._safe: set[int] = set()
        self._moved = asyncio.Event()

    def begin(self, update: int) -> bool:
        """Whether an update is new to us."""
        if update < self.offset or update in self.taking or update in self._safe:
            return False
        self.taking.add(update)
        return True

    def safe(self, update: int) -> None:
        self.taking.discard(update)
        self._safe.add(update)
        self.offset = min(self.taking) if self.taking else max(self._safe) + 1
        self._safe = {later for later in self._safe if later > self.offset}
        self._moved.set()

    async def moved(self, pause: float) -> None:
        """While something is being taken: until it is, or a moment has passed."""
        if self.taking:
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._moved.wait()
        self._moved.clear()


def _update(raw: dict[str, Any]) -> Update:
    """An update; one that cannot be read is nothing to us."""
    try:
        return msgspec.convert(raw, Update)
    except msgspec.ValidationError as error:
        logger.error("an update cannot be read", update=raw["update_id"], error=str(error))
        return Update(raw["update_id"])
