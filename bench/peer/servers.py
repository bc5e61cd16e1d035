"""The two gateways as processes, started in the same way and watched from outside in the same way.

Each gets a fresh home, the same upstream and its defaults, with what follows. Hermes Agent: no tools, no titles, no
memory, no fetching of a scanner (so that nothing but the turn is measured), and no limit of ten runs at once (it would
refuse most of 32 clients). Legato: no limit of turns at once that 32 clients could reach.

CPU is the process's own clock and its children's. For bytes written there are two truths, and both are kept:
`written` is what the system charged to the disk (whole pages), `handed` what the process gave to `write`.
"""

import asyncio
import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import uvloop
from client import Connection
from wire import BOUND, Gateway

HERMES, LEGATO = "Hermes Agent", "Legato"
KEY = "0f8fad5bd9cb469fa16570867728950e0f8fad5bd9cb469fa16570867728950e"
TICK = os.sysconf("SC_CLK_TCK")

Serve = Callable[[Path], AbstractContextManager["Server"]]


class Server(Gateway):
    """`legato serve`."""

    @property
    def cpu(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return super().cpu + (int(fields[13]) + int(fields[14])) / TICK

    @property
    def handed(self) -> int:
        lines = Path(f"/proc/{self.pid}/io").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("wchar"))


class Hermes(Server):
    """`hermes gateway run` with its API server."""

    @classmethod
    @contextmanager
    def run(cls, command: Path, home: Path, upstream: int) -> Iterator["Hermes"]:
        home.mkdir(mode=0o700, exist_ok=True)
        (home / "config.yaml").write_text(CONFIG.format(upstream=f"http://127.0.0.1:{upstream}/v1"))
        port = free_port()
        environ = {"PATH": os.environ["PATH"], "HOME": str(home), "HERMES_HOME": str(home), "API_SERVER_KEY": KEY}
        environ |= {"API_SERVER_ENABLED": "true", "API_SERVER_PORT": str(port)}
        started = time.perf_counter()
        with (home / "log").open("ab") as log:
            call = [str(command), "gateway", "run"]
            process = subprocess.Popen(call, stdout=log, stderr=subprocess.STDOUT, env=environ, cwd=home)
        try:
            uvloop.run(_is_healthy(process, port))
            yield cls(process, port, KEY, time.perf_counter() - started)
        finally:
            process.terminate()
            try:
                process.wait(BOUND)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(BOUND)

    async def settle(self) -> None:
        """It puts nothing off that a request would bring about."""
        await self._quiet()


CONFIG = """\
model: {{default: fake, provider: custom, base_url: "{upstream}", api_key: none, context_length: 200000}}
platform_toolsets: {{api_server: []}}
memory: {{memory_enabled: false, user_profile_enabled: false}}
auxiliary: {{title_generation: {{enabled: false}}}}
security: {{tirith_enabled: false}}
gateway: {{api_server: {{max_concurrent_runs: 0}}}}
"""


def both(peer: Path, upstream: int) -> dict[str, Serve]:
    """How each of the two is started on a home."""
    return {
        HERMES: lambda home: Hermes.run(peer / "bin" / "hermes", home, upstream),
        LEGATO: lambda home: Server.serve(home, upstream),
    }


def disk(home: Path) -> tuple[int, int]:
    """Bytes of everything in a home: what stays, and SQLite's write-ahead logs, whose content moves into what stays."""
    sizes = [(path.name.endswith("-wal"), path.lstat().st_size) for path in home.rglob("*") if not path.is_dir()]
    return sum(size for wal, size in sizes if not wal), sum(size for wal, size in sizes if wal)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def _is_healthy(process: "subprocess.Popen[bytes]", port: int) -> None:
    deadline = time.perf_counter() + BOUND
    while True:
        try:
            connection = await Connection.open(port, KEY)
        except ConnectionRefusedError:
            assert process.poll() is None, "Hermes Agent has ended; its home has a log"
            assert time.perf_counter() < deadline, "Hermes Agent does not listen"
            await asyncio.sleep(0.01)
        else:
            await connection.get("/health")
            connection.close()
            return
