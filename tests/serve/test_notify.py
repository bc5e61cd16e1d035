"""What a service manager is told, over a real datagram socket."""

import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from serve.conftest import Serve
from serve.process import BOUND


@pytest.fixture(params=["a path", "an abstract name"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, socket.socket]]:
    """A service manager: the address that it puts into the environment, and its ear."""
    address = str(tmp_path / "n") if request.param == "a path" else f"@legato-{tmp_path.name}-{tmp_path.stat().st_ino}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ear:
        ear.bind(address.replace("@", "\0") if address.startswith("@") else address)
        ear.settimeout(BOUND)
        yield address, ear


def test_a_service_manager_is_told_when_it_is_ready_and_when_it_leaves(
    serve: Serve, manager: tuple[str, socket.socket]
) -> None:
    """`READY=1` once it listens, `STOPPING=1` when it is asked to go."""
    address, ear = manager
    server = serve(env={"NOTIFY_SOCKET": address})
    assert ear.recv(100) == b"READY=1"
    assert server.get("/readyz").status == 200
    server.signal(signal.SIGTERM)
    assert ear.recv(100) == b"STOPPING=1"
    assert server.end() == 0


def test_a_service_manager_that_does_not_listen_stops_nothing(serve: Serve, tmp_path: Path) -> None:
    """The gateway says so in its log and serves."""
    server = serve(env={"NOTIFY_SOCKET": str(tmp_path / "nobody")})
    [warned] = server.logged("the service manager could not be told")
    assert warned["fact"] == "READY=1"
    assert server.get("/readyz").status == 200
