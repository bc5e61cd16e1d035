"""What is kept of conversations between their turns: so much, of those used last, and nothing of what is gone."""

import pytest
from msgspec import json, structs

from conftest import ALICE
from engine.rooms import WORK, Rooms, ask
from legato.domain.entries import Item, Message, Text
from legato.domain.handles import ById, Slug
from legato.domain.ids import ConversationId
from legato.domain.portable import Line, Parcel, mend
from legato.domain.shape import Past
from legato.domain.turns import Lease
from legato.domain.window import Known
from legato.engine.pasts import Kept, Pasts
from legato.store import log
from legato.store.database import Tx
from legato.store.log import Begun


def kept(upto: int, size: int) -> Kept:
    past = Past().grown([Message("user", (Text("x" * size),))])
    assert past is not None
    return Kept(Begun(Known(upto, None, ((1, upto),)), 0, None), past)


def test_the_pasts_that_were_used_last_are_kept() -> None:
    room, (a, b, c) = Pasts(room=8_000), (ConversationId(name) for name in "abc")
    room.put(a, kept(1, 500))
    room.put(b, kept(2, 500))
    room.put(a, kept(3, 500))
    room.put(c, kept(4, 500))
    known = [found.begun.known.upto if (found := room.get(name)) is not None else None for name in (a, b, c)]
    assert known == [3, None, 4]
    room.put(b, kept(5, 5_000))
    assert [room.get(name) for name in (a, b, c)] == [None, None, None]


async def test_what_was_shown_and_said_is_kept_for_the_next_turn(rooms: Rooms) -> None:
    app = await rooms.open()
    for n in range(3):
        await ask(app, f"message {n}")
    turn = await ask(app, "last")
    found = app.worker.pasts.get(turn.conversation_id)
    assert found is not None
    fence = (await app.gateway.find(ALICE, WORK)).fence
    view, begun = await app.db.read(log.read_on, turn.conversation_id, fence, None, turn.last_seq or 0)
    assert found.begun == begun
    assert found.setup == view.setup
    assert list(found.past.items) == [entry.body for entry in view.entries if isinstance(entry.body, Item)]


async def test_nothing_is_kept_of_what_was_deleted(rooms: Rooms) -> None:
    app = await rooms.open()
    turn = await ask(app, "a secret")
    assert app.worker.pasts.get(turn.conversation_id) is not None
    await app.gateway.delete(ALICE, Slug("work"))
    assert app.worker.pasts.get(turn.conversation_id) is None


async def test_a_turn_that_comes_too_late_spoils_nothing(rooms: Rooms) -> None:
    """The answer to its claim took so long that it was claimed again and ended, and others came after it."""
    app = await rooms.open()
    said = [await ask(app, f"message {n}") for n in range(4)]
    late = Lease(structs.replace(said[1], status="running"), 2, False)
    await app.worker._run(app.worker._begin(late))
    await ask(app, "last")
    texts = [item.text for item in rooms.model.requests[-1].items if isinstance(item, Message)]
    assert texts[::2] == [*(f"message {n}" for n in range(4)), "last"]


@pytest.mark.parametrize("more", [[], ["and more"]])
async def test_what_a_database_lost_is_forgotten_here_too(shared: Rooms, more: list[str]) -> None:
    """It was put back to an earlier state while a node lived on: positions and fences come again, with other words."""
    here = await shared.open()
    model = shared.model
    there = await shared.open()
    await ask(here, "one")
    before = await here.gateway.find(ALICE, WORK)
    lost = await ask(here, "lost")
    back = f"""set local session_replication_role = replica;
        delete from entries where conversation_id = '{before.id}' and seq > {before.head_seq};
        delete from turn_events where turn_id = '{lost.id}';
        delete from turns where id = '{lost.id}';
        update conversations set head_seq = {before.head_seq}, fence = {before.fence}, last_n = {before.last_n},
            tip_turn = '{before.tip_turn}' where id = '{before.id}'"""

    async def put_back(tx: Tx) -> None:
        await tx.script(back)

    await here.db.write(put_back)
    for text in ["instead", *more]:
        await ask(there, text)
    await ask(here, "last")
    said = [item.text for item in model.requests[-1].items if isinstance(item, Message) and item.role == "user"]
    assert said == ["one", "instead", *more, "last"]


async def test_what_was_purged_and_imported_with_other_words_is_read_again(shared: Rooms) -> None:
    """On another node, which was told of neither: it has the same ids and positions."""
    here = await shared.open()
    for n in range(3):
        turn = await ask(here, f"secret {n}")
    kept = shared.model
    there = await shared.open()
    edited = Parcel(turn.conversation_id)
    async for line in there.gateway.export(ALICE, turn.conversation_id):
        edited.take(json.decode(json.encode(line).replace(b"secret", b"public"), type=Line))
    await there.gateway.delete(ALICE, Slug("work"))
    await there.gateway.purge(ALICE, turn.conversation_id)
    await there.gateway.import_one(ALICE, mend(edited))
    assert here.worker.pasts.get(turn.conversation_id) is not None
    await ask(here, "and now?", ById(turn.conversation_id))
    assert "public 0" in str(kept.requests[-1].items)
    assert "secret" not in str(kept.requests[-1].items)
