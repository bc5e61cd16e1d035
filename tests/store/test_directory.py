"""The directory: every outside name becomes a conversation here, for one owner, and means the same one for ever."""

import pytest
from acts import (
    DONE,
    N1,
    admit,
    conversation,
    end,
    enter,
    rows,
    script,
    start,
    talk,
    tend,
    transcript,
    turn,
)

from conftest import ALICE, BOB, Opener
from legato.domain.entries import Compaction, Expand, Remove, Rewind
from legato.domain.handles import Address, ById, External, Name, Slug
from legato.domain.ids import ConversationId, PrincipalId
from legato.domain.turns import After, Fresh
from legato.errors import AliasTaken, BadInput, Defect, UnknownHandle, UnknownTurn
from legato.store import directory, log, turns
from legato.store.database import Database

NAMES = [
    Slug("my-project"),
    External("session 1"),
    Address("telegram", "bot", "42", "7"),
]
CHAT = Address("telegram", "bot", "42")
WORK = Slug("work")


def by_scheme(name: Name) -> str:
    return name.scheme


async def fresh(db: Database, principal: PrincipalId = ALICE) -> ById:
    """A conversation without a name."""
    return ById((await admit(db, Fresh(), principal=principal)).turn.conversation_id)


# -- one name, one conversation


@pytest.mark.parametrize("name", NAMES, ids=by_scheme)
async def test_a_name_makes_a_conversation_once_and_means_it_for_ever(reopen: Opener, name: Name) -> None:
    """First use makes it; every later use, also after a restart, finds it."""
    db = await reopen()
    first = await talk(db, name, "one")
    second = await talk(db, name, "two")
    db = await reopen()
    third = await talk(db, name, "three")
    found = await db.read(directory.find, ALICE, name)
    assert {first.conversation_id, second.conversation_id, third.conversation_id} == {found.id}
    assert await db.read(directory.names, found.id) == [(name.scheme, name.value)]
    assert await transcript(db, found.id) == ["one", "ONE", "two", "TWO", "three", "THREE"]


async def test_the_same_letters_under_another_scheme_are_another_name(db: Database) -> None:
    """A slug cannot be mistaken for a session header."""
    ids = {(await admit(db, name)).turn.conversation_id for name in (Slug("x"), External("x"))}
    assert len(ids) == 2


async def test_no_part_of_an_address_imitates_another(db: Database) -> None:
    """Addresses are tuples: moving a sign from one part to the next makes another address."""
    addresses = [
        Address("chat", "a", "b", "c"),
        Address("chat", "a:b", "c"),
        Address("chat", "a", "b:c"),
        Address("chat", "a", 'b","c'),
        Address("chat", "a", "b"),
    ]
    ids = [(await admit(db, address)).turn.conversation_id for address in addresses]
    assert len(set(ids)) == len(addresses)
    for address, conversation_id in zip(addresses, ids, strict=True):
        assert (await db.read(directory.find, ALICE, Address.parse(address.value))).id == conversation_id


@pytest.mark.parametrize("name", [n for n in NAMES if not isinstance(n, Address)], ids=by_scheme)
async def test_the_same_name_of_two_principals_means_two_conversations(db: Database, name: Name) -> None:
    """Names are scoped to their owner, and so are the words behind them."""
    mine, yours = await talk(db, name, "mine"), await talk(db, name, "yours", principal=BOB)
    assert mine.conversation_id != yours.conversation_id
    assert (await db.read(directory.find, ALICE, name)).id == mine.conversation_id
    assert (await db.read(directory.find, BOB, name)).id == yours.conversation_id
    assert await transcript(db, yours.conversation_id) == ["yours", "YOURS"]


async def test_the_schema_refuses_a_second_meaning_of_a_name(db: Database) -> None:
    """Whoever writes it, and whatever was looked up before."""
    first = await admit(db, WORK)
    other = await fresh(db)
    with pytest.raises(Defect):
        await script(
            db,
            "insert into aliases (principal, scheme, value, conversation_id, created_at) "
            f"values ('alice', 'slug', 'work', '{other.id}', 0)",
        )
    assert (await db.read(directory.find, ALICE, WORK)).id == first.turn.conversation_id


async def test_every_id_and_name_given_out_still_resolves_to_the_same_conversation(reopen: Opener) -> None:
    """Through compaction, undo, rename, a fork, a second name, a reset of another name, and a restart."""
    db = await reopen()
    one = await talk(db, WORK, "one")
    two = await talk(db, WORK, "two")
    await db.write(directory.bind, ALICE, CHAT, one.conversation_id, move=False)
    await tend(db, WORK, Compaction(2, "in short"))
    await tend(db, WORK, Rewind(3))
    await db.write(directory.rename, ALICE, WORK, "Work in progress")
    fork = await talk(db, After(one.id), "other")
    await db.write(directory.bind, ALICE, CHAT, (await fresh(db)).id, move=True)
    db = await reopen()
    assert (await db.read(directory.find, ALICE, WORK)).id == one.conversation_id
    assert (await db.read(directory.find, ALICE, ById(one.conversation_id))).id == one.conversation_id
    assert (await db.read(directory.find, ALICE, ById(fork.conversation_id))).id == fork.conversation_id
    for given in (one, two, fork):
        assert (await db.read(turns.find, ALICE, given.id)).conversation_id == given.conversation_id


# -- whose


async def test_anothers_conversation_is_as_unknown_as_one_that_never_was(db: Database) -> None:
    """By id or by name, to read or to change: the same error in the same words."""
    mine = ById((await talk(db, WORK, "one")).conversation_id)
    for principal, handle in ((BOB, mine), (BOB, WORK), (ALICE, ById("conv_none")), (ALICE, Slug("none"))):
        shown = handle.id if isinstance(handle, ById) else handle.value
        for attempt in (
            lambda p=principal, h=handle: db.read(directory.find, p, h),
            lambda p=principal, h=handle: db.write(directory.rename, p, h, "Mine now"),
        ):
            with pytest.raises(UnknownHandle) as refusal:
                await attempt()
            assert refusal.value.message == f"No conversation {shown!r}."
    with pytest.raises(UnknownHandle):
        await db.write(directory.bind, BOB, Slug("stolen"), mine.id, move=True)
    assert (await conversation(db, mine.id)).title == ""
    assert await db.read(directory.lookup, BOB, Slug("stolen")) is None


async def test_looking_never_makes_anything(db: Database) -> None:
    """A conversation is made by what is said in it."""
    for name in NAMES:
        assert await db.read(directory.lookup, ALICE, name) is None
        with pytest.raises(UnknownHandle):
            await db.read(directory.find, ALICE, name)
    assert await rows(db, "select count(*) from conversations") == [(0,)]


async def test_an_address_belongs_to_one_principal_of_the_installation(db: Database) -> None:
    """A chat is paired with one owner: nobody else speaks for it, binds it or takes it over."""
    mine = (await admit(db, CHAT)).turn.conversation_id
    yours = await fresh(db, BOB)
    for attempt in (
        lambda: admit(db, CHAT, principal=BOB),
        lambda: db.write(directory.bind, BOB, CHAT, yours.id, move=False),
        lambda: db.write(directory.bind, BOB, CHAT, yours.id, move=True),
    ):
        with pytest.raises(AliasTaken):
            await attempt()
    assert (await db.read(directory.find, ALICE, CHAT)).id == mine
    assert await rows(db, "select principal from aliases") == [("alice",)]


async def test_the_schema_refuses_an_address_of_two_principals(db: Database) -> None:
    """Whoever writes it; a slug of two principals is fine."""
    await admit(db, CHAT)
    yours = await fresh(db, BOB)
    insert = "insert into aliases (principal, scheme, value, conversation_id, created_at) values "
    await script(db, f"{insert} ('bob', 'slug', '{CHAT.value}', '{yours.id}', 0)")
    with pytest.raises(Defect):
        await script(db, f"{insert} ('bob', 'address', '{CHAT.value}', '{yours.id}', 0)")


# -- letters


async def test_a_name_is_made_only_of_plain_letters(db: Database) -> None:
    """A malformed slug makes nothing; what it would have said is not kept either."""
    for value in ("two words", "-x", "été", "a/b", "x" * 256, "a\n", "東京"):
        with pytest.raises(BadInput):
            await admit(db, Slug(value))
    assert await rows(db, "select count(*) from conversations") == [(0,)]
    assert await rows(db, "select count(*) from turns") == [(0,)]


@pytest.mark.parametrize(
    "value", ["two words", "été 東京 🎼", "'; drop table turns; --", "%", "_", "a/../b", ":x $1 ?", "x" * 255]
)
async def test_a_name_is_found_whatever_its_letters(db: Database, value: str) -> None:
    """A name that exists (bound, imported) is found as it is written, and used in any statement without harm."""
    made = await fresh(db)
    await db.write(directory.bind, ALICE, Slug(value), made.id, move=False)
    assert (await db.read(directory.find, ALICE, Slug(value))).id == made.id
    assert (await admit(db, Slug(value))).turn.conversation_id == made.id
    assert (await admit(db, External(value))).turn.conversation_id != made.id
    assert await db.read(directory.lookup, ALICE, Slug(value + "x")) is None


async def test_upper_and_lower_case_are_different_names(db: Database) -> None:
    """A name is its exact letters: nothing is folded, trimmed or guessed."""
    values = ("Work", "work", "WORK", "work.")
    assert len({(await admit(db, Slug(value))).turn.conversation_id for value in values}) == len(values)


# -- binding


async def test_a_conversation_may_have_several_names(db: Database) -> None:
    """That is how a talk goes on in another app: the new name leads to the old words."""
    done = await talk(db, WORK, "one")
    for name in (CHAT, Address("discord", "bot", "9"), External("s-1")):
        await db.write(directory.bind, ALICE, name, done.conversation_id, move=False)
    assert (await talk(db, CHAT, "two")).conversation_id == done.conversation_id
    assert len(await db.read(directory.names, done.conversation_id)) == 4


async def test_binding_a_name_to_where_it_points_changes_nothing(db: Database) -> None:
    """With or without `move`, twice is once."""
    done = await talk(db, WORK)
    before = await rows(db, "select * from aliases")
    for move in (False, True):
        await db.write(directory.bind, ALICE, WORK, done.conversation_id, move=move)
    assert await rows(db, "select * from aliases") == before


async def test_a_name_in_use_is_not_taken_by_accident(db: Database) -> None:
    """Without `move` a name that means another conversation is refused."""
    done = await talk(db, WORK)
    with pytest.raises(AliasTaken):
        await db.write(directory.bind, ALICE, WORK, (await fresh(db)).id, move=False)
    assert (await db.read(directory.find, ALICE, WORK)).id == done.conversation_id


async def test_a_reset_points_a_name_at_another_conversation_and_the_old_one_stays(db: Database) -> None:
    """What was said is still there by id, and a resume brings it back under the name."""
    old = await talk(db, CHAT, "old")
    new = await fresh(db)
    await db.write(directory.bind, ALICE, CHAT, new.id, move=True)
    assert (await db.read(directory.find, ALICE, CHAT)).id == new.id
    assert await transcript(db, old.conversation_id) == ["old", "OLD"]
    await db.write(directory.bind, ALICE, CHAT, old.conversation_id, move=True)
    assert (await talk(db, CHAT, "again")).conversation_id == old.conversation_id


async def test_a_turn_in_flight_finishes_where_it_began(db: Database) -> None:
    """A turn carries its conversation's id, never the name it came by."""
    lease = await start(db, CHAT, "one")
    new = await fresh(db)
    await db.write(directory.bind, ALICE, CHAT, new.id, move=True)
    await end(db, lease, DONE, "ONE")
    assert await transcript(db, lease.turn.conversation_id) == ["one", "ONE"]
    assert await transcript(db, new.id) == []


async def test_a_name_that_was_taken_away_is_free_again(db: Database) -> None:
    """The conversation stays; the name makes a new one at its next use."""
    old = await talk(db, WORK, "old")
    assert not await db.write(directory.unbind, BOB, WORK)
    assert await db.write(directory.unbind, ALICE, WORK)
    assert not await db.write(directory.unbind, ALICE, WORK)
    assert (await talk(db, WORK, "new")).conversation_id != old.conversation_id
    assert await transcript(db, old.conversation_id) == ["old", "OLD"]


# -- titles and lists


async def test_a_rename_changes_the_title_and_nothing_else(db: Database) -> None:
    """No id, no name, no position and no tip moves."""
    done = await talk(db, WORK)
    before = await conversation(db, done.conversation_id)
    after = await db.write(directory.rename, ALICE, WORK, "Work 東京")
    assert after.title == "Work 東京"
    for field in ("id", "principal", "head_seq", "tip_turn", "fence", "parent_id", "base_seq"):
        assert getattr(after, field) == getattr(before, field)
    assert (await db.read(directory.find, ALICE, WORK)).id == done.conversation_id


async def test_the_newest_conversations_come_first_and_only_those_that_hold_something(db: Database) -> None:
    """Each owner sees their own; an admission or an entry makes a conversation newer."""
    await enter(db, N1)
    made = [await talk(db, Slug(f"talk-{number}")) for number in range(3)]
    await talk(db, WORK, principal=BOB)
    await fresh(db)
    for number, done in enumerate(made):  # long ago, and apart: a clock may not tell two fast talks from each other
        await script(db, f"update conversations set updated_at = {number} where id = '{done.conversation_id}'")
    await talk(db, Slug("talk-0"))
    ids = [made[number].conversation_id for number in (0, 2, 1)]
    assert [c.id for c in await db.read(directory.newest, ALICE, 10)] == ids
    assert [c.id for c in await db.read(directory.newest, ALICE, 2)] == ids[:2]
    assert len(await db.read(directory.newest, BOB, 10)) == 1


async def test_a_list_goes_on_where_its_last_page_ended(db: Database) -> None:
    """Page by page each conversation comes once, in one order; another's conversation is no place to go on from."""
    made = [(await talk(db, Slug(f"talk-{number}"))).conversation_id for number in range(5)]
    yours = (await talk(db, WORK, principal=BOB)).conversation_id
    await script(db, "update conversations set updated_at = 1")  # all at once: the id decides
    pages, after = [], None
    while page := [c.id for c in await db.read(directory.newest, ALICE, 2, after)]:
        pages.append(page)
        after = page[-1]
    assert [len(page) for page in pages] == [2, 2, 1]
    assert [conversation_id for page in pages for conversation_id in page] == sorted(made, reverse=True)
    with pytest.raises(UnknownHandle):
        await db.read(directory.newest, ALICE, 2, yours)


async def test_a_list_of_one_kind_goes_on_where_its_last_page_ended(db: Database) -> None:
    """Among others of another kind, and where the same moment is theirs, too."""
    made = [(await talk(db, Slug(f"talk-{n}"), conversation_kind="run" if n % 2 else "chat")) for n in range(7)]
    await script(db, "update conversations set updated_at = 1")
    for kind, first in (("chat", 0), ("run", 1)):
        wanted = sorted((turn.conversation_id for turn in made[first::2]), reverse=True)
        page = [c.id for c in await db.read(directory.newest, ALICE, 2, None, kind)]
        rest = [c.id for c in await db.read(directory.newest, ALICE, 9, page[-1], kind)]
        assert page + rest == wanted
    assert await db.read(directory.newest, ALICE, 9, None, "none") == []


@pytest.mark.parametrize("many", [1, 3, 500])
async def test_what_is_meant_is_what_is_called_so_or_else_what_begins_so(
    db: Database, monkeypatch: pytest.MonkeyPatch, many: int
) -> None:
    """By id, slug, external name or title, to the letter, newest first; few that begin alike or many."""
    monkeypatch.setattr(directory, "MANY", many)
    titles = [
        "Garden",
        "Garden plan",
        "garden",
        "100% sure",
        "100_ sure",
        "Zoë",
        "Zo",
        "東京",
        "東京都",
        "\U0010ffff",
        "",
        "",
    ]
    known: dict[str, set[str]] = {}
    for number, title in enumerate(titles):
        name: Name = External(f"Garden {number}") if number % 3 == 0 else Slug(f"plan-{number}")
        made = await talk(db, name)
        await db.write(directory.rename, ALICE, name, title)
        known[made.conversation_id] = {title, name.value, made.conversation_id} - {""}
        await script(db, f"update conversations set updated_at = {number} where id = '{made.conversation_id}'")
    gone, yours = (await talk(db, Slug("gone"))).conversation_id, (await talk(db, Slug("plan-b"), principal=BOB))
    await db.write(directory.rename, ALICE, ById(gone), "Garden of the past")
    await db.write(directory.delete, ALICE, ById(gone))
    tries = {name[:length] for names in known.values() for name in names for length in (1, 2, 4, 7, 9, len(name))}
    for what in sorted(tries | {"conv", "Gz", "g", "\U0010fffe", "%", "_", gone[:12], yours.conversation_id[:12]}):
        exact = [c for c, names in known.items() if what in names]
        begun = [c for c, names in known.items() if any(name.startswith(what) for name in names)]
        truth = (exact or begun)[::-1]
        assert [c.id for c in await db.read(directory.meant, ALICE, what, 50)] == truth, what
        assert [c.id for c in await db.read(directory.meant, ALICE, what, 2)] == truth[:2], what


async def test_settings_are_kept_beside_the_log(db: Database) -> None:
    """Each is replaced as a whole, the others stay, and only their owner changes them."""
    done = await talk(db, WORK)
    assert (await conversation(db, done.conversation_id)).settings == {}
    await db.write(directory.change_settings, ALICE, WORK, {"topic": "東京", "deep": {"a": [1, None]}})
    changed = await db.write(directory.change_settings, ALICE, WORK, {"deep": {"b": 2}})
    assert changed.settings == {"topic": "東京", "deep": {"b": 2}}
    assert changed.head_seq == 2
    with pytest.raises(UnknownHandle):
        await db.write(directory.change_settings, BOB, ById(done.conversation_id), {})
    assert (await conversation(db, done.conversation_id)).settings == changed.settings


# -- deleting


async def test_a_deleted_conversation_is_as_unknown_as_one_that_never_was(db: Database) -> None:
    """Its id, its names and its turns lead nowhere, and it is in no list."""
    done = await talk(db, WORK)
    await db.write(directory.bind, ALICE, CHAT, done.conversation_id, move=False)
    with pytest.raises(UnknownHandle):
        await db.write(directory.delete, BOB, ById(done.conversation_id))
    assert (await db.write(directory.delete, ALICE, WORK)).id == done.conversation_id
    for handle in (WORK, CHAT, ById(done.conversation_id)):
        assert await db.read(directory.lookup, ALICE, handle) is None
    with pytest.raises(UnknownHandle):
        await db.write(directory.delete, ALICE, ById(done.conversation_id))
    with pytest.raises(UnknownTurn):
        await db.read(turns.find, ALICE, done.id)
    with pytest.raises(UnknownTurn):
        await admit(db, After(done.id))
    assert await db.read(directory.newest, ALICE, 10) == []


async def test_the_names_of_a_deleted_conversation_are_free_at_once(db: Database) -> None:
    """The same name makes a new conversation, and an address may be paired by another."""
    done = await talk(db, WORK, "old")
    await db.write(directory.bind, ALICE, CHAT, done.conversation_id, move=False)
    await db.write(directory.delete, ALICE, WORK)
    new = await talk(db, WORK, "new")
    assert await transcript(db, new.conversation_id) == ["new", "NEW"]
    assert (await talk(db, CHAT, "mine now", principal=BOB)).principal == BOB


async def test_a_fork_outlives_the_conversation_it_came_from(db: Database) -> None:
    """It reads what was said before it, whatever became of its parent."""
    one = await talk(db, WORK, "one")
    await talk(db, WORK, "two")
    fork = await talk(db, After(one.id), "other")
    await db.write(directory.delete, ALICE, WORK)
    assert await transcript(db, fork.conversation_id) == ["one", "ONE", "other", "OTHER"]
    assert (await talk(db, After(fork.id), "on")).conversation_id == fork.conversation_id


# -- forks


async def test_a_fork_is_found_by_its_own_id(db: Database) -> None:
    """It begins where it was made and knows its parent."""
    one = await talk(db, WORK, "one")
    await talk(db, WORK, "two")
    fork = await conversation(db, (await talk(db, After(one.id), "other")).conversation_id)
    assert (fork.parent_id, fork.base_seq, fork.head_seq) == (one.conversation_id, 2, 4)
    assert (await turn(db, fork.tip_turn)).conversation_id == fork.id
    assert [e.seq for e in await db.read(log.read_transcript, fork.id)] == [1, 2, 3, 4]


# -- how a conversation began


async def opening(db: Database, conversation_id: ConversationId) -> str:
    [row] = await db.read(directory.described, [await conversation(db, conversation_id)])
    return row.opening


async def test_the_opening_is_the_first_message_that_was_not_taken_back(db: Database) -> None:
    """Removed, rewound, and back again."""
    first = await talk(db, WORK, "one")
    place = first.conversation_id
    await talk(db, WORK, "two")
    assert await opening(db, place) == "one"
    await tend(db, WORK, Remove(1))
    assert await opening(db, place) == "ONE"
    removal = (await conversation(db, place)).head_seq
    await tend(db, WORK, Remove(2))
    assert await opening(db, place) == "two"
    await tend(db, WORK, Expand(removal))
    assert await opening(db, place) == "one"
    await tend(db, WORK, Rewind(0))
    assert await opening(db, place) == ""
    await talk(db, WORK, "three")
    assert await opening(db, place) == "three"


async def test_the_opening_of_a_fork_is_its_own_or_that_of_its_past(db: Database) -> None:
    """Of what it was forked from nothing counts that came later or was taken back before."""
    first = await talk(db, WORK, "one")
    origin = await conversation(db, first.conversation_id)
    await tend(db, WORK, Remove(1))
    forks = [await db.write(directory.create, ALICE, parent=origin.id, base=base) for base in (origin.head_seq, 3, 0)]
    assert [await opening(db, fork.id) for fork in forks] == ["one", "ONE", ""]
    await talk(db, ById(forks[0].id), "two")
    assert await opening(db, forks[0].id) == "two"
