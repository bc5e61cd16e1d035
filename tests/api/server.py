"""A real `legato serve` process: started, killed, and started again on the same home, on SQLite or on PostgreSQL.

Two principals have keys: the one of the local key, and a stranger. The port is new at each start, so clients are too.
"""

import asyncio
import os
import selectors
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import openai

from forked import Process
from legato.domain.ids import PrincipalId
from legato.store import keys
from legato.store.database import Database
from legato.store.postgres import Postgres
from legato.store.sqlite import Sqlite

BOUND = 60.0
LEGATO = Path(sys.executable).parent / "legato"
FOREIGN_SETTINGS = ("LEGATO_", "OPENAI_", "ANTHROPIC_", "OPENROUTER_", "OLLAMA_")
STRANGER = PrincipalId("stranger")


class Server:
    """One home, and the process that serves it. `settings` are environment variables."""

    def __init__(self, home: Path, **settings: str) -> None:
        home.mkdir(mode=0o700, parents=True)
        self.home = home
        self.settings = {"LEGATO_LOG__LEVEL": "warning", "LEGATO_SERVER__DRAIN": "2", **settings}
        self.strangers_key = keys.new_key()
        with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
            runner.run(self._admit_stranger())
        self.start()

    async def _admit_stranger(self) -> None:
        url = self.settings.get("LEGATO_DATABASE_URL")
        db: Database = await (Postgres.open(url) if url else Sqlite.open(self.home / "legato.db"))
        await db.write(keys.add, self.strangers_key, name="stranger", principal=STRANGER)
        await db.close()

    # -- its life

    def start(self) -> None:
        """Start the process; when this returns it listens."""
        environ = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN_SETTINGS)}
        with (self.home / "log").open("ab") as log:
            self._process = Process(
                [str(LEGATO), "serve", "--home", str(self.home), "--port", "0"],
                stdout=subprocess.PIPE,
                stderr=log,
                env={**environ, **self.settings},
            )
        self.url = self._first_line().split()[-1]
        self.client = self._http(self.key)
        self.stranger = self._http(self.strangers_key)

    def kill(self) -> None:
        """End the process as a power cut does."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """End the process in good order, if it lives."""
        if self.alive:
            assert self._end(signal.SIGTERM) == 0, self.log

    def restart(self) -> None:
        """Kill, and start again on the same home."""
        self.kill()
        self.start()

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    @property
    def log(self) -> str:
        return (self.home / "log").read_text("utf-8")

    def check_log(self) -> None:
        """Nothing that was asked of this server may have made it stumble."""
        stumbles = [line for line in self.log.splitlines() if "Traceback" in line or "request failed" in line]
        assert stumbles == []

    def _end(self, number: int) -> int:
        self.client.close()
        self.stranger.close()
        self._process.send_signal(number)
        code = self._process.wait(BOUND)
        assert self._process.stdout is not None
        self._process.stdout.close()
        return code

    def _first_line(self) -> str:
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            if not selector.select(BOUND):
                self._process.kill()
        line = self._process.stdout.readline().decode()
        assert line.startswith("Legato listens on http://"), f"the server did not start: {line}\n{self.log}"
        return line

    # -- its clients

    @property
    def key(self) -> str:
        return (self.home / "key").read_text("utf-8").strip()

    def _http(self, key: str) -> httpx.Client:
        return httpx.Client(
            base_url=self.url, headers={"Authorization": f"Bearer {key}"}, timeout=BOUND, trust_env=False
        )

    def sdk(self, **options: object) -> openai.OpenAI:
        """The official client, with only its base URL changed."""
        return openai.OpenAI(base_url=self.url + "/v1", api_key=self.key, **options)  # type: ignore[arg-type]

    def async_sdk(self, **options: object) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=self.url + "/v1", api_key=self.key, **options)  # type: ignore[arg-type]
