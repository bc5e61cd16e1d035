"""The exchange: where channels meet the gateway. What people write comes in once; what is owed to them goes out.

A channel hands over what it hears and is told when that is safe. Who may speak, what is a command, what belongs
together and when a talk begins anew is decided here, the same for every platform, so that a platform is one thin file.
A channel that is down stops nothing else.
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from weakref import WeakValueDictionary

from msgspec import Struct

from legato.domain.channels import Inbound, MessageKey, Sender
from legato.domain.conversations import Conversation
from legato.domain.entries import Draft, File, Image, Message, Part, Text, draft
from legato.domain.handles import Address, ById
from legato.domain.ids import PrincipalId
from legato.domain.turns import Busy, Dedup, Input, Submission, Turn
from legato.engine import commands, metrics
from legato.engine.deliver import Deliverer, Preview, stopped, told
from legato.engine.gateway import Gateway
from legato.engine.protocols import Channel, Editing, Hooked, NotSent
from legato.engine.resets import Reset
from legato.engine.worker import Worker
from legato.errors import LegatoError, NotFound
from legato.logs import logger
from legato.store import directory, identities, inbox, nodes
from legato.store.database import Database

BACKOFF = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
TYPING_EVERY = 4.0
SAID_AFTER = (1.0, 5.0, 15.0)  # seconds until something that is not owed is said again
PATIENCE = 30.0  # seconds for which a platform may ask us to wait with it
GATHERED_AT_MOST = 5  # times the moment for which messages are gathered


class ChannelSettings(Struct, frozen=True):
    """How a channel behaves. `allow` are people who may speak without being paired, for `principal`."""

    principal: PrincipalId = PrincipalId("local")
    allow: frozenset[str] = frozenset()
    gather: float = 0.7
    busy: Busy = "queue"
    reset: Reset = Reset()
    every_message: bool = False  # in groups, answer also what does not name us
    preview: bool = True  # show an answer as it comes, where a message can be changed


class ChannelState(Struct):
    """How a channel is."""

    name: str
    up: bool = False
    why: str = "starting"


class Exchange:
    """Every channel of a process. `run` it beside the worker."""

    def __init__(
        self, db: Database, gateway: Gateway, worker: Worker, channels: dict[str, tuple[Channel, ChannelSettings]]
    ) -> None:
        self._lines = {
            name: _Line(name, channel, settings, db, gateway, worker) for name, (channel, settings) in channels.items()
        }
        worker.on_ended = self._on_ended

    @property
    def states(self) -> list[ChannelState]:
        return [line.state for line in self._lines.values()]

    async def run(self) -> None:
        """Listen and deliver on every channel until cancelled."""
        if not self._lines:
            return
        async with asyncio.TaskGroup() as group:
            for line in self._lines.values():
                group.create_task(line.listen())
                if not line.channel.exclusive:
                    group.create_task(line.deliverer.run())

    def hooked(self, name: str) -> Hooked:
        """The channel whose messages come in under a name."""
        line = self._lines.get(name)
        if line is None or not isinstance(line.channel, Hooked):
            raise NotFound(f"No channel {name!r} takes messages here.")
        return line.channel

    def _on_ended(self, turn: Turn) -> None:
        for line in self._lines.values():
            line.deliverer.wake()


class _Line:
    """One channel, and all that is heard on it."""

    def __init__(
        self, name: str, channel: Channel, settings: ChannelSettings, db: Database, gateway: Gateway, worker: Worker
    ) -> None:
        self.channel, self.state = channel, ChannelState(name)
        self.deliverer = Deliverer(db, gateway, worker.node, channel)
        self.commands = [(command.name, command.help) for command in commands.COMMANDS.values()]
        self._settings, self._db, self._gateway, self._worker = settings, db, gateway, worker
        self._gathering: dict[Address, _Gathering] = {}
        self._order: WeakValueDictionary[Address, asyncio.Lock] = WeakValueDictionary()

    # -- listening

    async def listen(self) -> None:
        """Listen; where one process alone may, the one that holds the duty does it for all."""
        failures = 0
        while True:
            try:
                if not self.channel.exclusive:
                    await self.channel.run(self)
                elif await self._db.write(nodes.take_duty, self.state.name, self._worker.node):
                    await self._while_on_duty()
                self._down("another process listens")
                await asyncio.sleep(2)
            except Exception as error:  # noqa: BLE001 - the channel pump: whatever a platform does stops nothing else
                if self.state.up:
                    failures = 0
                why = told(error)
                self._down(why)
                logger.warning("channel is down", channel=self.state.name, error=why)
                await asyncio.sleep(BACKOFF[min(failures, len(BACKOFF) - 1)])
                failures += 1

    async def _while_on_duty(self) -> None:
        """Whoever listens delivers, too: what is shown of an answer and the answer itself come from one process."""
        listening = asyncio.create_task(self.channel.run(self))
        delivering = asyncio.create_task(self.deliverer.run())
        try:
            while await self._db.write(nodes.take_duty, self.state.name, self._worker.node):
                await asyncio.wait({listening}, timeout=2)
                if listening.done():
                    return listening.result()
        finally:
            await stopped(listening, delivering)

    def up(self) -> None:
        if not self.state.up:
            logger.info("channel is up", channel=self.state.name)
        self.state.up, self.state.why = True, ""
        metrics.CHANNEL_UP.labels(self.state.name).set(1)

    def _down(self, why: str) -> None:
        self.state.up, self.state.why = False, why
        metrics.CHANNEL_UP.labels(self.state.name).set(0)

    # -- what is heard

    async def knows(self, sender: Sender) -> bool:
        return sender.id in self._settings.allow or await self._db.read(identities.find, sender) is not None

    async def moved(self, before: Address, now: Address) -> None:
        """A chat has another address now."""
        await self._gathered_before(before)
        await self._db.write(inbox.readdress, before, now)

    async def take(self, inbound: Inbound) -> None:
        """Take a message; when this returns it is safe, or was none for us."""
        order = self._order.setdefault(inbound.address, asyncio.Lock())
        async with order:  # what is said at an address is heard in its order, though several wait to be safe
            admitted = await self._hear(inbound)
        if admitted is not None:
            await asyncio.shield(admitted)

    async def _hear(self, inbound: Inbound) -> asyncio.Future[None] | None:
        """Act on a message; what is gathered with others is safe later."""
        if await self._db.read(inbox.taken, inbound.key):
            return None
        principal = await self._speaks_for(inbound)
        if principal is None:
            await self._greet(inbound)
        elif commands.parse(inbound.text) is not None and inbound.for_us:
            await self._gathered_before(inbound.address)
            await self._command(principal, inbound)
        elif inbound.group and not (inbound.for_us or self._settings.every_message):
            await self._gathered_before(inbound.address)
            await self._receive(principal, [inbound], aside=True)
        else:
            return self._gather(principal, inbound)
        return None

    async def _speaks_for(self, inbound: Inbound) -> PrincipalId | None:
        """In whose name a message acts: the sender's, or in a group that is known, its owner's."""
        sender = inbound.sender
        known = await self._db.read(identities.find, sender)
        if known is None and sender.id in self._settings.allow:
            known = self._settings.principal
            await self._db.write(directory.add_principal, known)
        if known is None:
            return None
        owner = await self._db.read(directory.owner_of, inbound.address)
        if owner is None or owner == known or inbound.group:
            return owner or known
        await self._db.write(directory.unbind, owner, inbound.address)  # the person was paired anew, with another
        return known

    async def _greet(self, inbound: Inbound) -> None:
        """A stranger gets a code, and nothing else; in a group not even that."""
        if inbound.group:
            return
        code = await self._db.write(identities.offer, inbound.sender)
        if code is not None:
            await self._say(
                inbound.address,
                f"I do not know you yet. Ask my owner to run:\n\nlegato pair {code}\n\nIt holds an hour.",
            )

    def _gather(self, principal: PrincipalId, inbound: Inbound) -> asyncio.Future[None]:
        """Wait a moment for what else is being typed; all of it is one turn."""
        present = self._gathering.get(inbound.address)
        if present is not None and present.principal == principal and not present.complete:
            return present.add(inbound)
        gathering = _Gathering(principal, self._settings.gather, self._receive, after=present)
        self._gathering[inbound.address] = gathering
        admitted = gathering.add(inbound)
        admitted.add_done_callback(partial(self._gathered, inbound.address, gathering))
        return admitted

    def _gathered(self, address: Address, gathering: "_Gathering", _: asyncio.Future[None]) -> None:
        if self._gathering.get(address) is gathering:
            del self._gathering[address]

    async def _gathered_before(self, address: Address) -> None:
        """Let what was said at an address be admitted before what is said now."""
        if before := self._gathering.get(address):
            await before.finish()

    async def _receive(self, principal: PrincipalId, messages: list[Inbound], *, aside: bool = False) -> None:
        """Admit messages as one turn; said aside in a group, they are kept and nobody answers."""
        address = messages[0].address

        def submission_of(fresh: list[MessageKey]) -> Submission:
            said = [message for message in messages if message.key in fresh]
            drafts = tuple(_draft(message) for message in said)
            blobs = tuple(attached.blob for message in said for attached in message.attached)
            if aside:
                return Submission(principal=principal, target=address, input=Input(drafts), kind="upkeep", blobs=blobs)
            reply_to = said[-1].message if said[-1].group else None
            given = Input(drafts, origin=address.value, reply_to=reply_to)
            return Submission(principal=principal, target=address, input=given, busy=self._settings.busy, blobs=blobs)

        received = await self._gateway.receive(
            address, [message.key for message in messages], submission_of, self._settings.reset.due
        )
        if received is None or aside:
            return
        if received.left is not None:
            self._worker.background(
                self._say(address, "A new conversation begins here; /resume goes back to the last.")
            )
        self._worker.background(self._show_typing(address, received.admission.turn))
        if self._settings.preview and isinstance(self.channel, Editing):
            self.deliverer.show(Preview(self._db, self._gateway, self.channel, address, received.admission.turn))

    async def _show_typing(self, address: Address, turn: Turn) -> None:
        ended = asyncio.ensure_future(self._gateway.ended(turn))
        try:
            while not ended.done():
                await self.channel.typing(address)
                await asyncio.wait({ended}, timeout=TYPING_EVERY)
        finally:
            await stopped(ended)

    # -- commands

    async def _command(self, principal: PrincipalId, inbound: Inbound) -> None:
        """Carry a command out. It is noted as taken after that, and what it does is done once by its key."""
        address, text = inbound.address, inbound.text
        here = await self._db.read(directory.lookup, principal, address)
        if commands.parse(text) == ("resume", ""):
            previous = await self._db.read(inbox.previous, principal, address)
            text = f"/resume {previous}" if previous else text
        key = inbound.key
        dedup = Dedup(f"{key.channel} {key.account} {key.message}", _hash(inbound.text))
        try:
            reply = await commands.run(commands.Desk(self._gateway, principal, here, dedup), text)
            said = reply.text
            if reply.fresh:
                await self._move(principal, address, None, reply.title)
            elif reply.conversation is not None and (here is None or reply.conversation.id != here.id):
                await self._move(principal, address, reply.conversation, None)
        except LegatoError as error:
            said = error.message
        if await self._db.write(inbox.take, key) and said:
            await self._say(address, said)

    async def _move(self, principal: PrincipalId, address: Address, to: Conversation | None, title: str | None) -> None:
        moved = await self._db.write(inbox.move, principal, address, to.id if to else None)
        if title:
            await self._gateway.rename(principal, ById(moved), title)

    async def _say(self, address: Address, text: str) -> None:
        """Say something that is not owed: best effort, and never twice."""
        for after in (*SAID_AFTER, None):
            try:
                await self.channel.send(address, text, key="")
                return
            except Exception as error:  # noqa: BLE001 - the channel pump: it was worth a try
                asked = error.retry_after if isinstance(error, NotSent) else None
                if after is None or not isinstance(error, NotSent) or (asked or 0) > PATIENCE:
                    logger.warning("not said", channel=self.state.name, error=told(error))
                    return
            await asyncio.sleep(after if asked is None else asked)


class _Gathering:
    """Messages that are being typed one after the other. They are admitted `after` those that were gathered before
    them, and not at all when those were not: whoever sends them again sends all of them, and their order is kept."""

    def __init__(
        self,
        principal: PrincipalId,
        moment: float,
        admit: Callable[[PrincipalId, list[Inbound]], Awaitable[None]],
        *,
        after: "_Gathering | None",
    ) -> None:
        self.principal, self.messages = principal, list[Inbound]()
        self.complete = False
        self._moment, self._admit, self._after = moment, admit, after
        self._more = asyncio.Event()
        self._admitted: asyncio.Future[None] | None = None

    def add(self, inbound: Inbound) -> asyncio.Future[None]:
        """Add a message; what is returned is done when all of them are safe."""
        if inbound.key not in {message.key for message in self.messages}:
            self.messages.append(inbound)
        self._more.set()
        if self._admitted is None:
            self._admitted = asyncio.ensure_future(self._wait())
        return self._admitted

    async def finish(self) -> None:
        """Wait for nothing more."""
        self.complete = True
        self._more.set()
        if self._admitted is not None:
            await asyncio.shield(self._admitted)

    async def _wait(self) -> None:
        loop = asyncio.get_running_loop()
        latest = loop.time() + self._moment * GATHERED_AT_MOST
        while self._more.is_set() and not self.complete and loop.time() < latest:
            self._more.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._moment):
                    await self._more.wait()
        self.complete = True
        if self._after is not None:
            await self._after.finish()
            self._after = None
        await self._admit(self.principal, self.messages)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _draft(inbound: Inbound) -> Draft:
    parts: list[Part] = [Text(inbound.text)] if inbound.text or not inbound.attached else []
    for attached in inbound.attached:
        blob = attached.blob
        if blob.media_type.startswith("image/"):
            parts.append(Image(blob=blob.sha256, media_type=blob.media_type))
        else:
            parts.append(File(blob=blob.sha256, name=attached.name, media_type=blob.media_type))
    return draft(Message("user", tuple(parts), sender=inbound.sender.name or inbound.sender.id))
