"""The Conversations API, and what is ours on conversations: list, fork, rewind, compact, expand, names, trash.

Wherever a path takes a conversation's id, its slug does as well.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Annotated, Any

from msgspec import Meta, Struct
from starlette.responses import Response

from legato.api import items, unheeded
from legato.api.create_response import Metadata
from legato.api.door import Call, whole
from legato.api.pages import listing, page
from legato.api.response import usage_object
from legato.api.sse import EventStream
from legato.api.stream import ResponseStream
from legato.api.submitting import replayed
from legato.api.wire import MissingParameter, answer, named_event
from legato.domain.conversations import Conversation, Described
from legato.domain.entries import Entry
from legato.domain.grams import shortened, snippet
from legato.domain.handles import SLUG_RULE, ById, Slug, parse_name
from legato.domain.ids import ConversationId
from legato.domain.turns import Dedup
from legato.errors import BadInput, NotFound, UnknownHandle

LAST = 2**53  # the place of a turn's end among its events

Items = Annotated[list[items.GivenItem], Meta(max_length=20)]


class CreateConversation(Struct):
    metadata: Metadata | None = None
    items: Items | None = None


class UpdateConversation(Struct):
    metadata: Metadata | None


class CreateItems(Struct):
    items: Items


Position = int | str
"""A position of the log, or the id of an item or a response."""


class ForkConversation(Struct):
    at: Position | None = None


class RewindConversation(Struct):
    to: Position


class CompactConversation(Struct):
    """A summary of everything up to a position; without one it is made here, with attention to the `focus`."""

    summary: Annotated[str, Meta(min_length=1)] | None = None
    upto: Position | None = None
    focus: Annotated[str, Meta(max_length=2_000)] | None = None


class ExpandCompaction(Struct):
    """Without `of`, the compaction that is in force."""

    of: Position | None = None


# -- OpenAI's


async def create(call: Call) -> Response:
    """`POST /v1/conversations`: an empty conversation, or one that begins with these items."""
    body = await call.body(CreateConversation) if await call.has_body() else CreateConversation()
    drafts = items.parse_input(body.items or [], "items")
    dedup = call.dedup
    made = await call.gateway.create(call.caller.principal, {"metadata": body.metadata or {}}, dedup=dedup)
    if drafts:
        brought = Dedup(f"{dedup.key} items", dedup.request_hash) if dedup else None
        await call.gateway.add(
            call.caller.principal, ById(made.conversation.id), [d.body for d in drafts], dedup=brought
        )
    call.is_about(made.conversation.id)
    return answer(shown(made.conversation), headers=replayed(not made.fresh))


async def retrieve(call: Call) -> Response:
    """`GET /v1/conversations/{id}`: by its id or its name."""
    return answer(shown(await find(call)))


async def update(call: Call) -> Response:
    """`POST /v1/conversations/{id}`: change its metadata."""
    body = await call.body(UpdateConversation)
    conversation = await find(call)
    changes = {"metadata": body.metadata or {}}
    made = await call.gateway.change_settings(call.caller.principal, ById(conversation.id), changes, dedup=call.dedup)
    return answer(shown(made.conversation), headers=replayed(not made.fresh))


async def delete(call: Call) -> Response:
    """`DELETE /v1/conversations/{id}`: into the trash; its names are free at once."""
    conversation = await find(call)
    await call.gateway.delete(call.caller.principal, ById(conversation.id))
    return answer({"id": conversation.id, "object": "conversation.deleted", "deleted": True})


async def create_items(call: Call) -> Response:
    """`POST /v1/conversations/{id}/items`: add items, without a turn."""
    unheeded.check_include(call)
    body = await call.body(CreateItems)
    drafts = items.parse_input(body.items, "items")
    conversation = await find(call)
    repeated = await call.gateway.repeated(call.caller.principal, call.dedup)
    turn = await call.gateway.add(
        call.caller.principal, ById(conversation.id), [d.body for d in drafts], dedup=call.dedup
    )
    entries = await call.gateway.output(call.caller.principal, turn.id)
    rendered = [item for e in entries if (item := items.render(e))]
    return answer(listing(rendered, has_more=False), headers=replayed(repeated))


async def list_items(call: Call) -> Response:
    """`GET /v1/conversations/{id}/items`: everything that was said, newest first unless `order` is `asc`."""
    readable = await _readable(call)
    return answer(page(call, [item for _, item in readable], await _passed(call, [entry for entry, _ in readable])))


async def _passed(call: Call, entries: list[Entry]) -> int | None:
    """How many of these come before the item that a page begins after, where it was taken out of sight since."""
    after = call.query("after")
    if after is None or any(entry.id == after for entry in entries):
        return None
    place = await call.gateway.position(await find(call), after)
    return sum(entry.seq < place for entry in entries) if place is not None else None


async def retrieve_item(call: Call) -> Response:
    """`GET /v1/conversations/{id}/items/{item_id}`: one item."""
    unheeded.check_include(call)
    wanted = call.path("item_id")
    for entry, item in await _readable(call):
        if entry.id == wanted:
            return answer(item)
    raise items.UnknownItem(f"Item with id '{wanted}' not found.", param="item_id")


async def delete_item(call: Call) -> Response:
    """`DELETE /v1/conversations/{id}/items/{item_id}`: out of sight, for people and models alike."""
    conversation = await find(call)
    wanted = call.path("item_id")
    places = [entry.seq for entry, _ in await _readable(call) if entry.id == wanted]
    if not places:
        raise items.UnknownItem(f"Item with id '{wanted}' not found.", param="item_id")
    await call.gateway.remove(call.caller.principal, ById(conversation.id), places[0])
    return answer(shown(conversation))


# -- ours


async def list_conversations(call: Call) -> Response:
    """`GET /v1/conversations`: newest first; `q` is what they contain, `kind` what they are."""
    limit = call.limit()
    after = call.query("after")
    try:
        last = await _last_listed(call, after) if after is not None else None
        found = await call.gateway.conversations(
            call.caller.principal, limit + 1, last, query=call.query("q"), kind=call.query("kind")
        )
    except UnknownHandle as error:
        raise UnknownHandle(error.message, param="after") from error
    data = [_described(row) for row in await call.gateway.described(found[:limit])]
    return answer(listing(data, has_more=len(found) > limit))


async def _last_listed(call: Call, after: str) -> ConversationId:
    """The conversation that a page begins after; one that was deleted since is known by its id."""
    named = parse_name(after, param="after")
    return named.id if isinstance(named, ById) else (await call.gateway.find(call.caller.principal, named)).id


async def resolve(call: Call) -> Response:
    """`GET /v1/resolve`: which conversations someone may mean by an id, a name, a title, or the beginning of one."""
    what = call.query("what")
    if not what or len(what) > 500:
        raise BadInput("'what' is needed: 1 to 500 characters of an id, a name or a title.", param="what")
    meant = await call.gateway.meant(call.caller.principal, what, call.limit())
    return answer({"object": "list", "match": meant.match, "data": [_described(row) for row in meant.found]})


async def usage(call: Call) -> Response:
    """`GET /v1/conversations/{id}/usage`: what it has cost, by the log."""
    conversation = await find(call)
    counted = usage_object(await call.gateway.usage(conversation))
    return answer({"object": "conversation.usage", "conversation": conversation.id, **counted})


async def search(call: Call) -> Response:
    """`GET /v1/search`: what was said, wherever it was said, newest first."""
    query = call.query("q")
    if query is None:
        raise MissingParameter.named("q")
    hits = await call.gateway.search(call.caller.principal, query, call.limit())
    data = [
        {
            "object": "search.hit",
            "conversation": hit.conversation_id,
            "position": hit.entry.seq,
            "id": hit.entry.id,
            "created_at": int(hit.entry.created_at),
            "snippet": snippet(hit.text, query),
        }
        for hit in hits
    ]
    return answer({"object": "list", "data": data})


async def events(call: Call) -> Response:
    """`GET /v1/conversations/{id}/events`: everything that happens in it, from what is under way now, or from
    `Last-Event-ID` on; `0` is the very beginning."""
    conversation = await find(call)
    last_seen = call.headers.get("last-event-id")
    if last_seen is None:
        after, seen = (await call.gateway.last_ended(conversation)), -1
    else:
        after, seen = _cursor(last_seen)
    return EventStream(_told(call, conversation, after, seen))


async def _told(call: Call, conversation: Conversation, after: int, seen: int) -> AsyncGenerator[bytes, None]:
    """Turn after turn, each told in the words of a response's stream. The id of an event is the turn's number and its
    place within it, so a cursor may be in the middle of a turn. The first thing told is where the stream begins, so
    that a watcher that is cut off before anything happens has a cursor, too. A new title has no place of its own."""
    at = f"{after}" if seen < 0 else f"{after + 1}.{seen}"
    yield f"id: {at}\n\n".encode()
    watched = call.gateway.watch(call.caller.principal, ById(conversation.id), after, title=conversation.title)
    async for news in watched:
        if isinstance(news, Conversation):
            yield _line(at, "conversation.renamed", {"conversation": news.id, "title": news.title})
            continue
        turn, happening = news
        about = {"turn": turn.id, "kind": turn.kind}
        place = 0
        if place > seen:
            given = await call.gateway.brought(turn)
            brought = [item for d in given if (item := items.item(d.id, d.body)) is not None]
            yield _line(f"{turn.n}.{place}", "turn.admitted", {**about, "input": brought})
        stream = ResponseStream()
        async for _, events in happening:
            for event in (event for happened in events for event in stream.take(happened)):
                place += 1
                if place > seen:
                    yield _line(f"{turn.n}.{place}", "turn.event", {**about, "event": event})
        outcome = await call.gateway.outcome(call.caller.principal, turn.id)
        ended = outcome.turn
        brought_ids = {d.id for d in turn.input.drafts}
        output = [item for e in outcome.entries if e.id not in brought_ids and (item := items.render(e)) is not None]
        failure = ended.failure.message if ended.failure else None
        at, seen = f"{turn.n}.{LAST}", -1
        yield _line(at, "turn.ended", {**about, "status": ended.status, "output": output, "error": failure})


def _line(at: str, kind: str, body: dict[str, Any]) -> bytes:
    return f"id: {at}\n".encode() + named_event(kind, {"type": kind, **body})


def _cursor(last_seen: str) -> tuple[int, int]:
    """The turn to begin after, and the last event seen of the one that follows it. A turn's number alone is its end."""
    turn, dot, place = last_seen.partition(".")
    number, within = whole(turn), whole(place) if dot else LAST
    if number is None or within is None:
        raise BadInput("Last-Event-ID must be the id of an event of this stream.", param="Last-Event-ID")
    return (number, -1) if within == LAST else (number - 1, within)


async def fork(call: Call) -> Response:
    """`POST /v1/conversations/{id}/fork`: another conversation that begins here, or after position `at`."""
    body = await call.body(ForkConversation) if await call.has_body() else ForkConversation()
    conversation = await find(call)
    at = await _position(call, body.at, "at") if body.at is not None else None
    made = await call.gateway.fork(call.caller.principal, ById(conversation.id), at, dedup=call.dedup)
    call.is_about(made.conversation.id)
    return answer(shown(made.conversation), headers=replayed(not made.fresh))


async def rewind(call: Call) -> Response:
    """`POST /v1/conversations/{id}/rewind`: hide what follows a position."""
    body = await call.body(RewindConversation)

    async def change(conversation: ById) -> None:
        to = await _position(call, body.to, "to")
        await call.gateway.rewind(call.caller.principal, conversation, to, dedup=call.dedup)

    return await _changed(call, change)


async def compact(call: Call) -> Response:
    """`POST /v1/conversations/{id}/compact`: let a summary stand for the past."""
    body = await call.body(CompactConversation) if await call.has_body() else CompactConversation()

    async def change(conversation: ById) -> None:
        if body.summary is None and body.upto is not None:
            raise BadInput("'upto' goes with a 'summary'; without one, what is folded is chosen here.", param="summary")
        if body.summary is None:
            focus = body.focus or ""
            await call.gateway.summarise(call.caller.principal, conversation, focus=focus, dedup=call.dedup)
            return
        if body.upto is None:
            raise BadInput("A summary needs 'upto': the last position that it stands for.", param="upto")
        upto = await _position(call, body.upto, "upto")
        await call.gateway.compact(call.caller.principal, conversation, upto, body.summary, dedup=call.dedup)

    return await _changed(call, change)


async def expand(call: Call) -> Response:
    """`POST /v1/conversations/{id}/expand`: show the model again what a summary stands for."""
    body = await call.body(ExpandCompaction) if await call.has_body() else ExpandCompaction()

    async def change(conversation: ById) -> None:
        in_force = await call.gateway.summary_in_force(await find(call)) if body.of is None else body.of
        if in_force is None:
            raise BadInput("No summary stands for anything here.", param="of")
        of = await _position(call, in_force, "of")
        await call.gateway.expand(call.caller.principal, conversation, of, dedup=call.dedup)

    return await _changed(call, change)


async def _changed(call: Call, change: Callable[[ById], Awaitable[None]]) -> Response:
    """Change what is seen of the log, unless this very request has done so, and show the conversation."""
    conversation = await find(call)
    repeated = await call.gateway.repeated(call.caller.principal, call.dedup)
    if not repeated:
        await change(ById(conversation.id))
    return answer(shown(conversation), headers=replayed(repeated))


async def put_alias(call: Call) -> Response:
    """`PUT /v1/conversations/{id}/aliases/{name}`: another name for it."""
    conversation = await find(call)
    name = parse_name(call.path("name"), param="name")
    if isinstance(name, ById) or not name.creatable:
        raise BadInput(f"{SLUG_RULE} 'conv_…' is no name.", param="name")
    await call.gateway.bind(call.caller.principal, name, ById(conversation.id))
    return answer(shown(conversation) | {"name": name.value})


async def delete_alias(call: Call) -> Response:
    """`DELETE /v1/conversations/{id}/aliases/{name}`: a name less."""
    conversation = await find(call)
    name = call.path("name")
    if ("slug", name) not in await call.gateway.names(conversation):
        raise NotFound(f"Conversation {conversation.id} is not known as {name!r}.", param="name")
    await call.gateway.unbind(call.caller.principal, Slug(name))
    return answer(shown(conversation))


# -- the trash


async def list_deleted(call: Call) -> Response:
    """`GET /v1/trash`: what was deleted and can be restored, newest first."""
    limit = call.limit(most=1_000)
    after = call.query("after")
    try:
        last = _in_trash(after, "after") if after is not None else None
        rows = await call.gateway.deleted(call.caller.principal, limit + 1, last)
    except UnknownHandle as error:
        raise UnknownHandle(error.message, param="after") from error
    data = [_described(row) | {"deleted_at": int(row.conversation.deleted_at or 0)} for row in rows[:limit]]
    return answer(listing(data, has_more=len(rows) > limit))


async def restore(call: Call) -> Response:
    """`POST /v1/trash/{id}/restore`: as it was, with those of its names that nobody has taken."""
    restored = await call.gateway.restore(call.caller.principal, _in_trash(call.path("id")), dedup=call.dedup)
    return answer(shown(restored.conversation) | {"lost_names": restored.lost}, headers=replayed(not restored.fresh))


async def purge(call: Call) -> Response:
    """`DELETE /v1/trash/{id}`: for good."""
    conversation = _in_trash(call.path("id"))
    await call.gateway.purge(call.caller.principal, conversation)
    return answer({"id": conversation, "object": "conversation.purged", "purged": True})


def _in_trash(given: str, param: str = "conversation_id") -> ConversationId:
    named = parse_name(given, param=param)
    if not isinstance(named, ById):
        raise UnknownHandle("In the trash a conversation is known by its id only.", param=param)
    return named.id


# -- what they share


async def find(call: Call) -> Conversation:
    """The conversation that the path names, by its id or its slug."""
    found = await call.gateway.find(call.caller.principal, parse_name(call.path("id"), param="conversation_id"))
    call.is_about(found.id)
    return found


def shown(conversation: Conversation) -> dict[str, Any]:
    return {
        "id": conversation.id,
        "object": "conversation",
        "created_at": int(conversation.created_at),
        "metadata": conversation.settings.get("metadata", {}),
    }


def _described(row: Described) -> dict[str, Any]:
    conversation = row.conversation
    return shown(conversation) | {
        "name": row.name,
        "title": conversation.title,
        "kind": conversation.kind,
        "preview": shortened(row.opening),
        "updated_at": int(conversation.updated_at),
    }


async def _readable(call: Call) -> list[tuple[Entry, dict[str, Any]]]:
    """Everything that people see of the conversation, as items. Those of a turn become readable together."""
    conversation = await find(call)
    entries = await call.gateway.told_of(call.caller.principal, ById(conversation.id))
    return [(entry, item) for entry in entries if (item := items.render(entry)) is not None]


async def _position(call: Call, given: Position, param: str) -> int:
    """A position: as a number, or the place of an item, or the end of a response."""
    if isinstance(given, int):
        return given
    conversation = await find(call)
    entries = await call.gateway.transcript(call.caller.principal, ById(conversation.id))
    places = [entry.seq for entry in entries if given in (entry.id, entry.turn_id)]
    if not places:
        raise BadInput(f"There is no item or response {given!r} in this conversation.", param=param)
    return places[-1]
