"""Waiting with a bound: a test that would hang fails instead, and nothing is timed."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

BOUND = 30.0

T = TypeVar("T")


async def within(awaited: Awaitable[T], bound: float = BOUND) -> T:
    """What is awaited, or a failure when it takes unreasonably long."""
    async with asyncio.timeout(bound):
        return await awaited


async def until(condition: Callable[[], Awaitable[bool]], bound: float = BOUND) -> None:
    """Wait for something that nobody announces, such as a row in the database."""
    async with asyncio.timeout(bound):
        while not await condition():  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.01)


async def rest() -> None:
    """Give chores time to come to rest, which nobody can see. Too short makes a test weaker, never red."""
    await asyncio.sleep(0.3)
