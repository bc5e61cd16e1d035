"""`legato verify`: re-prove the store. A gateway that runs does it itself, because one process owns the SQLite file."""

import asyncio
import json
import sys
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import click

from legato.app import open_database
from legato.cli import client
from legato.config import Config, load
from legato.engine.care import Progress, proved, shown
from legato.errors import StoreUnavailable

Row = dict[str, Any]


class Report:
    """What was found, told as it comes."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json, self._terminal = as_json, sys.stderr.isatty()
        self.findings: list[Row] = []

    def found(self, finding: Row) -> None:
        self.findings.append(finding)
        if not self._as_json:
            self.clear()
            click.echo(finding["message"])

    def progress(self, checked: int, total: int) -> None:
        if self._terminal:
            click.echo(f"\r{checked} of {total} conversations are checked", nl=False, err=True)

    def clear(self) -> None:
        if self._terminal:
            click.echo("\r\033[K", nl=False, err=True)

    def end(self) -> None:
        """The verdict; exit 1 when something is wrong."""
        self.clear()
        count = len(self.findings)
        if self._as_json:
            click.echo(json.dumps({"findings": self.findings, "count": count}, ensure_ascii=False, indent=2))
        else:
            click.echo("The store is whole." if not count else f"{count} findings.", err=bool(count))
        sys.exit(1 if count else 0)


def run_verify(home: Path | None, overrides: dict[str, Any], *, as_json: bool) -> None:
    """Check everything; exit 1 when something is wrong. A database that is named is opened, whoever runs here."""
    config, _ = load(home, overrides)
    report = Report(as_json=as_json)
    gateway = client.running(config) if not overrides else None
    if gateway is not None:
        _listen(gateway.lines("/v1/verify"), report)
    else:
        if not config.database.url and not (config.home / "legato.db").exists():
            raise StoreUnavailable(f"There is no database in {config.home}.")
        asyncio.run(_prove(config, report))
    report.end()


def _listen(lines: Iterator[Row], report: Report) -> None:
    for line in lines:
        if "finding" in line:
            report.found(line["finding"])
        elif "progress" in line:
            report.progress(**line["progress"])
        elif "error" in line:
            raise StoreUnavailable(line["error"]["message"])
        else:
            return
    raise StoreUnavailable("The gateway left before everything was checked.")


async def _prove(config: Config, report: Report) -> None:
    db = await open_database(config)
    try:
        async with aclosing(proved(db)) as told:
            async for line in told:
                if isinstance(line, Progress):
                    report.progress(line.checked, line.total)
                else:
                    report.found(shown(line))
    finally:
        await db.close()
