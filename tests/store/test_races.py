"""Races: what happens at once ends as if it had happened one after the other.

On PostgreSQL the transactions really overlap, in two `Postgres` objects (two processes, as far as the server knows):
`race` lets none pass a statement before all have come to it, and `interleave` holds one open between two statements
while another runs until it is done or waits for a lock. SQLite runs one transaction at a time; there the same test
body puts them into its queue together.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from acts import (
    BOUND,
    CANCELLED,
    DONE,
    FAILED,
    N1,
    N2,
    N3,
    all_of,
    context,
    conversation,
    end,
    enter,
    expire,
    heir,
    interleave,
    race,
    rows,
    said,
    start,
    submission,
    talk,
    transcript,
    turn,
    upkeep,
)
from msgspec import structs

from conftest import ALICE, open_database
from legato.domain.attachments import Blob
from legato.domain.conversations import Conversation
from legato.domain.entries import Compaction, Image, Message, Note, draft
from legato.domain.events import AnyEvent, Delta
from legato.domain.handles import Address, ById, External, Name, Slug
from legato.domain.ids import NodeId, TurnId, new_turn_id
from legato.domain.turns import Admission, After, Dedup, Fresh, Input, Lease, Submission, Target, Usage
from legato.engine import keeping
from legato.errors import AliasTaken, Conflict, LeaseLost, NotFound, UnfinishedTurn
from legato.store import admission, batches, blobs, directory, log, nodes, outbox, requests, trash, turns
from legato.store.database import Database, Tx
from legato.store.postgres import Postgres
from legato.store.requests import Made
from legato.store.verify import Rule, verify

WORK = Slug("work")
CHAT = Address("chat", "bot", "1")
LOCK = ["lock_head", "lock_by_id"]  # the statements that take a known conversation's row lock

Crowd = list[Database]


@pytest.fixture
async def crowd(place: Any) -> AsyncIterator[Crowd]:
    """Two processes on one PostgreSQL, with a connection for everyone; on SQLite the one process there may be."""
    first = await open_database(place)
    databases = [first] if isinstance(place, Path) else [first, await Postgres.open(place, connections=20)]
    yield databases
    for database in databases:
        await database.close()


@pytest.fixture
def db(crowd: Crowd) -> Database:
    return crowd[-1]


def admitting(target: Target, text: str = "hello", node: NodeId | None = None, **more: Any) -> Callable[[Tx], Any]:
    return partial(_admit, wanted=submission(target, text, **more), node=node)


async def _admit(tx: Tx, wanted: Submission, node: NodeId | None) -> Admission:
    return await admission.admit(tx, wanted, node)


# -- names and keys


@pytest.mark.parametrize("name", [WORK, CHAT], ids=["slug", "address"])
async def test_twenty_first_contacts_under_one_name_make_one_conversation(
    crowd: Crowd, db: Database, name: Name
) -> None:
    """All twenty have looked and found nothing before the first of them makes the conversation."""
    jobs = [admitting(name, f"contact {i}") for i in range(20)]
    admitted = await race([db], jobs, at=["add_conversation"])
    assert [type(a) for a in admitted] == [Admission] * 20
    assert len({a.turn.conversation_id for a in admitted}) == 1
    assert sorted(a.turn.n for a in admitted) == list(range(1, 21))
    assert await rows(db, "select count(*) from conversations") == [(1,)]


@pytest.mark.parametrize(
    ("target", "at"), [(Fresh(), "add_conversation"), (WORK, "lock_by_name")], ids=["no name", "one name"]
)
async def test_twenty_submissions_under_one_dedup_key_are_one_turn(db: Database, target: Target, at: str) -> None:
    """All twenty have looked for the key and not found it before the first of them goes on."""
    if target == WORK:
        await talk(db, WORK)
    jobs = [admitting(target, dedup_key="k", request_hash="h") for _ in range(20)]
    admitted = await race([db], jobs, at=[at])
    assert [type(a) for a in admitted] == [Admission] * 20
    assert len({a.turn.id for a in admitted}) == 1
    assert [a.fresh for a in admitted].count(True) == 1
    assert await rows(db, "select count(*) from turns where dedup_key = 'k'") == [(1,)]
    assert await rows(db, "select count(*) from conversations") == [(1,)]


async def test_of_two_that_bind_one_name_the_second_is_refused(crowd: Crowd, db: Database) -> None:
    """A name has one meaning, whoever came first."""
    ids = [(await talk(db, Slug(f"talk-{i}"))).conversation_id for i in range(2)]
    jobs = [partial(_bind, conversation_id=conversation_id) for conversation_id in ids]
    results = await race(crowd, jobs, at=["add_alias"])
    assert sorted(type(r) for r in results if r is not None) == [AliasTaken]
    assert (await db.read(directory.find, ALICE, WORK)).id == ids[results.index(None)]


async def _bind(tx: Tx, conversation_id: Any) -> None:
    await directory.bind(tx, ALICE, WORK, conversation_id, move=False)


async def test_of_two_that_register_one_session_at_once_both_are_told_of_it(crowd: Crowd, db: Database) -> None:
    """The first has looked and found nothing when the second makes it."""
    register = partial(keeping._create, principal=ALICE, settings={}, name=External("mine"))
    first, second = await interleave(crowd, register, register, at=["add_conversation"])
    assert first.id == second.id
    assert await rows(db, "select count(*) from conversations") == [(1,)]


@pytest.mark.parametrize("at", ["find_by_name", "lock_by_id"])
async def test_a_fork_that_is_sent_twice_at_once_under_one_key_is_one_fork(crowd: Crowd, db: Database, at: str) -> None:
    """The first has looked for its key and not found it, or found the name to be free, when the second is done. Under
    another key the name is taken."""
    here = ById((await talk(db, WORK)).conversation_id)

    async def fork(tx: Tx, key: str) -> Made:
        made = partial(keeping._fork, principal=ALICE, handle=here, at=None, name=External("mine"))
        return await requests.once(tx, ALICE, Dedup(key, "h"), made)

    first, second = await interleave(crowd, partial(fork, key="k"), partial(fork, key="k"), at=[at])
    assert first.conversation == second.conversation
    assert sorted([first.fresh, second.fresh]) == [False, True]
    with pytest.raises(AliasTaken):
        await db.write(fork, "another")
    assert await rows(db, "select count(*) from conversations") == [(2,)]


async def test_of_two_forks_under_one_name_the_second_is_refused(crowd: Crowd, db: Database) -> None:
    """Both have found the name to be free."""
    here = ById((await talk(db, WORK)).conversation_id)
    fork = partial(keeping._fork, principal=ALICE, handle=here, at=None, name=External("mine"))
    first, second = await interleave(crowd, fork, fork, at=["lock_by_id"])
    assert {type(first), type(second)} == {Conversation, AliasTaken}
    assert await rows(db, "select count(*) from conversations") == [(2,)]


# -- continue or fork


async def test_of_two_continuations_of_one_response_one_stays_and_one_forks(crowd: Crowd, db: Database) -> None:
    """The first has read the tip and not yet moved it when the second comes."""
    one = await talk(db, WORK, "one")
    first, second = await interleave(
        crowd, admitting(After(one.id), "first"), admitting(After(one.id), "second"), at=["draw_turn"]
    )
    assert first.turn.conversation_id == one.conversation_id
    assert second.turn.conversation_id != one.conversation_id
    assert (await conversation(db, one.conversation_id)).tip_turn == first.turn.id
    fork = await conversation(db, second.turn.conversation_id)
    assert (fork.parent_id, fork.base_seq, fork.tip_turn) == (one.conversation_id, one.last_seq, second.turn.id)


async def test_of_eight_continuations_of_one_response_one_stays_and_seven_fork(crowd: Crowd, db: Database) -> None:
    """Each in a conversation of its own, none lost."""
    one = await talk(db, WORK, "one")
    jobs = [admitting(After(one.id), f"number {i}") for i in range(8)]
    admitted = await race(crowd, jobs, at=LOCK)
    places = [a.turn.conversation_id for a in admitted]
    assert len(set(places)) == 8
    assert places.count(one.conversation_id) == 1
    assert {a.turn.parent_turn for a in admitted} == {one.id}


async def test_turns_admitted_at_once_by_name_stand_in_one_line(crowd: Crowd, db: Database) -> None:
    """The first has read the conversation and not yet drawn its number when the second comes."""
    await talk(db, WORK, "one")
    first, second = await interleave(crowd, admitting(WORK, "first"), admitting(WORK, "second"), at=["draw_turn"])
    assert (first.turn.n, second.turn.n) == (2, 3)
    assert second.turn.parent_turn == first.turn.id


async def test_of_two_that_would_rather_be_rejected_than_wait_one_is_admitted(crowd: Crowd, db: Database) -> None:
    """The first has seen an idle conversation and not yet made it busy when the second looks."""
    await talk(db, WORK, "one")
    first, second = await interleave(
        crowd, admitting(WORK, "first", busy="reject"), admitting(WORK, "second", busy="reject"), at=["draw_turn"]
    )
    assert isinstance(first, Admission)
    assert isinstance(second, Conflict)


async def test_nothing_is_admitted_to_a_conversation_that_is_deleted_meanwhile(crowd: Crowd, db: Database) -> None:
    """The response id was known when it was named, and is not when the place is chosen."""
    one = await talk(db, WORK, "one")
    admitted, _ = await interleave(crowd, admitting(After(one.id), "two"), _delete, at=LOCK)
    [(deleted_at,)] = await rows(db, "select deleted_at from conversations")
    if isinstance(admitted, Admission):
        assert admitted.turn.created_at <= deleted_at
    else:
        assert isinstance(admitted, NotFound)
        assert len(await all_of(db, one.conversation_id)) == 1


async def _delete(tx: Tx) -> None:
    await directory.delete(tx, ALICE, WORK)


async def test_a_fork_of_what_is_purged_meanwhile_is_whole_or_refused(crowd: Crowd, db: Database) -> None:
    """What a fork will read is not cut off between its look at the log and its own beginning."""
    one = await talk(db, WORK, "one")
    two = await talk(db, WORK, "two")
    here = ById(two.conversation_id)
    await db.write(directory.create, ALICE, parent=here.id, base=one.last_seq)

    async def purge(tx: Tx) -> None:
        await directory.delete(tx, ALICE, here)
        await trash.purge(tx, ALICE, here.id)

    fork = partial(keeping._fork, principal=ALICE, handle=here, at=None)
    made, _ = await interleave(crowd, fork, purge, at=["add_conversation"])
    assert await transcript(db, made.id) == ["one", "ONE", "two", "TWO"]
    assert [str(finding) async for finding in verify(db)] == []


@pytest.mark.parametrize("how", ["by name", "by a new name", "by response id", "by nothing"])
async def test_a_clients_retry_that_meets_the_first_on_its_way_in_is_the_same_turn(
    crowd: Crowd, db: Database, how: str
) -> None:
    """The first has not committed when the second looks for it."""
    known = (await talk(db, WORK)).id
    targets: dict[str, Target] = {"by name": WORK, "by a new name": Slug("new"), "by response id": After(known)}
    target = targets.get(how, Fresh())
    first = admitting(target, "and?", request_hash="h")
    retry = admitting(target, "and?", request_hash="h", retry=True)
    one, other = await interleave(crowd, first, retry, at=["add_turn"], until=["find_failed_try"])
    assert (one.turn.id, one.fresh, other.fresh) == (other.turn.id, True, False)


@pytest.mark.parametrize("at", ["add_turn", "purge_blob"], ids=["admitted first", "purged first"])
async def test_a_picture_that_is_sent_again_while_it_is_purged_elsewhere_stays(
    crowd: Crowd, db: Database, at: str
) -> None:
    """Its last conversation goes at the moment in which another begins with the same bytes."""
    picture = Blob.of(b"picture", "image/png")
    sent = Submission(
        principal=ALICE,
        target=Fresh(),
        input=Input((draft(Message("user", (Image(blob=picture.sha256),))),)),
        blobs=(picture,),
    )
    old = await db.write(admission.admit, sent, N1)
    assert old.lease is not None
    await end(db, old.lease)
    await db.write(directory.delete, ALICE, ById(old.turn.conversation_id))
    purge = partial(trash.purge, principal=ALICE, conversation_id=old.turn.conversation_id)
    again = partial(admission.admit, submission=structs.replace(sent, turn_id=new_turn_id()))
    both: list[Callable[[Tx], Coroutine[Any, Any, Any]]] = [again, purge] if at == "add_turn" else [purge, again]
    outcomes = await interleave(crowd, *both, at=[at])
    assert [outcome for outcome in outcomes if isinstance(outcome, BaseException)] == []
    assert await db.read(blobs.get, ALICE, [picture.sha256]) == {picture.sha256: picture}


# -- claims and takeovers


async def test_of_eight_claimers_one_gets_the_turn(crowd: Crowd, db: Database) -> None:
    """All eight stand before the conversation's lock; one comes out with the lease, the others with nothing."""
    waiting = (await db.write(admission.admit, submission(WORK, "one"))).turn
    await enter(db, N1)
    await enter(db, N2)
    jobs = [partial(_claim, conversation_id=waiting.conversation_id, node=(N1, N2)[i % 2]) for i in range(8)]
    leases = await race(crowd, jobs, at=LOCK)
    [lease] = [got for got in leases if got is not None]
    assert lease.fence == (await conversation(db, waiting.conversation_id)).fence == 1
    assert (await turn(db, waiting.id)).attempts == 1
    assert await transcript(db, waiting.conversation_id) == ["one"]


async def _claim(tx: Tx, conversation_id: Any, node: NodeId) -> Lease | None:
    return await turns.claim(tx, conversation_id, node)


async def _append(tx: Tx, lease: Lease, text: str) -> tuple[int, int]:
    return await turns.append(tx, lease, [said(text, "assistant")])


async def orphan(db: Database) -> Lease:
    """A turn whose node has died, unless that node still writes."""
    lease = await start(db, WORK, "one")
    await expire(db, N1)
    await enter(db, N2)
    return lease


async def test_an_append_under_way_is_finished_before_the_turn_is_taken_over(crowd: Crowd, db: Database) -> None:
    """The old holder has its position and not yet its entry: the heir waits, and goes on behind it."""
    lease = await orphan(db)
    claim = partial(_claim, conversation_id=lease.turn.conversation_id, node=N2)
    places, taken = await interleave(crowd, partial(_append, lease=lease, text="last"), claim, at=["add_entry"])
    assert places == (2, 2)
    assert await db.write(_append, taken, "next") == (3, 3)
    assert await transcript(db, lease.turn.conversation_id) == ["one", "last", "next"]


async def test_an_append_that_meets_a_takeover_is_refused(crowd: Crowd, db: Database) -> None:
    """The heir has the turn and not yet raised the fence: the old holder waits, and has lost."""
    lease = await orphan(db)
    claim = partial(_claim, conversation_id=lease.turn.conversation_id, node=N2)
    taken, refusal = await interleave(crowd, claim, partial(_append, lease=lease, text="late"), at=["open_head"])
    assert isinstance(refusal, LeaseLost)
    assert await db.write(_append, taken, "next") == (2, 2)
    assert await transcript(db, lease.turn.conversation_id) == ["one", "next"]


async def _finish(tx: Tx, lease: Lease) -> turns.Ending:
    return await turns.finish(tx, lease, DONE, [said("ONE", "assistant")])


async def test_an_end_that_meets_a_takeover_is_refused(crowd: Crowd, db: Database) -> None:
    """There is one end, and the heir writes it."""
    lease = await orphan(db)
    claim = partial(_claim, conversation_id=lease.turn.conversation_id, node=N2)
    taken, refusal = await interleave(crowd, claim, partial(_finish, lease=lease), at=["open_head"])
    assert isinstance(refusal, LeaseLost)
    assert (await turn(db, lease.turn.id)).status == "running"
    assert (await end(db, taken, DONE, "ONE")).status == "done"


async def _tell(tx: Tx, lease: Lease, n: int, events: list[AnyEvent]) -> None:
    await batches.add(tx, lease, n, events)
    await tx.run("clock")


async def _claim_and_read(tx: Tx, lease: Lease, node: NodeId) -> tuple[Lease | None, int]:
    taken = await turns.claim(tx, lease.turn.conversation_id, node)
    return taken, len((await turns.events_from(tx, lease.turn.id, 0))[1])


async def test_events_under_way_are_counted_by_the_heir(crowd: Crowd, db: Database) -> None:
    """The old holder's batch is written and not yet committed: the heir waits, sees it, and goes on behind it."""
    lease = await orphan(db)
    await db.write(_tell, lease, 0, [Delta(0, "a")])
    telling = partial(_tell, lease=lease, n=1, events=[Delta(0, "b"), Delta(0, "c")])
    told, (taken, n) = await interleave(crowd, telling, partial(_claim_and_read, lease=lease, node=N2), at=["clock"])
    assert told is None
    assert n == 3
    await db.write(_tell, taken, n, [Delta(0, "d")])
    events = (await db.read(turns.events_from, lease.turn.id, 0))[1]
    assert "".join(event.text for event in events) == "abcd"


async def test_events_that_meet_a_takeover_are_refused(crowd: Crowd, db: Database) -> None:
    """The heir has the turn and not yet raised the fence: the old holder's batch waits, and is refused."""
    lease = await orphan(db)
    await db.write(_tell, lease, 0, [Delta(0, "a")])
    late = partial(_tell, lease=lease, n=1, events=[Delta(0, "late")])
    (taken, n), refusal = await interleave(
        crowd, partial(_claim_and_read, lease=lease, node=N2), late, at=["open_head"]
    )
    assert isinstance(refusal, LeaseLost)
    await db.write(_tell, taken, n, [Delta(0, "b")])
    events = (await db.read(turns.events_from, lease.turn.id, 0))[1]
    assert "".join(event.text for event in events) == "ab"


# -- an end and what waits behind it


async def test_what_is_admitted_while_a_turn_ends_is_started_by_its_admission(crowd: Crowd, db: Database) -> None:
    """The end has been written and not yet committed: the admission waits, finds nothing running, and starts."""
    lease = await start(db, WORK, "one")
    ending, admitted = await interleave(
        crowd, partial(_finish, lease=lease), admitting(WORK, "two", node=N1), at=["any_open"]
    )
    assert not ending.more
    assert admitted.lease is not None
    assert await transcript(db, lease.turn.conversation_id) == ["one", "ONE", "two"]


async def test_what_is_admitted_before_a_turn_ends_is_seen_by_its_end(crowd: Crowd, db: Database) -> None:
    """The admission has found a running turn and not yet committed: the end waits, and says that more is there."""
    lease = await start(db, WORK, "one")
    admitted, ending = await interleave(
        crowd, admitting(WORK, "two", node=N1), partial(_finish, lease=lease), at=["claim_turn"]
    )
    assert admitted.lease is None
    assert ending.more


# -- steering


async def _absorb(tx: Tx, lease: Lease) -> list[Any]:
    return await turns.absorb(tx, lease)


async def _cancel(tx: Tx, turn_id: TurnId) -> Any:
    return await turns.cancel(tx, ALICE, turn_id)


async def steered(db: Database) -> tuple[Lease, TurnId]:
    """A running turn, and an input that wants to join it."""
    lease = await start(db, WORK, "one")
    return lease, (await db.write(admission.admit, submission(WORK, "also", busy="steer"))).turn.id


async def test_an_input_cancelled_while_it_is_about_to_join_is_not_said(crowd: Crowd, db: Database) -> None:
    """It is cancelled and nowhere in the log, or it has joined and its host is asked to stop: never a bit of both."""
    lease, also = await steered(db)
    await interleave(crowd, partial(_absorb, lease=lease), partial(_cancel, turn_id=also), at=["advance_head"])
    said_so = await transcript(db, lease.turn.conversation_id)
    if (await turn(db, also)).status == "cancelled":
        assert said_so == ["one"]
    else:
        assert said_so == ["one", "also"]
        assert (await turn(db, lease.turn.id)).cancel_at is not None


async def test_a_wish_to_cancel_follows_an_input_that_joins_meanwhile(crowd: Crowd, db: Database) -> None:
    """The input was waiting when the wish was read and is part of its host when it is carried out."""
    lease, also = await steered(db)
    await interleave(crowd, partial(_cancel, turn_id=also), partial(_absorb, lease=lease), at=LOCK)
    host, joined = await turn(db, lease.turn.id), await turn(db, also)
    assert host.cancel_at is not None if joined.status == "joined" else joined.status == "cancelled"


async def test_what_follows_an_input_that_joins_meanwhile_follows_its_host(crowd: Crowd, db: Database) -> None:
    """The input was waiting when it was named and is part of the host, at the tip, when the place is chosen."""
    lease, also = await steered(db)
    following, _ = await interleave(crowd, admitting(After(also), "two"), partial(_absorb, lease=lease), at=LOCK)
    assert isinstance(following, Admission)
    assert following.turn.conversation_id == lease.turn.conversation_id
    came_first = also if db.dialect == "sqlite" else lease.turn.id  # on SQLite it was admitted before the joining
    assert following.turn.parent_turn == came_first


# -- deliveries


async def _take(tx: Tx, node: NodeId) -> outbox.Delivery | None:
    taken = await outbox.take(tx, node)
    await tx.run("clock")
    return taken


async def owing(db: Database, chats: int, answers: int) -> None:
    """Answers owed to some addresses."""
    for chat in range(chats):
        lease = await start(db, Slug(f"talk-{chat}"))
        address = Address("chat", "bot", str(chat))
        await db.write(directory.bind, ALICE, address, lease.turn.conversation_id, move=False)
        await end(db, lease)
        for _ in range(answers - 1):
            await talk(db, Slug(f"talk-{chat}"))


async def test_of_two_senders_one_sends_to_an_address(crowd: Crowd, db: Database) -> None:
    """The first has taken an answer and not yet committed: the second does not overtake it with the next one."""
    await owing(db, 1, 2)
    first, second = await interleave(crowd, partial(_take, node=N1), partial(_take, node=N2), at=["clock"])
    assert first.id == min(await rows(db, "select id from deliveries"))[0]
    assert second is None


async def _choose_and_take(tx: Tx) -> outbox.Delivery | None:
    """A sender between choosing the oldest answer, which locks it, and marking it as its own."""
    if tx.dialect == "postgres":
        await tx.script("select id from deliveries order by id limit 1 for update")
    await tx.run("clock")
    return await outbox.take(tx, N1)


async def test_a_sender_does_not_overtake_another_that_is_choosing(crowd: Crowd, db: Database) -> None:
    """The oldest answer is locked and not yet marked: the second sender does not go past it to the next one."""
    await owing(db, 1, 2)
    first, second = await interleave(crowd, _choose_and_take, partial(_take, node=N2), at=["clock"])
    assert second is None
    assert first.id == min(await rows(db, "select id from deliveries"))[0]


async def test_eight_senders_never_have_two_answers_to_one_address_in_flight(crowd: Crowd, db: Database) -> None:
    """Nothing is taken twice, each address has at most one under way, and in the end all went out in order."""
    await owing(db, 3, 3)
    sent: list[outbox.Delivery] = []
    while True:
        results = await race(crowd, [partial(_take, node=N1) for _ in range(8)], at=["next_delivery"])
        taken = [delivery for delivery in results if delivery is not None]
        if not taken:
            break
        assert len({d.address for d in taken}) == len(taken)
        for delivery in taken:
            await db.write(outbox.settle, delivery.id, N1, "sent", None)
        sent += taken
    assert len({d.id for d in sent}) == len(sent) == 9
    for address in {d.address for d in sent}:
        order = [d.id for d in sent if d.address == address]
        assert order == sorted(order)


# -- everything at once


class Crew:
    """Some people and workers who do anything to a few conversations, in any order."""

    def __init__(self, crowd: Crowd, seed: int) -> None:
        self.crowd = crowd
        self.dice = random.Random(seed)
        self.known: list[TurnId] = []
        self.leases: list[Lease] = []
        self.refused = 0

    async def work(self, acts: int) -> None:
        often = [self.admit, self.claim, self.append, self.finish] * 2
        seldom = [self.tell, self.absorb, self.cancel, self.hand_back, self.tend, self.die]
        for _ in range(acts):
            act = self.dice.choice(often + seldom)
            try:
                await act(self.dice.choice(self.crowd))
            except (Conflict, UnfinishedTurn):
                self.refused += 1

    async def admit(self, db: Database) -> None:
        target: Target = Slug(f"talk-{self.dice.randrange(3)}")
        if self.known and self.dice.random() < 0.3:
            target = After(self.dice.choice(self.known[-10:]))
        busy = self.dice.choice(["queue", "queue", "steer", "interrupt", "reject"])
        key = f"key-{self.dice.randrange(50)}" if self.dice.random() < 0.3 else None
        node = self.dice.choice([None, N1, N2])
        admitted = await db.write(admission.admit, submission(target, "said", busy=busy, dedup_key=key), node)
        self.known.append(admitted.turn.id)
        if admitted.lease is not None:
            self.leases.append(admitted.lease)

    async def claim(self, db: Database) -> None:
        for conversation_id in await db.read(turns.claimable, N3, 3):
            lease = await db.write(turns.claim, conversation_id, self.dice.choice([N1, N2]))
            if lease is not None:
                self.leases.append(lease)

    async def append(self, db: Database) -> None:
        if lease := self.lease():
            progress = self.dice.choice([None, Usage(1, 1)])
            await db.write(
                turns.append,
                lease,
                [said("more", "assistant") for _ in range(self.dice.randrange(3))],
                progress=progress,
            )

    async def tell(self, db: Database) -> None:
        async def tell(tx: Tx, lease: Lease) -> None:
            _, told = await turns.events_from(tx, lease.turn.id, 0)
            await batches.add(tx, lease, len(told), [Delta(0, "x")] * self.dice.randrange(1, 4))

        if lease := self.lease():
            await db.write(tell, lease)

    async def finish(self, db: Database) -> None:
        if lease := self.lease():
            await db.write(turns.finish, lease, self.dice.choice([DONE, FAILED, CANCELLED]), [said("end", "assistant")])

    async def absorb(self, db: Database) -> None:
        if lease := self.lease():
            await db.write(turns.absorb, lease)

    async def hand_back(self, db: Database) -> None:
        if lease := self.lease():
            await db.write(turns.release, lease)

    async def cancel(self, db: Database) -> None:
        if self.known:
            await db.write(turns.cancel, ALICE, self.dice.choice(self.known))

    async def tend(self, db: Database) -> None:
        body = self.dice.choice([Note("noted"), Compaction(0, "in short")])
        await db.write(admission.admit, upkeep(Slug(f"talk-{self.dice.randrange(3)}"), body), N1)

    async def die(self, db: Database) -> None:
        await db.write(nodes.renew, self.dice.choice([N1, N2]), self.dice.choice([-1.0, 600.0]))

    def lease(self) -> Lease | None:
        """One of the latest leases; some of them are lost."""
        return self.dice.choice(self.leases[-6:]) if self.leases else None


async def test_whatever_is_done_at_once_ends_in_order(
    place: Any, crowd: Crowd, db: Database, request: pytest.FixtureRequest
) -> None:
    """A random load of everything on few conversations: nothing but the errors that the rules name, no deadlock, and
    afterwards every log is gapless, every turn in its place, every event counted once."""
    rounds = 20 if request.config.getoption("--long") else 1
    refused = 0
    for seed in range(rounds):
        crew = Crew(crowd, seed)
        async with asyncio.timeout(BOUND), asyncio.TaskGroup() as group:
            for _ in range(8):
                group.create_task(crew.work(60))
        refused += crew.refused
    await drained(db)
    await check_logs(db)
    await check_turns(db)
    findings = [str(finding) async for finding in verify(db) if finding.rule != Rule.items]
    assert findings == []
    assert refused, "nothing ever collided"
    if not isinstance(place, Path):
        assert await deadlocks(place, crowd) == 0


async def drained(db: Database) -> None:
    """Everything that still waits or runs is run to its end."""
    await db.write(nodes.start, N3, 600.0, alone=True)
    while waiting := await db.read(turns.claimable, N3, 100):
        for conversation_id in waiting:
            if lease := await db.write(turns.claim, conversation_id, N3):
                await end(db, lease, DONE, "end")


async def check_logs(db: Database) -> None:
    """Positions without a gap up to the head, nothing twice, events in one line."""
    for conversation_id, base, head in await rows(db, "select id, base_seq, head_seq from conversations"):
        own = await rows(db, f"select seq from entries where conversation_id = '{conversation_id}' order by seq")
        assert [seq for (seq,) in own] == list(range(base + 1, head + 1))
    twice = "select id from entries where kind = 'message' group by conversation_id, id having count(*) > 1"
    assert await rows(db, twice) == []
    batches = await rows(db, "select turn_id, first_n, last_n from turn_events order by turn_id, first_n")
    for before, after in pairwise([("", 0, 0), *batches]):
        assert after[1] == (before[2] + 1 if before[0] == after[0] else 0)


async def check_turns(db: Database) -> None:
    """Numbers without a gap, everything ended, who waited in the queue was served in its order, inputs in the log."""
    for (conversation_id,) in await rows(db, "select id from conversations"):
        known = await all_of(db, conversation_id)
        assert [t.n for t in known] == list(range(1, len(known) + 1))
        assert all(t.ended for t in known)
        served = [t.first_seq for t in known if t.busy == "queue" and t.first_seq is not None]
        assert served == sorted(served)
        for told in known:
            entries = await db.read(log.entries_of_turn, told)
            inputs = [d.id for d in told.input.drafts]
            written = [e.id for e in entries if e.id in inputs]
            assert written == (inputs if told.first_seq is not None else [])
            if told.first_seq is None:
                assert told.status == "cancelled"
        await context(db, conversation_id)
        await transcript(db, conversation_id)


async def deadlocks(url: str, crowd: Crowd) -> int:
    """How many the server had to break, counted when everyone has left."""
    for database in crowd:
        await database.close()
    connection = await asyncpg.connect(url)
    try:
        count: int = await connection.fetchval(
            "select deadlocks from pg_stat_database where datname = current_database()"
        )
    finally:
        await connection.close()
    return count


async def test_a_second_holder_never_sees_the_first_ones_lease(crowd: Crowd, db: Database) -> None:
    """Twelve takeovers in a row, each racing with the holder before it: of all appends exactly those of a holder
    before its loss are in the log."""
    lease = await start(db, WORK, "one")
    kept = ["one"]
    for number in range(12):
        await expire(db, lease.turn.owner)
        node = (N2, N1)[number % 2]
        await enter(db, node)
        claim = partial(_claim, conversation_id=lease.turn.conversation_id, node=node)
        write = partial(_append, lease=lease, text=str(number))
        jobs: list[Callable[[Tx], Coroutine[Any, Any, Any]]] = [claim, write]
        taken, places = await race(crowd, jobs, at=["lock_head", "advance_head"])
        if not isinstance(places, LeaseLost):
            kept.append(str(number))
        lease = taken
    assert await transcript(db, lease.turn.conversation_id) == kept
    assert [e.seq for e in await db.read(log.read_transcript, lease.turn.conversation_id)] == list(
        range(1, len(kept) + 1)
    )
    assert (await heir(db, lease)).fence == lease.fence + 1


async def test_a_process_that_stands_still_in_mid_statement_is_not_waited_for(pg_url: str) -> None:
    """Between a statement's first message and its second no timeout of the server looks after its locks."""
    db = await open_database(pg_url)
    standing = await asyncpg.connect(pg_url, server_settings={"application_name": "legato"})
    try:
        lease = await start(db, WORK)
        await standing.execute("begin; set idle_in_transaction_session_timeout = '5s'; set statement_timeout = '5s'")
        await standing.execute("select 1 from conversations for update")
        await standing.prepare("select 2")  # and then nothing
        async with asyncio.timeout(20):
            await end(db, lease)
        assert (await turn(db, lease.turn.id)).status == "done"
    finally:
        standing.terminate()
        await db.close()
