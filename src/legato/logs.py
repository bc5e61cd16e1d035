"""Structured logs: one line an event, with conversation and turn ids; JSON for machines, colours for a terminal."""

import logging
import sys
from typing import Literal

import structlog


def set_up(level: Literal["debug", "info", "warning", "error"], format: Literal["auto", "json", "console"]) -> None:
    """Log to standard error, so that standard output stays for answers."""
    console = format == "console" or (format == "auto" and sys.stderr.isatty())
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.StackInfoRenderer(),
            *([] if console else [structlog.processors.format_exc_info]),
            _console() if console else structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )


def _console() -> structlog.dev.ConsoleRenderer:
    """Plain tracebacks: pretty ones print the values of variables, and values are people's words and keys."""
    return structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
