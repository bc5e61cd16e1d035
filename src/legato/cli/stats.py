"""`legato stats`: what you have; with an administrator's key also what the store holds."""

import json
from pathlib import Path
from typing import Any

import click

from legato.cli.client import gateway
from legato.cli.table import age, print_table, readable


def run_stats(home: Path | None, *, as_json: bool) -> None:
    with gateway(home) as client:
        stats = client.get("/v1/stats")
    if as_json:
        click.echo(json.dumps(stats, ensure_ascii=False, indent=2))
        return
    print_table(f"Of {stats['principal']}", _own(stats["own"]))
    if stats["store"] is not None:
        click.echo()
        print_table("Of the store", _store(stats["store"]))


def _own(own: dict[str, Any]) -> list[tuple[str, str]]:
    counted = [
        ("conversations", own["conversations"]),
        ("  forks", own["forks"]),
        ("in the trash", own["in_trash"]),
        ("entries", own["entries"]),
        ("turns", sum(own["turns"].values())),
        *((f"  {status}", count) for status, count in own["turns"].items()),
        ("tokens in", own["input_tokens"]),
        ("tokens out", own["output_tokens"]),
        ("tokens cached", own["cached_tokens"]),
        ("attachments", own["attachments"]),
    ]
    return [(name, f"{n:,}") for name, n in counted] + [("  size", readable(own["attachment_bytes"]))]


def _store(store: dict[str, Any]) -> list[tuple[str, str]]:
    oldest = store["oldest_waiting"]
    return [
        ("database", {"sqlite": "SQLite", "postgres": "PostgreSQL"}[store["database"]]),
        ("size", readable(store["bytes"])),
        ("schema", str(store["schema"])),
        ("turns waiting", f"{store['waiting']:,}"),
        *([("  oldest", age(oldest["age"]))] if oldest else []),
        ("turns to be indexed", f"{store['unindexed']:,}"),
        ("deliveries", f"{sum(store['deliveries'].values()):,}"),
        *((f"  {status}", f"{count:,}") for status, count in store["deliveries"].items()),
    ]
