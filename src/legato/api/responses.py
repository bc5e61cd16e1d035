"""The Responses API. A response is a turn: its id is the turn's id, and there is no store of responses to evict it.

A client may wait for the answer, follow it as it comes, or leave it in the background; it is the same turn, and any of
them can come back to it later and see the same.
"""

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from typing import Any

import msgspec
from starlette.responses import Response

from legato.api import items, unheeded
from legato.api.create_response import CreateResponse, JsonObject, JsonSchema
from legato.api.door import Call, whole
from legato.api.pages import page
from legato.api.response import DEFAULTS, response_object
from legato.api.sse import EventStream
from legato.api.stream import ResponseStream, WireEvent
from legato.api.submitting import brought, parsed, submit, target_of, unstored
from legato.api.tools import Choice, OfferedTool, choice_of, parse_additional, parse_choice, parse_tools, tool_of
from legato.api.wire import DONE, answer, named_event
from legato.domain.ids import TurnId
from legato.domain.turns import Fresh, Input, Options, Submission, Told, Turn
from legato.engine.gateway import Gateway
from legato.errors import BadInput, UnknownTurn

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
    "top_logprobs",
    "top_p",
    "truncation",
    "user",
    "metadata",
    "previous_response_id",
)
OWN = ("background", "metadata", "previous_response_id", "prompt_cache_key", "safety_identifier", "user")
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


class UnknownResponse(UnknownTurn):
    """No response by that id."""

    code = "response_not_found"


# -- routes


async def create(call: Call) -> Response:
    """`POST /v1/responses`: a turn: what is said, and its answer, at once, as a stream, or in the background."""
    body = await call.body(CreateResponse)
    submission = await submission_of(call, body)
    if body.store is False:
        return await _unstored(call, body, submission)
    turn = await submit(call, submission)
    if body.stream:
        return stream_of(call, turn, turn)
    told = await (call.gateway.told(turn) if body.background else call.gateway.answered(turn))
    return answer(shown(told, turn))


async def _unstored(call: Call, body: CreateResponse, submission: Submission) -> Response:
    """`store: false`: the same answer, and nothing of it can be read later."""
    if body.background:
        raise BadInput("'background' needs 'store': what is not kept cannot be fetched later.", param="background")
    run = await unstored(call, submission)

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
        return EventStream(chunks())
    told = await run.told()
    return answer(response_object(told.turn, told.entries, told.slug))


async def retrieve(call: Call) -> Response:
    """`GET /v1/responses/{id}`: as it is; with `stream`, its events after `starting_after`, and those to come."""
    unheeded.check_include(call)
    turn_id, turn = await find(call)
    asked = await _asked(call, turn_id, turn)
    after = _after(call)
    if call.flag("stream"):
        return stream_of(call, asked, turn, after=after)
    return answer(shown(await call.gateway.told(turn), asked))


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
    """`POST /v1/responses/{id}/cancel`: stop a turn; what was written stays."""
    turn_id, turn = await find(call)
    asked = await _asked(call, turn_id, turn)
    with _known(turn_id):
        told = await call.gateway.told(await call.gateway.cancel(call.caller.principal, turn.id))
    return answer(shown(told, asked))


async def delete(call: Call) -> Response:
    """`DELETE /v1/responses/{id}`: found no more; what was said stays in its conversation.

    One that still runs is stopped.
    """
    turn_id, turn = await find(call)
    with _known(turn_id):
        if not turn.ended:
            await call.gateway.stop(call.caller.principal, turn.id)
        await call.gateway.delete_turn(call.caller.principal, turn_id)
    return answer({"id": turn_id, "object": "response", "deleted": True})


async def input_items(call: Call) -> Response:
    """`GET /v1/responses/{id}/input_items`: what was said in a turn, also in one that joined another."""
    asked = await _asked(call, *await find(call))
    rendered = [item for d in await call.gateway.brought(asked) if (item := items.item(d.id, d.body)) is not None]
    return answer(page(call, rendered))


# -- what they share


async def submission_of(call: Call, body: CreateResponse) -> Submission:
    """A request as a submission."""
    cast = call.api.roster.cast(body.model)
    tools, choice = parse_tools(body.tools), parse_choice(body.tool_choice)
    options = Options(
        agent=body.model,
        instructions=body.instructions,
        tools=tuple(map(tool_of, [*tools, *parse_additional(body.input)])),
        params=_params(body, choice),
        compact_threshold=next((c.compact_threshold for c in body.context_management or ()), None),
        echo=_echo(body, tools, choice) | {"model": cast.name},
    )
    target = await target_of(call, body)
    given = await parsed(call, target, body.input)
    history = await parsed(call, Fresh(), body.conversation_history or [], "conversation_history")
    return Submission(
        principal=call.caller.principal,
        target=target,
        input=Input(brought(target, given, history, session=bool(call.sessions)), options),
        busy=call.busy,
        dedup_key=call.dedup_key,
        request_hash=call.request_hash,
        retry=call.is_retry,
    )


async def find(call: Call) -> tuple[TurnId, Turn]:
    """The turn that the path names; for one that joined another, that other, under the name that was asked for."""
    turn_id = TurnId(call.path("id"))
    with _known(turn_id):
        if "\0" in turn_id:
            raise UnknownTurn()
        turn = await call.gateway.turn(call.caller.principal, turn_id)
    call.is_about(turn.conversation_id)
    return turn_id, turn


@contextmanager
def _known(turn_id: TurnId) -> Iterator[None]:
    """A turn that is not there, or not any more, is refused as a response."""
    try:
        yield
    except UnknownTurn as error:
        raise UnknownResponse(f"Response with id '{turn_id}' not found.", param="response_id") from error


async def _asked(call: Call, turn_id: TurnId, turn: Turn) -> Turn:
    """The turn as it was asked for, where another is its outcome."""
    return turn if turn.id == turn_id else await call.gateway.submitted(call.caller.principal, turn_id)


def shown(told: Told, asked: Turn) -> dict[str, Any]:
    """A turn as a Response, as it stands. One that joined another has its outcome, and is still the client's own."""
    readable = told.entries if told.turn.ended else []  # the items of a turn become readable together
    echo = DEFAULTS | asked.input.options.echo
    own = {"id": asked.id, "created_at": int(asked.created_at), **{name: echo[name] for name in OWN}}
    return response_object(told.turn, readable, told.slug) | own


def stream_of(call: Call, asked: Turn, turn: Turn, *, after: int = -1) -> EventStream:
    """The events of a turn after a number, and then as they come."""
    call.gateway.attend(turn)  # to name the conversation takes a while
    return EventStream(_chunks(call.gateway, asked, turn, after))


async def _chunks(gateway: Gateway, asked: Turn, turn: Turn, after: int) -> AsyncGenerator[bytes, None]:
    stream = ResponseStream()
    with gateway.attending(turn) as end:
        for event in stream.begin(response_object(asked, [], await gateway.slug(asked))):
            if event["sequence_number"] > after:
                yield encode(event)
        async for _, events in gateway.follow_on(turn):
            told = (event for happened in events for event in stream.take(happened))
            yield b"".join(encode(event) for event in told if event["sequence_number"] > after)
        outcome = await gateway.answered(turn, end)
    for event in stream.end(shown(outcome, asked)):
        if event["sequence_number"] > after:
            yield encode(event)
    yield DONE


def encode(event: WireEvent) -> bytes:
    return named_event(event["type"], event)


def _params(body: CreateResponse, choice: Choice | None) -> dict[str, Any]:
    """What the model is asked for, in the words of Chat Completions."""
    params: dict[str, Any] = {name: value for name in ASKED if (value := getattr(body, name)) is not None}
    if choice is not None:
        params["tool_choice"] = choice_of(choice)
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


def _echo(body: CreateResponse, tools: list[OfferedTool], choice: Choice | None) -> dict[str, Any]:
    given = {name: getattr(body, name) for name in ECHOED} | {"tools": tools or None, "tool_choice": choice}
    echo = msgspec.to_builtins({name: value for name, value in given.items() if value is not None})
    if "text" in echo:
        echo["text"] = DEFAULTS["text"] | echo["text"]
    return dict(echo)
