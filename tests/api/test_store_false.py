"""`store: false`: the same answer, and nothing of it can be read later."""

from typing import Any

import httpx
import pytest

from api.server import Server
from api.test_wire_types import is_response, is_stream
from api.upstream import Upstream
from api.wire import (
    ask,
    chat,
    chunks,
    conversation_of,
    conversations,
    events,
    get,
    ok,
    output_text,
    refused,
    said_in,
    seen,
    streaming,
)

SECRET = "the canary sings at noon"


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("text", [SECRET, "call now {}", "fail 1 times"])
def test_an_answer_that_is_not_stored_leaves_nothing(client: httpx.Client, streamed: bool, text: str) -> None:
    """Not in the list, not by its id, not as something to continue."""
    before = conversations(client)
    if streamed:
        with streaming(client, text, store=False) as answer:
            response = is_stream(list(events(answer)))
    else:
        response = is_response(ask(client, text, store=False))
    assert response["store"] is False
    assert response["status"] == ("failed" if text.startswith("fail") else "completed")
    refused(client.get(f"/v1/responses/{response['id']}"), 404)
    refused(client.get(f"/v1/responses/{response['id']}?stream=true"), 404)
    refused(client.get(f"/v1/conversations/{conversation_of(response)}"), 404)
    body = {"input": "more", "previous_response_id": response["id"]}
    refused(client.post("/v1/responses", json=body), 404, "previous_response_not_found", "previous_response_id")
    assert conversations(client) == before


@pytest.mark.parametrize("by", ["slug", "id", "previous response", "session header"])
def test_the_conversation_it_names_is_read_and_not_written(client: httpx.Client, by: str) -> None:
    """However it is named."""
    session = {"X-Hermes-Session-Id": f"unstored {by}"}
    first = ask(client, "one", session if by == "session header" else None)
    conversation = conversation_of(first)
    client.put(f"/v1/conversations/{conversation}/aliases/unstored")
    named: dict[str, Any] = {
        "slug": {"conversation": "unstored"},
        "id": {"conversation": {"id": conversation}},
        "previous response": {"previous_response_id": first["id"]},
        "session header": {},
    }[by]
    before = client.get(f"/v1/conversations/{conversation}/export").text
    response = ask(client, "two", session if by == "session header" else None, store=False, **named)
    assert seen(response) == (3, "one", "two")
    assert conversation_of(response) == conversation
    assert client.get(f"/v1/conversations/{conversation}/export").text == before
    client.delete("/v1/conversations/unstored")


def test_a_new_name_is_not_made(client: httpx.Client) -> None:
    """A slug that is not there stays free."""
    unstored = ask(client, "one", conversation="never-made", store=False)
    assert seen(unstored) == (1, "one", "one")
    assert unstored["conversation"]["name"] == "never-made"
    refused(client.get("/v1/conversations/never-made"), 404)


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("text", [SECRET, "fail 1 times"])
def test_a_chat_that_is_not_stored_leaves_nothing(client: httpx.Client, streamed: bool, text: str) -> None:
    before = conversations(client)
    body = {"messages": [{"role": "user", "content": text}], "store": False}
    if streamed:
        with streaming(client, None, None, "/v1/chat/completions", **body) as answer:
            told = list(chunks(answer))
        assert [line["error"]["code"] for line in told if "error" in line] == ["model_unavailable"] * ("fail" in text)
        named = told[-1]["legato"]
    else:
        answer = client.post("/v1/chat/completions", json=body)
        assert answer.status_code == (503 if "fail" in text else 200)
        named = None if "fail" in text else answer.json()["legato"]
    if named is not None:
        refused(client.get(f"/v1/responses/{named['turn']}"), 404)
        refused(client.get(f"/v1/conversations/{named['conversation']}"), 404)
    assert conversations(client) == before
    assert not get(client, "/v1/search", q=SECRET)["data"]


def test_a_chat_that_is_not_stored_sees_its_session_and_does_not_write_it(client: httpx.Client) -> None:
    session = {"X-Hermes-Session-Id": "chats unstored"}
    chat(client, "one", session)
    body = {"messages": [{"role": "user", "content": "two"}], "store": False}
    answer = ok(client.post("/v1/chat/completions", json=body, headers=session))
    assert seen(answer["choices"][0]["message"]["content"]) == (3, "one", "two")
    assert len(said_in(client, answer["legato"]["conversation"])) == 2


def test_what_is_chosen_for_a_session_holds_for_what_is_not_stored(steered_server: Server, upstream: Upstream) -> None:
    session = {"X-Hermes-Session-Id": "a pirate"}
    given = {"id": "a pirate", "system_prompt": "You are a pirate."}
    assert steered_server.client.post("/api/sessions", json=given).status_code == 201
    for path, body in {
        "/v1/chat/completions": {"messages": [{"role": "user", "content": "ahoy"}]},
        "/v1/responses": {"input": "ahoy"},
    }.items():
        talk = upstream.talk()
        talk.say("arr")
        talk.end()
        ok(steered_server.client.post(path, json={**body, "store": False}, headers=session))
        assert upstream.received[-1]["messages"][0] == {"role": "system", "content": "You are a pirate."}


def test_an_answer_that_is_not_stored_says_how_its_conversation_is_called(client: httpx.Client) -> None:
    ask(client, "one", conversation="called-so")
    assert ask(client, "two", conversation="called-so", store=False)["conversation"]["name"] == "called-so"


def test_what_no_conversation_can_be_called_is_refused_as_ever(client: httpx.Client) -> None:
    refused(client.post("/v1/responses", json={"input": "one", "conversation": "a b", "store": False}), 400)


def test_it_cannot_run_in_the_background(client: httpx.Client) -> None:
    """What is not kept cannot be fetched later."""
    body = {"input": "hello", "store": False, "background": True}
    refused(client.post("/v1/responses", json=body), 400, param="background")


def test_nothing_of_it_is_on_the_disk(fresh_server: Server) -> None:
    """Neither in the database nor in the log of the process."""
    assert SECRET in output_text(ask(fresh_server.client, SECRET, store=False))
    assert SECRET in output_text(ask(fresh_server.client, f"kept: {SECRET[:3]}… {SECRET}", store=False))
    fresh_server.restart()
    for path in fresh_server.home.iterdir():
        assert SECRET.encode() not in path.read_bytes(), path
    kept = ask(fresh_server.client, SECRET)
    assert any(SECRET in line for line in said_in(fresh_server.client, conversation_of(kept)))


def test_a_failure_in_mid_answer_closes_what_was_begun(steered_server: Server, upstream: Upstream) -> None:
    """The stream is in its order, as that of any turn."""
    talk = upstream.talk()
    talk.say("Half an ans")
    talk.fail("the provider fell over")
    with streaming(steered_server.client, "hello", store=False) as answer:
        last = is_stream(list(events(answer)))
    assert [item["status"] for item in last["output"]] == ["incomplete"]
