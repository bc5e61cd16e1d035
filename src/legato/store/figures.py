"""What can be counted: of one principal, and of the whole store."""

from typing import Literal

from msgspec import Struct

from legato.domain.ids import PrincipalId, TurnId
from legato.store.database import Tx, one
from legato.store.statements import Dialect

LATELY = 24 * 3600.0


class Figures(Struct, frozen=True):
    """What a principal has, and what it has cost."""

    conversations: int
    forks: int
    in_trash: int
    entries: int
    turns: dict[str, int]
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    attachments: int
    attachment_bytes: int


class Waiting(Struct, frozen=True):
    """The turn that has waited longest, in seconds; `behind` another of its conversation, or for anyone to take it."""

    turn: TurnId
    age: float
    behind: bool


class StoreFigures(Struct, frozen=True):
    """What the whole store holds."""

    database: Dialect
    bytes: int
    schema: int
    unindexed: int
    unindexed_age: float
    deliveries: dict[str, int]
    waiting: int
    oldest_waiting: Waiting | None


class Reason(Struct, frozen=True):
    """Why turns failed, and how many."""

    code: str
    message: str
    count: int


class Health(Struct, frozen=True):
    """What may need somebody's attention."""

    figures: StoreFigures
    failed: list[Reason]
    search: Literal["whole", "broken"]


async def of_principal(tx: Tx, principal: PrincipalId) -> Figures:
    [conversations] = await tx.run("figures_conversations", principal=principal)
    turns = await tx.run("figures_turns", principal=principal)
    tokens = [sum(row[place] for row in turns) for place in (2, 3, 4)]
    [attachments] = await tx.run("figures_attachments", principal=principal)
    living, forks, in_trash, entries = conversations
    return Figures(living, forks, in_trash, entries, {row[0]: row[1] for row in sorted(turns)}, *tokens, *attachments)


async def of_store(tx: Tx) -> StoreFigures:
    [unindexed] = await tx.run("figures_unindexed")
    [[waiting]] = await tx.run("figures_waiting")
    oldest = await one(tx.run("oldest_waiting"))
    return StoreFigures(
        database=tx.dialect,
        bytes=await size(tx),
        schema=max(version for version, _ in await versions(tx)),
        unindexed=unindexed[0],
        unindexed_age=unindexed[1],
        deliveries=dict(sorted(await tx.run("figures_deliveries"))),
        waiting=waiting,
        oldest_waiting=Waiting(oldest[0], oldest[1], bool(oldest[2])) if oldest else None,
    )


async def size(tx: Tx) -> int:
    """How many bytes the database takes."""
    [[found]] = await tx.run("bytes_on_disk")
    return int(found)


async def health(tx: Tx) -> Health:
    failed = [Reason(*row) for row in await tx.run("failed_lately", age=LATELY)]
    broken = await tx.run("verify_documents")
    return Health(await of_store(tx), failed, "broken" if broken else "whole")


async def versions(tx: Tx) -> list[tuple[int, str]]:
    """The migrations that the schema has had."""
    return [(version, name) for version, name in await tx.run("schema_versions")]
