"""One conversation for life (P1), and no cache is the truth (P2).

A generated client does anything to its conversations (see `client`), while the process restarts and its caches come and
go. After each step the conversation it touched is what the client's own list says, and so is everything at the end.
"""

import asyncio
import shutil
import tempfile
from collections.abc import Coroutine, Iterator
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import pytest
import uvloop
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from engine.client import Client, answer
from engine.rooms import Rooms, told
from engine.scripted import Scripted
from engine.waiting import within
from legato.domain.ids import PrincipalId
from legato.engine.live import KEEP
from legato.engine.pasts import ROOM, Pasts
from legato.store import directory
from legato.store.verify import verify

T = TypeVar("T")

COMMON: dict[str, Any] = {
    "deadline": None,
    "database": None,
    "print_blob": True,
    "suppress_health_check": list(HealthCheck),
}


class Ground:
    """A process on a store, for many examples after one another; each has an owner of its own."""

    def __init__(self, url: str) -> None:
        memory = Path("/dev/shm")  # nothing here is about the disk
        self._folder = Path(tempfile.mkdtemp(prefix="legato-", dir=memory if memory.is_dir() else None))
        self._runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        self._url = url
        self._owners = count()
        self._served = 0
        self.rooms: Rooms
        self.run(self._open())

    def run(self, job: Coroutine[Any, Any, T]) -> T:
        return self._runner.get_loop().run_until_complete(within(job))

    async def _open(self) -> None:
        self.rooms = Rooms(self._folder / f"home{next(self._owners)}", self._url)
        self.app = await self.rooms.open(Scripted(answer))

    async def client(self) -> Client:
        client = Client(PrincipalId(f"owner-{next(self._owners)}"))
        await self.app.db.write(directory.add_principal, client.who)
        client.app = self.app
        return client

    async def restart(self, client: Client, keep: int) -> None:
        self.app = client.app = await self.rooms.restart(keep_events=keep)
        self.app.worker.pasts = Pasts(ROOM if keep else 0)

    async def prove(self, *, every: int) -> None:
        """The store is sound; looked at after every so many examples, when a new one is begun."""
        self._served += 1
        if self._served % every == 0:
            assert [str(finding) async for finding in verify(self.app.db)] == []
            if not self._url:
                await self.rooms.close_all()
                await self._open()

    def close(self) -> None:
        self.run(self.rooms.close_all())
        self._runner.close()
        shutil.rmtree(self._folder)


@pytest.fixture
def ground(url: str) -> Iterator[Ground]:
    ground = Ground(url)
    yield ground
    ground.close()


NUMBERS = st.integers(0, 30)


class Conversations(RuleBasedStateMachine):
    """Anything that can happen to the conversations of one owner."""

    def __init__(self, ground: Ground) -> None:
        super().__init__()
        self.ground = ground
        self.client = ground.run(ground.client())
        self.sound = True
        self.fresh = False  # nothing has happened since the last restart

    def run(self, job: Coroutine[Any, Any, None]) -> None:
        self.sound = False
        self.ground.run(job)
        self.sound = True

    def teardown(self) -> None:
        if self.sound:
            self.ground.run(self.client.check_all())
            self.ground.run(self.ground.prove(every=25))

    @initialize(a=NUMBERS, b=NUMBERS)
    def begin(self, a: int, b: int) -> None:
        self.run(self.client.send_to_name(a, b))

    @precondition(lambda self: not self.fresh)
    @rule(keep=st.sampled_from([0, 3, KEEP]))
    def restart(self, keep: int) -> None:
        """Another process, with no caches or others."""
        self.run(self.ground.restart(self.client, keep))
        self.run(self.client.check_all())
        self.fresh = True


def _rule_for(verb: str) -> Any:
    @rule(a=NUMBERS, b=NUMBERS)
    def step(self: Conversations, a: int, b: int) -> None:
        self.run(getattr(self.client, verb)(a, b))
        self.fresh = False

    return step


VERBS = (
    "send_to_name",
    "send_without_a_name",
    "send_by_id",
    "send_after_the_tip",
    "send_after_any",
    "rewind",
    "compact",
    "expand",
    "pin",
    "hide",
    "remove",
    "post",
    "rename",
    "fork",
    "bind",
    "point",
    "create",
    "delete",
)
Machine = type("Machine", (Conversations,), {verb: _rule_for(verb) for verb in VERBS})

EXAMPLES = {"sqlite": 500, "postgres": 60}  # in each of the parts, which may run beside each other


@pytest.mark.parametrize("part", range(4))
def test_a_conversation_is_one_conversation_whatever_happens(
    ground: Ground, part: int, request: pytest.FixtureRequest
) -> None:
    """Sends by every name, forks, failures, undo, summaries, restarts: the client's own lists and the gateway agree,
    with a past that is kept from turn to turn and without."""
    examples = EXAMPLES[ground.app.db.dialect] * (20 if request.config.getoption("--long") else 1)
    run_state_machine_as_test(
        lambda: Machine(ground),
        settings=settings(max_examples=examples, stateful_step_count=8, **COMMON),
        _min_steps=0,
    )


SCRIPT = st.lists(st.tuples(st.sampled_from(VERBS), NUMBERS, NUMBERS), min_size=1, max_size=12)


def test_caches_of_any_size_give_equal_transcripts(ground: Ground, request: pytest.FixtureRequest) -> None:
    """The same script with nothing kept in memory and with everything kept: equal transcripts, contexts and streams."""

    async def play(script: list[tuple[str, int, int]], keep: int) -> list[Any]:
        client = await ground.client()
        await ground.restart(client, keep)
        await client.send_to_name(0, 0)
        for verb, a, b in script:
            await getattr(client, verb)(a, b)
        await client.check_all()
        streams = [await told(client.app, await client.app.gateway.turn(client.who, turn)) for turn in client.said]
        anonymous = [[type(event), *_values(event)] for stream in streams for event in stream]
        return [[ledger.people_see(), ledger.model_sees()[2]] for ledger in client.ledgers.values()] + anonymous

    examples = 40 if ground.app.db.dialect == "sqlite" else 15

    @settings(max_examples=examples * (20 if request.config.getoption("--long") else 1), **COMMON)
    @given(script=SCRIPT)
    def compare(script: list[tuple[str, int, int]]) -> None:
        assert ground.run(play(script, 0)) == ground.run(play(script, KEEP))

    compare()


def _values(event: Any) -> Iterator[Any]:
    """An event without its ids, which are drawn by lot."""
    for name in event.__struct_fields__:
        if name not in ("id", "turn_id", "call_id"):
            yield getattr(event, name)
