"""Fixtures: a platform, and a gateway that is on it."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from api.server import Server
from channels.platform import PLATFORMS, Bridge, Platform, bridge

Serving = Callable[..., Server]

QUICK = (
    "test_a_chat_is_one_conversation_and_is_answered_where_it_was_asked",
    "test_a_redelivery_acts_once_also_after_a_crash",
    "test_after_new_the_context_is_fresh_for_ever_on_and_resume_goes_back",
    "test_one_talk_goes_on_in_http_a_chat_and_the_terminal_at_once",
)


@pytest.fixture(params=PLATFORMS)
def platform(request: pytest.FixtureRequest) -> Iterator[Platform]:
    """Each platform in turn. A gateway with Telegram's library takes seconds to start, so there the stories are told in
    every run, and the rest with --long."""
    slow = request.param == "telegram" and request.node.originalname not in QUICK
    if slow and not request.config.getoption("--long"):
        pytest.skip("takes long on Telegram; run with --long")
    with PLATFORMS[request.param]() as made:
        yield made


@pytest.fixture
def mine() -> Iterator[Bridge]:
    """A bridge of our own."""
    with bridge() as made:
        yield made


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Serving]:
    """Start a gateway on a platform, with more settings of its channel."""
    started: list[Server] = []

    def start(platform: Platform, **more: str) -> Server:
        channel = {f"LEGATO_CHANNELS__{platform.name.upper()}__{name.upper()}": text for name, text in more.items()}
        server = Server(tmp_path / f"home{len(started)}", **{**platform.settings, **channel})
        started.append(server)
        return server

    yield start
    try:
        for server in started:
            server.check_log()
    finally:
        for server in started:
            server.stop()
