"""A talk in a terminal: what is typed, what is seen, and how one leaves."""

from pathlib import Path

from api.upstream import Upstream
from serve.conftest import Serve
from serve.process import LEGATO
from terminal.conftest import Open, conversations, only_conversation
from terminal.terminal import ALT_ENTER, CTRL_C, CTRL_D, CTRL_J, CTRL_Z, ENTER, TAB, UP

TWO = {"LEGATO_AGENTS__HELPER__MODEL": "demo", "LEGATO_MODELS__DEMO__KIND": "demo"}
"""Settings with an agent beside the default one."""


def test_an_answer_appears_as_it_comes_and_is_drawn_as_markdown(
    serve: Serve, terminal: Open, upstream: Upstream
) -> None:
    """The unfinished part too; and in the end everything is there once."""
    serve(env=upstream.settings)
    chat = terminal()
    talk = upstream.talk()
    chat.say("tell me")
    talk.say("# A head\n\nHalf of a")
    chat.until("Half of a")
    assert chat.style_of("A head").bold
    talk.say(" line, **strong** words\n\n- one\n- two\n\n```python\nx = 1\n```\n")
    chat.until("x = 1")
    talk.say("| a | b |\n|---|---|\n| 東京 | 2 |\n\nthe end")
    talk.end()
    shown = chat.idle()
    for once in ("› tell me", "A head", "Half of a line, strong words", "• one", "• two", "x = 1", "東京", "the end"):
        assert shown.count(once) == 1, once
    assert "**" not in shown
    assert chat.style_of("strong").bold
    assert not chat.style_of("words").bold


def test_tools_reasoning_and_failures_are_shown(serve: Serve, terminal: Open, upstream: Upstream) -> None:
    """Each in its own way, the call while it still runs."""
    serve(env=upstream.settings)
    chat = terminal()
    first, second, third = upstream.talk(), upstream.talk(), upstream.talk()
    chat.say("what time is it?")
    first.think("I must look at a clock.")
    chat.until("I must look at a clock.")
    first.call("now", "{}")
    first.end("tool_calls")
    chat.until("✓ now")
    second.say("It is late.")
    second.end()
    chat.until("It is late.")
    chat.idle()
    chat.say("and now?")
    third.fail("the provider is on fire")
    chat.until("on fire")
    chat.until("/retry")
    assert chat.style_of("✗").fg == "red"


def test_a_call_that_another_client_answers_is_shown_with_its_text(serve: Serve, terminal: Open) -> None:
    """Handed on, and then what came of it."""
    server = serve()
    server.say("reply only hello", "work")
    chat = terminal("-r", "work")
    chat.answered("hello")
    patch = [{"type": "custom", "name": "patch"}]
    [call] = server.say('call patch {"input": "+ a line"}', "work", tools=patch).json["output"]
    chat.until("◌ patch + a line  handed on")
    result = {"type": "custom_tool_call_output", "call_id": call["call_id"], "output": "changed"}
    server.say([result], "work", tools=patch)
    chat.until("✓ tool  changed")


def test_many_lines_are_typed_and_pasted_before_one_enter_sends_them(serve: Serve, terminal: Open) -> None:
    """Alt-Enter, Ctrl-J, a backslash at the end, and newlines that are pasted."""
    server = serve()
    chat = terminal()
    chat.ready()
    chat.type(f"reply only one{ALT_ENTER}two{CTRL_J}three\\{ENTER}four\x1b[200~\nfive\n\x1b[201~six")
    chat.until(lambda: any(row.strip() == "six" for row in chat.screen.display))
    chat.type(ENTER)
    chat.until("idle")
    chat.answered("five")
    chat.idle()
    conversation = only_conversation(server)
    assert server.said(conversation)[0] == ("user", "reply only one\ntwo\nthree\nfour\nfive\nsix")


def test_bytes_that_are_no_text_are_typed_without_harm(serve: Serve, terminal: Open) -> None:
    server = serve()
    chat = terminal()
    chat.ready()
    chat.type(b"reply only odd \xff\xfe bytes")
    chat.until("bytes")
    chat.type(ENTER)
    chat.answered("odd ?? bytes")
    assert server.said(only_conversation(server))[1] == ("assistant", "odd ?? bytes")


def test_what_was_typed_before_comes_back_with_the_arrow(serve: Serve, terminal: Open, home: Path) -> None:
    """In the next chat as well; only its owner may read it."""
    serve()
    chat = terminal()
    chat.say("reply only remembered")
    chat.answered("remembered")
    chat.idle()
    chat.type(CTRL_D)
    assert chat.end() == 0
    assert (home / "history").stat().st_mode & 0o777 == 0o600
    again = terminal()
    again.ready()
    again.type(UP)
    again.until("› reply only remembered")


def test_ctrl_c_stops_the_answer_and_never_the_chat(serve: Serve, terminal: Open, upstream: Upstream) -> None:
    """What was written stays; the next question is answered."""
    server = serve(env=upstream.settings)
    chat = terminal()
    talk, next_talk = upstream.talk(), upstream.talk()
    chat.say("begin")
    talk.say("only half")
    chat.until("only half")
    chat.type(CTRL_C)
    chat.until("stopped")
    chat.idle()
    assert chat.shown.count("only half") == 1
    chat.say("again")
    next_talk.say("whole")
    next_talk.end()
    chat.until("whole")
    conversation = only_conversation(server)
    assert server.said(conversation)[1] == ("assistant", "only half")
    talk.end()


def test_ctrl_c_clears_what_is_typed_and_on_an_empty_line_tells_how_to_leave(serve: Serve, terminal: Open) -> None:
    serve()
    chat = terminal()
    chat.ready()
    chat.type("never sent")
    chat.until("never sent")
    chat.type(CTRL_C)
    chat.until(lambda: "never sent" not in chat.shown)
    chat.type(CTRL_C)
    chat.until("Ctrl-D leaves.")


def test_leaving_tells_how_to_come_back_and_an_unused_chat_leaves_nothing(serve: Serve, terminal: Open) -> None:
    """No conversation without a message is ever recorded."""
    server = serve()
    unused = terminal()
    unused.ready()
    unused.type(CTRL_D)
    assert unused.end() == 0
    assert "Come back" not in unused.shown
    assert conversations(server) == []
    used = terminal("chat")
    used.say("reply only hello there")
    used.answered("hello there")
    used.idle()
    used.type(CTRL_D)
    assert used.end() == 0
    conversation = only_conversation(server)
    assert f"Come back with: legato -r {conversation}" in used.shown


def test_a_command_is_done_by_the_gateway_and_an_unknown_one_is_told_to_nobody(serve: Serve, terminal: Open) -> None:
    """`//` begins a text with a slash."""
    server = serve()
    chat = terminal()
    chat.say("reply only hello there")
    chat.answered("hello there")
    chat.say("/title Greetings")
    chat.until(lambda: "Greetings · " in "\n".join(chat.screen.display))
    chat.say("/titel Oops")
    chat.until("Did you mean /title?")
    chat.say("//titel said")
    chat.until("› /titel said")
    chat.idle()
    conversation = only_conversation(server)
    said = [text for role, text in server.said(conversation) if role == "user"]
    assert said == ["reply only hello there", "/titel said"]


def test_a_command_with_capital_letters_is_one_and_a_path_is_text(serve: Serve, terminal: Open) -> None:
    """Phones begin a message with a capital letter."""
    server = serve()
    chat = terminal()
    chat.say("reply only hello there")
    chat.answered("hello there")
    chat.say("/TITLE Greetings")
    chat.until(lambda: "Greetings · " in "\n".join(chat.screen.display))
    chat.say("/etc/x is a file")
    chat.until("seen: 3 messages")
    said = [text for role, text in server.said(only_conversation(server)) if role == "user"]
    assert said == ["reply only hello there", "/etc/x is a file"]
    chat.say("/Quit")
    assert chat.end() == 0


def test_who_answers_is_chosen_before_the_first_message_and_kept(serve: Serve, terminal: Open) -> None:
    """Nothing is recorded until something is said; the line of status, /model and /status agree."""
    server = serve(env=TWO)
    chat = terminal()
    chat.say("/model helpr")
    chat.until("Did you mean helper?")
    chat.say("/model helper")
    chat.until("helper answers here from now on.")
    chat.until(lambda: "· helper · idle" in "\n".join(chat.screen.display))
    assert conversations(server) == []
    chat.say("reply only hello there")
    chat.answered("hello there")
    chat.say("/status")
    chat.until("answered by: helper")
    chat.say("/model default")
    chat.until(lambda: "· default · " in "\n".join(chat.screen.display))
    again = terminal("-c")
    again.say("/model")
    again.until("default answers here.")


def test_who_is_wished_for_at_the_start_is_told_and_one_that_is_nobody_too(serve: Serve, terminal: Open) -> None:
    """As `ask` does."""
    serve(env=TWO)
    chat = terminal("-m", "helper")
    chat.say("/model")
    chat.until("helper answers here. There are: helper, default, demo.")
    chat.say("reply only hello there")
    chat.answered("hello there")
    chat.say("/Model")
    chat.until(lambda: chat.shown.count("helper answers here.") == 2)
    nobody = terminal("-m", "nosuch")
    nobody.say("reply only hello there")
    nobody.until("nobody is called 'nosuch'; default answers")
    nobody.answered("hello there")
    nobody.say("/model")
    nobody.until("default answers here.")


def test_ctrl_z_suspends_the_chat_and_fg_brings_it_back(serve: Serve, terminal: Open) -> None:
    """What was typed is still there."""
    serve()
    shell = terminal("--norc", "--noprofile", "-i", program="bash")
    shell.type(f"{LEGATO}\n")
    shell.ready()
    shell.type("reply only hello")
    shell.until("› reply only hello")
    shell.type(CTRL_Z)
    shell.until("Stopped")
    shell.type("echo in the $((40 + 2)) shell\n")
    shell.until("in the 42 shell")
    shell.type("fg\n")
    shell.ready()
    shell.type(f" there{ENTER}")
    shell.answered("hello there")


def test_a_conversation_with_a_name_is_come_back_to_by_it(serve: Serve, terminal: Open) -> None:
    """And /help tells what only a chat has."""
    serve().say("hello", "my-project")
    chat = terminal("-r", "my-project")
    chat.until("── my-project")
    chat.say("/help")
    chat.until("• /quit: leave this chat")
    chat.until("• //text: say a text that begins with a slash")
    chat.type(CTRL_D)
    assert chat.end() == 0
    assert "Come back with: legato -r my-project\n" in chat.shown


def test_new_begins_another_conversation_and_resume_comes_back_with_a_recap(serve: Serve, terminal: Open) -> None:
    server = serve()
    chat = terminal()
    chat.say("reply only of cats")
    chat.answered("of cats")
    chat.say("/new Dogs")
    chat.until("begins a new conversation")
    chat.say("reply only of dogs")
    chat.answered("of dogs")
    chat.until(lambda: "Dogs · " in "\n".join(chat.screen.display))
    chat.say("/resume")
    chat.until("── reply only of cats")
    chat.say("what did I say?")
    chat.until('seen: 3 messages, first "reply only of cats"')
    rows = conversations(server)
    assert {row["title"] for row in rows} >= {"Dogs"}
    assert len(rows) == 2


def test_tab_completes_commands_and_names(serve: Serve, terminal: Open) -> None:
    server = serve()
    server.say("hello", "my-project")
    chat = terminal()
    chat.ready()
    chat.type("/res")
    chat.until("go on with another")
    chat.type(f"{CTRL_C}/stat{TAB}")
    chat.until("› /status")
    chat.type(f"{CTRL_C}/resume my{TAB}")
    chat.until("› /resume my-project")
    chat.type(ENTER)
    chat.until("── my-project")


def test_a_call_that_failed_is_marked(serve: Serve, terminal: Open) -> None:
    serve()
    chat = terminal()
    chat.say('call nonsense {"a": 1}')
    chat.until("✗ nonsense")
    chat.say("call now {}")
    chat.until("✓ now")
