"""From a request to a turn, on every route that makes one: the place that it names, and what its answer carries."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Protocol

from legato.api.create_response import ConversationRef
from legato.api.door import SESSION_HEADERS, Call
from legato.domain.handles import ById, External, Slug, parse_name
from legato.domain.ids import TurnId
from legato.domain.turns import After, Fresh, Submission, Target, Turn
from legato.engine.ephemeral import Ephemeral
from legato.errors import BadInput, ConversationBusy, UnknownHandle, UnknownTurn

Name = ById | Slug | External


class PreviousResponseNotFound(UnknownTurn):
    """No previous response by that id."""

    code = "previous_response_not_found"


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
        if sessions:
            raise MutuallyExclusive(
                "A session header and 'previous_response_id' are given. Give one.", param="conversation"
            )
        return after_turn(body.previous_response_id)
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


async def _meant(call: Call, name: Name) -> ById | None:
    with suppress(UnknownHandle):
        return ById((await call.gateway.find(call.caller.principal, name)).id)
    return None


def after_turn(turn_id: str) -> After:
    """Continue after a turn that a client names."""
    if "\0" in turn_id:  # which no database could look up
        message = f"Previous response with id {turn_id!r} not found."
        raise PreviousResponseNotFound(message, param="previous_response_id")
    return After(TurnId(turn_id))


async def submit(call: Call, submission: Submission) -> Turn:
    """Admit, and tell an unknown previous response in the wire's words. What goes wrong from here on still says in
    which conversation."""
    with previous(submission):
        try:
            turn = await call.gateway.submit(submission)
        except ConversationBusy:
            call.place = {"X-Legato-Conversation": await _place_of(call, submission.target)}
            raise
    call.place = headers_of(call, turn, submission)
    return turn


async def _place_of(call: Call, target: Target) -> str:
    """The conversation of something that was found to be busy."""
    if isinstance(target, After):
        return (await call.gateway.turn(call.caller.principal, target.turn_id)).conversation_id
    assert not isinstance(target, Fresh), "what is new is not busy"
    return (await call.gateway.find(call.caller.principal, target)).id


@contextmanager
def previous(submission: Submission) -> Iterator[None]:
    try:
        yield
    except UnknownTurn as error:
        target = submission.target
        named = target.turn_id if isinstance(target, After) else ""
        message = f"Previous response with id '{named}' not found."
        raise PreviousResponseNotFound(message, param="previous_response_id") from error


def headers_of(call: Call, turn: Turn, submission: Submission) -> dict[str, str]:
    """What every answer about a turn carries: right before the first byte, because the id never changes."""
    headers = {"X-Legato-Conversation": turn.conversation_id, **call.session_echo}
    return headers | replayed(turn.id != submission.turn_id)


def replayed(again: bool) -> dict[str, str]:
    """Tells a client that this is the answer to a request it made before."""
    return {"Idempotency-Replayed": "true"} if again else {}


async def unstored(call: Call, submission: Submission) -> tuple[Ephemeral, dict[str, str]]:
    """A turn that leaves nothing behind, and what its answer carries."""
    with previous(submission):
        run = await call.gateway.ephemeral(submission)
    return run, {"X-Legato-Conversation": run.turn.conversation_id, **call.session_echo}
