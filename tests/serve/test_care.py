"""Looking after a gateway from the command line: verify, stats and doctor, with a gateway that runs and without."""

import asyncio
import signal
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pexpect
import pytest

from golden import raw
from serve.conftest import Serve
from serve.process import BOUND, LEGATO, Env, Server, environment
from serve.test_commands import Said, legato

PICTURE = "data:image/gif;base64,R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7"


@pytest.fixture(params=["sqlite", "postgres"])
def settings(request: pytest.FixtureRequest) -> Env:
    """The settings for one database and the other."""
    if request.param == "sqlite":
        return {}
    return {"LEGATO_DATABASE_URL": request.getfixturevalue("pg_url"), "LEGATO_WORKER__LEASE": "1"}


def place(home: Path, settings: Env) -> Any:
    return settings.get("LEGATO_DATABASE_URL") or home / "legato.db"


def sql(home: Path, settings: Env, statements: str) -> None:
    """What somebody with an editor does to a store that nobody uses."""

    async def run() -> None:
        async with raw.connected(place(home, settings)) as connection:
            await raw.execute_unguarded(connection, statements)

    with asyncio.Runner() as runner:
        runner.run(run())


# -- verify


def test_a_store_that_is_whole_is_said_to_be_whole_with_and_without_a_gateway(
    serve: Serve, home: Path, settings: Env
) -> None:
    server = serve(env=settings)
    server.say("hello")
    running = legato(home, "verify", env=settings)
    assert (running.code, running.out, running.err) == (0, "The store is whole.\n", "")
    assert legato(home, "verify", "--json", env=settings).json == {"findings": [], "count": 0}
    assert server.say("and on it goes").status == 200
    server.kill()
    alone = legato(home, "verify", env=settings)
    assert (alone.code, alone.out, alone.err) == (running.code, running.out, running.err)


def test_what_is_broken_is_named_the_same_with_and_without_a_gateway(serve: Serve, home: Path, settings: Env) -> None:
    server = serve(env=settings)
    server.say("hello")
    server.signal(signal.SIGTERM)
    server.end()
    sql(home, settings, "update conversations set tip_turn = null, fence = -5")
    alone, alone_json = legato(home, "verify", env=settings), legato(home, "verify", "--json", env=settings)
    serve(env=settings)
    running, running_json = legato(home, "verify", env=settings), legato(home, "verify", "--json", env=settings)
    assert (alone.code, alone.err) == (1, "2 findings.\n")
    assert "the newest turn is resp_" in alone.out
    assert (running.code, running.out, running.err) == (alone.code, alone.out, alone.err)
    assert running_json.json == alone_json.json
    assert {finding["rule"] for finding in running_json.json["findings"]} == {"tip", "fence"}
    assert running_json.code == 1


def test_only_an_administrator_may_verify_back_up_or_diagnose(serve: Serve, home: Path, tmp_path: Path) -> None:
    server = serve()
    key = legato(home, "key", "create", "bob", "--principal", "bob").out.strip()
    bob = {"LEGATO_URL": server.url, "LEGATO_API_KEY": key}
    for command in (["verify"], ["backup", str(tmp_path / "backup")]):
        refused = legato(home, *command, env=bob)
        assert (refused.code, refused.err) == (1, "legato: This needs a key with the scope 'admin'.\n")
    assert not (tmp_path / "backup").exists()
    assert state(legato(home, "doctor", "--json", env=bob), "store") == "problem"


def test_a_terminal_is_shown_how_far_a_backup_is(serve: Serve, home: Path, tmp_path: Path) -> None:
    serve().say("hello")
    arguments = ["backup", "--home", str(home), str(tmp_path / "backup")]
    terminal = pexpect.spawn(LEGATO, arguments, env=environment(), timeout=BOUND)
    terminal.expect("Backup")
    terminal.expect("100%")
    terminal.expect("1 conversation")
    terminal.expect(pexpect.EOF)
    terminal.close()
    assert terminal.exitstatus == 0


# -- stats


def test_stats_count_what_one_has_and_an_administrator_also_sees_the_store(
    serve: Serve, home: Path, settings: Env
) -> None:
    server = serve(env=settings)
    picture = {"role": "user", "content": [{"type": "input_image", "image_url": PICTURE}]}
    server.say("", "one", input=[picture])
    server.say("reply only two words", "one")
    server.say("fail 9 times", "two")
    gone = server.say("hello", "three").json["conversation"]["id"]
    legato(home, "fork", "one", env=settings)
    legato(home, "rm", gone, env=settings)
    told = legato(home, "stats", "--json", env=settings).json
    own = told["own"]
    assert (own["conversations"], own["forks"], own["in_trash"]) == (3, 1, 1)
    assert own["turns"] == {"done": 3, "failed": 1}
    assert own["output_tokens"] > 2
    assert (own["attachments"], own["attachment_bytes"]) == (1, 42)
    assert own["entries"] >= 6
    store = told["store"]
    assert store["database"] == ("postgres" if settings else "sqlite")
    assert store["bytes"] > 50_000
    assert store["schema"] >= 5
    assert (store["deliveries"], store["waiting"], store["oldest_waiting"]) == ({}, 0, None)

    key = legato(home, "key", "create", "bob", "--principal", "bob", env=settings).out.strip()
    bob = legato(home, "stats", "--json", env={"LEGATO_URL": server.url, "LEGATO_API_KEY": key}).json
    assert (bob["principal"], bob["store"]) == ("bob", None)
    assert {value for value in bob["own"].values() if value} == set()


def test_stats_are_a_table_for_people(serve: Serve, home: Path) -> None:
    """Numbers stand under each other, bytes in a unit that fits."""
    serve().say("hello")
    lines = legato(home, "stats").out.splitlines()
    own, store = lines[1 : lines.index("")], lines[lines.index("") + 2 :]
    for table in (own, store):
        assert len({len(line) for line in table}) == 1, table
    assert any(line.split() == ["conversations", "1"] for line in own)
    assert any(line.split()[0] == "size" and line.split()[2] == "kB" for line in store)


# -- doctor


def state(said: Said, name: str) -> str:
    """What the doctor says of one thing."""
    [found] = [check for check in said.json["checks"] if check["name"] == name]
    return str(found["state"])


def says(said: Said, name: str) -> str:
    [found] = [check for check in said.json["checks"] if check["name"] == name]
    return f"{found['says']} {found['advice']}"


def diagnosed(home: Path, settings: Env, *options: str) -> Said:
    return legato(home, "doctor", "--json", "--offline", *options, env=settings)


def files(home: Path) -> dict[str, tuple[int, bytes]]:
    """Everything in a home; what SQLite puts beside a file that is read is not its content."""
    found = [path for path in home.iterdir() if path.suffix != ".db-shm" and path.is_file()]
    return {path.name: (path.stat().st_mode, data) for path in found if (data := path.read_bytes())}


def test_a_gateway_in_order_is_said_to_be_in_order(serve: Serve, home: Path, settings: Env) -> None:
    """A line for each thing that was looked at; exit code 0."""
    server = serve(env=settings)
    server.say("hello")
    said = legato(home, "doctor", env=settings)
    assert (said.code, said.err) == (0, "")
    assert {line.split()[0] for line in said.out.splitlines()} == {"ok"}
    names = [line.split()[1] for line in said.out.splitlines()]
    assert names[:6] == ["configuration", "home", "key", "space", "gateway", "version"]
    assert names[6:] == ["turns", "failures", "attempts", "search", "deliveries", "models"]
    assert server.url in said.out


def test_without_a_gateway_the_store_is_looked_at_and_nothing_is_changed(
    serve: Serve, home: Path, settings: Env
) -> None:
    """Also when the last one was killed in the middle of a turn: its turns wait, and none begins for the doctor."""
    server = serve(env=settings)
    for _ in range(2):
        server.say("sleep 600", background=True)
    server.logged("turn started")
    server.kill()
    before = files(home)
    said = diagnosed(home, settings)
    assert (said.code, state(said, "gateway"), state(said, "database")) == (0, "warning", "ok")
    assert "1 turn waits for a gateway" in says(said, "turns")
    assert files(home) == before
    nowhere = diagnosed(home.parent / "nowhere", {})
    assert (nowhere.code, state(nowhere, "home")) == (0, "warning")
    assert not (home.parent / "nowhere").exists()


def test_modes_and_a_stale_address_are_found_and_mended_only_on_purpose(serve: Serve, home: Path) -> None:
    serve().kill()
    home.chmod(0o755)
    (home / "key").chmod(0o644)
    before = files(home)
    said = diagnosed(home, {})
    assert said.code == 1
    assert [state(said, name) for name in ("home", "key", "gateway")] == ["problem", "problem", "warning"]
    assert "0755" in says(said, "home")
    assert "killed" in says(said, "gateway")
    assert files(home) == before
    fixed = diagnosed(home, {}, "--fix")
    assert (fixed.code, len(fixed.json["fixed"])) == (0, 3)
    assert (home.stat().st_mode & 0o777, (home / "key").stat().st_mode & 0o777) == (0o700, 0o600)
    assert not (home / "url").exists()
    assert diagnosed(home, {}, "--fix").json["fixed"] == []


def test_modes_that_keep_others_out_are_not_said_to_let_them_in(serve: Serve, home: Path) -> None:
    """A key that its owner only reads is in order; a home that nobody writes to is not, and why is told."""
    serve().kill()
    home.chmod(0o500)
    (home / "key").chmod(0o400)
    said = diagnosed(home, {})
    assert [state(said, name) for name in ("home", "key")] == ["problem", "ok"]
    assert "0500: nothing can be written there" in says(said, "home")
    assert "others may" not in said.out
    assert state(diagnosed(home, {}, "--fix"), "home") == "ok"


def test_the_doctor_tells_what_is_no_gateway_from_one() -> None:
    """As other commands do; and the key is not shown to it."""
    with provider() as (url, heard):
        said = legato(Path("/nonexistent"), "doctor", "--json", "--offline", env={"LEGATO_URL": f"{url}/v1"})
    assert state(said, "gateway") == "problem"
    assert f"What answers at {url} is no Legato gateway" in says(said, "gateway")
    assert {key for _, key in heard} <= {"", "Bearer "}


def test_a_home_whose_own_key_was_revoked_starts_and_says_how_to_get_another(
    serve: Serve, home: Path, settings: Env
) -> None:
    """The log, every command and the doctor name the file, with a gateway that runs and without; what was said is
    still there for the next key."""
    server = serve(env=settings)
    server.say("remember me")
    assert legato(home, "key", "revoke", "local", env=settings).code == 0
    server.signal(signal.SIGTERM)
    assert server.end() == 0
    for runs in (False, True):
        if runs:
            server = serve(env=settings)
            assert server.logged("the key of this home was revoked")[0]["file"] == str(home / "key")
        for command in (["ls"], ["key", "create", "another"]):
            refused = legato(home, *command, env=settings)
            assert refused.code == 1
            assert f"{home / 'key'}. If it was revoked: delete the file" in refused.err
        said = diagnosed(home, settings)
        assert (said.code, state(said, "access")) == (1, "problem")
        assert "delete the file" in says(said, "access")
    server.signal(signal.SIGTERM)
    assert server.end() == 0
    (home / "key").unlink()
    assert [row["name"] for row in legato(home, "ls", "--json", env=settings).json] == ["talk"]
    assert state(diagnosed(home, settings), "key") == "ok"


def test_a_configuration_that_cannot_be_used_is_the_first_thing_said(home: Path) -> None:
    home.mkdir(mode=0o700)
    (home / "legato.toml").write_text('[agents.default]\nmodel = "nobody"\n')
    said = diagnosed(home, {})
    assert (said.code, state(said, "configuration")) == (1, "problem")
    assert "nobody" in says(said, "configuration")
    (home / "legato.toml").write_text("[server]\nprot = 1\n")
    assert "'server.port'" in says(diagnosed(home, {}), "configuration")


def foreign(path: Path) -> None:
    path.unlink()
    with closing(sqlite3.connect(path)) as other, other:
        other.execute("create table recipes (id integer)")
    other.close()


def newer(path: Path) -> None:
    with closing(sqlite3.connect(path)) as later, later:
        later.execute("insert into schema_version values (9999, 'telepathy')")
    later.close()


def damaged(path: Path) -> None:
    path.write_bytes(b"not a database at all, " * 400)


@pytest.mark.parametrize(
    ("spoil", "sentence"), [(foreign, "another program"), (newer, "9999 ('telepathy')"), (damaged, "damaged")]
)
def test_a_database_that_cannot_be_opened_is_named(serve: Serve, home: Path, spoil: Any, sentence: str) -> None:
    server = serve()
    server.signal(signal.SIGTERM)
    server.end()
    spoil(home / "legato.db")
    said = diagnosed(home, {})
    assert (said.code, state(said, "database")) == (1, "problem")
    assert sentence in says(said, "database")


def test_a_database_that_does_not_answer_is_named_without_its_password(home: Path) -> None:
    said = diagnosed(home, {"LEGATO_DATABASE_URL": "postgresql://me:s3cret@127.0.0.1:1/db"})
    assert (said.code, state(said, "database")) == (1, "problem")
    assert "s3cret" not in said.out


def test_what_the_store_needs_attention_for_is_the_same_with_and_without_a_gateway(
    serve: Serve, home: Path, settings: Env
) -> None:
    """Turns that failed and why, turns that were given up, answers that did not arrive."""
    server = serve(env=settings)
    server.say("fail 9 times", "one")
    server.say("fail 9 times", "two")
    turn = server.say("hello", "three").json["id"]
    server.signal(signal.SIGTERM)
    server.end()
    owed = "insert into deliveries (turn_id, address, body, status, attempts, created_at, updated_at)"
    sql(
        home,
        settings,
        """update turns set failure = '{"code":"attempts_exhausted","message":"It stopped."}'
        where id = (select min(id) from turns where status = 'failed');"""
        f"{owed} values ('{turn}', 'a', '{{}}', 'dead', 1, 0, 0), ('{turn}', 'b', '{{}}', 'unknown', 1, 0, 0)",
    )
    for running in (False, True):
        if running:
            serve(env=settings)
        said = diagnosed(home, settings)
        assert said.code == 1
        states = [state(said, name) for name in ("failures", "attempts", "deliveries")]
        assert states == ["warning", "problem", "problem"]
        assert "2 turns failed" in says(said, "failures")
        assert "attempts_exhausted: It stopped." in says(said, "failures")
        assert "1 could not be delivered and 1 may or may not have arrived" in says(said, "deliveries")


def test_a_turn_that_waits_for_long_is_told(serve: Serve, home: Path, settings: Env) -> None:
    server = serve(env=settings)
    server.say("sleep 600", background=True)
    waiting = server.say("and this", background=True).json["id"]
    server.logged("turn started")
    server.kill()
    sql(home, settings, f"update turns set created_at = created_at - 1000 where id = '{waiting}'")
    again = serve(env=settings)
    again.logged("turn started")
    said = diagnosed(home, settings)
    assert (said.code, state(said, "turns")) == (0, "warning")
    assert waiting in says(said, "turns")
    assert "17 minutes, behind another" in says(said, "turns")


@pytest.mark.parametrize("running", [False, True])
def test_a_search_index_that_is_not_whole_is_rebuilt_on_purpose(serve: Serve, home: Path, running: bool) -> None:
    server = serve()
    server.say("the canary sings at noon")
    found(server, "canary")
    server.signal(signal.SIGTERM)
    server.end()
    sql(home, {}, "delete from search_documents")
    server = serve()
    if not running:
        server.signal(signal.SIGTERM)
        server.end()
    said = diagnosed(home, {})
    assert (said.code, state(said, "search")) == (1, "problem")
    fixed = diagnosed(home, {}, "--fix")
    assert (fixed.code, state(fixed, "search"), len(fixed.json["fixed"])) == (0, "ok", 1)
    found(server if running else serve(), "canary")


def found(server: Server, query: str) -> None:
    """Wait until a word is found."""
    deadline = time.monotonic() + BOUND
    while not server.get(f"/v1/search?q={query}", authorization=f"Bearer {server.key}").json["data"]:
        assert time.monotonic() < deadline


def test_a_gateway_that_stands_still_is_a_problem(serve: Serve, home: Path) -> None:
    """It holds the database and does not answer; the doctor does not wait for it for ever."""
    server = serve()
    server.signal(signal.SIGSTOP)
    try:
        said = diagnosed(home, {})
    finally:
        server.signal(signal.SIGCONT)
    assert (said.code, state(said, "gateway")) == (1, "problem")
    assert "does not answer" in says(said, "gateway")


# -- providers


class Provider(BaseHTTPRequestHandler):
    """A provider that knows one key, and remembers what it was sent."""

    heard: list[tuple[str, str]]

    def do_GET(self) -> None:
        key = self.headers.get("authorization", "")
        self.heard.append((self.path, key))
        self.send_response(302 if "moved" in self.path else 200 if key == "Bearer sk-good" else 401)
        self.send_header("Location", "http://127.0.0.1:1/elsewhere")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """A test wants no log."""


@contextmanager
def provider() -> Iterator[tuple[str, list[tuple[str, str]]]]:
    kind = type("Listening", (Provider,), {"heard": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), kind) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", kind.heard
        finally:
            server.shutdown()
            thread.join(BOUND)


def test_providers_are_asked_and_a_key_goes_to_its_own_provider_only(home: Path) -> None:
    """One answers, one refuses the key, one is not there, one points elsewhere; no key is ever shown."""
    home.mkdir(mode=0o700)
    with provider() as (one, heard_by_one), provider() as (two, heard_by_two):
        models = {
            "good": (f"{one}/v1", "sk-good"),
            "bad": (f"{two}/v1", "sk-bad"),
            "moved": (f"{two}/moved", "sk-moved"),
            "gone": ("http://127.0.0.1:1/v1", "sk-gone"),
        }
        (home / "legato.toml").write_text(
            "".join(
                f'[models.{name}]\nkind = "openai-chat"\nbase_url = "{url}"\napi_key = "{key}"\n'
                for name, (url, key) in models.items()
            )
        )
        said = legato(home, "doctor", "--json")
        assert said.code == 1
        states = {name: state(said, f"model {name}") for name in models}
        assert states == {"good": "ok", "bad": "problem", "moved": "ok", "gone": "problem"}
        assert heard_by_one == [("/v1/models", "Bearer sk-good")]
        assert sorted(heard_by_two) == [("/moved/models", "Bearer sk-moved"), ("/v1/models", "Bearer sk-bad")]
        assert "sk-" not in said.out + said.err
        offline = legato(home, "doctor", "--json", "--offline")
        assert (offline.code, [check for check in offline.json["checks"] if "model" in check["name"]]) == (0, [])
        assert len(heard_by_one + heard_by_two) == 3
