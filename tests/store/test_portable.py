"""Out of one store and into another: the same ids, names, forks and words, also when lines are damaged on the way."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from acts import DONE, N1, admit, end, rows, said, start, talk, tend, transcript

from conftest import ALICE, BOB
from golden import raw, story
from legato.domain.entries import Note, Rewind, ToolCall, ToolResult, draft
from legato.domain.handles import ById, Slug
from legato.domain.ids import ConversationId
from legato.domain.portable import ConversationLine, EntryLine, Line, Parcel, TurnLine, mend
from legato.domain.turns import After, Input
from legato.errors import Conflict
from legato.store import directory, log, portable, search, trash, turns
from legato.store.database import Database
from legato.store.portable import Imported
from legato.store.verify import verify

WORK = Slug("work")

_line: msgspec.json.Decoder[Line] = msgspec.json.Decoder(Line)


async def exported(db: Database, *conversations: ConversationId) -> list[bytes]:
    """An export as the lines of a file."""
    if not conversations:
        return [msgspec.json.encode(line) async for line in portable.export_all(db, ALICE)]
    return [
        msgspec.json.encode(line)
        for conversation in conversations
        async for line in portable.export(db, ALICE, conversation)
    ]


async def imported(db: Database, lines: Iterable[bytes]) -> list[Imported]:
    return [await db.write(portable.import_one, ALICE, mend(parcel)) for parcel in _parcels(lines).values()]


async def purge_all(db: Database) -> None:
    for (living,) in await rows(db, "select id from conversations where principal = 'alice' and deleted_at is null"):
        await db.write(directory.delete, ALICE, ById(living))
        await db.write(turns.cancel_all, living)
    for row in await db.read(trash.deleted, ALICE, 1000):
        await db.write(trash.purge, ALICE, row.conversation.id)


async def check(db: Database) -> None:
    while await search.index_some(db):
        pass
    assert [str(finding) async for finding in verify(db)] == []


async def test_what_was_exported_and_purged_comes_back_byte_for_byte(db: Database) -> None:
    """A store in which everything has happened once: the second export is the first."""
    await story.tell(db)
    lease = await start(db, Slug("running"), "under way")  # what has not ended is not exported
    lines = await exported(db)
    names = await rows(db, "select principal, scheme, value, conversation_id from aliases where principal = 'alice'")
    running = lease.turn.conversation_id
    texts = await _texts(db)
    await end(db, lease, DONE)
    await purge_all(db)
    assert await exported(db) == []
    came = await imported(db, lines)
    assert {row.outcome for row in came} == {"imported"}
    assert await exported(db) == lines
    back = await rows(db, "select principal, scheme, value, conversation_id from aliases where principal = 'alice'")
    assert set(back) == set(names)
    assert {k: v for k, v in (await _texts(db)).items() if k != running} == {
        k: v for k, v in texts.items() if k != running
    }
    await check(db)


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_a_conversation_moves_to_the_other_kind_of_database(kind: str, tmp_path: Path, pg_url: str) -> None:
    places: list[Any] = [tmp_path / "legato.db", pg_url]
    if kind == "postgres":
        places.reverse()
    async with raw.opened(places[0]) as here, raw.opened(places[1]) as there:
        for db in (here, there):
            await db.write(directory.add_principal, ALICE)
        turn = await talk(here, WORK, "remember this")
        lines = await exported(here, turn.conversation_id)
        await imported(there, lines)
        assert await exported(there) == lines
        again = await talk(there, After(turn.id), "and go on")
        assert again.conversation_id == turn.conversation_id
        assert (await there.read(directory.find, ALICE, WORK)).id == turn.conversation_id
        await check(there)


async def test_an_import_that_is_repeated_changes_nothing(db: Database) -> None:
    await story.tell(db)
    lines = await exported(db)
    assert {row.outcome for row in await imported(db, lines)} == {"present"}
    assert await exported(db) == lines
    await purge_all(db)
    await imported(db, lines)
    assert {row.outcome for row in await imported(db, lines)} == {"present"}
    assert await exported(db) == lines


async def test_a_fork_brings_along_what_it_inherits_and_no_more(db: Database) -> None:
    """And its parent, when it comes later, is whole again."""
    first = await talk(db, WORK, "shared")
    parent = first.conversation_id
    await talk(db, WORK, "only in the parent")
    fork = (await talk(db, After(first.id), "only in the fork")).conversation_id
    of_fork, of_parent = await exported(db, fork), await exported(db, parent)
    assert b"only in the parent" not in b"".join(of_fork)
    await purge_all(db)
    await imported(db, of_fork)
    assert await transcript(db, fork) == ["shared", "SHARED", "only in the fork", "ONLY IN THE FORK"]
    assert [c.id for c in await db.read(directory.newest, ALICE, 10)] == [fork]
    await check(db)
    await imported(db, of_parent)
    assert await exported(db, parent) == of_parent
    assert await exported(db, fork) == of_fork
    await check(db)


async def test_a_turn_that_was_handed_back_is_not_exported_before_it_has_ended(db: Database) -> None:
    """It goes on elsewhere: half of it would come in as a whole one."""
    here = (await talk(db, WORK, "one")).conversation_id
    ended = await exported(db, here)
    lease = await start(db, WORK, "two")
    await db.write(turns.append, lease, [said("half", "assistant")])
    await db.write(turns.release, lease)
    assert [line for line in await exported(db, here) if b"half" in line or b"two" in line] == []
    assert len(await exported(db, here)) == len(ended)


async def test_what_is_purged_in_the_middle_of_an_export_keeps_nothing_else_out_of_it(db: Database) -> None:
    """One that is just being told, and one that would have been the next."""
    for name in ("a", "b", "c"):
        await talk(db, Slug(name), name)
    told, following, last = _parcels([msgspec.json.encode(line) async for line in portable.export_all(db, ALICE)])
    lines: list[bytes] = []
    async for line in portable.export_all(db, ALICE):
        if not lines:
            for conversation in (told, following):
                await db.write(directory.delete, ALICE, ById(conversation))
                await db.write(trash.purge, ALICE, conversation)
        lines.append(msgspec.json.encode(line))
    assert set(_parcels(lines)) == {told, last}
    assert lines[-len(await exported(db, last)) :] == await exported(db, last)


async def test_an_export_from_before_what_a_fork_still_reads_is_refused(db: Database) -> None:
    """What is left of a purged conversation goes further than the file: the fork would begin past its parent's end, and
    what comes next would be written where something stands already."""
    here = (await talk(db, WORK, "one")).conversation_id
    early = await exported(db, here)
    two = await talk(db, WORK, "two")
    late = await exported(db, here)
    fork = await db.write(directory.create, ALICE, parent=here, base=two.last_seq)
    await db.write(directory.delete, ALICE, ById(here))
    await db.write(trash.purge, ALICE, here)
    with pytest.raises(Conflict):
        await imported(db, early)
    assert await transcript(db, fork.id) == ["one", "ONE", "two", "TWO"]
    assert [row.outcome for row in await imported(db, late)] == ["imported"]
    await talk(db, ById(here), "three")
    await check(db)


async def test_what_is_anothers_or_in_the_trash_or_fits_nowhere_is_refused(db: Database) -> None:
    first = await talk(db, WORK, "shared")
    fork = (await talk(db, After((await talk(db, WORK, "more")).id), "here")).conversation_id
    forked = (await talk(db, After(first.id), "there")).conversation_id
    assert forked != fork
    lines = await exported(db, forked)
    parcels = _parcels(lines)
    for parcel in parcels.values():
        with pytest.raises(Conflict):
            await db.write(portable.import_one, BOB, mend(parcel))
    await db.write(directory.delete, ALICE, ById(forked))
    with pytest.raises(Conflict, match="trash"):
        await db.write(portable.import_one, ALICE, mend(parcels[forked]))
    await purge_all(db)
    with pytest.raises(Conflict, match="is a fork of"):
        await db.write(portable.import_one, ALICE, mend(parcels[forked]))


async def test_a_turn_of_another_conversation_is_not_taken_over(db: Database) -> None:
    mine = (await talk(db, WORK, "mine")).conversation_id
    lines = await exported(db, mine)
    forged = [line.replace(mine.encode(), b"conv_" + b"f" * 32) for line in lines]
    with pytest.raises(Conflict, match="another conversation"):
        await imported(db, forged)
    assert await exported(db) == lines


async def test_whichever_line_is_damaged_the_rest_comes_in_and_the_store_is_sound(db: Database) -> None:
    """Each line of a talk with tools, a rewind and a steered turn is dropped once."""
    here = await _with_tools(db)
    lines = await exported(db, here)
    entries = [line for line in map(_line.decode, lines) if isinstance(line, EntryLine)]
    for place, dropped in enumerate(map(_line.decode, lines)):
        await purge_all(db)
        [came] = await imported(db, lines[:place] + lines[place + 1 :])
        assert came.outcome == "imported"
        kept = await db.read(log.entries_at, here, 1, 1000)
        assert [entry.seq for entry in kept] == [entry.seq for entry in entries], dropped
        same = [e.id for e in kept if e.id in {entry.id for entry in entries}]
        brought = isinstance(dropped, EntryLine) and dropped.id not in same
        assert len(same) == len(entries) - brought
        assert came.lost_entries == (brought and any(isinstance(e.body, Note) for e in kept))
        await check(db)


async def test_a_file_that_ends_too_early_gives_what_it_has(db: Database) -> None:
    here = await _with_tools(db)
    lines = await exported(db, here)
    for upto in range(1, len(lines)):
        await purge_all(db)
        await imported(db, lines[:upto])
        seen = [line.seq for line in map(_line.decode, lines[:upto]) if isinstance(line, EntryLine)]
        assert [entry.seq for entry in await db.read(log.entries_at, here, 1, 1000)] == seen
        await check(db)


def test_a_message_whose_line_is_lost_is_known_from_its_turn() -> None:
    hello = said("hello")
    turn = TurnLine(
        conversation="conv_a",
        id="resp_a",
        n=1,
        kind="talk",
        status="done",
        input=Input((hello,)),
        first_seq=1,
        last_seq=1,
    )
    parcel = Parcel("conv_a", ConversationLine(id="conv_a", head_seq=1), {turn.id: turn}, whole=True)
    [entry] = mend(parcel).entries
    assert (entry.id, entry.body) == (hello.id, hello.body)


def test_half_of_a_long_talk_is_mended_without_looking_at_all_of_it_for_each_entry() -> None:
    """Every second entry of 20,000 is lost, and every turn's line: to look at all for each takes half a minute."""
    entries = {
        seq: EntryLine(conversation="conv_a", seq=seq, id=f"msg_{seq}", turn=f"resp_{seq // 4}", body=Note("x", "y"))
        for seq in range(2, 20_001, 2)
    }
    parcel = Parcel("conv_a", ConversationLine(id="conv_a", head_seq=20_000), entries=entries, whole=True)
    mended = mend(parcel)
    assert [entry.seq for entry in mended.entries] == list(range(1, 20_001))
    assert mended.lost == 10_000
    assert [turn.n for turn in mended.turns] == list(range(1, len(mended.turns) + 1))


# -- what they share


def _parcels(lines: Iterable[bytes]) -> dict[str, Parcel]:
    parcels: dict[str, Parcel] = {}
    for line in map(_line.decode, lines):
        name = line.conversation if hasattr(line, "conversation") else line.id
        parcels.setdefault(name, Parcel(name)).take(line)
    return parcels


async def _texts(db: Database) -> dict[str, list[str]]:
    return {c.id: await transcript(db, c.id) for c in await db.read(directory.newest, ALICE, 1000)}


async def _with_tools(db: Database) -> ConversationId:
    first = await talk(db, WORK, "one")
    lease = await start(db, WORK, "use tools")
    await db.write(
        turns.append, lease, [draft(ToolCall("call_1", "clock", "{}")), draft(ToolCall("call_2", "x", "{}"))]
    )
    for call in ("call_1", "call_2"):
        await db.write(turns.append, lease, [draft(ToolResult(call, f"result of {call}"))])
    await end(db, lease, DONE, "done")
    await tend(db, WORK, Rewind(2))
    await db.write(directory.bind, ALICE, Slug("also"), first.conversation_id, move=False)
    lease = await start(db, WORK, "hosting", node=N1)
    await admit(db, WORK, "joining", busy="steer")
    await db.write(turns.absorb, lease)
    await end(db, lease, DONE, "both")
    return first.conversation_id
