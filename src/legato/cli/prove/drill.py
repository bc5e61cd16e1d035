"""The drill in order: a scratch place, a fleet, clients and faults for a while, quiet, reading back, the verdict."""

import asyncio
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import click
from msgspec import Struct

from legato.cli.prove import plan
from legato.cli.prove.checks import check
from legato.cli.prove.client import Client
from legato.cli.prove.faults import Faults, revive
from legato.cli.prove.fleet import Fleet, Node
from legato.cli.prove.ledger import Finding, Ledger
from legato.cli.prove.report import Terms, summary, table
from legato.cli.prove.survey import Survey
from legato.cli.prove.wire import Cut
from legato.config import load
from legato.domain.ids import new_id
from legato.errors import BadInput, LegatoError, StoreUnavailable
from legato.store import scratch

LEASE = 3.0
"""Seconds. Shorter than the default, so that a short drill sees many nodes lose their lease."""

CLIENTS = 8
VERIFY_BOUND = 600.0


class Scratch(Struct, frozen=True):
    """A place that is nobody's."""

    folder: Path
    database_url: str


def run_prove(
    *, minutes: float, seed: int | None, nodes: int | None, database_url: str | None, json_to: str | None, keep: bool
) -> None:
    """Run the drill; exit 1 unless everything held."""
    seed = random.SystemRandom().randrange(10**6) if seed is None else seed
    terms = Terms(
        seed=seed,
        minutes=minutes,
        nodes=nodes or (2 if database_url else 1),
        clients=CLIENTS,
        lease=LEASE,
        database="PostgreSQL" if database_url else "SQLite",
    )
    if terms.nodes > 1 and not database_url:
        raise StoreUnavailable("Several nodes need a PostgreSQL that they share. Give --database-url.")
    report = Path(json_to) if json_to is not None and json_to != "-" else None
    if report is not None and (report.is_dir() or not os.access(report.parent, os.W_OK)):
        raise BadInput(f"{report} cannot be written. Name a file in a folder of yours.")
    click.echo(f"legato: the drill begins, with seed {seed}; Ctrl-C ends it early", err=True)
    with _scratch(database_url, keep=keep) as place:
        told = drill(terms, place)
    text = json.dumps(told, ensure_ascii=False, indent=2)
    if json_to == "-":
        click.echo(text)
    else:
        if report is not None:
            report.write_text(text + "\n", "utf-8")
        click.echo(table(told))
    sys.exit(0 if told["held"] else 1)


def drill(terms: Terms, place: Scratch) -> dict[str, Any]:
    """Everything, on this place; what there is to say of it."""
    notes = place.folder / "notes"
    ledger = Ledger()
    stopping, interrupted = threading.Event(), threading.Event()
    settings = {"LEGATO_WORKER__LEASE": str(terms.lease), "LEGATO_SERVER__DRAIN": "2", "LEGATO_LOG__FORMAT": "json"}
    if place.database_url:
        settings["LEGATO_DATABASE_URL"] = place.database_url
    made = [
        Node(place.folder / f"node{n}", notes, settings, partial(plan.mute, terms.seed, n)) for n in range(terms.nodes)
    ]
    problems: list[Finding] = []
    with _told_to_stop(stopping, interrupted), Fleet(made) as fleet:
        faults = Faults(fleet, plan.faults(terms.seed, terms.nodes), terms.lease, stopping)
        clients = [
            Client(n, terms.seed, fleet=fleet, faults=faults, ledger=ledger, notes=notes, stopping=stopping)
            for n in range(terms.clients)
        ]
        begun = time.monotonic()
        threads = _start(clients, faults, problems)
        try:
            _wait(stopping, terms.minutes * 60)
        finally:
            seconds = time.monotonic() - begun
            stopping.set()
            threads[0].join()
        revive(fleet)
        for thread in threads[1:]:
            thread.join()
        _settle_down(fleet)
        for client in clients:
            with suppress(Cut):
                client.again(fleet.nodes[0])
        survey = Survey(fleet)
        found = survey.found(survey.settle(ledger.asked), notes, [])
        for node in fleet.nodes:
            node.drain()
    findings = _verify(place, made[0].home)
    problems += [Finding("refused", str(faults.error))] if faults.error else []
    problems += [Finding("verify", line) for line in findings]
    problems += check(ledger.asked, ledger.looked, ledger.refusals, found)
    return summary(terms, seconds, interrupted.is_set(), ledger, faults.done, found, problems)


def _start(clients: list[Client], faults: Faults, problems: list[Finding]) -> list[threading.Thread]:
    """All threads, the faults first. One that stumbles is a finding, not a silence."""

    def guarded(run: Callable[[], None]) -> None:
        try:
            run()
        except Exception as error:  # noqa: BLE001 - told in the report, which fails the drill
            problems.append(Finding("refused", f"a thread of the drill stumbled: {type(error).__name__}: {error}"))

    runs = [faults.run, *(client.run for client in clients)]
    threads = [threading.Thread(target=guarded, args=(run,), daemon=True) for run in runs]
    for thread in threads:
        thread.start()
    return threads


def _wait(stopping: threading.Event, seconds: float) -> None:
    """Until the time is over, with a bar where someone sees it."""
    if not sys.stderr.isatty():
        stopping.wait(seconds)
        return
    end = time.monotonic() + seconds
    with click.progressbar(length=max(1, int(seconds * 10)), label="proving", file=sys.stderr, show_eta=True) as bar:
        while not stopping.wait(0.1) and time.monotonic() < end:
            bar.update(1)
    click.echo("legato: waiting for every turn to end, then reading everything back", err=True)


def _settle_down(fleet: Fleet) -> None:
    """The last fault: all at once, so that everything that is read back comes from the disk."""
    for node in fleet.nodes:
        node.kill()
    for node in fleet.nodes:
        node.start()
        node.wait_until_ready()


def _verify(place: Scratch, home: Path) -> list[str]:
    """`legato verify` on what is left."""
    command = [sys.executable, "-m", "legato.cli.main", "verify", "--home", str(home)]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("LEGATO_")}
    if place.database_url:
        environ["LEGATO_DATABASE_URL"] = place.database_url
    done = subprocess.run(command, capture_output=True, text=True, env=environ, timeout=VERIFY_BOUND, check=False)
    return [] if done.returncode == 0 else (done.stdout + done.stderr).strip().splitlines() or ["it said nothing"]


@contextmanager
def _told_to_stop(stopping: threading.Event, interrupted: threading.Event) -> Iterator[None]:
    """Ctrl-C and SIGTERM end the drill early, and it still reports. A second one ends it at once."""

    def on_signal(number: int, frame: object) -> None:
        if interrupted.is_set():
            raise KeyboardInterrupt
        interrupted.set()
        stopping.set()

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _scratch(database_url: str | None, *, keep: bool) -> Iterator[Scratch]:
    """A folder of our own, and a schema of our own in the database; nothing else is touched."""
    folder = Path(tempfile.mkdtemp(prefix="legato-prove-"))
    schema = new_id("legato_prove_").lower()
    try:
        if database_url is None:
            yield Scratch(folder, "")
            return
        config, _ = load(folder, {"database.url": database_url}, environ={})
        yield Scratch(folder, asyncio.run(scratch.create(config.database.url, schema)))
    finally:
        if keep:
            click.echo(f"legato: kept {folder}{f' and the schema {schema}' if database_url else ''}", err=True)
        else:
            shutil.rmtree(folder, ignore_errors=True)
            if database_url is not None:
                with suppress(LegatoError):
                    asyncio.run(scratch.drop(database_url, schema))
