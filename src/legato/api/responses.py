"""The Responses API. A response is a turn: its id is the turn's id, and there is no store of responses to evict it.

A client may wait for the answer, follow it as it comes, or leave it in the background; it is the same turn, and any of
them can come back to it later and see the same.
"""

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from typing import Annotated, Any, Literal, Protocol

import msgspec
from msgspec import Meta, Struct
from starlette.responses import Response

from legato.api import items, unheeded
from legato.api.door import Call, whole
from legato.api.response import DEFAULTS, response_object
from legato.api.sse import EventStream
from legato.api.stream import ResponseStream, WireEvent
from legato.api.wire import answer, matching, named_event
from legato.domain.entries import Tool
from legato.domain.handles import parse_name
from legato.domain.ids import TurnId
from legato.domain.turns import After, Fresh, Input, Options, Submission, Target, Told, Turn
from legato.engine.ephemeral import Ephemeral
from legato.engine.gateway import Gateway
from legato.errors import BadInput, ConversationBusy, UnknownTurn

DONE = b"data: [DONE]\n\n"
ECHOED = (
    "background",
    "frequency_penalty",
    "max_output_tokens",
    "max_tool_calls",
    "parallel_tool_calls",
    "presence_penalty",
    "prompt_cache_key",
    "reasoning",
    "safety_identifier",
    "service_tier",
    "store",
    "temperature",
    "text",
    "tool_choice",
    "tools",
    "top_logprobs",
    "top_p",
    "truncation",
    "user",
    "metadata",
    "previous_response_id",
)
ASKED = (
    "temperature",
    "top_p",
    "presence_penalty",
    "frequency_penalty",
    "max_output_tokens",
    "max_tool_calls",
    "parallel_tool_calls",
    "service_tier",
)


Metadata = Annotated[
    dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]], Meta(max_length=16)
]


ServiceTier = Literal["auto", "default", "flex", "scale", "priority", "fast", "ultrafast"]
SchemaName = Annotated[str, Meta(min_length=1, max_length=64)]
ModelName = Annotated[str, matching(r"[^\x00-\x1f]*", most=255)]
FunctionName = Annotated[str, matching(r"[a-zA-Z0-9_.-]{1,128}")]


class ConversationRef(Struct):
    id: str


class FunctionTool(Struct, tag="function", tag_field="type"):
    name: FunctionName
    parameters: dict[str, Any] | None = None
    description: str | None = None
    strict: bool | None = None


class ChosenFunction(Struct, tag="function", tag_field="type"):
    name: FunctionName


class AllowedTools(Struct, tag="allowed_tools", tag_field="type"):
    mode: Literal["auto", "required"]
    tools: list[ChosenFunction]


ToolChoice = Literal["none", "auto", "required"] | ChosenFunction | AllowedTools


class PlainText(Struct, tag="text", tag_field="type"):
    pass


class JsonObject(Struct, tag="json_object", tag_field="type"):
    pass


class JsonSchema(Struct, tag="json_schema", tag_field="type"):
    name: SchemaName
    schema: dict[str, Any]
    strict: bool | None = None
    description: str | None = None


class TextConfig(Struct, omit_defaults=True):
    format: PlainText | JsonObject | JsonSchema | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ReasoningConfig(Struct):
    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None
    context: Literal["auto", "current_turn", "all_turns"] | None = None
    mode: str | None = None


class ContextManagement(Struct, tag="compaction", tag_field="type"):
    compact_threshold: Annotated[int, Meta(ge=1_000)] | None = None


class CreateResponse(Struct):
    """The body of `POST /v1/responses`."""

    input: str | list[items.GivenItem]
    model: ModelName | None = None
    conversation: str | ConversationRef | None = None
    previous_response_id: str | None = None
    instructions: str | None = None
    stream: bool | None = None
    background: bool | None = None
    store: bool | None = None
    metadata: Metadata | None = None
    tools: list[FunctionTool] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    presence_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    max_output_tokens: Annotated[int, Meta(ge=1)] | None = None
    max_tool_calls: Annotated[int, Meta(ge=1)] | None = None
    text: TextConfig | None = None
    reasoning: ReasoningConfig | None = None
    truncation: Literal["auto", "disabled"] | None = None
    service_tier: ServiceTier | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    user: str | None = None
    context_management: list[ContextManagement] | None = None
    include: list[unheeded.Includable] | None = None
    stream_options: unheeded.StreamOptions | None = None
    prompt: unheeded.Prompt | None = None
    prompt_cache_retention: unheeded.CacheRetention | None = None
    prompt_cache_options: unheeded.CacheOptions | None = None
    moderation: unheeded.Moderation | None = None


class PreviousResponseNotFound(UnknownTurn):
    """No previous response by that id."""

    code = "previous_response_not_found"


class MutuallyExclusive(BadInput):
    """These parameters cannot be given together."""

    code = "mutually_exclusive_parameters"


# -- routes


async def create(call: Call) -> Response:
    """`POST /v1/responses`"""
    body = await call.body(CreateResponse)
    submission = submission_of(call, body)
    if body.store is False:
        return await _unstored(call, body, submission)
    turn = await submit(call, submission)
    turn_id = turn.id
    headers = headers_of(call, turn, submission)
    if body.stream:
        return stream_of(call, turn_id, turn, headers=headers)
    told = await (call.gateway.told(turn) if body.background else call.gateway.answered(turn))
    return answer(shown(told, turn_id), headers=headers)


async def _unstored(call: Call, body: CreateResponse, submission: Submission) -> Response:
    """`store: false`: the same answer, and nothing of it can be read later."""
    if body.background:
        raise BadInput("'background' needs 'store': what is not kept cannot be fetched later.", param="background")
    run, headers = await unstored(call, submission)

    async def chunks() -> AsyncGenerator[bytes, None]:
        stream = ResponseStream()
        for event in stream.begin(response_object(run.turn, [], run.slug)):
            yield encode(event)
        async with aclosing(run.events()) as events:
            async for told in events:
                for event in stream.take(told):
                    yield encode(event)
        for event in stream.end(response_object(run.turn, run.entries, run.slug)):
            yield encode(event)
        yield DONE

    if body.stream:
        return EventStream(chunks(), headers)
    told = await run.told()
    return answer(response_object(told.turn, told.entries, told.slug), headers=headers)


async def unstored(call: Call, submission: Submission) -> tuple[Ephemeral, dict[str, str]]:
    """A turn that leaves nothing behind, and what its answer carries."""
    with previous(submission):
        run = await call.gateway.ephemeral(submission)
    return run, {"X-Legato-Conversation": run.turn.conversation_id, **call.session_echo}


async def retrieve(call: Call) -> Response:
    """`GET /v1/responses/{id}`"""
    unheeded.check_include(call)
    turn_id, turn = await find(call)
    headers: dict[str, str] = {"X-Legato-Conversation": turn.conversation_id}
    after = _after(call)
    if call.flag("stream"):
        return stream_of(call, turn_id, turn, after=after, headers=headers)
    return answer(shown(await call.gateway.told(turn), turn_id), headers=headers)


def _after(call: Call) -> int:
    """The number of the last event that the client has seen."""
    last_seen = call.headers.get("last-event-id")
    if last_seen is None:
        return call.number("starting_after", -1, least=0, most=2**53)
    number = whole(last_seen)
    if number is None:
        raise BadInput("Last-Event-ID must be the number of an event.", param="Last-Event-ID")
    return number


async def cancel(call: Call) -> Response:
    """`POST /v1/responses/{id}/cancel`"""
    turn_id, turn = await find(call)
    told = await call.gateway.told(await call.gateway.cancel(call.caller.principal, turn.id))
    return answer(shown(told, turn_id), headers={"X-Legato-Conversation": turn.conversation_id})


async def delete(call: Call) -> Response:
    """`DELETE /v1/responses/{id}`; one that still runs is stopped."""
    turn_id, turn = await find(call)
    if not turn.ended:
        await call.gateway.stop(call.caller.principal, turn.id)
    await call.gateway.delete_turn(call.caller.principal, turn_id)
    return answer({"id": turn_id, "object": "response", "deleted": True})


async def input_items(call: Call) -> Response:
    """`GET /v1/responses/{id}/input_items`"""
    _, turn = await find(call)
    rendered = [item for d in await call.gateway.brought(turn) if (item := items.item(d.id, d.body)) is not None]
    return answer(page(call, rendered))


# -- what they share


def submission_of(call: Call, body: CreateResponse) -> Submission:
    """A request as a submission."""
    cast = call.api.roster.cast(body.model)
    options = Options(
        agent=body.model,
        instructions=body.instructions,
        tools=tuple(tool_of(tool) for tool in body.tools or ()),
        params=_params(body),
        compact_threshold=next((c.compact_threshold for c in body.context_management or ()), None),
        echo=_echo(body) | {"model": cast.name},
    )
    return Submission(
        principal=call.caller.principal,
        target=target_of(call, body),
        input=Input(items.parse_input(body.input), options),
        busy=call.busy,
        dedup_key=call.dedup_key,
        request_hash=call.request_hash,
        retry=call.is_retry,
    )


def tool_of(given: FunctionTool) -> Tool:
    """A tool of the client."""
    return Tool(given.name, given.description or "", given.parameters or {}, strict=given.strict)


async def submit(call: Call, submission: Submission) -> Turn:
    """Admit, and tell an unknown previous response in the wire's words. What goes wrong from here on still says in
    which conversation."""
    with previous(submission):
        try:
            turn = await call.gateway.submit(submission)
        except ConversationBusy:
            call.place = {"X-Legato-Conversation": await _place_of(call, submission.target)}
            raise
    call.place = headers_of(call, turn, submission)
    return turn


async def _place_of(call: Call, target: Target) -> str:
    """The conversation of something that was found to be busy."""
    if isinstance(target, After):
        return (await call.gateway.turn(call.caller.principal, target.turn_id)).conversation_id
    assert not isinstance(target, Fresh), "what is new is not busy"
    return (await call.gateway.find(call.caller.principal, target)).id


@contextmanager
def previous(submission: Submission) -> Iterator[None]:
    try:
        yield
    except UnknownTurn as error:
        target = submission.target
        named = target.turn_id if isinstance(target, After) else ""
        message = f"Previous response with id '{named}' not found."
        raise PreviousResponseNotFound(message, param="previous_response_id") from error


def headers_of(call: Call, turn: Turn, submission: Submission) -> dict[str, str]:
    """What every answer about a turn carries: right before the first byte, because the id never changes."""
    headers = {"X-Legato-Conversation": turn.conversation_id, **call.session_echo}
    return headers | replayed(turn.id != submission.turn_id)


def replayed(again: bool) -> dict[str, str]:
    """Tells a client that this is the answer to a request it made before."""
    return {"Idempotency-Replayed": "true"} if again else {}


async def find(call: Call) -> tuple[TurnId, Turn]:
    """The turn that the path names; for one that joined another, that other, under the name that was asked for."""
    turn_id = TurnId(call.path("id"))
    try:
        if "\0" in turn_id:
            raise UnknownTurn()
        return turn_id, await call.gateway.turn(call.caller.principal, turn_id)
    except UnknownTurn as error:
        raise UnknownTurn(f"Response with id '{turn_id}' not found.", param="response_id") from error


def shown(told: Told, turn_id: TurnId) -> dict[str, Any]:
    """A turn as a Response, as it stands."""
    readable = told.entries if told.turn.ended else []  # the items of a turn become readable together
    return response_object(told.turn, readable, told.slug) | {"id": turn_id}


def stream_of(
    call: Call, turn_id: TurnId, turn: Turn, *, after: int = -1, headers: dict[str, str] | None = None
) -> EventStream:
    """The events of a turn after a number, and then as they come."""
    return EventStream(_chunks(call.gateway, turn_id, turn, after), headers)


async def _chunks(gateway: Gateway, turn_id: TurnId, turn: Turn, after: int) -> AsyncGenerator[bytes, None]:
    stream = ResponseStream()
    for event in stream.begin(response_object(turn, [], await gateway.slug(turn)) | {"id": turn_id}):
        if event["sequence_number"] > after:
            yield encode(event)
    async for _, told in gateway.follow_on(turn):
        for event in stream.take(told):
            if event["sequence_number"] > after:
                yield encode(event)
    for event in stream.end(shown(await gateway.answered(turn), turn_id)):
        if event["sequence_number"] > after:
            yield encode(event)
    yield DONE


def encode(event: WireEvent) -> bytes:
    return named_event(event["type"], event)


def page(call: Call, rendered: list[dict[str, Any]], passed: int | None = None) -> dict[str, Any]:
    """A page of a list, in the order the client wants, after the item it names. Where that item is no longer in the
    list, `passed` of those that are were before it."""
    unheeded.check_include(call)
    order = call.query("order")
    if order not in (None, "asc", "desc"):
        raise BadInput("'order' must be 'asc' or 'desc'.", param="order")
    if order != "asc":
        rendered = rendered[::-1]
    after = call.query("after")
    if after is not None:
        places = [place for place, item in enumerate(rendered) if item["id"] == after]
        if not places and passed is None:
            raise BadInput(f"There is no item {after!r} here.", param="after")
        gone = (passed or 0) if order == "asc" else len(rendered) - (passed or 0)
        rendered = rendered[places[0] + 1 if places else gone :]
    limit = call.limit()
    return listing(rendered[:limit], has_more=len(rendered) > limit)


def listing(data: list[dict[str, Any]], *, has_more: bool) -> dict[str, Any]:
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": has_more,
    }


class Named(Protocol):
    """A body that may name a conversation."""

    conversation: str | ConversationRef | None
    previous_response_id: str | None


def target_of(call: Call, body: Named) -> Target:
    """The place that a request names."""
    session = call.session
    if body.conversation is not None and body.previous_response_id is not None:
        raise MutuallyExclusive(
            "Give 'conversation' or 'previous_response_id', not both.", param="previous_response_id"
        )
    if session is not None and (body.conversation is not None or body.previous_response_id is not None):
        raise MutuallyExclusive("The session header and the body name conversations. Give one.", param="conversation")
    if session is not None:
        return session
    if body.previous_response_id is not None:
        return after_turn(body.previous_response_id)
    if body.conversation is None:
        return Fresh()
    if isinstance(body.conversation, ConversationRef):
        return parse_name(body.conversation.id, param="conversation.id")
    return parse_name(body.conversation)


def after_turn(turn_id: str) -> After:
    """Continue after a turn that a client names."""
    if "\0" in turn_id:  # which no database could look up
        message = f"Previous response with id {turn_id!r} not found."
        raise PreviousResponseNotFound(message, param="previous_response_id")
    return After(TurnId(turn_id))


def _params(body: CreateResponse) -> dict[str, Any]:
    """What the model is asked for, in the words of Chat Completions."""
    params: dict[str, Any] = {name: value for name in ASKED if (value := getattr(body, name)) is not None}
    match body.tool_choice:
        case ChosenFunction() as chosen:
            params["tool_choice"] = _chosen(chosen)
        case AllowedTools(mode=mode, tools=tools):
            allowed = {"mode": mode, "tools": [_chosen(tool) for tool in tools]}
            params["tool_choice"] = {"type": "allowed_tools", "allowed_tools": allowed}
        case str() as word:
            params["tool_choice"] = word
    match body.text.format if body.text is not None else None:
        case JsonObject():
            params["response_format"] = {"type": "json_object"}
        case JsonSchema() as wanted:
            schema = {name: value for name, value in msgspec.structs.asdict(wanted).items() if value is not None}
            params["response_format"] = {"type": "json_schema", "json_schema": schema}
    if body.text is not None and body.text.verbosity is not None:
        params["verbosity"] = body.text.verbosity
    if body.reasoning is not None and body.reasoning.effort is not None:
        params["reasoning_effort"] = body.reasoning.effort
    return params


def _chosen(tool: ChosenFunction) -> dict[str, Any]:
    return {"type": "function", "function": {"name": tool.name}}


def _echo(body: CreateResponse) -> dict[str, Any]:
    given = {name: getattr(body, name) for name in ECHOED}
    echo = msgspec.to_builtins({name: value for name, value in given.items() if value is not None})
    if "text" in echo:
        echo["text"] = DEFAULTS["text"] | echo["text"]
    return dict(echo)
