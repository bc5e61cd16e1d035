"""A channel over signed HTTP, for whatever has no file of its own here: a bridge posts what people write, and is posted
what is answered. `docs/guide/webhook.md` says how to write one in an afternoon.

What comes in is proven by its signature, or refused; without a secret everything is. What goes out carries a key that
is the same when it is sent again, so a bridge that keeps the last keys never says a thing twice.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from legato.channels.signing import SIGNATURE, TIMESTAMP, WINDOW, proven, sign
from legato.domain.attachments import Blob
from legato.domain.channels import Attached, Inbound, Sender
from legato.domain.handles import Address
from legato.engine.protocols import Doubtful, Inlet, NotSent, Rejected
from legato.errors import BadInput, Conflict, Forbidden, Unavailable
from legato.outgoing import NoConnection, Server

KIND = "webhook"
REMEMBERED = 10_000
TIMEOUT = 30.0

Name = Annotated[str, Meta(min_length=1, max_length=255, pattern=r"^[^\x00-\x1f]+$")]


class Person(Struct):
    id: Name
    name: Annotated[str, Meta(max_length=255)] = ""


class AttachedFile(Struct):
    media_type: Name
    data: bytes
    name: Name | None = None


class Posted(Struct):
    """What a bridge posts: one message."""

    id: Name
    chat: Name
    sender: Person
    text: Annotated[str, Meta(max_length=1_000_000)] = ""
    thread: Annotated[str, Meta(max_length=255)] = ""
    group: bool = False
    for_us: bool = True
    attachments: Annotated[list[AttachedFile], Meta(max_length=20)] = []


class Webhook:
    """One bridge."""

    kind = KIND
    repeatable = True
    exclusive = False

    def __init__(self, account: str, *, secret: str, url: str, limit: int) -> None:
        self.account, self.limit = account, limit
        self._secret = secret
        self._bridge = Server(url) if url else None
        self._inlet: Inlet | None = None
        self._seen: OrderedDict[str, float] = OrderedDict()

    def size(self, text: str) -> int:
        return len(text)

    async def run(self, inlet: Inlet) -> None:
        """There is nothing to connect to; a bridge comes to us."""
        if not self._secret:
            raise Rejected(f"The channel {self.account!r} has no secret, so nobody can be believed. Set its secret.")
        self._inlet = inlet
        inlet.up()
        try:
            await asyncio.Event().wait()
        finally:
            self._inlet = None

    async def hook(self, headers: Mapping[str, str], body: bytes) -> dict[str, Any]:
        """A message from the bridge. When it is answered, the message is safe."""
        signature = headers.get(SIGNATURE, "")
        if not proven(self._secret, headers.get(TIMESTAMP, ""), signature, body, time.time()):
            raise Forbidden("The signature is missing, wrong, or too old.")
        self._refuse_replayed(signature)
        if self._inlet is None:
            raise Unavailable("The channel is not up yet; try again.")
        try:
            posted = msgspec.json.decode(body, type=Posted)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise BadInput(f"That is no message: {error}") from error
        await self._inlet.take(self._inbound(posted))
        self._seen[signature] = time.time()
        return {"status": "taken", "id": posted.id}

    def _refuse_replayed(self, signature: str) -> None:
        now = time.time()
        while self._seen and (len(self._seen) > REMEMBERED or next(iter(self._seen.values())) < now - 2 * WINDOW):
            self._seen.popitem(last=False)
        if signature in self._seen:
            raise Conflict("This very request was taken before; sign a repetition anew.")

    def _inbound(self, posted: Posted) -> Inbound:
        return Inbound(
            address=Address(KIND, self.account, posted.chat, posted.thread),
            sender=Sender(KIND, self.account, posted.sender.id, posted.sender.name),
            message=posted.id,
            text=posted.text,
            attached=tuple(Attached(Blob.of(file.data, file.media_type), file.name) for file in posted.attachments),
            group=posted.group,
            for_us=posted.for_us,
        )

    async def send(self, address: Address, text: str, *, key: str, reply_to: str | None = None) -> str:
        if self._bridge is None:
            raise Rejected(f"The channel {self.account!r} has no url to send to.")
        message = {"key": key, "chat": address.chat, "thread": address.thread, "text": text, "reply_to": reply_to}
        body = msgspec.json.encode(message)
        headers = {"Content-Type": "application/json", **sign(self._secret, int(time.time()), body)}
        try:
            async with asyncio.timeout(TIMEOUT), self._bridge.ask("POST", "", body, headers) as answer:
                told = await answer.text(64 * 1024)
        except NoConnection as error:
            raise NotSent(f"The bridge does not answer: {error}.") from error
        except OSError as error:
            raise Doubtful(f"The bridge hung up: {error or type(error).__name__}.") from error
        if answer.status in (408, 425, 429) or answer.status >= 500:
            raise NotSent(f"The bridge answered {answer.status}.", answer.retry_after)
        if not 200 <= answer.status < 300:
            raise Rejected(f"The bridge answered {answer.status}.")
        return _id(told) or key

    async def typing(self, address: Address) -> None:
        """A bridge is not told."""

    async def close(self) -> None:
        if self._bridge is not None:
            self._bridge.close()


def _id(told: bytes) -> str:
    """The id that a bridge gives a message, if it does."""
    try:
        return str(msgspec.json.decode(told, type=dict[str, Any]).get("id", ""))[:255]
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""
