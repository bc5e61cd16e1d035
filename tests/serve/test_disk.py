"""A disk that is full while the gateway runs, and a file that is gone: refused, and nothing acknowledged is lost."""

import resource
import time
from pathlib import Path

import pytest

from serve.conftest import Serve
from serve.process import BOUND

ROOM = 200_000
"""Bytes that a file may grow beyond the database's size: enough to start, and for some turns."""


@pytest.fixture
def small_disk(serve: Serve, home: Path) -> int:
    """How large a file may become, a little above the database that is there."""
    serve().kill()
    return sum(path.stat().st_size for path in home.iterdir()) + ROOM


def test_a_full_disk_is_told_and_loses_nothing_that_was_acknowledged(serve: Serve, small_disk: int) -> None:
    """Inputs are admitted until the disk takes no more. From then on there is a 503 in the envelope and the process is
    not ready; with room again, every input that was acknowledged is there and is answered."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (small_disk, small_disk))

    server = serve(prepare=limit)
    acknowledged: list[str] = []
    refused = None
    for n in range(500):
        text = f"input {n} {'x' * 2000}"
        answer = server.say(text, background=True)
        if answer.status != 200:
            refused = answer
            break
        acknowledged.append(text)
    assert refused is not None
    assert acknowledged
    assert refused.status == 503
    assert refused.error["code"] == "store_unavailable"
    assert "disk" in refused.error["message"]
    for _ in range(200):  # a last few bytes may still be free
        ready = server.get("/readyz")
        if ready.status != 200:
            break
    assert (ready.status, ready.json["code"]) == (503, "store_unavailable")
    assert server.get("/healthz").status == 200
    server.kill()

    after = serve()
    assert after.get("/readyz").status == 200
    assert after.say("the last one").json["status"] == "completed"
    said = [text for role, text in after.said() if role == "user"]
    assert said[: len(acknowledged)] == acknowledged
    assert len(said) - len(acknowledged) <= 2  # the one that was refused may have been written, and the last


def test_a_disk_with_room_again_is_used_again(serve: Serve, small_disk: int) -> None:
    """No restart is needed: what was refused is accepted, and what was waiting is answered."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (small_disk, resource.RLIM_INFINITY))

    server = serve(prepare=limit, env={"LEGATO_WORKER__LEASE": "1"})
    while server.say(f"input {'x' * 2000}", background=True).status == 200:
        continue
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    answer = server.say("the last one")
    assert answer.status == 200
    assert answer.json["status"] == "completed"
    said = server.said()
    assert sum(role == "user" for role, _ in said) == sum(role == "assistant" for role, _ in said)


@pytest.mark.parametrize("how", ["removed", "replaced", "a file stands where its folder was"])
def test_what_is_said_is_not_taken_into_a_file_that_is_gone(serve: Serve, home: Path, how: str) -> None:
    """SQLite would write on into what was removed, and be content."""
    server = serve()
    assert server.say("one").status == 200
    if how == "a file stands where its folder was":
        home.rename(home.with_name("elsewhere"))
        home.write_text("no folder")
    else:
        for path in home.glob("legato.db*"):
            if path.suffix != ".lock":
                copy = path.read_bytes()
                path.unlink()
                if how == "replaced":
                    path.write_bytes(copy)
    deadline = time.monotonic() + BOUND
    while server.get("/readyz").status == 200:  # it looks again ten times a second
        assert time.monotonic() < deadline
    answer = server.say("two")
    assert (answer.status, answer.error["code"]) == (503, "store_unavailable")
    assert "removed or replaced" in answer.error["message"]
    assert server.get("/readyz").status == 503
    assert server.get("/healthz").status == 200
