"""A model and a toolset that do what a test says, chunk by chunk, so that interleavings are exact.

Both implement `engine.protocols`; nothing of Legato is replaced. The model also holds the engine to its word: every
request it ever gets is well-formed.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from typing import Any

from engine.waiting import within
from legato.domain.entries import Message, Tool, ToolResult
from legato.domain.turns import Usage
from legato.engine.protocols import (
    CallChunk,
    CallOpened,
    Finished,
    Invocation,
    ModelEvent,
    ModelRequest,
    ReasoningChunk,
    TextChunk,
    ToolOutput,
)
from well_formed import problems

Reply = Callable[[ModelRequest], Iterable[ModelEvent | Exception]]

USAGE = Usage(input_tokens=10, output_tokens=3)


def words(*texts: str, usage: Usage = USAGE) -> list[ModelEvent]:
    """An answer in these chunks."""
    return [*(TextChunk(text) for text in texts), Finished(usage)]


def calls(*called: tuple[str, str, str], usage: Usage = USAGE) -> list[ModelEvent]:
    """Tool calls: (call id, name, arguments) each."""
    told: list[ModelEvent] = []
    for call_id, name, arguments in called:
        told += [CallOpened(call_id, name), CallChunk(call_id, arguments)]
    return [*told, Finished(usage)]


def echo(request: ModelRequest) -> list[ModelEvent]:
    """Answers what was said last, in two chunks."""
    return words("you said: ", last_said(request))


def last_said(request: ModelRequest) -> str:
    return [item.text for item in request.items if isinstance(item, Message) and item.role == "user"][-1]


def one_call_each(request: ModelRequest) -> list[ModelEvent]:
    """Calls the tool `work` once a turn, then echoes."""
    if isinstance(request.items[-1], ToolResult) or _answered_last(request):
        return echo(request)
    return calls((f"call_{len(request.items)}", "work", "{}"))


def _answered_last(request: ModelRequest) -> bool:
    """Whether a result comes after the last thing the assistant said."""
    for item in reversed(request.items):
        if isinstance(item, ToolResult):
            return True
        if isinstance(item, Message) and item.role == "assistant":
            return False
    return False


def in_turn(*answers: Iterable[ModelEvent | Exception]) -> Reply:
    """These answers, one a call; then echoes."""
    left = list(answers)
    return lambda request: left.pop(0) if left else echo(request)


class Asked:
    """One call of the model, answered by the test."""

    def __init__(self, request: ModelRequest) -> None:
        self.request = request
        self.left = asyncio.Event()  # the engine has no more interest in the answer
        self._chunks: asyncio.Queue[ModelEvent | Exception] = asyncio.Queue()

    def say(self, *texts: str) -> None:
        for text in texts:
            self._chunks.put_nowait(TextChunk(text))

    def think(self, text: str) -> None:
        self._chunks.put_nowait(ReasoningChunk(text))

    def call(self, name: str, arguments: str = "{}", call_id: str = "call_1") -> None:
        self._chunks.put_nowait(CallOpened(call_id, name))
        self._chunks.put_nowait(CallChunk(call_id, arguments))

    def fail(self, error: Exception) -> None:
        self._chunks.put_nowait(error)

    def finish(self, *texts: str, usage: Usage = USAGE, truncated: bool = False) -> None:
        self.say(*texts)
        self._chunks.put_nowait(Finished(usage, truncated))

    async def chunk(self) -> ModelEvent | Exception:
        return await self._chunks.get()


class Scripted:
    """A model. With a `reply` it answers by itself; without, each call waits for the test (see `asked`)."""

    def __init__(self, reply: Reply | None = None) -> None:
        self.reply = reply
        self.requests: list[ModelRequest] = []
        self._waiting: asyncio.Queue[Asked] = asyncio.Queue()

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        assert problems(request.items) == []
        self.requests.append(request)
        if self.reply is not None:
            for event in self.reply(request):
                await asyncio.sleep(0)  # as the network would: others get their turn between two chunks
                if isinstance(event, Exception):
                    raise event
                yield event
            return
        asked = Asked(request)
        self._waiting.put_nowait(asked)
        try:
            while True:
                event = await asked.chunk()
                if isinstance(event, Exception):
                    raise event
                yield event
                if isinstance(event, Finished):
                    return
        finally:
            asked.left.set()

    async def asked(self) -> Asked:
        """The next call that waits for its answer."""
        return await within(self._waiting.get())


Act = Callable[[Invocation], Awaitable[str | ToolOutput]]


class Tools:
    """A toolset of async functions by name."""

    def __init__(self, *, repeatable: bool = False, **acts: Act) -> None:
        self._acts = acts
        self._repeatable = repeatable
        self.invoked: list[Invocation] = []

    @property
    def tools(self) -> tuple[Tool, ...]:
        return tuple(Tool(name, repeatable=self._repeatable) for name in self._acts)

    async def call(self, invocation: Invocation) -> ToolOutput:
        self.invoked.append(invocation)
        output = await self._acts[invocation.name](invocation)
        return ToolOutput(output) if isinstance(output, str) else output


class Gate:
    """A tool that waits: `entered` is set when it runs, and it goes on when the test opens it."""

    def __init__(self, output: str = "done") -> None:
        self.entered, self.opened = asyncio.Event(), asyncio.Event()
        self._output = output

    async def __call__(self, _: Invocation) -> str:
        self.entered.set()
        await self.opened.wait()
        return self._output


def constant(output: Any) -> Act:
    """A tool that always gives the same, or raises it."""

    async def act(_: Invocation) -> str | ToolOutput:
        await asyncio.sleep(0)
        if isinstance(output, Exception):
            raise output
        return output  # type: ignore[no-any-return]

    return act
