"""P6: a backup taken under load restores to a prefix of what was acknowledged, on either database and across them.

And what is no backup, or has no room, is refused with a sentence; nothing is changed then.
"""

import asyncio
import fcntl
import http.client
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from golden import raw
from legato.domain.entries import Message
from legato.domain.handles import Slug
from legato.domain.ids import PrincipalId, new_id
from legato.errors import UnknownHandle
from legato.store import directory, log
from legato.store.verify import verify
from serve.conftest import Serve
from serve.process import BOUND, Env, Server, environment
from serve.test_commands import legato
from serve.writers import Writers, said

LOCAL = PrincipalId("local")
PICTURE = "data:image/gif;base64,R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7"
NewUrl = Callable[[], str]


@pytest.fixture
def new_url(pg_server: str) -> Iterator[NewUrl]:
    """The URL of another empty database, and another."""
    made: list[str] = []

    def new() -> str:
        made.append(new_id("restored"))
        run(raw.execute(pg_server, f"create database {made[-1]}"))
        return pg_server.replace("/postgres?", f"/{made[-1]}?")

    yield new
    for name in made:
        run(raw.execute(pg_server, f"drop database {name} with (force)"))


def run(work: Any) -> Any:
    with asyncio.Runner() as runner:
        return runner.run(work)


def held(place: Any, names: Any) -> dict[str, list[tuple[str, str]]]:
    """What a database holds of these conversations, as (role, text)."""

    async def read() -> dict[str, list[tuple[str, str]]]:
        found = {}
        async with raw.opened(place) as db:
            for name in names:
                try:
                    conversation = await db.read(directory.find, LOCAL, Slug(name))
                except UnknownHandle:
                    found[name] = []
                    continue
                bodies = [entry.body for entry in await db.read(log.read_transcript, conversation.id)]
                found[name] = [(body.role, body.text) for body in bodies if isinstance(body, Message)]
        return found

    return run(read())  # type: ignore[no-any-return]


def check_prefix(place: Any, before: Counter[str], after: Counter[str]) -> None:
    """Everything that was acknowledged before is there; nothing is there that was not said; no talk has a hole."""
    for name, lines in held(place, after).items():
        assert lines == said(name, after[name])[: len(lines)], name
        assert len(lines) >= 2 * before[name], name


# -- the promise


@pytest.mark.parametrize("source", ["sqlite", "postgres"])
def test_a_backup_taken_under_load_restores_to_a_prefix_of_what_was_acknowledged(
    serve: Serve, home: Path, tmp_path: Path, new_url: NewUrl, source: str, pytestconfig: pytest.Config
) -> None:
    """In a loop, into fresh homes of both databases; every copy is whole, and the talk goes on in it."""
    settings = {"LEGATO_LOG__LEVEL": "error"} | ({"LEGATO_DATABASE_URL": new_url()} if source == "postgres" else {})
    server = serve(env=settings)
    picture = [{"role": "user", "content": [{"type": "input_image", "image_url": PICTURE}]}]
    assert server.say("", "picture", input=picture).status == 200
    taken: list[tuple[Path, Counter[str], Counter[str]]] = []
    with Writers(server, 4) as writers:
        for number in range(20 if pytestconfig.getoption("--long") else 3):
            writers.go_on(20)
            before, path = writers.acknowledged.copy(), tmp_path / f"{number}.backup"
            backup = legato(home, "backup", "--json", str(path), env=settings)
            assert backup.code == 0, backup.err
            assert (backup.json["attachments"], backup.json["bytes"]) == (1, path.stat().st_size)
            taken.append((path, before, writers.sent.copy()))
            writers.go_on(1)  # nobody was kept from writing
    for number, (path, before, after) in enumerate(taken):
        there = tmp_path / f"restored-{number}"
        env: Env = {"LEGATO_DATABASE_URL": new_url()} if number % 2 else {}
        restored = legato(there, "restore-backup", str(path), env=env)
        assert restored.code == 0, restored.err
        verified = legato(there, "verify", env=env)
        assert (verified.code, verified.out) == (0, "The store is whole.\n"), verified.out
        check_prefix(env.get("LEGATO_DATABASE_URL") or there / "legato.db", before, after)
    assert [path.name for path in home.iterdir() if path.name.startswith(".")] == []
    again = serve(at=there, env=env)
    name = next(iter(before))
    assert "seen: " in again.say("what was said?", name).text
    assert again.said(name)[: 2 * before[name]] == said(name, before[name])


def test_a_client_that_leaves_in_the_middle_of_a_backup_leaves_nothing_behind(serve: Serve, home: Path) -> None:
    server = serve()
    server.say("hello")
    address = urlsplit(server.url)
    for _ in range(3):
        connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=BOUND)
        connection.request("POST", "/v1/backup", headers={"Authorization": f"Bearer {server.key}"})
        response = connection.getresponse()
        assert response.read(100).startswith(b"SQLite format 3\0")
        connection.close()
    assert [path.name for path in home.iterdir() if "backup" in path.name] == []
    deadline = time.monotonic() + BOUND
    while any("backup" in _target(path) for path in Path(f"/proc/{server.process.pid}/fd").iterdir()):
        assert time.monotonic() < deadline  # its room on the disk is free when the file is closed
        assert server.get("/readyz").status == 200


def _target(path: Path) -> str:
    try:
        return str(path.readlink())
    except FileNotFoundError:
        return ""


def test_what_a_killed_gateway_left_of_a_backup_is_removed_at_the_next_start(serve: Serve, home: Path) -> None:
    """What another process still works on stays."""
    serve().kill()
    for name in (".backup-left", ".backup-used"):
        (home / name).mkdir()
        (home / name / "backup.part").write_bytes(b"half of it")
    used = os.open(home / ".backup-used", os.O_RDONLY)
    fcntl.flock(used, fcntl.LOCK_EX)
    serve()
    assert [path.name for path in home.iterdir() if path.name.startswith(".")] == [".backup-used"]
    os.close(used)


def test_without_a_gateway_the_store_is_backed_up_as_it_is(serve: Serve, home: Path, tmp_path: Path) -> None:
    """Also after `kill -9`, when the newest of it is still in the journal; and no turn begins for it."""
    server = serve()
    server.say("reply only one")
    server.kill()
    taken = legato(home, "backup", str(tmp_path / "backup"))
    assert (taken.code, taken.err) == (0, "")
    assert "1 conversation, " in taken.out
    assert "2 entries" in taken.out or "3 entries" in taken.out
    assert (tmp_path / "backup").stat().st_mode & 0o077 == 0
    legato(tmp_path / "there", "restore-backup", str(tmp_path / "backup"))
    assert held(tmp_path / "there" / "legato.db", ["talk"])["talk"] == [
        ("user", "reply only one"),
        ("assistant", "one"),
    ]
    assert "There is no database" in legato(tmp_path / "nowhere", "backup", str(tmp_path / "other")).err
    assert not (tmp_path / "other").exists()


def test_a_file_is_replaced_by_a_backup_only_on_purpose(serve: Serve, home: Path, tmp_path: Path) -> None:
    serve().say("hello")
    path = tmp_path / "backup"
    path.write_text("precious")
    refused = legato(home, "backup", str(path))
    assert (refused.code, "--force" in refused.err, path.read_text()) == (1, True, "precious")
    assert legato(home, "backup", "--force", str(path)).code == 0
    assert path.read_bytes().startswith(b"SQLite format 3\0")
    assert "folder" in legato(home, "backup", str(tmp_path)).err
    assert "cannot be written" in legato(home, "backup", str(tmp_path / "no" / "where")).err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["backup", "home"]


# -- putting back


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the home of a gateway that was killed after something was said, and a backup of it."""
    folder = tmp_path_factory.mktemp("sound")
    server = Server(folder / "home")
    try:
        server.say("reply only kept", "talk")
        assert legato(folder / "home", "backup", str(folder / "backup")).code == 0
    finally:
        server.kill()
    return folder


@pytest.fixture
def backup(sound: Path, home: Path, tmp_path: Path) -> Path:
    """A copy of that backup, beside a copy of that home."""
    shutil.copytree(sound / "home", home)
    return Path(shutil.copy(sound / "backup", tmp_path / "sound.backup"))


def contents(folder: Path) -> dict[str, bytes]:
    return (
        {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix != ".lock"} if folder.exists() else {}
    )


def damaged(path: Path) -> None:
    whole = bytearray(path.read_bytes())
    whole[len(whole) // 2 : len(whole) // 2 + 4096] = b"\xa5" * 4096
    path.write_bytes(whole)


def cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5000])


def no_database(path: Path) -> None:
    path.write_text("dear diary")


def of_another_program(path: Path) -> None:
    path.unlink()
    with closing(sqlite3.connect(path)) as other, other:
        other.execute("create table recipes (id integer)")
    other.close()


def from_the_future(path: Path) -> None:
    with closing(sqlite3.connect(path)) as later, later:
        later.execute("insert into schema_version values (9999, 'telepathy')")
    later.close()


def in_use(path: Path) -> None:
    path.with_name(path.name + "-wal").write_bytes(b"more of it")


def missing(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (damaged, "is damaged"),
        (cut_off, "is damaged"),
        (no_database, "no SQLite file"),
        (of_another_program, "another program"),
        (from_the_future, "9999 ('telepathy')"),
        (in_use, "in use"),
        (missing, "cannot be read"),
    ],
)
@pytest.mark.parametrize("target", ["sqlite", "postgres"])
def test_what_is_no_backup_is_refused_and_nothing_is_changed(
    backup: Path, home: Path, tmp_path: Path, request: pytest.FixtureRequest, target: str, spoil: Any, sentence: str
) -> None:
    """In a fresh home, in one that is to be replaced, and in PostgreSQL."""
    spoil(backup)
    if target == "postgres":
        url = request.getfixturevalue("pg_url")
        refused = legato(tmp_path / "there", "restore-backup", "--database-url", url, str(backup))
        assert run(raw.dump(url)) == {}
    else:
        before = contents(home)
        refused = legato(home, "restore-backup", "--replace", str(backup))
        assert contents(home) == before
        assert legato(tmp_path / "there", "restore-backup", str(backup)).code == 1
        assert not (tmp_path / "there").exists()
    assert refused.code == 1
    assert refused.out == ""
    [line] = refused.err.splitlines()
    assert line.startswith("legato: ")
    assert sentence in line


def test_a_home_that_has_a_database_is_replaced_only_on_purpose(backup: Path, tmp_path: Path, serve: Serve) -> None:
    """The old one is kept under a name that is told, with what was still in its journal."""
    there = tmp_path / "there"
    other = serve(at=there)
    other.say("reply only old", "older")
    while_running = legato(there, "restore-backup", "--replace", str(backup))
    assert (while_running.code, f"process {other.process.pid}" in while_running.err) == (1, True)
    other.kill()
    before = contents(there)
    assert len(before["legato.db-wal"]) > 0
    refused = legato(there, "restore-backup", str(backup))
    assert (refused.code, "--replace" in refused.err) == (1, True)
    assert contents(there) == before

    replaced = legato(there, "restore-backup", "--replace", str(backup))
    assert replaced.code == 0, replaced.err
    aside = Path(replaced.out.strip().splitlines()[-1].split()[-1].removesuffix("."))
    assert aside.parent == there
    names = ["talk", "older"]
    assert held(there / "legato.db", names) == {
        "talk": [("user", "reply only kept"), ("assistant", "kept")],
        "older": [],
    }
    assert held(aside, names) == {"talk": [], "older": [("user", "reply only old"), ("assistant", "old")]}
    assert serve(at=there).said("talk")[-1] == ("assistant", "kept")


def test_a_damaged_database_can_be_replaced_and_is_kept_as_it_is(backup: Path, tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.mkdir()
    (there / "legato.db").write_bytes(b"SQLite format 3\0" + b"\xff" * 8000)
    (there / "legato.db-wal").write_bytes(b"\xfe" * 5000)
    assert legato(there, "restore-backup", "--replace", str(backup)).code == 0
    assert legato(there, "verify").code == 0
    kept = {name: data for name, data in contents(there).items() if ".replaced-" in name}
    assert b"SQLite format 3\0" + b"\xff" * 8000 in kept.values()
    assert not (there / "legato.db-wal").exists() or (there / "legato.db-wal").read_bytes() != b"\xfe" * 5000


def test_a_journal_that_was_left_behind_never_meets_the_new_database(
    backup: Path, tmp_path: Path, serve: Serve
) -> None:
    """Somebody has removed the old file by hand, and only that: its journal would be played into the new one."""
    there = tmp_path / "there"
    server = serve(at=there)
    server.say("reply only old", "older")
    server.kill()
    (there / "legato.db").unlink()
    journal = (there / "legato.db-wal").read_bytes()
    assert legato(there, "restore-backup", str(backup)).code == 0
    assert legato(there, "verify").code == 0
    assert held(there / "legato.db", ["older"]) == {"older": []}
    assert journal in contents(there).values()


def test_a_postgresql_that_is_used_is_not_restored_into(
    backup: Path, tmp_path: Path, serve: Serve, pg_url: str
) -> None:
    """Neither one in which somebody has talked, nor one on which a gateway runs; one that was only started may be."""
    there, env = tmp_path / "there", {"LEGATO_DATABASE_URL": pg_url, "LEGATO_WORKER__LEASE": "1"}
    server = serve(at=there, env=env)
    refused = legato(there, "restore-backup", str(backup), env=env)
    assert (refused.code, "Stop it first" in refused.err) == (1, True)
    server.signal(signal.SIGTERM)
    assert server.end() == 0
    restored = legato(there, "restore-backup", str(backup), env=env)
    assert restored.code == 0, restored.err
    before = run(raw.dump(pg_url))
    refused = legato(there, "restore-backup", str(backup), env=env)
    assert (refused.code, "holds conversations" in refused.err) == (1, True)
    assert "--replace is for SQLite" in legato(there, "restore-backup", "--replace", str(backup), env=env).err
    assert run(raw.dump(pg_url)) == before
    again = serve(at=there, env=env)
    assert again.say("hello", "talk").status == 200  # with the key of this home
    assert again.said("talk")[:2] == [("user", "reply only kept"), ("assistant", "kept")]


def test_kill_9_at_any_point_of_a_restore_leaves_the_old_or_the_new_database(
    backup: Path, tmp_path: Path, serve: Serve
) -> None:
    """Before each change of a name, one after the other; what is there is whole, and the next try comes through."""
    there = tmp_path / "there"
    server = serve(at=there)
    server.say("reply only old", "older")
    server.kill()
    outcomes = []
    for point in range(1, 100):
        trial = tmp_path / f"trial-{point}"
        shutil.copytree(there, trial)
        command = ["restore-backup", "--home", str(trial), "--replace", str(backup)]
        fused = [sys.executable, str(Path(__file__).with_name("fused.py")), str(point), str(trial), *command]
        done = subprocess.run(fused, env=environment(), capture_output=True, timeout=BOUND, check=False)
        [name] = [name for name, lines in held(trial / "legato.db", ["talk", "older"]).items() if lines]
        assert run(findings(trial / "legato.db")) == []
        outcomes.append(name)
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL, done.stderr
    assert outcomes == sorted(outcomes)  # the old one up to a point, the new one from there on
    assert set(outcomes) == {"older", "talk"}
    half_done = tmp_path / f"trial-{outcomes.index('talk')}"  # the last one that still had the old
    assert legato(half_done, "restore-backup", "--replace", str(backup)).code == 0
    assert held(half_done / "legato.db", ["talk"])["talk"][-1] == ("assistant", "kept")
    assert [path.name for path in half_done.iterdir() if ".restoring" in path.name] == []


async def findings(place: Any) -> list[str]:
    async with raw.opened(place) as db:
        return [str(finding) async for finding in verify(db)]
