"""A database that fails once, at any commit of a turn, costs time and nothing else (P3, P11), on both databases."""

from functools import partial
from pathlib import Path

import msgspec
import pytest

from crash.conftest import Stores
from crash.fuse import OUTAGE, Point
from crash.nursery import Nursery
from crash.oracle import check
from crash.script import noted
from crash.trials import all_of, points_of, survive

AT_THE_START = ("migrate", "_migrate_alone", "let_in", "start", "doubt")
"""Without these a process does not start, and says so."""


async def test_an_outage_at_any_commit_of_a_turn_loses_and_doubles_nothing(
    nursery: Nursery, new_store: Stores, subtests: pytest.Subtests
) -> None:
    """The write fails before its commit, or after it without anyone hearing: the same process takes its turn up again
    and ends it, and an input that was refused is said again."""

    async def trial(point: Point) -> None:
        async with new_store() as job:
            job = msgspec.structs.replace(job, point=point, signal=OUTAGE)
            assert await nursery.run(job) == 0, job.log()
            assert [name for name, _ in noted(job.file("refused.1"))].count(point.name) >= 1
            check(Path(job.folder), job.life)

    async with new_store() as job:
        points = [p for p in points_of(await survive(nursery, job, 1)) if p.name not in (*AT_THE_START, "end")]
    points = [p for p in points if p.name != "admit" or p.nth <= 3]  # later ones only ask again
    await all_of({f"outage at {p}": partial(trial, p) for p in points}, subtests)
