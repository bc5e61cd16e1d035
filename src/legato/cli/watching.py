"""Watching a conversation: its events, one after the other, whatever becomes of the connection or the gateway.

A thread reads the stream. When it breaks, the gateway is looked for again, and the stream goes on after the last event
that came, so there is no gap and no repeat. Events are handed over in batches, and the thread waits while too many are
on their way: a fast answer does not outrun a slow terminal.
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError
from contextlib import suppress

from legato.cli.client import Client, Following, Refused, path_of
from legato.cli.telling import Event
from legato.errors import LegatoError

WAITS = (0.1, 0.2, 0.5, 1.0)
START = "0"
"""A cursor before everything."""


class Opened:
    """The stream is there (again)."""


class Lost:
    """The connection is gone; another is looked for."""

    def __init__(self, why: str) -> None:
        self.why = why


class Gone:
    """The conversation cannot be watched any more."""

    def __init__(self, why: str) -> None:
        self.why = why


News = Opened | Lost | Gone | list[Event]


class Watch:
    """One conversation, until it is stopped. `news` is what happens."""

    def __init__(self, find: Callable[[], Client], conversation: str, after: str | None = None) -> None:
        self.conversation = conversation
        self.news: asyncio.Queue[News] = asyncio.Queue(8)
        self._find, self._after = find, after
        self._loop = asyncio.get_running_loop()
        self._stopped = threading.Event()
        self._following: Following | None = None
        threading.Thread(target=self._run, daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()
        if self._following is not None:
            self._following.close()

    def _run(self) -> None:
        failures = 0
        while not self._stopped.is_set():
            try:
                self._following = self._find().follow(
                    path_of("v1", "conversations", self.conversation, "events"), self._after
                )
                failures = 0
                self._read(self._following)
                why = "The stream ended."
            except Refused as error:
                if error.status in (401, 403, 404):
                    self._put(Gone(error.message))
                    return
                why = error.message
            except LegatoError as error:
                why = error.message
            if not self._stopped.is_set():
                self._put(Lost(why))
                self._stopped.wait(WAITS[min(failures, len(WAITS) - 1)])
                failures += 1

    def _read(self, following: Following) -> None:
        """Where the stream begins is known before anything else, so that whatever happens from then on is told."""
        for number, batch in enumerate(following.batches()):
            if number == 0:
                self._put(Opened())
            if batch:
                self._put([event for _, event in batch])
            self._after = following.cursor

    def _put(self, news: News) -> None:
        if self._stopped.is_set():
            return
        with suppress(RuntimeError, CancelledError):  # the chat has ended
            asyncio.run_coroutine_threadsafe(self.news.put(news), self._loop).result()
