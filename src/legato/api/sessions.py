"""Sessions, for clients of the older world: one row for each conversation, for ever.

A session's id is the conversation's own, or whatever id a client ever sent for it.
"""

from contextlib import suppress
from typing import Annotated, Any

from msgspec import Meta, Struct
from starlette.responses import Response

from legato.api import items, session_stream
from legato.api.create_chat import ChatImage
from legato.api.create_response import ModelName
from legato.api.door import Call
from legato.api.sse import EventStream
from legato.api.submitting import replayed, submit
from legato.api.wire import MissingParameter, answer, turn_failed
from legato.domain.conversations import Conversation, Described
from legato.domain.entries import Draft, Message, draft
from legato.domain.grams import shortened
from legato.domain.handles import ById, External, Slug, parse_external
from legato.domain.turns import Input, Options, Submission, Turn
from legato.errors import BadInput, UnknownHandle

Title = Annotated[str, Meta(max_length=500, pattern=r"^[^\x00]*$")]
SessionName = Annotated[str, Meta(min_length=1, max_length=255)]
PARTS = ("text", "image_url", "input_text", "input_image", "input_file")


class UnknownSession(UnknownHandle):
    """No session by that id."""

    code = "session_not_found"


class CreateSession(Struct):
    id: SessionName | None = None
    session_id: SessionName | None = None
    title: Title | None = None
    model: ModelName | None = None
    system_prompt: str | None = None


class PatchSession(Struct, forbid_unknown_fields=True):
    title: Title | None = None
    end_reason: str | None = None


class ForkSession(Struct):
    id: SessionName | None = None
    session_id: SessionName | None = None
    title: Title | None = None


_REFS = ({"$ref": f"#/components/schemas/{name}"} for name in ("GivenItem", "GivenPart", "ChatImage"))
Said = Annotated[dict[str, Any], Meta(extra_json_schema={"anyOf": [*_REFS]})]


class SessionChat(Struct):
    """The body of a turn: `input`, or `message`: a text, items, or the parts of one message."""

    input: str | list[Said] | None = None
    message: str | list[Said] | None = None
    model: ModelName | None = None
    instructions: str | None = None
    system_message: str | None = None


async def list_sessions(call: Call) -> Response:
    """`GET /api/sessions`: one row for each conversation, newest first."""
    limit, offset = call.limit(50, 200), call.number("offset", 0, least=0, most=10_000)
    source = call.query("source") or None
    found = await call.gateway.conversations(call.caller.principal, offset + limit + 1, kind=source)
    shown = [_listed(row) for row in await call.gateway.described(found[offset : offset + limit])]
    more = len(found) > offset + limit
    return answer({"object": "list", "data": shown, "limit": limit, "offset": offset, "has_more": more})


async def create(call: Call) -> Response:
    """`POST /api/sessions`: registering twice is registering once; what is chosen the second time holds."""
    body = await call.body(CreateSession) if await call.has_body() else CreateSession()
    chosen = _chosen(call, body)
    made = await call.gateway.create(call.caller.principal, chosen, _name(body), dedup=call.dedup)
    conversation = made.conversation
    if made.fresh and {**conversation.settings, **chosen} != conversation.settings:
        changed = await call.gateway.change_settings(call.caller.principal, ById(conversation.id), chosen)
        conversation = changed.conversation
    if body.title:
        conversation = await _titled(call, conversation, body.title)
    return answer(await _wrapped(call, conversation), 201, replayed(not made.fresh))


async def retrieve(call: Call) -> Response:
    """`GET /api/sessions/{id}`: with what it holds and what it has cost."""
    return answer(await _wrapped(call, await find(call)))


async def patch(call: Call) -> Response:
    """`PATCH /api/sessions/{id}`: change its title. A conversation never ends, so an end is noted by nobody."""
    body = await call.body(PatchSession)
    conversation = await find(call)
    if body.title is not None:
        conversation = await call.gateway.rename(call.caller.principal, ById(conversation.id), body.title)
    return answer(await _wrapped(call, conversation))


async def delete(call: Call) -> Response:
    """`DELETE /api/sessions/{id}`: into the trash."""
    conversation = await find(call)
    await call.gateway.delete(call.caller.principal, ById(conversation.id))
    return answer({"object": "hermes.session.deleted", "id": conversation.id, "deleted": True})


async def messages(call: Call) -> Response:
    """`GET /api/sessions/{id}/messages`: everything that was said, or `limit` of it from `offset` on."""
    offset, limit = call.number("offset", 0, least=0, most=2**53), call.number("limit", 2**53, least=1, most=2**53)
    order = call.query("order") or "asc"
    if order not in ("asc", "desc", "oldest", "latest"):
        raise BadInput("'order' must be 'asc' or 'oldest', or 'desc' or 'latest'.", param="order")
    conversation = await find(call)
    entries = await call.gateway.told_of(call.caller.principal, ById(conversation.id))
    data = [line for entry in entries if (line := session_stream.message(entry)) is not None]
    if order in ("desc", "latest"):
        data.reverse()
    page = data[offset : offset + limit]
    more = len(data) > offset + limit
    return answer({"object": "list", "session_id": conversation.id, "data": page, "has_more": more})


async def fork(call: Call) -> Response:
    """`POST /api/sessions/{id}/fork`: another that begins where this one stands."""
    body = await call.body(ForkSession) if await call.has_body() else ForkSession()
    conversation = await find(call)
    made = await call.gateway.fork(call.caller.principal, ById(conversation.id), name=_name(body), dedup=call.dedup)
    forked = made.conversation
    if body.title:
        forked = await _titled(call, forked, body.title)
    return answer(await _wrapped(call, forked), 201, replayed(not made.fresh))


async def chat(call: Call) -> Response:
    """`POST /api/sessions/{id}/chat`: a turn, answered when it is done."""
    turn = await _start(call)
    ended = await call.gateway.ended(turn)
    if ended.failure is not None:
        raise turn_failed(ended.failure)
    text = await call.gateway.answer(ended)
    completion = {
        "object": "hermes.session.chat.completion",
        "session_id": call.path("id"),
        "run_id": turn.id,
        "message": {"role": "assistant", "content": text},
        "usage": session_stream.usage(ended),
    }
    return answer(completion)


async def chat_stream(call: Call) -> Response:
    """`POST /api/sessions/{id}/chat/stream`: a turn, as it happens."""
    turn = await _start(call)
    return EventStream(session_stream.told(call, call.path("id"), turn))


async def find(call: Call) -> Conversation:
    """The conversation that the path names: by its own id, by an id a client gave it, or by its slug."""
    handle = parse_external(call.path("id"), param="session_id")
    for name in (handle, Slug(handle.value)) if isinstance(handle, External) else (handle,):
        with suppress(UnknownHandle):
            found = await call.gateway.find(call.caller.principal, name)
            call.is_about(found.id)
            return found
    raise UnknownSession(f"Session with id '{call.path('id')}' not found.", param="session_id")


def _chosen(call: Call, body: CreateSession) -> dict[str, Any]:
    """Who answers in a session, and under which instructions, where a client chose that."""
    chosen = {}
    if body.model is not None and call.api.roster.cast(body.model).name == body.model:
        chosen["agent"] = body.model
    if body.system_prompt:
        chosen["instructions"] = body.system_prompt
    return chosen


def _name(body: CreateSession | ForkSession) -> External | None:
    """What a client wants to call a new session."""
    named = body.id or body.session_id
    name = parse_external(named, param="id") if named is not None else None
    if isinstance(name, ById):
        raise BadInput("'conv_…' is the gateway's own kind of id; choose another.", param="id")
    return name


async def _titled(call: Call, conversation: Conversation, title: str) -> Conversation:
    """A session with the title that it is made with."""
    once = call.dedup.part("title") if call.dedup is not None else None
    return await call.gateway.rename(call.caller.principal, ById(conversation.id), title, dedup=once)


async def _start(call: Call) -> Turn:
    body = await call.body(SessionChat)
    if body.input is not None:
        said = _said(body.input, "input")
    elif body.message is not None:
        said = _said(body.message, "message")
    else:
        raise MissingParameter.named("input")
    conversation = await find(call)
    options = Options(
        agent=body.model,
        instructions=body.instructions or body.system_message,
        echo={"model": call.api.roster.cast(body.model).name},
    )
    submission = Submission(
        principal=call.caller.principal,
        target=ById(conversation.id),
        input=Input(said, options),
        busy=call.busy,
        dedup_key=call.dedup_key,
        request_hash=call.request_hash,
        retry=call.is_retry,
    )
    turn = await submit(call, submission)
    call.place["X-Hermes-Session-Id"] = call.path("id").encode().decode("latin-1")  # as it would be sent in that header
    return turn


def _said(given: str | list[Said], param: str) -> tuple[Draft, ...]:
    """What a turn brings. Where there are parts of a message, they are those of one of the user."""
    if isinstance(given, str) or not any(thing.get("type") in PARTS for thing in given):
        return items.parse_input(given, param)
    parts = [_part(part, f"{param}[{place}]") for place, part in enumerate(given)]
    return (draft(Message("user", items.content_of(parts, param))),)


def _part(part: Said, param: str) -> Said:
    """A part in the words of Responses, also where it is a picture in those of Chat Completions."""
    if part.get("type") != "image_url":
        return part
    image = items.take(part, ChatImage, param).image_url
    return {"type": "input_image", "image_url": image.url, "detail": image.detail}


def _listed(row: Described) -> dict[str, Any]:
    conversation = row.conversation
    return {
        "id": conversation.id,
        "session_id": conversation.id,
        "title": conversation.title or None,
        "preview": shortened(row.opening),
        "source": conversation.kind,
        "model": conversation.chosen or conversation.agent or "default",
        "has_system_prompt": conversation.instructions is not None,
        "started_at": conversation.created_at,
        "last_active": conversation.updated_at,
        "ended_at": None,
        "end_reason": None,
        "parent_session_id": conversation.parent_id,
    }


async def _wrapped(call: Call, conversation: Conversation) -> dict[str, Any]:
    """A session alone: with what would have to be counted for each row of a list."""
    call.is_about(conversation.id)
    [row] = await call.gateway.described([conversation])
    usage = await call.gateway.usage(conversation)
    shown = _listed(row) | {
        "message_count": await call.gateway.count_messages(conversation),
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "cache_read_tokens": usage.cached_tokens,
        "cache_write_tokens": usage.cache_write_tokens,
        "reasoning_tokens": usage.reasoning_tokens,
    }
    return {"object": "hermes.session", "session": shown, **shown}
