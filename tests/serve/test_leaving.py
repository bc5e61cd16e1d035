"""How a gateway leaves: by `kill -9`, or in good order within its budget."""

import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from serve.conftest import Serve
from serve.process import Server


@pytest.fixture(params=["sqlite", "postgres"])
def settings(request: pytest.FixtureRequest) -> dict[str, str]:
    """The settings for one database and the other."""
    if request.param == "sqlite":
        return {}
    return {"LEGATO_DATABASE_URL": request.getfixturevalue("pg_url"), "LEGATO_WORKER__LEASE": "1"}


def test_a_named_conversation_remembers_after_kill_9(serve: Serve, settings: dict[str, str]) -> None:
    """The story of the README: say something, `kill -9`, start again, ask what was said."""
    first = serve(env=settings)
    conversation = first.say("My cat is called Miso", "my-project").json["conversation"]["id"]
    first.kill()
    second = serve(env=settings)
    answer = second.say("What did I say?", "my-project")
    assert answer.json["conversation"]["id"] == conversation
    assert 'you first said "My cat is called Miso"' in answer.text
    assert 'seen: 3 messages, first "My cat is called Miso"' in answer.text


def test_a_turn_cut_off_by_kill_9_goes_on_by_itself(serve: Serve, settings: dict[str, str]) -> None:
    """The client is gone and nobody asks: the next process answers all the same, once."""
    first = serve(env=settings)
    with ThreadPoolExecutor() as pool:
        asked = pool.submit(first.say, "sleep 1")
        first.logged("turn started")
        first.kill()
        assert asked.exception(timeout=30) is not None
    second = serve(env=settings)
    [ended] = second.logged("turn ended")
    assert ended["status"] == "done"
    [(_, question), (role, answer)] = second.said()
    assert (question, role) == ("sleep 1", "assistant")
    assert "seen: 1 messages" in answer


def test_a_turn_that_runs_is_answered_before_the_process_leaves(serve: Serve) -> None:
    """SIGTERM: who waits gets the answer, who comes now is asked to come back, and the exit code is 0."""
    server = serve()
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(server.say, "sleep 2")
        server.logged("turn started")
        server.signal(signal.SIGTERM)
        [draining] = server.logged("draining")
        assert draining["turns"] == 1
        refused = server.say("too late", "other")
        assert (refused.status, refused.error["code"]) == (503, "draining")
        assert server.get("/readyz").json["code"] == "draining"
        assert server.get("/healthz").status == 200
        answer = waiting.result(30)
    assert answer.status == 200
    assert answer.json["status"] == "completed"
    assert server.end() == 0


def leave(server: Server, *, hurried: bool) -> list[Any]:
    """Ask a server to leave in the middle of a turn of several seconds; returns what its client got."""
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(server.say, "sleep 4")
        server.logged("turn started")
        server.signal(signal.SIGTERM)
        if hurried:
            server.logged("draining")
            server.signal(signal.SIGTERM)
        assert server.end() == 0
        return [waiting.result(30)]


@pytest.mark.parametrize("hurried", [False, True], ids=["budget-of-0.2-seconds", "second-signal"])
def test_a_turn_that_does_not_fit_into_the_budget_goes_on_in_the_next_process(serve: Serve, hurried: bool) -> None:
    """The turn is handed back, its client is told to come back, and the next process ends it once."""
    first = serve(env={"LEGATO_SERVER__DRAIN": "60" if hurried else "0.2"})
    [told] = leave(first, hurried=hurried)
    assert (told.status, told.error["code"]) == (503, "draining")
    [left] = first.logged("turn ended")
    assert left["status"] == "left"
    second = serve()
    answer = second.say("still there?")
    [ended, _] = second.logged("turn ended", 2)
    assert (ended["turn"], ended["status"]) == (left["turn"], "done")
    assert [text for role, text in second.said() if role == "user"] == ["sleep 4", "still there?"]
    assert 'seen: 3 messages, first "sleep 4"' in answer.text


def test_an_idle_gateway_leaves_at_once(serve: Serve, home: Path) -> None:
    """Ctrl-C with nothing to do: exit code 0, and the file is whole by itself."""
    server = serve()
    server.say("hello")
    server.signal(signal.SIGINT)
    assert server.end() == 0
    assert sorted(path.name for path in home.iterdir()) == ["key", "legato.db", "legato.db.lock"]
