"""The screen of a terminal that can only print: nothing is live, nothing is redrawn, each row comes when it is final.

For `TERM=dumb`: editors that run a shell, terminals for readers, slow lines.
"""

import asyncio
import shutil
import signal
import sys
import threading

from legato.cli.screen import Talker


class Teletype:
    """A terminal, line by line."""

    def __init__(self, talker: Talker) -> None:
        self._talker = talker
        self._ended = asyncio.Event()

    async def run(self) -> None:
        """Until `leave`, or the end of the input."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self._talker.interrupted, "")
        self._talker.resized(shutil.get_terminal_size().columns)
        threading.Thread(target=self._read, args=(loop,), daemon=True).start()
        try:
            await self._ended.wait()
        finally:
            loop.remove_signal_handler(signal.SIGINT)

    def leave(self) -> None:
        self._ended.set()

    def print(self, rows: list[str]) -> None:
        if rows:
            sys.stdout.write("".join(f"{row}\n" for row in rows))
            sys.stdout.flush()

    def changed(self) -> None:
        """Only what is final is shown."""

    def _read(self, loop: asyncio.AbstractEventLoop) -> None:
        while line := sys.stdin.readline():
            if text := line.rstrip():
                loop.call_soon_threadsafe(self._talker.typed, text)
        loop.call_soon_threadsafe(self.leave)
