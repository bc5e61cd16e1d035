"""`GET /v1/conversations/{id}/events`: all that happens in a conversation, from anywhere, without gap or repeat."""

import http.client
import json
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from urllib.parse import urlsplit

import httpx
import pytest

from api.server import BOUND, Server
from api.upstream import Upstream
from api.wire import Json, ask, conversation_of, get, ok, post, refused

Told = tuple[str, Json]


@contextmanager
def watching(client: httpx.Client, conversation: str, after: str | None = None) -> Iterator[Iterator[Told]]:
    """The events of a conversation as they come, each with its id."""
    headers = {"Last-Event-ID": after} if after is not None else {}
    with client.stream("GET", f"/v1/conversations/{conversation}/events", headers=headers) as answer:
        assert answer.status_code == 200
        assert answer.headers["X-Legato-Conversation"]
        yield _events(answer)


def _events(answer: httpx.Response) -> Iterator[Told]:
    fields: dict[str, str] = {}
    for line in answer.iter_lines():
        name, _, value = line.partition(":")
        if name:
            fields[name] = value.strip()
        elif not line and "data" in fields:
            event = json.loads(fields["data"])
            assert event["type"] == fields["event"]
            yield fields["id"], event
            fields = {}


def until_ended(told: Iterator[Told], turns: int = 1) -> list[Told]:
    """Everything up to the end of so many turns."""
    gathered: list[Told] = []
    for numbered in told:
        gathered.append(numbered)
        turns -= numbered[1]["type"] == "turn.ended"
        if not turns:
            return gathered
    raise AssertionError("the stream ended")


def test_a_second_device_sees_what_the_first_one_says(client: httpx.Client) -> None:
    """From now on: the input, the answer as it comes, and how it ended."""
    ask(client, "before", conversation="devices")
    with watching(client, "devices") as told:
        response = ask(client, "reply only hello there", conversation="devices")
        events = [event for _, event in until_ended(told)]
    assert [event["type"] for event in (events[0], events[-1])] == ["turn.admitted", "turn.ended"]
    assert {event["turn"] for event in events} == {response["id"]}
    assert events[0]["input"][0]["content"] == [{"type": "input_text", "text": "reply only hello there"}]
    inner = [event["event"] for event in events if event["type"] == "turn.event"]
    assert "".join(event["delta"] for event in inner if event["type"] == "response.output_text.delta") == "hello there"
    assert (events[-1]["status"], events[-1]["output"]) == ("done", response["output"])


def test_upkeep_is_told_too(client: httpx.Client) -> None:
    """Items that were added, by whomever."""
    conversation = conversation_of(ask(client, "hello"))
    with watching(client, conversation) as told:
        items = [{"role": "user", "content": "an aside"}]
        ok(client.post(f"/v1/conversations/{conversation}/items", json={"items": items}))
        events = [event for _, event in until_ended(told)]
    assert events[0]["kind"] == "upkeep"
    assert events[0]["input"][0]["content"] == [{"type": "input_text", "text": "an aside"}]


def test_a_new_title_is_told(client: httpx.Client) -> None:
    """Once, by whomever it was given; the place in the stream stays the same, so nothing is missed after it."""
    conversation = conversation_of(ask(client, "hello"))
    with watching(client, conversation) as told:
        for _ in range(2):
            ok(client.patch(f"/api/sessions/{conversation}", json={"title": "Cats"}))
        place, event = next(told)
        assert event == {"type": "conversation.renamed", "conversation": conversation, "title": "Cats"}
        post(client, "/v1/commands", text="/title Dogs", conversation=conversation)
        assert next(told) == (place, {**event, "title": "Dogs"})
        response = ask(client, "meanwhile", conversation=conversation)
        rest = until_ended(told)
    assert {event["turn"] for _, event in rest} == {response["id"]}
    with watching(client, conversation, place) as told:
        assert until_ended(told) == rest


def test_every_cursor_gives_the_rest_without_gap_or_repeat(fresh_server: Server) -> None:
    """From any event of any turn, also after kill -9."""
    client = fresh_server.client
    conversation = conversation_of(ask(client, "one"))
    for text in ("call now {}", "fail 1 times", "reply only three words here"):
        ask(client, text, conversation=conversation)
    with watching(client, conversation, "0.9007199254740992") as told:
        whole = until_ended(told, 4)
    assert len({place for place, _ in whole}) == len(whole)
    fresh_server.restart()
    for place, (cursor, _) in enumerate(whole[:-1]):
        rest = whole[place + 1 :]
        ends = sum(event["type"] == "turn.ended" for _, event in rest)
        with watching(fresh_server.client, conversation, cursor) as told:
            assert until_ended(told, ends) == rest


def test_a_watcher_that_is_cut_off_before_anything_happens_misses_nothing(client: httpx.Client) -> None:
    """The first thing it is told is where it begins."""
    conversation = conversation_of(ask(client, "before"))
    with client.stream("GET", f"/v1/conversations/{conversation}/events") as answer:
        begins = next(answer.iter_lines())
    response = ask(client, "meanwhile", conversation=conversation)
    with watching(client, conversation, begins.removeprefix("id: ")) as told:
        assert {event["turn"] for _, event in until_ended(told)} == {response["id"]}


@pytest.mark.parametrize(
    "path",
    [
        "/v1/conversations/{conversation}/events",
        "/v1/conversations/{conversation}/export",
        "/v1/conversations/{conversation}/items",
        "/v1/responses/{response}?stream=true",
        "/v1/runs/{response}/events",
        "/v1/models",
        "/healthz",
        "/docs",
    ],
)
def test_what_only_the_head_is_asked_of_ends_at_once(server: Server, path: str) -> None:
    """And the connection is good for the next request, also where the answer itself would have no end."""
    response = ask(server.client, "hello")
    path = path.format(conversation=conversation_of(response), response=response["id"])
    address = urlsplit(server.url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=BOUND)
    with closing(connection):
        connection.request("HEAD", path, headers={"Authorization": f"Bearer {server.key}"})
        head = connection.getresponse()
        assert (head.status, head.read()) == (200, b"")
        assert head.getheader("x-request-id")
        kept = connection.sock
        connection.request("GET", "/healthz")
        assert connection.getresponse().read() == b'{"status":"ok"}'
        assert connection.sock is kept is not None


def test_a_watcher_of_a_conversation_that_is_deleted_is_let_go(fresh_server: Server) -> None:
    """Its stream ends, and the process does not stumble."""
    client = fresh_server.client
    conversation = conversation_of(ask(client, "hello"))
    with watching(client, conversation) as told:
        ok(client.delete(f"/v1/conversations/{conversation}"))
        assert list(told) == []
    refused(client.get(f"/v1/conversations/{conversation}/events"), 404, "conversation_not_found")


def test_a_response_that_is_deleted_while_it_runs_is_stopped(fresh_server: Server) -> None:
    """It does not hold the conversation up: what waits behind it comes at once."""
    running = post(fresh_server.client, "/v1/responses", input="sleep 600", conversation="talk", background=True)
    ok(fresh_server.client.delete(f"/v1/responses/{running['id']}"))
    assert ask(fresh_server.client, "hello", conversation="talk")["status"] == "completed"


def test_a_follower_of_a_response_that_is_deleted_is_let_go(fresh_server: Server) -> None:
    """Its stream is ended, not torn, and the process does not stumble."""
    client = fresh_server.client
    response = ask(client, "sleep 1", background=True)["id"]
    with client.stream("GET", f"/v1/responses/{response}?stream=true") as answer:
        lines = answer.iter_lines()
        assert next(lines) == "event: response.created"
        ok(client.delete(f"/v1/responses/{response}"))
        for _ in lines:
            pass
    refused(client.get(f"/v1/responses/{response}?stream=true"), 404)


@pytest.mark.parametrize("path", ["/v1/responses/{response}?stream=true", "/v1/conversations/{conversation}/events"])
def test_a_follower_is_let_go_when_the_process_leaves(fresh_server: Server, path: str) -> None:
    """SIGTERM is no failure: the exit code is 0, the log is clean, and the follower is not told that it was the end."""
    client = fresh_server.client
    response = ask(client, "sleep 600", background=True)
    path = path.format(response=response["id"], conversation=conversation_of(response))
    with httpx.Client(base_url=fresh_server.url, headers=client.headers, timeout=60, trust_env=False) as follower:
        with follower.stream("GET", path) as answer:
            assert answer.status_code == 200
            fresh_server.stop()
            told = []
            with suppress(httpx.RemoteProtocolError):  # torn is as good as ended: both say that it was not the end
                told.extend(answer.iter_lines())
    assert not [line for line in told if "[DONE]" in line or "turn.ended" in line]
    fresh_server.start()
    ok(fresh_server.client.post(f"/v1/responses/{response['id']}/cancel"))


def test_the_items_of_a_turn_become_readable_together(steered_server: Server, upstream: Upstream) -> None:
    """While it runs, who follows it sees them and who lists them does not: both together have each of them once."""
    client, first, second = steered_server.client, upstream.talk(), upstream.talk()
    ask(client, "what time is it?", conversation="clock", background=True)
    first.call("now", "{}")
    first.end("tool_calls")
    assert second.asked.wait(BOUND)
    listed = get(client, "/v1/conversations/clock/items")["data"]
    messages = get(client, "/api/sessions/clock/messages")["data"]
    page = client.get("/v1/conversations/clock/export", params={"format": "markdown"}).text
    with watching(client, "clock") as told:
        _, admitted = next(told)
        second.say("noon")
        second.end()
        ended = next(event for _, event in told if event["type"] == "turn.ended")
    assert listed == messages == []
    assert "what time is it?" not in page.partition("\n")[2]
    asked = admitted["input"][0]["id"]
    items = get(client, "/v1/conversations/clock/items", order="asc")["data"]
    assert [item["id"] for item in items] == [asked, *(item["id"] for item in ended["output"])]
    assert [item["type"] for item in items] == ["message", "function_call", "function_call_output", "message"]
