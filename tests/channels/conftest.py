"""Fixtures: a platform, and a gateway that is on it."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from api.server import Server
from channels.platform import PLATFORMS, Bridge, Platform, bridge
from channels.telegram_api import TelegramApi

Serving = Callable[..., Server]


@pytest.fixture(params=PLATFORMS)
def platform(request: pytest.FixtureRequest) -> Iterator[Platform]:
    """Each platform in turn."""
    with PLATFORMS[request.param]() as made:
        yield made


@pytest.fixture
def api() -> Iterator[TelegramApi]:
    """A stand-in of Telegram."""
    api = TelegramApi()
    yield api
    api.stop()


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
