"""From a request to a turn, on every route that makes one: the place that it names, and what its answer carries."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Protocol

from msgspec import json

from legato.api import items
from legato.api.create_response import ConversationRef
from legato.api.door import SESSION_HEADERS, Call
from legato.api.wire import TooLarge
from legato.domain.entries import AnyBody, Draft, Entry, Message, Reasoning, ToolCall, ToolResult
from legato.domain.handles import ById, External, Slug, parse_name
from legato.domain.ids import ConversationId, TurnId
from legato.domain.turns import After, Fresh, Submission, Target, Turn
from legato.engine.ephemeral import Ephemeral
from legato.errors import BadInput, ConversationBusy, NotFound, UnknownHandle, UnknownTurn

Name = ById | Slug | External


class PreviousResponseNotFound(UnknownTurn):
    """No previous response by that id."""

    code = "previous_response_not_found"

    @classmethod
    def of(cls, named: After) -> "PreviousResponseNotFound":
        return cls(f"Previous response with id {named.turn_id!r} not found.", param="previous_response_id")


class MutuallyExclusive(BadInput):
    """These parameters cannot be given together."""

    code = "mutually_exclusive_parameters"


class Named(Protocol):
    """A body that may name a conversation."""

    conversation: str | ConversationRef | None
    previous_response_id: str | None


async def target_of(call: Call, body: Named) -> Target:
    """The place that a request names."""
    if body.conversation is not None and body.previous_response_id is not None:
        raise MutuallyExclusive(
            "Give 'conversation' or 'previous_response_id', not both.", param="previous_response_id"
        )
    sessions = call.sessions
    if body.previous_response_id is not None:
        after = after_turn(body.previous_response_id)
        if sessions:
            await _check_same(call, after, *sessions)
        return after
    if isinstance(body.conversation, ConversationRef):
        return await one_of(call, parse_name(body.conversation.id, param="conversation.id"), *sessions)
    if body.conversation is not None:
        return await one_of(call, parse_name(body.conversation), *sessions)
    return await one_of(call, *sessions, param=SESSION_HEADERS[0]) if sessions else Fresh()


async def one_of(call: Call, name: Name, *others: Name, param: str = "conversation") -> Target:
    """The place that several names mean: each must be known to mean the same, as those are that an answer carries."""
    if all(other == name for other in others):
        return name
    meant = {await _meant(call, each) for each in (name, *others)}
    found = meant.pop()
    if meant or found is None:
        raise MutuallyExclusive(
            "More than one conversation is named, in the body or in headers. Give one.", param=param
        )
    return found


async def _check_same(call: Call, after: After, *names: Name) -> None:
    """A header may name the conversation that a previous response is in, or one that it was forked from: clients send
    theirs with every request."""
    try:
        previous = await call.gateway.turn(call.caller.principal, after.turn_id)
    except UnknownTurn as error:
        raise PreviousResponseNotFound.of(after) from error
    meant = {await _meant(call, name) for name in names}
    here = ById(previous.conversation_id)
    lineage: set[ById | None] = {here}
    with suppress(UnknownHandle):
        while not meant <= lineage and (parent := (await call.gateway.find(call.caller.principal, here)).parent_id):
            here = ById(parent)
            lineage.add(here)
    if not meant <= lineage:
        message = f"{SESSION_HEADERS[0]} and 'previous_response_id' name different conversations. Give one."
        raise MutuallyExclusive(message, param="previous_response_id")


async def _meant(call: Call, name: Name) -> ById | None:
    with suppress(UnknownHandle):
        return ById((await call.gateway.find(call.caller.principal, name)).id)
    return None


def after_turn(turn_id: str) -> After:
    """Continue after a turn that a client names."""
    after = After(TurnId(turn_id))
    if "\0" in turn_id:  # which no database could look up
        raise PreviousResponseNotFound.of(after)
    return after


async def parsed(
    call: Call, target: Target, given: str | list[dict[str, Any]], param: str = "input"
) -> tuple[Draft, ...]:
    """What a request says: with what it only refers to in its place, and without what the conversation that it goes on
    in holds already. What was carried out before under its key says nothing any more: what it speaks of may be gone."""
    try:
        return await _parsed(call, target, given, param)
    except NotFound:
        if await call.gateway.admitted(call.caller.principal, call.dedup) is None:
            raise
        return ()


async def _parsed(call: Call, target: Target, given: str | list[dict[str, Any]], param: str) -> tuple[Draft, ...]:
    if isinstance(given, str):
        return items.parse_input(given, param)
    named = [items.referred(item) for item in given if not items.brings_tools(item)]
    told = await _told(call, [each for each in named if each is not None])
    drafts = items.parse_input(given, param, {entry_id: entry.body for entry_id, entry in told.items()})
    calls = any(isinstance(d.body, ToolCall) for d in drafts)
    results = [isinstance(d.body, ToolResult) for d in drafts]
    answers = any(results) and not results[0]  # with something before them
    before = await _turn_before(call, target) if calls or told or answers else None
    if before is None:
        return drafts
    if told:
        view = await call.gateway.context(call.caller.principal, ById(before.conversation_id))
        seen = {e.id for e in view.entries if before.last_seq is None or e.seq <= before.last_seq}
        drafts = tuple(d for d, name in zip(drafts, named, strict=True) if name not in seen)
    said = [entry.body for entry in await call.gateway.output(call.caller.principal, before.id)]
    if calls:
        return _without_said(drafts, said)
    return drafts[await _said_before(call, before, said, [d.body for d in drafts]) :] if answers else drafts


async def _told(call: Call, named: Sequence[str]) -> dict[str, Entry]:
    """What is referred to. A few bytes may stand for much: all of it counts as if it had been sent."""
    wanted = {each for each in named if "\0" not in each}  # which no database could look up
    found = await call.gateway.told_by_id(call.caller.principal, wanted) if wanted else []
    told: dict[str, Entry] = {entry.id: entry for entry in found}
    sizes: dict[str, int] = {entry_id: len(json.encode(entry.body)) for entry_id, entry in told.items()}
    if sum(sizes.get(each, 0) for each in named) > call.api.max_body:
        raise TooLarge(f"What is referred to is larger than {call.api.max_body:,} bytes.")
    return told


def _without_said(drafts: Sequence[Draft], said: Sequence[AnyBody]) -> tuple[Draft, ...]:
    """A client that says the calls of the turn before again, beside their results, says all before them again, and what
    the assistant said among them. The results are what is new."""
    asked = {body.call_id for body in said if isinstance(body, ToolCall)}
    done = {body.call_id for body in said if isinstance(body, ToolResult)}
    again = [n for n, d in enumerate(drafts) if isinstance(d.body, ToolCall) and d.body.call_id in asked]
    if not again:
        return tuple(drafts)
    known = set(again)
    for n, d in enumerate(drafts[: again[-1]]):
        spoken = isinstance(d.body, Reasoning) or (isinstance(d.body, Message) and d.body.role == "assistant")
        if n < again[0] or spoken:
            known.add(n)
    known |= {n for n, d in enumerate(drafts) if isinstance(d.body, ToolResult) and d.body.call_id in done}
    return tuple(d for n, d in enumerate(drafts) if n not in known)


async def _said_before(call: Call, before: Turn, said: Sequence[AnyBody], given: Sequence[AnyBody]) -> int:
    """How much stands before the first answer to a call of the turn before and was said already: all of it where the
    assistant speaks there, and otherwise what begins word for word as what the last turns brought."""
    asked = {body.call_id for body in said if isinstance(body, ToolCall)}
    place = next((n for n, body in enumerate(given) if isinstance(body, ToolResult) and body.call_id in asked), 0)
    if any(isinstance(body, Message) and body.role == "assistant" for body in given[:place]):
        return place
    brought: list[AnyBody] = []
    known, turn = 0, before
    while len(brought) < place:
        brought = [d.body for d in turn.input.drafts] + brought
        if list(given[: len(brought)]) == brought:
            known = len(brought)
        if turn.parent_turn is None:
            break
        try:
            turn = await call.gateway.turn(call.caller.principal, turn.parent_turn)
        except UnknownTurn:  # deleted since
            break
    return known


async def _turn_before(call: Call, target: Target) -> Turn | None:
    """The turn that a request goes on from, if there is one."""
    if isinstance(target, Fresh):
        return None
    if isinstance(target, After):
        try:
            return await call.gateway.turn(call.caller.principal, target.turn_id)
        except UnknownTurn as error:
            raise PreviousResponseNotFound.of(target) from error
    with suppress(UnknownHandle, UnknownTurn):  # there may be none yet, and its last turn may be deleted
        tip = (await call.gateway.find(call.caller.principal, target)).tip_turn
        return await call.gateway.turn(call.caller.principal, tip) if tip is not None else None
    return None


def brought(
    target: Target, given: Sequence[Draft], history: Sequence[Draft] = (), *, session: bool, param: str = "input"
) -> tuple[Draft, ...]:
    """What a turn brings. The history of a session is in the log: only what follows the last thing that the assistant
    said or called is new. Elsewhere a history that is sent beside the input is the beginning of a conversation."""
    if session:
        said = (*history, *given)
        new = said[place_of_news(said) :]
        if said and not new:
            raise BadInput("The last thing may not be from the assistant.", param=param)
        return new
    if history and not isinstance(target, Fresh):
        raise MutuallyExclusive("A history and a conversation cannot both be given.", param="conversation_history")
    return (*history, *given)


def place_of_news(said: Sequence[Draft]) -> int:
    """Where what is new begins: after the last thing the assistant said or called."""
    for place in range(len(said), 0, -1):
        body = said[place - 1].body
        if isinstance(body, ToolCall) or (isinstance(body, Message) and body.role == "assistant"):
            return place
    return 0


async def submit(call: Call, submission: Submission) -> Turn:
    """Admit, and tell an unknown previous response in the wire's words. What goes wrong from here on still says in
    which conversation."""
    with previous(submission):
        try:
            turn = await call.gateway.submit(submission)
        except ConversationBusy as error:
            call.is_about(ConversationId(error.conversation_id))
            raise
    call.is_about(turn.conversation_id, **replayed(turn.id != submission.turn_id))
    return turn


@contextmanager
def previous(submission: Submission) -> Iterator[None]:
    try:
        yield
    except UnknownTurn as error:
        target = submission.target
        raise PreviousResponseNotFound.of(target if isinstance(target, After) else After(TurnId(""))) from error


def replayed(again: bool) -> dict[str, str]:
    """Tells a client that this is the answer to a request it made before."""
    return {"Idempotency-Replayed": "true"} if again else {}


async def unstored(call: Call, submission: Submission) -> Ephemeral:
    """A turn that leaves nothing behind."""
    with previous(submission):
        run = await call.gateway.ephemeral(submission)
    call.is_about(run.turn.conversation_id)
    return run
