"""One talk, three views: begun over HTTP, bound in a chat, continued in the terminal, each of them live."""

from api.wire import ask, get, said_in
from channels.conftest import Serving
from channels.platform import Platform
from terminal.terminal import Terminal


def test_one_talk_goes_on_in_http_a_chat_and_the_terminal_at_once(platform: Platform, serving: Serving) -> None:
    """One transcript; what is said in one of them appears in the others."""
    server = serving(platform)
    conversation = ask(server.client, "reply only begun over HTTP", conversation="plans")["conversation"]["id"]
    terminal = Terminal(server.home, "-r", "plans")
    try:
        terminal.until("── plans")
        platform.say(server, "home", "/bind plans")
        platform.heard("home")
        platform.say(server, "home", "reply only from the chat")
        assert platform.heard("home", 2)[1] == "from the chat"
        terminal.answered("from the chat")
        terminal.say("reply only from the terminal")
        terminal.answered("from the terminal")
        mirrored = platform.heard("home", 3)[2]
        assert "reply only from the terminal" in mirrored
        assert mirrored.endswith("from the terminal")
        ask(server.client, "reply only from HTTP again", conversation="plans")
        terminal.answered("from HTTP again")
        assert platform.heard("home", 4)[3].endswith("from HTTP again")
    finally:
        terminal.close()
    answers = ["begun over HTTP", "from the chat", "from the terminal", "from HTTP again"]
    assert said_in(server.client, conversation) == [
        line for answer in answers for line in (f"user: reply only {answer}", f"assistant: {answer}")
    ]
    assert [row["id"] for row in get(server.client, "/v1/conversations")["data"]] == [conversation]
