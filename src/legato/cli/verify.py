"""`legato verify`: re-prove the store."""

import asyncio
import sys
from pathlib import Path
from typing import Any

import click

from legato.app import open_database
from legato.config import load
from legato.errors import StoreUnavailable
from legato.store.verify import verify


def run_verify(home: Path | None, overrides: dict[str, Any]) -> None:
    """Check everything; exit 1 when something is wrong."""
    config, _ = load(home, overrides)
    if not config.database.url and not (config.home / "legato.db").exists():
        raise StoreUnavailable(f"There is no database in {config.home}.")

    async def check() -> int:
        db = await open_database(config)
        try:
            findings = 0
            async for finding in verify(db):
                findings += 1
                click.echo(str(finding))
            return findings
        finally:
            await db.close()

    findings = asyncio.run(check())
    click.echo("The store is whole." if not findings else f"{findings} findings.", err=bool(findings))
    sys.exit(1 if findings else 0)
