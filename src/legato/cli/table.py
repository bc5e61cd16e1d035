"""Figures as people read them."""

import click

UNITS = ("bytes", "kB", "MB", "GB", "TB")


def readable(size: float) -> str:
    """A number of bytes in the unit that fits."""
    step = 0
    while size >= 1000 and step < len(UNITS) - 1:
        size, step = size / 1000, step + 1
    return f"{size:.{1 if step else 0}f} {UNITS[step]}"


def age(seconds: float) -> str:
    """A time that has passed."""
    for unit, length in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} seconds"


def print_table(title: str, rows: list[tuple[str, str]]) -> None:
    """Names on the left, values right-aligned."""
    names, values = (max(len(row[side]) for row in rows) for side in (0, 1))
    click.echo(click.style(title, bold=True))
    for name, value in rows:
        click.echo(f"  {name:{names}}  {value:>{values}}")
