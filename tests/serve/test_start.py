"""What a person sees after `legato serve`, and what is on the disk then."""

import json
import signal
import stat
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from serve.conftest import Serve


@pytest.fixture
def serve(serve: Serve) -> Serve:
    """Here a process starts from nothing."""
    return partial(serve, anew=True)


def test_five_lines_say_what_is_needed_next(serve: Serve, home: Path) -> None:
    """The URL, the key file, the data, a command to try, the docs."""
    server = serve()
    listens, key, data, attempt, docs = server.banner
    assert listens.startswith("Legato listens on http://127.0.0.1:")
    assert key.split() == ["key", str(home / "key")]
    assert data.split() == ["data", str(home / "legato.db")]
    assert attempt.split()[:2] == ["try", "curl"]
    assert docs.split()[0] == "docs"
    server.signal(signal.SIGTERM)
    assert server.end() == 0
    assert len(server.stdout.lines) == 5


def test_the_command_to_try_works_as_it_is_printed(serve: Serve) -> None:
    """It is pasted into a shell, so it is run by one."""
    command = serve().banner[3].split(maxsplit=1)[1]
    done = subprocess.run(["bash", "-c", f"{command} -sS"], capture_output=True, text=True, timeout=30, check=True)
    answer = json.loads(done.stdout)
    assert answer["status"] == "completed"
    assert "demo model" in answer["output"][-1]["content"][0]["text"]


def test_the_home_is_for_its_owner_only(serve: Serve, home: Path) -> None:
    """Nobody else on the machine reads the key or the conversations."""
    server = serve()
    server.say("a secret")
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    assert stat.S_IMODE((home / "key").stat().st_mode) == 0o600


def test_the_key_is_in_its_file_and_nowhere_else(serve: Serve, home: Path) -> None:
    """Neither what is printed nor what is logged nor the raw database holds it."""
    server = serve(env={"LEGATO_LOG__LEVEL": "debug"})
    assert len(server.key) > 30
    server.say("hello")
    server.post({"input": "x"}, authorization="Bearer wrong")
    files = [path for path in home.iterdir() if path.name != "key"]
    assert {path.name for path in files} >= {"legato.db", "legato.db-wal"}
    for path in files:
        assert server.key.encode() not in path.read_bytes(), path
    server.kill()
    assert not [line for line in server.stdout.lines + server.stderr.lines if server.key in line]


def test_a_process_that_works_says_so(serve: Serve) -> None:
    """Alive, ready, and what it has counted: without a key."""
    server = serve()
    server.say("hello")
    assert server.get("/healthz").json == {"status": "ok"}
    assert server.get("/readyz").json == {"status": "ready"}
    metrics = server.get("/metrics")
    assert metrics.headers["content-type"].startswith("text/plain")
    counted = dict(line.rsplit(" ", 1) for line in metrics.body.decode().splitlines() if not line.startswith("#"))
    assert counted["legato_turns_admitted_total"] == "1.0"
    assert counted['legato_turns_ended_total{status="done"}'] == "1.0"
    assert counted["legato_turns_running"] == "0.0"


def test_without_a_key_there_is_an_envelope_and_nothing_else(serve: Serve) -> None:
    """No key, no scheme, a wrong key, one that is not ASCII: always the same refusal, and it can be found in the log
    by its request id."""
    server = serve()
    wrong: list[dict[str, str]] = [
        {},
        {"authorization": server.key},
        {"authorization": "Bearer "},
        {"authorization": f"Bearer {server.key}x"},
        {"authorization": "Bearer caf\xe9"},
    ]
    ids = set()
    for headers in wrong:
        refused = server.post({"conversation": "talk", "input": "hello"}, **headers)
        assert refused.status == 401, headers
        assert refused.error["code"] == "invalid_api_key"
        assert refused.error["type"] == "authentication_error"
        assert set(refused.error) == {"message", "type", "param", "code"}
        ids.add(refused.headers["x-request-id"])
    assert len(ids) == len(wrong)
    assert server.get("/v1/conversations/talk", authorization=f"Bearer {server.key}").status == 404


def test_the_log_is_json_lines_with_the_ids_of_conversation_and_turn(serve: Serve) -> None:
    """One line an event, on standard error, so that what happened to a turn can be found."""
    server = serve()
    answer = server.say("hello").json
    [started] = server.logged("turn started")
    [ended] = server.logged("turn ended")
    for line in (started, ended):
        assert line["turn"] == answer["id"]
        assert line["conversation"] == answer["conversation"]["id"]
        assert line["level"] == "info"
        assert line["timestamp"].endswith("Z")
    assert ended["status"] == "done"
    server.say("fail 9 times")
    failed = server.logged("turn ended", 2)[-1]
    assert (failed["status"], failed["code"]) == ("failed", "model_unavailable")
    assert [json.loads(line)["event"] for line in server.stderr.lines]


def test_the_driver_of_a_database_is_loaded_where_it_is_used(serve: Serve, home: Path, pg_url: str) -> None:
    """Whoever starts on SQLite does not wait for PostgreSQL's."""

    def loaded(**how: Any) -> str:
        server = serve(**how)
        server.say("hello")
        return Path(f"/proc/{server.process.pid}/maps").read_text()

    assert "/asyncpg/" not in loaded()
    assert "/asyncpg/" in loaded(at=home.parent / "other", env={"LEGATO_DATABASE_URL": pg_url})


def test_the_files_are_for_their_owner_only_in_a_home_that_others_may_enter(serve: Serve, home: Path) -> None:
    """A home that was made by hand, or a mounted volume, may be open to others; what was said is not."""
    home.mkdir(mode=0o755)
    serve().say("a secret")
    assert {path.name for path in home.iterdir() if path.stat().st_mode & 0o077} == set()
