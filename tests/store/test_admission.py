"""Admission: an input becomes a turn once, at one place, durably. Continue or fork is decided here and never again."""

import pytest
from acts import (
    CANCELLED,
    DONE,
    FAILED,
    N1,
    Bounded,
    admit,
    all_of,
    context,
    conversation,
    end,
    enter,
    joined,
    rows,
    said,
    script,
    start,
    submission,
    talk,
    tend,
    transcript,
    turn,
    upkeep,
)

from conftest import ALICE, BOB, Opener
from legato.domain.entries import Compaction, Hide, Message, Note, Remove, Text
from legato.domain.handles import ById, Slug
from legato.domain.ids import TurnId
from legato.domain.turns import After, Fresh, Outcome
from legato.errors import (
    ConversationBusy,
    DedupMismatch,
    Defect,
    UnfinishedTurn,
    UnknownHandle,
    UnknownTurn,
)
from legato.store import admission, directory, log, turns
from legato.store.database import Database, Tx

WORK = Slug("work")


# -- once


async def test_an_admitted_turn_waits_at_the_tip_of_its_conversation(db: Database) -> None:
    """What a client is told of is in the tables: the turn, its input, its place."""
    admitted = await admit(db, WORK, "hello")
    kept = await turn(db, admitted.turn.id)
    assert admitted.fresh
    assert kept == admitted.turn
    assert (kept.status, kept.n, kept.parent_turn, kept.principal) == ("queued", 1, None, ALICE)
    assert [d.body.text for d in kept.input.drafts] == ["hello"]
    assert (await conversation(db, kept.conversation_id)).tip_turn == kept.id


async def test_an_admitted_turn_is_still_there_after_a_restart(reopen: Opener) -> None:
    """An acknowledged input waits for whoever opens the database next."""
    db = await reopen()
    admitted = await admit(db, WORK, "hello", dedup_key="k")
    db = await reopen()
    assert await turn(db, admitted.turn.id) == admitted.turn
    assert not (await admit(db, WORK, "hello", dedup_key="k")).fresh


async def test_the_same_dedup_key_is_the_same_turn(db: Database) -> None:
    """A repeated submission is admitted once, while it waits, while it runs and after it has ended."""
    first = await admit(db, WORK, dedup_key="k", request_hash="h")
    await enter(db, N1)
    again = [await admit(db, WORK, dedup_key="k", request_hash="h")]
    lease = await db.write(turns.claim, first.turn.conversation_id, N1)
    again.append(await admit(db, WORK, dedup_key="k", request_hash="h"))
    await end(db, lease, DONE, "hi")
    again.append(await admit(db, WORK, dedup_key="k", request_hash="h", node=N1))
    assert [a.turn.id for a in again] == [first.turn.id] * 3
    assert [a.turn.status for a in again] == ["queued", "running", "done"]
    assert not any(a.fresh or a.lease for a in again)
    assert len(await all_of(db, first.turn.conversation_id)) == 1


async def test_a_repeated_submission_without_a_conversation_makes_no_second_one(db: Database) -> None:
    """The key decides before any conversation is made."""
    first = await admit(db, Fresh(), dedup_key="k")
    again = await admit(db, Fresh(), dedup_key="k")
    assert again.turn.conversation_id == first.turn.conversation_id
    assert await rows(db, "select count(*) from conversations") == [(1,)]


async def test_the_same_dedup_key_with_another_request_is_refused(db: Database) -> None:
    """A key stands for one request; another one under it is a mistake that the client hears of."""
    first = await admit(db, WORK, dedup_key="k", request_hash="h")
    for other in ("g", None):
        with pytest.raises(DedupMismatch):
            await admit(db, WORK, dedup_key="k", request_hash=other)
    assert len(await all_of(db, first.turn.conversation_id)) == 1


async def test_another_principals_dedup_key_is_another_key(db: Database) -> None:
    """Two owners may choose the same key for different requests."""
    mine = await admit(db, WORK, dedup_key="k", request_hash="h")
    yours = await admit(db, WORK, dedup_key="k", request_hash="g", principal=BOB)
    assert yours.fresh
    assert yours.turn.id != mine.turn.id


async def test_submissions_without_a_dedup_key_are_all_admitted(db: Database) -> None:
    """No key, no guess: the same words twice are two turns."""
    one, two = await admit(db, WORK, "again"), await admit(db, WORK, "again")
    assert one.turn.id != two.turn.id
    assert two.fresh


async def test_the_schema_refuses_a_second_turn_under_a_dedup_key(db: Database) -> None:
    """Whoever writes it, and whatever was looked up before."""
    admitted = await admit(db, WORK, dedup_key="k")

    async def write_it_again(tx: Tx) -> None:
        await tx.script(
            "insert into turns (id, conversation_id, n, principal, dedup_key, kind, status, busy, input, created_at) "
            "select 'resp_2', conversation_id, 2, principal, dedup_key, kind, status, busy, input, 0 from turns"
        )

    with pytest.raises(Defect):
        await db.write(write_it_again)
    assert [t.id for t in await all_of(db, admitted.turn.conversation_id)] == [admitted.turn.id]


async def test_an_admission_that_is_refused_leaves_nothing(db: Database) -> None:
    """A refused turn makes no conversation, no name and no turn."""
    with pytest.raises(UnknownTurn):
        await admit(db, After(TurnId("resp_none")))
    with pytest.raises(UnknownHandle):
        await admit(db, ById("conv_none"))
    assert await rows(db, "select count(*) from conversations") == [(0,)]
    assert await rows(db, "select count(*) from turns") == [(0,)]


async def test_a_clients_own_retry_without_a_key_is_the_same_turn_for_a_while(db: Database) -> None:
    """The same request of the same owner, alive or just ended, when the client says that it tries again."""
    first = (await admit(db, WORK, request_hash="h")).turn
    await enter(db, N1)
    assert (await admit(db, WORK, request_hash="h", retry=True)).turn.id == first.id
    await end(db, await db.write(turns.claim, first.conversation_id, N1))
    again = await admit(db, WORK, request_hash="h", retry=True)
    assert (again.turn.id, again.turn.status, again.fresh) == (first.id, "done", False)
    others = [
        await admit(db, WORK, request_hash="h", retry=True, principal=BOB),
        await admit(db, WORK, request_hash="g", retry=True),
        await admit(db, WORK, request_hash="h"),
    ]
    assert all(other.fresh for other in others)


async def test_a_clients_retry_after_another_turn_is_a_new_turn(db: Database) -> None:
    """Someone who has gone on in the conversation had the answer: the same words are meant."""
    first = await talk(db, WORK, request_hash="h")
    await talk(db, WORK, request_hash="g")
    again = await admit(db, WORK, request_hash="h", retry=True)
    assert again.fresh
    assert again.turn.id != first.id


@pytest.mark.parametrize("outcome", [FAILED, CANCELLED], ids=["failed", "cancelled"])
async def test_a_clients_retry_of_what_failed_is_a_new_try(db: Database, outcome: Outcome) -> None:
    """In the place of the ones before it, which the model no longer sees: nothing was asked twice."""
    await talk(db, WORK, "before")
    tries = [await talk(db, WORK, "hm?", outcome, request_hash="h", retry=n > 0) for n in range(3)]
    done = await talk(db, WORK, "hm?", request_hash="h", retry=True)
    assert len({turn.id for turn in (*tries, done)}) == 4
    assert await context(db, done.conversation_id) == ["before", "BEFORE", "hm?", "HM?"]


async def test_a_clients_retry_takes_the_place_of_the_last_try_whatever_the_clock_says(db: Database) -> None:
    """Tries of one millisecond, or of a clock that was set back: the tip of the conversation is the last one."""
    for _ in range(2):
        await talk(db, WORK, "hm?", FAILED, request_hash="h", retry=True)
    await script(db, "update turns set created_at = created_at - 60 * n")
    done = await talk(db, WORK, "hm?", request_hash="h", retry=True)
    assert await context(db, done.conversation_id) == ["hm?", "HM?"]


async def test_a_clients_retry_of_an_interrupt_that_failed_before_the_queue_is_a_new_turn(db: Database) -> None:
    """What waited longer is still to come: the failed try has no place to take, and the retry is not refused."""
    lease = await start(db, WORK, "one")
    await admit(db, WORK, "two")
    await admit(db, WORK, "now", busy="interrupt", request_hash="h")
    await end(db, lease, CANCELLED)
    lease = await db.write(turns.claim, lease.turn.conversation_id, N1)
    failed = await end(db, lease, FAILED)
    again = (await admit(db, WORK, "now", busy="interrupt", request_hash="h", retry=True)).turn
    assert (again.conversation_id, again.parent_turn) == (failed.conversation_id, failed.id)


async def test_a_clients_retry_of_a_first_message_that_failed_makes_no_second_conversation(db: Database) -> None:
    tried = await talk(db, Fresh(), "hm?", FAILED, request_hash="h")
    done = await talk(db, Fresh(), "hm?", request_hash="h", retry=True)
    assert done.conversation_id == tried.conversation_id
    assert await context(db, done.conversation_id) == ["hm?", "HM?"]


async def test_a_clients_retry_of_what_joined_a_turn_that_failed_is_a_new_turn(db: Database) -> None:
    """It shares the outcome of its host, and what failed is asked for anew."""
    lease = await start(db, WORK, "do it")
    joined = await admit(db, WORK, "quickly", busy="steer", request_hash="h")
    await db.write(turns.absorb, lease)
    assert (await admit(db, WORK, "quickly", busy="steer", request_hash="h", retry=True)).turn.id == joined.turn.id
    await end(db, lease, FAILED)
    assert (await admit(db, WORK, "quickly", busy="steer", request_hash="h", retry=True)).fresh


async def test_a_retry_whose_message_was_deleted_is_said_anew(db: Database) -> None:
    """It had hidden a failed try: that wish stands before what was said, and is not what people see."""
    await talk(db, WORK, "hm?", FAILED, request_hash="h")
    done = await talk(db, WORK, "hm?", request_hash="h", retry=True)
    told = await db.read(log.read_transcript, done.conversation_id)
    [at] = [entry.seq for entry in told if entry.turn_id == done.id and entry.body == said("hm?").body]
    await tend(db, ById(done.conversation_id), Remove(at))
    assert (await admit(db, WORK, "hm?", request_hash="h", retry=True)).fresh


async def test_a_clients_retry_of_what_failed_goes_where_its_name_leads_now(db: Database) -> None:
    """Somebody gave the name to another conversation meanwhile."""
    await talk(db, WORK, "hm?", FAILED, request_hash="h")
    other = await talk(db, Slug("other"), "elsewhere")
    await db.write(directory.bind, ALICE, WORK, other.conversation_id, move=True)
    again = await admit(db, WORK, "hm?", request_hash="h", retry=True)
    assert again.turn.conversation_id == other.conversation_id


async def test_a_clients_retry_long_after_the_end_is_a_new_turn(db: Database) -> None:
    """Nobody repeats themselves for ever: the same words a day later are meant."""
    first = await talk(db, WORK, request_hash="h")
    await script(db, "update turns set ended_at = ended_at - 86400")
    assert (await admit(db, WORK, request_hash="h", retry=True)).turn.id != first.id


# -- order


async def test_turns_are_numbered_in_the_order_of_admission_within_their_conversation(db: Database) -> None:
    """Each conversation counts for itself, upkeep included, and a turn names the one before it."""
    work = [(await admit(db, WORK)).turn for _ in range(3)]
    play = (await admit(db, Slug("play"))).turn
    tended = (await db.write(admission.admit, upkeep(WORK, Note("n")))).turn
    last = (await admit(db, WORK)).turn
    assert [t.n for t in [*work, tended, last]] == [1, 2, 3, 4, 5]
    assert play.n == 1
    assert [t.parent_turn for t in [*work, last]] == [None, work[0].id, work[1].id, work[2].id]


async def test_what_can_start_starts_with_its_admission(db: Database) -> None:
    """With a node the turn runs at once, its input in the log, in the same transaction."""
    lease = await start(db, WORK, "hello")
    kept = await turn(db, lease.turn.id)
    assert (kept.status, kept.owner, kept.first_seq) == ("running", N1, 1)
    assert await transcript(db, kept.conversation_id) == ["hello"]


async def test_what_waits_longest_starts_first(db: Database) -> None:
    """An admission may start the turn before it; it never jumps the queue itself."""
    await enter(db, N1)
    first = await admit(db, WORK, "one")
    second = await admit(db, WORK, "two", node=N1)
    assert second.lease is not None
    assert second.lease.turn.id == first.turn.id
    assert second.turn.status == "queued"


async def test_rejecting_a_busy_conversation_writes_nothing(db: Database) -> None:
    """`reject` is admitted to an idle conversation and refused by a busy one, waiting or running."""
    waiting = await admit(db, WORK, "one", busy="reject")
    with pytest.raises(ConversationBusy) as refused:
        await admit(db, WORK, "two", busy="reject")
    assert refused.value.conversation_id == waiting.turn.conversation_id
    await enter(db, N1)
    lease = await db.write(turns.claim, waiting.turn.conversation_id, N1)
    with pytest.raises(ConversationBusy):
        await admit(db, WORK, "two", busy="reject")
    await end(db, lease)
    again = await admit(db, WORK, "three", busy="reject")
    assert [t.id for t in await all_of(db, waiting.turn.conversation_id)] == [waiting.turn.id, again.turn.id]


async def test_an_interrupt_asks_the_running_turn_to_stop(db: Database) -> None:
    """The wish is durable and names the turn; turns that only wait are not touched."""
    lease = await start(db, WORK, "one")
    waiting = await admit(db, WORK, "two")
    interrupt = await admit(db, WORK, "stop that", busy="interrupt", node=N1)
    assert interrupt.stopped == (lease.turn.id,)
    assert interrupt.lease is None
    assert (await turn(db, lease.turn.id)).cancel_at is not None
    assert (await turn(db, waiting.turn.id)).cancel_at is None


# -- continue or fork


async def test_after_the_tip_a_turn_continues_the_conversation(db: Database) -> None:
    """The newest response id leads on in the same conversation."""
    one = await talk(db, WORK, "one")
    two = await talk(db, After(one.id), "two")
    assert two.conversation_id == one.conversation_id
    assert two.parent_turn == one.id
    assert await context(db, one.conversation_id) == ["one", "ONE", "two", "TWO"]


async def test_after_another_turn_than_the_tip_a_turn_forks(db: Database) -> None:
    """An older response id leads to a new conversation, linked to the old one, that saw nothing of what came later."""
    one = await talk(db, WORK, "one")
    two = await talk(db, After(one.id), "two")
    other = await talk(db, After(one.id), "other")
    fork = await conversation(db, other.conversation_id)
    assert other.conversation_id != one.conversation_id
    assert (fork.parent_id, fork.base_seq, other.parent_turn) == (one.conversation_id, one.last_seq, one.id)
    assert await context(db, fork.id) == ["one", "ONE", "other", "OTHER"]
    assert await context(db, one.conversation_id) == ["one", "ONE", "two", "TWO"]
    assert (await conversation(db, one.conversation_id)).tip_turn == two.id


async def test_a_fork_has_a_tip_of_its_own(db: Database) -> None:
    """Each side goes on by its own newest response id, and forks by an older one."""
    one = await talk(db, WORK, "one")
    two = await talk(db, After(one.id), "two")
    other = await talk(db, After(one.id), "other")
    third = await talk(db, After(two.id), "three")
    fourth = await talk(db, After(other.id), "four")
    fifth = await talk(db, After(other.id), "five")
    assert third.conversation_id == one.conversation_id
    assert fourth.conversation_id == other.conversation_id
    assert fifth.conversation_id not in (one.conversation_id, other.conversation_id)
    assert await context(db, fifth.conversation_id) == ["one", "ONE", "other", "OTHER", "five", "FIVE"]


async def test_a_fork_keeps_the_title_and_the_agent_but_no_name(db: Database) -> None:
    """A name means one conversation, so the fork has none until it is given one."""
    one = await talk(db, WORK, "one")
    await talk(db, After(one.id), "two")
    other = await talk(db, After(one.id), "other")
    assert await rows(db, "select value, conversation_id from aliases") == [("work", one.conversation_id)]
    assert (await talk(db, WORK, "three")).conversation_id == one.conversation_id != other.conversation_id


async def test_a_turn_can_wait_behind_the_unfinished_tip(db: Database) -> None:
    """A response id that is not finished yet can be continued while it is the newest."""
    lease = await start(db, WORK, "one")
    waiting = await admit(db, After(lease.turn.id), "two", node=N1)
    assert waiting.lease is None
    assert waiting.turn.conversation_id == lease.turn.conversation_id
    assert waiting.turn.parent_turn == lease.turn.id


@pytest.mark.parametrize("running", [True, False], ids=["running", "waiting"])
async def test_nothing_branches_off_an_unfinished_turn(db: Database, running: bool) -> None:
    """Where a turn will end is not known before it has, so a fork there is refused and nothing is made."""
    first = (await start(db, WORK, "one")).turn if running else (await admit(db, WORK, "one")).turn
    await admit(db, After(first.id), "two")
    with pytest.raises(UnfinishedTurn):
        await admit(db, After(first.id), "other")
    assert await rows(db, "select count(*) from conversations") == [(1,)]
    assert len(await all_of(db, first.conversation_id)) == 2


async def test_anothers_turn_is_as_unknown_as_one_that_never_was(db: Database) -> None:
    """A response id grants nothing: only its owner continues it, reads it or cancels it."""
    mine = await talk(db, WORK, "one")
    for principal, turn_id in ((BOB, mine.id), (ALICE, TurnId("resp_none"))):
        for attempt in (
            lambda p=principal, t=turn_id: admit(db, After(t), principal=p),
            lambda p=principal, t=turn_id: db.read(turns.find, p, t),
            lambda p=principal, t=turn_id: db.read(turns.outcome_of, p, t),
            lambda p=principal, t=turn_id: db.write(turns.cancel, p, t),
        ):
            with pytest.raises(UnknownTurn) as refusal:
                await attempt()
            assert refusal.value.message == f"No turn {turn_id!r}."
    assert len(await all_of(db, mine.conversation_id)) == 1


async def test_anothers_conversation_is_as_unknown_as_one_that_never_was(db: Database) -> None:
    """A conversation id grants nothing."""
    mine = await talk(db, WORK, "one")
    for principal, conversation_id in ((BOB, mine.conversation_id), (ALICE, "conv_none")):
        with pytest.raises(UnknownHandle) as refusal:
            await admit(db, ById(conversation_id), principal=principal)
        assert refusal.value.message == f"No conversation {conversation_id!r}."
    assert len(await all_of(db, mine.conversation_id)) == 1


async def test_a_fork_of_a_turn_that_never_began_starts_where_its_parent_ended(db: Database) -> None:
    """A turn cancelled while it waited wrote nothing, so what follows it follows its parent."""
    one = await talk(db, WORK, "one")
    never = (await admit(db, After(one.id), "never")).turn
    await db.write(turns.cancel, ALICE, never.id)
    await talk(db, WORK, "two")
    other = await talk(db, After(never.id), "other")
    assert (await conversation(db, other.conversation_id)).base_seq == one.last_seq
    assert await context(db, other.conversation_id) == ["one", "ONE", "other", "OTHER"]


async def test_nothing_branches_off_a_turn_that_never_began_while_its_parent_is_unfinished(db: Database) -> None:
    """It would begin where its parent ends, and nobody knows where that is."""
    lease = await start(db, WORK, "one")
    never = (await admit(db, After(lease.turn.id), "never")).turn
    await db.write(turns.cancel, ALICE, never.id)
    await admit(db, WORK, "two")
    with pytest.raises(UnfinishedTurn):
        await admit(db, After(never.id), "other")


async def test_what_follows_an_interrupt_that_waits_does_not_slip_behind_the_queue(db: Database) -> None:
    """The queue comes between the interrupt and whatever is admitted now, so its place after the interrupt is not free;
    the same as when the interrupt runs."""
    await start(db, WORK, "one")
    await admit(db, WORK, "two")
    interrupt = (await admit(db, WORK, "three", busy="interrupt")).turn
    with pytest.raises(UnfinishedTurn):
        await admit(db, After(interrupt.id), "four")


async def test_a_deleted_turn_is_unknown_and_what_it_wrote_stays(db: Database) -> None:
    """Nobody can ask for it or continue it; the conversation goes on by its other ids and names."""
    one, two = await talk(db, WORK, "one"), await talk(db, WORK, "two")
    with pytest.raises(UnknownTurn):
        await db.write(turns.delete, BOB, one.id)
    await db.write(turns.delete, ALICE, one.id)
    for attempt in (
        lambda: db.read(turns.find, ALICE, one.id),
        lambda: admit(db, After(one.id)),
        lambda: db.write(turns.delete, ALICE, one.id),
    ):
        with pytest.raises(UnknownTurn):
            await attempt()
    assert (await talk(db, After(two.id), "three")).conversation_id == one.conversation_id
    assert await context(db, one.conversation_id) == ["one", "ONE", "two", "TWO", "three", "THREE"]


async def test_a_resent_history_recalls_the_newest_turn_that_it_stands_after(db: Database) -> None:
    """By its fingerprint, for its owner, while the turn and its conversation are there."""

    async def told(slug: str, fingerprint: str | None) -> TurnId:
        lease = await start(db, Slug(slug))
        return (await end(db, lease, Outcome(status="done", fingerprint=fingerprint))).id

    one = await told("a", "f")
    await script(db, "update turns set ended_at = 1")  # a clock may not tell two fast ends from each other
    two, _ = await told("b", "f"), await told("c", None)
    assert await db.read(turns.recall, ALICE, "f") == two
    assert await db.read(turns.recall, ALICE, "g") is None
    assert await db.read(turns.recall, BOB, "f") is None
    await db.write(turns.delete, ALICE, two)
    assert await db.read(turns.recall, ALICE, "f") == one
    await db.write(directory.delete, ALICE, Slug("a"))
    assert await db.read(turns.recall, ALICE, "f") is None


# -- retries


@pytest.mark.parametrize("outcome", [FAILED, CANCELLED], ids=["failed", "cancelled"])
async def test_a_retry_stays_in_the_conversation_and_hides_the_try_before_it(db: Database, outcome) -> None:
    """A try that came to nothing does not count as the tip; the model no longer sees it, people do."""
    one = await talk(db, WORK, "one")
    await talk(db, After(one.id), "try", outcome)
    retry = await talk(db, After(one.id), "retry")
    assert (retry.conversation_id, retry.parent_turn) == (one.conversation_id, one.id)
    assert await context(db, one.conversation_id) == ["one", "ONE", "retry", "RETRY"]
    assert await transcript(db, one.conversation_id) == ["one", "ONE", "try", "TRY", "retry", "RETRY"]


async def test_a_retry_goes_past_every_try_that_came_to_nothing(db: Database) -> None:
    """Failed and cancelled tries in a row, one of which never began, are all gone around and all hidden."""
    one = await talk(db, WORK, "one")
    await talk(db, WORK, "first", FAILED)
    await talk(db, WORK, "second", CANCELLED)
    never = (await admit(db, WORK, "third")).turn
    await db.write(turns.cancel, ALICE, never.id)
    await talk(db, WORK, "fourth", FAILED)
    retry = await talk(db, After(one.id), "retry")
    assert (retry.conversation_id, retry.parent_turn) == (one.conversation_id, one.id)
    assert await context(db, one.conversation_id) == ["one", "ONE", "retry", "RETRY"]
    hides = [e.body for e in await db.read(log.read_transcript, one.conversation_id) if isinstance(e.body, Hide)]
    assert [(hide.first, hide.last) for hide in hides] == [(3, 8)]


async def test_retries_of_retries_hide_every_try(db: Database) -> None:
    """A retry that fails is hidden by the next, together with what it had hidden."""
    one = await talk(db, WORK, "one")
    for text in ("first", "second", "third"):
        await talk(db, After(one.id), text, FAILED)
    retry = await talk(db, After(one.id), "retry")
    assert retry.conversation_id == one.conversation_id
    assert await context(db, one.conversation_id) == ["one", "ONE", "retry", "RETRY"]


async def test_whoever_continues_a_failed_turn_sees_it(db: Database) -> None:
    """What was said stays said: only a retry from before it hides a failed turn."""
    failed = await talk(db, WORK, "try", FAILED)
    two = await talk(db, After(failed.id), "two")
    assert two.conversation_id == failed.conversation_id
    assert await context(db, two.conversation_id) == ["try", "TRY", "two", "TWO"]


async def test_tries_that_fail_in_a_row_are_hidden_as_one(db: Database) -> None:
    """Who tries again all night writes one control entry a try, not one for every try before it. What was posted in
    between stays."""
    one = await talk(db, WORK, "one")
    for _ in range(5):
        await talk(db, After(one.id), "try", FAILED)
    await tend(db, WORK, Message("user", (Text("by the way"),)))
    for _ in range(5):
        await talk(db, After(one.id), "try", FAILED)
    again = await talk(db, After(one.id), "again")
    assert len(again.input.hides) == 2
    assert await context(db, one.conversation_id) == ["one", "ONE", "by the way", "again", "AGAIN"]


async def test_a_turn_that_was_answered_is_not_gone_around(db: Database) -> None:
    """Behind a done turn an older response id forks, whatever failed since."""
    one = await talk(db, WORK, "one")
    await talk(db, WORK, "two")
    await talk(db, WORK, "try", FAILED)
    other = await talk(db, After(one.id), "other")
    assert other.conversation_id != one.conversation_id
    assert await context(db, other.conversation_id) == ["one", "ONE", "other", "OTHER"]


async def test_a_turn_behind_any_number_that_never_began_can_be_continued(db: Database) -> None:
    """Each wrote nothing and continues the one before: where they end is looked for back to the one that wrote."""
    lease = await start(db, WORK, "one")
    for _ in range(1100):
        waiting = (await admit(db, WORK, "two")).turn
        await db.write(turns.cancel, ALICE, waiting.id)
    await end(db, lease, DONE, "ONE")
    three = await talk(db, After(waiting.id), "three")
    assert await context(db, three.conversation_id) == ["one", "ONE", "three", "THREE"]


async def test_a_retry_of_the_first_turn_of_a_fork_leaves_the_fork_alone(db: Database) -> None:
    """Going around failed tries never leaves the conversation of the turn that was named."""
    one = await talk(db, WORK, "one")
    two = await talk(db, WORK, "two")
    forked = await talk(db, After(one.id), "other", FAILED)
    third = await talk(db, After(two.id), "three")
    assert third.conversation_id == one.conversation_id != forked.conversation_id
    assert await context(db, third.conversation_id) == ["one", "ONE", "two", "TWO", "three", "THREE"]


# -- turns that joined another


async def test_a_turn_that_joined_another_counts_as_its_host(db: Database) -> None:
    """Both response ids lead on to the same place."""
    lease = await start(db, WORK, "one")
    also = await joined(db, lease)
    host = await end(db, lease, DONE, "both")
    assert (await db.read(turns.outcome_of, ALICE, also.id)).id == host.id
    two = await talk(db, After(also.id), "two")
    assert (two.conversation_id, two.parent_turn) == (host.conversation_id, host.id)
    assert await context(db, host.conversation_id) == ["one", "also", "both", "two", "TWO"]


async def test_the_host_is_the_tip_when_what_came_after_it_joined_it(db: Database) -> None:
    """A steered input is part of its host, so the host's own response id still leads on."""
    lease = await start(db, WORK, "one")
    await joined(db, lease)
    host = await end(db, lease, DONE, "both")
    two = await talk(db, After(host.id), "two")
    assert two.conversation_id == host.conversation_id


async def test_a_retry_goes_past_a_failed_host_and_all_that_joined_it(db: Database) -> None:
    """The failed try and the inputs that joined it are hidden together."""
    one = await talk(db, WORK, "one")
    lease = await start(db, WORK, "try")
    await joined(db, lease)
    await end(db, lease, FAILED)
    retry = await talk(db, After(one.id), "retry")
    assert retry.conversation_id == one.conversation_id
    assert await context(db, one.conversation_id) == ["one", "ONE", "retry", "RETRY"]


async def test_a_retry_goes_past_a_failed_interrupt_that_an_older_input_had_joined(db: Database) -> None:
    """An input that waited to steer joins the interrupt admitted after it: each is then the other's ancestor."""
    one = await talk(db, WORK, "one")
    stopped = await start(db, WORK, "try")
    also = (await admit(db, WORK, "also", busy="steer")).turn
    await admit(db, WORK, "rather", busy="interrupt")
    await end(db, stopped, CANCELLED)
    lease = await db.write(turns.claim, one.conversation_id, N1)
    assert [t.id for t in await db.write(turns.absorb, lease)] == [also.id]
    await end(db, lease, FAILED)

    async def admit_within_bounds(tx: Tx):
        return await admission.admit(Bounded(tx), submission(After(one.id), "retry"))

    retry = (await db.write(admit_within_bounds)).turn
    assert retry.conversation_id == one.conversation_id
    await db.write(turns.claim, one.conversation_id, N1)
    assert await context(db, one.conversation_id) == ["one", "ONE", "retry"]


async def test_an_input_that_joined_its_host_does_not_stand_in_front_of_a_turn_that_waits(db: Database) -> None:
    """Of host, waiting turn and joined input the waiting turn is the last in the log: it is continued, the host is
    branched off."""
    lease = await start(db, WORK, "one")
    waiting = (await admit(db, WORK, "two")).turn
    await joined(db, lease)
    host = await end(db, lease, DONE, "both")
    second = await db.write(turns.claim, host.conversation_id, N1)
    assert second.turn.id == waiting.id
    await end(db, second, DONE, "TWO")
    other = await admit(db, After(host.id), "other")
    third = await admit(db, After(waiting.id), "three")
    assert other.turn.conversation_id != host.conversation_id
    assert third.turn.conversation_id == host.conversation_id


# -- upkeep


async def test_upkeep_never_moves_the_tip(db: Database) -> None:
    """Compactions and posted items are invisible to clients: the same response id still leads on."""
    one = await talk(db, WORK, "one")
    tended = await tend(db, WORK, Compaction(2, "in short"))
    waiting = (await db.write(admission.admit, upkeep(WORK, Note("noted")))).turn
    assert tended.status == "done"
    assert waiting.parent_turn is None
    assert (await conversation(db, one.conversation_id)).tip_turn == one.id
    two = await talk(db, After(one.id), "two")
    assert (two.conversation_id, two.parent_turn) == (one.conversation_id, one.id)
    assert await context(db, one.conversation_id) == ["two", "TWO"]
