"""Deliver: what is owed to an address is sent in order, one at a time, and what came of it is written down.

A long answer is several messages; each that arrived is counted, so that nothing is said twice. Where nobody knows
whether a message arrived, it is marked and shown, and a person decides; only a channel whose other side knows a
repetition gets it again.
"""

import asyncio
from contextlib import suppress
from typing import Any, Literal

from msgspec import DecodeError, json

from legato.domain.channels import split
from legato.domain.entries import Note, draft
from legato.domain.events import Delta, Opened
from legato.domain.handles import Address, ById
from legato.domain.ids import NodeId, TurnId
from legato.domain.turns import Input, Submission, Turn
from legato.engine import metrics
from legato.engine.gateway import Gateway
from legato.engine.protocols import Channel, Doubtful, Editing, NotSent, Rejected
from legato.errors import LegatoError
from legato.logs import logger
from legato.store import outbox, turns
from legato.store.database import Database
from legato.store.outbox import Delivery

AT_ONCE = 16  # addresses that are sent to at a time
LOOK_EVERY = 1.0
WAITS = (1.0, 2.0, 5.0, 15.0, 60.0, 300.0)
MOST_TRIES = 100
LEAVING = 10.0
PREVIEW_EVERY = 1.5
PREVIEW_LEAST = 30


class Preview:
    """Shows an answer as it comes, in one message that is changed again and again. The last change is the answer
    itself, and is the delivery's; where there will be none, because the turn was stopped, it is ours."""

    def __init__(self, db: Database, gateway: Gateway, channel: Channel, address: Address, turn: Turn) -> None:
        self._db, self._gateway, self._channel, self._address = db, gateway, channel, address
        self.turn = turn
        self._text, self._shown, self._message = "", "", ""

    async def run(self) -> None:
        """Until the turn has ended. What cannot be shown is left to the delivery."""
        reading = asyncio.create_task(self._read())
        try:
            while not reading.done():
                await asyncio.wait({reading}, timeout=PREVIEW_EVERY)
                if reading.done() or self._text == self._shown or len(self._text) < PREVIEW_LEAST:
                    continue
                if not self._message and (await self._now()).id != self.turn.id:
                    return  # it joined another, whose preview shows the answer
                self._shown = self._text
                await self._show(self._shown.rstrip() + " …")
            await reading
            if self._message and (await self._now()).status == "cancelled":  # nothing more will come
                await self._show(self._text.rstrip() or self._shown.rstrip())
        except Exception as error:  # noqa: BLE001 - the channel pump: the delivery says it all
            logger.info("an answer is not shown as it comes", turn=self.turn.id, error=told(error))
        finally:
            await stopped(reading)

    async def _now(self) -> Turn:
        return await self._gateway.turn(self.turn.principal, self.turn.id)

    async def _show(self, text: str) -> None:
        part = split(text, self._channel.limit, self._channel.size)[0]
        if self._message:
            assert isinstance(self._channel, Editing)
            await self._channel.edit(self._address, self._message, part)
        else:
            self._message = await self._channel.send(
                self._address, part, key=f"preview {self.turn.id}", reply_to=self.turn.input.reply_to
            )
            await self._db.write(outbox.add_preview, self.turn.id, self._address.value, self._message)

    async def _read(self) -> None:
        """The text of the last message that the model has begun."""
        messages: set[int] = set()
        async for _, events in self._gateway.follow_on(self.turn):
            for event in events:
                if isinstance(event, Opened) and event.kind == "message":
                    messages.add(event.index)
                    self._text = ""
                elif isinstance(event, Delta) and event.index in messages:
                    self._text += event.text


class Deliverer:
    """Sends what is owed on one channel."""

    def __init__(self, db: Database, gateway: Gateway, node: NodeId, channel: Channel) -> None:
        self._db, self._gateway, self._node, self._channel = db, gateway, node, channel
        self._prefix = Address.beginning(channel.kind, channel.account)
        self._owed = asyncio.Event()
        self._flying: set[asyncio.Task[None]] = set()
        self._previews: dict[TurnId, asyncio.Task[None]] = {}

    def show(self, preview: Preview) -> None:
        """Let an answer be seen as it comes, until it is delivered."""
        task = asyncio.create_task(preview.run())
        self._previews[preview.turn.id] = task
        task.add_done_callback(lambda _: self._previews.pop(preview.turn.id, None))

    def wake(self) -> None:
        """Something may be owed."""
        self._owed.set()

    async def run(self) -> None:
        """Until cancelled; what is in flight then gets a moment to arrive."""
        try:
            while True:
                self._owed.clear()
                try:
                    await self._doubt()
                    await self._send_all()
                except Exception as error:  # noqa: BLE001 - the channel pump: it goes on
                    logger.error("delivering failed", channel=self._channel.account, error=told(error))
                    await asyncio.sleep(LOOK_EVERY)
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_EVERY):
                        await self._owed.wait()
        finally:
            if self._flying:
                await asyncio.wait(self._flying, timeout=LEAVING)
            for task in self._flying:
                task.cancel()

    async def _doubt(self) -> None:
        """What was in flight when its process died is sent again where a repetition is known, and else is shown."""
        doubtful = await self._db.write(outbox.doubt, self._prefix)
        if self._channel.repeatable:
            await self._db.write(outbox.requeue_doubtful, self._prefix)
            return
        for delivery in doubtful:
            await self._note(delivery, "unknown", "the gateway was stopped while it was sent")

    async def _send_all(self) -> None:
        while len(self._flying) < AT_ONCE:
            delivery = await self._db.write(outbox.take, self._node, self._prefix)
            if delivery is None:
                return
            task = asyncio.create_task(self._deliver(delivery))
            self._flying.add(task)
            task.add_done_callback(self._flying.discard)

    async def _deliver(self, delivery: Delivery) -> None:
        try:
            await self._send(delivery)
        except LegatoError as error:  # the store: it stays in flight, and is in doubt when our lease has run out
            logger.error("an answer is in flight and cannot be settled", delivery=delivery.id, error=error.message)
        finally:
            self.wake()

    async def _send(self, delivery: Delivery) -> None:
        """Send what has not arrived of an answer, and settle it."""
        try:
            body = json.decode(delivery.body, type=dict[str, str])
        except DecodeError:  # left in flight, it would hold up everything that is owed there
            why = "it cannot be read; 'legato verify' shows what else is damaged"
            await self._give_up(delivery, delivery.platform_message_id, "dead", why)
            return
        address = Address.parse(delivery.address)
        parts = split(_shown(body), self._channel.limit, self._channel.size)
        message = delivery.platform_message_id
        try:
            for place in range(delivery.parts_sent, len(parts)):
                reply_to = body.get("reply_to") if place == 0 else None
                key = f"{delivery.turn_id} {delivery.id}.{place}"  # a number alone may come again after a purge
                message = (await self._in_place_of_preview(delivery, address, parts[0]) if place == 0 else None) or (
                    await self._channel.send(address, parts[place], key=key, reply_to=reply_to)
                )
                if not await self._db.write(outbox.part_sent, delivery.id, self._node, place + 1, message):
                    logger.warning("an answer is no longer ours to send", delivery=delivery.id)
                    return
        except NotSent as error:
            await self._put_back(delivery, message, error)
        except Rejected as error:
            await self._give_up(delivery, message, "dead", error.message)
        except Doubtful as error:
            if self._channel.repeatable:
                await self._put_back(delivery, message, NotSent(error.message))
            else:
                await self._give_up(delivery, message, "unknown", error.message)
        except (LegatoError, asyncio.CancelledError):
            raise
        except Exception as error:  # noqa: BLE001 - the channel pump: nobody knows what it did before it failed
            await self._give_up(delivery, message, "unknown", told(error))
        else:
            await self._settle(delivery, "sent", message)

    async def _in_place_of_preview(self, delivery: Delivery, address: Address, text: str) -> str | None:
        """Let the message that showed the answer as it came become the answer; returns its id, if there is one."""
        if (showing := self._previews.get(delivery.turn_id)) is not None:
            await asyncio.wait({showing})
        message = await self._db.read(outbox.preview, delivery.turn_id, delivery.address)
        if message is None or not isinstance(self._channel, Editing):
            return None
        try:
            await self._channel.edit(address, message, text)
        except Doubtful as error:  # to do it again does no harm
            raise NotSent(error.message) from error
        except Rejected:  # somebody has deleted it
            return None
        return message

    async def _put_back(self, delivery: Delivery, message: str | None, error: NotSent) -> None:
        if delivery.attempts >= MOST_TRIES:
            await self._give_up(delivery, message, "dead", error.message)
            return
        wait = error.retry_after
        if wait is None:
            wait = WAITS[min(delivery.attempts - 1, len(WAITS) - 1)]
        await self._settle(delivery, "pending", message, error=error.message, wait=wait)

    async def _give_up(
        self, delivery: Delivery, message: str | None, settled: Literal["dead", "unknown"], why: str
    ) -> None:
        """Settle what did not arrive, and say so in the conversation."""
        if await self._settle(delivery, settled, message, error=why):
            await self._note(delivery, settled, why)

    async def _note(self, delivery: Delivery, settled: Literal["dead", "unknown"], why: str) -> None:
        """Say it in the conversation once its turn comes, which is not waited for: others are owed answers."""
        logger.error("an answer did not arrive", delivery=delivery.id, turn=delivery.turn_id, status=settled, why=why)
        word = "did not arrive" if settled == "dead" else "may not have arrived"
        address = Address.parse(delivery.address)
        note = Note(f"An answer {word} at {address.channel} {address.chat}: {why}", reason="delivery")
        try:
            turn = await self._db.read(turns.get, delivery.turn_id)
            target, given = ById(turn.conversation_id), Input((draft(note),))
            await self._gateway.submit(Submission(principal=turn.principal, target=target, input=given, kind="upkeep"))
        except LegatoError as error:
            logger.warning("not noted in the conversation", delivery=delivery.id, error=error.message)

    async def _settle(
        self,
        delivery: Delivery,
        status: Literal["pending", "sent", "unknown", "dead"],
        message: str | None,
        **more: Any,
    ) -> bool:
        """Write down what came of it, if it is still ours to say."""
        ours = await self._db.write(outbox.settle, delivery.id, self._node, status, message, **more)
        if ours:
            metrics.DELIVERED.labels(self._channel.account, "again" if status == "pending" else status).inc()
        return ours


def _shown(body: dict[str, str]) -> str:
    """An answer as it is sent; where it was not asked, with what was asked."""
    asked = body.get("asked", "")
    quoted = "\n".join(f"> {line}".rstrip() for line in asked.splitlines())
    return f"{quoted}\n\n{body['text']}" if quoted else body["text"]


async def stopped(*tasks: asyncio.Future[Any]) -> None:
    """Cancel tasks and wait until all of them have ended, however each does."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def told(error: Exception) -> str:
    """What may be said of a failure. The text of one that is not ours may hold a secret, such as a bot's address."""
    return (
        error.message if isinstance(error, LegatoError) else f"an unexpected {type(error).__name__}; this is a defect"
    )
