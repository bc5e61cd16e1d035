"""Log lines: what they say, for machines and for people, and that they harm nobody."""

import asyncio
import io
import sys
from collections.abc import Iterator
from typing import Literal

import pytest
from msgspec import json

from legato import logs
from legato.logs import bound, logger


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    yield
    logs.set_up("error", "console")


def test_a_line_for_machines_is_json_whatever_it_tells(capsys: pytest.CaptureFixture[str]) -> None:
    """Also what is no JSON, and two lines of text."""
    logs.set_up("info", "json")
    with bound(turn="turn_1"), bound(request="req_1"):
        logger.info("said", text="one\ntwo", odd={1}, number=3)
    logger.warning("later")
    first, second = (json.decode(line) for line in capsys.readouterr().err.splitlines())
    assert first.pop("timestamp").endswith("Z")
    assert first == {
        "event": "said",
        "turn": "turn_1",
        "request": "req_1",
        "text": "one\ntwo",
        "odd": [1],
        "number": 3,
        "level": "info",
    }
    assert (second["event"], second["level"]) == ("later", "warning")
    assert "turn" not in second


def test_a_failure_is_told_with_where_it_was_and_without_what_was_there(capsys: pytest.CaptureFixture[str]) -> None:
    """The values of variables are people's words and keys."""
    logs.set_up("info", "json")

    def fail(secret: str) -> None:
        raise RuntimeError("it broke") if secret else KeyError

    try:
        fail("canary")
    except RuntimeError:
        logger.exception("failed")
    told = json.decode(capsys.readouterr().err)
    assert "RuntimeError: it broke" in told["exception"]
    assert "in fail" in told["exception"]
    assert "canary" not in told["exception"].replace('fail("canary")', "")


def test_a_line_for_people_is_one_line_with_colours_only_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    logs.set_up("debug", "console")
    logger.debug("a thing", who="Ann", text="two words\nand more", n=1)
    line = capsys.readouterr().err
    assert line.endswith("debug   a thing who=Ann text='two words\\nand more' n=1\n")
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", terminal)
    logs.set_up("debug", "auto")
    logger.error("a thing")
    assert "\x1b[31merror  \x1b[0m \x1b[1ma thing" in terminal.getvalue()


def test_what_is_below_the_level_is_not_written(capsys: pytest.CaptureFixture[str]) -> None:
    logs.set_up("warning", "json")
    logger.debug("a")
    logger.info("b")
    logger.error("c")
    assert capsys.readouterr().err.count("\n") == 1


async def test_what_is_bound_stays_with_its_task(capsys: pytest.CaptureFixture[str]) -> None:
    logs.set_up("info", "json")
    both = asyncio.Barrier(2)

    async def work(turn: str) -> None:
        with bound(turn=turn):
            await both.wait()
            logger.info(turn)

    await asyncio.gather(work("a"), work("b"))
    lines = [json.decode(line) for line in capsys.readouterr().err.splitlines()]
    assert sorted((line["event"], line["turn"]) for line in lines) == [("a", "a"), ("b", "b")]


@pytest.mark.parametrize("format", ["json", "console"])
def test_no_text_is_too_odd_to_be_told(format: Literal["json", "console"], capsys: pytest.CaptureFixture[str]) -> None:
    """Half a letter, as a client leaves it that cuts a text in the middle."""
    logs.set_up("info", format)
    logger.info("said", text="cut \ud83d")
    assert "cut \\" in capsys.readouterr().err


@pytest.mark.parametrize("format", ["json", "console"])
def test_nobody_fails_because_of_what_is_logged(
    format: Literal["json", "console"], capsys: pytest.CaptureFixture[str]
) -> None:
    """The text of an exception with half a letter, a value that cannot be shown, a list that holds itself."""

    class Shy:
        def __repr__(self) -> str:
            raise RuntimeError

    logs.set_up("info", format)
    endless: list[object] = []
    endless.append(endless)
    try:
        raise ValueError("caf\udce9")
    except ValueError:
        logger.exception("failed")
    logger.info("shown", value=Shy())
    logger.info("told", value=endless)
    told = capsys.readouterr().err
    assert "caf\\" in told
    assert all(event in told for event in ("failed", "shown", "told"))


def test_a_closed_standard_error_is_nothing_to_fail_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    logs.set_up("info", "auto")
    logger.error("unheard")


@pytest.mark.parametrize("failure", [BrokenPipeError, ValueError])
def test_nobody_fails_because_nobody_reads_the_log(failure: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader of a pipe went away; standard error was closed."""
    closed = io.StringIO()

    def write(_: str) -> int:
        raise failure

    monkeypatch.setattr(closed, "write", write)
    monkeypatch.setattr(sys, "stderr", closed)
    logger.error("unheard")
