"""Turns: one input and all that follows from it until the answer.

A turn is the unit of admission, lease, retry and billing. `talk` turns run the agent and move the conversation's
tip; `upkeep` turns append given entries (items a client posts, a compaction, a rewind) and no client can tell
from the tip that they happened.
"""

from collections.abc import Iterable
from typing import Any, Literal

from msgspec import Struct, field, structs

from legato.domain.attachments import Blob
from legato.domain.entries import AnyBody, Draft, Entry, Message, Note, Tool, ToolResult
from legato.domain.handles import Address, ById, External, Slug
from legato.domain.ids import ConversationId, PrincipalId, TurnId, new_turn_id
from legato.errors import LegatoError, ModelUnavailable

Status = Literal["queued", "running", "done", "failed", "cancelled", "joined"]
Busy = Literal["queue", "steer", "interrupt", "reject"]
TurnKind = Literal["talk", "upkeep"]

LEGAL: dict[Status, frozenset[Status]] = {
    "queued": frozenset({"running", "cancelled", "joined"}),
    "running": frozenset({"queued", "done", "failed", "cancelled"}),
    "done": frozenset(),
    "failed": frozenset(),
    "cancelled": frozenset(),
    "joined": frozenset(),
}
"""Which state may follow which. The schema holds the same table in a trigger; a test compares the two.

running → queued hands a turn back at shutdown; queued → joined is `steer`: the input joined a running turn,
whose outcome is now its own."""

ENDED: frozenset[Status] = frozenset(status for status, after in LEGAL.items() if not after)


class Usage(Struct, frozen=True, omit_defaults=True):
    """Tokens, as the provider counted them."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(*(getattr(self, f) + getattr(other, f) for f in self.__struct_fields__))


class Failure(Struct, frozen=True, omit_defaults=True):
    """Why a turn did not answer, and after how many seconds another may, where that is known."""

    code: str
    message: str
    retry_after: float | None = None

    @classmethod
    def of(cls, error: LegatoError) -> "Failure":
        return cls(error.code, error.message, error.retry_after if isinstance(error, ModelUnavailable) else None)


class Options(Struct, frozen=True, omit_defaults=True):
    """What a request asks for beyond its input. It holds for one turn. `params` go to the model, `echo` is what the
    edge wants to say again when it is asked about the turn, `history` is the fingerprint of everything a stateless
    client sent."""

    agent: str | None = None
    instructions: str | None = None
    tools: tuple[Tool, ...] = ()
    params: dict[str, Any] = {}
    echo: dict[str, Any] = {}
    history: str | None = None
    compact_threshold: int | None = None

    @property
    def tools_by_name(self) -> dict[str, Tool]:
        """The client's tools. Of two that are called the same, the last is meant."""
        return {tool.name: tool for tool in self.tools}

    def answered_by(self, agent: str) -> "Options":
        """The same, answered by another."""
        return structs.replace(self, agent=agent, echo={**self.echo, "model": agent})


class Input(Struct, frozen=True, omit_defaults=True):
    """What a turn brings: entries to append, and how to run. `expects` guards upkeep prepared earlier:
    the newest control position it was made from; `usage` is what that cost. `origin` is the address where it was asked
    (and the message there), to be answered there wherever that address leads by then."""

    drafts: tuple[Draft, ...] = ()
    options: Options = Options()
    expects: int | None = None
    hides: tuple[tuple[int, int], ...] = ()
    usage: Usage | None = None
    origin: str | None = None
    reply_to: str | None = None


class Turn(Struct, frozen=True, kw_only=True):
    """A turn as the store knows it."""

    id: TurnId
    conversation_id: ConversationId
    n: int
    parent_turn: TurnId | None
    joined_turn: TurnId | None = None
    principal: PrincipalId
    dedup_key: str | None
    request_hash: str | None
    kind: TurnKind
    status: Status = "queued"
    busy: Busy
    input: Input
    owner: str | None = None
    attempts: int = 0
    first_seq: int | None = None
    last_seq: int | None = None
    usage: Usage | None = None
    failure: Failure | None = None
    cancel_at: float | None = None
    created_at: float
    claimed_at: float | None = None
    ended_at: float | None = None
    pruned_at: float | None = None

    @property
    def ended(self) -> bool:
        return self.status in ENDED


class After(Struct, frozen=True):
    """Continue after this turn: in its conversation when it is the tip, in a fork when it is not."""

    turn_id: TurnId


class Fresh(Struct, frozen=True):
    """A new conversation without a name."""


Target = ById | Slug | External | Address | After | Fresh


class Dedup(Struct, frozen=True):
    """What tells a retry: the key that the client chose, and a hash of what it asked for."""

    key: str
    request_hash: str

    def part(self, what: str) -> "Dedup":
        """The same for a second thing that the request does. No key that a client may choose is like it."""
        return Dedup(f"{self.key}\n{what}", self.request_hash)


class Submission(Struct, frozen=True, kw_only=True):
    """A turn that wants to be admitted. The same `dedup_key` is admitted once; with another `request_hash` it is
    refused. A `retry` without a key is the same as an equal request a moment ago. `turn_id` is the id it gets if it is
    admitted now; one that was admitted before has kept its own. `blobs` are the bytes that its input refers to."""

    principal: PrincipalId
    target: Target
    input: Input
    kind: TurnKind = "talk"
    busy: Busy = "queue"
    dedup_key: str | None = None
    request_hash: str | None = None
    retry: bool = False
    conversation_kind: str = "chat"
    turn_id: TurnId = field(default_factory=new_turn_id)
    blobs: tuple[Blob, ...] = ()


class Lease(Struct, frozen=True):
    """The right to run a turn. Every write names the fence; a newer holder has a higher one. `begun`: another holder
    has had it before and left something behind."""

    turn: Turn
    fence: int
    begun: bool


class Admission(Struct, frozen=True):
    """A turn that was admitted, durably. `fresh` is false when the same submission had been admitted before. `lease`
    is there when the turn (or one before it) could start at once; `stopped` are turns asked to stop for it."""

    turn: Turn
    fresh: bool
    lease: Lease | None = None
    stopped: tuple[TurnId, ...] = ()


class Outcome(Struct, frozen=True, kw_only=True):
    """How a turn ended."""

    status: Literal["done", "failed", "cancelled"]
    answer: str = ""
    usage: Usage | None = None
    failure: Failure | None = None
    fingerprint: str | None = None


CutBy = Literal["max_output_tokens", "content_filter"]

CUT_SHORT: dict[CutBy, str] = {
    "max_output_tokens": "The answer was cut off: it was as long as it may be.",
    "content_filter": "The answer was cut off by the content filter of the model's provider.",
}
"""What may cut an answer short, and how people are told. The turn is done; a note of its log says why, or its last
message, which is incomplete where it was as long as it may be."""


def cut_by(output: Iterable[AnyBody]) -> CutBy | None:
    """What cut the answer of a turn short, given what it wrote."""
    said: AnyBody | None = None
    for body in output:
        if isinstance(body, Note):
            for why in CUT_SHORT:
                if body.reason == why:
                    return why
        elif not isinstance(body, ToolResult):
            said = body
    return "max_output_tokens" if isinstance(said, Message) and said.incomplete else None


class Told(Struct, frozen=True):
    """A turn, what it wrote, its input included, and the slug of its conversation."""

    turn: Turn
    entries: list[Entry]
    slug: str | None
