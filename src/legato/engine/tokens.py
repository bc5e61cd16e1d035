"""Token counts without the network: exact for OpenAI's newer models, near enough for others.

The vocabulary takes some tens of megabytes and a moment to load, so nobody loads it before a context is long: a text
has at most as many tokens as bytes, and that is asked first (`at_most`).
"""

from collections.abc import Iterable
from functools import cache
from typing import Any

import msgspec
import splintr

from legato.domain.entries import AnyBody, Item, Message, Reasoning, Text, ToolCall, ToolResult
from legato.domain.shape import made_of
from legato.engine.protocols import ModelRequest

PER_ITEM = 6  # what a provider spends on the frame of a message
PER_IMAGE = 1_100
REMEMBERED = 100_000  # counts
SLICE = 50_000  # characters: what has no blank takes a time that grows with its square, and nothing else runs meanwhile
VOCABULARY = "o200k_base"


@cache
def _tokenizer() -> Any:
    return splintr.Tokenizer.from_pretrained(VOCABULARY)


_counted: dict[tuple[int, int], int] = {}  # by a text's hash and length: nothing of what was said is kept here


def count(text: str) -> int:
    """How many tokens a text has. The same ones are counted for every turn of a long talk, so it is remembered."""
    if not text:
        return 0
    key = hash(text), len(text)
    found = _counted.get(key)
    if found is None:
        if len(_counted) >= REMEMBERED:
            _counted.clear()
        slices = (text[start : start + SLICE] for start in range(0, len(text), SLICE))
        found = _counted[key] = sum(len(_tokenizer().encode_ordinary(part)) for part in slices)
    return found


def of_body(body: AnyBody) -> int:
    """How many tokens a body takes in a request."""
    if type(body) is Message and len(body.parts) == 1 and type(body.parts[0]) is Text:
        return PER_ITEM + count(body.parts[0].text)
    return PER_ITEM + sum(count(text) for text in _texts(body)) + PER_IMAGE * _images(body)


def of_request(request: ModelRequest) -> int:
    """How many tokens a request has."""
    return count(request.instructions) + count(_tools(request)) + made_of(request.items, of_items)


def of_items(items: Iterable[Item]) -> int:
    return sum(map(of_body, items))


def at_most(request: ModelRequest) -> int:
    """A bound for the same that costs next to nothing: bytes."""
    around = _bytes(request.instructions) + _bytes(_tools(request)) + PER_ITEM * len(request.items)
    return around + made_of(request.items, bytes_of)


def bytes_of(items: Iterable[Item]) -> int:
    """How many bytes of text there are in items; an image counts as what it takes at most."""
    total = 0
    for item in items:
        if type(item) is Message:  # most are, so they are looked at first
            for part in item.parts:
                total += _bytes(part.text) if type(part) is Text else PER_IMAGE
        else:
            total += sum(map(_bytes, _texts(item))) + PER_IMAGE * _images(item)
    return total


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def _tools(request: ModelRequest) -> str:
    return msgspec.json.encode(request.tools).decode() if request.tools else ""


def _texts(body: AnyBody) -> tuple[str, ...]:
    match body:
        case Message(text=text) | Reasoning(text=text):
            return (text,)
        case ToolCall(name=name, arguments=arguments):
            return name, arguments
        case ToolResult(output=output):
            return (output,)
        case _:
            return ()


def _images(body: AnyBody) -> int:
    return sum(not isinstance(part, Text) for part in body.parts) if isinstance(body, Message | ToolResult) else 0
