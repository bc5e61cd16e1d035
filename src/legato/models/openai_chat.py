"""Any server that speaks OpenAI's Chat Completions, streamed.

Thin on purpose: this is the hot path of every token. Chunks are msgspec structs, the HTTP client does no more than is
needed, and the stream is read as lines, wherever the reads of the network end. What a server adds that nobody asked
for (comments, keep-alives, unknown fields) is passed over; what it says is wrong becomes an error that says so.
"""

import asyncio
import random
import re
from collections.abc import AsyncGenerator, Iterable, Iterator
from typing import Any
from urllib.parse import quote

import msgspec
from msgspec import Struct

from legato.domain.attachments import is_inline
from legato.domain.entries import File, Image, Item, Message, Part, Reasoning, Text, Tool, ToolCall, ToolResult
from legato.domain.ids import new_call_id
from legato.domain.shape import made_of
from legato.domain.turns import Usage
from legato.engine import windows
from legato.engine.protocols import (
    PASSED_ON,
    CallChunk,
    CallOpened,
    Finished,
    ModelEvent,
    ModelRequest,
    ReasoningChunk,
    RefusalChunk,
    TextChunk,
)
from legato.errors import BadInput, ContextTooLarge, Invalid, LegatoError, ModelUnavailable, RateLimited
from legato.logs import logger
from legato.outgoing import Server

WINDOW_WITHIN = 10.0
MAX_LINE = 16 * 1024 * 1024
TRIES = 4
LONGEST_WAIT = 30.0  # seconds between two tries
ATTACHED = {"type": "text", "text": "[Attached to the results of the tool calls]"}
IDLE = {"tool_choice": ("auto", "none"), "parallel_tool_calls": (True, False)}
"""What says nothing where there is no tool, and what servers refuse there."""
SILENCE = b'{"role":"user","content":""},'
"""What was said where nobody has said a word: servers refuse a request without a message."""


class _Function(Struct):
    name: str | None = None
    arguments: str | None = None


class _Call(Struct):
    index: int = 0
    id: str | None = None
    function: _Function | None = None


class _Delta(Struct):
    content: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[_Call] | None = None


class _Choice(Struct):
    delta: _Delta | None = None
    finish_reason: str | None = None


class _PromptDetails(Struct):
    cached_tokens: int | None = None


class _CompletionDetails(Struct):
    reasoning_tokens: int | None = None


class _Usage(Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None
    completion_tokens_details: _CompletionDetails | None = None


class _Chunk(Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None


_chunk = msgspec.json.Decoder(_Chunk)

_WINDOW_FIELDS = ("context_window", "context_length", "max_model_len", "max_context_length", "max_input_tokens")
_TOO_LONG = re.compile(
    r"context.?(length|window|size)|maximum context|prompt is too long|too many tokens", re.IGNORECASE
)


class OpenAIChat:
    """A model behind a Chat Completions server."""

    def __init__(self, *, base_url: str, model: str, api_key: str = "", pause: float = 0.5) -> None:
        self._pause = pause
        self._model = model
        headers = {"Content-Type": "application/json", "Accept": "text/event-stream"}
        if api_key:
            headers["Authorization"] = f"Bearer {api_key}"
        self._server = Server(base_url, headers)

    async def close(self) -> None:
        self._server.close()

    async def window(self, name: str | None) -> int | None:
        """How many tokens the model takes, where the server tells it, or its name does."""
        wanted = name or self._model
        try:
            async with asyncio.timeout(WINDOW_WITHIN), self._server.ask("GET", f"/models/{quote(wanted)}") as answer:
                told = msgspec.json.decode(await answer.text(65_536)) if answer.status == 200 else {}
        except (OSError, msgspec.DecodeError):
            told = {}
        found = [told.get(field) for field in _WINDOW_FIELDS] if isinstance(told, dict) else []
        return next((n for n in found if isinstance(n, int) and n > 0), None) or windows.known(wanted)

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """Ask, and tell what comes back as it comes. A server that fails before it has said anything is asked again."""
        body = chat_request(request.model or self._model, request)
        for attempt in range(TRIES):
            begun = False
            try:
                async with self._server.ask("POST", "/chat/completions", body) as answer:
                    if answer.status != 200:
                        raise _refused(answer.status, await answer.text(4096), answer.retry_after)
                    reader = _Reader()
                    async for data in answer:
                        for event in reader.read(data):
                            begun = True
                            yield event
                        if reader.failure is not None:
                            raise reader.failure
                    for event in reader.end():
                        yield event
                return
            except (OSError, _Retryable) as failure:
                error = (
                    failure if isinstance(failure, _Retryable) else _Retryable(f"The model's server failed: {failure}.")
                )
                if begun or attempt == TRIES - 1:
                    raise error from failure
                asked = error.retry_after
                wait = min(asked, LONGEST_WAIT) if asked is not None else self._pause_after(attempt)
                logger.info("the model is asked again", error=error.message, wait=wait)
                await asyncio.sleep(wait)

    def _pause_after(self, attempt: int) -> float:
        return random.uniform(0.5, 1.5) * self._pause * 2.0**attempt


# -- what is sent


def chat_request(model: str, request: ModelRequest) -> bytes:
    """The request in the server's words. The same request gives the same bytes."""
    messages = memoryview(made_of(request.items, _messages) or SILENCE)[:-1]  # they may be long: copied once, below
    system = b""
    if request.instructions:
        system = msgspec.json.encode({"role": "system", "content": request.instructions}) + b","
    body: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
    if request.tools:
        body["tools"] = [_tool(tool) for tool in request.tools]
    for name in PASSED_ON:
        value = request.params.get(name)
        if value is not None and (request.tools or value not in IDLE.get(name, ())):
            body[name] = value
    if (limit := request.params.get("max_output_tokens")) is not None:
        body["max_completion_tokens"] = limit
    begin, rest = msgspec.json.encode({"model": model})[:-1], msgspec.json.encode(body)[1:]
    return b"".join((begin, b',"messages":[', system, messages, b"],", rest))


def _messages(items: Iterable[Item]) -> bytes:
    """The items as chat messages, each with a comma after it."""
    messages = msgspec.json.encode(_chat(items))
    return messages[1:-1] + b"," if len(messages) > 2 else b""


def _chat(items: Iterable[Item]) -> list[dict[str, Any]]:
    """A step's text and calls are one message, its results follow. These are text to a server; what is attached to them
    is shown after the last."""
    messages: list[dict[str, Any]] = []
    said: dict[str, Any] | None = None  # the assistant's message of the step under way
    attached: list[dict[str, Any]] = []
    for item in items:
        if isinstance(item, ToolResult):
            attached += [_part(part) for part in item.attached]
        elif attached:
            messages.append({"role": "user", "content": [ATTACHED, *attached]})
            attached = []
        if isinstance(item, ToolCall):
            if said is None:
                said = {"role": "assistant", "content": None}
                messages.append(said)
            said.setdefault("tool_calls", []).append(_call(item))
            continue
        said = None
        if isinstance(item, Message) and item.role == "assistant":
            said = {"role": "assistant", "content": item.text}
            messages.append(said)
        elif not isinstance(item, Reasoning):
            messages.append(_message(item))
    if attached:
        messages.append({"role": "user", "content": [ATTACHED, *attached]})
    return messages


def _message(item: Item) -> dict[str, Any]:
    if isinstance(item, ToolResult):
        return {"role": "tool", "tool_call_id": item.call_id, "content": item.output}
    assert isinstance(item, Message)
    if len(item.parts) == 1 and type(item.parts[0]) is Text:
        return {"role": item.role, "content": item.parts[0].text}
    if all(isinstance(part, Text) for part in item.parts):
        return {"role": item.role, "content": "\n".join(part.text for part in item.parts if isinstance(part, Text))}
    return {"role": item.role, "content": [_part(part) for part in item.parts]}


def _part(part: Part) -> dict[str, Any]:
    if isinstance(part, Text):
        return {"type": "text", "text": part.text}
    if isinstance(part, Image) and part.url is not None:
        image = {"url": part.url} | ({"detail": part.detail} if part.detail is not None else {})
        return {"type": "image_url", "image_url": image}
    if isinstance(part, File) and is_inline(part.url):
        return {"type": "file", "file": {"filename": part.name or "file", "file_data": part.url}}
    return {"type": "text", "text": f"[{_named(part)}, which cannot be shown here]"}


def _named(part: Part) -> str:
    """An attachment in words."""
    name = getattr(part, "name", None)
    where = getattr(part, "url", None)
    return " ".join(["an attachment", *([f"named {name}"] if name else []), *([f"at {where}"] if where else [])])


def _call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _tool(tool: Tool) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    if tool.strict is not None:
        function["strict"] = tool.strict
    return {"type": "function", "function": function}


# -- what comes back


class _Reader:
    """Turns what the network brings into model events: lines of server-sent events, wherever its reads end."""

    def __init__(self) -> None:
        self.failure: LegatoError | None = None
        """What is wrong with what came after the last events."""
        self._rest = b""
        self._calls: dict[int, str] = {}
        self._usage = Usage()
        self._reason: str | None = None
        self._done = False

    def read(self, data: bytes) -> list[ModelEvent]:
        """The events of some more bytes."""
        events: list[ModelEvent] = []
        *lines, self._rest = (self._rest + data).split(b"\n")
        try:
            for line in lines:
                if line.startswith(b"data:"):
                    self._take(line[5:].strip(), events)
            if len(self._rest) > MAX_LINE:
                raise ModelUnavailable("The model's server sent a line without an end.")
        except LegatoError as error:
            self.failure = error
        return events

    def end(self) -> Iterator[ModelEvent]:
        """What is left, and the end; a stream that stops without one was cut off."""
        yield from self.read(b"\n")
        if self.failure is not None:
            raise self.failure
        if self._reason is None and not self._done:
            raise _Retryable("The model's server closed the stream in mid answer.")
        yield Finished(self._usage, truncated=self._reason == "length", filtered=self._reason == "content_filter")

    def _take(self, data: bytes, events: list[ModelEvent]) -> None:
        if not data:
            return
        if data == b"[DONE]":
            self._done = True
            return
        try:
            chunk = _chunk.decode(data)
        except msgspec.DecodeError as error:
            raise ModelUnavailable(f"The model's server sent something that is not a chunk: {error}.") from error
        if chunk.error is not None:
            told = _told(chunk.error)
            kind = ContextTooLarge if _TOO_LONG.search(told + str(chunk.error)[:2000]) else ModelUnavailable
            raise kind(f"The model's server failed in mid answer: {told}")
        if chunk.usage is not None:
            self._usage = _counted(chunk.usage)
        for choice in chunk.choices or ():
            if choice.finish_reason is not None:
                self._reason = choice.finish_reason
            if choice.delta is not None:
                self._hear(choice.delta, events)

    def _hear(self, delta: _Delta, events: list[ModelEvent]) -> None:
        if thought := delta.reasoning_content or delta.reasoning:
            events.append(ReasoningChunk(thought))
        if delta.content:
            events.append(TextChunk(delta.content))
        if delta.refusal:
            events.append(RefusalChunk(delta.refusal))
        for call in delta.tool_calls or ():
            function = call.function or _Function()
            if call.index not in self._calls:
                self._calls[call.index] = call.id or new_call_id()
                events.append(CallOpened(self._calls[call.index], function.name or ""))
            if function.arguments:
                events.append(CallChunk(self._calls[call.index], function.arguments))


def _counted(usage: _Usage) -> Usage:
    cached = usage.prompt_tokens_details.cached_tokens if usage.prompt_tokens_details else 0
    thought = usage.completion_tokens_details.reasoning_tokens if usage.completion_tokens_details else 0
    return Usage(
        input_tokens=usage.prompt_tokens or 0,
        output_tokens=usage.completion_tokens or 0,
        cached_tokens=cached or 0,
        reasoning_tokens=thought or 0,
    )


class _Retryable(ModelUnavailable):
    """A failure that may pass."""


class _Limited(RateLimited, _Retryable):
    """There were too many requests."""


_ADVICE = {
    401: " (check the model's api_key)",
    403: " (check the model's api_key)",
    404: " (check the model's base_url and name)",
}


def _refused(status: int, body: bytes, wait: float | None) -> ModelUnavailable | Invalid:
    try:
        told = _told(msgspec.json.decode(body))
    except msgspec.DecodeError:
        told = body[:200].decode(errors="replace")
    message = f"The model's server answered {status}: {' '.join(told.split())}{_ADVICE.get(status, '')}"
    if status in (400, 413, 422) and _TOO_LONG.search(told + str(body[:2000])):
        return ContextTooLarge(message)
    if status in (400, 404, 413, 422):
        return BadInput(message)
    if status not in (408, 425, 429) and status < 500:
        return ModelUnavailable(message)
    error = _Limited(message) if status == 429 else _Retryable(message)
    error.retry_after = wait
    return error


def _told(error: Any) -> str:
    """The sentence in an error body of whatever shape."""
    while isinstance(error, dict):
        error = error.get("error") or error.get("message") or str(error)
    return str(error)[:500]
