"""Slash commands: one registry for whoever talks, and nothing of it reaches a model."""

from typing import Any

import httpx
import pytest

from api.server import Server
from api.wire import Json, ask, conversation_of, get, ok, post, refused, said_in
from legato.engine.commands import COMMANDS, parse

CONTRACT = (
    "new reset resume list title compact expand undo retry fork stop status usage search model queue steer bind help"
)


def say(client: httpx.Client, text: str, conversation: str | None = None) -> Json:
    return post(client, "/v1/commands", text=text, conversation=conversation)


@pytest.fixture
def talk(client: httpx.Client) -> str:
    return conversation_of(ask(client, "my cat is called Miso"))


def test_every_command_of_the_contract_is_there_and_is_told(client: httpx.Client) -> None:
    assert set(COMMANDS) == set(CONTRACT.split())
    listed = get(client, "/v1/commands")["data"]
    assert [row["name"] for row in listed] == list(COMMANDS)
    helped = say(client, "/help")["text"]
    for row in listed:
        assert row["usage"] in helped
        assert row["help"] in helped


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_that_is_listed_does_something(client: httpx.Client, talk: str, name: str) -> None:
    """Without an argument and with one: an answer, or a sentence that says what is missing; never a defect."""
    for text in (f"/{name}", f"/{name} something"):
        for conversation in (None, talk):
            answer = client.post("/v1/commands", json={"text": text, "conversation": conversation})
            assert answer.status_code in (200, 400, 404), answer.text
            assert answer.json().get("text") is not None or len(answer.json()["error"]["message"]) > 20


def test_a_command_that_is_not_there_names_the_nearest_and_reaches_no_model(client: httpx.Client, talk: str) -> None:
    before = said_in(client, talk)
    error = refused(client.post("/v1/commands", json={"text": "/stauts", "conversation": talk}), 404)
    assert error["code"] == "command_not_found"
    assert "Did you mean /status?" in error["message"]
    assert said_in(client, talk) == before


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("/new", ("new", "")),
        ("/new a title\nof two lines ", ("new", "a title\nof two lines")),
        ("/usr/bin/env", None),
        ("/Usr/Bin", None),
        ("/etc/x", None),
        ("/ new", None),
        ("not /new", None),
        ("//new", None),
        ("/New Plans", ("new", "Plans")),
        ("/STATUS", ("status", "")),
    ],
)
def test_what_is_a_command(text: str, command: Any) -> None:
    assert parse(text) == command


def test_a_list_that_ends_early_says_so_and_an_ambiguous_name_tells_what_to_say(client: httpx.Client) -> None:
    for number in range(11):
        ask(client, "hello", conversation=f"plan-{number}")
    assert "There are more" in say(client, "/list")["text"]
    assert "There are more" not in say(client, "/list plan-10")["text"]
    assert "/resume one of them by its id or its whole name:\n\n- plan-10 " in say(client, "/resume plan")["text"]


def test_a_list_in_which_nothing_matches_says_so(client: httpx.Client, talk: str) -> None:
    assert say(client, "/list nosuchword", talk)["text"] == "Nothing was found."


def test_new_begins_with_the_next_message_and_resume_comes_back(client: httpx.Client, talk: str) -> None:
    begun = say(client, "/new plans", talk)
    assert (begun["fresh"], begun["title"], begun["conversation"]) == (True, "plans", None)
    other = conversation_of(ask(client, "something else"))
    assert say(client, "/resume", other)["conversation"]["id"] == talk
    ok(client.patch(f"/api/sessions/{talk}", json={"title": "about my cat"}))
    for what in (talk, "about my cat", "about"):
        assert say(client, f"/resume {what}", other)["conversation"]["id"] == talk
    error = refused(client.post("/v1/commands", json={"text": "/resume abuot my cat"}), 404)
    assert talk in error["message"]


def test_a_resume_that_may_mean_several_says_which(client: httpx.Client) -> None:
    both = [conversation_of(ask(client, "hello", conversation=f"twins-{n}")) for n in (1, 2)]
    told = say(client, "/resume twins")
    assert told["conversation"] is None
    assert all(conversation in told["text"] for conversation in both)
    resolved = get(client, "/v1/resolve", what="twins")
    assert resolved["match"] == "prefix"
    assert {row["id"] for row in resolved["data"]} == set(both)
    assert [row["name"] for row in get(client, "/v1/resolve", what="twins-1")["data"]] == ["twins-1"]


def test_undo_takes_the_last_exchange_back_and_retry_asks_it_again(client: httpx.Client, talk: str) -> None:
    ask(client, "reply only nonsense", conversation=talk)
    assert "nonsense" in say(client, "/undo", talk)["text"]
    assert said_in(client, talk)[0] == "user: my cat is called Miso"
    assert len(said_in(client, talk)) == 2
    ask(client, "what do you see?", conversation=talk)
    again = say(client, "/retry", talk)
    answered = _ended(client, again["turn"])
    assert 'seen: 3 messages, first "my cat is called Miso", last "what do you see?"' in _text(answered)
    assert said_in(client, talk).count("user: what do you see?") == 2


def test_undo_after_a_retry_brings_the_first_try_back_and_takes_no_more_than_people_see(
    client: httpx.Client, talk: str
) -> None:
    """What people see and what the model sees stay the same talk."""
    ask(client, "what do you see?", conversation=talk)
    _ended(client, say(client, "/retry", talk)["turn"])
    say(client, "/undo", talk)
    assert said_in(client, talk).count("user: what do you see?") == 1
    told = ask(client, "and now?", conversation=talk)
    assert 'seen: 5 messages, first "my cat is called Miso"' in _text(told)
    say(client, "/undo", talk)
    assert "what do you see?" in say(client, "/undo", talk)["text"]
    assert [line for line in said_in(client, talk) if line.startswith("user")] == ["user: my cat is called Miso"]


def test_a_model_that_was_chosen_answers_where_nobody_is_named(client: httpx.Client, talk: str) -> None:
    refused(client.post("/v1/commands", json={"text": "/model dmeo", "conversation": talk}), 400)
    say(client, "/model demo", talk)
    assert ask(client, "who are you?", conversation=talk)["model"] == "demo"
    assert ask(client, "who are you?", conversation=talk, model="default")["model"] == "default"
    assert "demo answers here" in say(client, "/model", talk)["text"]


def test_a_fork_goes_on_elsewhere(client: httpx.Client, talk: str) -> None:
    forked = say(client, "/fork aside", talk)["conversation"]
    assert forked["id"] != talk
    assert forked["title"] == "aside"
    ask(client, "only here", conversation=forked["id"])
    assert len(said_in(client, talk)) == 2


def test_bind_gives_a_name_or_goes_to_the_one_that_has_it(client: httpx.Client, talk: str) -> None:
    say(client, "/bind cats", talk)
    assert get(client, "/v1/conversations/cats")["id"] == talk
    other = conversation_of(ask(client, "elsewhere"))
    assert say(client, "/bind cats", other)["conversation"]["id"] == talk


def test_what_waits_is_listed_steered_and_stopped(fresh_server: Server) -> None:
    client = fresh_server.client
    running = post(client, "/v1/responses", input="sleep 600", background=True)
    talk = conversation_of(running)
    waiting = say(client, "/queue and then this", talk)["turn"]
    steered = say(client, "/steer be quick", talk)["turn"]
    listed = say(client, "/queue", talk)["text"]
    assert "sleep 600" in listed
    assert "and then this" in listed
    refused(client.post("/v1/commands", json={"text": "/undo", "conversation": talk}), 400)
    say(client, "/stop", talk)
    assert _ended(client, running["id"])["status"] == "cancelled"
    assert _ended(client, waiting)["status"] == "completed"
    assert _ended(client, steered)["status"] in ("completed", "cancelled")


def test_what_was_compacted_is_expanded(client: httpx.Client, talk: str) -> None:
    for n in range(4):
        ask(client, f"thing {n}", conversation=talk)
    assert "nothing is lost" in say(client, "/compact names of cats", talk)["text"]
    assert "originals" in say(client, "/expand", talk)["text"]
    assert "No summary" in say(client, "/expand", talk)["text"]


def test_a_command_that_starts_a_turn_is_carried_out_once(client: httpx.Client, talk: str) -> None:
    """The same key, the same turn."""
    body = {"text": "/queue once", "conversation": talk}
    turns = [ok(client.post("/v1/commands", json=body, headers={"Idempotency-Key": "k"}))["turn"] for _ in range(2)]
    assert turns[0] == turns[1]


@pytest.mark.parametrize("commands", ["/undo", "/retry", "/compact", "/compact /expand", "/fork", "/model demo"])
def test_a_command_that_is_sent_again_says_what_it_said_and_does_nothing_more(
    client: httpx.Client, talk: str, commands: str
) -> None:
    for text in ("one", "two", "sleep 1"):
        ask(client, text, conversation=talk)
    *before, last = [f"/{command.strip()}" for command in commands.split("/")[1:]]
    for command in before:
        say(client, command, talk)
    again = [_sent(client, last, talk, "k") for _ in range(2)]
    assert again[0].json() == again[1].json()
    assert [answer.headers.get("idempotency-replayed") for answer in again] == [None, "true"]
    refused(_sent(client, "/help", talk, "k"), 409, "idempotency_key_conflict")


def test_what_was_taken_back_once_is_taken_back_once(client: httpx.Client, talk: str) -> None:
    ask(client, "one more thing", conversation=talk)
    assert [_sent(client, "/undo", talk, "k").json()["text"] for _ in range(3)] == [
        "Taken back: 'one more thing' and what followed."
    ] * 3
    assert said_in(client, talk)[0] == "user: my cat is called Miso"
    assert len(said_in(client, talk)) == 2


def test_a_stop_that_is_sent_again_stops_no_other_turn(fresh_server: Server) -> None:
    client = fresh_server.client
    first = post(client, "/v1/responses", input="sleep 600", background=True)
    talk = conversation_of(first)
    second = say(client, "/queue sleep 601", talk)["turn"]
    assert "Stopped" in _sent(client, "/stop", talk, "k").json()["text"]
    assert _ended(client, first["id"])["status"] == "cancelled"
    assert "Stopped" in _sent(client, "/stop", talk, "k").json()["text"]
    assert get(client, f"/v1/responses/{second}")["status"] in ("queued", "in_progress")
    _sent(client, "/stop", talk, "another")
    assert _ended(client, second)["status"] == "cancelled"


def _sent(client: httpx.Client, text: str, conversation: str, key: str) -> httpx.Response:
    body = {"text": text, "conversation": conversation}
    return client.post("/v1/commands", json=body, headers={"Idempotency-Key": f"{key} {conversation}"})


def test_the_status_tells_how_full_the_context_is(client: httpx.Client, talk: str) -> None:
    told = say(client, "/status", talk)["text"]
    assert talk in told
    assert "tokens" in told
    assert "tokens in" in say(client, "/usage", talk)["text"]


def _ended(client: httpx.Client, response: str) -> Json:
    with client.stream("GET", f"/v1/responses/{response}?stream=true") as told:
        for _ in told.iter_lines():
            pass
    return get(client, f"/v1/responses/{response}")


def _text(response: Json) -> str:
    return "".join(part["text"] for item in response["output"] for part in item.get("content") or [])


def test_an_unnamed_talk_is_meant_by_how_it_began(client: httpx.Client) -> None:
    """As a list shows it."""
    talk = conversation_of(ask(client, "Zebras are striped, aren't they?"))
    assert [row["id"] for row in get(client, "/v1/resolve", what="zebras are")["data"]] == [talk]
    assert get(client, "/v1/resolve", what="striped zebras")["match"] in ("near", "none")
