"""`POST /v1/responses`, the plain form: say something in a conversation, get the answer.

The wire's words stop here: a response is a turn, its id the turn's id. What this version does not know it refuses by
name, so that no client mistakes silence for support.
"""

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from legato.api.wire import Caller, answer, body_of
from legato.domain.entries import Entry, Message, Text, ToolCall, draft
from legato.domain.handles import ById, Slug, parse_name
from legato.domain.ids import TurnId
from legato.domain.turns import After, Fresh, Input, Options, Submission, Target, Turn, Usage
from legato.engine.gateway import Gateway
from legato.errors import BadInput, UnknownTurn


class InputText(Struct):
    type: Literal["input_text", "output_text"]
    text: str


class InputMessage(Struct):
    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[InputText]
    type: Literal["message"] = "message"


class ConversationRef(Struct):
    id: str


class CreateResponse(Struct, forbid_unknown_fields=True):
    """The body of `POST /v1/responses`."""

    input: str | list[InputMessage]
    model: str | None = None
    conversation: str | ConversationRef | None = None
    previous_response_id: str | None = None
    instructions: str | None = None
    metadata: dict[str, str] | None = None
    stream: Literal[False] | UnsetType | None = UNSET


class PreviousResponseNotFound(UnknownTurn):
    """No previous response by that id."""

    code = "previous_response_not_found"


async def create_response(request: Request, caller: Caller, gateway: Gateway, max_body: int) -> Response:
    """Admit a turn, wait for its end, tell how it went."""
    body = await body_of(request, CreateResponse, max_body)
    options = Options(agent=body.model, instructions=body.instructions)
    submission = Submission(
        principal=caller.principal,
        target=_target(body),
        input=Input(tuple(draft(message) for message in _messages(body.input)), options),
    )
    try:
        turn = await gateway.submit(submission)
    except UnknownTurn as error:
        message = f"Previous response with id '{body.previous_response_id}' not found."
        raise PreviousResponseNotFound(message, param="previous_response_id") from error
    turn = await gateway.ended(turn)
    entries = await gateway.output(caller.principal, turn.id)
    return answer(_response(turn, entries, body), headers={"X-Legato-Conversation": turn.conversation_id})


def _target(body: CreateResponse) -> Target:
    if body.conversation is not None and body.previous_response_id is not None:
        raise BadInput("Give 'conversation' or 'previous_response_id', not both.", param="previous_response_id")
    if body.previous_response_id is not None:
        return After(TurnId(body.previous_response_id))
    if body.conversation is None:
        return Fresh()
    named = body.conversation if isinstance(body.conversation, str) else body.conversation.id
    handle: ById | Slug = parse_name(named)
    return handle


def _messages(given: str | list[InputMessage]) -> list[Message]:
    if isinstance(given, str):
        return [Message("user", (Text(given),))]
    return [
        Message(m.role, tuple(Text(p.text) for p in m.content) if isinstance(m.content, list) else (Text(m.content),))
        for m in given
    ]


def _response(turn: Turn, entries: list[Entry], body: CreateResponse) -> dict[str, Any]:
    status = {"done": "completed", "cancelled": "cancelled", "failed": "failed"}[turn.status]
    usage = turn.usage or Usage()
    return {
        "id": turn.id,
        "object": "response",
        "created_at": int(turn.created_at),
        "completed_at": int(turn.ended_at) if turn.ended_at and status == "completed" else None,
        "status": status,
        "model": turn.input.options.agent or "default",
        "output": [item for entry in entries if (item := _item(entry)) is not None],
        "conversation": {"id": turn.conversation_id},
        "previous_response_id": body.previous_response_id,
        "instructions": body.instructions,
        "metadata": body.metadata or {},
        "error": {"code": turn.failure.code, "message": turn.failure.message} if turn.failure else None,
        "incomplete_details": None,
        "usage": {
            "input_tokens": usage.input_tokens,
            "output_tokens": usage.output_tokens,
            "total_tokens": usage.input_tokens + usage.output_tokens,
        },
    }


def _item(entry: Entry) -> dict[str, Any] | None:
    """An output item; what the input brought is not output."""
    match entry.body:
        case Message(role="assistant") as message:
            return {
                "id": entry.id,
                "type": "message",
                "role": "assistant",
                "status": "incomplete" if message.incomplete else "completed",
                "content": [{"type": "output_text", "text": message.text, "annotations": []}],
            }
        case ToolCall() as call:
            return {
                "id": entry.id,
                "type": "function_call",
                "status": "completed",
                "call_id": call.call_id,
                "name": call.name,
                "arguments": call.arguments,
            }
        case _:
            return None
