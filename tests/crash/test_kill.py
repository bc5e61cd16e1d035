"""`kill -9` at every commit point of a turn with tools (P3, P11, P12), on both databases."""

from functools import partial
from pathlib import Path

import msgspec
import pytest

from crash.conftest import Stores
from crash.fuse import Point
from crash.nursery import Nursery
from crash.oracle import check
from crash.trials import all_of, die, points_of, survive


async def trial(nursery: Nursery, new_store: Stores, *points: Point, script: str = "talk") -> list[Point]:
    """One life is killed at each point, the next goes on to the end; returns the points of that last one."""
    async with new_store() as job:
        job = msgspec.structs.replace(job, script=script)
        await die(nursery, (msgspec.structs.replace(job, life=n, point=p) for n, p in enumerate(points, 1)))
        heir = await survive(nursery, job, len(points) + 1)
        check(Path(job.folder), heir.life, script)
        return points_of(heir)


async def test_a_process_killed_at_any_commit_point_loses_and_doubles_nothing(
    nursery: Nursery, new_store: Stores, subtests: pytest.Subtests
) -> None:
    """Every commit of a scenario with three inputs and five calls, both sides of it: the next process goes on, and
    the oracle finds no input lost or doubled, no effect repeated, one outcome for each turn, and a sound store."""
    points = await trial(nursery, new_store)
    assert {point.name for point in points} >= {"admit", "add_all", "append", "absorb", "claim", "finish"}
    await all_of({f"killed at {p}": partial(trial, nursery, new_store, p) for p in points}, subtests)


async def test_a_process_killed_at_any_commit_of_a_turn_that_folds_its_past_repeats_no_effect(
    nursery: Nursery, new_store: Stores, subtests: pytest.Subtests
) -> None:
    """The turn is longer than the model's window; what its tools did before the fold is known after it."""
    points = await trial(nursery, new_store, script="fold")
    assert len(points) > 16
    await all_of({f"killed at {p}": partial(trial, nursery, new_store, p, script="fold") for p in points}, subtests)


@pytest.mark.parametrize(
    "first",
    [Point("add_all", 2, "after"), Point("append", 2, "before")],
    ids=["in-mid-text", "between-effects-and-their-records"],
)
async def test_a_process_killed_while_it_clears_up_after_another_loses_and_doubles_nothing(
    nursery: Nursery, new_store: Stores, subtests: pytest.Subtests, first: Point
) -> None:
    """The commits of recovery itself (taking over, closing what was cut off, settling calls in doubt) are commit
    points like any other."""
    points = [p for p in await trial(nursery, new_store, first) if p.name in ("claim", "append") and p.nth <= 3]
    await all_of({f"killed again at {p}": partial(trial, nursery, new_store, first, p) for p in points}, subtests)


async def test_a_process_killed_while_it_hands_its_turn_back_loses_and_doubles_nothing(
    nursery: Nursery, new_store: Stores, subtests: pytest.Subtests
) -> None:
    """Leaving in good order has commits of its own: the turn goes back, and the node gives up its lease."""

    async def leave_at(point: Point) -> None:
        async with new_store() as job:
            await die(nursery, [msgspec.structs.replace(job, leaves=True, point=point)])
            await survive(nursery, job, 2)
            check(Path(job.folder), 2)

    points = [Point(name, 1, moment) for name in ("release", "end") for moment in ("before", "after")]
    await all_of({f"killed at {p}": partial(leave_at, p) for p in points}, subtests)
