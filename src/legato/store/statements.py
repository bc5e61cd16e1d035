"""Named SQL. Every query of Legato stands in `sql/*.sql` with a name and, where it helps, a sentence.

One text serves both databases. Where they differ, a macro in braces covers the difference, or a statement is
given twice with the database's name in brackets. Parameters are written `:name` and compiled to positions.
"""

import re
from collections.abc import Callable
from functools import cache
from importlib.resources import files
from operator import itemgetter
from typing import Literal, get_args

from msgspec import Struct

from legato.domain.conversations import LIFE, Conversation
from legato.domain.turns import Turn
from legato.domain.window import ControlKind
from legato.errors import Defect

Dialect = Literal["sqlite", "postgres"]

_MACROS: dict[Dialect, dict[str, str]] = {
    "sqlite": {
        "now": "unixepoch('subsec')",
        "for_update": "",
        "for_share": "",
        "skip_locked": "",
        "bytes": "blob",
        "serial": "integer",
        "binary": "",
        "json": "",
        "raw": "cast",
        "as_raw": " as blob",
        "held": ":request is not null",  # one writes at a time
        "awaited": ":request is not null",
    },
    "postgres": {
        "now": "cast(extract(epoch from clock_timestamp()) as double precision)",
        "for_update": "for update",
        "for_share": "for share",
        "skip_locked": "for update skip locked",
        "bytes": "bytea",
        "serial": "bigint generated always as identity",
        "binary": 'collate "C"',
        "json": "::json",
        "raw": "convert_to",
        "as_raw": ", 'UTF8'",
        "held": "pg_advisory_xact_lock_shared(hashtextextended(:request, 0)) is not null",
        "awaited": "pg_advisory_xact_lock(hashtextextended(:request, 0)) is not null",
    },
}
_COLUMNS = {
    "turn": ", ".join(Turn.__struct_fields__),
    "conversation": ", ".join(Conversation.__struct_fields__),
    "is_control": f"kind in ({', '.join(repr(kind) for kind in get_args(ControlKind))})",  # as the index says it
    "life": str(LIFE),
    "entry": "seq, id, turn_id, body, created_at",
    "delivery": "id, turn_id, address, body, status, attempts, platform_message_id, parts_sent",
}
_HEAD = re.compile(r"^-- name: (\w+)(?: \[(\w+)\])?$", re.MULTILINE)
_PARAM = re.compile(r"(?<![:\w]):([a-z]\w*)")
_MACRO = re.compile(r"\{(\w+)\}")


class Statement(Struct, frozen=True):
    """A compiled statement: its text for one database, and its parameters in order."""

    name: str
    text: str
    params: tuple[str, ...]
    pick: Callable[[dict[str, object]], tuple[object, ...]]

    def bind(self, values: dict[str, object]) -> tuple[object, ...]:
        if len(values) != len(self.params):
            raise Defect(f"statement {self.name} takes {self.params}, was given {tuple(values)}")
        return self.pick(values)


@cache
def statements(dialect: Dialect) -> dict[str, Statement]:
    """Every named statement, compiled for one database."""
    found: dict[str, Statement] = {}
    for file in sorted(files("legato.store").joinpath("sql").iterdir(), key=lambda f: f.name):
        pieces = _HEAD.split(file.read_text("utf-8"))[1:]
        for name, only, text in zip(pieces[::3], pieces[1::3], pieces[2::3], strict=True):
            if only in (None, dialect):
                if name in found:
                    raise Defect(f"two statements are named {name}")
                found[name] = compile_statement(name, text, dialect)
    return found


def compile_statement(name: str, text: str, dialect: Dialect) -> Statement:
    """Fill the macros, drop the comments, and number the parameters."""
    words = _MACROS[dialect] | _COLUMNS
    text = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("--"))
    text = _MACRO.sub(lambda m: words[m[1]], text).strip().removesuffix(";")
    params: list[str] = []

    def place(match: re.Match[str]) -> str:
        if match[1] not in params:
            params.append(match[1])
        return f"{'?' if dialect == 'sqlite' else '$'}{params.index(match[1]) + 1}"

    compiled = _PARAM.sub(place, text)
    return Statement(name, compiled, tuple(params), _picking(params))


def _picking(names: list[str]) -> Callable[[dict[str, object]], tuple[object, ...]]:
    """Takes the parameters in order; every statement that runs goes through it."""
    if len(names) > 1:
        return itemgetter(*names)
    return lambda values: tuple(values[name] for name in names)


def expand_macros(text: str, dialect: Dialect) -> str:
    """The macros of a migration."""
    return _MACRO.sub(lambda m: _MACROS[dialect][m[1]], text)
