"""The line to the gateway: questions are asked off the screen's thread, and a line that was lost is found again.

What must happen once is posted under a key, again and again, until the gateway has answered: it knows the key, so a
restart in between neither loses nor doubles it.
"""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar, cast

from legato.cli.client import Client, Refused, Way
from legato.cli.watching import WAITS
from legato.errors import LegatoError, StoreUnavailable

T = TypeVar("T")


class Line:
    """Where the gateway is now. `lost` says what is wrong while it is nowhere."""

    def __init__(self, way: Way, client: Client) -> None:
        self._way, self._client = way, client
        self.lost = ""

    async def ask(self, ask: Callable[[Client], Any]) -> Any:
        """An answer, or why there is none."""
        client = self._client
        return await _in_thread(lambda: ask(client))

    async def post(self, path: str, body: Any, key: str) -> Any:
        """Until the gateway has taken it."""
        failures = 0
        while True:
            try:
                answer = await self.ask(lambda client: client.post(path, body, key=key))
                self.lost = ""
                return answer
            except Refused as error:
                if error.status != 503:  # it leaves, and another will come
                    raise
                self.broken(error.message)
            except StoreUnavailable as error:
                self.broken(error.message)
            await asyncio.sleep(WAITS[min(failures, len(WAITS) - 1)])
            failures += 1
            try:
                await _in_thread(self.find)
            except LegatoError as error:
                self.broken(error.message)

    def find(self) -> Client:
        """Look for the gateway again. For threads only: one may have to be started."""
        self._client = self._way.find()
        return self._client

    def broken(self, why: str) -> None:
        hint = " start it again with: legato serve" if "legato serve" in why else ""
        self.lost = f"connection lost, trying again…{hint}"


async def _in_thread(work: Callable[[], T]) -> T:
    """Do something slow elsewhere. Nobody waits for such a thread when the chat ends."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: Exception | None) -> None:
        if answer.done():
            return
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(cast(T, result))

    def run() -> None:
        result, failed = None, None
        try:
            result = work()
        except Exception as error:  # noqa: BLE001 - it is raised where it is awaited
            failed = error
        with suppress(RuntimeError):  # the chat has ended
            loop.call_soon_threadsafe(settle, result, failed)

    threading.Thread(target=run, daemon=True).start()
    return await answer
