"""Channels over HTTP: where bridges and platforms post what people write, and what an owner does about people and
answers. A message is let in by its signature, not by a key; everything else needs one.
"""

from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import Response

from legato.api.admin import check_admin
from legato.api.door import Api, Call, whole
from legato.api.wire import answer, matching, read_body
from legato.domain.handles import Address, parse_name
from legato.domain.ids import PrincipalId
from legato.errors import BadInput, NotFound

Word = Annotated[str, matching(r"[^\x00-\x1f\x7f]+", least=1, most=100)]


class ConfirmPairing(Struct):
    """The body of `POST /v1/pairings`. Without a principal the person speaks for whoever confirms."""

    code: Word
    principal: Word | None = None


class MoveChat(Struct):
    """The body of `PUT /v1/chats/{account}/{chat}`. A thread (a topic of a group) is a chat of its own."""

    conversation: Annotated[str, Meta(min_length=1, max_length=256)]
    thread: Annotated[str, Meta(max_length=100)] = ""


def hook(api: Api) -> Callable[[Request], Awaitable[Response]]:
    """`POST /channels/{name}`: a message, proven by its signature."""

    async def take(request: Request) -> Response:
        channel = api.exchange.hooked(str(request.path_params["name"]))
        body = await read_body(request, api.max_body)
        return answer(await channel.hook(request.headers, body))

    return take


async def confirm_pairing(call: Call) -> Response:
    """`POST /v1/pairings`: whoever was given this code speaks for a principal from now on."""
    check_admin(call)
    body = await call.body(ConfirmPairing)
    principal = PrincipalId(body.principal) if body.principal is not None else call.caller.principal
    return answer(_person(await call.gateway.pair(body.code, principal)))


async def list_pairings(call: Call) -> Response:
    """`GET /v1/pairings`: who speaks on channels, and for whom."""
    check_admin(call)
    return answer({"object": "list", "data": [_person(person) for person in await call.gateway.paired()]})


async def remove_pairing(call: Call) -> Response:
    """`DELETE /v1/pairings/{channel}/{sender}`: a stranger again."""
    check_admin(call)
    channel, sender = call.path("channel"), call.path("sender")
    if "\0" in channel + sender or not await call.gateway.unpair(channel, sender):
        raise NotFound(f"Nobody known as {sender!r} is paired on {channel!r}.")
    return answer({"object": "pairing.removed", "channel": channel, "sender": sender})


async def list_chats(call: Call) -> Response:
    """`GET /v1/chats`: where the caller has written, and the conversation that goes on there; newest first."""
    rows = await call.gateway.chats(call.caller.principal)
    return answer({"object": "list", "data": [_chat(address, conversation) for address, conversation in rows]})


async def move_chat(call: Call) -> Response:
    """`PUT /v1/chats/{account}/{chat}`: the chat goes on in another conversation."""
    body = await call.body(MoveChat)
    account, chat = call.path("account"), call.path("chat")
    wanted = parse_name(body.conversation)
    address, conversation = await call.gateway.move_chat(call.caller.principal, account, chat, body.thread, wanted)
    return answer(_chat(address, conversation.id))


async def list_undelivered(call: Call) -> Response:
    """`GET /v1/deliveries`: answers that did not arrive, or may not have, newest first."""
    rows = await call.gateway.undelivered(call.caller.principal, call.limit())
    data = [
        {
            "id": row.id,
            "object": "delivery",
            "response": row.turn_id,
            "conversation": row.conversation_id,
            "channel": Address.parse(row.address).channel,
            "chat": Address.parse(row.address).chat,
            "status": row.status,
            "attempts": row.attempts,
            "error": row.error,
            "updated_at": int(row.updated_at),
        }
        for row in rows
    ]
    return answer({"object": "list", "data": data})


async def resend(call: Call) -> Response:
    """`POST /v1/deliveries/{id}/resend`: try it again, because a person says so."""
    number = whole(call.path("id"))
    if number is None:
        raise BadInput("A delivery is known by its number.", param="id")
    await call.gateway.resend(call.caller.principal, number)
    return answer({"id": number, "object": "delivery.resent"})


def _chat(address: Address, conversation: str) -> dict[str, Any]:
    return {
        "object": "chat",
        "channel": address.channel,
        "account": address.account,
        "chat": address.chat,
        "thread": address.thread,
        "conversation": conversation,
    }


def _person(person: Any) -> dict[str, Any]:
    return {
        "object": "pairing",
        "channel": person.channel,
        "account": person.account,
        "sender": person.sender,
        "name": person.name,
        "principal": person.principal,
    }
