"""The composition root: builds every room from the configuration. The only file that knows all of them."""

import asyncio
import os
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

from msgspec import Struct

from legato.channels.webhook import Webhook
from legato.config import UNNAMED, ChannelConfig, Config, ModelConfig, home_key
from legato.domain.ids import PrincipalId
from legato.engine import resets
from legato.engine.care import Care
from legato.engine.compaction import CompactionSettings
from legato.engine.exchange import ChannelSettings, Exchange
from legato.engine.gateway import Gateway
from legato.engine.live import KEEP, Live
from legato.engine.protocols import Channel, Model, Toolset
from legato.engine.roster import Agent, Roster
from legato.engine.worker import Worker, WorkerSettings
from legato.errors import BadConfig, StoreUnavailable
from legato.logs import logger
from legato.models import ollama
from legato.models.demo import Demo
from legato.models.fallback import Fallback
from legato.models.openai_chat import OpenAIChat
from legato.store import keys
from legato.store.database import Database
from legato.store.sqlite import Sqlite
from legato.tools.clock import Clock

LOCAL = PrincipalId("local")
ADMIN = frozenset({"admin"})


class App(Struct, frozen=True):
    """The rooms of a running process."""

    config: Config
    db: Database
    roster: Roster
    worker: Worker
    gateway: Gateway
    exchange: Exchange
    care: Care


@asynccontextmanager
async def open_app(
    config: Config,
    *,
    models: dict[str, Model] | None = None,
    toolsets: dict[str, Toolset] | None = None,
    channels: dict[str, tuple[Channel, ChannelSettings]] | None = None,
    keep_events: int = KEEP,
) -> AsyncIterator[App]:
    """Build the rooms and run them. `models`, `toolsets` and `channels` are added to the configured ones."""
    make_home(config.home)
    async with AsyncExitStack() as stack:
        roster = await open_roster(config, stack, models or {}, toolsets or {})
        db = await open_database(config)
        stack.push_async_callback(db.close)
        await admit_key(db, config.home)
        live = Live(db, keep=keep_events)
        settings = WorkerSettings(
            concurrency=config.worker.concurrency,
            lease=config.worker.lease,
            max_attempts=config.worker.max_attempts,
            keep_deleted=config.trash.keep_days * 86_400,
            compaction=CompactionSettings(config.compaction.share, config.compaction.model, config.compaction.timeout),
        )
        built = {name: build_channel(name, channel, stack) for name, channel in config.channels.items()}
        worker = await stack.enter_async_context(Worker(db, live, roster, settings))
        gateway = Gateway(db, live, worker)
        exchange = Exchange(db, gateway, worker, {**built, **(channels or {})})
        await stack.enter_async_context(running(exchange.run()))
        care = Care(db, config.home, worker.index_soon)
        yield App(config, db, roster, worker, gateway, exchange, care)


@asynccontextmanager
async def running(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Something that goes on beside, until the end."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def prove(config: Config) -> None:
    """Build what the configuration names, and leave it again: what a start would refuse is refused."""
    async with AsyncExitStack() as stack:
        await open_roster(config, stack, {}, {})
        for name, channel in config.channels.items():
            build_channel(name, channel, stack)


async def open_roster(
    config: Config, stack: AsyncExitStack, models: dict[str, Model], toolsets: dict[str, Toolset]
) -> Roster:
    """Who can answer: what is configured or found, and what is given."""
    known = config.models or ({} if models else await ollama.find(config.providers.ollama))
    configured = {name: build_model(name, model, stack) for name, model in known.items()}
    return build_roster(config, with_fallbacks(known, {**configured, **models}), toolsets)


@contextmanager
def _named(section: str) -> Iterator[None]:
    """Let a refusal say which section it is about."""
    try:
        yield
    except BadConfig as error:
        raise BadConfig(f"{section}: {error.message}") from error


def build_channel(name: str, config: ChannelConfig, stack: AsyncExitStack) -> tuple[Channel, ChannelSettings]:
    """A channel as it is configured."""
    with _named(f"channels.{name}"):
        return _channel(name, config, stack)


def _channel(name: str, config: ChannelConfig, stack: AsyncExitStack) -> tuple[Channel, ChannelSettings]:
    channel: Channel
    if config.kind == "telegram":
        from legato.channels.telegram import Telegram  # noqa: PLC0415 - its Markdown takes a tenth of a start to load

        channel = Telegram(
            name,
            token=config.token,
            base_url=config.base_url,
            mode=config.mode,
            url=config.url,
            secret=config.secret,
            limit=config.max_length,
            max_attachment=config.max_attachment,
        )
    else:
        channel = Webhook(name, secret=config.secret, url=config.url, limit=config.max_length)
    stack.push_async_callback(channel.close)
    settings = ChannelSettings(
        principal=PrincipalId(config.principal),
        allow=frozenset(config.allow),
        gather=config.gather,
        busy=config.busy,
        reset=resets.parse(config.reset, config.timezone),
        every_message=config.groups == "all",
        preview=config.preview,
    )
    return channel, settings


async def open_database(config: Config) -> Database:
    """SQLite in the home, or the PostgreSQL that a URL names."""
    if not config.database.url:
        return await Sqlite.open(config.home / "legato.db")
    return await _open_postgres(config.database.url, connections=config.database.connections)


async def look_at_database(config: Config) -> Database:
    """The same as it is: nothing is migrated, nothing is written, and a gateway may run on it."""
    if not config.database.url:
        return Sqlite.look(config.home / "legato.db")
    return await _open_postgres(config.database.url, connections=2, look=True)


async def _open_postgres(url: str, *, connections: int, look: bool = False) -> Database:
    from legato.store.postgres import Postgres  # noqa: PLC0415 - its driver takes its time to load, and SQLite needs none

    return await Postgres.open(url, connections=connections, look=look)


def build_model(name: str, config: ModelConfig, stack: AsyncExitStack) -> Model:
    """A model as it is configured."""
    if config.kind == "demo":
        return Demo()
    with _named(f"models.{name}"):
        model = OpenAIChat(base_url=config.base_url, model=config.model or name, api_key=config.api_key)
    stack.push_async_callback(model.close)
    return model


def with_fallbacks(configs: dict[str, ModelConfig], models: dict[str, Model]) -> dict[str, Model]:
    """The models, each with those behind it that it is configured to have."""
    wanted = {name: config.fallback for name, config in configs.items() if config.fallback}
    for name, others in wanted.items():
        if missing := [other for other in others if other not in models or other == name]:
            raise BadConfig(f"Model '{name}' cannot fall back on {missing}; there are: {', '.join(models)}.")
    chains: dict[str, Model] = {
        name: Fallback(models[name], [models[other] for other in others]) for name, others in wanted.items()
    }
    return {**models, **chains}


def build_roster(config: Config, models: dict[str, Model], toolsets: dict[str, Toolset]) -> Roster:
    """Who can answer: the configured agents and models, and the demo where nothing is configured."""
    all_toolsets: dict[str, Toolset] = {"clock": Clock(), **toolsets}
    agents = {name: Agent(name, a.model, a.instructions, a.toolsets, a.max_steps) for name, a in config.agents.items()}
    all_models: dict[str, Model] = dict(models) or {"demo": Demo()}
    if config.default_agent == UNNAMED and UNNAMED not in agents:
        agents[UNNAMED] = Agent(UNNAMED, next(iter(all_models)), toolsets=tuple(all_toolsets))
    if config.default_agent not in agents:
        known = ", ".join(dict.fromkeys([*agents, UNNAMED]))
        raise BadConfig(f"default_agent is '{config.default_agent}', but no agent is called so; there are: {known}.")
    roster = Roster(
        models=all_models,
        toolsets=all_toolsets,
        agents=agents,
        default=config.default_agent,
        unknown=config.server.unknown_model,
        windows={name: model.context_window for name, model in config.models.items()},
    )
    if config.compaction.model and config.compaction.model not in roster.names:
        named = f"Nobody named '{config.compaction.model}' can write summaries (compaction.model)"
        raise BadConfig(f"{named}; there are: {', '.join(roster.names)}.")
    return roster


def make_home(home: Path) -> None:
    """The folder for everything, readable by its owner only."""
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StoreUnavailable(
            f"Cannot make the home {home}: {error.strerror}. Choose another with --home or LEGATO_HOME."
        ) from error


def local_key(home: Path) -> str:
    """The key that the command line uses, made on the first start."""
    if key := home_key(home):
        return key
    key, path = keys.new_key(), home / "key"
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    except OSError as error:
        raise StoreUnavailable(f"Cannot write the key file {path}: {error.strerror}.") from error
    with os.fdopen(descriptor, "w") as file:
        file.write(key + "\n")
    return key


async def admit_key(db: Database, home: Path) -> None:
    """Let the local key in; the database holds only its hash. One that was revoked stays out."""
    key = local_key(home)
    if await db.read(keys.find, key) is not None:
        return
    if not await db.write(keys.let_in, key, name="local", principal=LOCAL, scopes=ADMIN):
        advice = "delete the file and start again to get another"
        logger.warning("the key of this home was revoked", file=str(home / "key"), advice=advice)
