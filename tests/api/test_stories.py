"""The scenarios that this product exists for, through HTTP, on a real process that is killed."""

import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from api.server import BOUND, Server
from api.upstream import Upstream
from api.wire import (
    Json,
    ask,
    chat,
    chunks,
    conversation_of,
    conversations,
    events,
    follow,
    get,
    numbers,
    ok,
    output_text,
    post,
    refused,
    said_in,
    seen,
    streaming,
)

SESSION = "X-Hermes-Session-Id"
RACERS = 20
ENDS = ("response.completed", "response.incomplete", "response.failed")
TURN_ROUTES = ("/v1/responses", "/v1/chat/completions")


# -- 1. the named conversation


def test_a_named_conversation_is_the_same_after_kill_9(fresh_server: Server) -> None:
    """The slug means the conversation of turn 1, and the model sees turn 1."""
    first = ask(fresh_server.client, "my cat is called Miso", conversation="my-conv-foo")

    fresh_server.restart()

    second = ask(fresh_server.client, "what is my cat called?", conversation="my-conv-foo")
    assert conversation_of(second) == conversation_of(first)
    assert seen(second) == (3, "my cat is called Miso", "what is my cat called?")
    assert [row["id"] for row in conversations(fresh_server.client)] == [conversation_of(first)]


def test_a_named_conversation_is_the_same_after_150_other_responses_and_kill_9(fresh_server: Server) -> None:
    """There is no bounded store that could evict it."""
    first = ask(fresh_server.client, "my cat is called Miso", conversation="my-conv-foo")
    with ThreadPoolExecutor(4) as pool:
        others = list(pool.map(lambda n: ask(fresh_server.client, f"other talk {n}"), range(150)))
    assert seen(ask(fresh_server.client, "again", conversation="my-conv-foo")) == (3, "my cat is called Miso", "again")

    fresh_server.restart()

    later = ask(fresh_server.client, "what is my cat called?", conversation="my-conv-foo")
    assert conversation_of(later) == conversation_of(first)
    assert seen(later) == (5, "my cat is called Miso", "what is my cat called?")
    assert get(fresh_server.client, f"/v1/responses/{first['id']}") == first
    assert {row["id"] for row in conversations(fresh_server.client)} == {
        conversation_of(response) for response in [first, *others]
    }


def test_many_restarts_leave_one_row(fresh_server: Server, request: pytest.FixtureRequest) -> None:
    """Each turn meets a new process; the list shows one conversation."""
    rounds = 100 if request.config.getoption("--long") else 10
    ids = set()
    for n in range(rounds):
        response = ask(fresh_server.client, f"turn {n}", conversation="my-conv-foo")
        assert seen(response) == (2 * n + 1, "turn 0", f"turn {n}")
        ids.add(conversation_of(response))
        fresh_server.restart()
    assert [(row["id"], row["name"]) for row in conversations(fresh_server.client)] == [(ids.pop(), "my-conv-foo")]
    assert not ids


@pytest.mark.parametrize("way", ["slug", "session header"])
def test_racing_first_requests_make_one_conversation(server: Server, way: str) -> None:
    """All of them are in it, one after the other."""
    name = f"race-{way.replace(' ', '-')}"
    start = Barrier(RACERS)

    def race(n: int) -> Json:
        start.wait(BOUND)
        if way == "slug":
            return ask(server.client, f"racer {n}", conversation=name)
        return ask(server.client, f"racer {n}", {SESSION: name})

    before = len(conversations(server.client))
    with ThreadPoolExecutor(RACERS) as pool:
        responses = list(pool.map(race, range(RACERS)))

    assert len({conversation_of(response) for response in responses}) == 1
    assert len(conversations(server.client)) == before + 1
    assert sorted(seen(response)[0] for response in responses) == list(range(1, 2 * RACERS, 2))
    said = said_in(server.client, conversation_of(responses[0]))
    assert sorted(line for line in said if line.startswith("user")) == sorted(f"user: racer {n}" for n in range(RACERS))


def test_a_deleted_name_begins_afresh_and_the_old_conversation_is_gone(client: httpx.Client) -> None:
    """One delete removes the whole conversation, and frees its name."""
    first = ask(client, "old", conversation="deleted-name")
    ok(client.delete("/v1/conversations/deleted-name"))

    refused(client.get(f"/v1/conversations/{conversation_of(first)}"), 404, "conversation_not_found")
    refused(client.get(f"/v1/responses/{first['id']}"), 404)
    second = ask(client, "new", conversation="deleted-name")
    assert conversation_of(second) != conversation_of(first)
    assert seen(second) == (1, "new", "new")


# -- 2. previous_response_id


def test_an_unknown_previous_response_is_404_and_makes_nothing(client: httpx.Client) -> None:
    """Nobody guesses a conversation for it."""
    before = conversations(client)
    answer = client.post("/v1/responses", json={"input": "hello", "previous_response_id": "resp_" + "0" * 32})
    error = refused(answer, 404, "previous_response_not_found", "previous_response_id")
    assert error["type"] == "invalid_request_error"
    assert conversations(client) == before


@pytest.mark.parametrize("what", ["conversation", "response"])
def test_a_stream_of_what_is_deleted_meanwhile_ends_as_every_stream_does(client: httpx.Client, what: str) -> None:
    """Whoever follows is told of the end, and then there is nothing to ask for."""
    with streaming(client, "sleep 30", conversation=f"deleted-{what}") as answer:
        told = events(answer)
        began = next(told)["response"]
        ok(client.delete(f"/v1/{what}s/{began['id'] if what == 'response' else began['conversation']['id']}"))
        ends = [event["type"] for event in told if event["type"] in ENDS]
    assert len(ends) == 1
    assert client.get(f"/v1/responses/{began['id']}").status_code == 404
    body = {"messages": [{"role": "user", "content": "sleep 30"}]}
    with streaming(client, None, {SESSION: f"deleted-chat-{what}"}, "/v1/chat/completions", **body) as answer:
        chat_told = chunks(answer)
        next(chat_told)
        ok(client.delete(f"/v1/conversations/{answer.headers['X-Legato-Conversation']}"))
        *_, last = chat_told
    assert last["choices"][0]["finish_reason"]


def test_a_previous_response_of_a_deleted_conversation_is_404(client: httpx.Client) -> None:
    """What was deleted is not continued."""
    response = ask(client, "hello")
    ok(client.delete(f"/v1/conversations/{conversation_of(response)}"))
    answer = client.post("/v1/responses", json={"input": "hello", "previous_response_id": response["id"]})
    refused(answer, 404, "previous_response_not_found", "previous_response_id")


def test_a_previous_response_at_the_tip_continues_its_conversation(client: httpx.Client) -> None:
    """Also across upkeep, which no client can tell from the tip."""
    first = ask(client, "one")
    second = ask(client, "two", previous_response_id=first["id"])
    assert conversation_of(second) == conversation_of(first)
    assert second["previous_response_id"] == first["id"]

    items = [{"type": "message", "role": "user", "content": "an aside"}]
    ok(client.post(f"/v1/conversations/{conversation_of(first)}/items", json={"items": items}))
    third = ask(client, "three", previous_response_id=second["id"])
    assert conversation_of(third) == conversation_of(first)
    assert seen(third) == (6, "one", "three")


def test_a_previous_response_before_the_tip_forks_and_the_fork_sees_exactly_its_own_past(fresh_server: Server) -> None:
    """Two forks and their origin grow side by side, across a restart."""
    client = fresh_server.client
    first = ask(client, "reply only one")
    second = ask(client, "reply only two", previous_response_id=first["id"])
    left = ask(client, "reply only left", previous_response_id=first["id"])
    right = ask(client, "reply only right", previous_response_id=first["id"])
    assert len({conversation_of(response) for response in (first, left, right)}) == 3
    assert conversation_of(second) == conversation_of(first)

    fresh_server.restart()
    client = fresh_server.client

    origin_on = ask(client, "origin", previous_response_id=second["id"])
    left_on = ask(client, "left on", previous_response_id=left["id"])
    right_on = ask(client, "right on", previous_response_id=right["id"])
    assert [conversation_of(response) for response in (origin_on, left_on, right_on)] == [
        conversation_of(response) for response in (first, left, right)
    ]
    past = ["user: reply only one", "assistant: one"]
    for on, own, last in ((origin_on, "two", "origin"), (left_on, "left", "left on"), (right_on, "right", "right on")):
        assert seen(on) == (5, "reply only one", last)
        said = said_in(client, conversation_of(on))
        assert said == [
            *past,
            f"user: reply only {own}",
            f"assistant: {own}",
            f"user: {last}",
            f"assistant: {output_text(on)}",
        ]


def test_a_retry_from_before_a_failed_turn_stays_in_its_conversation(client: httpx.Client) -> None:
    """The newest turn that did not fail counts as the tip, and the failed try is hidden from the model."""
    first = ask(client, "one")
    failed = ask(client, "fail 1 times", previous_response_id=first["id"])
    assert failed["status"] == "failed"
    again = ask(client, "two", previous_response_id=first["id"])
    assert conversation_of(again) == conversation_of(first)
    assert seen(again) == (3, "one", "two")


def test_a_conversation_and_a_previous_response_together_are_refused(client: httpx.Client) -> None:
    """They could disagree."""
    response = ask(client, "hello")
    body = {"input": "hello", "previous_response_id": response["id"], "conversation": conversation_of(response)}
    refused(client.post("/v1/responses", json=body), 400, "mutually_exclusive_parameters")


# -- 3. the session header


def test_a_session_header_means_one_conversation_over_many_turns_streaming_and_not(fresh_server: Server) -> None:
    """On both routes, in every form, across kill -9; the first id that was ever sent goes on working."""
    session, ids = "seatalk:group/42 é", set()
    headers = {SESSION: session.encode()}
    for n in range(12):
        if n in (4, 9):
            fresh_server.restart()
        client, text = fresh_server.client, f"turn {n}"
        messages = [{"role": "user", "content": text}]
        if n % 4 == 0:
            answer = client.post("/v1/chat/completions", json={"messages": messages}, headers=headers)
            told = ok(answer)["choices"][0]["message"]["content"]
        elif n % 4 == 1:
            body = {"messages": messages, "stream": True}
            with client.stream("POST", "/v1/chat/completions", json=body, headers=headers) as answer:
                told = _said(list(chunks(answer)))
        elif n % 4 == 2:
            answer = client.post("/v1/responses", json={"input": text}, headers=headers)
            told = output_text(ok(answer))
        else:
            body = {"input": text, "stream": True}
            with client.stream("POST", "/v1/responses", json=body, headers=headers) as answer:
                told = output_text(list(events(answer))[-1]["response"])
        assert seen(told) == (2 * n + 1, "turn 0", text)
        assert answer.headers[SESSION] == session
        ids.add(answer.headers["X-Legato-Conversation"])
    assert len(ids) == 1
    assert [row["id"] for row in conversations(fresh_server.client)] == list(ids)


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/chat/completions", "/v1/runs"])
def test_a_client_may_send_back_all_the_names_that_an_answer_gave_it(client: httpx.Client, path: str) -> None:
    """They mean one conversation; where they mean several, or one of them nothing yet, it is refused."""
    said = {"messages": [{"role": "user", "content": "hi"}]} if "chat" in path else {"input": "hi"}
    session = f"all names {path}"
    first = client.post(path, json=said, headers={SESSION: session})
    place = {"X-Legato-Conversation": first.headers["X-Legato-Conversation"]}
    name = "all-names" + path.replace("/", ".")
    ok(client.put(f"/v1/conversations/{place['X-Legato-Conversation']}/aliases/{name}"))
    for body, headers in (
        ({}, {SESSION: session, **place}),
        ({"conversation": name}, place),
        ({"conversation": {"id": place["X-Legato-Conversation"]}}, {SESSION: session, **place}),
    ):
        answer = client.post(path, json={**said, **body}, headers=headers)
        assert answer.is_success, answer.text
        assert answer.headers["X-Legato-Conversation"] == place["X-Legato-Conversation"]
    for body, headers in (({}, {SESSION: "never said", **place}), ({"conversation": "never-said"}, place)):
        error = client.post(path, json={**said, **body}, headers=headers)
        refused(error, 400, "mutually_exclusive_parameters")
    refused(client.get("/v1/conversations/never-said"), 404)


def test_the_header_of_a_stream_is_right_before_the_run_ends(client: httpx.Client) -> None:
    """It is there while the turn still runs, and it is still true after the turn has ended."""
    known = ask(client, "hello", {SESSION: "early"})
    with streaming(client, "sleep 60", {SESSION: "early"}) as answer:
        assert answer.headers["X-Legato-Conversation"] == conversation_of(known)
        assert answer.headers[SESSION] == "early"
        told = events(answer)
        begun = next(told)["response"]
        assert get(client, f"/v1/responses/{begun['id']}")["status"] == "in_progress"
        ok(client.post(f"/v1/responses/{begun['id']}/cancel"))
        ended = list(told)[-1]["response"]
    assert conversation_of(ended) == conversation_of(begun) == conversation_of(known)


def test_the_header_of_a_chat_stream_is_right_before_the_run_ends_and_its_last_chunk_repeats_it(
    client: httpx.Client,
) -> None:
    """Bridges that read headers and bridges that read the end both learn it."""
    known = ask(client, "hello", {SESSION: "early chat"})
    body = {"messages": [{"role": "user", "content": "sleep 60"}], "stream": True}
    with client.stream("POST", "/v1/chat/completions", json=body, headers={SESSION: "early chat"}) as answer:
        assert answer.headers["X-Legato-Conversation"] == conversation_of(known)
        told = chunks(answer)
        turn = next(told)["id"].replace("chatcmpl-", "resp_")
        assert get(client, f"/v1/responses/{turn}")["status"] == "in_progress"
        ok(client.post(f"/v1/responses/{turn}/cancel"))
        last = list(told)[-1]
    assert last["legato"] == {"conversation": conversation_of(known), "turn": turn}


def test_a_chat_with_a_session_takes_its_history_from_the_log(client: httpx.Client) -> None:
    """Only what follows the last answer of the body is new, whatever the client resends."""
    chat(client, "one", {SESSION: "resends"})
    resent = [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "something else that the client made up"},
        {"role": "user", "content": "two"},
    ]
    second = ok(client.post("/v1/chat/completions", json={"messages": resent}, headers={SESSION: "resends"}))
    assert seen(second["choices"][0]["message"]["content"]) == (3, "one", "two")
    assert [line for line in said_in(client, second["legato"]["conversation"]) if "made up" in line] == []


def test_a_chat_that_fails_says_in_which_conversation_also_when_it_is_repeated(client: httpx.Client) -> None:
    """The headers of an answer are there without one."""
    body = {"messages": [{"role": "user", "content": "fail 1 times"}]}
    headers = {SESSION: "fails", "Idempotency-Key": "fails-1"}
    first, again = (client.post("/v1/chat/completions", json=body, headers=headers) for _ in range(2))
    place = conversation_of(ask(client, "reply only x", {SESSION: "fails"}))
    for answer in (first, again):
        assert answer.status_code == 503
        assert answer.headers[SESSION] == "fails"
        assert answer.headers["X-Legato-Conversation"] == place
    assert [answer.headers.get("Idempotency-Replayed") for answer in (first, again)] == [None, "true"]


@pytest.mark.parametrize("named", ["session header", "conversation", "previous response"])
def test_a_conversation_that_is_locked_is_named(client: httpx.Client, named: str) -> None:
    """By its id, and by the header that was sent."""
    session = f"locked by {named}"
    running = ask(client, "sleep 600", {SESSION: session}, background=True)
    body = {
        "session header": {},
        "conversation": {"conversation": conversation_of(running)},
        "previous response": {"previous_response_id": running["id"]},
    }[named]
    headers = {"X-Legato-Busy": "reject"} | ({SESSION: session} if not body else {})
    for path, given in {
        "/v1/responses": {"input": "x"},
        "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}]},
    }.items():
        answer = client.post(path, json=given | body, headers=headers)
        refused(answer, 409, "conversation_locked")
        assert answer.headers["X-Legato-Conversation"] == conversation_of(running)
        assert answer.headers.get(SESSION) == headers.get(SESSION)
    post(client, f"/v1/responses/{running['id']}/cancel")


def test_a_client_that_sends_its_header_always_goes_on_in_a_fork(client: httpx.Client) -> None:
    """It edits something it said and goes on from there, again and again; another conversation's header is refused."""
    header = {SESSION: "edits what it says"}
    first = ask(client, "one", header)
    ask(client, "two", header)
    ask(client, "elsewhere", {SESSION: "another session"})
    edited = ask(client, "two, edited", header, previous_response_id=first["id"])
    assert conversation_of(edited) != conversation_of(first)
    after = ask(client, "three", header, previous_response_id=edited["id"])
    again = ask(client, "three, edited", header, previous_response_id=edited["id"])
    last = ask(client, "four", header, previous_response_id=again["id"])
    assert conversation_of(after) == conversation_of(edited)
    assert said_in(client, conversation_of(last))[-4] == "user: three, edited"
    body = {"input": "x", "previous_response_id": last["id"]}
    for other in ("another session", "no session yet"):
        refused(client.post("/v1/responses", json=body, headers={SESSION: other}), 400, "mutually_exclusive_parameters")


def test_a_chat_goes_on_in_the_conversation_that_its_body_names(client: httpx.Client) -> None:
    """By a name, an id, or the response before: as everywhere."""
    first = chat(client, "one", conversation="body-named")
    place = first["legato"]["conversation"]
    second = chat(client, "two", conversation={"id": place})
    third = chat(client, "three", previous_response_id=second["legato"]["turn"])
    assert {answer["legato"]["conversation"] for answer in (first, second, third)} == {place}
    assert seen(third["choices"][0]["message"]["content"]) == (5, "one", "three")
    unknown = {"messages": [{"role": "user", "content": "x"}], "conversation": "conv_unknown"}
    refused(client.post("/v1/chat/completions", json=unknown), 404, "conversation_not_found")


def test_a_session_header_that_is_a_conversation_id_never_creates(client: httpx.Client) -> None:
    """It is that conversation, or 404."""
    known = ask(client, "hello")
    again = ask(client, "again", {"X-Legato-Conversation": conversation_of(known)})
    assert conversation_of(again) == conversation_of(known)
    before = conversations(client)
    for name in (SESSION, "X-Legato-Conversation"):
        answer = client.post("/v1/responses", json={"input": "x"}, headers={name: "conv_" + "0" * 32})
        refused(answer, 404, "conversation_not_found")
    assert conversations(client) == before


@pytest.mark.parametrize("first", ["chat", "response", "run", "session"])
def test_a_session_is_one_row_for_ever_however_it_began(fresh_server: Server, first: str) -> None:
    """`/api/sessions` shows one row for an id that a client ever sent, on every route, across kill -9."""
    session = "bridge:42"
    begin = {
        "chat": lambda client: chat(client, "one", {SESSION: session}),
        "response": lambda client: ask(client, "one", {SESSION: session}),
        "run": lambda client: client.post("/v1/runs", json={"input": "one", "session_id": session}),
        "session": lambda client: client.post("/api/sessions", json={"id": session}),
    }
    begin[first](fresh_server.client)
    begin["session"](fresh_server.client)  # registering twice is registering once

    fresh_server.restart()

    client = fresh_server.client
    chat(client, "two", {SESSION: session})
    said = ok(client.post(f"/api/sessions/{session}/chat", json={"input": "three"}))
    [row] = get(client, "/api/sessions")["data"]
    assert row["id"] == get(client, f"/api/sessions/{session}")["id"]
    messages = get(client, f"/api/sessions/{session}/messages")["data"]
    users = [message["content"] for message in messages if message["role"] == "user"]
    assert users == (["two", "three"] if first == "session" else ["one", "two", "three"])
    assert seen(said["message"]["content"]) == (2 * len(users) - 1, users[0], "three")


# -- 4. leave and come back


def _feed_up_to(event: int, words: int) -> tuple[int, bool]:
    """How many words a turn must have said for its event of this number to come, and whether it must have ended."""
    if event < 2:  # created, in progress
        return 0, False
    said = max(1, event - 3)  # item added, part added, then a delta for each word
    return min(said, words), said > words


WORDS = ("Never", " was", " so", " much", " owed")
LAST_EVENT = 1 + 2 + len(WORDS) + 3 + 1


def test_a_connection_dropped_at_any_event_cancels_nothing_and_the_rest_comes_without_gap_or_repeat(
    steered_server: Server, upstream: Upstream
) -> None:
    """Each turn is cut while it runs, right after one event; then it says the rest to nobody."""
    client = steered_server.client
    for cut in range(LAST_EVENT + 1):
        talk = upstream.talk()
        fed, over = _feed_up_to(cut, len(WORDS))
        with streaming(client, f"cut at {cut}") as answer:
            for word in WORDS[:fed]:
                talk.say(word)
            if over:
                talk.end()
            told = events(answer)
            before = [next(told) for _ in range(cut + 1)]
        for word in WORDS[fed:]:
            talk.say(word)
        if not over:
            talk.end()

        response_id = before[0]["response"]["id"]
        after = follow(client, response_id, cut)
        whole = follow(client, response_id)
        assert before + after == whole
        assert numbers(whole) == list(range(LAST_EVENT + 1))
        assert output_text(get(client, f"/v1/responses/{response_id}")) == "".join(WORDS)


def test_a_turn_cut_by_kill_9_at_any_event_finishes_and_the_rest_comes_without_gap_or_repeat(
    steered_server: Server, upstream: Upstream
) -> None:
    """What was shown before the crash stays shown; the numbers go on where they stopped."""
    for cut in range(LAST_EVENT + 1):
        talk = upstream.talk()
        fed, over = _feed_up_to(cut, len(WORDS))
        with streaming(steered_server.client, f"cut at {cut}") as answer:
            for word in WORDS[:fed]:
                talk.say(word)
            if over:
                talk.end()
            told = events(answer)
            before = [next(told) for _ in range(cut + 1)]
            assert over or talk.asked.wait(BOUND)
            steered_server.kill()
        talk.end()
        if not over:
            heir = upstream.talk()
            for word in WORDS:
                heir.say(word)
            heir.end()
        steered_server.start()

        response_id = before[0]["response"]["id"]
        after = follow(steered_server.client, response_id, cut)
        whole = follow(steered_server.client, response_id)
        assert before + after == whole
        assert numbers(whole) == list(range(len(whole)))
        response = get(steered_server.client, f"/v1/responses/{response_id}")
        assert response["status"] == "completed"
        assert output_text(response) == "".join(WORDS)
        assert response == whole[-1]["response"]


@pytest.mark.parametrize("words", [1, 3, 600])
def test_a_chat_that_is_asked_again_after_kill_9_in_its_answer_is_told_once(
    steered_server: Server, upstream: Upstream, words: int
) -> None:
    """What was cut off and began anew is not in the text twice, and the client that goes on from it is recognised."""
    body: Json = {"messages": [{"role": "user", "content": f"say {words}"}], "stream": True}
    key = {"Idempotency-Key": f"chat {words}"}
    talk = upstream.talk()
    with steered_server.client.stream("POST", "/v1/chat/completions", json=body, headers=key) as answer:
        for word in range(words):
            talk.say(f"{word} ")
        told = chunks(answer)
        while f"{words - 1} " not in str(next(told)):
            continue
        steered_server.kill()
    talk.end()
    heir = upstream.talk()
    for word in range(words + 2):
        heir.say(f"{word} ")
    heir.end()
    steered_server.start()
    with steered_server.client.stream("POST", "/v1/chat/completions", json=body, headers=key) as answer:
        heard = _said(list(chunks(answer)))
    assert answer.headers["Idempotency-Replayed"] == "true"
    assert heard == "".join(f"{word} " for word in range(words + 2))
    after = upstream.talk()
    after.say("good")
    after.end()
    said = [*body["messages"], {"role": "assistant", "content": heard}, {"role": "user", "content": "and?"}]
    went_on = ok(steered_server.client.post("/v1/chat/completions", json={"messages": said}))
    assert went_on["legato"]["conversation"] == answer.headers["X-Legato-Conversation"]


def test_a_turn_with_a_tool_can_be_resumed_from_every_event_and_by_last_event_id(client: httpx.Client) -> None:
    """Streamed, plain or in the background: any turn replays."""
    streamed = ask(client, "call now {}")["id"]
    background = ask(client, "call now {}", background=True)["id"]
    for response_id in (streamed, background):
        whole = follow(client, response_id)
        assert numbers(whole) == list(range(len(whole)))
        for cut in range(len(whole)):
            assert follow(client, response_id, cut) == whole[cut + 1 :]
            with client.stream(
                "GET", f"/v1/responses/{response_id}?stream=true", headers={"Last-Event-ID": str(cut)}
            ) as answer:
                assert list(events(answer)) == whole[cut + 1 :]


@pytest.mark.parametrize("route", TURN_ROUTES)
def test_a_plain_request_whose_client_leaves_is_answered_all_the_same(
    steered_server: Server, upstream: Upstream, route: str
) -> None:
    """The turn goes on; its answer is in the conversation."""
    talk, body = upstream.talk(), json.dumps(_body("are you there?")).encode()
    address = urlsplit(steered_server.url)
    with socket.create_connection((address.hostname, address.port), BOUND) as leaver:
        head = f"POST {route} HTTP/1.1\r\nHost: {address.netloc}\r\nAuthorization: Bearer {steered_server.key}\r\n"
        head += f"{SESSION}: leaver\r\nContent-Length: {len(body)}\r\n\r\n"
        leaver.sendall(head.encode() + body)
        assert talk.asked.wait(BOUND)
    talk.say("I am.")
    talk.end()
    upstream.talk().end()
    after = ask(steered_server.client, "good", {SESSION: "leaver"})
    assert said_in(steered_server.client, conversation_of(after)) == [
        "user: are you there?",
        "assistant: I am.",
        "user: good",
    ]


# -- 5. the same POST twice


@pytest.fixture(params=TURN_ROUTES)
def route(request: pytest.FixtureRequest) -> str:
    """The routes that make turns."""
    path: str = request.param
    return path


def _body(text: str, **more: object) -> Json:
    """A body that both routes take."""
    return {"input": text, "messages": [{"role": "user", "content": text}], **more}


def test_the_same_key_gives_the_first_answer_also_after_a_restart(fresh_server: Server, route: str) -> None:
    """One turn, and the second answer says that it is a replay."""
    key = {"Idempotency-Key": "k1"}
    first = fresh_server.client.post(route, json=_body("hello"), headers=key)
    second = fresh_server.client.post(route, json=_body("hello"), headers=key)
    fresh_server.restart()
    third = fresh_server.client.post(route, json=_body("hello"), headers=key)

    assert "Idempotency-Replayed" not in first.headers
    for again in (second, third):
        assert again.headers["Idempotency-Replayed"] == "true"
        assert ok(again) == ok(first)
        assert again.headers["X-Legato-Conversation"] == first.headers["X-Legato-Conversation"]
    [row] = conversations(fresh_server.client)
    assert len(said_in(fresh_server.client, row["id"])) == 2


def test_the_same_key_in_flight_joins_the_first(client: httpx.Client) -> None:
    """Ten at once: one turn, one answer."""
    key, start = {"Idempotency-Key": "in flight"}, Barrier(10)

    def send(_: int) -> httpx.Response:
        start.wait(BOUND)
        return client.post("/v1/responses", json={"input": "sleep 0.3", "conversation": "in-flight"}, headers=key)

    with ThreadPoolExecutor(10) as pool:
        answers = list(pool.map(send, range(10)))
    assert len({ok(answer)["id"] for answer in answers}) == 1
    assert sum("Idempotency-Replayed" not in answer.headers for answer in answers) == 1
    assert len(said_in(client, "in-flight")) == 2


def test_the_same_key_streaming_replays_the_stream_from_its_start(client: httpx.Client) -> None:
    """While the first still runs, and after it has ended."""
    key = {"Idempotency-Key": "streaming"}
    with streaming(client, "sleep 60", key) as first, streaming(client, "sleep 60", key) as second:
        one, two = events(first), events(second)
        begun = next(one)
        assert begun == next(two)
        assert second.headers["Idempotency-Replayed"] == "true"
        ok(client.post(f"/v1/responses/{begun['response']['id']}/cancel"))
        whole = [begun, *one]
        assert [begun, *two] == whole
    with streaming(client, "sleep 60", key) as third:
        assert list(events(third)) == whole


def test_the_same_key_with_another_body_is_409(client: httpx.Client, route: str) -> None:
    """Nothing is done under a key that means something else; nor when a header names another conversation."""
    key = {"Idempotency-Key": f"conflict {route}"}
    ok(client.post(route, json=_body("hello"), headers=key))
    before = conversations(client)
    refused(client.post(route, json=_body("other"), headers=key), 409, "idempotency_key_conflict")
    other = {**key, SESSION: "elsewhere"}
    refused(client.post(route, json=_body("hello"), headers=other), 409, "idempotency_key_conflict")
    assert conversations(client) == before


def test_a_key_is_the_principals_own(client: httpx.Client, stranger: httpx.Client, route: str) -> None:
    """Another principal with the same key and body has a turn of its own."""
    key = {"Idempotency-Key": f"mine {route}"}
    mine = client.post(route, json=_body("hello"), headers=key)
    theirs = stranger.post(route, json=_body("hello"), headers=key)
    assert "Idempotency-Replayed" not in theirs.headers
    assert ok(theirs)["id"] != ok(mine)["id"]
    assert theirs.headers["X-Legato-Conversation"] != mine.headers["X-Legato-Conversation"]


def test_a_key_is_the_routes_own(client: httpx.Client) -> None:
    """The same key on another route is another request."""
    key = {"Idempotency-Key": "two routes"}
    one = client.post("/v1/responses", json=_body("hello"), headers=key)
    two = client.post("/v1/chat/completions", json=_body("hello"), headers=key)
    assert ok(one)["id"].removeprefix("resp_") != ok(two)["id"].removeprefix("chatcmpl-")


def test_a_failed_turn_replays_and_a_refusal_does_not(client: httpx.Client) -> None:
    """What was admitted has one outcome; what was refused may be put right."""
    key = {"Idempotency-Key": "failed"}
    failed = ask(client, "fail 1 times", key)
    assert failed["status"] == "failed"
    assert ask(client, "fail 1 times", key) == failed

    key = {"Idempotency-Key": "refused"}
    refused(client.post("/v1/responses", json={"input": 7}, headers=key), 400)
    ask(client, "now a good one", key)


def test_a_turn_whose_gateway_was_killed_too_often_says_so_and_its_conversation_goes_on(fresh_server: Server) -> None:
    """Chat Completions tells it by its code, however often it is asked for."""
    headers = {"X-Hermes-Session-Id": "fatal", "Idempotency-Key": "fatal"}
    body = {"messages": [{"role": "user", "content": "sleep 30"}]}

    def until_running() -> None:
        deadline = time.monotonic() + BOUND
        while "\nlegato_turns_running 1.0" not in fresh_server.client.get("/metrics").text:
            assert time.monotonic() < deadline
            time.sleep(0.02)

    with ThreadPoolExecutor(1) as pool:
        mine = fresh_server._http(fresh_server.key)
        asked = pool.submit(mine.post, "/v1/chat/completions", json=body, headers=headers)
        for _ in range(3):
            until_running()
            fresh_server.restart()
        with pytest.raises(httpx.TransportError):
            asked.result(BOUND)
        mine.close()
    for _ in range(2):
        answer = fresh_server.client.post("/v1/chat/completions", json=body, headers=headers)
        refused(answer, 503, "attempts_exhausted")
    told = chat(fresh_server.client, "reply only alive", {"X-Hermes-Session-Id": "fatal"})
    assert told["choices"][0]["message"]["content"] == "alive"


def test_a_conversation_created_twice_with_one_key_is_one(client: httpx.Client) -> None:
    """Keys work on every POST: the second answer is the first."""
    key = {"Idempotency-Key": "created once"}
    body = {"metadata": {"topic": "cats"}, "items": [{"role": "user", "content": "hello"}]}
    first = ok(client.post("/v1/conversations", json=body, headers=key))
    again = client.post("/v1/conversations", json=body, headers=key)
    assert ok(again) == first
    assert again.headers["Idempotency-Replayed"] == "true"


def test_items_posted_twice_with_one_key_are_there_once(client: httpx.Client) -> None:
    """A retried append appends nothing."""
    conversation = ok(client.post("/v1/conversations"))["id"]
    body, key = {"items": [{"role": "user", "content": "hello"}]}, {"Idempotency-Key": "items once"}
    first = ok(client.post(f"/v1/conversations/{conversation}/items", json=body, headers=key))
    assert ok(client.post(f"/v1/conversations/{conversation}/items", json=body, headers=key)) == first
    assert said_in(client, conversation) == ["user: hello"]


def test_a_fork_asked_for_twice_with_one_key_is_one(client: httpx.Client) -> None:
    """Nor does a retried fork fork again."""
    origin, key = conversation_of(ask(client, "hello")), {"Idempotency-Key": "forked once"}
    first = ok(client.post(f"/v1/conversations/{origin}/fork", json={}, headers=key))
    assert ok(client.post(f"/v1/conversations/{origin}/fork", json={}, headers=key)) == first


@pytest.mark.parametrize("streamed", [False, True])
def test_the_retry_of_the_stock_sdk_does_not_double_a_turn(
    server: Server, client: httpx.Client, streamed: bool
) -> None:
    """It carries no key; it gives up waiting, sends the same again, and joins the turn that is alive."""
    name = f"sdk-retries-{streamed}"
    with server.sdk(timeout=0.4, max_retries=10) as sdk:
        if streamed:
            stream = sdk.responses.create(model="demo", input="sleep 1", conversation=name, stream=True)
            first = next(iter(stream))
            stream.close()
            assert first.type == "response.created"
            response_id = first.response.id
        else:
            response_id = sdk.responses.create(model="demo", input="sleep 1", conversation=name).id
    follow(client, response_id)
    assert len(said_in(client, name)) == 2


def test_the_retry_of_the_stock_sdk_asks_anew_for_what_failed(server: Server, client: httpx.Client) -> None:
    """A model that was down for a moment is no reason to answer the second try with the first one's failure."""
    for headers in ({}, {SESSION: "sdk-tries-again"}):
        text = f"fail 2 times, {len(headers)}"
        with server.sdk(max_retries=2, default_headers=headers) as sdk:
            answer = sdk.chat.completions.create(model="demo", messages=[{"role": "user", "content": text}])
        assert seen(answer.choices[0].message.content or "") == (1, text, text), "it was asked once, as far as is seen"
        assert len(get(client, "/v1/conversations", q=text)["data"]) == 1


def test_a_retry_joins_only_its_own_kind(client: httpx.Client, stranger: httpx.Client) -> None:
    """Another body, another principal and a request that is no retry are turns of their own."""
    retry = {"x-stainless-retry-count": "1"}
    first = ask(client, "one", conversation="retried")
    assert ask(client, "one", retry, conversation="retried") == first
    assert ask(client, "two", retry, conversation="retried")["id"] != first["id"]
    assert ask(stranger, "one", retry, conversation="retried")["id"] != first["id"]
    assert ask(client, "one", conversation="retried")["id"] != first["id"]


def test_a_retry_of_what_was_taken_back_is_said_anew(client: httpx.Client) -> None:
    """By undo, or with its whole conversation: nobody is answered with what is no longer there."""
    retry = {"x-stainless-retry-count": "1"}
    zero = ask(client, "zero", conversation="took-back")
    first = ask(client, "one", conversation="took-back")
    post(client, "/v1/conversations/took-back/rewind", to=zero["id"])
    again = ask(client, "one", retry, conversation="took-back")
    assert again["id"] != first["id"]
    assert seen(again) == (3, "zero", "one")
    ok(client.delete("/v1/conversations/took-back"))
    anew = ask(client, "one", retry, conversation="took-back")
    assert conversation_of(anew) != conversation_of(again)
    assert seen(anew) == (1, "one", "one")


# -- 7. without any name


def test_two_users_with_the_same_first_message_never_meet(client: httpx.Client, stranger: httpx.Client) -> None:
    """Nothing is derived from content."""
    mine = chat(client, "good morning")["legato"]["conversation"]
    theirs = chat(stranger, "good morning")["legato"]["conversation"]
    assert mine != theirs
    for who, own in ((client, mine), (stranger, theirs)):
        assert len(said_in(who, own)) == 2


def test_a_stateless_chat_is_kept_in_a_conversation(client: httpx.Client) -> None:
    """The body is the whole history, and the turn can be read later."""
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "an answer from elsewhere"},
        {"role": "user", "content": "two"},
    ]
    answer = ok(client.post("/v1/chat/completions", json={"messages": messages}))
    text = answer["choices"][0]["message"]["content"]
    assert seen(text) == (3, "one", "two")
    assert said_in(client, answer["legato"]["conversation"]) == [
        "user: one",
        "assistant: an answer from elsewhere",
        "user: two",
        f"assistant: {text}",
    ]


def _resend(client: httpx.Client, messages: list[Json], text: str) -> str:
    """Say something as a stateless client does: with everything that was said before. Returns the conversation."""
    messages.append({"role": "user", "content": text})
    answer = ok(client.post("/v1/chat/completions", json={"messages": messages}))
    message = answer["choices"][0]["message"]
    assert seen(message["content"])[2] == text
    messages.append({"role": "assistant", "content": message["content"]})
    conversation: str = answer["legato"]["conversation"]
    return conversation


def test_two_talks_that_began_alike_stay_two(client: httpx.Client) -> None:
    """Whichever goes on first is one of them, and the other is the other; none is lost to a third."""
    talks: list[list[Json]] = [[], []]
    began = {_resend(client, talk, "hello there") for talk in talks}
    assert len(began) == 2
    assert {_resend(client, talk, "and then?") for talk in talks} == began


def test_a_stateless_client_that_resends_its_history_stays_in_one_conversation(fresh_server: Server) -> None:
    """Recognised word for word, across kill -9; each thing that was said is there once."""
    messages: list[Json] = [{"role": "system", "content": "It is noon."}]
    ids = set()
    for n in range(5):
        if n == 3:
            fresh_server.restart()
        messages[0]["content"] = f"It is {n} o'clock."  # clients put the time of day there
        ids.add(_resend(fresh_server.client, messages, f"turn {n}"))
    assert len(ids) == 1
    [row] = conversations(fresh_server.client)
    assert said_in(fresh_server.client, row["id"]) == [f"{m['role']}: {m['content']}" for m in messages[1:]]


@pytest.mark.parametrize("role", ["system", "developer"])
def test_a_chat_that_is_all_instructions_is_answered_and_goes_on(
    steered_server: Server, upstream: Upstream, role: str
) -> None:
    """The last of them is what the model answers to; the client that goes on from there is recognised."""
    messages: list[Json] = [{"role": role, "content": "Be brief."}, {"role": role, "content": "Name a colour."}]
    ids = set()
    for answer in ("green", "blue"):
        talk = upstream.talk()
        talk.say(answer)
        talk.end()
        told = ok(steered_server.client.post("/v1/chat/completions", json={"messages": messages}))
        ids.add(told["legato"]["conversation"])
        message = told["choices"][0]["message"]
        assert message["content"] == answer
        messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": "Another."}]
    assert [m["content"] for m in upstream.received[0]["messages"]] == ["Be brief.", "Name a colour."]
    assert len(ids) == 1


@pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "plain"])
def test_a_stateless_client_is_recognised_by_all_that_it_heard(
    steered_server: Server, upstream: Upstream, streamed: bool
) -> None:
    """Where a tool ran in the middle of an answer, too: streamed and not, the assistant's message is the same."""
    messages: list[Json] = []
    ids = set()
    for n in range(3):
        looking, found = upstream.talk(), upstream.talk()
        looking.say("Let me look. ")
        looking.call("now", "{}")
        looking.end("tool_calls")
        found.say(f"Found {n}.")
        found.end()
        messages.append({"role": "user", "content": f"turn {n}"})
        heard, conversation = _heard(steered_server.client, messages, streamed)
        assert heard == f"Let me look. Found {n}."
        messages.append({"role": "assistant", "content": heard})
        ids.add(conversation)
    assert len(ids) == 1
    [row] = conversations(steered_server.client)
    assert [line for line in said_in(steered_server.client, row["id"]) if line.startswith("user")] == [
        f"user: turn {n}" for n in range(3)
    ]


def _heard(client: httpx.Client, messages: list[Json], streamed: bool) -> tuple[str, str]:
    """What a stateless client has of an answer, and the conversation."""
    body = {"messages": messages, "stream": streamed}
    if not streamed:
        answer = ok(client.post("/v1/chat/completions", json=body))
        return answer["choices"][0]["message"]["content"], answer["legato"]["conversation"]
    with client.stream("POST", "/v1/chat/completions", json=body) as stream:
        told = list(chunks(stream))
    pieces = [choice["delta"].get("content") or "" for chunk in told for choice in chunk["choices"]]
    return "".join(pieces), told[-1]["legato"]["conversation"]


@pytest.mark.parametrize("content", [None, "", " ", [], [{"type": "text", "text": ""}]], ids=repr)
def test_a_stateless_client_that_writes_its_calls_anew_stays_in_one_conversation(
    client: httpx.Client, content: Any
) -> None:
    """Clients read the arguments of a call and write them again as their own libraries do."""
    tools = [{"type": "function", "function": {"name": "look", "parameters": {}}}]
    messages: list[Json] = [
        {"role": "user", "content": f'call look {{"b":1,"a":"é","c":[1.50,{{}}], "d": "{content}"}}'}
    ]
    called = ok(client.post("/v1/chat/completions", json={"messages": messages, "tools": tools}))
    [call] = called["choices"][0]["message"]["tool_calls"]
    given = json.dumps(json.loads(call["function"]["arguments"]), sort_keys=True)
    assert given != call["function"]["arguments"]
    again = call | {"function": {"name": "look", "arguments": given}}
    messages.append({"role": "assistant", "content": content, "tool_calls": [again]})
    messages.append({"role": "tool", "tool_call_id": call["id"], "content": "seen"})
    ended = ok(client.post("/v1/chat/completions", json={"messages": messages, "tools": tools}))
    assert ended["legato"]["conversation"] == called["legato"]["conversation"]
    other = call | {"function": {"name": "look", "arguments": "{}"}}
    messages[1]["tool_calls"] = [other]
    elsewhere = ok(client.post("/v1/chat/completions", json={"messages": messages, "tools": tools}))
    assert elsewhere["legato"]["conversation"] != called["legato"]["conversation"]


def test_a_chat_in_which_the_assistant_has_the_last_word_goes_on_from_there(
    steered_server: Server, upstream: Upstream
) -> None:
    """As where several agents speak in turn; whoever goes on from the answer is in the same conversation."""
    messages: list[Json] = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "once upon"}]
    ids = set()
    for answer in (" a time", "there was"):
        talk = upstream.talk()
        talk.say(answer)
        talk.end()
        told = ok(steered_server.client.post("/v1/chat/completions", json={"messages": messages}))
        ids.add(told["legato"]["conversation"])
        messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": "go on"}]
    assert [m["content"] for m in upstream.received[0]["messages"]] == ["x", "once upon"]
    assert len(ids) == 1


def test_the_parts_of_a_message_do_not_run_into_one_another(steered_server: Server, upstream: Upstream) -> None:
    """A question and a file that stands beside it, say."""
    talk = upstream.talk()
    talk.say("seen")
    talk.end()
    parts = [{"type": "text", "text": "See this:"}, {"type": "text", "text": "# A file"}]
    ok(steered_server.client.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": parts}]}))
    assert [m["content"] for m in upstream.received[0]["messages"]] == ["See this:\n# A file"]


def test_two_stateless_users_with_the_same_history_never_meet(client: httpx.Client, stranger: httpx.Client) -> None:
    """Not even when one sends the whole history of the other."""
    mine: list[Json] = []
    own = {_resend(client, mine, "good evening"), _resend(client, mine, "how are you?")}
    assert len(own) == 1
    theirs = _resend(stranger, list(mine), "what did they say?")
    assert theirs not in own
    refused(client.get(f"/v1/conversations/{theirs}"), 404)


def test_a_stateless_history_that_was_changed_is_another_conversation(client: httpx.Client) -> None:
    """Nothing is guessed: an edited past is not the past that was kept."""
    messages: list[Json] = []
    first = _resend(client, messages, "my name is Ada")
    edited = [{**messages[0], "content": "my name is Eve"}, *messages[1:]]
    assert _resend(client, edited, "what is my name?") != first
    assert _resend(client, messages, "what is my name?") == first


def test_a_stateless_history_that_branches_forks(client: httpx.Client) -> None:
    """The second way on from one past is a conversation of its own that sees that past."""
    past: list[Json] = []
    first = _resend(client, past, "once upon a time")
    left, right = list(past), list(past)
    assert _resend(client, left, "a king") == first
    other = _resend(client, right, "a queen")
    assert other != first
    assert said_in(client, other) == [f"{m['role']}: {m['content']}" for m in right]
    assert _resend(client, right, "and her horse") == other


def _said(told: list[Json]) -> str:
    """The text of a chat stream."""
    deltas = [choice["delta"] for chunk in told for choice in chunk["choices"]]
    return "".join(delta.get("content") or "" for delta in deltas)
