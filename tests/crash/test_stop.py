"""A worker that stood still past its lease, while another finished its turn, cannot write any more (P10)."""

import asyncio
import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from conftest import ALICE
from crash.conftest import Stores
from crash.fuse import Point
from crash.nursery import Nursery
from crash.oracle import check, report_of
from crash.script import noted
from crash.trials import all_of, points_of, survive
from legato.domain.entries import Message, Text, Tool, ToolCall, ToolResult, draft
from legato.domain.handles import Slug
from legato.domain.turns import Input, Submission, Usage
from legato.engine.gateway import Gateway
from legato.engine.live import Live
from legato.engine.protocols import CallChunk, CallOpened, Finished, TextChunk, ToolOutput
from legato.engine.roster import Agent, Roster
from legato.engine.worker import Worker, WorkerSettings
from legato.errors import LegatoError, StoreUnavailable
from legato.store import nodes
from legato.store.database import Database

only_postgres = pytest.mark.parametrize("new_store", ["postgres"], indirect=True)  # SQLite has one process
TURN = ("admit", "add_all", "append", "absorb", "claim", "finish")


async def stopped_owner_and_heir(nursery: Nursery, new_store: Stores, point: Point) -> None:
    """The owner of the turns stops at a point, another process brings them to their end, and the owner wakes."""
    async with new_store() as job:
        owner = await nursery.start(msgspec.structs.replace(job, point=point, signal=int(signal.SIGSTOP)))
        assert await owner.stopped() == signal.SIGSTOP, job.log()
        heir = await survive(nursery, job, 2)
        os.kill(await owner.pid(), signal.SIGCONT)
        assert await owner.end() == 0, job.log()
        folder = Path(job.folder)
        check(folder, heir.life)
        assert report_of(folder, job.life) == report_of(folder, heir.life), "the owner changed nothing after it woke"
        if point.name != "finish":  # a turn that had ended needed no more writes
            refused = {code for _, code in noted(job.file("refused.1"))}
            assert ("lease_lost" if point.moment == "after" else "store_unavailable") in refused
            assert refused <= {"lease_lost", "store_unavailable"}, "the fence refused it, nothing behind it had to"


@only_postgres
async def test_an_owner_stopped_after_any_commit_is_refused_when_it_wakes(
    nursery: Nursery, new_store: Stores, subtests: pytest.Subtests
) -> None:
    """SIGSTOP after each commit of a turn, SIGCONT when another process has ended it: nothing is doubled."""
    async with new_store() as job:
        points = [p for p in points_of(await survive(nursery, job, 1)) if p.name in TURN and p.moment == "after"]
    points = [p for p in points if p.name != "admit" or p.nth <= 3]  # later ones only ask again
    stops = {f"stopped at {p}": partial(stopped_owner_and_heir, nursery, new_store, p) for p in points}
    await all_of(stops, subtests)


@only_postgres
@pytest.mark.parametrize("name", ["add_all", "append", "finish"])
async def test_an_owner_stopped_inside_a_transaction_does_not_hold_its_turn_for_ever(
    nursery: Nursery, new_store: Stores, name: str
) -> None:
    """What it has locked is let go after a while, so that another process can go on within seconds."""
    await stopped_owner_and_heir(nursery, new_store, Point(name, 1, "before"))


class _Calls:
    """A model that makes one call and then answers."""

    async def stream(self, request: Any) -> Any:
        if any(isinstance(item, ToolCall) for item in request.items):
            yield TextChunk("Done.")
        else:
            yield CallOpened("call_1", "press")
            yield CallChunk("call_1", "{}")
        yield Finished(Usage())


class _Button:
    """A tool that must not be used twice. It comes back when `let_go` is set."""

    tools = (Tool(name="press"),)

    def __init__(self) -> None:
        self.pressed = asyncio.Event()
        self.let_go = asyncio.Event()
        self.times = 0

    async def call(self, invocation: Any) -> ToolOutput:
        self.times += 1
        self.pressed.set()
        await self.let_go.wait()
        return ToolOutput("pressed")


class _CutOff:
    """A database that takes everything from one node but the renewal of its lease."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self.refused: asyncio.Queue[tuple[str, str]] = asyncio.Queue()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._db, name)

    async def urgent(self, transaction: Any, /, *args: Any, **kwargs: Any) -> Any:
        assert transaction is nodes.renew
        raise StoreUnavailable("The renewal did not get through.")

    async def write(self, transaction: Any, /, *args: Any, **kwargs: Any) -> Any:
        try:
            return await self._db.write(transaction, *args, **kwargs)
        except LegatoError as error:
            self.refused.put_nowait((transaction.__name__, error.code))
            raise


async def test_of_two_workers_on_one_database_the_one_whose_lease_ran_out_is_refused(db: Database) -> None:
    """The first is in the middle of a tool when its lease runs out; the second ends the turn with the outcome of the
    call unknown; what the first brings back then is refused, and the call still has one result."""
    button = _Button()
    roster = Roster(
        models={"m": _Calls()}, toolsets={"t": button}, agents={"a": Agent("a", "m", "", ("t",))}, default="a"
    )
    cut_off: Any = _CutOff(db)
    first_live, second_live = Live(db), Live(db)
    spoken = Input((draft(Message("user", (Text("go"),))),))
    async with asyncio.timeout(30), Worker(cut_off, first_live, roster, WorkerSettings(lease=0.05)) as first:
        turn = await Gateway(cut_off, first_live, first).submit(
            Submission(principal=ALICE, target=Slug("work"), input=spoken)
        )
        await button.pressed.wait()
        async with Worker(db, second_live, roster, WorkerSettings(lease=30, scan_every=0.05)) as second:
            gateway = Gateway(db, second_live, second)
            ended = await gateway.ended(turn)
            entries = await gateway.output(ALICE, turn.id)
            button.let_go.set()
            assert await cut_off.refused.get() == ("append", "lease_lost")
            assert await gateway.output(ALICE, turn.id) == entries
            assert await gateway.turn(ALICE, turn.id) == ended
    assert ended.status == "done"
    assert button.times == 1
    [result] = [entry.body for entry in entries if isinstance(entry.body, ToolResult)]
    assert result.unknown
