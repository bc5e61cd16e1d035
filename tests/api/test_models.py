"""Who answers: agents and models by their names, and names that nobody knows."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from api.server import Server
from api.upstream import Upstream
from api.wire import ask, chat, refused


@pytest.fixture
def served(tmp_path: Path, upstream: Upstream, policy: str) -> Iterator[Server]:
    settings = {"LEGATO_MODELS__UPSTREAM__MODEL": "its-own", "LEGATO_SERVER__UNKNOWN_MODEL": policy}
    server = Server(tmp_path / "home", **upstream.settings, **settings)
    yield server
    server.stop()


@pytest.mark.parametrize("policy", ["default", "pass"])
def test_a_model_that_nobody_knows_is_answered_by_the_default_or_passed_on(
    served: Server, upstream: Upstream, policy: str
) -> None:
    """The answer says who gave it. A known name is never passed on."""
    for route in (ask, chat):
        talk = upstream.talk()
        talk.say("hello")
        talk.end()
        answer = route(served.client, "hi", model="gpt-4o")
        sent = upstream.received[-1]["model"]
        assert (answer["model"], sent) == (("default", "its-own") if policy == "default" else ("gpt-4o", "gpt-4o"))
    talk = upstream.talk()
    talk.end()
    ask(served.client, "hi", model="upstream")
    assert upstream.received[-1]["model"] == "its-own"


@pytest.mark.parametrize("policy", ["reject"])
def test_a_model_that_nobody_knows_may_be_refused(served: Server, policy: str) -> None:
    body = {"input": "hi", "model": "gpt-4o"}
    refused(served.client.post("/v1/responses", json=body), 404, "model_not_found", "model")
