"""The demo model: answers offline, so that everything can be tried before any provider is configured.

It says what it remembers of the conversation, and obeys a few words (each at the beginning of the last message):
`reply only X`, `call TOOL {json}` (one call a line), `sleep N`, `fail N times`, `write N words`.
"""

import asyncio
import re
from collections import Counter
from collections.abc import AsyncGenerator, Iterator

from legato.domain.entries import Message, ToolCall, ToolResult
from legato.domain.ids import new_call_id
from legato.domain.turns import Usage
from legato.engine.compaction import INSTRUCTIONS
from legato.engine.protocols import CallChunk, CallOpened, Finished, ModelEvent, ModelRequest, TextChunk
from legato.errors import ModelUnavailable

_REPLY_ONLY = re.compile(r"\s*reply only (.+)", re.IGNORECASE | re.DOTALL)
_CALL = re.compile(r"^\s*call ([\w.-]+)\s*(\{.*\})?\s*$", re.IGNORECASE | re.MULTILINE)
_SLEEP = re.compile(r"\s*sleep (\d+(?:\.\d+)?)", re.IGNORECASE)
_FAIL = re.compile(r"\s*fail (\d+) times?", re.IGNORECASE)
_WRITE = re.compile(r"\s*write (\d+) words?", re.IGNORECASE)
MAX_WORDS = 1_000_000
MAX_SLEEP = 3600.0


class Demo:
    """A model that needs no network."""

    def __init__(self) -> None:
        self._failures: Counter[tuple[str, str]] = Counter()

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        if request.instructions == INSTRUCTIONS:
            yield TextChunk(_summary(request))
            yield Finished(Usage(input_tokens=1, output_tokens=1))
            return
        said = [item.text for item in request.items if isinstance(item, Message) and item.role == "user"]
        last = said[-1] if said else ""
        self._fail_if_asked(request, last)
        if match := _SLEEP.match(last):
            await asyncio.sleep(min(float(match[1]), MAX_SLEEP))
        answered = bool(request.items) and isinstance(request.items[-1], ToolResult)
        calls = [] if answered else list(_calls(last))
        for name, arguments in calls:
            call_id = new_call_id()
            yield CallOpened(call_id, name)
            yield CallChunk(call_id, arguments)
        words = 0
        if not calls:
            for word in _answer(request, said, last):
                words += 1
                yield TextChunk(word)
                await asyncio.sleep(0)
        heard = sum(len(text.split()) for text in said)
        yield Finished(Usage(input_tokens=heard, output_tokens=words + len(calls)))

    def _fail_if_asked(self, request: ModelRequest, last: str) -> None:
        if match := _FAIL.match(last):
            key = (request.conversation_id, last)
            if self._failures[key] < int(match[1]):
                self._failures[key] += 1
                raise ModelUnavailable(f"The demo model was asked to fail ({self._failures[key]} of {match[1]}).")


def _summary(request: ModelRequest) -> str:
    """A summary that a machine without understanding can write: where it began, and where it ended."""
    [item] = request.items
    assert isinstance(item, Message)
    lines = [line for line in item.text.splitlines() if line.startswith(("user: ", "assistant: "))]
    return f"Demo summary of {len(lines)} messages." + "".join(f' "{line[:80]}"' for line in (*lines[:1], *lines[-1:]))


def _calls(last: str) -> Iterator[tuple[str, str]]:
    for match in _CALL.finditer(last):
        yield match[1], match[2] or "{}"


def _answer(request: ModelRequest, said: list[str], last: str) -> Iterator[str]:
    """The answer, word by word."""
    if match := _REPLY_ONLY.match(last):
        yield from _words(match[1].strip())
        return
    if match := _WRITE.match(last):
        for n in range(1, min(int(match[1]), MAX_WORDS) + 1):
            yield f"word{n} "
        yield "\n"
    else:
        yield from _words(_prose(request, said, last) + "\n")
    messages = sum(isinstance(item, Message) and item.role in ("user", "assistant") for item in request.items)
    yield from _words(f'seen: {messages} messages, first "{said[0] if said else ""}", last "{last}"')


def _prose(request: ModelRequest, said: list[str], last: str) -> str:
    results = _results_of_last_step(request)
    if results:
        text = "\n".join(f"{name} said: {output}" for name, output in results)
    elif len(said) < 2:
        text = "I have nothing to remember yet."
    else:
        text = f'I remember: you first said "{said[0]}", and before this one you said "{said[-2]}".'
    first = not any(isinstance(item, Message) and item.role == "assistant" for item in request.items)
    return ("This is Legato's built-in demo model; no provider is configured. " if first else "") + text


def _results_of_last_step(request: ModelRequest) -> list[tuple[str, str]]:
    names = {item.call_id: item.name for item in request.items if isinstance(item, ToolCall)}
    results: list[tuple[str, str]] = []
    for item in reversed(request.items):
        if not isinstance(item, ToolResult):
            break
        results.insert(0, (names.get(item.call_id, "?"), item.output))
    return results


def _words(text: str) -> Iterator[str]:
    return (match[0] for match in re.finditer(r"\s*\S+\s*?(?=\s|\Z)|\s+", text))
