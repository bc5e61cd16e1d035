"""P5: the store can be re-proved, and a flipped value is named.

One sound store is made per database. A corruption breaks one thing in it by plain SQL, with every guard of the schema
switched off: in a copy of the SQLite file, or in a transaction of PostgreSQL that is taken back.
"""

import asyncio
import random
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from conftest import pg_database
from golden import raw, story
from golden.corruptions import CORRUPTIONS, Broken, conversation
from legato.domain.entries import Message, Text, draft
from legato.domain.handles import ById, Slug
from legato.domain.ids import ConversationId, NodeId
from legato.domain.turns import Input, Outcome, Submission
from legato.errors import StoreUnavailable, UnknownHandle
from legato.store import admission, directory, nodes, turns
from legato.store.database import Database, Row
from legato.store.postgres import Postgres, PostgresTx
from legato.store.sqlite import Sqlite
from legato.store.verify import Finding, Rule, verify
from legato.store.verify import log as verify_log
from legato.store.verify import turns as verify_turns


class Sound(Struct):
    """A sound store: where it is, and the ids of what is in it."""

    place: Any
    ids: dict[str, Any]


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def sound(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sound]:
    async def make(place: Any) -> Sound:
        async with raw.opened(place) as db:
            ids = await story.tell(db)
        return Sound(place, ids | await _numbers(place, ids))

    with ExitStack() as stack:
        if request.param == "sqlite":
            place: Any = tmp_path_factory.mktemp("sound") / "legato.db"
        else:
            place = stack.enter_context(pg_database(request.getfixturevalue("pg_server")))
        with asyncio.Runner() as runner:
            made = runner.run(make(place))
        yield made


@pytest.fixture
def copy(sound: Sound, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """A place with a copy of the sound store."""
    if isinstance(sound.place, Path):
        yield shutil.copy(sound.place, tmp_path / "legato.db")
    else:
        original = sound.place.split("/")[3].split("?")[0]
        with pg_database(request.getfixturevalue("pg_server"), original) as url:
            yield url


async def findings(db: Database) -> list[Finding]:
    return [finding async for finding in verify(db)]


async def findings_after(sound: Sound, tmp_path: Path, sql: str) -> list[Finding]:
    """What verify says of the sound store after these statements."""
    sql = sql.format(**sound.ids)
    if isinstance(sound.place, Path):
        place = shutil.copy(sound.place, tmp_path / "legato.db")
        async with raw.connected(place) as connection:
            await raw.execute_unguarded(connection, sql)
        async with raw.opened(place) as db:
            return await findings(db)
    async with raw.connected(sound.place) as connection:
        undone = connection.transaction(isolation="repeatable_read")
        await undone.start()
        await raw.execute_unguarded(connection, sql)
        found = await findings(Postgres(PoolOfOne(connection), sound.place))
        await undone.rollback()
        return found


class PoolOfOne:
    """Lets a database see what one connection has not committed."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def get_max_size(self) -> int:
        return 1

    async def acquire(self, *, timeout: float) -> Any:
        return self._connection

    async def release(self, connection: Any) -> None:
        """It is kept."""


async def test_a_sound_store_gives_no_finding(sound: Sound, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forks, compactions, rewinds, joined, failed and handed-back turns, deliveries and blobs are all in order; and
    pages of one row say the same as pages of many."""
    async with raw.opened(sound.place) as db:
        assert await findings(db) == []
        monkeypatch.setattr(verify_turns, "PAGE", 1)
        monkeypatch.setattr(verify_log, "PAGE", 1)
        assert await findings(db) == []


async def test_progress_is_told_conversation_by_conversation(sound: Sound) -> None:
    async with raw.opened(sound.place) as db:
        heard: list[tuple[int, int]] = []
        assert [f async for f in verify(db, lambda checked, total: heard.append((checked, total)))] == []
    assert heard == [(i, 8) for i in range(9)]


async def test_verify_runs_beside_a_living_gateway(copy: Any) -> None:
    """Each conversation is read on one snapshot, so turns that come and go meanwhile are no findings."""
    async with raw.opened(copy) as db:
        node = NodeId("node_busy")
        await db.write(nodes.renew, node, 60.0)
        moved, stop = asyncio.Event(), False

        async def write() -> None:
            while not stop:
                given = Input((draft(Message("user", (Text("yes?"),))),))
                submission = Submission(principal=story.ALICE, target=Slug("busy"), input=given)
                admitted = await db.write(admission.admit, submission, node)
                assert admitted.lease is not None
                await db.write(turns.finish, admitted.lease, Outcome(status="done"), [story.answer("yes")])
                moved.set()

        async with asyncio.TaskGroup() as group:
            group.create_task(write())
            for _ in range(5):
                assert await findings(db) == []
                moved.clear()
                await moved.wait()  # the writer really moves on meanwhile
            stop = True


async def test_a_turn_that_was_handed_back_and_then_cancelled_is_sound(copy: Any) -> None:
    """It has written, so its end is a position, too: a fork and a retry have to know where it stopped."""
    async with raw.opened(copy) as db:
        teller = story.Teller(db)
        lease = await teller.lease("handed back", Slug("other"), story.said("Go on."))
        await db.write(turns.append, lease, [story.answer("I go", incomplete=True)])
        await db.write(turns.release, lease)
        asked = await db.write(turns.cancel, story.ALICE, lease.turn.id)
        assert (asked.status, asked.cancel_at is not None) == ("queued", True)
        again = await db.write(turns.claim, asked.conversation_id, story.NODE)
        cancelled = (await db.write(turns.finish, again, Outcome(status="cancelled"))).turn
        assert (cancelled.status, cancelled.first_seq, cancelled.last_seq) == ("cancelled", 1, 2)
        assert await findings(db) == []


class Held(PostgresTx):
    """A transaction that waits before one of its statements."""

    def __init__(self, connection: Any, name: str) -> None:
        super().__init__(connection)
        self.name, self.there, self.go_on = name, asyncio.Event(), asyncio.Event()

    async def run(self, name: str, /, **params: object) -> list[Row]:
        if name == self.name:
            self.there.set()
            await self.go_on.wait()
        return await super().run(name, **params)


async def test_a_name_given_while_its_conversation_is_deleted_stays_usable(pg_url: str) -> None:
    """Whoever comes first: no name is left that means a deleted conversation and that nobody can use again."""
    async with raw.opened(pg_url) as db, raw.connected(pg_url) as connection:
        ids = await story.tell(db)
        held = Held(connection, "add_alias")

        async def bind() -> None:
            with suppress(UnknownHandle):
                async with connection.transaction():
                    await directory.bind(held, story.ALICE, Slug("name"), ConversationId(ids["fork3"]), move=False)

        async with asyncio.TaskGroup() as group:
            group.create_task(bind())
            await held.there.wait()
            deletion = group.create_task(db.write(directory.delete, story.ALICE, ById(ConversationId(ids["fork3"]))))
            await asyncio.wait({deletion}, timeout=1)  # it is done, or waits for the name's transaction
            held.go_on.set()
        assert await findings(db) == []
        await story.Teller(db).lease("new", Slug("name"), story.said("Hello?"))


async def test_a_store_that_is_gone_is_an_error_and_no_finding(sound: Sound) -> None:
    async with raw.opened(sound.place) as db:
        pass
    with pytest.raises(StoreUnavailable):
        await findings(db)


@pytest.mark.parametrize("broken", CORRUPTIONS, ids=lambda b: f"{b.rule}: {b.sql}"[:100])
async def test_a_flipped_value_is_named(sound: Sound, tmp_path: Path, broken: Broken) -> None:
    """Break one thing: verify names the rule and the place."""
    if broken.only and broken.only != ("sqlite" if isinstance(sound.place, Path) else "postgres"):
        pytest.skip(f"only {broken.only} lets this happen")
    found = await findings_after(sound, tmp_path, broken.sql)
    assert (broken.rule, broken.where.format(**sound.ids)) in {(f.rule.name, f.where) for f in found}, found


async def _numbers(place: Any, ids: dict[str, str]) -> dict[str, Any]:
    """Positions and numbers of the story that the corruptions speak of."""
    main, fork, fork2 = (f"conversation_id = '{ids[name]}'" for name in ("main", "fork", "fork2"))
    wanted = {
        "head": f"select max(seq) from entries where {main}",
        "base": f"select min(seq) from entries where {fork}",
        "first_entry": f"select id from entries where {main} and seq = 1",
        "expand": f"select seq from entries where {main} and kind = 'expand'",
        "rewind": f"select seq from entries where {main} and kind = 'rewind'",
        "pin2": f"select seq from entries where {fork2} and kind = 'pin'",
        "call2": f"select seq from entries where turn_id = '{ids['failed']}' and kind = 'tool_call'",
        "fog": f"select seq from entries where turn_id = '{ids['retry']}' and body like '%Fog.%'",
    }
    numbers = {"later_of_two": max(ids["first"], ids["second"])}
    for name, sql in wanted.items():
        [[numbers[name]]] = await raw.rows(place, sql)
    for number, (id,) in enumerate(await raw.rows(place, "select id from deliveries order by id"), 1):
        numbers[f"d{number}"] = id
    return numbers


def test_every_rule_has_a_corruption() -> None:
    """A rule nobody has seen broken is a rule nobody checks."""
    for database in ("sqlite", "postgres"):
        shown = {broken.rule for broken in CORRUPTIONS if broken.only in ("", database)}
        only_sqlite = {"file"} if database == "postgres" else set()
        assert {rule.name for rule in Rule} - only_sqlite == shown, database


async def test_a_finding_says_rule_place_and_words(sound: Sound, tmp_path: Path) -> None:
    [finding] = await findings_after(sound, tmp_path, conversation("main", "tip_turn = null"))
    assert str(finding) == (
        f"{sound.ids['main']}: the tip is None, and the newest turn is {sound.ids['interrupting']}. "
        "Rule 'tip': the tip is the newest talk turn."
    )


async def test_whatever_is_overwritten_verify_ends_and_says_something(tmp_path: Path, sound: Sound) -> None:
    """Page by page of a SQLite file: it cannot be opened, or verify has findings; it never fails itself."""
    if not isinstance(sound.place, Path):
        pytest.skip("a file of SQLite")
    whole = sound.place.read_bytes()
    [[size]] = await raw.rows(sound.place, "pragma page_size")
    for page in range(1, len(whole) // size):
        damaged = whole[: page * size] + b"\xa5" * size + whole[(page + 1) * size :]
        assert await _findings_in(tmp_path / f"{page}.db", damaged) != [], f"page {page}"


async def test_flipped_bits_never_make_verify_fail(tmp_path: Path, sound: Sound, pytestconfig: pytest.Config) -> None:
    """Some flips change a word and nothing else; many are found; none is an accident."""
    if not isinstance(sound.place, Path):
        pytest.skip("a file of SQLite")
    whole = sound.place.read_bytes()
    chance = random.Random(7)
    named = 0
    for number in range(2000 if pytestconfig.getoption("--long") else 60):
        damaged = bytearray(whole)
        for _ in range(chance.choice((1, 4, 16))):
            damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
        named += await _findings_in(tmp_path / f"{number}.db", bytes(damaged)) != []
    assert named > 10


async def _findings_in(place: Path, content: bytes) -> list[Finding] | None:
    """What verify finds in a file of this content; None when it cannot be opened."""
    _write(place, content)
    try:
        db = await Sqlite.open(place)
    except StoreUnavailable:
        return None
    try:
        return await findings(db)
    finally:
        await db.close()


def _write(place: Path, content: bytes) -> None:
    place.write_bytes(content)
