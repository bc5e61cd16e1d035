"""What holds on every channel. A platform joins by a line in `platform.PLATFORMS`."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import httpx

from api.wire import get, ok, post, said_in
from channels.conftest import Serving
from channels.platform import BOUND, Platform

T = TypeVar("T")


def conversations(client: httpx.Client) -> list[str]:
    return [row["id"] for row in get(client, "/v1/conversations")["data"]]


def test_a_chat_is_one_conversation_and_is_answered_where_it_was_asked(platform: Platform, serving: Serving) -> None:
    server = serving(platform)
    platform.say(server, "home", "my cat is called Miso")
    platform.say(server, "work", "reply only elsewhere")
    assert "my cat is called Miso" in platform.heard("home")[0]
    platform.say(server, "home", "what is it called?")
    assert 'seen: 3 messages, first "my cat is called Miso"' in platform.heard("home", 2)[1]
    assert platform.heard("work") == ["elsewhere"]
    assert len(conversations(server.client)) == 2


def test_a_redelivery_acts_once_also_after_a_crash(platform: Platform, serving: Serving) -> None:
    server = serving(platform)
    message = platform.say(server, "home", "reply only once")
    platform.say(server, "home", "reply only once", again=message)
    assert platform.heard("home") == ["once"]
    server.restart()
    platform.say(server, "home", "reply only once", again=message)
    platform.say(server, "home", "reply only more")
    assert platform.heard("home", 2) == ["once", "more"]
    [conversation] = conversations(server.client)
    assert [line for line in said_in(server.client, conversation) if line.startswith("user")] == [
        "user: reply only once",
        "user: reply only more",
    ]


def test_what_is_owed_is_sent_after_a_crash(platform: Platform, serving: Serving) -> None:
    """The turn was taken; the process dies before it answers."""
    server = serving(platform)
    platform.say(server, "home", "sleep 1")
    server.restart()
    assert len(platform.heard("home")) == 1


def test_messages_in_quick_succession_are_one_turn(platform: Platform, serving: Serving) -> None:
    server = serving(platform, gather="2")
    with ThreadPoolExecutor(3) as pool:
        for text in ("one", "two", "three"):
            pool.submit(platform.say, server, "home", text)
    assert "seen: 3 messages" in platform.heard("home")[0]
    [conversation] = conversations(server.client)
    assert len([line for line in said_in(server.client, conversation) if line.startswith("assistant")]) == 1


def test_a_stranger_gets_a_code_and_nothing_else_until_the_owner_confirms_it(
    platform: Platform, serving: Serving
) -> None:
    """Once: the code is single use, a second question gets no second code, and a guess opens nothing."""
    server = serving(platform)
    platform.say(server, "lobby", "hello?", sender="eve")
    [greeting] = platform.heard("lobby")
    code = greeting.split("legato pair ")[1].split()[0]
    platform.say(server, "lobby", "let me in", sender="eve")
    platform.say(server, "lobby", "/list", sender="eve")
    assert conversations(server.client) == []
    assert server.client.post("/v1/pairings", json={"code": "AAAAAAAA"}).status_code == 404
    assert server.stranger.post("/v1/pairings", json={"code": code}).status_code == 403
    assert post(server.client, "/v1/pairings", code=code.lower())["name"]
    assert server.client.post("/v1/pairings", json={"code": code}).status_code == 404
    platform.say(server, "lobby", "reply only welcome", sender="eve")
    assert platform.heard("lobby", 2)[1:] == ["welcome"]
    [row] = get(server.client, "/v1/pairings")["data"]
    ok(server.client.delete(f"/v1/pairings/{row['channel']}/{row['sender']}"))
    platform.say(server, "lobby", "and now?", sender="eve")
    assert "legato pair" in platform.heard("lobby", 3)[2]


def test_whoever_is_paired_anew_with_another_sees_nothing_of_the_one_before(
    platform: Platform, serving: Serving
) -> None:
    server = serving(platform)
    for principal, seen in (("alice", "seen: 1 messages"), ("bob", "seen: 1 messages")):
        platform.say(server, "lobby", "hello?", sender="eve")
        greeting = platform.heard("lobby", 1 if principal == "alice" else 3)[-1]
        code = greeting.split("legato pair ")[1].split()[0]
        paired = post(server.client, "/v1/pairings", code=code, principal=principal)
        platform.say(server, "lobby", f"a secret of {principal}", sender="eve")
        assert seen in platform.heard("lobby", 2 if principal == "alice" else 4)[-1]
        ok(server.client.delete(f"/v1/pairings/{paired['channel']}/{paired['sender']}"))


def test_commands_are_answered_and_reach_no_model(platform: Platform, serving: Serving) -> None:
    server = serving(platform)
    platform.say(server, "home", "reply only hello")
    platform.heard("home")
    platform.say(server, "home", "/stauts")
    assert "Did you mean /status?" in platform.heard("home", 2)[1]
    platform.say(server, "home", "/title about cats")
    assert "about cats" in platform.heard("home", 3)[2]
    [conversation] = conversations(server.client)
    assert len(said_in(server.client, conversation)) == 2


def test_a_chat_goes_on_in_a_fork_and_chooses_who_answers_also_where_the_command_comes_twice(
    platform: Platform, serving: Serving
) -> None:
    server = serving(platform)
    platform.say(server, "home", "the old talk")
    platform.heard("home")
    message = platform.say(server, "home", "/fork aside")
    assert "This is a fork" in platform.heard("home", 2)[1]
    platform.say(server, "home", "/fork aside", again=message)
    platform.say(server, "home", "/model demo")
    assert platform.heard("home", 3)[2] == "demo answers here from now on."
    platform.say(server, "home", "in the fork")
    assert 'seen: 3 messages, first "the old talk"' in platform.heard("home", 4)[3]
    forked, old = conversations(server.client)
    assert [len(said_in(server.client, found)) for found in (forked, old)] == [4, 2]


def test_after_new_the_context_is_fresh_for_ever_on_and_resume_goes_back(platform: Platform, serving: Serving) -> None:
    """Story 3: the message after a reset sees nothing of before, the one after that sees it; also after a restart."""
    server = serving(platform)
    platform.say(server, "home", "the old talk")
    platform.heard("home")
    platform.say(server, "home", "/new")
    platform.heard("home", 2)
    for n, seen in enumerate(("seen: 1 messages", "seen: 3 messages", "seen: 5 messages")):
        platform.say(server, "home", f"fresh {n}")
        assert seen in platform.heard("home", 3 + n)[2 + n]
        assert 'first "fresh 0"' in platform.heard("home", 3 + n)[2 + n]
        if n == 1:
            server.restart()
    assert len(conversations(server.client)) == 2
    platform.say(server, "home", "/resume")
    platform.heard("home", 6)
    platform.say(server, "home", "back again")
    assert 'seen: 3 messages, first "the old talk"' in platform.heard("home", 7)[6]


def test_an_idle_reset_is_said_happens_once_and_leaves_the_old_talk_alone(platform: Platform, serving: Serving) -> None:
    server = serving(platform, reset="idle 0.03")  # 1.8 seconds
    platform.say(server, "home", "before the silence")
    platform.heard("home")
    [old] = conversations(server.client)
    server.kill()
    _let_pass(2.0)
    server.start()
    platform.say(server, "home", "after it")
    told = platform.heard("home", 3)[1:]
    assert any("/resume" in text for text in told)
    assert any('seen: 1 messages, first "after it"' in text for text in told)
    assert len(conversations(server.client)) == 2
    assert said_in(server.client, old)[0] == "user: before the silence"
    platform.say(server, "home", "at once")
    assert 'seen: 3 messages, first "after it"' in platform.heard("home", 4)[3]


def test_a_turn_in_flight_is_answered_where_it_was_asked_after_a_reset(platform: Platform, serving: Serving) -> None:
    server = serving(platform)
    platform.say(server, "home", "sleep 1")
    platform.say(server, "home", "/new")
    platform.say(server, "home", "reply only the new talk")
    assert len(platform.heard("home", 3)) == 3
    assert len(conversations(server.client)) == 2


def test_a_talk_of_the_api_goes_on_in_a_chat_and_each_sees_what_the_other_says(
    platform: Platform, serving: Serving
) -> None:
    server = serving(platform)
    post(server.client, "/v1/responses", input="begun over HTTP", conversation="plans")
    platform.say(server, "home", "/bind plans")
    platform.heard("home")
    platform.say(server, "home", "and here?")
    assert 'seen: 3 messages, first "begun over HTTP"' in platform.heard("home", 2)[1]
    post(server.client, "/v1/responses", input="reply only from afar", conversation="plans")
    mirrored = platform.heard("home", 3)[2]
    assert "reply only from afar" in mirrored
    assert mirrored.endswith("from afar")
    assert len(said_in(server.client, "plans")) == 6


def test_a_failure_is_told_where_it_was_asked(platform: Platform, serving: Serving) -> None:
    server = serving(platform)
    platform.say(server, "home", "fail 9 times")
    assert "No answer" in platform.heard("home")[0]
    platform.say(server, "home", "reply only well")
    assert platform.heard("home", 2)[1] == "well"


def test_a_long_answer_comes_whole_and_in_order(platform: Platform, serving: Serving) -> None:
    server = serving(platform, max_length="500")
    platform.say(server, "home", "write 400 words")
    [conversation] = _until(lambda: conversations(server.client), lambda found: len(found) == 1)
    _until(lambda: said_in(server.client, conversation), lambda said: len(said) == 2)
    answer = said_in(server.client, conversation)[1].removeprefix("assistant: ")
    parts = platform.heard("home", 2)
    if platform.name == "mine":
        _until(
            lambda: platform.heard("home"), lambda parts: " ".join(" ".join(parts).split()) == " ".join(answer.split())
        )
        assert all(len(part) <= 500 for part in platform.heard("home"))
    assert len(parts) >= 2


def test_the_channel_is_told_of_by_readiness_and_metrics(platform: Platform, serving: Serving) -> None:
    server = serving(platform)
    _until(lambda: get(server.client, "/readyz"), lambda ready: ready["channels"] == {platform.name: "up"})
    assert f'legato_channel_up{{channel="{platform.name}"}} 1.0' in server.client.get("/metrics").text


def _until(look: Callable[[], T], enough: Callable[[T], bool]) -> T:
    end = time.monotonic() + BOUND
    while not enough(found := look()):
        assert time.monotonic() < end, found
        _let_pass(0.05)
    return found


def _let_pass(seconds: float) -> None:
    """Silence is what this is about, or a poll between two looks."""
    time.sleep(seconds)
