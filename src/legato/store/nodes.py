"""Nodes: the processes that run turns, each with one lease for all of them.

A turn belongs to the node that claimed it. While the node renews its lease nobody else takes the turn; once it has
run out, anybody may. One row a process is renewed, however many turns it runs.
"""

from msgspec import Struct

from legato.domain.ids import ConversationId, NodeId, TurnId
from legato.store.database import Tx


class Held(Struct, frozen=True):
    """A turn that a node holds: whether someone wants it stopped, and for how many seconds it has been held."""

    turn_id: TurnId
    conversation_id: ConversationId
    stop: bool
    age: float


async def renew(tx: Tx, node: NodeId, ttl: float) -> None:
    """Hold the lease for `ttl` more seconds. Nothing else is looked at in this: a table that is locked for long (an
    upgrade, a scrub) takes no lease away."""
    await tx.run("renew_node", node=node, ttl=ttl)


async def held(tx: Tx, node: NodeId) -> list[Held]:
    """What a lease covers."""
    return [Held(t, c, bool(stop), age) for t, c, stop, age in await tx.run("turns_of_node", node=node)]


async def start(tx: Tx, node: NodeId, ttl: float, *, alone: bool) -> None:
    """Enter. A process that owns the database alone knows that every earlier one is gone."""
    await tx.run("end_all_nodes" if alone else "forget_dead_nodes")
    await renew(tx, node, ttl)


async def take_duty(tx: Tx, name: str, node: NodeId) -> bool:
    """Do something for all processes, or go on doing it; false while another one that lives does."""
    return bool(await tx.run("take_duty", name=name, node=node))


async def end(tx: Tx, node: NodeId) -> None:
    """Leave in good order."""
    await tx.run("drop_duties", node=node)
    await tx.run("end_node", node=node)
