"""The outbox: answers owed to addresses on channels.

A delivery is written in the transaction that ends its turn, so an answer is owed exactly when the turn is done: to the
address where it was asked, and to every other address of the conversation, with what was asked. It is sent at most
once: one that was in flight when its process died is `unknown`, and a person decides.
"""

from collections.abc import Iterable
from typing import Literal

from msgspec import Struct, json

from legato.domain.entries import Message
from legato.domain.ids import ConversationId, NodeId, PrincipalId, TurnId
from legato.domain.turns import Outcome, Turn
from legato.errors import NotFound
from legato.store.database import Tx, one

DeliveryStatus = Literal["pending", "sending", "sent", "unknown", "dead"]


class Delivery(Struct, frozen=True):
    """One answer owed to one address; `parts_sent` of its messages have arrived."""

    id: int
    turn_id: TurnId
    address: str
    body: str
    status: DeliveryStatus
    attempts: int
    platform_message_id: str | None
    parts_sent: int


class Undelivered(Struct, frozen=True):
    """An answer that did not arrive, or may not have."""

    id: int
    turn_id: TurnId
    conversation_id: ConversationId
    address: str
    status: DeliveryStatus
    attempts: int
    error: str | None
    updated_at: float


class UnknownDelivery(NotFound):
    """Nothing to send again by that number."""

    code = "delivery_not_found"


async def owe(tx: Tx, turn: Turn, outcome: Outcome, bound: Iterable[str]) -> None:
    """Owe what came of a turn: its answer to every address that its conversation is bound to, why there is none to
    where it was asked."""
    origin = turn.input.origin
    if outcome.status == "failed" and origin is not None and outcome.failure is not None:
        await _owe(tx, turn, origin, {"text": f"No answer: {outcome.failure.message}", "failed": outcome.failure.code})
    if outcome.status != "done":
        return
    for address in dict.fromkeys([*([origin] if origin is not None else []), *bound]):
        await _owe(tx, turn, address, {"text": outcome.answer} | ({"asked": _asked(turn)} if address != origin else {}))


async def _owe(tx: Tx, turn: Turn, address: str, body: dict[str, str]) -> None:
    if address == turn.input.origin and turn.input.reply_to is not None:
        body = {**body, "reply_to": turn.input.reply_to}
    body = {name: text for name, text in body.items() if text or name == "text"}
    await tx.run("owe_delivery", turn=turn.id, address=address, body=json.encode(body).decode())


def _asked(turn: Turn) -> str:
    """What was said elsewhere, each with who said it."""
    said = [d.body for d in turn.input.drafts if isinstance(d.body, Message) and d.body.role == "user"]
    return "\n".join(f"{message.sender}: {message.text}" if message.sender else message.text for message in said)


async def take(tx: Tx, node: NodeId, channel: str = "") -> Delivery | None:
    """The next delivery to send; an address has one in flight at a time, so order is kept."""
    row = await one(tx.run("next_delivery", node=node, channel=channel))
    return Delivery(*row) if row else None


async def settle(
    tx: Tx,
    delivery_id: int,
    node: NodeId,
    status: Literal["pending", "sent", "unknown", "dead"],
    platform_message_id: str | None,
    *,
    error: str | None = None,
    wait: float = 0.0,
) -> bool:
    """Record how sending went; `pending` puts it back for another try, after a while. Whether it was the node's to
    say: one that overslept its lease sends it no longer."""
    settled = await tx.run(
        "settle_delivery",
        id=delivery_id,
        node=node,
        status=status,
        platform_message_id=platform_message_id,
        error=error,
        wait=wait,
    )
    return bool(settled)


async def part_sent(tx: Tx, delivery_id: int, node: NodeId, parts: int, platform_message_id: str | None) -> bool:
    """Record that so many messages of a long answer have arrived. Whether the node may go on."""
    told = {"id": delivery_id, "node": node, "parts": parts, "platform_message_id": platform_message_id}
    return bool(await tx.run("part_sent", **told))


async def add_preview(tx: Tx, turn_id: TurnId, address: str, message: str) -> None:
    """Remember the message that shows an answer as it comes, so that the answer can take its place."""
    await tx.run("add_preview", turn=turn_id, address=address, message=message)


async def preview(tx: Tx, turn_id: TurnId, address: str) -> str | None:
    """The message that shows this turn's answer as it comes, if there is one."""
    row = await one(tx.run("find_preview", turn=turn_id, address=address))
    return str(row[0]) if row else None


async def doubt(tx: Tx, channel: str = "") -> list[Delivery]:
    """Mark what was in flight on a channel in processes that died."""
    return [Delivery(*row) for row in await tx.run("doubt_deliveries", channel=channel)]


async def requeue_doubtful(tx: Tx, channel: str) -> int:
    """Send again what was in flight, where the other side knows a repetition."""
    return len(await tx.run("requeue_doubtful", channel=channel))


async def forget(tx: Tx, turn_id: TurnId) -> None:
    """Keep no copy of a turn's answer where it was sent; what was not, or may not have been, is kept."""
    await tx.run("forget_sent", turn=turn_id)
    await tx.run("forget_previews", turn=turn_id)


async def undelivered(tx: Tx, principal: PrincipalId, limit: int) -> list[Undelivered]:
    """What did not arrive, or may not have."""
    return [Undelivered(*row) for row in await tx.run("undelivered", principal=principal, limit=limit)]


async def resend(tx: Tx, principal: PrincipalId, delivery_id: int) -> None:
    """Try one of them again, because a person says so."""
    if not await tx.run("resend_delivery", id=delivery_id, principal=principal):
        raise UnknownDelivery(f"Nothing waits to be sent again under number {delivery_id}.")


async def of_turn(tx: Tx, turn_id: TurnId) -> list[Delivery]:
    return [Delivery(*row) for row in await tx.run("deliveries_of_turn", turn=turn_id)]
