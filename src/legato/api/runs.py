"""Runs, for clients of the older world: a run is a turn that one starts and then watches."""

import time
from collections.abc import AsyncGenerator, Iterator
from typing import Annotated, Any

from msgspec import Meta, Struct
from starlette.responses import Response

from legato.api import items, responses
from legato.api.create_response import ConversationRef, ModelName
from legato.api.door import Call
from legato.api.sse import EventStream
from legato.api.submitting import MutuallyExclusive, brought, one_of, submit, target_of
from legato.api.wire import answer, data_line
from legato.domain.events import Answered, AnyEvent, Closed, Delta, Opened
from legato.domain.handles import External, parse_external
from legato.domain.ids import TurnId
from legato.domain.turns import Fresh, Input, Options, Submission, Target, Turn, Usage
from legato.errors import Conflict, UnknownTurn

STATUS = {"queued": "queued", "running": "running", "done": "completed", "failed": "failed", "cancelled": "cancelled"}


class CreateRun(Struct):
    """The body of `POST /v1/runs`."""

    input: str | list[items.GivenItem]
    session_id: Annotated[str, Meta(min_length=1, max_length=255)] | None = None
    conversation: str | ConversationRef | None = None
    previous_response_id: str | None = None
    conversation_history: list[items.GivenItem] | None = None
    instructions: str | None = None
    model: ModelName | None = None


class UnknownRun(UnknownTurn):
    """No run by that id."""

    code = "run_not_found"


class NoApproval(Conflict):
    """No approval is pending for this run."""

    code = "approval_not_pending"


async def create(call: Call) -> Response:
    """`POST /v1/runs`: begin a turn that nobody waits for."""
    body = await call.body(CreateRun)
    target = await _target(call, body)
    given = items.parse_input(body.input)
    history = items.parse_input(body.conversation_history or [], "conversation_history")
    session = body.session_id is not None or bool(call.sessions)
    submission = Submission(
        principal=call.caller.principal,
        target=target,
        input=Input(
            brought(target, given, history, session=session),
            Options(
                agent=body.model,
                instructions=body.instructions,
                echo={"model": call.api.roster.cast(body.model).name, **_session(call, body)},
            ),
        ),
        busy=call.busy,
        dedup_key=call.dedup_key,
        request_hash=call.request_hash,
        retry=call.is_retry,
        conversation_kind="run" if isinstance(target, Fresh) else "chat",
    )
    turn = await submit(call, submission)
    started = {"run_id": turn.id, "status": "started", "session_id": _session_id(turn)}
    return answer(started, 202)


async def retrieve(call: Call) -> Response:
    """`GET /v1/runs/{id}`: how far it is, and its answer."""
    turn_id, turn = await find(call)
    return answer(await _shown(call, turn_id, turn))


async def events(call: Call) -> Response:
    """`GET /v1/runs/{id}/events`: what happens in it, as it happens."""
    turn_id, turn = await find(call)
    return EventStream(told(call, turn_id, turn))


async def stop(call: Call) -> Response:
    """`POST /v1/runs/{id}/stop`: stop it; what was written stays."""
    turn_id, turn = await find(call)
    turn = await call.gateway.stop(call.caller.principal, turn.id)
    return answer({"run_id": turn_id, "status": _status(turn)})


async def approval(call: Call) -> Response:
    """`POST /v1/runs/{id}/approval`: no tool of this version asks for one."""
    await find(call)
    raise NoApproval()


async def find(call: Call) -> tuple[TurnId, Turn]:
    """The run that the path names."""
    try:
        return await responses.find(call)
    except UnknownTurn as error:
        raise UnknownRun(f"Run with id '{call.path('id')}' not found.", param="run_id") from error


async def told(call: Call, turn_id: TurnId, turn: Turn) -> AsyncGenerator[bytes, None]:
    """What happens in a run, as it happens."""
    telling = _Telling(turn_id)
    with call.gateway.attending(turn) as end:
        async for events in call.gateway.hear(turn):
            yield b"".join(data_line(line) for event in events for line in telling.take(event))
        ended = await call.gateway.ended(turn, end)
    shown = await _shown(call, turn_id, ended)
    yield data_line(
        telling.line(f"run.{shown['status']}", output=shown["output"], usage=shown["usage"], error=shown["error"])
    )


class _Telling:
    """Translates the events of one turn."""

    def __init__(self, turn_id: TurnId) -> None:
        self._turn_id = turn_id
        self._opened: dict[int, Opened] = {}
        self._names: dict[str, str] = {}

    def take(self, event: AnyEvent) -> Iterator[dict[str, Any]]:
        match event:
            case Opened(index=index):
                self._opened[index] = event
                self._names[event.call_id] = event.name
            case Delta(index=index, text=text):
                kinds = {"message": "message.delta", "reasoning": "reasoning.delta"}
                if kind := kinds.get(self._opened[index].kind):
                    yield self.line(kind, delta=text)
            case Closed(index=index) if self._opened[index].kind == "tool_call":
                opened = self._opened[index]
                yield self.line("tool.started", tool=opened.name, call_id=opened.call_id)
            case Answered(call_id=call_id, is_error=is_error):
                yield self.line("tool.completed", tool=self._names.get(call_id, ""), call_id=call_id, error=is_error)
            case _:
                pass

    def line(self, kind: str, **fields: Any) -> dict[str, Any]:
        return {"event": kind, "run_id": self._turn_id, "timestamp": time.time(), **fields}


async def _target(call: Call, body: CreateRun) -> Target:
    if body.session_id is None:
        return await target_of(call, body)
    named = parse_external(body.session_id, param="session_id")
    if body.conversation is not None or body.previous_response_id is not None:
        raise MutuallyExclusive("More than one conversation is named. Give one.", param="session_id")
    return await one_of(call, named, *call.sessions, param="session_id")


def _session(call: Call, body: CreateRun) -> dict[str, str]:
    """The session id as the client knows it, where it has one of its own."""
    own = [name.value for name in call.sessions if isinstance(name, External)]
    known_as = body.session_id or (own[0] if own else None)
    return {"session_id": known_as} if known_as is not None else {}


def _session_id(turn: Turn) -> str:
    session_id: str = turn.input.options.echo.get("session_id", turn.conversation_id)
    return session_id


def _status(turn: Turn) -> str:
    return STATUS[turn.status] if turn.ended or turn.cancel_at is None else "stopping"


def _last_event(turn: Turn) -> str | None:
    """The last change of its state, once there was one."""
    status = _status(turn)
    return f"run.{status}" if turn.ended or status == "stopping" else None


async def _shown(call: Call, turn_id: TurnId, turn: Turn) -> dict[str, Any]:
    usage = turn.usage or Usage()
    return {
        "object": "hermes.run",
        "run_id": turn_id,
        "status": _status(turn),
        "session_id": _session_id(turn),
        "model": turn.input.options.echo.get("model", "default"),
        "created_at": turn.created_at,
        "updated_at": turn.ended_at or turn.cancel_at or turn.claimed_at or turn.created_at,
        "last_event": _last_event(turn),
        "output": await call.gateway.answer(turn) if turn.ended else None,
        "error": turn.failure.message if turn.failure else None,
        "usage": {
            "input_tokens": usage.input_tokens,
            "output_tokens": usage.output_tokens,
            "total_tokens": usage.input_tokens + usage.output_tokens,
        },
    }
