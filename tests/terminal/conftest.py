"""Fixtures for tests of the chat: a home, gateways on it, terminals that are gone when the test ends."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from api.upstream import Upstream, open_upstream
from serve.conftest import home, serve
from serve.process import Server
from terminal.terminal import Terminal

__all__ = ["home", "serve"]

Open = Callable[..., Terminal]


@pytest.fixture
def terminal(home: Path) -> Iterator[Open]:
    """Open a terminal on the test's home."""
    opened: list[Terminal] = []

    def start(*options: str, **how: Any) -> Terminal:
        opened.append(Terminal(home, *options, **how))
        return opened[-1]

    yield start
    for one in opened:
        one.close()


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    """A provider that says what the test tells it to say."""
    with open_upstream() as provider:
        yield provider


def conversations(server: Server) -> list[dict[str, Any]]:
    """Every conversation that there is."""
    listed = server.get("/v1/conversations", authorization=f"Bearer {server.key}").json
    rows: list[dict[str, Any]] = listed["data"]
    return rows


def only_conversation(server: Server) -> str:
    """The id of the one conversation that there is."""
    [row] = conversations(server)
    return str(row["id"])
