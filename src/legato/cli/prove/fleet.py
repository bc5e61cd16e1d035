"""The processes of a drill: started, killed, stopped and ended by their own ids, and by nothing else."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from legato.cli.prove.wire import Cut, ask
from legato.errors import StoreUnavailable

BOUND = 60.0
SETTINGS = """\
[models.demo]
kind = "demo"
context_window = 16000

[models.mute]
kind = "openai-chat"
base_url = "http://127.0.0.1:1/v1"
api_key = "nobody listens there"

[agents.default]
model = "demo"
toolsets = ["clock", "notes"]
"""


class Node:
    """One gateway: a home, and the process that serves it, one life after the other."""

    def __init__(self, home: Path, notes: Path, settings: dict[str, str], mute: Callable[[int], bool]) -> None:
        self.home, self._notes, self._settings, self._mute = home, notes, settings, mute
        self.url = ""
        self.lives = 0
        self._process: subprocess.Popen[bytes] | None = None
        self.lock = threading.Lock()
        """Held by whoever does something to it."""
        home.mkdir(mode=0o700, parents=True)
        (home / "legato.toml").write_text(SETTINGS, "utf-8")

    @property
    def key(self) -> str:
        return (self.home / "key").read_text("utf-8").strip()

    @property
    def pid(self) -> int:
        return self._process.pid if self._process else 0

    def start(self) -> None:
        """Start a life; when this returns it listens."""
        environ = {name: value for name, value in os.environ.items() if not name.startswith("LEGATO_")}
        environ |= self._settings
        if self._mute(self.lives):
            environ["LEGATO_COMPACTION__MODEL"] = "mute"
        self.lives += 1
        with (self.home / "log").open("ab") as log:
            before = log.tell()
            self._process = subprocess.Popen(
                [sys.executable, "-m", "legato.cli.prove.node", str(self.home), str(self._notes)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environ,
                start_new_session=True,  # Ctrl-C is ours alone
            )
        assert self._process.stdout is not None
        first = self._process.stdout.readline().decode().split()
        if len(first) < 4:
            self.kill()
            said = (self.home / "log").read_bytes()[before:].decode("utf-8", "replace").strip().splitlines()
            raise StoreUnavailable(f"A gateway of the drill did not start: {said[-1] if said else 'it said nothing'}")
        self.url = first[3]

    def kill(self) -> None:
        """End it as a power cut does."""
        self._end(signal.SIGKILL)

    def drain(self) -> None:
        """End it in good order, or at last by force."""
        self._end(signal.SIGTERM)

    def stop(self, seconds: float) -> None:
        """Let it stand still for a while."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        try:
            time.sleep(seconds)
        finally:
            self._process.send_signal(signal.SIGCONT)

    def jump(self) -> None:
        """Let its clock be hours off, from one moment to the next."""
        assert self._process is not None
        self._process.send_signal(signal.SIGUSR1)

    def wait_until_ready(self) -> None:
        end = time.monotonic() + BOUND
        while time.monotonic() < end:
            try:
                if ask(self.url, "", "GET", "/readyz").status == 200:
                    return
            except Cut:
                pass
            time.sleep(0.02)
        raise StoreUnavailable(f"A gateway of the drill did not become ready within {BOUND:.0f} seconds.")

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(number)
        try:
            process.wait(BOUND)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


class Fleet:
    """All nodes of a drill, on one store. Leaving ends every process."""

    def __init__(self, nodes: list[Node]) -> None:
        self.nodes = nodes

    def __enter__(self) -> "Fleet":
        try:
            for node in self.nodes:
                node.start()
                node.wait_until_ready()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        for node in self.nodes:
            node.kill()

    def of(self, pid: int) -> Node | None:
        """The node whose process this is, if it still is."""
        return next((node for node in self.nodes if node.pid == pid), None)

    @property
    def key(self) -> str:
        """A key that every node knows: there is one store."""
        return self.nodes[0].key
