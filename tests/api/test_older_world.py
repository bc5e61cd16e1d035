"""Runs and sessions, for clients of the Hermes API server: the same turns and conversations, in the older words."""

import json
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from urllib.parse import quote, urlsplit

import httpx
import pytest

from api.server import BOUND, Server
from api.wire import Json, ask, conversation_of, conversations, get, ok, raw_events, refused, said_in, seen

SESSION = "X-Hermes-Session-Id"
RACERS = 8


def run(client: httpx.Client, text: str, headers: dict[str, str | bytes] | None = None, **body: object) -> Json:
    """Start a run; returns what is told at once."""
    answer = client.post("/v1/runs", json={"input": text, **body}, headers=headers)  # type: ignore[arg-type]
    assert answer.status_code == 202, answer.text
    started: Json = answer.json()
    return started


def told(client: httpx.Client, method: str, path: str, **body: object) -> list[tuple[str | None, Json]]:
    """Every event of a stream, until it ends."""
    with client.stream(method, path, json=body or None) as answer:
        if answer.status_code != 200:
            answer.read()
        assert answer.status_code == 200, answer.text
        return [(name, json.loads(data)) for name, data in raw_events(answer)]


# -- session headers


def test_a_history_that_is_sent_again_under_a_session_header_is_not_said_again(client: httpx.Client) -> None:
    """On every route that takes the header: what follows the last thing that the assistant said or called is new."""
    call = {"type": "function_call", "call_id": "call_1", "name": "look", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "call_1", "output": "found"}
    for path in ("/v1/responses", "/v1/runs"):
        headers = {SESSION: f"resent {path}"}
        history: list[Json] = []
        for n, new in enumerate(
            ([{"role": "user", "content": "reply only one"}], [call, output], [{"role": "user", "content": "two"}])
        ):
            history += new
            answer = client.post(path, json={"input": history}, headers=headers)
            assert answer.status_code in (200, 202), answer.text
            conversation = answer.headers["X-Legato-Conversation"]
            turn = answer.json().get("run_id") or answer.json()["id"]
            told(client, "GET", f"/v1/runs/{turn}/events")
            text = get(client, f"/v1/runs/{turn}")["output"]
            history.append({"role": "assistant", "content": text})
            assert len(get(client, f"/v1/conversations/{conversation}/items")["data"]) == 2 * n + 2
        assert len(get(client, f"/v1/conversations/{conversation}/items")["data"]) == 6


def test_a_history_beside_the_input_begins_a_conversation(client: httpx.Client) -> None:
    """As on the Hermes server, on runs and on responses; in a session the log is the history."""
    history = [{"role": "user", "content": "earlier"}, {"role": "assistant", "content": "so it was"}]
    answer = ask(client, "now", conversation_history=history)
    assert seen(answer) == (3, "earlier", "now")
    first = run(client, "now", conversation_history=history)
    told(client, "GET", f"/v1/runs/{first['run_id']}/events")
    assert seen(get(client, f"/v1/runs/{first['run_id']}")["output"]) == (3, "earlier", "now")
    for n in (1, 3):
        again = run(client, f"number {n}", session_id="with a history", conversation_history=history)
        told(client, "GET", f"/v1/runs/{again['run_id']}/events")
        assert seen(get(client, f"/v1/runs/{again['run_id']}")["output"])[0] == n


def test_a_session_header_goes_with_a_previous_response_of_the_same_conversation(client: httpx.Client) -> None:
    """Clients that send theirs with every request are continued; of two conversations none is guessed."""
    headers = {SESSION: "both at once"}
    first = ask(client, "one", headers)
    second = ask(client, "two", headers, previous_response_id=first["id"])
    assert conversation_of(second) == conversation_of(first)
    assert seen(second) == (3, "one", "two")
    elsewhere = ask(client, "elsewhere")
    answer = client.post("/v1/responses", json={"input": "x", "previous_response_id": elsewhere["id"]}, headers=headers)
    refused(answer, 400, "mutually_exclusive_parameters", "previous_response_id")


def test_blanks_around_a_header_are_no_part_of_it(server: Server) -> None:
    """Proxies and hand-written clients leave some; HTTP says that they do not count."""
    address = urlsplit(server.url)
    places = set()
    for value in ("blank", "blank ", " blank\t "):
        body = b'{"input": "hello"}'
        head = (
            f"POST /v1/responses HTTP/1.1\r\nHost: {address.netloc}\r\nAuthorization: Bearer {server.key}\r\n"
            f"X-Hermes-Session-Id: {value}\r\nX-Legato-Busy: queue \r\nConnection: close\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        with socket.create_connection((address.hostname, address.port), 30) as wire:
            wire.sendall(head.encode() + body)
            answer = b"".join(iter(lambda: wire.recv(65536), b""))
        assert answer.startswith(b"HTTP/1.1 200"), answer
        assert b"x-hermes-session-id: blank\r\n" in answer.lower()
        places.add(conversation_of(json.loads(answer.partition(b"\r\n\r\n")[2])))
    assert len(places) == 1


def test_a_chat_is_told_what_to_send_back_to_go_on(client: httpx.Client) -> None:
    """A client of the Hermes server goes on by the session id that an answer carries, plain or streamed."""
    first = client.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "one"}]})
    session = first.headers[SESSION]
    assert session == first.headers["X-Legato-Conversation"]
    body = {"messages": [{"role": "user", "content": "two"}], "stream": True}
    with client.stream("POST", "/v1/chat/completions", json=body, headers={SESSION: session}) as second:
        second.read()
    assert second.headers[SESSION] == second.headers["X-Legato-Conversation"] == session
    assert [line.partition(": ")[0] for line in said_in(client, session)] == ["user", "assistant"] * 2


# -- runs


def test_a_run_is_started_watched_and_read(client: httpx.Client) -> None:
    """Its events end with the answer that it is read with later; as a response it is the same turn."""
    started = run(client, "call now {}", session_id="older-run")
    events = [event for _, event in told(client, "GET", f"/v1/runs/{started['run_id']}/events")]
    assert {event["run_id"] for event in events} == {started["run_id"]}
    kinds = [event["event"] for event in events]
    assert kinds[:2] == ["tool.started", "tool.completed"]
    assert kinds[-1] == "run.completed"
    assert "".join(event["delta"] for event in events if event["event"] == "message.delta") == events[-1]["output"]
    ended = get(client, f"/v1/runs/{started['run_id']}")
    assert (ended["status"], ended["output"]) == ("completed", events[-1]["output"])
    assert get(client, f"/v1/responses/{started['run_id']}")["status"] == "completed"


def test_runs_of_a_session_are_one_conversation(client: httpx.Client) -> None:
    """By the body or by the header; and a run continues a response."""
    first = run(client, "one", session_id="older-session")
    told(client, "GET", f"/v1/runs/{first['run_id']}/events")
    second = run(client, "two", {SESSION: "older-session"})
    told(client, "GET", f"/v1/runs/{second['run_id']}/events")
    third = run(client, "three", previous_response_id=second["run_id"])
    told(client, "GET", f"/v1/runs/{third['run_id']}/events")
    assert seen(get(client, f"/v1/runs/{third['run_id']}")["output"]) == (5, "one", "three")
    assert first["session_id"] == second["session_id"] == "older-session"


def test_a_session_in_any_script_is_told_as_it_was_sent(client: httpx.Client) -> None:
    """In the header and in the body."""
    name = "беседа 42"
    answer = client.post("/v1/runs", json={"input": "hello"}, headers={SESSION: name.encode()})
    assert answer.headers[SESSION] == name
    assert answer.json()["session_id"] == name


def test_a_run_brings_its_own_history(client: httpx.Client) -> None:
    """What came before is data that the client gives."""
    history = [{"role": "user", "content": "one"}, {"role": "assistant", "content": "uno"}]
    started = run(client, "two", conversation_history=history)
    told(client, "GET", f"/v1/runs/{started['run_id']}/events")
    assert seen(get(client, f"/v1/runs/{started['run_id']}")["output"]) == (3, "one", "two")


def test_a_run_is_stopped(client: httpx.Client) -> None:
    """Its events end, and it is read as cancelled."""
    started = run(client, "sleep 600")
    assert ok(client.post(f"/v1/runs/{started['run_id']}/stop"))["status"] in ("stopping", "cancelled")
    events = told(client, "GET", f"/v1/runs/{started['run_id']}/events")
    assert events[-1][1]["event"] == "run.cancelled"
    assert get(client, f"/v1/runs/{started['run_id']}")["status"] == "cancelled"


def test_a_failed_run_says_why(client: httpx.Client) -> None:
    """In its events and when it is read."""
    started = run(client, "fail 1 times")
    events = told(client, "GET", f"/v1/runs/{started['run_id']}/events")
    assert events[-1][1]["event"] == "run.failed"
    assert "asked to fail" in events[-1][1]["error"]
    assert "asked to fail" in get(client, f"/v1/runs/{started['run_id']}")["error"]


def test_a_run_with_the_same_key_is_one_run(client: httpx.Client) -> None:
    """As on every POST."""
    key = {"Idempotency-Key": "one run"}
    assert run(client, "hello", key)["run_id"] == run(client, "hello", key)["run_id"]  # type: ignore[arg-type]
    refused(client.post("/v1/runs", json={"input": "other"}, headers=key), 409, "idempotency_key_conflict")


def test_a_run_is_read_with_the_session_that_it_was_started_with(client: httpx.Client) -> None:
    """Named by the body, by the header, or by nobody; and the answer says which conversation it is in."""
    for headers, body, known_as in [
        (None, {"session_id": "older-read"}, "older-read"),
        ({SESSION: "older-read"}, {}, "older-read"),
        (None, {}, None),
    ]:
        started = run(client, "hello", headers, **body)  # type: ignore[arg-type]
        answer = client.get(f"/v1/runs/{started['run_id']}")
        conversation = answer.headers["X-Legato-Conversation"]
        assert ok(answer)["session_id"] == started["session_id"] == (known_as or conversation)
        assert get(client, f"/api/sessions/{started['session_id']}")["id"] == conversation


def test_a_run_says_when_it_last_moved_and_how(client: httpx.Client) -> None:
    """While it runs, when it was asked to stop, and after its end."""
    started = run(client, "sleep 600")
    path = f"/v1/runs/{started['run_id']}"
    running = get(client, path)
    assert running["last_event"] is None
    assert running["updated_at"] >= running["created_at"]
    stopped = client.post(f"{path}/stop")
    assert stopped.headers["X-Legato-Conversation"] == started["session_id"]
    told(client, "GET", f"{path}/events")
    ended = get(client, path)
    assert (ended["status"], ended["last_event"]) == ("cancelled", "run.cancelled")
    assert ended["updated_at"] >= running["updated_at"]


def test_a_run_goes_on_in_the_conversation_that_its_body_names(client: httpx.Client) -> None:
    """By its name or its id, as a response does."""
    first = run(client, "one", conversation="older-named")
    told(client, "GET", f"/v1/runs/{first['run_id']}/events")
    assert get(client, "/v1/conversations/older-named")["id"] == first["session_id"]
    second = run(client, "two", conversation={"id": first["session_id"]})
    told(client, "GET", f"/v1/runs/{second['run_id']}/events")
    assert seen(get(client, f"/v1/runs/{second['run_id']}")["output"]) == (3, "one", "two")


def test_an_unknown_run_is_refused_as_a_run(client: httpx.Client) -> None:
    """In the words of this route, on each of its paths."""
    for method, tail in [("GET", ""), ("GET", "/events"), ("POST", "/stop"), ("POST", "/approval")]:
        error = refused(client.request(method, f"/v1/runs/run_none{tail}"), 404, "run_not_found", "run_id")
        assert error["message"] == "Run with id 'run_none' not found."


# -- sessions


@pytest.mark.parametrize("path", ["/api/sessions", "/api/sessions/titled/fork", "/v1/commands"])
def test_a_request_that_gives_a_title_gives_it_once(client: httpx.Client, path: str) -> None:
    """What a person calls it since is not undone by a client that asks again."""
    talk = client.post("/api/sessions", json={"id": "titled"}).json()["id"]
    body: Json = {"text": "/title Birds", "conversation": talk} if "commands" in path else {"title": "Birds"}
    key = {"Idempotency-Key": "one title"}
    made = client.post(path, json=body, headers=key).json().get("id", talk)
    assert get(client, f"/api/sessions/{made}")["title"] == "Birds"
    ok(client.patch(f"/api/sessions/{made}", json={"title": "Mine"}))
    assert client.post(path, json=body, headers=key).headers["Idempotency-Replayed"] == "true"
    assert get(client, f"/api/sessions/{made}")["title"] == "Mine"


def test_a_session_is_made_titled_read_forked_and_deleted(client: httpx.Client) -> None:
    """Its id is the conversation's, and the client's own name for it works everywhere."""
    made = client.post("/api/sessions", json={"id": "older-1", "title": "Cats"})
    assert made.status_code == 201
    session = made.json()["session"]
    assert session["title"] == "Cats"
    retitled = ok(client.patch("/api/sessions/older-1", json={"title": "Dogs"}))
    assert (retitled["id"], retitled["title"]) == (session["id"], "Dogs")
    ok(client.post("/api/sessions/older-1/chat", json={"message": "one"}))
    forked = client.post("/api/sessions/older-1/fork", json={"title": "Birds"})
    assert forked.status_code == 201
    assert forked.json()["parent_session_id"] == session["id"]
    assert [message["role"] for message in get(client, f"/api/sessions/{forked.json()['id']}/messages")["data"]] == [
        "user",
        "assistant",
    ]
    ok(client.delete("/api/sessions/older-1"))
    refused(client.get("/api/sessions/older-1"), 404)
    refused(client.get(f"/v1/conversations/{session['id']}"), 404)


def test_a_fork_is_known_by_the_id_that_its_client_chose(client: httpx.Client) -> None:
    """A name that is taken forks nothing."""
    origin = client.post("/api/sessions", json={"id": "older-trunk"}).json()["id"]
    ok(client.post("/api/sessions/older-trunk/chat", json={"input": "one"}))
    forked = client.post("/api/sessions/older-trunk/fork", json={"id": "older-branch"})
    assert (forked.status_code, forked.json()["parent_session_id"]) == (201, origin)
    assert get(client, "/api/sessions/older-branch")["id"] == forked.json()["id"]
    before = conversations(client)
    taken = client.post("/api/sessions/older-branch/fork", json={"session_id": "older-trunk"})
    refused(taken, 409, "alias_taken")
    assert conversations(client) == before


def test_a_session_is_answered_by_its_model_under_its_prompt(client: httpx.Client) -> None:
    """On every route, until a request names another; its forks are answered alike."""
    made = client.post("/api/sessions", json={"id": "older-cast", "model": "demo", "system_prompt": "Be brief."}).json()
    assert (made["model"], made["has_system_prompt"]) == ("demo", True)
    responses = [ask(client, "one", conversation=made["id"]), ask(client, "two", {SESSION: "older-cast"})]
    fork = client.post("/api/sessions/older-cast/fork").json()["id"]
    responses += [ask(client, "three", conversation=fork), ask(client, "four", previous_response_id=responses[0]["id"])]
    assert {(response["model"], response["instructions"]) for response in responses} == {("demo", "Be brief.")}
    assert conversation_of(responses[-1]) not in (made["id"], fork)
    other = ask(client, "five", conversation=made["id"], model="default", instructions="Be verbose.")
    assert (other["model"], other["instructions"]) == ("default", "Be verbose.")
    sent = get(client, f"/v1/responses/{responses[0]['id']}/context")
    assert sent["instructions"] == "Be brief."


def test_a_session_that_is_registered_again_may_change_its_mind(client: httpx.Client) -> None:
    """What is not named stays; a model that nobody knows here is the default one, as everywhere."""
    client.post("/api/sessions", json={"id": "older-mind", "model": "demo", "system_prompt": "Be brief."})
    again = client.post("/api/sessions", json={"id": "older-mind", "system_prompt": "Be kind."}).json()
    response = ask(client, "one", {SESSION: "older-mind"})
    assert (again["model"], response["model"], response["instructions"]) == ("demo", "demo", "Be kind.")
    unknown = client.post("/api/sessions", json={"model": "gpt-4o"}).json()
    assert ask(client, "one", conversation=unknown["id"])["model"] == "default"
    assert (unknown["model"], unknown["has_system_prompt"]) == ("default", False)


def test_registering_a_session_twice_is_registering_it_once(client: httpx.Client) -> None:
    """And what was said in it stays."""
    first = client.post("/api/sessions", json={"id": "older-2"}).json()["id"]
    ok(client.post("/api/sessions/older-2/chat", json={"input": "one"}))
    again = client.post("/api/sessions", json={"id": "older-2"})
    assert (again.status_code, again.json()["id"]) == (201, first)
    assert len(said_in(client, first)) == 2


def test_a_session_that_several_clients_make_or_fork_at_once_is_one(pg_url: str, tmp_path: Path) -> None:
    """On PostgreSQL, where they really overlap: each is told of it, under one key or under none."""
    server = Server(tmp_path / "home", LEGATO_DATABASE_URL=pg_url)
    start = Barrier(RACERS)

    def send(path: str, name: str, headers: dict[str, str]) -> str:
        start.wait(BOUND)
        answer = server.client.post(path, json={"id": name}, headers=headers)
        assert answer.status_code == 201, answer.text
        session: str = answer.json()["id"]
        return session

    with ThreadPoolExecutor(RACERS) as pool:
        origin = server.client.post("/api/sessions").json()["id"]
        for n in range(5):
            once = {"Idempotency-Key": f"key-{n}"}
            for path, headers in (
                ("/api/sessions", {}), ("/api/sessions", once), (f"/api/sessions/{origin}/fork", once)
            ):  # fmt: skip
                sent = pool.map(send, [path] * RACERS, [f"{n} {path} {headers}"] * RACERS, [headers] * RACERS)
                assert len(set(sent)) == 1
    server.stop()


def test_a_session_chat_is_streamed(client: httpx.Client) -> None:
    """Started, told bit by bit, completed, done: numbered, timed, and all about one message."""
    client.post("/api/sessions", json={"id": "older-3"})
    events = told(client, "POST", "/api/sessions/older-3/chat/stream", input="reply only hello there")
    names = [name for name, _ in events]
    assert names[:2] == ["run.started", "message.started"]
    assert names[-3:] == ["assistant.completed", "run.completed", "done"]
    assert {*names[2:-3]} == {"assistant.delta"}
    assert "".join(event["delta"] for name, event in events if name == "assistant.delta") == "hello there"
    bodies = [event for _, event in events]
    assert [event["seq"] for event in bodies] == list(range(1, len(bodies) + 1))
    assert [event["ts"] for event in bodies] == sorted(event["ts"] for event in bodies)
    assert {(event["session_id"], event["run_id"]) for event in bodies} == {("older-3", bodies[0]["run_id"])}
    assert bodies[0]["user_message"] == {"role": "user", "content": "reply only hello there"}
    assert bodies[1]["message"] == {"id": bodies[2]["message_id"], "role": "assistant"}
    assert {event["message_id"] for event in bodies[2:-1]} == {bodies[1]["message"]["id"]}
    completed, ended = bodies[-3], bodies[-2]
    assert (completed["content"], completed["completed"], completed["interrupted"]) == ("hello there", True, False)
    assert (ended["completed"], ended["output"], ended["usage"]["total_tokens"] > 0) == (True, "hello there", True)
    assert ended["messages"] == get(client, "/api/sessions/older-3/messages")["data"][1:]


@pytest.mark.parametrize("tail", ["/chat", "/chat/stream"])
@pytest.mark.parametrize("session", ["my session", "seatalk/é"])
def test_a_session_chat_is_answered_under_the_id_in_its_path(client: httpx.Client, session: str, tail: str) -> None:
    """Also where none was sent in a header; what is sent back in one is the same session."""
    client.post("/api/sessions", json={"id": session})
    answer = client.post(f"/api/sessions/{quote(session, safe='')}{tail}", json={"message": "one"})
    assert answer.status_code == 200, answer.text
    assert answer.headers[SESSION] == session
    again = client.post("/v1/responses", json={"input": "two"}, headers={SESSION: session.encode()})
    assert again.headers["X-Legato-Conversation"] == answer.headers["X-Legato-Conversation"]


def test_a_session_chat_may_be_the_parts_of_one_message(client: httpx.Client) -> None:
    """In the words of Chat Completions or of Responses; what does not fit is named in the field that was sent."""
    session = conversation_of(ask(client, "begin"))
    chat, pixel = f"/api/sessions/{session}/chat", "data:image/png;base64,AAAA"
    ok(client.post(chat, json={"message": [
        {"type": "text", "text": "what is"}, {"type": "image_url", "image_url": {"url": pixel, "detail": "low"}},
    ]}))  # fmt: skip
    ok(client.post(chat, json={"input": [
        {"type": "input_text", "text": "and this?"}, {"type": "input_image", "image_url": pixel},
    ]}))  # fmt: skip
    ok(client.post(chat, json={"message": [{"role": "user", "content": "an item"}]}))
    items = get(client, f"/v1/conversations/{session}/items", order="asc")["data"][2::2]
    assert [[(part["type"], part.get("text") or part["detail"]) for part in item["content"]] for item in items] == [
        [("input_text", "what is"), ("input_image", "low")],
        [("input_text", "and this?"), ("input_image", "auto")],
        [("input_text", "an item")],
    ]
    for body, param in (
        ({"message": [{"type": "image_url", "image_url": pixel}]}, "message[0].image_url"),
        ({"message": [{"type": "text", "text": "x"}, {"type": "image_url"}]}, "message[1].image_url"),
        ({"input": [{"type": "text", "text": "x"}, {"type": "video"}]}, "input[1].type"),
        ({"message": [{"role": "nobody", "content": "x"}]}, "message[0].role"),
    ):
        refused(client.post(chat, json=body), 400, param=param)


def test_a_session_chat_tells_what_its_tools_do(client: httpx.Client) -> None:
    """With what they were called, before their results; and what they said, at the end."""
    client.post("/api/sessions", json={"id": "older-tools"})
    events = told(client, "POST", "/api/sessions/older-tools/chat/stream", input="call now {}")
    tools = [(name, event) for name, event in events if name is not None and name.startswith("tool.")]
    assert [(name, event["tool_name"]) for name, event in tools] == [("tool.started", "now"), ("tool.completed", "now")]
    assert (tools[0][1]["args"], tools[0][1]["preview"]) == ({}, "{}")
    assert (tools[0][1]["call_id"], tools[1][1]["error"]) == (tools[1][1]["call_id"], False)
    assert [line["role"] for line in events[-2][1]["messages"]] == ["assistant", "tool", "assistant"]


def test_a_session_chat_that_fails_or_is_stopped_says_so(client: httpx.Client) -> None:
    """And is done all the same."""
    client.post("/api/sessions", json={"id": "older-4"})
    failed = told(client, "POST", "/api/sessions/older-4/chat/stream", input="fail 1 times")
    assert [name for name, _ in failed] == ["run.started", "message.started", "error", "run.failed", "done"]
    assert "asked to fail" in failed[2][1]["message"]
    with client.stream("POST", "/api/sessions/older-4/chat/stream", json={"input": "sleep 600"}) as answer:
        events = ((name, json.loads(data)) for name, data in raw_events(answer))
        _, begun = next(events)
        ok(client.post(f"/v1/runs/{begun['run_id']}/stop"))
        rest = list(events)
    assert [name for name, _ in rest[-3:]] == ["assistant.completed", "run.cancelled", "done"]
    assert (rest[-3][1]["completed"], rest[-3][1]["interrupted"]) == (False, True)


def test_an_unknown_session_is_404_and_not_made(client: httpx.Client) -> None:
    """Resume never creates."""
    before = conversations(client)
    refused(client.post("/api/sessions/never-was/chat", json={"input": "one"}), 404, "session_not_found", "session_id")
    error = refused(client.get("/api/sessions/never-was"), 404, "session_not_found", "session_id")
    assert error["message"] == "Session with id 'never-was' not found."
    assert conversations(client) == before


@pytest.mark.parametrize("query", [{}, {"limit": 2}, {"limit": 2, "offset": 1}])
def test_sessions_are_the_conversations_newest_first(client: httpx.Client, query: dict[str, int]) -> None:
    """One row for each, page by page."""
    for n in range(3):
        ask(client, f"row {n}", {SESSION: f"rows {n}"})
    offset, limit = query.get("offset", 0), query.get("limit", 50)
    listed = [row["id"] for row in conversations(client)]
    page = get(client, "/api/sessions", **query)
    assert [row["id"] for row in page["data"]] == listed[offset : offset + limit]
    assert page["has_more"] == (len(listed) > offset + limit)


def test_sessions_are_listed_by_their_source(client: httpx.Client) -> None:
    """Which every row tells."""
    talk = conversation_of(ask(client, "hello", {SESSION: "older-source"}))
    made = {"chat": {talk}, "run": {run(client, "hello")["session_id"]}, "elsewhere": set()}
    for source, mine in made.items():
        rows = get(client, "/api/sessions", source=source)["data"]
        assert {row["source"] for row in rows} <= {source}
        assert {row["id"] for row in rows} & set.union(*made.values()) == mine


def test_a_session_says_what_it_holds_and_what_it_has_cost(client: httpx.Client) -> None:
    """As many messages as can be read of it, a fork's past and the tools included, a rewound one not."""
    client.post("/api/sessions", json={"id": "older-figures"})
    empty = get(client, "/api/sessions/older-figures")
    assert (empty["message_count"], empty["preview"], empty["input_tokens"]) == (0, "", 0)
    ok(client.post("/api/sessions/older-figures/chat", json={"input": "call now {}"}))
    again = ask(client, "two", {SESSION: "older-figures"})
    session = get(client, "/api/sessions/older-figures")["session"]
    assert (session["message_count"], session["preview"]) == (6, "call now {}")
    costs = get(client, f"/v1/conversations/{session['id']}/usage")
    assert (session["input_tokens"], session["output_tokens"]) == (costs["input_tokens"], costs["output_tokens"])
    assert session["input_tokens"] > again["usage"]["input_tokens"]
    forked = client.post("/api/sessions/older-figures/fork").json()
    assert (forked["message_count"], forked["preview"], forked["input_tokens"]) == (6, "call now {}", 0)
    ok(client.post(f"/v1/conversations/{session['id']}/rewind", json={"to": 0}))
    rewound = ok(client.patch("/api/sessions/older-figures", json={"title": "From the start"}))
    assert rewound["message_count"] == len(get(client, "/api/sessions/older-figures/messages")["data"]) == 0


def test_a_row_shows_how_its_session_began(client: httpx.Client) -> None:
    """In one line, as other lists do."""
    ask(client, "long ago\n" + "and far away " * 20, {SESSION: "older-preview"})
    row = get(client, "/api/sessions", limit=1)["data"][0]
    assert row["preview"] == conversations(client)[0]["preview"]
    assert row["preview"].startswith("long ago and far away")
    assert row["preview"].endswith("…")


def test_a_slug_a_session_and_an_id_name_one_conversation(client: httpx.Client) -> None:
    """Whatever a client calls it."""
    response = ask(client, "one", conversation="older-slug")
    assert get(client, "/api/sessions/older-slug")["id"] == conversation_of(response)
    assert get(client, f"/api/sessions/{conversation_of(response)}")["id"] == conversation_of(response)


def test_a_name_with_a_slash_is_one_name_in_a_path(client: httpx.Client) -> None:
    """Encoded, as it must be there: on every route of a session, and wherever else a path takes a name."""
    for name in ("team/room", "team/messages", "a%2Fb"):
        conversation = conversation_of(ask(client, "one", {SESSION: name}))
        path = f"/api/sessions/{quote(name, safe='')}"
        assert get(client, path)["id"] == conversation
        assert len(get(client, f"{path}/messages")["data"]) == 2
        ok(client.patch(path, json={"title": "Rooms"}))
        assert told(client, "POST", f"{path}/chat/stream", input="two")
        assert client.post(f"{path}/fork").json()["parent_session_id"] == conversation
        ok(client.delete(path))
        refused(client.get(path), 404, "session_not_found")
    refused(client.get("/v1/conversations/team%2froom"), 404, "conversation_not_found")
    refused(client.get("/v1/models/no%2fmodel"), 404, "model_not_found")
    refused(client.get("/v2/team%2froom"), 404, "not_found")
    refused(client.put("/v1/conversations/team%2froom"), 405, "method_not_allowed")


def test_messages_are_told_page_by_page(client: httpx.Client) -> None:
    """A client that asks until nothing more comes is done some time; without a limit all are told."""
    for text in ("one", "two", "three"):
        ask(client, text, {SESSION: "a book"})
    path = "/api/sessions/a book/messages"
    everything = get(client, path)["data"]
    assert [line["role"] for line in everything] == ["user", "assistant"] * 3
    found: list[Json] = []
    while page := get(client, path, limit=4, offset=len(found))["data"]:
        found += page
    assert found == everything
    last = get(client, path, limit=2, order="desc")
    assert (last["data"], last["has_more"]) == (everything[:-3:-1], True)
    assert get(client, path, limit=2, order="latest") == last
    assert get(client, path, order="oldest")["data"] == everything
    refused(client.get(path, params={"order": "newest"}), 400, "invalid_value", "order")
