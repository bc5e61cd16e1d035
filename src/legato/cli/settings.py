"""`legato config`: every setting, its value, and where it came from. Secrets are not shown."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import msgspec

from legato.app import prove
from legato.cli.client import parsed
from legato.config import Config, Origins, load, unheeded

SECRETS = ("key", "api_key", "url", "token", "secret")
HIDDEN = "(set, not shown)"


def show(home: Path | None, *, as_json: bool) -> None:
    """Print each setting."""
    config, origins = load(home)
    rows = [{"setting": name, "value": value, "from": where} for name, value, where in _rows(config, origins)]
    if as_json:
        click.echo(json.dumps(rows, ensure_ascii=False, indent=2))
        return
    width = max(len(row["setting"]) for row in rows)
    for row in rows:
        click.echo(f"{row['setting']:{width}}  {json.dumps(row['value'], ensure_ascii=False)}  ({row['from']})")


def check(home: Path | None) -> None:
    """Fail unless the gateway could start with this, and commands find it."""
    config, _ = load(home)
    if config.client.url:
        parsed(config.client.url)
    asyncio.run(prove(config))
    for variable, near in unheeded().items():
        click.echo(f"legato: {variable} sets nothing.{f' Did you mean {near}?' if near else ''}", err=True)
    click.echo("The configuration is sound.")


def _rows(config: Config, origins: Origins) -> Iterator[tuple[str, Any, str]]:
    for name, value in _leaves(msgspec.to_builtins(config, enc_hook=str)):
        shown = HIDDEN if value and name.rsplit(".", 1)[-1] in SECRETS and "base_url" not in name else value
        yield name, shown, origins.get(name, "LEGATO_HOME or --home" if name == "home" else "default")


def _leaves(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value
