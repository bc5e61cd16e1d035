"""Telegram, as the conformance suite sees a platform."""

from collections.abc import Iterator
from contextlib import contextmanager

from api.server import Server
from channels.telegram_api import TOKEN, TelegramApi

PEOPLE = {"ann": 1, "bob": 2, "eve": 3}


class Chats:
    """Private chats with the bot. A message was taken when Telegram heard so."""

    name = "tg"

    def __init__(self, api: TelegramApi) -> None:
        self.api = api
        self._chats: dict[str, int] = {}
        self.settings = {
            "LEGATO_CHANNELS__TG__KIND": "telegram",
            "LEGATO_CHANNELS__TG__TOKEN": TOKEN,
            "LEGATO_CHANNELS__TG__BASE_URL": api.url,
            "LEGATO_CHANNELS__TG__ALLOW": "1, 2",
            "LEGATO_CHANNELS__TG__GATHER": "0.1",
        }

    def say(self, server: Server, chat: str, text: str, *, sender: str = "ann", again: str | None = None) -> str:
        if again is None:
            update = self.api.write(text, by=PEOPLE[sender], chat=self._number(chat), name=sender.title())
        else:
            update = int(again)
            self.api.redeliver(update)
        self.api.wait_for(lambda: self.api.acknowledged(update))
        return str(update)

    def heard(self, chat: str, least: int = 1) -> list[str]:
        return self.api.answers(self._number(chat), least)

    def _number(self, chat: str) -> int:
        return self._chats.setdefault(chat, 1000 + len(self._chats))


@contextmanager
def telegram() -> Iterator[Chats]:
    api = TelegramApi()
    try:
        yield Chats(api)
    finally:
        api.stop()
