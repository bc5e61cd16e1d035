"""Fixtures for tests of the process: a server that is gone when the test ends."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from serve.process import Server

Serve = Callable[..., Server]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home that is not there yet."""
    return tmp_path / "home"


@pytest.fixture
def serve(home: Path) -> Iterator[Serve]:
    """Start a gateway on the test's home, with options and settings; it is killed when the test ends."""
    started: list[Server] = []

    def start(*options: str, **how: Any) -> Server:
        server = Server(how.pop("at", home), *options, **how)
        started.append(server)
        return server

    yield start
    for server in started:
        server.kill()
