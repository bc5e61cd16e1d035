"""`legato serve`: start, say where everything is, run until told to stop, leave in good order.

SIGTERM (or Ctrl-C) drains: nothing new is admitted, turns finish within a budget or are handed back for the next
process, and the exit code is 0. A second signal hands everything back at once. A private gateway serves whoever
started it, and drains also when that one is gone: its standard input ends then.
"""

import asyncio
import errno
import gc
import os
import shlex
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import click
import uvicorn
import uvloop

from legato import logs
from legato.api import http, offers
from legato.api.door import Api, Doorway
from legato.api.keys import RecentKeys
from legato.api.wire import Caller
from legato.app import App, make_home, open_app, open_database
from legato.cli import client, notify
from legato.config import Config, load, unheeded
from legato.engine.protocols import Toolset
from legato.errors import StoreUnavailable
from legato.logs import logger
from legato.store import keys


def run_server(
    home: Path | None,
    overrides: dict[str, Any],
    *,
    private: bool = False,
    toolsets: dict[str, Toolset] | None = None,
) -> None:
    """Run the gateway until a signal ends it. `toolsets` are added to the built-in ones."""
    config, _ = load(home, overrides)
    logs.set_up(config.log.level, config.log.format)
    if strange := unheeded():
        near = sorted({name for name in strange.values() if name})
        logger.warning("variables set nothing", variables=sorted(strange), nearest=near)
    try:
        listener = _listen(config)
    except (OSError, UnicodeError) as error:  # a name that is none is a UnicodeError
        uvloop.run(_open_and_close(config))  # a home that is already served is the better explanation
        where = f"{config.server.host}:{config.server.port}"
        raise StoreUnavailable(f"Cannot listen on {where}: {_why(error)}. {_advice(error)}") from error
    with listener:
        uvloop.run(_serve(config, listener, private, toolsets or {}))


def _why(error: OSError | UnicodeError) -> str:
    """In the system's words; those of a name that cannot be found have no number that it knows."""
    number = error.errno if isinstance(error, OSError) else None
    return os.strerror(number) if number is not None and number > 0 else str(error)


def _advice(error: OSError | UnicodeError) -> str:
    if isinstance(error, OSError) and error.errno in (errno.EADDRINUSE, errno.EACCES):
        return "Another program may use the port; choose another with --port or LEGATO_SERVER__PORT."
    return "Choose an address of this machine with --host or LEGATO_SERVER__HOST."


async def _open_and_close(config: Config) -> None:
    make_home(config.home)
    await (await open_database(config)).close()


async def _serve(config: Config, listener: socket.socket, private: bool, toolsets: dict[str, Toolset]) -> None:
    async with open_app(config, toolsets=toolsets) as app:
        gc.freeze()  # what start-up made lives on; the collector need not look at it again
        gc.set_threshold(20_000, 20, 20)  # turns leave few cycles; looking for them often costs a tenth of the time

        async def check_key(key: str) -> Caller | None:
            grant = await app.db.read(keys.find, key)
            return Caller(grant.principal, grant.scopes) if grant else None

        doorway = Doorway.of(config.server.host, config.server.hosts, config.server.origins)
        if not doorway.loopback:
            why = "keys and talks can be read on the way, unless something in front of it speaks TLS"
            logger.warning("listens outside loopback", host=config.server.host, why=why)
        asgi = http.build(
            Api(app.gateway, app.care, app.roster, app.exchange, RecentKeys(check_key), config.server.max_body, doorway)
        )
        server = _Server(
            uvicorn.Config(
                asgi,
                http=offers.Http,
                ws="none",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                timeout_graceful_shutdown=5,
            )
        )
        draining = _drain_on_signals(app, server, private)
        banner = _banner(config, listener)
        place = config.home / client.PLACE
        place.unlink(missing_ok=True)
        with os.fdopen(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            about = f" {client.PRIVATE}" if private else ""
            file.write(f"{banner.split()[3]}{about}\n")  # where the command line finds us
        click.echo(banner)
        notify.tell(config.server.notify_socket, notify.READY)
        await server.serve(sockets=[listener])
        place.unlink(missing_ok=True)
        draining.cancel()


class _Server(uvicorn.Server):
    """uvicorn without its own handling of signals."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _drain_on_signals(app: App, server: uvicorn.Server, private: bool) -> asyncio.Task[None]:
    asked = asyncio.Event()
    hurry = asyncio.Event()

    def on_signal() -> None:
        (hurry if asked.is_set() else asked).set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    if private:
        threading.Thread(target=_tell_the_end_of_input, args=(loop, asked.set), daemon=True).start()

    async def drain() -> None:
        await asked.wait()
        app.gateway.drain()
        notify.tell(app.config.server.notify_socket, notify.STOPPING)
        logger.info("draining", turns=app.worker.running, seconds=app.config.server.drain)
        waiting = asyncio.create_task(app.worker.drain(app.config.server.drain))
        hurrying = asyncio.create_task(hurry.wait())
        await asyncio.wait({waiting, hurrying}, return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done():
            waiting.cancel()
            await app.worker.drain(0)
        hurrying.cancel()
        server.should_exit = True

    return asyncio.create_task(drain())


def _tell_the_end_of_input(loop: asyncio.AbstractEventLoop, tell: Callable[[], None]) -> None:
    while os.read(0, 1024):  # not by sys.stdin: its lock, held here, would be an error when Python leaves
        pass
    with suppress(RuntimeError):  # closed: we are leaving already
        loop.call_soon_threadsafe(tell)


def _listen(config: Config) -> socket.socket:
    host, port = config.server.host, config.server.port
    return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=1024)


def _banner(config: Config, listener: socket.socket) -> str:
    """What a person needs next, in five lines."""
    host, port = listener.getsockname()[:2]
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    key = config.home / "key"
    data = "PostgreSQL" if config.database.url else str(config.home / "legato.db")
    lines = [
        f"Legato listens on {url}",
        f"  key   {key}",
        f"  data  {data}",
        f'  try   curl {url}/v1/responses -H "Authorization: Bearer $(cat {shlex.quote(str(key))})" '
        """-d '{"conversation": "my-project", "input": "Hello"}'""",
        f"  docs  {url}/docs",
    ]
    return "\n".join(lines)
