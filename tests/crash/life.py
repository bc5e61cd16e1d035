"""One life of the process: it opens the app, says its inputs, follows every turn, and reports when all has ended.

What it learns it notes outside the store: `acks` (inputs that were acknowledged), `effects` (what its tools did),
`seen.N` (what its followers were shown in life N), `commits.N`, `refused.N`. The next life reads `acks` and says what
was not acknowledged again, under the same dedup key, as a client does.
"""

import asyncio
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

import msgspec
from msgspec import Struct

import legato.app
import legato.store.postgres
from crash.fuse import Fuse, Point, fused
from crash.script import INPUTS, LOOKING, Facts, Hands, Scripted, Step, note, noted
from legato import logs
from legato.app import LOCAL, App, open_app
from legato.config import load
from legato.domain.entries import Entry, Message, Text, draft
from legato.domain.events import AnyEvent, Delta
from legato.domain.handles import Address
from legato.domain.ids import ConversationId, TurnId
from legato.domain.turns import Busy, Input, Submission, Turn
from legato.errors import Unavailable
from legato.store import outbox, search, turns
from legato.store.database import Tx
from legato.store.outbox import Delivery
from legato.store.postgres import Postgres
from legato.store.sqlite import Sqlite
from legato.store.verify import verify

P = ParamSpec("P")
T = TypeVar("T")

BOUND = 60.0
PLACE = Address("paper", "me", "desk")
"""The conversation's name: an address, so that an answer is owed for every turn."""


class Job(Struct, frozen=True, kw_only=True):
    """What a life is to do, where, and when it ends."""

    folder: str
    url: str = ""
    script: str = "talk"
    life: int = 1
    point: Point | None = None
    signal: int = int(signal.SIGKILL)
    leaves: bool = False  # in good order, in the middle of the first turn
    arm: str = ""  # the key of the step from which on the fuse counts; from the start when empty
    lease: float = 1.0
    max_attempts: int = 3
    max_steps: int = 50

    def file(self, name: str) -> Path:
        return Path(self.folder) / name

    def log(self) -> str:
        """What the life said on its way."""
        return self.file(f"log.{self.life}").read_text()


class Report(Struct, frozen=True):
    """What the store holds in the end, read through the gateway's own doors."""

    conversations: int
    conversation: ConversationId
    turns: list[Turn]
    entries: list[Entry]  # the transcript: nothing here is rewound, so it is the whole log
    followed: dict[TurnId, list[AnyEvent]]
    deliveries: dict[TurnId, list[Delivery]]
    answers: dict[str, TurnId]  # to every input, said once more in the end
    findings: list[str]


class Unburnt(Exception):
    """The life came to its end although it was to be cut off."""


async def live(job: Job) -> None:
    """Live, to the end or to the chosen point."""
    logs.set_up("info", "json")
    fuse = Fuse(
        job.point,
        job.signal,
        commits=job.file(f"commits.{job.life}"),
        refused=job.file(f"refused.{job.life}"),
        armed=not job.arm,
    )
    legato.app.Sqlite = fused(Sqlite, fuse)  # type: ignore[misc]
    legato.store.postgres.Postgres = fused(Postgres, fuse)  # type: ignore[misc]
    facts = Facts()

    def on_step(step: Step) -> None:
        fuse.armed = fuse.armed or job.arm in [key for _, key in step.calls]

    settings = {
        "database.url": job.url,
        "database.connections": 4,  # many lives share one server
        "worker.lease": job.lease,
        "worker.max_attempts": job.max_attempts,
        "agents.default.model": "scripted",
        "agents.default.toolsets": ["hands"],
        "agents.default.max_steps": job.max_steps,
    }
    if job.script == "fold":
        settings |= {"models.scripted.kind": "demo", "models.scripted.context_window": 4_000}
    config, _ = load(job.file("home"), settings, environ={})
    async with asyncio.timeout(BOUND):
        async with open_app(
            config,
            models={"scripted": Scripted(job.script, job.life, facts, on_step)},
            toolsets={"hands": Hands(job.file("effects"))},
        ) as app:
            client = _Client(app, job, facts)
            report = await (client.leave() if job.leaves else client.talk())
    if job.point and job.signal == signal.SIGKILL:
        raise Unburnt(str(job.point))
    if report is not None:
        job.file(f"report.{job.life}").write_bytes(msgspec.json.encode(report))


class _Client:
    def __init__(self, app: App, job: Job, facts: Facts) -> None:
        self._app, self._job, self._facts = app, job, facts
        self._turns: dict[str, TurnId] = {}
        self._watching: list[asyncio.Task[None]] = []

    async def talk(self) -> Report:
        """Say everything that is not acknowledged yet; wait for the end; say what is true then."""
        first, *others = INPUTS[self._job.script]
        await self._begin(first)
        await _patiently(self._app.gateway.check)
        if others:
            await self._facts.wait(f"heard {LOOKING}")
        for text, busy in zip(others, ("queue", "steer"), strict=False):
            await self._say(text, busy)
        for turn_id in list(self._turns.values()):
            await _patiently(self._ended, turn_id)
        for task in self._watching:
            await task
        while await _patiently(search.index_some, self._app.db):
            continue
        return await _patiently(self._report)

    async def leave(self) -> None:
        """Say the first input, and go as soon as something was said to it in this life."""
        await self._begin(INPUTS[self._job.script][0])
        await self._facts.wait(f"spoken to in life {self._job.life}")
        for task in self._watching:
            task.cancel()

    async def _begin(self, first: str) -> None:
        for text, turn_id in noted(self._job.file("acks")):
            self._admitted(text, turn_id)
        await self._say(first, "queue")

    async def _say(self, text: str, busy: Busy) -> None:
        if text not in self._turns:
            turn = await _patiently(self._submit, text, busy)
            note(self._job.file("acks"), [text, turn.id])
            self._admitted(text, turn.id)

    async def _submit(self, text: str, busy: Busy = "queue") -> Turn:
        spoken = Input((draft(Message("user", (Text(text),))),))
        return await self._app.gateway.submit(
            Submission(principal=LOCAL, target=PLACE, input=spoken, busy=busy, dedup_key=text, request_hash=text)
        )

    def _admitted(self, text: str, turn_id: TurnId) -> None:
        self._turns[text] = turn_id
        self._facts.add(f"admitted {text}")
        self._watching.append(asyncio.create_task(self._watch(turn_id)))

    async def _ended(self, turn_id: TurnId) -> Turn:
        return await self._app.gateway.ended(await self._app.gateway.turn(LOCAL, turn_id))

    async def _watch(self, turn_id: TurnId) -> None:
        with self._job.file(f"seen.{self._job.life}").open("a") as seen:
            cursor = 0

            async def follow() -> None:
                nonlocal cursor
                async for n, event in self._app.gateway.follow(LOCAL, turn_id, cursor):
                    cursor = n + 1
                    seen.write(msgspec.json.encode([turn_id, n, event]).decode() + "\n")
                    seen.flush()  # a killed process loses nothing that it wrote
                    self._heard(event)

            await _patiently(follow)

    def _heard(self, event: AnyEvent) -> None:
        if isinstance(event, Delta):
            self._facts.add(f"heard {event.text}")
            if event.text.endswith(f"({self._job.life}) "):
                self._facts.add(f"spoken to in life {self._job.life}")
            if event.text.startswith(LOOKING):  # said in whichever life
                self._facts.add(f"heard {LOOKING}")

    async def _report(self) -> Report:
        gateway, db = self._app.gateway, self._app.db
        conversation = await gateway.find(LOCAL, PLACE)
        admitted: list[Turn] = await db.read(turns.of_conversation, conversation.id, 0, 1000)
        followed: dict[TurnId, list[AnyEvent]] = {}
        for turn in admitted:
            numbered = [pair async for pair in gateway.follow(LOCAL, turn.id)]
            assert [n for n, _ in numbered] == list(range(len(numbered)))
            followed[turn.id] = [event for _, event in numbered]
        return Report(
            conversations=await db.read(_count),
            conversation=conversation.id,
            turns=admitted,
            entries=await gateway.transcript(LOCAL, PLACE),
            followed=followed,
            deliveries={turn.id: await db.read(outbox.of_turn, turn.id) for turn in admitted},
            answers={text: (await self._submit(text)).id for text in INPUTS[self._job.script]},
            findings=[str(finding) async for finding in verify(db)],
        )


async def _patiently(job: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
    """Ask again while the store does not answer, as a client does; what was not acknowledged is said again."""
    while True:
        try:
            return await job(*args, **kwargs)
        except Unavailable:
            await asyncio.sleep(0)


async def _count(tx: Tx) -> int:
    [[count]] = await tx.run("verify_count")
    return int(count)
