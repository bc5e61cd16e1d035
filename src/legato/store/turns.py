"""Turns once they are admitted: lease, progress, end.

- One turn of a conversation runs at a time, and each new holder raises the fence, which every write names.
- An end is one transaction: the last entries, the status, and the answers owed.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from msgspec import DecodeError, Struct, json

from legato.domain.conversations import Conversation
from legato.domain.entries import Draft, Entry, Hide, View, draft, span_of
from legato.domain.events import AnyEvent, Joined, retell
from legato.domain.handles import ById
from legato.domain.ids import ConversationId, NodeId, PrincipalId, TurnId
from legato.domain.turns import (
    After,
    Failure,
    Fresh,
    Input,
    Lease,
    Outcome,
    Target,
    Told,
    Turn,
    Usage,
)
from legato.errors import LeaseLost, UnfinishedTurn, UnknownTurn, Unreadable
from legato.store import batches, directory, log, outbox
from legato.store.database import Row, Tx, one

_input = json.Decoder(Input)
_usage = json.Decoder(Usage)
_failure = json.Decoder(Failure)
_events = json.Decoder(list[AnyEvent])


# -- lease


async def claim(
    tx: Tx, conversation_id: ConversationId, node: NodeId, lost: TurnId | None = None, *, cut_off: bool = False
) -> Lease | None:
    """Take the conversation's next turn. Upkeep in its way is done on the spot; a talk turn's input is appended,
    and the caller runs it. `lost` is a turn that the node holds and does not run: the answer to its claim was lost, or
    it was `cut_off` from the database in mid turn."""
    return await claim_held(tx, conversation_id, await _lock(tx, conversation_id), node, lost, cut_off=cut_off)


async def claim_held(
    tx: Tx,
    conversation_id: ConversationId,
    head: int,
    node: NodeId,
    lost: TurnId | None = None,
    *,
    cut_off: bool = False,
) -> Lease | None:
    """The same under the row lock, where the newest position is known."""
    who = {"conversation": conversation_id, "node": node, "lost": lost, "cut_off": lost if cut_off else None}
    while row := await one(tx.run("claim_turn", **who, next_seq=head + 1)):
        try:
            turn = turn_of(row)
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


async def _leased(tx: Tx, turn: Turn, *, begun: bool) -> Lease:
    """The lease of a turn that was taken; the input of one that begins is appended."""
    fence, _ = await log.open_head(tx, turn.conversation_id, turn.id, [] if begun else brought(turn.input))
    return Lease(turn, fence, begun)


def brought(given: Input) -> list[Draft]:
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
    waiting = [turn_of(row) for row in await tx.run("steering_turns", conversation=conversation_id)]
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
    more = await any_open(tx, conversation_id)
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
    return turn_of(row) if row is not None else await get(tx, host.id)


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
    return turn_of(row)


# -- reading


async def find(tx: Tx, principal: PrincipalId, turn_id: TurnId) -> Turn:
    """A turn of this principal."""
    row = await one(tx.run("find_turn", id=turn_id, principal=principal))
    if row is None:
        raise UnknownTurn(f"No turn {turn_id!r}.")
    return turn_of(row)


async def get(tx: Tx, turn_id: TurnId) -> Turn:
    """A turn by an id that came from the store itself; it may have been purged since."""
    row = await one(tx.run("get_turn", id=turn_id))
    if row is None:
        raise UnknownTurn(f"No turn {turn_id!r}.")
    return turn_of(row)


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


async def end_of(tx: Tx, turn_id: TurnId) -> int:
    """The position right after which a turn's continuation begins, known once it has ended."""
    before: TurnId | None = turn_id
    while before is not None:
        turn = await standing(tx, before)
        if not turn.ended:
            raise UnfinishedTurn(f"Turn {turn.id} has not finished, and the conversation has gone on.")
        if turn.last_seq is not None:
            return turn.last_seq
        before = turn.parent_turn  # it ended before it wrote anything
    [[_, base, _]] = await tx.run("own_stretch", id=turn.conversation_id)
    return int(base)


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
    return [turn_of(row) for row in await tx.run("turns_of", conversation=conversation_id, after=after, limit=limit)]


async def usage_of(tx: Tx, conversation_id: ConversationId) -> Usage:
    """What the turns of a conversation have cost, by the log."""
    [counted] = await tx.run("usage_of", conversation=conversation_id)
    return Usage(*(int(number or 0) for number in counted))


async def under_way(tx: Tx, conversation_id: ConversationId) -> list[Turn]:
    """What runs or waits in a conversation, in the order in which it comes."""
    return [turn_of(row) for row in await tx.run("turns_under_way", conversation=conversation_id)]


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


async def any_open(tx: Tx, conversation_id: ConversationId) -> bool:
    return bool(await tx.run("any_open", conversation=conversation_id))


def turn_of(row: Row) -> Turn:
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
