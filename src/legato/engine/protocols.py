"""The two waists to the world: a model that streams, a toolset that acts."""

from collections.abc import AsyncGenerator
from typing import Any, Protocol, runtime_checkable

from msgspec import Struct

from legato.domain.entries import Item, Tool
from legato.domain.ids import ConversationId, PrincipalId, TurnId
from legato.domain.turns import Usage

PASSED_ON = (
    "temperature",
    "top_p",
    "presence_penalty",
    "frequency_penalty",
    "tool_choice",
    "parallel_tool_calls",
    "response_format",
    "reasoning_effort",
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
    """The model has said all; `truncated` when a length limit cut it."""

    usage: Usage
    truncated: bool = False


ModelEvent = TextChunk | ReasoningChunk | CallOpened | CallChunk | Finished


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
