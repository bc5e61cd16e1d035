"""The outbox: an answer is owed exactly when its turn is done, and is sent in order, at most once."""

import pytest
from acts import CANCELLED, DONE, FAILED, N1, N2, admit, end, enter, expire, joined, rows, script, start, talk, tend

from conftest import ALICE
from legato.domain.entries import Message, Note, Text, draft
from legato.domain.handles import Address, Slug
from legato.domain.turns import Input, Lease, Outcome, Submission
from legato.errors import Defect
from legato.store import admission, directory, nodes, outbox, search, turns
from legato.store.database import Database
from legato.store.verify import verify

WORK = Slug("work")
CHAT, OTHER = Address("chat", "bot", "1"), Address("chat", "bot", "2")


async def bind(db: Database, slug: Slug, *addresses: Address) -> None:
    """Addresses that a conversation answers to."""
    conversation_id = (await talk(db, slug, "hello")).conversation_id
    for address in addresses:
        await db.write(directory.bind, ALICE, address, conversation_id, move=True)


async def say(db: Database, slug: Slug, answer: str) -> str:
    """A turn with this answer."""
    lease = await start(db, slug)
    return (await end(db, lease, Outcome(status="done", answer=answer))).id


async def taken(db: Database, node=N1) -> str | None:
    delivery = await db.write(outbox.take, node)
    return delivery and delivery.body


async def test_a_done_turn_owes_its_answer_to_every_address_of_its_conversation(db: Database) -> None:
    """One delivery each, with the answer's text; other names of the conversation get nothing."""
    await bind(db, WORK, CHAT, OTHER)
    turn_id = await say(db, WORK, "héllo 東")
    owed = await db.read(outbox.of_turn, turn_id)
    assert [(d.turn_id, d.address, d.body, d.status, d.attempts) for d in owed] == [
        (turn_id, CHAT.value, '{"text":"héllo 東","asked":"hello"}', "pending", 0),
        (turn_id, OTHER.value, '{"text":"héllo 東","asked":"hello"}', "pending", 0),
    ]


async def test_an_answer_is_owed_only_when_the_turn_is_done(db: Database) -> None:
    """Nothing while it waits or runs, nothing when it fails or is cancelled, nothing for upkeep."""
    await bind(db, WORK, CHAT)
    for outcome in (FAILED, CANCELLED):
        lease = await start(db, WORK)
        await admit(db, WORK)
        assert await rows(db, "select count(*) from deliveries") == [(0,)]
        await end(db, lease, outcome)
        await end(db, await db.write(turns.claim, lease.turn.conversation_id, N1), outcome)
    assert (await tend(db, WORK, Note("noted"))).status == "done"
    assert await rows(db, "select count(*) from deliveries") == [(0,)]
    await say(db, WORK, "at last")
    assert await rows(db, "select count(*) from deliveries") == [(1,)]


async def test_where_it_was_asked_it_is_answered_wherever_the_address_leads_by_then(db: Database) -> None:
    """Without what was asked, which stands there; others are told, with who said it. A failure is told there alone."""
    await bind(db, WORK, CHAT, OTHER)
    message = Message("user", (Text("hello"),), sender="Ann")
    asked = Input((draft(message),), origin=CHAT.value, reply_to="m-7")
    lease = await start_with(db, asked)
    await db.write(directory.bind, ALICE, CHAT, (await talk(db, Slug("fresh"))).conversation_id, move=True)
    done = await end(db, lease, Outcome(status="done", answer="hi"))
    assert {d.address: d.body for d in await db.read(outbox.of_turn, done.id)} == {
        CHAT.value: '{"text":"hi","reply_to":"m-7"}',
        OTHER.value: '{"text":"hi","asked":"Ann: hello"}',
    }
    failed = await end(db, await start_with(db, asked), FAILED)
    assert {d.address: d.body for d in await db.read(outbox.of_turn, failed.id)} == {
        CHAT.value: '{"text":"No answer: It broke.","failed":"broken","reply_to":"m-7"}'
    }


async def start_with(db: Database, given: Input) -> Lease:
    await enter(db, N1)
    submission = Submission(principal=ALICE, target=WORK, input=given)
    lease = (await db.write(admission.admit, submission, N1)).lease
    assert lease is not None
    return lease


async def test_inputs_that_joined_a_turn_share_its_one_answer(db: Database) -> None:
    """One answer, one delivery."""
    await bind(db, WORK, CHAT)
    lease = await start(db, WORK)
    also = await joined(db, lease)
    host = await end(db, lease)
    assert len(await db.read(outbox.of_turn, host.id)) == 1
    assert await db.read(outbox.of_turn, also.id) == []


async def test_a_conversation_without_an_address_owes_nothing(db: Database) -> None:
    """Clients of the API read their answers themselves."""
    done = await talk(db, WORK)
    assert await db.read(outbox.of_turn, done.id) == []


async def test_the_schema_refuses_to_owe_an_answer_twice(db: Database) -> None:
    """One turn, one address, one delivery."""
    await bind(db, WORK, CHAT)
    await say(db, WORK, "one")
    with pytest.raises(Defect):
        await script(
            db,
            "insert into deliveries (turn_id, address, body, status, created_at, updated_at) "
            "select turn_id, address, body, status, 0, 0 from deliveries",
        )


async def test_the_schema_refuses_two_answers_in_flight_to_one_address(db: Database) -> None:
    """Whoever sends them; another address is another matter."""
    await bind(db, WORK, CHAT, OTHER)
    for answer in ("one", "two"):
        await say(db, WORK, answer)
    await script(
        db, "update deliveries set status = 'sending' where id in (select min(id) from deliveries group by address)"
    )
    with pytest.raises(Defect):
        await script(db, f"update deliveries set status = 'sending' where address = '{CHAT.value}'")
    assert await rows(db, "select status, count(*) from deliveries group by status order by 1") == [
        ("pending", 2),
        ("sending", 2),
    ]


async def test_answers_to_an_address_are_sent_in_order_one_at_a_time(db: Database) -> None:
    """The next one starts when the one before it is settled; other addresses do not wait."""
    await bind(db, WORK, CHAT)
    await bind(db, Slug("play"), OTHER)
    for slug, answer in ((WORK, "one"), (WORK, "two"), (Slug("play"), "three")):
        await say(db, slug, answer)
    first = await db.write(outbox.take, N1)
    assert (first.body, first.status, first.attempts) == ('{"text":"one","asked":"hello"}', "sending", 1)
    assert await taken(db, N2) == '{"text":"three","asked":"hello"}'
    assert await taken(db, N2) is None
    await db.write(outbox.settle, first.id, N1, "sent", "m-1")
    assert await taken(db, N2) == '{"text":"two","asked":"hello"}'
    [kept] = await db.read(outbox.of_turn, first.turn_id)
    assert (kept.status, kept.platform_message_id) == ("sent", "m-1")


async def test_an_answer_that_is_put_back_goes_before_the_later_ones(db: Database) -> None:
    """A failed try keeps its place and counts."""
    await bind(db, WORK, CHAT)
    await say(db, WORK, "one")
    await say(db, WORK, "two")
    first = await db.write(outbox.take, N1)
    await db.write(outbox.settle, first.id, N1, "pending", None)
    again = await db.write(outbox.take, N2)
    assert (again.id, again.attempts) == (first.id, 2)


@pytest.mark.parametrize("end_as", ["sent", "unknown", "dead"])
async def test_a_settled_answer_is_never_sent_again(db: Database, end_as) -> None:
    """Whatever became of it is recorded once; a second word on it changes nothing."""
    await bind(db, WORK, CHAT)
    turn_id = await say(db, WORK, "one")
    first = await db.write(outbox.take, N1)
    await db.write(outbox.settle, first.id, N1, end_as, None)
    await db.write(outbox.settle, first.id, N1, "pending", None)
    assert [d.status for d in await db.read(outbox.of_turn, turn_id)] == [end_as]
    assert await taken(db) is None


async def test_only_what_a_dead_node_was_sending_is_in_doubt(db: Database) -> None:
    """A living node's delivery goes on; a dead one's is marked and never sent again blindly; what waits, waits."""
    await bind(db, WORK, CHAT)
    await bind(db, Slug("play"), OTHER)
    await say(db, WORK, "one")
    await say(db, WORK, "two")
    await say(db, Slug("play"), "three")
    await enter(db, N1)
    await enter(db, N2)
    one, three = await db.write(outbox.take, N1), await db.write(outbox.take, N2)
    assert await db.write(outbox.doubt) == []
    await expire(db, N1)
    assert len(await db.write(outbox.doubt)) == 1
    statuses = dict(await rows(db, "select body, status from deliveries"))
    assert statuses == {
        '{"text":"one","asked":"hello"}': "unknown",
        '{"text":"two","asked":"hello"}': "pending",
        '{"text":"three","asked":"hello"}': "sending",
    }
    await db.write(outbox.settle, one.id, N1, "sent", "late")
    assert (await db.read(outbox.of_turn, one.turn_id))[0].status == "unknown"
    assert await taken(db, N2) == '{"text":"two","asked":"hello"}'
    await db.write(nodes.end, N2)
    assert len(await db.write(outbox.doubt)) == 2
    assert (await db.read(outbox.of_turn, three.turn_id))[0].status == "unknown"


async def test_whoever_no_longer_sends_an_answer_has_no_say_in_it(db: Database) -> None:
    """A node overslept its lease, a person said to try again, and another node sends it now."""
    await bind(db, WORK, CHAT)
    turn_id = await say(db, WORK, "one")
    await enter(db, N1)
    first = await db.write(outbox.take, N1)
    assert await db.write(outbox.part_sent, first.id, N1, 1, "m-1")
    await expire(db, N1)
    await db.write(outbox.doubt)
    await db.write(outbox.resend, ALICE, first.id)
    await enter(db, N2)
    assert await taken(db, N2)
    assert not await db.write(outbox.part_sent, first.id, N1, 2, "late")
    assert not await db.write(outbox.settle, first.id, N1, "sent", "late")
    [sending] = await db.read(outbox.of_turn, turn_id)
    assert (sending.status, sending.parts_sent, sending.platform_message_id) == ("sending", 1, "m-1")
    assert await db.write(outbox.settle, first.id, N2, "sent", "m-2")


async def test_what_was_sent_long_ago_is_not_kept_twice_and_what_was_not_is_kept_whole(db: Database) -> None:
    """The log has the answer; its delivery keeps no copy, and the message that showed it is forgotten. The store is as
    it should be."""
    await bind(db, WORK, CHAT, OTHER)
    turn_id = await say(db, WORK, "one")
    for address in (CHAT, OTHER):
        await db.write(outbox.add_preview, turn_id, address.value, "m-1")
    first = await db.write(outbox.take, N1)
    await db.write(outbox.settle, first.id, N1, "sent", "m-1")
    await search.index_some(db)
    assert await db.write(turns.prune_events, -1.0)
    assert {d.address: (d.status, d.body) for d in await db.read(outbox.of_turn, turn_id)} == {
        CHAT.value: ("sent", '{"text":""}'),
        OTHER.value: ("pending", '{"text":"one","asked":"hello"}'),
    }
    assert [await db.read(outbox.preview, turn_id, address.value) for address in (CHAT, OTHER)] == [None, "m-1"]
    assert [finding async for finding in verify(db)] == []


async def test_an_end_that_owes_nothing_new_is_still_an_end(db: Database) -> None:
    """An empty answer is an answer: the turn is done and says so to its addresses."""
    await bind(db, WORK, CHAT)
    lease = await start(db, WORK)
    done = await end(db, lease, Outcome(status="done"))
    assert [d.body for d in await db.read(outbox.of_turn, done.id)] == ['{"text":"","asked":"hello"}']
    assert done.status == DONE.status
