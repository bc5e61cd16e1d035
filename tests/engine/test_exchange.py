"""A channel that does what no channel should is shown and stops nothing else; and an answer is shown as it comes."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from engine.scripted import Scripted
from engine.waiting import until, within
from legato.app import LOCAL, App, open_app
from legato.config import load
from legato.domain.attachments import Blob
from legato.domain.channels import Attached, Inbound, Sender
from legato.domain.entries import Message, Note
from legato.domain.handles import Address
from legato.domain.turns import Busy, Usage
from legato.engine.exchange import ChannelSettings
from legato.engine.protocols import Finished, Inlet, ModelEvent, ModelRequest, TextChunk
from legato.store import figures
from legato.store.database import Tx

SECRET = "https://example.org/bot-with-a-secret"
HOME, AWAY = Address("own", "bot", "home"), Address("own", "bot", "away")
ANN = Sender("own", "bot", "ann", "Ann")
WORDS = "some words that are long enough to be shown before there are more, "


class Own:
    """A channel in this process."""

    kind, account, limit, repeatable, exclusive = "own", "bot", 4000, False, True

    def __init__(self) -> None:
        self.inlet: Inlet | None = None
        self.sent: list[str] = []
        self.edits: list[tuple[str, str]] = []

    def size(self, text: str) -> int:
        return len(text)

    async def run(self, inlet: Inlet) -> None:
        self.inlet = inlet
        inlet.up()
        await asyncio.Event().wait()

    async def say(self, text: str, message: str = "1", **more: Any) -> None:
        assert self.inlet is not None
        await self.inlet.take(Inbound(**{"address": HOME, "sender": ANN, "message": message, "text": text, **more}))

    async def send(self, address: Address, text: str, *, key: str, reply_to: str | None = None) -> str:
        self.sent.append(text)
        return f"m{len(self.sent)}"

    async def edit(self, address: Address, message: str, text: str) -> None:
        self.edits.append((message, text))

    async def typing(self, address: Address) -> None:
        pass

    async def close(self) -> None:
        pass


class Wild(Own):
    """Fails in every way that is not allowed."""

    tries = 0

    async def run(self, inlet: Inlet) -> None:
        self.tries += 1
        if self.tries == 1:
            raise KeyError(SECRET)
        await super().run(inlet)

    async def send(self, address: Address, text: str, *, key: str, reply_to: str | None = None) -> str:
        raise ZeroDivisionError(SECRET)


class Slow:
    """A model that goes on when it is told to."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        yield TextChunk(WORDS)
        await self.go_on.wait()
        yield TextChunk("and the end.")
        yield Finished(Usage())


@asynccontextmanager
async def opened(
    home: Path, channel: Own, environ: dict[str, str] | None = None, busy: Busy = "queue", **models: Any
) -> AsyncIterator[App]:
    config, _ = load(home, environ=environ or {})
    settings = ChannelSettings(allow=frozenset({"ann"}), gather=0.0, busy=busy)
    async with open_app(config, models=models or None, channels={"own": (channel, settings)}) as app:

        async def connected() -> bool:
            return app.exchange.states[0].up

        await until(connected)
        yield app


def delivering() -> int:
    """How many tasks deliver."""
    return sum(getattr(task.get_coro(), "__qualname__", "") == "Deliverer.run" for task in asyncio.all_tasks())


async def test_a_channel_that_fails_in_a_way_of_its_own_is_tried_again_and_says_no_secret(tmp_path: Path) -> None:
    """What it was sending is in doubt, is noted in the conversation, and the gateway lives on."""
    channel = Wild()
    async with opened(tmp_path / "home", channel) as app:
        assert channel.tries == 2
        assert delivering() == 1
        await channel.say("reply only hello")

        async def doubted() -> bool:
            return bool(await app.gateway.undelivered(LOCAL))

        await until(doubted)
        [row] = await app.gateway.undelivered(LOCAL)
        assert (row.status, row.error) == ("unknown", "an unexpected ZeroDivisionError; this is a defect")
        await channel.say("/status", "2")
        assert app.exchange.states[0].up


async def test_an_answer_is_shown_as_it_comes_and_its_message_becomes_the_answer(tmp_path: Path) -> None:
    """One message, changed; nothing is said twice."""
    channel, model = Own(), Slow()
    async with opened(tmp_path / "home", channel, slow=model) as app:
        await within(channel.say("tell me"))

        async def shown() -> bool:
            return bool(channel.sent)

        await until(shown)
        assert channel.sent == [WORDS.rstrip() + " …"]
        model.go_on.set()

        async def delivered() -> bool:
            return (channel.edits or [("", "")])[-1][1].endswith("and the end.")

        await until(delivered)
        assert channel.edits[-1] == ("m1", WORDS + "and the end.")
        assert len(channel.sent) == 1
        assert await app.gateway.undelivered(LOCAL) == []


async def test_a_message_that_joins_a_turn_is_shown_no_answer_of_its_own(tmp_path: Path) -> None:
    channel, model = Own(), Scripted()
    async with opened(tmp_path / "home", channel, busy="steer", scripted=model):
        await within(channel.say("look for it"))
        first = await model.asked()
        await within(channel.say("be quick", "2"))
        first.call("look")
        first.finish()
        second = await model.asked()
        for n in range(3):  # as often as another preview needs to begin
            second.say(WORDS)

            async def shown(words: str = (WORDS * (n + 1)).rstrip()) -> bool:
                return f"{words} …" in [*channel.sent, *(text for _, text in channel.edits)]

            await until(shown)
        second.finish("and the end.")

        async def answered() -> bool:
            return channel.edits[-1] == ("m1", WORDS * 3 + "and the end.")

        await until(answered)
        assert len(channel.sent) == 1


async def test_what_is_shown_of_an_answer_that_was_stopped_stays_and_promises_no_more(tmp_path: Path) -> None:
    channel = Own()
    async with opened(tmp_path / "home", channel, slow=Slow()):
        await within(channel.say("tell me"))

        async def shown() -> bool:
            return channel.sent == [WORDS.rstrip() + " …"]

        await until(shown)
        await within(channel.say("/stop", "2"))

        async def left() -> bool:
            return channel.edits == [("m1", WORDS.rstrip())]

        await until(left)


@pytest.mark.parametrize("then", [{}, {"group": True}], ids=["said", "said aside"])
async def test_what_is_said_next_is_heard_next_though_what_was_said_before_takes_longer_to_keep(
    tmp_path: Path, pg_url: str, then: dict[str, Any]
) -> None:
    """The first message brings a large file along. It is being kept when the second comes, on another connection."""
    channel = Own()
    async with opened(tmp_path / "home", channel, {"LEGATO_DATABASE_URL": pg_url}) as app:
        large = Attached(Blob.of(b"x" * 20_000_000, "application/octet-stream"), "large")
        async with asyncio.TaskGroup() as group:
            group.create_task(channel.say("reply only first", "1", attached=(large,)))
            group.create_task(channel.say("reply only second", "2", **then))

        async def said() -> list[str]:
            bodies = [entry.body for entry in await app.gateway.transcript(LOCAL, HOME)]
            return [body.text for body in bodies if isinstance(body, Message) and body.role == "user"]

        async def both() -> bool:
            return len(await said()) == 2

        await until(both)
        assert await said() == ["reply only first", "reply only second"]


async def test_a_conversation_that_is_busy_holds_up_no_answer_of_another(tmp_path: Path) -> None:
    """It is noted there that an answer may not have arrived, when its turn comes; nobody waits for that."""
    channel = Own()
    async with opened(tmp_path / "home", channel) as app:
        await channel.say("reply only one")
        await until(partial(delivered, app, "sent"))
        await channel.say("sleep 3600", "2")
        await app.db.write(left_by_a_dead_process)
        await until(partial(delivered, app, "unknown"))
        await channel.say("reply only elsewhere", "3", address=AWAY)
        await until(partial(delivered, app, "sent"))
        assert channel.sent == ["one", "elsewhere"]
        await channel.say("/stop", "4")

        async def noted() -> bool:
            return any(isinstance(entry.body, Note) for entry in await app.gateway.transcript(LOCAL, HOME))

        await until(noted)


async def test_an_answer_that_cannot_be_read_holds_up_none_after_it(tmp_path: Path) -> None:
    """It is shown as one that did not arrive."""
    channel = Own()
    async with opened(tmp_path / "home", channel) as app:
        await channel.say("reply only one")
        await until(partial(delivered, app, "sent"))
        await app.db.write(owed_and_damaged)
        await channel.say("reply only two", "2")
        await until(partial(delivered, app, "dead"))
        await until(partial(delivered, app, "sent"))
        assert channel.sent == ["one", "two"]
        [row] = await app.gateway.undelivered(LOCAL)
        assert "cannot be read" in str(row.error)


async def delivered(app: App, status: str) -> bool:
    """Whether an answer has come so far."""
    return status in (await app.db.read(figures.of_store)).deliveries


async def owed_and_damaged(tx: Tx) -> None:
    await tx.script("update deliveries set status = 'pending', parts_sent = 0, body = '!'")


async def left_by_a_dead_process(tx: Tx) -> None:
    await tx.script("update deliveries set status = 'sending', owner = 'dead'")
