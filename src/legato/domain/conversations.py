"""A conversation: one append-only log whose id never changes."""

from typing import Any

from msgspec import Struct

from legato.domain.ids import ConversationId, PrincipalId, TurnId


class Conversation(Struct, frozen=True):
    """What is known of a conversation beside its log. A fork reads its parent's entries up to `base_seq`."""

    id: ConversationId
    principal: PrincipalId
    title: str
    agent: str
    kind: str
    settings: dict[str, Any]
    parent_id: ConversationId | None
    base_seq: int
    head_seq: int
    tip_turn: TurnId | None
    fence: int
    created_at: float
    updated_at: float
    deleted_at: float | None
