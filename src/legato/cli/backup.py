"""`legato backup` and `legato restore-backup`: everything as one file, and back, into either database."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import click
import msgspec

from legato.app import look_at_database
from legato.cli import client
from legato.cli.output import check_free
from legato.cli.table import readable
from legato.config import Config, load
from legato.errors import BadInput
from legato.store import backup, restore
from legato.store.backup import Contents
from legato.store.files import written


def run_backup(home: Path | None, path: Path, *, force: bool, as_json: bool) -> None:
    """Write a backup. It has its name when it is whole, on the disk, and found sound."""
    config, _ = load(home)
    check_free(path, force)
    with written(path) as part:
        if gateway := client.running(config):
            _download(gateway, part)
        else:
            asyncio.run(_made_here(config, part))
        contents = backup.inspect(part)
    told = {"path": str(path), "bytes": path.stat().st_size, **msgspec.to_builtins(contents)}
    click.echo(json.dumps(told, indent=2) if as_json else f"{path}: {readable(told['bytes'])}, {_shown(contents)}.")


def run_restore(home: Path | None, path: Path, overrides: dict[str, Any], *, replace: bool) -> None:
    """Put a backup back where nobody uses it."""
    config, _ = load(home, overrides)
    if config.database.url:
        if replace:
            raise BadInput("--replace is for SQLite. Restore into an empty PostgreSQL database instead.")
        place, restored = "PostgreSQL", asyncio.run(restore.into_postgres(path, config.database.url))
    else:
        database = config.home / "legato.db"
        place, restored = str(database), restore.into_file(path, database, replace=replace)
    click.echo(f"{place} now holds {_shown(restored.contents)}.")
    if restored.aside is not None:
        click.echo(f"What was there before is kept as {restored.aside}.")
    if restored.doubtful:
        click.echo(f"{restored.doubtful} answers that were owed may have been sent since; they are marked as unknown.")


def _download(gateway: client.Client, part: Path) -> None:
    terminal = sys.stderr.isatty()
    with (
        part.open("wb") as file,
        click.progressbar(length=1, label="Backup", file=sys.stderr, hidden=not terminal) as bar,
    ):
        bar.render_progress()

        def on_bytes(count: int, total: int) -> None:
            bar.length = total
            bar.update(count)

        gateway.download("/v1/backup", file, on_bytes)


async def _made_here(config: Config, part: Path) -> None:
    """No gateway runs: the store is read as it is."""
    db = await look_at_database(config)
    try:
        await db.backup(part)
    finally:
        await db.close()


def _shown(contents: Contents) -> str:
    counted = [
        (contents.conversations, "conversation"),
        (contents.entries, "entry"),
        (contents.turns, "turn"),
        (contents.attachments, "attachment"),
    ]
    plural = {"entry": "entries"}
    words = [f"{n} {word if n == 1 else plural.get(word, word + 's')}" for n, word in counted]
    return f"{', '.join(words)}, schema {contents.version}"
