"""The test's side of `child`: start lives, and learn how they go."""

import asyncio
import os
import sys
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from crash.life import BOUND, Job


class Life:
    """A process that was started."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self._heard: defaultdict[str, asyncio.Future[int]] = defaultdict(loop.create_future)

    async def pid(self) -> int:
        return await self._word("started")

    async def stopped(self) -> int:
        """The signal that stopped it, once it has."""
        return await self._word("stopped")

    async def end(self) -> int:
        """Its exit code, negative when a signal ended it."""
        return await self._word("ended")

    def hear(self, word: str, value: int) -> None:
        if not self._heard[word].done():
            self._heard[word].set_result(value)

    async def _word(self, word: str) -> int:
        async with asyncio.timeout(2 * BOUND):
            return await asyncio.shield(self._heard[word])


class Nursery:
    """Starts lives."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._lives: list[Life] = []

    async def start(self, job: Job) -> Life:
        assert self._process.stdin
        self._lives.append(Life())
        self._process.stdin.write(msgspec.json.encode([len(self._lives) - 1, job]) + b"\n")
        await self._process.stdin.drain()
        return self._lives[-1]

    async def run(self, job: Job) -> int:
        """A whole life; returns its exit code."""
        life = await self.start(job)
        return await life.end()

    async def listen(self) -> None:
        assert self._process.stdout
        async for line in self._process.stdout:
            number, word, value = msgspec.json.decode(line, type=tuple[int, str, int])
            self._lives[number].hear(word, value)


@asynccontextmanager
async def open_nursery() -> AsyncIterator[Nursery]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "crash.child"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    nursery = Nursery(process)
    listening = asyncio.create_task(nursery.listen())
    try:
        yield nursery
    finally:
        assert process.stdin
        process.stdin.close()
        await process.wait()
        await listening
