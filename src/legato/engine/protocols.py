"""The waists to the world: a model that streams, a toolset that acts, a channel on which people write."""

from collections.abc import AsyncGenerator, Mapping
from typing import Any, Protocol, runtime_checkable

from msgspec import Struct

from legato.domain.channels import Inbound, Sender
from legato.domain.entries import Item, Tool
from legato.domain.handles import Address
from legato.domain.ids import ConversationId, PrincipalId, TurnId
from legato.domain.turns import Usage
from legato.errors import Refused, Unavailable

PASSED_ON = (
    "temperature",
    "top_p",
    "presence_penalty",
    "frequency_penalty",
    "tool_choice",
    "parallel_tool_calls",
    "response_format",
    "reasoning_effort",
    "verbosity",
    "stop",
    "seed",
    "logit_bias",
    "service_tier",
)
"""Parameters of a request that a provider is sent as they are."""


class ModelRequest(Struct, frozen=True):
    """What a model is asked: always well-formed (see `domain.shape`)."""

    conversation_id: ConversationId
    instructions: str
    tools: tuple[Tool, ...]
    items: tuple[Item, ...]
    params: dict[str, Any]
    model: str | None = None  # by the provider's own name, where a client asked for one that we do not know


class TextChunk(Struct, frozen=True):
    text: str


class RefusalChunk(Struct, frozen=True):
    """The model will not answer, and says why."""

    text: str


class ReasoningChunk(Struct, frozen=True):
    text: str


class CallOpened(Struct, frozen=True):
    call_id: str
    name: str


class CallChunk(Struct, frozen=True):
    """More of a call's arguments."""

    call_id: str
    text: str


class Finished(Struct, frozen=True):
    """The model has said all; `truncated` when a length limit cut it, `filtered` when the provider's filter did."""

    usage: Usage
    truncated: bool = False
    filtered: bool = False


ModelEvent = TextChunk | RefusalChunk | ReasoningChunk | CallOpened | CallChunk | Finished


class Model(Protocol):
    """An LLM behind a provider. Fails with `ModelUnavailable` or `BadInput`, nothing else."""

    def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]: ...


@runtime_checkable
class Sized(Protocol):
    """A model that can tell how many tokens it takes; `name` is one that the provider is asked for instead."""

    async def window(self, name: str | None) -> int | None: ...


class Invocation(Struct, frozen=True):
    """A tool call to carry out, and for whom. `call_id` is the same when a repeatable call runs again."""

    principal: PrincipalId
    conversation_id: ConversationId
    turn_id: TurnId
    call_id: str
    name: str
    arguments: dict[str, Any]


class ToolOutput(Struct, frozen=True):
    output: str
    is_error: bool = False


class Toolset(Protocol):
    """A set of tools. A tool that fails returns an output that says so."""

    @property
    def tools(self) -> tuple[Tool, ...]: ...

    async def call(self, invocation: Invocation) -> ToolOutput: ...


# -- channels


LEAST_WAIT, LONGEST_WAIT = 1.0, 3600.0  # seconds between two tries, whatever a platform asks for


class NotSent(Unavailable):
    """The platform did not take it; it can be sent again, where the platform says so `retry_after` some seconds."""

    code = "channel_unavailable"

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = None if retry_after is None else min(max(retry_after, LEAST_WAIT), LONGEST_WAIT)


class Rejected(Refused):
    """The platform will never take it."""

    code = "delivery_rejected"


class Doubtful(Unavailable):
    """Nobody knows whether the platform took it."""

    code = "delivery_unknown"


class Inlet(Protocol):
    """What a channel hands its messages to."""

    commands: list[tuple[str, str]]
    """The slash commands and what they do, for a menu."""

    async def knows(self, sender: Sender) -> bool:
        """Whether somebody may speak here: for who may not, nothing need be fetched."""
        ...

    async def take(self, inbound: Inbound) -> None:
        """Take a message. When this returns it is safe, and the platform may hear that it was taken."""
        ...

    async def moved(self, before: Address, now: Address) -> None:
        """A chat has another address now; when this returns, what goes on there goes on."""
        ...

    def up(self) -> None:
        """The channel is connected."""
        ...


class Channel(Protocol):
    """One account on a messaging platform."""

    kind: str
    account: str
    limit: int
    repeatable: bool
    """Whether the other side knows a message that is sent again by its key."""

    exclusive: bool
    """Whether one process alone may listen."""

    def size(self, text: str) -> int:
        """How long a text is, as the platform counts."""
        ...

    async def run(self, inlet: Inlet) -> None:
        """Receive until cancelled; fails with `NotSent` when the platform cannot be reached, `Rejected` when it will
        not have us."""
        ...

    async def send(self, address: Address, text: str, *, key: str, reply_to: str | None = None) -> str:
        """Send one message; returns its id there. Fails with `NotSent`, `Rejected` or `Doubtful`, nothing else."""
        ...

    async def typing(self, address: Address) -> None:
        """Show that an answer is being written, if that can be shown; never fails."""
        ...

    async def close(self) -> None: ...


@runtime_checkable
class Editing(Protocol):
    """A channel on which a message that was sent can be changed: an answer is shown there as it comes."""

    async def edit(self, address: Address, message: str, text: str) -> None:
        """Change a message. Fails as `send` does; doing it again does no harm."""
        ...


@runtime_checkable
class Hooked(Protocol):
    """A channel whose messages come in over HTTP."""

    async def hook(self, headers: Mapping[str, str], body: bytes) -> dict[str, Any]:
        """Take a request; fails with `Refused` or `BadInput`. What it returns is told to the caller."""
        ...
