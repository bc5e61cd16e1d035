"""The rooms of one or more gateway processes over one store, and short words for what a client does with them."""

import asyncio
from collections.abc import Iterable
from contextlib import aclosing
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from conftest import ALICE, BOB
from engine.scripted import Scripted, Tools, echo
from engine.waiting import BOUND, within
from legato.app import App, open_app, open_database
from legato.config import Config, load
from legato.domain.entries import (
    AnyBody,
    Compaction,
    Entry,
    Expand,
    Hide,
    Message,
    Note,
    Pin,
    Reasoning,
    Remove,
    Rewind,
    Setup,
    Text,
    ToolCall,
    ToolResult,
    draft,
)
from legato.domain.events import AnyEvent
from legato.domain.handles import Handle, Slug
from legato.domain.ids import PrincipalId, TurnId
from legato.domain.turns import Busy, Input, Options, Submission, Target, Turn
from legato.engine.live import KEEP
from legato.store import directory, nodes
from legato.store.postgres import Postgres
from legato.store.verify import verify

WORK = Slug("work")


class Rooms:
    """One store, and the processes that run on it. SQLite takes one at a time, PostgreSQL any number."""

    def __init__(self, home: Path, url: str = "") -> None:
        self.home, self.url = home, url
        self._keepers: dict[int, tuple[asyncio.Event, asyncio.Task[None]]] = {}
        self._last: dict[str, Any] = {}
        self._newest: App | None = None

    @property
    def model(self) -> Scripted:
        """The model of the newest process."""
        model: Scripted = self._last["model"]
        return model

    async def open(
        self,
        model: Scripted | None = None,
        tools: Tools | None = None,
        *,
        keep_events: int = KEEP,
        agent: dict[str, Any] | None = None,
        **settings: Any,
    ) -> App:
        """Start a process. `settings` are configuration values: `worker_lease=2.0` sets `worker.lease`."""
        self._last = {
            "model": model or Scripted(echo),
            "tools": tools or Tools(),
            "keep_events": keep_events,
            "agent": agent or {},
            **settings,
        }
        return await self._start(**self._last)

    async def restart(self, **changes: Any) -> App:
        """Stop the newest process and start it again, with some things changed."""
        assert self._newest is not None
        await self.close(self._newest)
        return await self.open(**{**self._last, **changes})

    async def close(self, app: App, bound: float = BOUND) -> None:
        """Stop a process: what runs is handed back."""
        leave, keeper = self._keepers.pop(id(app))
        leave.set()
        await within(keeper, bound)

    async def crash(self, app: App) -> None:
        """A process dies: from this moment on it writes nothing, gives nothing back, and its lease is not renewed."""
        if isinstance(app.db, Postgres):
            app.db._pool.terminate()
            app.db._own.terminate()
        else:
            await app.db.close()
        await self.close(app)
        if self.url:  # what would take as long as the lease
            db = await open_database(self._config({}))
            await db.write(nodes.end, app.worker.node)
            await db.close()

    async def close_all(self) -> None:
        keepers, self._keepers = list(self._keepers.values()), {}
        for leave, _ in keepers:
            leave.set()
        for _, keeper in keepers:
            await within(keeper)

    async def findings(self) -> list[str]:
        """What is wrong with the store, while nobody runs on it."""
        db = await open_database(self._config({}))
        try:
            return [str(finding) async for finding in verify(db)]
        finally:
            await db.close()

    async def _start(self, model: Scripted, tools: Tools, keep_events: int, agent: Any, **settings: Any) -> App:
        config = self._config(
            {
                "agents": {"default": {"model": "scripted", "toolsets": ["tools"], **agent}},
                **{name.replace("_", ".", 1): value for name, value in settings.items()},
            }
        )
        opened: asyncio.Future[App] = asyncio.get_running_loop().create_future()
        leave = asyncio.Event()

        async def keep() -> None:  # rooms are left in the task that entered them
            async with open_app(
                config, models={"scripted": model}, toolsets={"tools": tools}, keep_events=keep_events
            ) as app:
                for principal in (ALICE, BOB):
                    await app.db.write(directory.add_principal, principal)
                opened.set_result(app)
                await leave.wait()

        keeper = asyncio.create_task(keep())
        await within(asyncio.wait({opened, keeper}, return_when=asyncio.FIRST_COMPLETED))
        if keeper.done():
            await keeper
        app = self._newest = await opened
        self._keepers[id(app)] = leave, keeper
        return app

    def _config(self, overrides: dict[str, Any]) -> Config:
        if self.url:
            overrides = {"database.url": self.url, **overrides}
        concurrency = overrides.pop("worker.concurrency", None)  # 0 takes no turn: nobody could configure that
        config = load(self.home, overrides, environ={})[0]
        return (
            config if concurrency is None else replace(config, worker=replace(config.worker, concurrency=concurrency))
        )


# -- what a client does


def message(text: str) -> Message:
    return Message("user", (Text(text),))


def submission(
    what: str | Iterable[AnyBody] = "hello",
    to: Target = WORK,
    *,
    who: PrincipalId = ALICE,
    busy: Busy = "queue",
    key: str | None = None,
    hash: str | None = None,
    **options: Any,
) -> Submission:
    bodies = [message(what)] if isinstance(what, str) else what
    given = Input(tuple(draft(body) for body in bodies), Options(**options))
    return Submission(principal=who, target=to, input=given, busy=busy, dedup_key=key, request_hash=hash)


async def say(app: App, what: str | Iterable[AnyBody] = "hello", to: Target = WORK, **more: Any) -> Turn:
    """Submit, and return when it is admitted."""
    return await within(app.gateway.submit(submission(what, to, **more)))


async def ask(app: App, what: str | Iterable[AnyBody] = "hello", to: Target = WORK, **more: Any) -> Turn:
    """Submit, and return when the turn has ended."""
    return await ended(app, await say(app, what, to, **more))


async def ended(app: App, turn: Turn) -> Turn:
    return await within(app.gateway.ended(turn))


async def answer(app: App, turn: Turn) -> str:
    """What came of a turn, in words."""
    return await app.gateway.answer(await app.gateway.turn(turn.principal, turn.id))


async def told(app: App, turn: Turn, n: int = 0) -> list[AnyEvent]:
    """Every event from number `n` on, whose numbers have no gap."""

    async def read() -> list[tuple[int, AnyEvent]]:
        return [numbered async for numbered in app.gateway.follow(turn.principal, turn.id, n)]

    numbered = await within(read())
    assert [place for place, _ in numbered] == list(range(n, n + len(numbered)))
    return [event for _, event in numbered]


async def until_told(app: App, turn: Turn, wanted: AnyEvent) -> None:
    """Wait until a follower is told this; then it is durable."""

    async def look() -> None:
        async with aclosing(app.gateway.follow(turn.principal, turn.id)) as events:
            async for _, event in events:
                if event == wanted:
                    return
        raise AssertionError(f"nobody was told {wanted}")

    await within(look())


async def transcript(app: App, of: Handle = WORK, who: PrincipalId = ALICE) -> list[str]:
    return shown(await app.gateway.transcript(who, of))


async def context(app: App, of: Handle = WORK, who: PrincipalId = ALICE) -> list[str]:
    return shown((await app.gateway.context(who, of)).entries)


async def tip(app: App, of: Handle = WORK, who: PrincipalId = ALICE) -> TurnId | None:
    return (await app.gateway.find(who, of)).tip_turn


def shown(entries: Iterable[Entry]) -> list[str]:
    """Entries as short lines, without the setups: those have tests of their own."""
    return [line(entry.body) for entry in entries if not isinstance(entry.body, Setup)]


def line(body: AnyBody) -> str:
    match body:
        case Message(role=role, text=text, incomplete=cut):
            return f"{role}: {text}{' (cut off)' if cut else ''}"
        case Reasoning(text=text, incomplete=cut):
            return f"thinks: {text}{' (cut off)' if cut else ''}"
        case ToolCall(name=name, arguments=arguments, client=client):
            return f"{'asks the client for' if client else 'calls'} {name} {arguments}"
        case ToolResult(output=output, is_error=wrong):
            return f"{'error' if wrong else 'result'}: {output}"
        case Setup(instructions=instructions):
            return f"setup: {instructions}"
        case Note(text=text):
            return f"note: {text}"
        case Compaction(upto=upto, summary=summary):
            return f"compaction to {upto}: {summary}"
        case Hide(first=first, last=last):
            return f"hide {first}-{last}"
        case Rewind(to=ref):
            return f"rewind to {ref}"
        case Expand(of=ref):
            return f"expand {ref}"
        case Pin(at=ref):
            return f"pin {ref}"
        case Remove(at=ref):
            return f"remove {ref}"
