"""Admission: how an input becomes a turn, once, at its place.

Everything is decided in one transaction, under the row lock of the conversation:
- an input is admitted once, and is durable before anyone hears of it;
- `after` a turn at the tip continues the conversation, elsewhere it forks, and never both;
- what can start starts at once: to admit and to claim it is one step.
"""

from contextlib import suppress
from typing import Any

from msgspec import Struct, json, structs

from legato.domain.conversations import Conversation
from legato.domain.handles import ById
from legato.domain.ids import ConversationId, NodeId, PrincipalId, TurnId
from legato.domain.turns import Admission, After, Dedup, Fresh, Input, Lease, Submission, Turn
from legato.errors import BadInput, ConversationBusy, DedupMismatch, UnknownTurn
from legato.store import blobs, directory, log, turns
from legato.store.database import Tx, one

RETRY_WITHIN = 60.0  # seconds after the last answer in which a retry without a key still means it


async def admit(tx: Tx, submission: Submission, node: NodeId | None = None) -> Admission:
    """Admit a turn: once per dedup key, at its place in the conversation. With a `node`, what can start starts."""
    seen = await _same_submission(tx, submission)
    if seen is not None:
        return Admission(seen, fresh=False)
    talk = submission.kind == "talk"
    if talk and not submission.input.drafts:
        raise BadInput("A turn needs an input.", param="input")
    place = await _place(tx, submission)
    starter = node if talk else None
    waits = (starter is not None or submission.busy == "reject") and await turns.any_open(tx, place.conversation.id)
    if submission.busy == "reject" and waits:
        raise ConversationBusy(conversation_id=place.conversation.id)
    if submission.blobs:
        await blobs.put(tx, submission.principal, submission.blobs)
    given = _with_hides(with_choices(submission.input, place.conversation), place.hides)
    if starter is not None and not waits:
        started = await _start(tx, submission, place, given, starter)
        return Admission(started.turn, fresh=True, lease=started)
    turn = _admitted(submission, place, given)
    tip = turn.id if talk else None
    await tx.run("draw_turn", id=turn.conversation_id, n=turn.n, tip=tip, now=turn.created_at)
    await tx.run("add_turn", **_columns(turn))
    stopped: tuple[TurnId, ...] = ()
    if submission.busy == "interrupt":
        stopped = tuple(t for (t,) in await tx.run("request_interrupt", conversation=turn.conversation_id))
    if node is None:
        return Admission(turn, fresh=True, stopped=stopped)
    lease = await turns.claim_held(tx, turn.conversation_id, place.conversation.head_seq, node)
    if lease is None or lease.turn.id != turn.id:  # upkeep is done by now; another turn is ahead
        turn = await turns.get(tx, turn.id)
    else:
        turn = lease.turn
    return Admission(turn, fresh=True, lease=lease, stopped=stopped)


def _admitted(submission: Submission, place: "_Place", given: Input, **claimed: Any) -> Turn:
    """The turn that a submission becomes at its place: the next number, and the database's time."""
    return Turn(
        id=submission.turn_id,
        conversation_id=place.conversation.id,
        n=place.conversation.last_n + 1,
        parent_turn=place.parent if submission.kind == "talk" else None,
        principal=submission.principal,
        dedup_key=submission.dedup_key,
        request_hash=submission.request_hash,
        kind=submission.kind,
        busy=submission.busy,
        input=given,
        created_at=place.now,
        **claimed,
    )


def _columns(turn: Turn) -> dict[str, object]:
    """What of a turn is known when it is admitted."""
    return {
        "id": turn.id,
        "conversation": turn.conversation_id,
        "n": turn.n,
        "parent_turn": turn.parent_turn,
        "principal": turn.principal,
        "dedup_key": turn.dedup_key,
        "request_hash": turn.request_hash,
        "kind": turn.kind,
        "busy": turn.busy,
        "input": json.encode(turn.input).decode(),
        "created_at": turn.created_at,
    }


class _Place(Struct, frozen=True):
    """Where a submission goes: a conversation that is locked, or was made in this transaction. `hides` are the failed
    tries that it goes around."""

    conversation: Conversation
    parent: TurnId | None
    hides: tuple[tuple[int, int], ...] = ()

    @property
    def now(self) -> float:
        """The time, by the database's clock."""
        held = self.conversation
        return held.now if isinstance(held, directory.Held) else held.created_at


async def _place(tx: Tx, submission: Submission) -> _Place:
    principal, target = submission.principal, submission.target
    agent = submission.input.options.agent or ""
    if isinstance(target, After):
        return await _place_after(tx, principal, target.turn_id)
    if submission.retry and (again := await _place_again(tx, submission)) is not None:
        return again
    kind, request = submission.conversation_kind, _request(submission)
    if isinstance(target, Fresh):
        return _Place(await directory.create(tx, principal, agent=agent, kind=kind, request=request), None)
    conversation = await directory.lock_or_create(tx, principal, target, agent=agent, kind=kind, request=request)
    return _Place(conversation, conversation.tip_turn)


async def _place_again(tx: Tx, submission: Submission) -> _Place | None:
    """Where a client's own retry of what failed goes: in the place of the try that failed, which it hides; unless the
    name means another conversation by now."""
    principal, target = submission.principal, submission.target
    row = await one(tx.run("find_failed_try", **_retry_of(submission)))
    if row is None:
        return None
    failed = turns.turn_of(row)
    here = ById(failed.conversation_id) if isinstance(target, After | Fresh) else target
    conversation = await directory.lookup(tx, principal, here, lock=True)
    if conversation is None or (conversation.id, conversation.tip_turn) != (failed.conversation_id, failed.id):
        return None
    if await tx.run("turns_to_come", conversation=conversation.id, turn=failed.id, n=0):  # it had gone before the queue
        return None
    parent = failed.parent_turn
    base = await turns.end_of(tx, parent) if parent is not None else conversation.base_seq
    return _Place(conversation, parent, await _later_tries(tx, conversation.id, parent, base))


async def _later_tries(
    tx: Tx, conversation_id: ConversationId, turn_id: TurnId | None, after: int
) -> tuple[tuple[int, int], ...]:
    """The spans of the tries that failed after a turn. Those in a row are one, however many: each new try hides all
    before it, and a client may try for days."""
    spans: list[tuple[int, int]] = []
    for first, last in await tx.run("later_tries", conversation=conversation_id, turn=turn_id or "", after=after):
        if spans and spans[-1][1] == first - 1:
            spans[-1] = spans[-1][0], last
        else:
            spans.append((first, last))
    return tuple(spans)


async def _place_after(tx: Tx, principal: PrincipalId, turn_id: TurnId) -> _Place:
    """Continue or fork, decided under the row lock. A conversation continues after a turn when nothing but failed (or
    cancelled) tries came after it in the log, and nothing waits to come after it."""
    named = await turns.find(tx, principal, turn_id)
    conversation = await directory.lookup(tx, principal, ById(named.conversation_id), lock=True)
    if conversation is None:
        raise UnknownTurn(f"No turn {turn_id!r}.")
    previous = await turns.standing(tx, named.id)
    waiting = await tx.run("turns_to_come", conversation=conversation.id, turn=previous.id, n=_queued_at(previous))
    if not previous.ended and not waiting:
        return _Place(conversation, previous.id)
    base = await turns.end_of(tx, previous.id)
    later = {"conversation": conversation.id, "turn": previous.id, "after": base}
    if not waiting and not await tx.run("later_success", **later):
        return _Place(conversation, previous.id, await _later_tries(tx, conversation.id, previous.id, base))
    return _Place(await directory.fork(tx, principal, conversation, base), previous.id)


def _queued_at(turn: Turn) -> int:
    """What waits behind a turn: behind one in the queue, what was admitted later; behind any other, everything."""
    return turn.n if turn.status == "queued" and turn.busy != "interrupt" else 0


async def _same_submission(tx: Tx, submission: Submission) -> Turn | None:
    if submission.dedup_key is not None:
        return await _by_key(tx, submission.principal, submission.dedup_key, submission.request_hash)
    return await _retried(tx, submission) if submission.retry else None


async def repeated(tx: Tx, principal: PrincipalId, dedup: Dedup) -> Turn | None:
    """The turn that was admitted under a key, for the same request."""
    return await _by_key(tx, principal, dedup.key, dedup.request_hash)


async def _by_key(tx: Tx, principal: PrincipalId, key: str, request_hash: str | None) -> Turn | None:
    row = await one(tx.run("find_turn_by_dedup", principal=principal, dedup_key=key))
    if row is None:
        return None
    turn = turns.turn_of(row)
    if turn.request_hash != request_hash:
        raise DedupMismatch()
    return turn


async def _retried(tx: Tx, submission: Submission) -> Turn | None:
    """What a client's own retry, which carries no key, means: the same request while it is alive, or just answered."""
    if submission.request_hash is None:
        return None
    with suppress(UnknownTurn):  # the first may still be on its way in: it is waited for, and then seen
        await _hold(tx, submission)
    row = await one(tx.run("find_turn_by_request", **_retry_of(submission)))
    turn = turns.turn_of(row) if row else None
    if turn is None or turn.first_seq is None:
        return turn
    said = turn.first_seq + (len(turn.input.hides) if turn.joined_turn is None else 0)
    return turn if await log.shows(tx, turn.conversation_id, said) else None  # taken back since: it is said anew


async def _hold(tx: Tx, submission: Submission) -> None:
    """Hold the conversation that a submission names until the transaction ends; where there is none, whatever makes
    one for the same request."""
    principal, target = submission.principal, submission.target
    if isinstance(target, After):
        target = ById((await turns.find(tx, principal, target.turn_id)).conversation_id)
    if isinstance(target, Fresh) or await directory.lookup(tx, principal, target, lock=True) is None:
        await tx.run("await_request", request=_request(submission))


def _request(submission: Submission) -> str | None:
    """What a client's own retry, which carries no key, is told by."""
    if submission.dedup_key is not None or submission.request_hash is None:
        return None
    return f"{submission.principal} {submission.request_hash}"


def _retry_of(submission: Submission) -> dict[str, object]:
    return {"principal": submission.principal, "request_hash": submission.request_hash, "age": RETRY_WITHIN}


def with_choices(given: Input, conversation: Conversation) -> Input:
    """Answered by whom the conversation has been told to be, where the request names nobody; and under its
    instructions, where the request brings none."""
    options = given.options
    if options.agent is None and conversation.chosen:
        options = options.answered_by(conversation.chosen)
    if options.instructions is None and conversation.instructions is not None:
        options = structs.replace(options, instructions=conversation.instructions)
    return given if options is given.options else structs.replace(given, options=options)


def _with_hides(given: Input, hides: tuple[tuple[int, int], ...]) -> Input:
    return structs.replace(given, hides=hides) if hides else given


async def _start(tx: Tx, submission: Submission, place: _Place, given: Input, node: NodeId) -> Lease:
    """Admit and claim in one: under the row lock, in a conversation where nothing runs or waits."""
    drafts = turns.brought(given)
    first, now, fence = place.conversation.head_seq + 1, place.now, place.conversation.fence + 1
    head = first + len(drafts) - 1
    claimed = {"status": "running", "owner": node, "attempts": 1, "first_seq": first, "claimed_at": now}
    turn = _admitted(submission, place, given, **claimed)
    here = {"id": turn.conversation_id, "n": turn.n, "tip": turn.id, "head": head, "fence": fence, "now": now}
    await tx.run("start_turn_here", **here)
    await tx.run("start_turn", node=node, first_seq=first, **_columns(turn))
    await log.place(tx, turn.conversation_id, turn.id, drafts, head)
    return Lease(turn, fence, begun=False)
