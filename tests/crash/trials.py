"""Trials: a row of lives on one store, each cut off but the last, many rows at a time."""

import asyncio
import signal
import traceback
from collections.abc import Awaitable, Callable, Iterable, Mapping

import msgspec
import pytest

from crash.fuse import BY_THE_CLOCK, Point
from crash.life import Job
from crash.nursery import Nursery
from crash.script import noted

AT_ONCE = 8
"""Rows at a time: on PostgreSQL they mostly wait for a dead process's lease to run out."""


async def die(nursery: Nursery, jobs: Iterable[Job]) -> None:
    """Live one life after the other; each is killed at its point."""
    for job in jobs:
        assert await nursery.run(job) == -signal.SIGKILL, job.log()


async def survive(nursery: Nursery, job: Job, life: int) -> Job:
    """The life that nothing cuts off."""
    heir = msgspec.structs.replace(job, life=life, point=None)
    assert await nursery.run(heir) == 0, heir.log()
    return heir


def points_of(job: Job) -> list[Point]:
    """Both sides of every commit of a life that came to its end."""
    return [
        Point(name, nth, moment)
        for name, nth in noted(job.file(f"commits.{job.life}"))
        if nth == 1 or name not in BY_THE_CLOCK
        for moment in ("before", "after")
    ]


async def all_of(trials: Mapping[str, Callable[[], Awaitable[None]]], subtests: pytest.Subtests) -> None:
    """Run many trials, some at a time, and tell of each by its name."""
    turns = asyncio.Semaphore(AT_ONCE)

    async def problem(trial: Callable[[], Awaitable[None]]) -> str:
        async with turns:
            try:
                await trial()
            except Exception:  # noqa: BLE001 - told below, with all others
                return traceback.format_exc()
            return ""

    problems = await asyncio.gather(*map(problem, trials.values()))
    for name, found in zip(trials, problems, strict=True):
        with subtests.test(name):
            assert not found, found
