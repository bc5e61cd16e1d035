"""Structured logs: one line an event, with conversation and turn ids; JSON for machines, colours for a terminal.

    logger.warning("lease lost", node=node)        with logs.bound(turn=turn_id): …

Written by hand because it was measured: the library that did this took a quarter of a gateway's start, most of it for
tracebacks in colour, and three times the CPU for a line. A traceback here is plain: one that shows the values of
variables would show people's words and keys. A line that cannot be written is dropped; no turn fails for it.
"""

import logging
import sys
import traceback
from contextlib import suppress
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Literal

from msgspec import json

Level = Literal["debug", "info", "warning", "error"]

_RANK: dict[str, int] = {"debug": 0, "info": 1, "warning": 2, "error": 3}
_COLOURS = {"debug": 36, "info": 32, "warning": 33, "error": 31}
_bound: ContextVar[dict[str, Any]] = ContextVar("bound", default={})  # noqa: B039 - never changed, only replaced


class _Lines:
    """Where lines go, and how they look."""

    def __init__(self) -> None:
        self.least = _RANK["warning"]
        self.console = True
        self.coloured = False

    def write(self, level: Level, event: str, error: BaseException | None, fields: dict[str, Any]) -> None:
        """Whatever it is, and whoever listens: no turn fails because of its log."""
        if sys.stderr is None:
            return
        now = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        told = {**_bound.get(), **fields}
        try:
            trace = "".join(traceback.format_exception(error)).rstrip() if error is not None else ""
            if self.console:
                line = _for_people(now, level, event, told, trace, self.coloured)
            else:
                line = _as_json(now, level, event, told, trace)
        except Exception as failure:  # noqa: BLE001 - a value that cannot even be shown
            why = type(failure).__name__
            line = _as_json(now, level, ascii(event), {"fields": ", ".join(told), "unreadable": why}, "")
        with suppress(OSError, ValueError):  # nobody reads it any more
            sys.stderr.write(line)


_lines = _Lines()


def set_up(level: Level, format: Literal["auto", "json", "console"]) -> None:
    """Log to standard error, so that standard output stays for answers."""
    _lines.least, _lines.coloured = _RANK[level], sys.stderr is not None and sys.stderr.isatty()
    _lines.console = format == "console" or (format == "auto" and _lines.coloured)
    if not any(isinstance(handler, _OfOthers) for handler in logging.root.handlers):
        logging.root.addHandler(_OfOthers(logging.WARNING))


class bound:
    """Everything that is logged inside, in whatever is awaited there, carries these fields."""

    __slots__ = ("_fields", "_token")

    def __init__(self, **fields: Any) -> None:
        self._fields = fields

    def __enter__(self) -> None:
        self._token = _bound.set({**_bound.get(), **self._fields})

    def __exit__(self, *_: object) -> None:
        _bound.reset(self._token)


class Logger:
    """Writes lines. Fields are told as they are; whatever is no JSON, as Python shows it."""

    def debug(self, event: str, /, **fields: Any) -> None:
        self._log("debug", event, None, fields)

    def info(self, event: str, /, **fields: Any) -> None:
        self._log("info", event, None, fields)

    def warning(self, event: str, /, **fields: Any) -> None:
        self._log("warning", event, None, fields)

    def error(self, event: str, /, exc_info: BaseException | None = None, **fields: Any) -> None:
        self._log("error", event, exc_info, fields)

    def exception(self, event: str, /, **fields: Any) -> None:
        """An error, with the exception that is being handled."""
        self._log("error", event, sys.exc_info()[1], fields)

    def _log(self, level: Level, event: str, error: BaseException | None, fields: dict[str, Any]) -> None:
        if _RANK[level] >= _lines.least:
            _lines.write(level, event, error, fields)


logger = Logger()


class _OfOthers(logging.Handler):
    """What libraries say of themselves, in lines like ours. Their tracebacks stay out: what comes of it, we tell."""

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        why = {"error": f"{type(error).__name__}: {error}"} if error is not None else {}
        level: Level = "error" if record.levelno >= logging.ERROR else "warning"
        with suppress(TypeError, ValueError):  # a message that does not fit its values
            logger._log(level, record.getMessage(), None, {"logger": record.name, **why})


def _as_json(now: str, level: str, event: str, told: dict[str, Any], trace: str) -> str:
    line = {**told, "event": event, **({"exception": trace} if trace else {}), "level": level, "timestamp": now}
    try:
        return json.encode(line, enc_hook=repr).decode() + "\n"
    except (ValueError, RecursionError):  # half a letter, say, from a client that cut a text in the middle
        plain = {name: text if (text := str(value)).isascii() else ascii(text) for name, value in line.items()}
        return json.encode(plain).decode() + "\n"


def _for_people(now: str, level: str, event: str, told: dict[str, Any], trace: str, coloured: bool) -> str:
    def paint(text: str, code: int) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if coloured else text

    fields = "".join(f" {paint(name, 36)}={_word(value)}" for name, value in told.items())
    head = f"{paint(now[:19].replace('T', ' '), 2)} {paint(f'{level:7}', _COLOURS[level])} {paint(event, 1)}"
    line = f"{head}{fields}\n{trace}\n" if trace else f"{head}{fields}\n"
    return line.encode("utf-8", "backslashreplace").decode()


def _word(value: Any) -> str:
    """A value that stays on its line."""
    text = value if isinstance(value, str) else repr(value)
    return text if text.isprintable() and text and " " not in text else repr(text)
