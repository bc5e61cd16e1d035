"""Coming back to a conversation: by its name, its title or as the newest; and what is refused."""

import threading
from pathlib import Path

import pytest

from api.upstream import Upstream
from serve.conftest import Serve
from serve.process import run
from terminal.conftest import Open, conversations, only_conversation


@pytest.mark.parametrize("what", ["my-project", "Cats and dogs", "my-pro"])
def test_a_resumed_talk_shows_what_was_said_and_goes_on(serve: Serve, terminal: Open, what: str) -> None:
    """By slug, by title, by a beginning; the end of the talk is shown, bounded, and nothing is shown twice."""
    server = serve()
    for n in range(12):
        server.say(f"reply only answer {n}", "my-project")
    server.say("reply only " + "\n\n".join(f"long {n}" for n in range(200)), "my-project")
    conversation = only_conversation(server)
    assert run("rename", conversation, "Cats and dogs", "--home", str(server.home))[0] == 0
    chat = terminal("-r", what)
    chat.until("── Cats and dogs")
    shown = chat.until("long 199")
    assert "answer 1\n" not in shown
    assert "long 100" not in shown
    assert len(chat.rows) < 60
    chat.say("reply only and on")
    shown = chat.until("\nand on\n")
    assert shown.count("long 199") == 2  # the question and the answer
    assert [text for _, text in server.said(conversation)][-1] == "and on"
    assert only_conversation(server) == conversation


def test_the_newest_is_gone_on_with(serve: Serve, terminal: Open) -> None:
    server = serve()
    server.say("of cats", "cats")
    server.say("of dogs", "dogs")
    chat = terminal("chat", "--continue")
    chat.until("── dogs")


def test_a_turn_under_way_is_seen_from_its_start_by_who_joins(serve: Serve, terminal: Open, upstream: Upstream) -> None:
    """And then as it comes; it is not in the recap as well."""
    server = serve(env=upstream.settings)
    first, talk = upstream.talk(), upstream.talk()
    first.say("before")
    first.end()
    server.say("first", "talk")
    asking = threading.Thread(target=server.say, args=("second", "talk"))
    asking.start()
    assert talk.asked.wait(30)
    talk.say("it has begun")
    chat = terminal("-r", "talk")
    chat.until("it has begun")
    talk.say(" and it has ended")
    talk.end()
    shown = chat.until("it has begun and it has ended")
    shown = chat.idle()
    asking.join()
    for once in ("› first", "before", "» second", "it has begun"):
        assert shown.count(once) == 1, once


def test_an_unknown_name_is_an_error_that_tells_what_is_near(serve: Serve, terminal: Open) -> None:
    """And makes nothing."""
    server = serve()
    server.say("hello", "my-project")
    chat = terminal("-r", "my-projekt")
    assert chat.end() != 0
    assert "There is no conversation 'my-projekt'" in chat.shown
    assert only_conversation(server)[:20] in chat.shown
    assert len(conversations(server)) == 1


def test_what_is_no_terminal_is_refused_with_what_to_use_instead(home: Path) -> None:
    for command in (("chat",), ()):
        code, said = run(*command, env={"LEGATO_HOME": str(home)})
        assert code == 1
        assert "legato ask" in said
    assert not home.exists()
