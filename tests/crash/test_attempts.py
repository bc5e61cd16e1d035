"""A turn that dies again and again (P11): progress earns its attempts back, and without progress it ends visibly."""

from functools import partial
from pathlib import Path

import msgspec
import pytest

from crash.conftest import Stores
from crash.fuse import Moment, Point
from crash.nursery import Nursery
from crash.oracle import check, check_inputs, check_seen, check_streams, report_of
from crash.trials import all_of, die, survive
from legato.domain.entries import ToolCall

STEPS = 20
PLACES: list[tuple[str, int, Moment, str]] = [
    ("add_all", 1, "after", "it has said something"),
    ("add_all", 2, "before", "it is about to call"),
    ("append", 1, "before", "the call is not recorded"),
    ("append", 1, "after", "the call is recorded and nothing has happened"),
    ("append", 2, "before", "the effect has happened and is not recorded"),
    ("append", 2, "after", "the effect is recorded"),
]
"""The commit points of one step of the turn with twenty tools."""


async def test_a_turn_killed_in_each_of_its_twenty_steps_is_done_in_the_end(
    nursery: Nursery, new_store: Stores, subtests: pytest.Subtests
) -> None:
    """Twenty processes die, one in each step; the one after them answers, and no effect has happened twice. The place
    within the step goes round, and each row of deaths begins at another one."""

    async def row(shift: int) -> None:
        async with new_store() as job:
            job = msgspec.structs.replace(job, script="twenty", lease=0.5)
            places = [PLACES[(step + shift) % len(PLACES)] for step in range(STEPS)]
            await die(
                nursery,
                (
                    msgspec.structs.replace(job, life=step, arm=f"step-{step}", point=Point(name, nth, moment))
                    for step, (name, nth, moment, _) in enumerate(places, 1)
                ),
            )
            await survive(nursery, job, STEPS + 1)
            check(Path(job.folder), STEPS + 1, "twenty")

    rows = {f"first killed when {place[-1]}": partial(row, shift) for shift, place in enumerate(PLACES)}
    await all_of(rows, subtests)


@pytest.mark.parametrize("nth", [1, 2], ids=["before-it-says-anything", "in-mid-text"])
async def test_a_turn_that_dies_without_progress_fails_after_its_last_attempt(
    nursery: Nursery, new_store: Stores, nth: int
) -> None:
    """A turn that takes its process down each time, silent or in mid sentence, must not do so for ever."""
    async with new_store() as job:
        job = msgspec.structs.replace(job, script="plain", max_attempts=3)
        point = Point("add_all", nth, "before")
        await die(nursery, (msgspec.structs.replace(job, life=life, point=point) for life in (1, 2, 3)))
        await survive(nursery, job, 4)
        report = report_of(Path(job.folder), 4)
        [turn] = report.turns
        assert turn.status == "failed"
        assert turn.failure is not None
        assert turn.failure.code == "attempts_exhausted"
        check_inputs(Path(job.folder), report, "plain")
        check_streams(report)
        check_seen(Path(job.folder), report, 4)
        assert report.findings == []


async def test_a_turn_that_is_handed_back_again_and_again_does_not_use_up_its_attempts(
    nursery: Nursery, new_store: Stores
) -> None:
    """Five processes leave in good order before anything is done; the sixth ends the turn."""
    async with new_store() as job:
        for life in range(1, 6):
            assert await nursery.run(msgspec.structs.replace(job, life=life, leaves=True)) == 0, job.log()
        await survive(nursery, job, 6)
        check(Path(job.folder), 6)


async def test_the_limit_of_steps_holds_over_crashes(nursery: Nursery, new_store: Stores) -> None:
    """A turn whose process dies after every step ends at its agent's step limit, because each life counts the steps of
    those before it."""
    limit = 5
    async with new_store() as job:
        job = msgspec.structs.replace(job, script="twenty", lease=0.5, max_steps=limit)
        await die(
            nursery,
            (
                msgspec.structs.replace(job, life=step, arm=f"step-{step}", point=Point("append", 2, "after"))
                for step in range(1, limit + 1)
            ),
        )
        await survive(nursery, job, limit + 1)
        report = report_of(Path(job.folder), limit + 1)
        [turn] = report.turns
        assert turn.failure is not None
        assert turn.failure.code == "max_steps"
        assert sum(isinstance(entry.body, ToolCall) for entry in report.entries) == limit


async def test_the_bill_of_a_turn_counts_the_steps_of_every_process_that_worked_on_it(
    nursery: Nursery, new_store: Stores
) -> None:
    """The scripted model counts one token a step: what was used before a crash was used all the same."""
    async with new_store() as job:
        job = msgspec.structs.replace(job, script="talk")
        await die(nursery, [msgspec.structs.replace(job, point=Point("append", 5, "after"))])
        await survive(nursery, job, 2)
        [first] = [turn for turn in report_of(Path(job.folder), 2).turns if turn.dedup_key == "one"]
        assert first.usage is not None
        assert first.usage.output_tokens == 3
