"""What is left of a long talk: things that were planted in it, after many compactions. `make memory` runs it.

Five hundred turns go through a window of 4,000 tokens. Some of what is said is pinned, some was done by a tool, some is
just said. At the end the harness looks at what the model is sent: pins, the latest task and everything that was done
must be there, whoever writes the summaries; how much of the rest is there depends on who does.

By default summaries are written by a stand-in that forgets everything, which is the worst case. With `--home H` the
default agent of that home's configuration answers and summarises, so that a real model can be measured.

It also counts the tokens that were sent, against sending everything each time and against cutting off the oldest.
"""

import argparse
import tempfile
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import uvloop
from msgspec import Struct

from legato import logs
from legato.app import LOCAL, open_app
from legato.config import load
from legato.domain.entries import Compaction, Message, Text, Tool, ToolResult, draft
from legato.domain.handles import Slug
from legato.domain.ids import ConversationId
from legato.domain.turns import Input, Submission, Usage
from legato.engine import tokens
from legato.engine.compaction import INSTRUCTIONS
from legato.engine.protocols import (
    CallChunk,
    CallOpened,
    Finished,
    Invocation,
    Model,
    ModelEvent,
    ModelRequest,
    TextChunk,
    ToolOutput,
)

WINDOW, TURNS = 4_000, 500
TALK = Slug("memory")
FILLER = "We went on to talk of the weather, of bread and of trains that are late, as one does in the evening. " * 2
PINS = [f"Rule {n}: never order from supplier {n}77." for n in range(10)]
ACTIONS = [f"invoice-{n}42" for n in range(15)]
THINGS = ["ladder", "piano", "safe", "map", "boat", "drum", "lamp", "sledge", "tent", "kite"]
FACTS = [f"The {thing} is kept in room {n}31." for n, thing in enumerate(THINGS)]
DECISIONS = [f"We decided to paint wall {n}9 in blue." for n in range(5)]
TASK = "Open task: call the plumber before Friday."


class Report(Struct):
    """What was planted and found, and the tokens it took."""

    kept: dict[str, tuple[int, int]]
    compactions: int
    sent: int
    everything: int
    truncated: int
    largest: int
    look: float


class Recorder:
    """A model that remembers what it was sent."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.requests: list[ModelRequest] = []

    def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        self.requests.append(request)
        return self._model.stream(request)


class Forgetful:
    """Pays when it is told to, nods to the rest, and forgets everything when it is asked for a summary."""

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        last = request.items[-1]
        said = last.text if isinstance(last, Message) else ""
        if request.instructions == INSTRUCTIONS:
            yield TextChunk("They talked for a while.")
        elif said.startswith("Pay "):
            yield CallOpened("c", "pay")
            yield CallChunk("c", f'{{"what": "{said.split()[1]}"}}')
        else:
            yield TextChunk("I see." if not isinstance(last, ToolResult) else "Paid.")
        yield Finished(Usage())


class Payments:
    """A tool with an effect."""

    tools = (Tool("pay", "Pays an invoice.", {"type": "object", "properties": {"what": {"type": "string"}}}),)

    async def call(self, invocation: Invocation) -> ToolOutput:
        return ToolOutput("paid")


async def measure(folder: Path, turns: int = TURNS, home: Path | None = None) -> Report:
    """Have the talk, and look at what the model was sent last."""
    base, _ = load(home or folder, environ=None if home else {})
    models: dict[str, Any] = {name: {"kind": "demo", "context_window": WINDOW} for name in ("memory",)}
    agent = {"model": "memory", "toolsets": ["payments"], "instructions": "Pay invoices with the tool, once each."}
    overrides = {"models": models, "agents": {"memory": agent}, "default_agent": "memory"}
    config, _ = load(folder / "home", overrides, environ={})
    async with open_app(base) if home else _nothing() as real:
        answering: Model = real.roster.cast(None).model if real else Forgetful()
        recorder = Recorder(answering)
        async with open_app(config, models={"memory": recorder}, toolsets={"payments": Payments()}) as app:

            async def say(text: str) -> None:
                given = Input((draft(Message("user", (Text(text),))),))
                turn = await app.gateway.submit(Submission(principal=LOCAL, target=TALK, input=given))
                ended = await app.gateway.ended(turn)
                assert ended.status == "done", ended.failure

            planted = _schedule(turns)
            for n in range(turns):
                await say(planted.get(n, f"Number {n}. {FILLER}"))
                if planted.get(n) in PINS:
                    entries = await app.gateway.transcript(LOCAL, TALK)
                    place = next(e.seq for e in reversed(entries) if getattr(e.body, "text", "") == planted[n])
                    await app.gateway.pin(LOCAL, TALK, place)
            await say("What do you know?")
            transcript = [entry.body for entry in await app.gateway.transcript(LOCAL, TALK)]
    return _report(recorder, transcript)


def _schedule(turns: int) -> dict[int, str]:
    """Which turn plants what: evenly over the first nine tenths, the task at the end of them."""
    things = [*PINS, *(f"Pay {what} now." for what in ACTIONS), *FACTS, *DECISIONS]
    step = turns * 0.9 / len(things)
    return {int(n * step): thing for n, thing in enumerate(things)} | {turns - 3: TASK}


def _report(recorder: Recorder, transcript: list[Any]) -> Report:
    requests = [request for request in recorder.requests if request.instructions != INSTRUCTIONS]
    seen = str(requests[-1].items)
    kinds = {"pins": PINS, "done by tools": ACTIONS, "latest task": [TASK], "facts": FACTS, "decisions": DECISIONS}
    kept = {kind: (sum(text in seen for text in planted), len(planted)) for kind, planted in kinds.items()}
    everything = truncated = so_far = 0
    for body in transcript:
        so_far += tokens.of_body(body)
        if isinstance(body, Message) and body.role == "user":
            everything += so_far
            truncated += min(so_far, WINDOW - WINDOW // 5)
    return Report(
        kept=kept,
        compactions=sum(isinstance(body, Compaction) for body in transcript),
        sent=sum(tokens.of_request(request) for request in recorder.requests),
        everything=everything,
        truncated=truncated,
        largest=max(tokens.of_request(request) for request in recorder.requests),
        look=_look(),
    )


def _look() -> float:
    """Seconds that a turn of 200 entries pays for having the feature: one look at how long its request is."""
    said = Message("user", (Text("Nineteen words of ordinary text, about as long as what people really say here."),))
    request = ModelRequest(ConversationId("conv_1"), "Be brief.", (), (said,) * 200, {})
    start = time.perf_counter()
    for _ in range(100):
        tokens.at_most(request)
    return (time.perf_counter() - start) / 100


class _nothing:
    """No application."""

    async def __aenter__(self) -> None:
        return None

    async def __aexit__(self, *error: object) -> None:
        return None


def main() -> None:
    parser = argparse.ArgumentParser(description="What is left of a long talk after many compactions.")
    parser.add_argument("--home", type=Path, help="use the default agent's model of this home")
    parser.add_argument("--turns", type=int, default=TURNS)
    args = parser.parse_args()
    logs.set_up("error", "console")
    with tempfile.TemporaryDirectory(prefix="legato-memory-") as folder:
        report = uvloop.run(measure(Path(folder), args.turns, args.home))
    print(f"A talk of {args.turns} turns through a window of {WINDOW:,} tokens: {report.compactions} compactions\n")
    for kind, (kept, planted) in report.kept.items():
        must = "  must be all" if kind in ("pins", "done by tools", "latest task") else ""
        print(f"  {kind:15} {kept:3} of {planted:3} are in the last request{must}")
    print(f"\n  a turn that is not compacted pays {report.look * 1e3:.2f} ms for it (200 entries; goal: at most 0.3)")
    print(f"\n  largest request   {report.largest:12,} tokens")
    print(f"  sent in all       {report.sent:12,} tokens")
    print(f"  everything        {report.everything:12,} tokens   {report.sent / report.everything:5.2f} x")
    print(f"  cut off           {report.truncated:12,} tokens   {report.sent / report.truncated:5.2f} x")


if __name__ == "__main__":
    main()
