"""What is told of a turn while it runs, in batches: each names the numbers of its first and last event.

A batch is written under the turn's lease. Those of many turns are one statement where one process writes them all: the
writer is a thread, and between two statements it may have to wait until the others let it go on.
"""

from collections.abc import Sequence

from msgspec import json

from legato.domain.events import AnyEvent
from legato.domain.ids import TurnId
from legato.domain.turns import Lease
from legato.errors import LeaseLost
from legato.store.database import Tx

Batch = tuple[Lease, int, list[AnyEvent]]
"""Under which lease, the number of the first, and the events."""


async def put(tx: Tx, turn_id: TurnId, first_n: int, events: Sequence[AnyEvent]) -> None:
    """Write a batch beside entries that have proved the lease."""
    if events:
        await tx.run("put_events", **_columns(turn_id, first_n, events))


async def add(tx: Tx, lease: Lease, first_n: int, events: Sequence[AnyEvent]) -> None:
    """Write a batch, under the lease."""
    proof = {"conversation": lease.turn.conversation_id, "fence": lease.fence}
    if not await tx.run("add_events", **_columns(lease.turn.id, first_n, events), **proof):
        raise LeaseLost()


async def add_all(tx: Tx, batches: Sequence[Batch]) -> list[bool]:
    """Write a batch of each of some turns; whether each turn still had its lease. Refused when none had."""
    if len(batches) == 1:
        await add(tx, *batches[0])
        return [True]
    told = [
        (*_columns(lease.turn.id, first_n, events).values(), lease.turn.conversation_id, lease.fence)
        for lease, first_n, events in batches
    ]
    rows = json.encode(told).decode()
    await tx.run("add_all_events", rows=rows)
    [[count]] = await tx.run("rows_changed")
    if count == len(batches):
        return [True] * count
    kept = {place for (place,) in await tx.run("events_kept", rows=rows)}
    if not kept:
        raise LeaseLost()
    return [place in kept for place in range(len(batches))]


def _columns(turn_id: TurnId, first_n: int, events: Sequence[AnyEvent]) -> dict[str, object]:
    """A batch as it is stored, in the order in which `add_all_events` takes it."""
    last_n, payload = first_n + len(events) - 1, json.encode(events).decode()
    return {"turn": turn_id, "first_n": first_n, "last_n": last_n, "payload": payload}
