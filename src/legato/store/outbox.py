"""The outbox: answers owed to addresses on channels.

A delivery is written in the transaction that ends its turn, so an answer is owed exactly when the turn is done. It
is sent at most once: one that was in flight when its process died is `unknown`, and a person decides.
"""

from typing import Literal

from msgspec import Struct, json

from legato.domain.ids import NodeId, TurnId
from legato.domain.turns import Turn
from legato.store.database import Tx, one

DeliveryStatus = Literal["pending", "sending", "sent", "unknown", "dead"]


class Delivery(Struct, frozen=True):
    """One answer owed to one address."""

    id: int
    turn_id: TurnId
    address: str
    body: str
    status: DeliveryStatus
    attempts: int
    platform_message_id: str | None


async def owe(tx: Tx, turn: Turn, answer: str) -> None:
    """Owe this turn's answer to every address of its conversation."""
    body = json.encode({"text": answer}).decode()
    await tx.run("owe_deliveries", turn=turn.id, conversation=turn.conversation_id, body=body)


async def take(tx: Tx, node: NodeId) -> Delivery | None:
    """The next delivery to send; an address has one in flight at a time, so order is kept."""
    row = await one(tx.run("next_delivery", node=node))
    return Delivery(*row) if row else None


async def settle(
    tx: Tx, delivery_id: int, status: Literal["pending", "sent", "unknown", "dead"], platform_message_id: str | None
) -> None:
    """Record how sending went; `pending` puts it back for another try."""
    await tx.run("settle_delivery", id=delivery_id, status=status, platform_message_id=platform_message_id)


async def doubt(tx: Tx) -> int:
    """Mark what was in flight in processes that died."""
    return len(await tx.run("doubt_deliveries"))


async def of_turn(tx: Tx, turn_id: TurnId) -> list[Delivery]:
    return [Delivery(*row) for row in await tx.run("deliveries_of_turn", turn=turn_id)]
