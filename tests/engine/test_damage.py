"""One entry that cannot be read (a flipped bit, a word of a newer version) spoils its own conversation alone: the
gateway goes on, everything else is served and searched, and whoever asks there is told what to do."""

from typing import Any

import apsw
import asyncpg
import pytest

from conftest import ALICE
from engine.rooms import WORK, Rooms, ask, ended, say, transcript
from engine.scripted import Gate, Scripted, Tools, one_call_each
from engine.waiting import until, within
from legato.app import App
from legato.domain.handles import Slug
from legato.domain.ids import ConversationId
from legato.engine import worker
from legato.errors import Unreadable
from legato.store import search
from legato.store.database import Row, Tx

OTHER = Slug("other")


async def change(rooms: Rooms, sql: str) -> None:
    """Change entries, which no statement of ours can."""
    if rooms.url:
        connection = await asyncpg.connect(rooms.url)
        await connection.execute(f"set session_replication_role = replica; {sql}")
        await connection.close()
    else:
        with apsw.Connection(str(rooms.home / "legato.db")) as connection:
            guard = "select sql from sqlite_schema where name = 'entries_append_only'"
            [(trigger,)] = connection.execute(guard).fetchall()
            connection.execute(f"drop trigger entries_append_only; {sql}; {trigger}").fetchall()


DAMAGE = "update entries set body = replace(body, '\"message\"', '\"massage\"') where body like '%the zebra%'"
MEND = "update entries set body = replace(body, '\"massage\"', '\"message\"')"


async def test_an_entry_that_cannot_be_read_takes_nothing_else_down(
    rooms: Rooms, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "INDEX_EVERY", 0.01)
    app = await rooms.open()
    await ask(app, "the zebra")
    await ask(app, "the quagga", OTHER)
    await rooms.close(app)
    await change(rooms, f"{DAMAGE}; update turns set indexed_at = null")
    app = await rooms.open()
    try:
        await until(lambda: _found(app, "quagga"))
        exported = [line async for line in app.gateway.export_all(ALICE)]
        assert any("the quagga" in repr(line) for line in exported)
        failed = await ask(app, "again")
        assert failed.failure is not None
        assert (failed.status, failed.failure.code) == ("failed", "unreadable")
        assert "Position 1" in failed.failure.message
        assert "legato verify" in failed.failure.message
        assert (await ask(app, "again", OTHER)).status == "done"
        with pytest.raises(Unreadable):
            await transcript(app)
        listed = await app.gateway.described(await app.gateway.conversations(ALICE))
        assert {(row.name, row.opening) for row in listed} == {("work", ""), ("other", "the quagga")}
    finally:
        await rooms.close(app)
        await change(rooms, MEND)
    app = await rooms.open()
    assert (await ask(app, "and now?")).status == "done"
    await app.db.write(search.rebuild)
    assert await _found(app, "zebra")


async def test_a_fork_of_what_cannot_be_read_keeps_nothing_else_out_of_an_export(rooms: Rooms) -> None:
    """The damage is in a parent that was deleted, of which the fork brings along what it reads."""
    app = await rooms.open()
    await ask(app, "the zebra")
    await app.gateway.fork(ALICE, WORK)
    await app.gateway.delete(ALICE, WORK)
    await ask(app, "the quagga", OTHER)
    await rooms.close(app)
    await change(rooms, DAMAGE)
    app = await rooms.open()
    try:
        exported = [line async for line in app.gateway.export_all(ALICE)]
        assert any("the quagga" in repr(line) for line in exported)
    finally:
        await rooms.close(app)
        await change(rooms, MEND)


async def test_what_search_knows_and_cannot_be_read_any_more_is_no_hit(rooms: Rooms) -> None:
    app = await rooms.open()
    await ask(app, "the zebra")
    await ask(app, "another zebra", OTHER)
    assert await _found(app, "zebra")
    await rooms.close(app)
    await change(rooms, DAMAGE)
    app = await rooms.open()
    try:
        assert {hit.text for hit in await app.gateway.search(ALICE, "zebra")} >= {"another zebra"}
    finally:
        await rooms.close(app)
        await change(rooms, MEND)


async def test_work_in_the_background_that_fails_takes_nothing_down(rooms: Rooms) -> None:
    async def broken() -> None:
        raise KeyError("a defect")

    app = await rooms.open()
    app.worker.background(broken())
    assert (await ask(app, "hello")).status == "done"


async def test_a_turn_that_waited_beside_the_damage_ends_too(rooms: Rooms) -> None:
    """It is not claimed again and again."""
    gate = Gate()
    app = await rooms.open(Scripted(one_call_each), Tools(work=gate))
    running = await say(app, "the zebra")
    waiting = await say(app, "and then?")
    await within(gate.entered.wait())
    await rooms.crash(app)
    await change(rooms, DAMAGE)
    app = await rooms.open()
    try:
        for turn in (running, waiting):
            ended = await within(app.gateway.ended(turn))
            assert ended.failure is not None
            assert ended.failure.code == "unreadable"
    finally:
        await rooms.close(app)
        await change(rooms, MEND)


async def test_a_turn_whose_events_cannot_be_read_ends_and_the_next_one_runs(rooms: Rooms) -> None:
    """Nobody can go on telling from there; it is not claimed again and again."""
    gate = Gate()
    app = await rooms.open(Scripted(one_call_each), Tools(work=gate))
    running = await say(app, "the zebra")
    waiting = await say(app, "and then?")
    await within(gate.entered.wait())
    await rooms.crash(app)
    await change(rooms, "update turn_events set payload = '!' || payload")
    gate.opened.set()
    app = await rooms.open()
    try:
        failed = await within(app.gateway.ended(running))
        assert failed.failure is not None
        assert failed.failure.code == "unreadable"
        with pytest.raises(Unreadable):
            [event async for event in app.gateway.follow(ALICE, running.id)]
        assert (await within(app.gateway.ended(waiting))).status == "done"
    finally:
        await rooms.close(app)
        await change(rooms, "update turn_events set payload = substr(payload, 2) where payload like '!%'")


@pytest.mark.parametrize(
    ("damaged", "mended"), [("running", "substr(input, 2)"), ("waiting", "'{}'")], ids=["running", "waiting"]
)
async def test_a_turn_that_cannot_be_read_itself_ends_and_the_conversation_goes_on(
    rooms: Rooms, damaged: str, mended: str
) -> None:
    """What one that waited had brought is in no log."""
    gate = Gate()
    app = await rooms.open(Scripted(one_call_each), Tools(work=gate))
    turns = {"running": await say(app, "the zebra"), "waiting": await say(app, "and then?")}
    await within(gate.entered.wait())
    await rooms.crash(app)
    await change(rooms, f"update turns set input = '!' || input where id = '{turns[damaged].id}'")
    gate.opened.set()
    app = await rooms.open()
    try:
        assert (await ask(app, "still there?")).status == "done"
        with pytest.raises(Unreadable, match=r"legato verify"):
            await within(app.gateway.ended(turns.pop(damaged)))
        assert [(await ended(app, turn)).status for turn in turns.values()] == ["done"]
        await ask(app, "the quagga", OTHER)
        exported = [line async for line in app.gateway.export_all(ALICE)]
        assert any("the quagga" in repr(line) for line in exported)
    finally:
        await rooms.close(app)
        await change(rooms, f"update turns set input = {mended} where input like '!%'")


async def test_what_cannot_be_purged_keeps_nothing_else_in_the_trash(rooms: Rooms) -> None:
    app = await rooms.open()
    for words, name in (("the zebra", WORK), ("the quagga", OTHER)):
        await ask(app, words, name)
    kept, other = [(await app.gateway.delete(ALICE, name)).id for name in (WORK, OTHER)]
    await rooms.close(app)
    await change(rooms, f"update conversations set settings = '!' where id = '{kept}'")
    app = await rooms.open(trash_keep_days=0)
    try:
        await until(lambda: _is_gone(app, other))
        assert not await _is_gone(app, kept)
    finally:
        await rooms.close(app)
        await change(rooms, "update conversations set settings = '{}'")


async def test_a_conversation_whose_settings_cannot_be_read_is_listed_and_what_runs_there_ends(rooms: Rooms) -> None:
    """Whoever asks there is told, and every other conversation is as before."""
    gate = Gate()
    app = await rooms.open()
    await ask(app, "the quagga", OTHER)
    app = await rooms.restart(model=Scripted(one_call_each), tools=Tools(work=gate))
    running = await say(app, "the zebra")
    await within(gate.entered.wait())
    await rooms.crash(app)
    await change(rooms, f"update conversations set settings = '!' where id = '{running.conversation_id}'")
    gate.opened.set()
    app = await rooms.open(Scripted(one_call_each), Tools(work=gate))
    try:
        assert (await ended(app, running)).status == "done"
        listed = await app.gateway.described(await app.gateway.conversations(ALICE))
        assert {(row.name, row.opening) for row in listed} == {("work", "the zebra"), ("other", "the quagga")}
        assert [row.name for row in (await app.gateway.meant(ALICE, "work")).found] == ["work"]
        with pytest.raises(Unreadable, match=r"legato verify"):
            await say(app, "again")
        exported = [line async for line in app.gateway.export_all(ALICE)]
        assert any("the quagga" in repr(line) for line in exported)
    finally:
        await rooms.close(app)
        await change(rooms, "update conversations set settings = '{}'")


async def _is_gone(app: App, conversation_id: ConversationId) -> bool:
    async def rows(tx: Tx) -> list[Row]:
        return await tx.run("own_stretch", id=conversation_id)

    return not await app.db.read(rows)


async def _found(app: Any, word: str) -> bool:
    return bool(await app.gateway.search(ALICE, word))
