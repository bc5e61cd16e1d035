"""What a terminal is asked to draw: much of it, in any script, at any width, and nothing that a model smuggles in."""

import pytest

from api.upstream import Upstream
from serve.conftest import Serve
from terminal.conftest import Open
from terminal.terminal import CTRL_C, CTRL_D

LONG = {
    "paragraphs": [f"line {n} of many\n\n" for n in range(4_000)],
    "one paragraph": [f"line {n} of many\n" for n in range(4_000)],
    "code": ["```python\n", *(f"line{n} = 'of many'\n" for n in range(4_000)), "```\n"],
}


@pytest.mark.parametrize("kind", LONG)
def test_thousands_of_lines_come_whole_and_once(serve: Serve, terminal: Open, upstream: Upstream, kind: str) -> None:
    """In order, into the scrollback."""
    serve(env=upstream.settings)
    chat = terminal()
    talk = upstream.talk()
    chat.say("much, please")
    lines = LONG[kind]
    for n in range(0, len(lines), 10):
        talk.say("".join(lines[n : n + 10]))
    talk.say("\n\nthat was all")
    talk.end()
    chat.until(lambda: "that was all" in "\n".join(chat.screen.display))
    chat.idle()
    shown = [row.strip() for row in chat.rows if "of many" in row]
    assert shown == [line.strip() for line in lines if "of many" in line]


def test_a_line_that_never_ends_fills_every_row(serve: Serve, terminal: Open) -> None:
    """Where it is cut is not seen."""
    serve()
    chat = terminal()
    chat.say("write 3000 words")
    chat.until(lambda: "seen: 1 messages" in "\n".join(chat.screen.display))
    chat.idle()
    rows = [row for row in chat.rows if row.startswith("word")]
    assert " ".join(rows).split() == [f"word{n}" for n in range(1, 3001)]
    assert all(len(row) > 70 for row in rows[:-1])


def test_a_terminal_that_changes_its_size_in_mid_answer_shows_everything_once(
    serve: Serve, terminal: Open, upstream: Upstream
) -> None:
    serve(env=upstream.settings)
    chat = terminal()
    talk = upstream.talk()
    chat.say("begin")
    talk.say("alpha " * 5 + "\n\nbeta")
    chat.until("beta")
    chat.resize(30, 50)
    talk.say(" gamma" * 20 + "\n\ndelta")
    chat.until("delta")
    chat.resize(40, 100)
    talk.say(" epsilon" * 20 + "\n\nthe end")
    talk.end()
    chat.until("the end")
    shown = chat.idle()
    counted = {word: shown.count(word) for word in ("alpha", "beta", "gamma", "delta", "epsilon", "the end")}
    assert counted == {"alpha": 5, "beta": 1, "gamma": 20, "delta": 1, "epsilon": 20, "the end": 1}
    assert max(len(row) for row in chat.rows if "epsilon" in row) > 80
    assert shown.count("· idle") == 1


def test_every_script_keeps_its_width(serve: Serve, terminal: Open, upstream: Upstream) -> None:
    """Wide, combining and joined characters: columns of a table stay straight, and wide text fills its rows."""
    serve(env=upstream.settings)
    chat = terminal()
    talk = upstream.talk()
    chat.say("say 東京 and 猫")
    talk.say("| word | end |\n|---|---|\n| 東京 | A |\n| cafe\u0301 | B |\n| 👍 | C |\n| plain | D |\n\n")
    talk.say("漢字" * 100)
    talk.end()
    chat.idle()
    chat.until(lambda: "漢" * 1 in chat.shown)
    chat.idle()
    columns = set()
    for y, row in enumerate(chat.screen.display):
        for mark in "ABCD":
            if row.rstrip().endswith(f" {mark}"):
                columns |= {x for x in range(80) if chat.screen.buffer[y][x].data == mark}
    assert len(columns) == 1
    assert "› say 東京 and 猫" in chat.shown.replace("東 京", "東京")
    assert chat.shown.count("漢") == 100


def test_no_control_character_of_a_model_or_a_tool_reaches_the_terminal(
    serve: Serve, terminal: Open, upstream: Upstream
) -> None:
    """Not in text, in code, in reasoning, in the arguments of a call, nor as an entity or in two halves."""
    serve(env=upstream.settings)
    chat = terminal()
    evil = "\x1b]0;owned\x07\x1b[2J\x9b31mred\x08\x7f"
    first, second = upstream.talk(), upstream.talk()
    chat.say("begin")
    first.think(f"thought {evil}")
    first.call("now", '{"x": "\\u001b[2J"}')
    first.end("tool_calls")
    second.say(f"text {evil}\n\n```\ncode {evil}\n```\n\n&#27;[2J \x1b")
    second.say("[2J `inline \x1b[2J`\n\nthe end")
    second.end()
    chat.until("the end")
    shown = chat.idle()
    assert "› begin" in shown  # the screen was not cleared
    assert b"owned\x07" not in chat.written
    assert b"\x1b]0;" not in chat.written
    assert b"\x1b[2J" not in chat.written
    assert b"\x9b31m" not in chat.written.replace("\N{RIGHT SINGLE QUOTATION MARK}".encode(), b"")
    assert "␛" in shown


def test_colours_are_left_out_where_they_are_not_wanted(serve: Serve, terminal: Open) -> None:
    serve()
    chat = terminal(env={"NO_COLOR": "1"})
    chat.say("reply only `code` and **strong**")
    chat.until(lambda: "code and strong" in chat.shown)
    chat.idle()
    looks = {char.fg for line in chat.screen.buffer.values() for char in line.values()}
    assert looks == {"default"}


def test_a_terminal_that_can_only_print_is_written_to_line_by_line(serve: Serve, terminal: Open) -> None:
    """No escape at all; Ctrl-C stops an answer there too, and Ctrl-D leaves."""
    serve()
    chat = terminal(env={"TERM": "dumb"})
    chat.until("A new conversation.")
    chat.type("reply only `code` and **strong**\n")
    chat.answered("code and strong")
    chat.type("sleep 600\n")
    chat.until("› sleep 600")
    chat.type(CTRL_C)
    chat.until("stopped")
    chat.type(CTRL_D)
    assert chat.end() == 0
    assert "Come back with" in chat.shown
    assert b"\x1b" not in chat.written
