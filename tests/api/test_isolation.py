"""Every route is authorised by owner: a matrix of all routes × {owner, stranger, nobody}.

A route of `api.http.ROUTES` without a row here fails. The owner's row must succeed, or the stranger's 404 would prove
nothing; the stranger is told nothing of what the owner has and changes nothing of it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import httpx
import pytest

from api.server import Server
from api.wire import Json, ask, chat, conversation_of, conversations, events, follow, get, ok, post, refused, said_in
from legato.api.http import ROUTES

CANARY = "the canary sings at noon"
_numbers = count()


@dataclass
class Things:
    """What the owner has."""

    conversation: str
    slug: str
    session: str
    response: str
    earlier: str
    item: str
    alias: str
    compaction: int
    deleted: str

    @property
    def secrets(self) -> list[str]:
        """What no stranger may ever be told."""
        return [self.conversation, self.response, self.earlier, self.item, self.deleted, CANARY]


@dataclass
class Row:
    """How a route is called on the owner's things, what the owner is told, and what a stranger who does the same is
    told: 404, or an answer that speaks of the stranger's own."""

    path: str
    body: Any = None
    stranger: int = 404
    params: dict[str, str] = field(default_factory=dict)
    owner: int = 200


def rows(things: Things) -> dict[tuple[str, str], list[Row]]:
    """Every route with every way to name what is not one's own."""
    at = f"/v1/conversations/{things.conversation}"
    by_slug = f"/v1/conversations/{things.slug}"
    response = f"/v1/responses/{things.response}"
    run = f"/v1/runs/{things.response}"
    said = {"role": "user", "content": "mine"}

    def by_any_name(tail: str = "", body: Any = None, owner: int = 200) -> list[Row]:
        names = (things.conversation, things.session, things.slug)
        return [Row(f"/api/sessions/{name}{tail}", body, owner=owner) for name in names]

    def both(tail: str = "", body: Any = None) -> list[Row]:
        return [Row(at + tail, body), Row(by_slug + tail, body)]

    return {
        ("POST", "/v1/responses"): [
            Row("/v1/responses", {"input": "hello", "conversation": things.conversation}),
            Row("/v1/responses", {"input": "hello", "conversation": {"id": things.conversation}}),
            Row("/v1/responses", {"input": "hello", "previous_response_id": things.response}),
            Row("/v1/responses", {"input": "hello", "previous_response_id": things.earlier}),
            Row("/v1/responses", {"input": "hello", "conversation": things.slug}, stranger=200),
            Row("/v1/responses", {"input": "hello"}, stranger=200),
        ],
        ("GET", "/v1/responses/{id}"): [
            Row(response),
            Row(response, params={"stream": "true"}),
            Row(response, params={"stream": "true", "starting_after": "1"}),
        ],
        ("DELETE", "/v1/responses/{id}"): [Row(response)],
        ("POST", "/v1/responses/{id}/cancel"): [Row(response + "/cancel")],
        ("GET", "/v1/responses/{id}/input_items"): [Row(response + "/input_items")],
        ("GET", "/v1/responses/{id}/context"): [Row(response + "/context")],
        ("POST", "/v1/responses/compact"): [
            Row("/v1/responses/compact", {"previous_response_id": things.response}),
            Row("/v1/responses/compact", {"input": [said, said]}, stranger=200),
        ],
        ("POST", "/v1/responses/input_tokens"): [
            Row("/v1/responses/input_tokens", {"previous_response_id": things.response}),
            Row("/v1/responses/input_tokens", {"conversation": things.conversation}),
            Row("/v1/responses/input_tokens", {"input": "hello"}, stranger=200),
        ],
        ("POST", "/v1/conversations"): [Row("/v1/conversations", {"items": [said]}, stranger=200)],
        ("GET", "/v1/conversations"): [
            Row("/v1/conversations", stranger=200),
            Row("/v1/conversations", params={"after": things.conversation}),
        ],
        ("GET", "/v1/conversations/{id}"): both(),
        ("POST", "/v1/conversations/{id}"): both(body={"metadata": {"owned": "yes"}}),
        ("DELETE", "/v1/conversations/{id}"): both()[:1],
        ("POST", "/v1/conversations/{id}/items"): both("/items", {"items": [said]}),
        ("GET", "/v1/conversations/{id}/items"): both("/items"),
        ("GET", "/v1/conversations/{id}/items/{item_id}"): both(f"/items/{things.item}"),
        ("DELETE", "/v1/conversations/{id}/items/{item_id}"): both(f"/items/{things.item}")[:1],
        ("GET", "/v1/conversations/{id}/events"): both("/events"),
        ("GET", "/v1/conversations/{id}/usage"): both("/usage"),
        ("POST", "/v1/conversations/{id}/fork"): both("/fork", {}),
        ("POST", "/v1/conversations/{id}/rewind"): both("/rewind", {"to": 1}),
        ("POST", "/v1/conversations/{id}/compact"): both("/compact", {"upto": 1, "summary": "short"}),
        ("POST", "/v1/conversations/{id}/expand"): both("/expand", {"of": things.compaction}),
        ("PUT", "/v1/conversations/{id}/aliases/{name}"): both(f"/aliases/{things.alias}-too"),
        ("DELETE", "/v1/conversations/{id}/aliases/{name}"): [Row(f"{at}/aliases/{things.alias}")],
        ("GET", "/v1/conversations/{id}/export"): both("/export"),
        ("GET", "/v1/export"): [Row("/v1/export", stranger=200)],
        ("POST", "/v1/import"): [Row("/v1/import", {"no": "line"}, stranger=200)],
        ("GET", "/v1/trash"): [Row("/v1/trash", stranger=200)],
        ("POST", "/v1/trash/{id}/restore"): [Row(f"/v1/trash/{things.deleted}/restore")],
        ("DELETE", "/v1/trash/{id}"): [Row(f"/v1/trash/{things.deleted}")],
        ("POST", "/v1/scrub"): [Row("/v1/scrub", stranger=403)],
        ("POST", "/v1/chat/completions"): [Row("/v1/chat/completions", {"messages": [said]}, stranger=200)],
        ("POST", "/v1/runs"): [
            Row("/v1/runs", {"input": "hello", "session_id": things.conversation}, owner=202),
            Row("/v1/runs", {"input": "hello", "previous_response_id": things.response}, owner=202),
            Row("/v1/runs", {"input": "hello", "session_id": things.session}, stranger=202, owner=202),
            Row("/v1/runs", {"input": "hello"}, stranger=202, owner=202),
        ],
        ("GET", "/v1/runs/{id}"): [Row(run)],
        ("GET", "/v1/runs/{id}/events"): [Row(run + "/events")],
        ("POST", "/v1/runs/{id}/stop"): [Row(run + "/stop")],
        ("POST", "/v1/runs/{id}/approval"): [Row(run + "/approval", {"approved": True}, owner=409)],
        ("GET", "/api/sessions"): [Row("/api/sessions", stranger=200)],
        ("POST", "/api/sessions"): [
            Row("/api/sessions", {"id": things.session}, stranger=201, owner=201),
            Row("/api/sessions", {}, stranger=201, owner=201),
        ],
        ("GET", "/api/sessions/{id}"): by_any_name(),
        ("PATCH", "/api/sessions/{id}"): by_any_name(body={"title": "mine now"}),
        ("DELETE", "/api/sessions/{id}"): by_any_name()[:1],
        ("GET", "/api/sessions/{id}/messages"): by_any_name("/messages"),
        ("POST", "/api/sessions/{id}/fork"): by_any_name("/fork", {}, 201),
        ("POST", "/api/sessions/{id}/chat"): by_any_name("/chat", {"input": "hello"}),
        ("POST", "/api/sessions/{id}/chat/stream"): by_any_name("/chat/stream", {"input": "hello"}),
        ("GET", "/v1/search"): [Row("/v1/search", params={"q": "canary sings"}, stranger=200)],
        ("GET", "/v1/resolve"): [Row("/v1/resolve", params={"what": things.conversation}, stranger=200)],
        ("GET", "/v1/commands"): [Row("/v1/commands", stranger=200)],
        ("POST", "/v1/commands"): [
            Row("/v1/commands", {"text": "/fork", "conversation": things.conversation}),
            Row("/v1/commands", {"text": f"/resume {things.conversation}"}),
            Row("/v1/commands", {"text": "/list"}, stranger=200),
        ],
        ("POST", "/v1/keys"): [Row("/v1/keys", {"name": "another", "principal": "another"}, stranger=403)],
        ("GET", "/v1/keys"): [Row("/v1/keys", stranger=403)],
        ("DELETE", "/v1/keys/{name}"): [Row(f"/v1/keys/{things.alias}", stranger=403)],
        ("POST", "/v1/pairings"): [Row("/v1/pairings", {"code": "ABCDEFGH"}, stranger=403, owner=404)],
        ("GET", "/v1/pairings"): [Row("/v1/pairings", stranger=403)],
        ("DELETE", "/v1/pairings/{channel}/{sender}"): [Row("/v1/pairings/telegram/1", stranger=403, owner=404)],
        ("GET", "/v1/chats"): [Row("/v1/chats", stranger=200)],
        ("PUT", "/v1/chats/{account}/{chat}"): [Row("/v1/chats/own/1", {"conversation": things.alias}, owner=404)],
        ("GET", "/v1/deliveries"): [Row("/v1/deliveries", stranger=200)],
        ("POST", "/v1/deliveries/{id}/resend"): [Row("/v1/deliveries/1/resend", owner=404)],
        ("POST", "/v1/backup"): [Row("/v1/backup", stranger=403)],
        ("POST", "/v1/verify"): [Row("/v1/verify", stranger=403)],
        ("GET", "/v1/stats"): [Row("/v1/stats", stranger=200)],
        ("GET", "/v1/doctor"): [Row("/v1/doctor", stranger=403)],
        ("POST", "/v1/search/rebuild"): [Row("/v1/search/rebuild", stranger=403)],
        ("GET", "/v1/models"): [Row("/v1/models", stranger=200)],
        ("GET", "/v1/models/{id:path}"): [Row("/v1/models/demo", stranger=200)],
    }


KNOWN = [(method, path) for method, path, _ in ROUTES]


@pytest.fixture(params=KNOWN, ids=lambda route: " ".join(route))
def route(request: pytest.FixtureRequest) -> tuple[str, str]:
    """Each route that needs a key."""
    method, path = request.param
    return method, path


@pytest.fixture
def things(client: httpx.Client) -> Things:
    """A conversation of the owner with everything that a route can name."""
    n = next(_numbers)
    slug, alias = f"owned-{n}", f"alias-{n}"
    earlier = ask(client, CANARY, conversation=slug)
    response = ask(client, CANARY, conversation=slug)
    conversation = conversation_of(response)
    ok(client.put(f"/v1/conversations/{conversation}/aliases/{alias}"))
    items = get(client, f"/v1/conversations/{conversation}/items", order="asc")["data"]
    post(client, f"/v1/conversations/{conversation}/compact", upto=2, summary="so far")
    lines = client.get(f"/v1/conversations/{conversation}/export").text.splitlines()
    compaction = sum('"type":"entry"' in line for line in lines)  # it stands at the head
    ask(client, CANARY, {"X-Hermes-Session-Id": f"session-{n}"})
    post(client, "/v1/keys", name=alias)
    deleted = conversation_of(ask(client, CANARY))
    ok(client.delete(f"/v1/conversations/{deleted}"))
    return Things(
        conversation, slug, f"session-{n}", response["id"], earlier["id"], items[0]["id"], alias, compaction, deleted
    )


def send(client: httpx.Client, method: str, row: Row, headers: dict[str, str] | None = None) -> httpx.Response:
    """Send it; a stream that is granted, which may have no end, is not read."""
    with client.stream(method, row.path, json=row.body, params=row.params, headers=headers) as answer:
        endless = answer.status_code == 200 and row.path.endswith("/events")
        if not endless:
            answer.read()
        return answer


def state(client: httpx.Client, things: Things) -> tuple[Json, list[str], str, list[str], list[Json]]:
    """Everything that the owner can see of the conversation."""
    at = f"/v1/conversations/{things.conversation}"
    return (
        get(client, at),
        said_in(client, things.slug),
        client.get(f"{at}/export").text,
        [conversation["id"] for conversation in conversations(client)],
        follow(client, things.response),
    )


def test_every_route_has_a_row(things: Things) -> None:
    """A route that is new must say here what a stranger is told."""
    assert set(rows(things)) == set(KNOWN)


def test_the_owner_is_served(route: tuple[str, str], client: httpx.Client, things: Things) -> None:
    """The rows are right: with the owner's key each of them works."""
    for row in rows(things)[route]:
        answer = send(client, route[0], row)
        assert answer.status_code == row.owner, (row, answer)
        if "{id}" in route[1] and route[1].startswith(
            ("/v1/conversations", "/v1/responses", "/v1/runs", "/api/sessions")
        ):
            assert answer.headers["X-Legato-Conversation"].startswith("conv_"), row


def test_a_stranger_is_told_nothing_and_changes_nothing(
    route: tuple[str, str], client: httpx.Client, stranger: httpx.Client, things: Things
) -> None:
    """What belongs to another is as unknown as what never was, by its id, its slug, its response and its item."""
    before = state(client, things)
    for row in rows(things)[route]:
        answer = send(stranger, route[0], row)
        if row.stranger == 404:
            refused(answer, 404)
            text = answer.text
            for named in (row.path, *row.params.values(), str(row.body)):  # one may be told what one has said
                for secret in things.secrets:
                    text = text.replace(secret, "") if secret in named else text
        else:
            assert answer.status_code == row.stranger, (row, answer.text)
            text = answer.text
        told = text + str(answer.headers)
        assert [secret for secret in things.secrets if secret in told] == [], row
    assert state(client, things) == before


def test_a_foreign_id_reads_the_same_as_an_unknown_one(
    route: tuple[str, str], stranger: httpx.Client, things: Things
) -> None:
    """The refusal does not tell whether the thing exists."""
    for row in rows(things)[route]:
        if row.stranger != 404:
            continue
        unknown = Things(
            "conv_" + "0" * 32,
            "unknown-slug",
            "unknown-session",
            "resp_" + "0" * 32,
            "resp_" + "0" * 32,
            "msg_" + "0" * 32,
            "unheard-of",
            1,
            "conv_" + "1" * 32,
        )
        place = rows(things)[route].index(row)
        twin = rows(unknown)[route][place]
        foreign, missing = send(stranger, route[0], row), send(stranger, route[0], twin)
        assert (foreign.status_code, _plain(foreign, things)) == (missing.status_code, _plain(missing, unknown))


def _plain(answer: httpx.Response, things: Things) -> str:
    """The text of an answer without the names that were asked for."""
    text = answer.text
    names = (
        things.conversation,
        things.deleted,
        things.slug,
        things.session,
        things.response,
        things.earlier,
        things.item,
        things.alias,
    )
    for name in names:
        text = text.replace(name, "…")
    return text


def test_nobody_is_served_without_a_key(route: tuple[str, str], client: httpx.Client, things: Things) -> None:
    """On loopback too: no key, another scheme, an unknown key."""
    before = state(client, things)
    wrong = ["", "Bearer", "Bearer wrong", f"Basic {client.headers['Authorization'][7:]}"]
    for row in rows(things)[route]:
        for header in wrong:
            error = refused(send(client, route[0], row, {"Authorization": header}), 401, "invalid_api_key")
            assert not any(secret in str(error) for secret in things.secrets)
    assert state(client, things) == before


def test_operations_need_no_key_and_tell_nothing(server: Server, things: Things) -> None:
    """Health, readiness, counters and the description of the API are open, and hold nothing of anyone."""
    for path in ("/healthz", "/health", "/readyz", "/metrics", "/openapi.json", "/docs"):
        answer = httpx.get(server.url + path, trust_env=False)
        assert answer.status_code == 200
        assert answer.headers["x-request-id"]
        assert not any(secret in answer.text for secret in things.secrets)


# -- names that both principals use


def test_one_slug_of_two_principals_is_two_conversations(client: httpx.Client, stranger: httpx.Client) -> None:
    """A name is scoped to its owner."""
    mine = ask(client, CANARY, conversation="shared-name")
    theirs = ask(stranger, "hello", conversation="shared-name")
    assert conversation_of(mine) != conversation_of(theirs)
    assert CANARY in said_in(client, "shared-name")[0]
    assert said_in(stranger, "shared-name")[0] == "user: hello"


@pytest.mark.parametrize("header", ["X-Hermes-Session-Id", "X-Legato-Conversation"])
def test_one_session_header_of_two_principals_is_two_conversations(
    client: httpx.Client, stranger: httpx.Client, header: str
) -> None:
    """On both routes that take it; a conversation id in it is 404 for whom it does not belong to."""
    named = {header: f"shared {header}"}
    mine = ask(client, CANARY, named)
    theirs = ask(stranger, "hello", named)
    chatted = chat(stranger, "hello", named)
    assert conversation_of(mine) != conversation_of(theirs) == chatted["legato"]["conversation"]
    assert not any(CANARY in line for line in said_in(stranger, conversation_of(theirs)))

    foreign = {header: conversation_of(mine)}
    refused(stranger.post("/v1/responses", json={"input": "x"}, headers=foreign), 404, "conversation_not_found")
    body = {"messages": [{"role": "user", "content": "x"}]}
    refused(stranger.post("/v1/chat/completions", json=body, headers=foreign), 404, "conversation_not_found")


def test_an_alias_of_one_principal_cannot_be_taken_by_another(client: httpx.Client, stranger: httpx.Client) -> None:
    """Each has names of its own."""
    mine = conversation_of(ask(client, CANARY))
    theirs = conversation_of(ask(stranger, "hello"))
    ok(client.put(f"/v1/conversations/{mine}/aliases/wanted"))
    ok(stranger.put(f"/v1/conversations/{theirs}/aliases/wanted"))
    assert get(client, "/v1/conversations/wanted")["id"] == mine
    assert get(stranger, "/v1/conversations/wanted")["id"] == theirs


@pytest.fixture
def running(client: httpx.Client) -> Iterator[str]:
    """A response of the owner that runs until it is cancelled."""
    response: str = ask(client, "sleep 600", background=True)["id"]
    yield response
    ok(client.post(f"/v1/responses/{response}/cancel"))


def test_a_stranger_cannot_stop_or_watch_a_running_response(
    client: httpx.Client, stranger: httpx.Client, running: str
) -> None:
    """Knowing its id grants nothing."""
    refused(stranger.post(f"/v1/responses/{running}/cancel"), 404)
    refused(stranger.get(f"/v1/responses/{running}", params={"stream": "true"}), 404)
    refused(stranger.get(f"/v1/responses/{running}"), 404)
    assert get(client, f"/v1/responses/{running}")["status"] == "in_progress"
    with client.stream("GET", f"/v1/responses/{running}", params={"stream": "true"}) as answer:
        assert next(events(answer))["response"]["id"] == running
