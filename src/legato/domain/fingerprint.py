"""Fingerprints: recognise a history that a stateless client sends again, and never guess.

A fingerprint is a chain of hashes over what was said, message by message. A turn keeps the fingerprint of everything
it was sent and of its answer, as the client will send it next time; the client that comes back with exactly this is
in the same conversation. Instructions do not count: clients put the time of day into them. Nor do the ways of writing
the same: clients read the arguments of a call and write them anew, and some have a blank where another has nothing.
"""

import hashlib
from collections.abc import Iterable

from msgspec import DecodeError, Struct, json

from legato.domain.entries import AnyBody, Message, Text, ToolCall, ToolResult

START = ""


def extend(chain: str, bodies: Iterable[AnyBody]) -> str:
    """The fingerprint of a history, given that of its beginning."""
    for body in bodies:
        word = _word(body)
        if word is not None:
            chain = hashlib.sha256(chain.encode() + json.encode(word)).hexdigest()
    return chain


class Heard(Struct, frozen=True):
    """A turn as a client of Chat Completions has it: one message, however many steps it took to say it."""

    text: str
    refusal: str
    calls: list[ToolCall]


def heard(said: Iterable[AnyBody]) -> Heard:
    """What the client of a turn that said this has heard: all the text, as it came, and the calls it has to answer.
    What a crash cut off and the model began anew is left out."""
    said = list(said)
    messages = [body for body in said if isinstance(body, Message) and body.role == "assistant"]
    kept = [body for body in messages if not body.incomplete or body is messages[-1]]
    return Heard(
        "".join(body.text for body in kept if not body.refusal),
        "".join(body.text for body in kept if body.refusal),
        [body for body in said if isinstance(body, ToolCall) and body.client],
    )


def answered(history: str, said: Iterable[AnyBody]) -> str:
    """The fingerprint of a history and of what a turn said to it, as its client will send them again."""
    told = heard(said)
    message = Message("assistant", (Text(told.text + told.refusal),))
    return extend(history, [*([message] if message.text else []), *told.calls])


def _same(arguments: str) -> str:
    """The one way of writing what was called with; what is no JSON is as it is."""
    try:
        return json.encode(json.decode(arguments), order="sorted").decode()
    except (DecodeError, RecursionError, UnicodeEncodeError):
        return arguments


def _word(body: AnyBody) -> list[object] | None:
    match body:
        case Message(role="system" | "developer"):
            return None
        case Message(role=role, parts=parts):
            rest = [part for part in parts if not isinstance(part, Text)]
            text = body.text.strip()
            return ["message", role, text, *rest] if text or rest or role == "user" else None
        case ToolCall(call_id=call_id, name=name, arguments=arguments):
            return ["call", call_id, name, _same(arguments)]
        case ToolResult(call_id=call_id, output=output):
            return ["result", call_id, output]
        case _:
            return None
