"""What is kept of long conversations between their turns: so much, of those used last, and nothing of what is gone."""

import pytest

from conftest import ALICE
from engine.rooms import Rooms, ask
from legato.domain.entries import Message, Text
from legato.domain.handles import Slug
from legato.domain.ids import ConversationId
from legato.domain.shape import Past
from legato.domain.window import Known
from legato.engine.pasts import Kept, Pasts
from legato.store import turns


def kept(upto: int, size: int) -> Kept:
    past = Past().grown([Message("user", (Text("x" * size),))])
    assert past is not None
    return Kept(Known(upto, None, ((1, upto),)), past)


def test_the_pasts_that_were_used_last_are_kept() -> None:
    room, (a, b, c) = Pasts(room=3_500), (ConversationId(name) for name in "abc")
    room.put(a, kept(1, 500))
    room.put(b, kept(2, 500))
    room.put(a, kept(3, 500))
    room.put(c, kept(4, 500))
    known = [found.known.upto if (found := room.get(name)) is not None else None for name in (a, b, c)]
    assert known == [3, None, 4]
    room.put(b, kept(5, 5_000))
    assert [room.get(name) for name in (a, b, c)] == [None, None, None]


async def test_a_long_conversation_is_read_once_and_then_from_where_it_was_left(
    rooms: Rooms, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "AT_HAND", 0)
    app = await rooms.open()
    for n in range(3):
        await ask(app, f"message {n}")
    turn = await ask(app, "last")
    found = app.worker.pasts.get(turn.conversation_id)
    assert found is not None
    assert found.known.upto == (turn.first_seq or 0) - 1
    assert [item.text for item in found.past.items if isinstance(item, Message)][::2] == [
        f"message {n}" for n in range(3)
    ]


async def test_nothing_is_kept_of_what_was_deleted(rooms: Rooms, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "AT_HAND", 0)
    app = await rooms.open()
    turn = await ask(app, "a secret")
    assert app.worker.pasts.get(turn.conversation_id) is not None
    await app.gateway.delete(ALICE, Slug("work"))
    assert app.worker.pasts.get(turn.conversation_id) is None
