"""Slash commands over HTTP, for those who talk: a terminal, a page. What they do is in `engine.commands`."""

from typing import Annotated

from msgspec import Meta, Struct
from starlette.responses import Response

from legato.api.door import Call
from legato.api.submitting import replayed
from legato.api.wire import answer
from legato.domain.handles import parse_name
from legato.engine import commands


class RunCommand(Struct):
    """The body of `POST /v1/commands`: what was typed, and where."""

    text: Annotated[str, Meta(min_length=1, max_length=100_000, pattern=r"^[^\x00]*$")]
    conversation: str | None = None


async def list_commands(call: Call) -> Response:
    """`GET /v1/commands`: what can be said to the gateway itself."""
    known = commands.COMMANDS.values()
    data = [{"name": command.name, "usage": command.usage, "help": command.help} for command in known]
    return answer({"object": "list", "data": data})


async def run(call: Call) -> Response:
    """`POST /v1/commands`: carry a command out. Nothing is sent to a model but what the command itself asks for."""
    body = await call.body(RunCommand)
    principal = call.caller.principal
    again = await call.gateway.repeated(principal, call.dedup)
    here = await call.gateway.find(principal, parse_name(body.conversation)) if body.conversation else None
    reply = await commands.run(commands.Desk(call.gateway, principal, here, call.dedup), body.text)
    goes_on = None
    if reply.conversation is not None:
        [row] = await call.gateway.described([reply.conversation])
        goes_on = {"id": row.conversation.id, "title": row.conversation.title, "name": row.name}
    return answer(
        {
            "object": "command",
            "text": reply.text,
            "conversation": goes_on,
            "fresh": reply.fresh,
            "title": reply.title,
            "turn": reply.turn,
        },
        headers=replayed(again),
    )
