"""The directory: the one place where an outside name becomes a conversation.

A name belongs to a principal and means one conversation, for ever, because the primary key of `aliases` says so.
Nothing here is cached and nothing is evicted. A foreign id is as unknown as one that never was.
"""

import re
from collections.abc import Iterable
from typing import Any

from msgspec import DecodeError, json

from legato.domain.conversations import Conversation, Described
from legato.domain.entries import Message
from legato.domain.handles import SLUG_RULE, Address, ById, Handle, Name, Slug, past_all_beginning
from legato.domain.ids import ConversationId, PrincipalId, new_conversation_id
from legato.errors import AliasTaken, BadInput, UnknownHandle, Unreadable
from legato.store import log
from legato.store.database import Row, Tx, one

MANY = 500  # so many that begin alike are sorted; of more, the newest are looked for among the newest

_SETTINGS = Conversation.__struct_fields__.index("settings")
_FIELDS = len(Conversation.__struct_fields__)
_settings = json.Decoder(dict[str, Any])
_message = json.Decoder(Message)


class Held(Conversation, frozen=True):
    """A conversation that nobody else changes until the transaction ends, and since when, by the database's clock."""

    now: float


async def find(tx: Tx, principal: PrincipalId, handle: Handle, *, lock: bool = False) -> Conversation:
    """The conversation that a handle means; never creates."""
    conversation = await lookup(tx, principal, handle, lock=lock)
    if conversation is None:
        raise UnknownHandle(f"No conversation {_shown(handle)}.", param="conversation")
    return conversation


async def lookup(tx: Tx, principal: PrincipalId, handle: Handle, *, lock: bool = False) -> Conversation | None:
    """The conversation that a handle means, if there is one; with `lock`, held until the transaction ends."""
    verb = "lock" if lock else "find"
    if isinstance(handle, ById):
        row = await one(tx.run(f"{verb}_by_id", id=handle.id, principal=principal))
    else:
        row = await one(tx.run(f"{verb}_by_name", principal=principal, scheme=handle.scheme, value=handle.value))
    return conversation_of(row) if row else None


async def lock_or_create(
    tx: Tx,
    principal: PrincipalId,
    handle: Handle,
    *,
    agent: str = "",
    kind: str = "chat",
    request: str | None = None,
) -> Conversation:
    """The conversation that a handle means, made on first use. Of two that race, the key lets one make it; a retry of
    the `request` that makes it waits until it is there."""
    conversation = await lookup(tx, principal, handle, lock=True)
    if conversation is not None:
        return conversation
    if isinstance(handle, ById):
        raise UnknownHandle(f"No conversation {_shown(handle)}.", param="conversation")
    check_creatable(handle)
    conversation = await create(tx, principal, agent=agent, kind=kind, request=request)
    await add_name(tx, principal, handle, conversation.id)
    return conversation


def check_creatable(name: Name) -> None:
    """What is not there yet can be made under this name."""
    if not name.creatable:
        raise BadInput(SLUG_RULE, param="conversation")


async def create(
    tx: Tx,
    principal: PrincipalId,
    *,
    title: str = "",
    agent: str = "",
    kind: str = "chat",
    settings: dict[str, Any] | None = None,
    parent: ConversationId | None = None,
    base: int = 0,
    request: str | None = None,
) -> Conversation:
    """A new conversation: empty, or a fork that begins at a position of another. A retry of the `request` that makes it
    waits until it is there."""
    [row] = await tx.run(
        "add_conversation",
        id=new_conversation_id(),
        principal=principal,
        title=title,
        agent=agent,
        kind=kind,
        settings=json.encode(settings or {}).decode(),
        parent=parent,
        base=base,
        request=request,
    )
    return conversation_of(row)


async def fork(tx: Tx, principal: PrincipalId, origin: Conversation, base: int) -> Conversation:
    """A conversation that begins at a position of another: called and answered as that is."""
    return await create(
        tx,
        principal,
        title=origin.title,
        agent=origin.agent,
        kind=origin.kind,
        settings=origin.choices,
        parent=origin.id,
        base=base,
    )


async def add_name(tx: Tx, principal: PrincipalId, name: Name, conversation_id: ConversationId) -> None:
    """Give a conversation a name that was looked up and not found. It is not looked up again: of two that race, the key
    lets one give it, and the other runs again and finds it."""
    await _check_free(tx, principal, name)
    await tx.run("add_alias", principal=principal, scheme=name.scheme, value=name.value, conversation=conversation_id)


async def check_unused(tx: Tx, principal: PrincipalId, name: Name) -> None:
    """This name means nothing yet."""
    if (present := await lookup(tx, principal, name)) is not None:
        raise _taken(name, present)


async def bind(tx: Tx, principal: PrincipalId, name: Name, conversation_id: ConversationId, *, move: bool) -> None:
    """Give a conversation a name. With `move` a name that means another conversation is re-pointed (reset, resume);
    without it that is refused."""
    await find(tx, principal, ById(conversation_id), lock=True)
    present = await lookup(tx, principal, name)
    if present is not None and present.id == conversation_id:
        return
    if present is not None and not move:
        raise _taken(name, present)
    await _check_free(tx, principal, name)
    statement = "move_alias" if move else "add_alias"
    await tx.run(statement, principal=principal, scheme=name.scheme, value=name.value, conversation=conversation_id)


def _taken(name: Name, present: Conversation) -> AliasTaken:
    return AliasTaken(f"{_shown(name)} already means conversation {present.id}.")


async def _check_free(tx: Tx, principal: PrincipalId, name: Name) -> None:
    """An address belongs to the principal that paired it."""
    if isinstance(name, Address):
        owner = await one(tx.run("owner_of_address", value=name.value))
        if owner is not None and owner[0] != principal:
            raise AliasTaken(f"The {name.channel} address belongs to somebody else.")


async def owner_of(tx: Tx, address: Address) -> PrincipalId | None:
    """Whose an address is."""
    row = await one(tx.run("owner_of_address", value=address.value))
    return PrincipalId(row[0]) if row else None


async def unbind(tx: Tx, principal: PrincipalId, name: Name) -> bool:
    """Take a name away; the conversation stays."""
    return bool(await tx.run("remove_alias", principal=principal, scheme=name.scheme, value=name.value))


async def names(tx: Tx, conversation_id: ConversationId) -> list[tuple[str, str]]:
    """Every (scheme, value) of a conversation."""
    return [(scheme, value) for scheme, value in await tx.run("aliases_of", conversation=conversation_id)]


def slug_among(names: Iterable[tuple[str, str]]) -> str | None:
    """The first slug of a conversation."""
    return next((value for scheme, value in names if scheme == "slug"), None)


async def addresses(tx: Tx, principal: PrincipalId) -> list[tuple[Address, ConversationId]]:
    """Every chat of a principal, and the conversation that goes on there; the newest chats first."""
    rows = await tx.run("addresses_of_principal", principal=principal)
    return [(Address.parse(value), conversation_id) for value, conversation_id in rows]


async def named(tx: Tx, principal: PrincipalId, piece: str) -> list[tuple[ConversationId, str]]:
    """Every title and slug of a principal that may contain a plain piece of text, and what it means."""
    plain = re.sub(r"([\\%_])", r"\\\1", piece)
    rows = await tx.run("names_like", principal=principal, pattern=f"%{plain}%" if plain else "")
    return [(conversation_id, name) for conversation_id, name in rows]


async def rename(tx: Tx, principal: PrincipalId, handle: Handle, title: str) -> Conversation:
    """Change the title people see. No name or id changes."""
    conversation = await find(tx, principal, handle)
    await tx.run("rename_conversation", id=conversation.id, principal=principal, title=title)
    return await find(tx, principal, ById(conversation.id))


async def change_settings(tx: Tx, principal: PrincipalId, handle: Handle, changes: dict[str, Any]) -> Conversation:
    """Change some of what is kept beside the log; the rest stays."""
    conversation = await find(tx, principal, handle, lock=True)
    settings = {**conversation.settings, **changes}
    await tx.run("change_settings", id=conversation.id, settings=json.encode(settings).decode())
    return await find(tx, principal, ById(conversation.id))


async def delete(tx: Tx, principal: PrincipalId, handle: Handle) -> Conversation:
    """Put a conversation into the trash, and free its names at once."""
    conversation = await find(tx, principal, handle, lock=True)
    await tx.run("keep_freed_aliases", conversation=conversation.id)
    await tx.run("free_aliases", conversation=conversation.id)
    await tx.run("delete_conversation", id=conversation.id)
    return conversation


def conversation_of(row: Row) -> Conversation:
    """A row of a conversation; one that was locked ends with the time."""
    values = list(row)
    try:
        values[_SETTINGS] = _settings.decode(values[_SETTINGS])
    except DecodeError as error:
        raise Unreadable.because(f"What conversation {row[0]} is set to cannot be read", error) from error
    return (Conversation if len(values) == _FIELDS else Held)(*values)


def listed(rows: Iterable[Row]) -> list[Conversation]:
    """Conversations for a list, which one that cannot be read does not take down with it."""
    return [_listed(row) for row in rows]


def _listed(row: Row) -> Conversation:
    try:
        return conversation_of(row)
    except Unreadable:
        return conversation_of((*row[:_SETTINGS], "{}", *row[_SETTINGS + 1 :]))


async def newest(
    tx: Tx,
    principal: PrincipalId,
    limit: int,
    after: ConversationId | None = None,
    kind: str | None = None,
    among: Iterable[ConversationId] | None = None,
) -> list[Conversation]:
    """This principal's conversations that hold something, newest first, from the one after `after` on; with `among`, of
    those only."""
    before, before_id = 1e18, ""
    if after is not None:
        last = await one(tx.run("place_in_list", id=after, principal=principal))
        if last is None:
            raise UnknownHandle(f"No conversation {after!r}.", param="conversation")
        before, before_id = last
    place = {"principal": principal, "before": before, "before_id": before_id, "limit": limit}
    if among is not None:
        rows = await tx.run("list_among", among=json.encode(list(among)).decode(), kind=kind, **place)
    elif kind == "chat":
        rows = await tx.run("list_talks", **place)
    elif kind is not None:
        rows = await tx.run("list_kind", kind=kind, **place)
    else:
        rows = await tx.run("list_conversations", **place)
    return listed(rows)


async def meant(tx: Tx, principal: PrincipalId, what: str, limit: int) -> list[Conversation]:
    """What someone may mean: what is called exactly so, or else everything that begins so."""
    rows = await tx.run("conversations_called", principal=principal, what=what, limit=limit)
    if not rows:
        span = {"what": what, "beyond": past_all_beginning(what)}
        rows = await tx.run("conversations_beginning", principal=principal, **span, limit=MANY)
        if len(rows) == MANY:
            rows = await tx.run("newest_beginning", principal=principal, what=what, length=len(what), limit=limit)
    return listed(list({row[0]: row for row in rows}.values())[:limit])


async def described(tx: Tx, conversations: Iterable[Conversation]) -> list[Described]:
    """Conversations as a list shows them."""
    found = []
    for conversation in conversations:
        name = slug_among(await names(tx, conversation.id))
        found.append(Described(conversation, name, await _opening(tx, conversation)))
    return found


async def _opening(tx: Tx, conversation: Conversation) -> str:
    """The first thing said that people still see: in the conversation itself, or else in what it was forked from."""
    first = await one(tx.run("first_message", conversation=conversation.id))
    if first is not None and not first[1]:
        return _text(first[0])
    if first is None and conversation.parent_id is None:
        return ""
    said = await log.first_said(tx, conversation.id, after=conversation.base_seq)
    if said is None and conversation.parent_id is not None:
        said = await log.first_said(tx, conversation.id)
    return _text(said) if said is not None else ""


def _text(message: str) -> str:
    """What a message says; one that cannot be read takes no list down with it."""
    try:
        return _message.decode(message).text
    except DecodeError:
        return ""


async def add_principal(tx: Tx, principal: PrincipalId) -> None:
    await tx.run("add_principal", principal=principal)


def _shown(handle: Handle) -> str:
    match handle:
        case ById(id=conversation_id):
            return repr(conversation_id)
        case Slug(value=value):
            return repr(value)
        case Address(channel=channel):
            return f"at that {channel} address"
        case _:
            return repr(handle.value)
