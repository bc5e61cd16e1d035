"""Chat Completions: the older form, on the same turns.

Where a session header or the body names a conversation the history comes from the log, and only what follows the last
assistant message of the body is new. Otherwise the body is the whole history; the turn is kept all the same, and a
client that sends a history again is recognised by its fingerprint.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing
from functools import partial
from typing import Any

from starlette.responses import Response

from legato.api import items
from legato.api.create_chat import (
    ChatFile,
    ChatImage,
    ChatMessage,
    ChatRefusal,
    ChatText,
    Choices,
    CreateChat,
    FunctionSpec,
)
from legato.api.door import Call
from legato.api.sse import EventStream
from legato.api.submitting import place_of_news, submit, target_of, unstored
from legato.api.wire import DONE, MissingParameter, answer, data_line, failed, turn_failed
from legato.domain import fingerprint
from legato.domain.entries import (
    AnyBody,
    Draft,
    Entry,
    File,
    Image,
    Message,
    Part,
    Reasoning,
    Text,
    Tool,
    ToolCall,
    draft,
)
from legato.domain.events import AnyEvent, Closed, Delta, Opened
from legato.domain.turns import After, CutBy, Fresh, Input, Options, Submission, Target, Told, Turn, Usage, cut_by
from legato.engine.ephemeral import Ephemeral
from legato.engine.gateway import End, Gateway
from legato.engine.protocols import PASSED_ON
from legato.errors import BadInput

Ended = Callable[[bool], Awaitable[tuple[Turn, CutBy | None]]]
"""How a turn has ended that was told as whole, or not."""


async def create(call: Call) -> Response:
    """`POST /v1/chat/completions`: the same for clients that send their history, or name a conversation."""
    body = await call.body(CreateChat)
    await _check_choices(call, body)
    submission = await _submission(call, body)
    usage = body.stream_options is not None and bool(body.stream_options.include_usage)
    if body.store is False:
        run = await unstored(call, submission)
        if body.stream:
            said = ([event] async for event in run.events())
            return EventStream(_chunks(run.turn, said, partial(_over, run), usage))
        return _answered(await run.told())
    turn = await submit(call, submission)
    if not call.sessions:  # a client that goes on by sending it back is in this very conversation
        call.place["X-Hermes-Session-Id"] = turn.conversation_id
    if body.stream:
        return EventStream(_followed(call.gateway, turn, usage, again=turn.id != submission.turn_id))
    return _answered(await call.gateway.answered(turn))


def _answered(told: Told) -> Response:
    if told.turn.failure is not None:
        raise turn_failed(told.turn.failure)
    return answer(_completion(told.turn, told.entries))


# -- what is brought


async def _check_choices(call: Call, body: CreateChat) -> None:
    if isinstance(body.tool_choice, dict) or body.response_format is not None:
        await call.body(Choices)


async def _submission(call: Call, body: CreateChat) -> Submission:
    if body.functions:
        raise BadInput("'functions' are sent as 'tools' now.", param="functions")
    instructions, drafts = _history(body.messages)
    target, new, history = await _target(call, body, drafts)
    if not new:
        raise BadInput("The last message may not be from the assistant.", param="messages")
    cast = call.api.roster.cast(body.model)
    params = {name: value for name in PASSED_ON if (value := getattr(body, name)) is not None}
    limit = body.max_completion_tokens or body.max_tokens
    if limit is not None:
        params["max_output_tokens"] = limit
    options = Options(
        agent=body.model,
        instructions=instructions,
        tools=tuple(_tool(tool.function) for tool in body.tools or ()),
        params=params,
        echo={"model": cast.name} | ({"metadata": body.metadata} if body.metadata else {}),
        history=history,
    )
    return Submission(
        principal=call.caller.principal,
        target=target,
        input=Input(tuple(new), options),
        busy=call.busy,
        dedup_key=call.dedup_key,
        request_hash=call.request_hash,
        retry=call.is_retry,
    )


def _tool(given: FunctionSpec) -> Tool:
    return Tool(given.name, given.description or "", given.parameters or {}, strict=given.strict)


async def _target(call: Call, body: CreateChat, drafts: list[Draft]) -> tuple[Target, list[Draft], str | None]:
    """Where the turn goes, what it brings, and the fingerprint of everything that was sent. A client that names no
    conversation is in the one whose history it sends again, word for word; otherwise in a new one. So it is where the
    assistant has the last word: the model goes on from there."""
    place = place_of_news(drafts)
    target = await target_of(call, body)
    if not isinstance(target, Fresh):
        return target, drafts[place:], None
    past = fingerprint.extend(fingerprint.START, [d.body for d in drafts[:place]])
    history = fingerprint.extend(past, [d.body for d in drafts[place:]])
    turn_id = await call.gateway.recall(call.caller.principal, past) if 0 < place < len(drafts) else None
    if turn_id is not None:
        return After(turn_id), drafts[place:], history
    return Fresh(), drafts, history


def _history(messages: list[ChatMessage]) -> tuple[str | None, list[Draft]]:
    """The instructions at the head of the history, and what was said. Where there are only instructions, the last of
    them is what is to be answered."""
    head = 0
    while head < len(messages) - 1 and messages[head].role in ("system", "developer"):
        head += 1
    bodies: list[AnyBody] = []
    for place, message in enumerate(messages[head:], head):
        bodies += _bodies(message, f"messages[{place}]")
    instructions = "\n\n".join(_text(m, f"messages[{i}]") for i, m in enumerate(messages[:head]))
    return (instructions if head else None), [draft(body) for body in bodies]


def _bodies(message: ChatMessage, param: str) -> Iterator[AnyBody]:
    if message.role in ("tool", "function"):
        if message.tool_call_id is None:
            raise BadInput("A tool message needs a 'tool_call_id'.", param=f"{param}.tool_call_id")
        yield items.result(message.tool_call_id, _parts(message.content, f"{param}.content"), between="")
        return
    if message.content is None and message.role != "assistant":
        raise MissingParameter.named(f"{param}.content")
    parts = _parts(message.content, f"{param}.content")
    if message.refusal:
        parts += (Text(message.refusal, refusal=True),)
    if parts or message.role != "assistant":
        role = message.role
        assert role not in ("tool", "function")
        yield Message(role, parts, sender=message.name)  # type: ignore[arg-type]  # the two others are dealt with above
    for call in message.tool_calls or ():
        yield ToolCall(call.id, call.function.name, call.function.arguments, client=True)


def _parts(content: str | list[dict[str, Any]] | None, param: str) -> tuple[Part, ...]:
    if content is None:
        return ()
    if isinstance(content, str):
        return (Text(content),) if content else ()
    return tuple(_part(part, f"{param}[{place}]") for place, part in enumerate(content))


def _part(part: dict[str, Any], param: str) -> Part:
    match part.get("type"):
        case "text":
            return Text(items.take(part, ChatText, param).text)
        case "refusal":
            return Text(items.take(part, ChatRefusal, param).refusal, refusal=True)
        case "image_url":
            image = items.take(part, ChatImage, param).image_url
            return Image(url=items.address(image.url, f"{param}.image_url.url"), detail=image.detail)
        case "file":
            file = items.take(part, ChatFile, param).file
            return File(url=items.address(file.file_data, f"{param}.file.file_data", inline=True), name=file.filename)
        case kind:
            raise BadInput(f"Content of type {kind!r} is not supported.", param=f"{param}.type")


def _text(message: ChatMessage, param: str) -> str:
    parts = _parts(message.content, f"{param}.content")
    return "".join(part.text for part in parts if isinstance(part, Text))


# -- what is told


def _completion(turn: Turn, entries: list[Entry]) -> dict[str, Any]:
    said = _said(turn, entries)
    heard = fingerprint.heard(said)
    thoughts = "".join(body.text for body in said if isinstance(body, Reasoning))
    message: dict[str, Any] = {
        "role": "assistant",
        "content": heard.text or None,
        "refusal": heard.refusal or None,
        "annotations": [],
    }
    if heard.calls:
        message["tool_calls"] = [_call(call) for call in heard.calls]
    if thoughts:
        message["reasoning_content"] = thoughts
    finish = _finish_reason(turn, cut_by(said), called=bool(heard.calls))
    return {
        **_head(turn, "chat.completion"),
        "choices": [{"index": 0, "message": message, "finish_reason": finish, "logprobs": None}],
        "usage": _usage(turn.usage or Usage()),
        "legato": _legato(turn),
    }


def _said(turn: Turn, entries: list[Entry]) -> list[AnyBody]:
    """What a turn has added to what it was given."""
    brought = {d.id for d in turn.input.drafts}
    return [entry.body for entry in entries if entry.id not in brought]


async def _chunks(
    turn: Turn, happening: AsyncGenerator[list[AnyEvent], None], ended: Ended, include_usage: bool
) -> AsyncGenerator[bytes, None]:
    """The answer as it comes. The last chunk repeats whose conversation it is."""
    head = _head(turn, "chat.completion.chunk") | ({"usage": None} if include_usage else {})

    def chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}
        return data_line({**head, "choices": [choice], **more})

    yield chunk({"role": "assistant", "content": ""})
    told = _Told()
    async with aclosing(happening):
        async for events in happening:
            yield b"".join(chunk(delta) for event in events if (delta := told.take(event)) is not None)
    turn, cut = await ended(told.whole)
    finish: str | None = _finish_reason(turn, cut, called=told.called)
    if turn.failure is not None:
        finish = None  # nothing was finished, also for a client that does not read errors
        message = f"{turn.failure.message} ({turn.failure.code})"
        _, kind = failed(turn.failure.code)
        error = {"message": message, "type": kind, "param": None, "code": turn.failure.code}
        yield data_line({"error": error})
    yield chunk({}, finish, legato=_legato(turn))
    if include_usage:
        yield data_line({**head, "choices": [], "usage": _usage(turn.usage or Usage()), "legato": _legato(turn)})
    yield DONE


async def _followed(gateway: Gateway, turn: Turn, include_usage: bool, *, again: bool) -> AsyncGenerator[bytes, None]:
    """The answer of a turn that was admitted, now or before."""
    with gateway.attending(turn) as end:
        happening = gateway.hear(turn) if again else (events async for _, events in gateway.follow_on(turn))
        async with aclosing(_chunks(turn, happening, partial(_ended, gateway, turn, end), include_usage)) as chunks:
            async for chunk in chunks:
                yield chunk


async def _ended(gateway: Gateway, turn: Turn, end: End, whole: bool) -> tuple[Turn, CutBy | None]:
    """How a turn has ended. Why an answer is not whole is asked only where it is not."""
    if whole:
        return await gateway.ended(turn, end), None
    outcome = await gateway.answered(turn, end)
    return outcome.turn, cut_by(_said(outcome.turn, outcome.entries))


async def _over(run: Ephemeral, _: bool) -> tuple[Turn, CutBy | None]:
    """The same for one that is not kept."""
    return run.turn, cut_by(_said(run.turn, run.entries))


class _Told:
    """Which items a client of this API is told of: prose, and calls that it has to answer."""

    def __init__(self) -> None:
        self._fields: dict[int, str] = {}
        self.calls: dict[int, int] = {}
        self.called = False  # there is a call for the client to answer
        self.whole = False  # the last item was told to its end

    def take(self, event: AnyEvent) -> dict[str, Any] | None:
        match event:
            case Opened(index=index, kind="tool_call", client=True, call_id=call_id, name=name):
                self.calls[index] = place = len(self.calls)
                function = {"name": name, "arguments": ""}
                return {"tool_calls": [{"index": place, "id": call_id, "type": "function", "function": function}]}
            case Opened(index=index, kind="message"):
                self._fields[index] = "refusal" if event.refusal else "content"
            case Opened(index=index, kind="reasoning"):
                self._fields[index] = "reasoning_content"
            case Delta(index=index, text=text) if index in self.calls:
                return {"tool_calls": [{"index": self.calls[index], "function": {"arguments": text}}]}
            case Delta(index=index, text=text) if index in self._fields:
                return {self._fields[index]: text}
            case Closed(index=index, incomplete=incomplete):
                self.whole = not incomplete
                self.called = self.called or (self.whole and index in self.calls)
            case _:
                pass
        return None


def _head(turn: Turn, kind: str) -> dict[str, Any]:
    return {
        "id": "chatcmpl-" + turn.id.removeprefix("resp_"),
        "object": kind,
        "created": int(turn.created_at),
        "model": turn.input.options.echo.get("model", "default"),
        "service_tier": "default",
        "system_fingerprint": None,
    }


def _legato(turn: Turn) -> dict[str, str]:
    return {"conversation": turn.conversation_id, "turn": turn.id}


def _finish_reason(turn: Turn, cut: CutBy | None, *, called: bool) -> str:
    if turn.status == "cancelled":  # of the words that chats have for an end, the one for an answer that is not whole
        return "length"
    if cut is not None and turn.status == "done":
        return {"max_output_tokens": "length", "content_filter": "content_filter"}[cut]
    return "tool_calls" if called else "stop"


def _call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens, "audio_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": usage.reasoning_tokens,
            "audio_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }
