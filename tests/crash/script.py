"""The scripted model and its tools.

The model knows only what it is shown: it makes every call of the plan that is not in its context yet, so it goes on
wherever a crash left the turn. It says the next piece once the last was heard, so each piece is a commit of its own
and the commit points of a scenario are the same in every run.
"""

import asyncio
import json
import os
import re
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

from msgspec import Struct

from legato.domain.entries import Message, Tool, ToolCall
from legato.domain.ids import new_call_id
from legato.domain.turns import Usage
from legato.engine.compaction import INSTRUCTIONS
from legato.engine.protocols import (
    CallChunk,
    CallOpened,
    Finished,
    Invocation,
    ModelEvent,
    ModelRequest,
    TextChunk,
    ToolOutput,
)

LOOKING = "Let me look. "
LONG = " and so on" * 430
DONE_BEFORE = re.compile(r'"key": "([\w-]+)"')
ONCE, AGAIN = "note", "look"
"""The tool that must not run twice, and the one that may."""


class Step(Struct, frozen=True):
    """What the model says, and the calls it makes, as (tool, key)."""

    says: tuple[str, ...] = ()
    calls: tuple[tuple[str, str], ...] = ()


PLANS: dict[str, dict[str, tuple[Step, ...]]] = {
    "talk": {
        "one": (
            Step((LOOKING, "At two things. "), ((ONCE, "one-a"), (AGAIN, "one-b"))),
            Step(calls=((ONCE, "one-c"),)),
        ),
        "two": (Step(("And now ", "this. "), ((AGAIN, "two-a"), (ONCE, "two-b"))),),
    },
    "twenty": {"twenty": tuple(Step((f"Step {n}. ",), ((ONCE, f"step-{n}"),)) for n in range(1, 21))},
    "fold": {"fold": tuple(Step(calls=((ONCE, f"fold-{n}"),)) for n in range(1, 5))},
    "plain": {},
}
"""For each script, the steps that an input asks for. After them comes the answer."""

INPUTS = {"talk": ("one", "two", "three"), "twenty": ("twenty",), "fold": ("fold",), "plain": ("plain",)}
"""What the client of each script says."""


def planned(script: str) -> list[tuple[str, str]]:
    """Every (tool, key) that a script calls."""
    return [call for steps in PLANS[script].values() for step in steps for call in step.calls]


class Facts:
    """What has happened in this life, so that others can wait for it."""

    def __init__(self) -> None:
        self._events: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)

    def add(self, fact: str) -> None:
        self._events[fact].set()

    async def wait(self, *facts: str) -> None:
        for fact in facts:
            await self._events[fact].wait()


class Scripted:
    """A model that follows a plan. What it says carries the number of its life. `on_step` hears of each step before
    it begins."""

    def __init__(self, script: str, life: int, facts: Facts, on_step: Callable[[Step], None]) -> None:
        self._script, self._life, self._facts, self._on_step = script, life, facts, on_step

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        if request.instructions == INSTRUCTIONS:
            yield TextChunk("Things were noted.")
            yield Finished(Usage(input_tokens=1, output_tokens=1))
            return
        step = self._next(request)
        self._on_step(step)
        for text in step.says:
            said = f"{text}({self._life}) "
            yield TextChunk(said)
            await self._facts.wait(f"heard {said}")
            if text == LOOKING:  # the other inputs come while this turn runs
                await self._facts.wait(*(f"admitted {text}" for text in INPUTS[self._script]))
        for place, (name, key) in enumerate(step.calls):
            call_id, arguments = new_call_id(), json.dumps({"key": key, "life": self._life})
            yield CallOpened(call_id, name)
            yield CallChunk(call_id, arguments)
            if place == 0:  # the calls after it are told when the step ends
                await self._facts.wait(f"heard {arguments}")
        yield Finished(Usage(input_tokens=1, output_tokens=1))

    def _next(self, request: ModelRequest) -> Step:
        """The first step whose calls are not all in the context, else the answer."""
        said = [item.text for item in request.items if isinstance(item, Message) and item.role == "user"]
        made = {json.loads(item.arguments)["key"] for item in request.items if isinstance(item, ToolCall)}
        for item in request.items:  # what was done before a summary is told in it
            if isinstance(item, Message) and item.role == "system":
                made |= set(DONE_BEFORE.findall(item.text))
        for text in said:
            for step in PLANS[self._script].get(text, ()):
                if not {key for _, key in step.calls} <= made:
                    return step
        return Step(("The answer ", f"to {said[-1]}."))


class Hands:
    """Tools whose effect is a line in a file outside the store."""

    tools = (
        Tool(name=ONCE, description="Note something.", repeatable=False),
        Tool(name=AGAIN, description="Look something up.", repeatable=True),
    )

    def __init__(self, effects: Path) -> None:
        self._effects = effects

    async def call(self, invocation: Invocation) -> ToolOutput:
        note(self._effects, {"call_id": invocation.call_id, "name": invocation.name, **invocation.arguments})
        padding = LONG if invocation.arguments["key"].startswith("fold-") else ""
        return ToolOutput(f"{invocation.name} {invocation.arguments['key']}: done{padding}")


def note(path: Path, line: Any) -> None:
    """Keep a line outside the store, on the disk, before anything else happens."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(file, json.dumps(line).encode() + b"\n")
    os.fsync(file)
    os.close(file)


def noted(path: Path) -> list[Any]:
    """The lines that were kept."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
