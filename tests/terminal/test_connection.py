"""What becomes of a talk when a gateway, a terminal or a connection does not live as long as it."""

import os
import signal
from pathlib import Path

from api.upstream import Upstream
from serve.conftest import Serve
from serve.process import LEGATO, run
from terminal.conftest import Open, conversations, only_conversation
from terminal.terminal import CTRL_D, Terminal


def test_a_gateway_that_is_killed_in_mid_answer_and_comes_back_goes_on_in_the_same_terminal(
    serve: Serve, terminal: Open, upstream: Upstream
) -> None:
    """What was shown is not shown again; what was typed meanwhile is sent once."""
    first = serve(env=upstream.settings)
    port = first.url.rsplit(":", 1)[1]
    chat = terminal()
    talks = [upstream.talk() for _ in range(3)]
    chat.say("begin")
    talks[0].say("before the crash")
    chat.until("before the crash")
    first.kill()
    talks[0].end()
    chat.until("connection lost")
    chat.type("meanwhile\r")
    chat.until("› meanwhile")
    second = serve("--port", port, env=upstream.settings)
    talks[1].say("after the crash")
    talks[1].end()
    chat.until("after the crash")
    talks[2].say("the second answer")
    talks[2].end()
    chat.until("the second answer")
    shown = chat.idle()
    for once in ("› begin", "before the crash", "› meanwhile", "after the crash", "the second answer"):
        assert shown.count(once) == 1, once
    assert "connection lost" not in "\n".join(chat.screen.display)
    said = [text for role, text in second.said(only_conversation(second)) if role == "user"]
    assert said == ["begin", "meanwhile"]


def test_two_terminals_see_the_same_turns_in_the_same_order(serve: Serve, terminal: Open) -> None:
    """Whoever has said what; the other's words are marked."""
    server = serve()
    server.say("reply only the start", "talk")
    one, two = terminal("-r", "talk"), terminal("-r", "talk")
    for chat in (one, two):
        chat.until("the start")
        chat.ready()
    one.type("reply only first\r")
    two.type("reply only second\r")
    one.type("reply only third\r")
    for chat in (one, two):
        for text in ("first", "second", "third"):
            chat.answered(text)
        chat.idle()
    assert _said(one) == _said(two)
    assert "› reply only first" in one.shown
    assert "» reply only first" in two.shown
    assert "» reply only second" in one.shown


def test_a_terminal_that_is_killed_after_sending_has_lost_nothing(serve: Serve, terminal: Open) -> None:
    """The turn goes on without it, and is there in the next one."""
    server = serve()
    chat = terminal()
    chat.say("sleep 2")
    chat.until(lambda: bool(conversations(server)))  # it has arrived; that it is shown says only that it was typed
    chat.kill()
    again = terminal("-c")
    again.until("seen: 1 messages")
    shown = again.idle()
    assert shown.count("sleep 2\n") == 1
    assert [text for role, text in server.said(only_conversation(server)) if role == "user"] == ["sleep 2"]


def test_without_a_gateway_a_private_one_serves_the_chat_and_ends_with_it(terminal: Open, home: Path) -> None:
    """Also when the terminal is killed: what was said is there for the next."""
    chat = terminal()
    chat.until("a private one serves this chat")
    chat.say("reply only remembered")
    chat.answered("remembered")
    chat.idle()
    chat.kill()
    again = terminal("-c")
    again.until("── reply only remembered")
    again.ready()
    again.type(CTRL_D)
    assert again.end() == 0
    assert not (home / "url").exists()
    assert run("verify", "--home", str(home))[0] == 0


def test_a_private_gateway_that_was_killed_is_started_again(terminal: Open, home: Path) -> None:
    """By the terminal that needs it; nothing that was said is lost."""
    chat = terminal()
    chat.say("reply only before")
    chat.answered("before")
    chat.idle()
    os.kill(int((home / "legato.db.lock").read_text().split()[-1]), signal.SIGKILL)
    chat.say("reply only after")
    chat.answered("after")
    chat.idle()
    chat.say("what do you remember?")
    chat.until("seen: 5 messages")


def test_a_second_terminal_finds_the_first_ones_gateway_and_outlives_it(terminal: Open) -> None:
    """When the owner leaves, the other starts its own and goes on."""
    one = terminal()
    one.say("reply only from the first")
    one.answered("from the first")
    two = terminal("-c")
    two.until("── reply only from the first")
    assert "a private one" not in two.shown
    two.ready()
    one.type(CTRL_D)
    assert one.end() == 0
    two.say("reply only from the second")
    two.answered("from the second")
    two.idle()
    two.say("what do you remember?")
    two.until("seen: 5 messages")


def test_a_chat_whose_gateway_is_elsewhere_asks_nothing_of_its_own_home(serve: Serve, tmp_path: Path) -> None:
    server = serve()
    settings = {"LEGATO_URL": server.url, "LEGATO_API_KEY": server.key}
    chat = Terminal(tmp_path / "other", env=settings)
    try:
        chat.say("reply only far away")
        chat.answered("far away")
    finally:
        chat.close()
    assert len(conversations(server)) == 1
    assert Path(LEGATO).exists()


def _said(chat: Terminal) -> list[str]:
    """Who asked what, in the order of the screen."""
    asked = [row[2:] for row in chat.rows if row.startswith(("› reply", "» reply"))]
    return asked[asked.index("reply only the start") :]
