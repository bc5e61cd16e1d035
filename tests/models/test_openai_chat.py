"""A provider's faults, made by a server that makes them: what passes is tried again, what was said is kept, the rest is
told. The server is a plain socket, so a chunk ends wherever the test says."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from legato.domain.entries import Message, Text
from legato.domain.ids import ConversationId
from legato.domain.turns import Usage
from legato.engine.protocols import CallChunk, CallOpened, Finished, ModelEvent, ModelRequest, TextChunk
from legato.errors import BadInput, ContextTooLarge, LegatoError, ModelUnavailable, RateLimited
from legato.models.fallback import Fallback
from legato.models.openai_chat import TRIES, OpenAIChat

REQUEST = ModelRequest(ConversationId("conv_1"), "", (), (Message("user", (Text("hi"),)),), {})
OK = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"

Answer = list[bytes]


def chunk(**delta: Any) -> bytes:
    return b"data: " + json.dumps({"choices": [{"index": 0, "delta": delta}]}).encode() + b"\n\n"


END = b'data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}\n\n'
USAGE = b'data: {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 2}}\n\n'
DONE = b"data: [DONE]\n\n"
HELLO = [OK, chunk(content="hel"), chunk(content="lo"), END, USAGE, DONE]
SAID: list[ModelEvent] = [TextChunk("hel"), TextChunk("lo"), Finished(Usage(input_tokens=7, output_tokens=2))]


def status(code: int, body: str = "no", **headers: str) -> Answer:
    told = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    head = f"HTTP/1.1 {code} X\r\nContent-Length: {len(body)}\r\nConnection: close\r\n{told}\r\n"
    return [head.encode() + body.encode()]


class Server:
    """Answers each request with the next of its answers, the last one for ever."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.asked = 0
        self.url = ""

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        await reader.readexactly(length)
        self.asked += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        for piece in answer:
            writer.write(piece)
            await writer.drain()
        writer.close()


@asynccontextmanager
async def served(*answers: Answer) -> AsyncIterator[tuple[Server, OpenAIChat]]:
    server = Server(*answers)
    listener = await asyncio.start_server(server.handle, "127.0.0.1", 0)
    server.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/v1"
    model = OpenAIChat(base_url=server.url, model="m", pause=0.001)
    try:
        yield server, model
    finally:
        await model.close()
        listener.close()


async def told(model: Any) -> list[ModelEvent]:
    async with asyncio.timeout(30):
        return [event async for event in model.stream(REQUEST)]


@pytest.mark.parametrize(
    "split",
    [
        lambda data: [data],
        lambda data: [data[i : i + 1] for i in range(len(data))],
        lambda data: [data[i : i + 7] for i in range(0, len(data), 7)],
    ],
    ids=["whole", "byte by byte", "in sevens"],
)
async def test_chunks_may_end_anywhere(split: Callable[[bytes], Answer]) -> None:
    noisy = b": keep-alive\n\n" + chunk(content="hel") + b"\n: again\n\nevent: x\n" + chunk(content="lo") + END + USAGE
    async with served([OK, *split(noisy + DONE)]) as (_, model):
        assert await told(model) == SAID


async def test_lines_may_end_as_on_other_systems() -> None:
    data = b"".join(HELLO[1:]).replace(b"\n", b"\r\n")
    async with served([OK, data]) as (_, model):
        assert await told(model) == SAID


async def test_calls_come_in_pieces_and_side_by_side() -> None:
    def piece(index: int, arguments: str, **more: Any) -> bytes:
        return chunk(tool_calls=[{"index": index, "function": {"arguments": arguments, **more.pop("f", {})}, **more}])

    pieces = [
        piece(0, '{"a"', id="x", f={"name": "one"}),
        piece(1, "{", id="y", f={"name": "two"}),
        piece(0, ": 1}"),
        piece(1, "}"),
    ]
    async with served([OK, *pieces, END, DONE]) as (_, model):
        assert (await told(model))[:-1] == [
            CallOpened("x", "one"),
            CallChunk("x", '{"a"'),
            CallOpened("y", "two"),
            CallChunk("y", "{"),
            CallChunk("x", ": 1}"),
            CallChunk("y", "}"),
        ]


@pytest.mark.parametrize("code", [408, 429, 500, 502, 503, 504, 529])
async def test_what_may_pass_is_tried_again(code: int) -> None:
    async with served(status(code), status(code), HELLO) as (server, model):
        assert await told(model) == SAID
        assert server.asked == 3


async def test_what_does_not_pass_is_told_in_the_end() -> None:
    async with served(status(503, '{"error": {"message": "busy"}}')) as (server, model):
        with pytest.raises(ModelUnavailable, match="503: busy"):
            await told(model)
        assert server.asked == TRIES


async def test_too_many_requests_are_told_as_such() -> None:
    async with served(status(429, '{"error": {"message": "slow down"}}', retry_after="0.01")) as (server, model):
        with pytest.raises(RateLimited, match="slow down") as failure:
            await told(model)
        assert failure.value.retry_after == 0.01
        assert server.asked == TRIES


async def test_the_server_says_how_long_to_wait() -> None:
    async with served(status(429, retry_after="0.3"), HELLO) as (_, model):
        start = time.monotonic()
        assert await told(model) == SAID
        assert time.monotonic() - start >= 0.3


async def test_a_connection_that_breaks_before_the_first_word_is_tried_again() -> None:
    async with served([], [OK], [OK, b": keep-alive\n\n"], HELLO) as (server, model):
        assert await told(model) == SAID
        assert server.asked == 4


async def test_a_server_that_is_not_there_is_told() -> None:
    model = OpenAIChat(base_url="http://127.0.0.1:1/v1", model="m", pause=0.001)
    with pytest.raises(ModelUnavailable, match="failed"):
        await told(model)
    await model.close()


async def heard_until_failure(model: Any) -> tuple[list[ModelEvent], LegatoError]:
    events: list[ModelEvent] = []
    try:
        async for event in model.stream(REQUEST):
            events.append(event)
    except LegatoError as error:
        return events, error
    raise AssertionError("it did not fail")


@pytest.mark.parametrize("end", [b"", b'data: {"error": {"message": "overloaded"}}\n\n', b"data: {nonsense\n\n"])
async def test_what_was_said_before_a_failure_is_kept_and_not_said_again(end: bytes) -> None:
    async with served([OK, chunk(content="hel"), end], HELLO) as (server, model):
        events, error = await heard_until_failure(model)
        assert events == [TextChunk("hel")]
        assert isinstance(error, ModelUnavailable)
        assert error.retryable
        assert server.asked == 1


@pytest.mark.parametrize("code", [400, 404, 422])
async def test_what_the_server_does_not_take_is_not_tried_again(code: int) -> None:
    async with served(status(code, '{"error": {"message": "bad"}}')) as (server, model):
        with pytest.raises(BadInput, match="bad"):
            await told(model)
        assert server.asked == 1


async def test_a_wrong_key_is_not_tried_again() -> None:
    async with served(status(401, '{"error": {"message": "who are you"}}')) as (server, model):
        with pytest.raises(ModelUnavailable, match="who are you"):
            await told(model)
        assert server.asked == 1


@pytest.mark.parametrize(
    "body",
    [
        '{"error": {"message": "too big", "code": "context_length_exceeded"}}',
        '{"error": "This model\'s maximum context length is 4096 tokens"}',
        '{"message": "prompt is too long: 9000 tokens > 8000 maximum"}',
    ],
)
async def test_a_request_that_is_too_long_is_known_as_such(body: str) -> None:
    async with served(status(400, body)) as (_, model):
        with pytest.raises(ContextTooLarge):
            await told(model)


@pytest.mark.parametrize(
    ("body", "window"),
    [
        ('{"id": "m", "context_length": 9000}', 9000),
        ('{"id": "m", "max_model_len": 4096}', 4096),
        ('{"id": "m"}', None),
        ("nonsense", None),
        ("[1]", None),
    ],
)
async def test_a_server_may_tell_how_much_its_model_takes(body: str, window: int | None) -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert b"GET /v1/models/m " in await reader.readuntil(b"\r\n\r\n")
        writer.write(status(200, body)[0])
        await writer.drain()
        writer.close()

    listener = await asyncio.start_server(handle, "127.0.0.1", 0)
    model = OpenAIChat(base_url=f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/v1", model="m")
    assert await model.window(None) == window
    await model.close()
    listener.close()


async def test_the_next_model_is_asked_when_one_does_not_answer() -> None:
    async with served(status(503)) as (first, broken), served(HELLO) as (_, sound):
        assert await told(Fallback(broken, [sound])) == SAID
        assert first.asked == TRIES
        with pytest.raises(ModelUnavailable):
            await told(Fallback(broken, [broken]))
    async with served([OK, chunk(content="hel")]) as (_, broken), served(HELLO) as (spare, sound):
        events, _ = await heard_until_failure(Fallback(broken, [sound]))
        assert events == [TextChunk("hel")]
        assert spare.asked == 0
