"""Fixtures: real server processes, and clients of two principals."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from api.server import Server
from api.upstream import Upstream, open_upstream


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that the tests of a module share."""
    yield from _served(Server(tmp_path_factory.mktemp("served") / "home"))


@pytest.fixture
def fresh_server(tmp_path: Path) -> Iterator[Server]:
    """A server of this test's own, which it may kill."""
    yield from _served(Server(tmp_path / "home"))


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    """A provider that says what this test tells it to."""
    with open_upstream() as upstream:
        yield upstream


@pytest.fixture
def steered_server(tmp_path: Path, upstream: Upstream) -> Iterator[Server]:
    """A server of this test's own whose model is `upstream`."""
    yield from _served(Server(tmp_path / "home", **upstream.settings))


def _served(server: Server) -> Iterator[Server]:
    try:
        yield server
        server.check_log()
        assert server.alive
    finally:
        server.stop()


@pytest.fixture
def client(server: Server) -> httpx.Client:
    """An HTTP client with the local key."""
    return server.client


@pytest.fixture
def stranger(server: Server) -> httpx.Client:
    """An HTTP client with the key of another principal."""
    return server.stranger
