"""Fingerprints: recognise a history that a stateless client sends again, and never guess.

A fingerprint is a chain of hashes over what was said, message by message. A turn keeps the fingerprint of everything
it was sent and of its answer, as the client will send it next time; the client that comes back with exactly this is
in the same conversation. Instructions do not count: clients put the time of day into them.
"""

import hashlib
from collections.abc import Iterable

from msgspec import json

from legato.domain.entries import AnyBody, Message, Text, ToolCall, ToolResult

START = ""


def extend(chain: str, bodies: Iterable[AnyBody]) -> str:
    """The fingerprint of a history, given that of its beginning."""
    for body in bodies:
        word = _word(body)
        if word is not None:
            chain = hashlib.sha256(chain.encode() + json.encode(word)).hexdigest()
    return chain


def _word(body: AnyBody) -> list[object] | None:
    match body:
        case Message(role="system" | "developer"):
            return None
        case Message(role=role, parts=parts):
            rest = [part for part in parts if not isinstance(part, Text)]
            return ["message", role, body.text.strip(), *rest]
        case ToolCall(call_id=call_id, name=name, arguments=arguments):
            return ["call", call_id, name, arguments]
        case ToolResult(call_id=call_id, output=output):
            return ["result", call_id, output]
        case _:
            return None
