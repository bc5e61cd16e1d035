"""Turns: admission, lease, progress, end.

Everything that is decided about a conversation's future is decided in one transaction under its row lock:
- an input is admitted once, and is durable before anyone hears of it;
- `after` a turn at the tip continues the conversation, elsewhere it forks, and never both;
- one turn of a conversation runs at a time, and each new holder raises the fence, which every write names;
- an end is one transaction: the last entries, the status, and the answers owed.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from msgspec import DecodeError, Struct, json, structs

from legato.domain.conversations import Conversation
from legato.domain.entries import Draft, Entry, Hide, View, draft, span_of
from legato.domain.events import AnyEvent, Joined, retell
from legato.domain.handles import ById
from legato.domain.ids import ConversationId, NodeId, PrincipalId, TurnId
from legato.domain.turns import (
    Admission,
    After,
    Dedup,
    Failure,
    Fresh,
    Input,
    Lease,
    Outcome,
    Submission,
    Target,
    Told,
    Turn,
    Usage,
)
from legato.errors import BadInput, ConversationBusy, DedupMismatch, LeaseLost, UnfinishedTurn, UnknownTurn, Unreadable
from legato.store import batches, blobs, directory, log, outbox
from legato.store.database import Row, Tx, one

RETRY_WITHIN = 60.0  # seconds after the last answer in which a retry without a key still means it

_input = json.Decoder(Input)
_usage = json.Decoder(Usage)
_failure = json.Decoder(Failure)
_events = json.Decoder(list[AnyEvent])


# -- admission


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
    waits = (starter is not None or submission.busy == "reject") and await _any_open(tx, place.conversation.id)
    if submission.busy == "reject" and waits:
        raise ConversationBusy()
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
    lease = await _claim(tx, turn.conversation_id, place.conversation.head_seq, node) if node is not None else None
    if node is not None and (lease is None or lease.turn.id != turn.id):  # upkeep is done by now; another turn is ahead
        turn = await get(tx, turn.id)
    elif lease is not None:
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
    if isinstance(target, Fresh):
        kind, request = submission.conversation_kind, _request(submission)
        return _Place(await directory.create(tx, principal, agent=agent, kind=kind, request=request), None)
    conversation = await directory.lock_or_create(tx, principal, target, agent=agent, kind=submission.conversation_kind)
    return _Place(conversation, conversation.tip_turn)


async def _place_again(tx: Tx, submission: Submission) -> _Place | None:
    """Where a client's own retry of what failed goes: in the place of the try that failed, which it hides."""
    row = await one(tx.run("find_failed_try", **_retry_of(submission)))
    if row is None:
        return None
    failed = _turn(row)
    conversation = await directory.lookup(tx, submission.principal, ById(failed.conversation_id), lock=True)
    if conversation is None or conversation.tip_turn != failed.id:
        return None
    if await tx.run("turns_to_come", conversation=conversation.id, turn=failed.id, n=0):  # it had gone before the queue
        return None
    parent = failed.parent_turn
    base = await end_of(tx, parent) if parent is not None else conversation.base_seq
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
    named = await find(tx, principal, turn_id)
    conversation = await directory.lookup(tx, principal, ById(named.conversation_id), lock=True)
    if conversation is None:
        raise UnknownTurn(f"No turn {turn_id!r}.")
    previous = await _host(tx, await get(tx, named.id))
    waiting = await tx.run("turns_to_come", conversation=conversation.id, turn=previous.id, n=_queued_at(previous))
    if not previous.ended and not waiting:
        return _Place(conversation, previous.id)
    base = await end_of(tx, previous.id)
    later = {"conversation": conversation.id, "turn": previous.id, "after": base}
    if not waiting and not await tx.run("later_success", **later):
        return _Place(conversation, previous.id, await _later_tries(tx, conversation.id, previous.id, base))
    return _Place(await directory.fork(tx, principal, conversation, base), previous.id)


def _queued_at(turn: Turn) -> int:
    """What waits behind a turn: behind one in the queue, what was admitted later; behind any other, everything."""
    return turn.n if turn.status == "queued" and turn.busy != "interrupt" else 0


async def end_of(tx: Tx, turn_id: TurnId) -> int:
    """The position right after which a turn's continuation begins, known once it has ended."""
    before: TurnId | None = turn_id
    while before is not None:
        turn = await _host(tx, await get(tx, before))
        if not turn.ended:
            raise UnfinishedTurn(f"Turn {turn.id} has not finished, and the conversation has gone on.")
        if turn.last_seq is not None:
            return turn.last_seq
        before = turn.parent_turn  # it ended before it wrote anything
    [[_, base, _]] = await tx.run("own_stretch", id=turn.conversation_id)
    return int(base)


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
    turn = _turn(row)
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
    return _turn(row) if row else None


async def _hold(tx: Tx, submission: Submission) -> None:
    """Hold the conversation that a submission names, if there is one, until the transaction ends; where it names none,
    whatever makes one for the same request."""
    principal, target = submission.principal, submission.target
    if isinstance(target, After):
        target = ById((await find(tx, principal, target.turn_id)).conversation_id)
    if isinstance(target, Fresh):
        await tx.run("await_request", request=_request(submission))
    else:
        await directory.lookup(tx, principal, target, lock=True)


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


# -- lease


async def claim(tx: Tx, conversation_id: ConversationId, node: NodeId, lost: TurnId | None = None) -> Lease | None:
    """Take the conversation's next turn. Upkeep in its way is done on the spot; a talk turn's input is appended,
    and the caller runs it. `lost` is a turn that the node holds and does not run (the answer to its claim was lost)."""
    return await _claim(tx, conversation_id, await _lock(tx, conversation_id), node, lost)


async def _claim(
    tx: Tx, conversation_id: ConversationId, head: int, node: NodeId, lost: TurnId | None = None
) -> Lease | None:
    """The same under the row lock, where the newest position is known."""
    while row := await one(tx.run("claim_turn", conversation=conversation_id, node=node, lost=lost, next_seq=head + 1)):
        try:
            turn = _turn(row)
        except Unreadable as error:  # it would be claimed for ever, and nothing after it
            head = await _give_up(tx, conversation_id, row[0], error)
            continue
        begun = turn.first_seq is not None and turn.first_seq <= head
        if turn.kind == "upkeep":
            head = await _upkeep(tx, turn, head)
            continue
        return await _leased(tx, turn, begun=begun)
    return None


async def _give_up(tx: Tx, conversation_id: ConversationId, turn_id: TurnId, error: Unreadable) -> int:
    """End a turn that was taken and cannot be read. Returns the newest position."""
    _, head = await log.open_head(tx, conversation_id, turn_id, ())
    failure = json.encode(Failure.of(error)).decode()
    ended = {"status": "failed", "last_seq": head, "usage": None, "failure": failure, "fingerprint": None}
    await tx.run("end_turn", id=turn_id, **ended)
    return head


async def _start(tx: Tx, submission: Submission, place: _Place, given: Input, node: NodeId) -> Lease:
    """Admit and claim in one: under the row lock, in a conversation where nothing runs or waits."""
    drafts = _brought(given)
    first, now, fence = place.conversation.head_seq + 1, place.now, place.conversation.fence + 1
    head = first + len(drafts) - 1
    claimed = {"status": "running", "owner": node, "attempts": 1, "first_seq": first, "claimed_at": now}
    turn = _admitted(submission, place, given, **claimed)
    here = {"id": turn.conversation_id, "n": turn.n, "tip": turn.id, "head": head, "fence": fence, "now": now}
    await tx.run("start_turn_here", **here)
    await tx.run("start_turn", node=node, first_seq=first, **_columns(turn))
    await log.place(tx, turn.conversation_id, turn.id, drafts, head)
    return Lease(turn, fence, begun=False)


async def _leased(tx: Tx, turn: Turn, *, begun: bool) -> Lease:
    """The lease of a turn that was taken; the input of one that begins is appended."""
    fence, _ = await log.open_head(tx, turn.conversation_id, turn.id, [] if begun else _brought(turn.input))
    return Lease(turn, fence, begun)


def _brought(given: Input) -> list[Draft]:
    """What a turn appends when it begins."""
    return [*(draft(Hide(first, last, why="failed try")) for first, last in given.hides), *given.drafts]


async def claimable(tx: Tx, node: NodeId, limit: int) -> list[ConversationId]:
    """Conversations with a turn for this node to take, oldest first."""
    return [conversation_id for (conversation_id,) in await tx.run("open_conversations", node=node, limit=limit)]


async def _upkeep(tx: Tx, turn: Turn, head: int) -> int:
    """Append what an upkeep turn brings, unless the log has moved past what it was prepared from, or does not reach as
    far as it points. Returns the newest position."""
    drafts: Sequence[Draft] = turn.input.drafts
    outcome = Outcome(status="done", usage=turn.input.usage)
    if failure := await _misfit(tx, turn, head):
        drafts, outcome = (), Outcome(status="failed", usage=turn.input.usage, failure=failure)
    _, head = await log.open_head(tx, turn.conversation_id, turn.id, drafts)
    await _end(tx, turn, outcome, head)
    return head


async def _misfit(tx: Tx, turn: Turn, head: int) -> Failure | None:
    if turn.input.expects is not None:
        known = await log.controls(tx, await log.lineage(tx, turn.conversation_id))
        if log.newest_control(known) != turn.input.expects:
            return Failure("stale", "The conversation changed since this was prepared.")
    if any((span_of(d.body)[1] or 0) > head + place for place, d in enumerate(turn.input.drafts)):
        return Failure("invalid_position", f"It points past the end of the log, which is at {head}.")
    return None


# -- progress


async def append(
    tx: Tx,
    lease: Lease,
    drafts: Sequence[Draft],
    *,
    first_n: int = 0,
    events: Sequence[AnyEvent] = (),
    progress: Usage | None = None,
) -> tuple[int, int]:
    """Write entries and the events that told of them, under the lease. `progress` is the turn's bill so far: it moved
    on, and did not only clear up what a crash left."""
    turn = lease.turn
    places = await log.append(tx, turn.conversation_id, lease.fence, turn.id, drafts)
    if progress is not None:
        await tx.run("mark_progress", id=turn.id, usage=json.encode(progress).decode())
    await batches.put(tx, turn.id, first_n, events)
    return places


async def steering(tx: Tx, conversation_id: ConversationId) -> bool:
    """Whether inputs wait to join the running turn."""
    return bool(await tx.run("steering_turns", conversation=conversation_id))


async def absorb(tx: Tx, lease: Lease, first_n: int | None = None, events: Sequence[AnyEvent] = ()) -> list[Turn]:
    """Let inputs sent with `steer` join this turn: they keep their ids and share its outcome. With a number, followers
    are told of it, after the `events` that came before."""
    conversation_id = lease.turn.conversation_id
    await log.append(tx, conversation_id, lease.fence, lease.turn.id, ())  # the lock, before anything is read
    waiting = [_turn(row) for row in await tx.run("steering_turns", conversation=conversation_id)]
    for turn in waiting:
        first, last = await log.append(tx, conversation_id, lease.fence, turn.id, turn.input.drafts)
        await tx.run("join_turn", id=turn.id, host=lease.turn.id, first_seq=first, last_seq=last)
    news = [*events, *(Joined(turn.id) for turn in waiting)]
    if news and first_n is not None:
        await batches.add(tx, lease, first_n, news)
    return waiting


# -- end


class Ending(Struct, frozen=True):
    """A turn that ended, whether more of its conversation waits, and what it wrote, for whoever waits for that."""

    turn: Turn
    more: bool
    told: Told | None = None


async def finish(
    tx: Tx,
    lease: Lease,
    outcome: Outcome,
    drafts: Sequence[Draft] = (),
    *,
    first_n: int = 0,
    events: Sequence[AnyEvent] = (),
    tell: bool = False,
) -> Ending:
    """End a turn: the last entries, the status, and the answers owed, or nothing of it. Somebody waits for it here when
    it is to `tell`: that saves reading it again."""
    conversation_id = lease.turn.conversation_id
    _, last_seq = await log.append(tx, conversation_id, lease.fence, lease.turn.id, drafts, last=True)
    await batches.put(tx, lease.turn.id, first_n, events)
    turn = await _end(tx, lease.turn, outcome, last_seq)
    names = await directory.names(tx, conversation_id)
    await outbox.owe(tx, turn, outcome, [value for scheme, value in names if scheme == "address"])
    more = await _any_open(tx, conversation_id)
    told: Told | None = None
    if tell:
        with suppress(Unreadable):  # whoever waits finds that out by reading it
            told = Told(turn, await log.entries_of_turn(tx, turn), directory.slug_among(names))
    return Ending(turn, more, told)


async def release(tx: Tx, lease: Lease) -> None:
    """Hand a turn back, for another process to go on with."""
    await log.append(tx, lease.turn.conversation_id, lease.fence, lease.turn.id, (), last=True)
    await tx.run("release_turn", id=lease.turn.id)


async def cancel(tx: Tx, principal: PrincipalId, turn_id: TurnId) -> Turn:
    """Stop a turn: at once when it waits, by its worker when it runs. What was written stays."""
    turn = await find(tx, principal, turn_id)
    await _lock(tx, turn.conversation_id)
    host = await _host(tx, await get(tx, turn.id))
    row = await one(tx.run("cancel_queued", id=host.id)) or await one(tx.run("request_cancel", id=host.id))
    return _turn(row) if row is not None else await get(tx, host.id)


async def cancel_all(tx: Tx, conversation_id: ConversationId) -> list[TurnId]:
    """Stop whatever waits or runs in a conversation; returns what runs."""
    await _lock(tx, conversation_id)
    await tx.run("cancel_all_queued", conversation=conversation_id)
    return [turn_id for (turn_id,) in await tx.run("request_interrupt", conversation=conversation_id)]


async def _end(tx: Tx, turn: Turn, outcome: Outcome, last_seq: int) -> Turn:
    row = await one(
        tx.run(
            "end_turn",
            id=turn.id,
            status=outcome.status,
            last_seq=last_seq,
            usage=json.encode(outcome.usage).decode() if outcome.usage else None,
            failure=json.encode(outcome.failure).decode() if outcome.failure else None,
            fingerprint=outcome.fingerprint,
        )
    )
    if row is None:
        raise LeaseLost()
    return _turn(row)


# -- reading


async def find(tx: Tx, principal: PrincipalId, turn_id: TurnId) -> Turn:
    """A turn of this principal."""
    row = await one(tx.run("find_turn", id=turn_id, principal=principal))
    if row is None:
        raise UnknownTurn(f"No turn {turn_id!r}.")
    return _turn(row)


async def get(tx: Tx, turn_id: TurnId) -> Turn:
    """A turn by an id that came from the store itself; it may have been purged since."""
    row = await one(tx.run("get_turn", id=turn_id))
    if row is None:
        raise UnknownTurn(f"No turn {turn_id!r}.")
    return _turn(row)


async def with_output(tx: Tx, turn: Turn) -> Told:
    """A turn with what it wrote."""
    slug = directory.slug_among(await directory.names(tx, turn.conversation_id))
    return Told(turn, await log.entries_of_turn(tx, turn), slug)


async def outcome_with_output(tx: Tx, principal: PrincipalId, turn_id: TurnId) -> Told:
    """The same for the turn whose outcome an id stands for."""
    return await with_output(tx, await outcome_of(tx, principal, turn_id))


async def outcome_of(tx: Tx, principal: PrincipalId, turn_id: TurnId) -> Turn:
    """The turn whose outcome this id stands for: itself, or the one it joined."""
    return await _host(tx, await find(tx, principal, turn_id))


async def standing(tx: Tx, turn_id: TurnId) -> Turn:
    """The same for whoever has found it: it may have been deleted since."""
    return await _host(tx, await get(tx, turn_id))


async def recall(tx: Tx, principal: PrincipalId, fingerprint: str) -> TurnId | None:
    """The turn after which a history stands exactly as it was sent."""
    row = await one(tx.run("find_turn_by_fingerprint", principal=principal, fingerprint=fingerprint))
    return row[0] if row else None


async def delete(tx: Tx, principal: PrincipalId, turn_id: TurnId) -> None:
    """Let nobody ask for a turn any more."""
    turn = await find(tx, principal, turn_id)
    await tx.run("delete_turn", id=turn.id)


async def context_for(tx: Tx, principal: PrincipalId, target: Target) -> tuple[Conversation, View] | None:
    """What a model would see there, and where that is, without anything being made or written."""
    if isinstance(target, Fresh):
        return None
    if isinstance(target, After):
        turn = await find(tx, principal, target.turn_id)
        place = await directory.find(tx, principal, ById(turn.conversation_id))
        return place, await log.read_context(tx, place.id, await end_of(tx, turn.id))
    if isinstance(target, ById):
        conversation: Conversation | None = await directory.find(tx, principal, target)
    else:
        conversation = await directory.lookup(tx, principal, target)
        if conversation is None:
            directory.check_creatable(target)
    return (conversation, await log.read_context(tx, conversation.id)) if conversation else None


async def of_conversation(tx: Tx, conversation_id: ConversationId, after: int, limit: int) -> list[Turn]:
    """Turns in order of admission."""
    return [_turn(row) for row in await tx.run("turns_of", conversation=conversation_id, after=after, limit=limit)]


async def usage_of(tx: Tx, conversation_id: ConversationId) -> Usage:
    """What the turns of a conversation have cost, by the log."""
    [counted] = await tx.run("usage_of", conversation=conversation_id)
    return Usage(*(int(number or 0) for number in counted))


async def under_way(tx: Tx, conversation_id: ConversationId) -> list[Turn]:
    """What runs or waits in a conversation, in the order in which it comes."""
    return [_turn(row) for row in await tx.run("turns_under_way", conversation=conversation_id)]


async def told_of(tx: Tx, conversation_id: ConversationId) -> list[Entry]:
    """What people see of a conversation, but for what is under way: the entries of a turn are told together."""
    untold = {turn_id for [turn_id] in await tx.run("turns_untold", conversation=conversation_id)}
    return [entry for entry in await log.read_transcript(tx, conversation_id) if entry.turn_id not in untold]


async def last_ended(tx: Tx, conversation_id: ConversationId) -> int:
    """The number of the turn before everything that is under way or waits."""
    [[n]] = await tx.run("last_ended", id=conversation_id)
    return int(n)


async def events_from(tx: Tx, turn_id: TurnId, n: int) -> tuple[Turn, list[AnyEvent]]:
    """A turn's status, and its events from number `n` on: when it has ended, these are the last ones. Events that were
    forgotten since are told again from the entries."""
    turn = await get(tx, turn_id)
    events: list[AnyEvent] = []
    if turn.pruned_at is not None:
        brought = {d.id for d in turn.input.drafts}
        return turn, retell(e for e in await log.entries_of_turn(tx, turn) if e.id not in brought)[n:]
    for first_n, payload in await tx.run("events_after", turn=turn_id, n=n):
        try:
            events.extend(_events.decode(payload)[max(0, n - first_n) :])
        except DecodeError as error:
            what = f"What was told of turn {turn_id} cannot be read from event {first_n} on"
            raise Unreadable.because(what, error) from error
    return turn, events


# -- care


async def prune_events(tx: Tx, age: float, limit: int = 20) -> int:
    """Forget the events of turns that ended long ago, and copies of what was sent; their entries say the same."""
    old = await tx.run("prunable_turns", age=age, limit=limit)
    for (turn_id,) in old:
        await tx.run("prune_events", turn=turn_id)
        await outbox.forget(tx, turn_id)
        await tx.run("mark_pruned", turn=turn_id)
    return len(old)


async def _lock(tx: Tx, conversation_id: ConversationId) -> int:
    """Hold a conversation, whatever of it cannot be read. Returns its newest position."""
    [[head]] = await tx.run("lock_head", id=conversation_id)
    return int(head)


async def _host(tx: Tx, turn: Turn) -> Turn:
    return turn if turn.joined_turn is None else await get(tx, turn.joined_turn)


async def _any_open(tx: Tx, conversation_id: ConversationId) -> bool:
    return bool(await tx.run("any_open", conversation=conversation_id))


def _turn(row: Row) -> Turn:
    return Turn(**decoded(Turn.__struct_fields__, row))


def decoded(names: Sequence[str], row: Row) -> dict[str, Any]:
    """The columns of a turn by name, with what is JSON in them decoded."""
    values = dict(zip(names, row, strict=True))
    try:
        values["input"] = _input.decode(values["input"])
        values["usage"] = _usage.decode(values["usage"]) if values["usage"] else None
        values["failure"] = _failure.decode(values["failure"]) if values["failure"] else None
    except DecodeError as error:
        raise Unreadable.because(f"Turn {values['id']} cannot be read", error) from error
    return values
