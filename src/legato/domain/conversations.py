"""A conversation: one append-only log whose id never changes."""

from typing import Any

from msgspec import Struct

from legato.domain.ids import ConversationId, PrincipalId, TurnId

LIFE = 2**20  # numbers of the fence that belong to one life of a conversation


def life(fence: int) -> int:
    """Which life of a conversation a fence belongs to: one that was purged and imported again has the same id and the
    same positions, and may have other words."""
    return fence // LIFE


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
    last_n: int
    fence: int
    created_at: float
    updated_at: float
    deleted_at: float | None

    @property
    def chosen(self) -> str | None:
        """Who answers here when a request names nobody, where somebody was chosen."""
        return self.settings.get("agent")

    @property
    def instructions(self) -> str | None:
        """Under which instructions it is answered here when a request brings none, where some were chosen."""
        chosen = self.settings.get("instructions")
        return chosen if isinstance(chosen, str) else None

    @property
    def choices(self) -> dict[str, Any]:
        """What was chosen here, and goes on in a fork."""
        return {name: self.settings[name] for name in ("agent", "instructions") if name in self.settings}


class Described(Struct, frozen=True):
    """A conversation as a list shows it: its slug, and the first thing that was said in it."""

    conversation: Conversation
    name: str | None
    opening: str

    @property
    def called(self) -> str:
        """What people call it: its title, its slug, or how it began."""
        return self.conversation.title or self.name or self.opening
