"""Conversations over the wire: items that are deleted, lists that are searched, and keys on requests without a turn."""

import time
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any, Literal

import httpx
import openai
import pytest
from openai.types.responses import ResponseInputItemParam

from api.server import BOUND, Server
from api.wire import ask, conversation_of, conversations, get, ok, post, refused, said_in, seen


def test_a_deleted_item_is_seen_by_nobody_and_stays_so_after_kill_9(fresh_server: Server) -> None:
    """Neither by people nor by the model; its neighbours stay, and the answer is the conversation."""
    ask(fresh_server.client, "my secret is 42", conversation="talk")
    ask(fresh_server.client, "reply only ok", conversation="talk")
    newest_first = get(fresh_server.client, "/v1/conversations/talk/items")["data"]
    secret = newest_first[-1]

    with fresh_server.sdk() as sdk:
        talk = sdk.conversations.items.delete(secret["id"], conversation_id="talk")
    assert talk.id == get(fresh_server.client, "/v1/conversations/talk")["id"]
    fresh_server.restart()

    assert get(fresh_server.client, "/v1/conversations/talk/items")["data"] == newest_first[:-1]
    refused(fresh_server.client.get(f"/v1/conversations/talk/items/{secret['id']}"), 404, "item_not_found", "item_id")
    assert seen(ask(fresh_server.client, "what do you know?", conversation="talk"))[1] == "reply only ok"


def test_a_response_that_several_delete_at_once_is_deleted_once(client: httpx.Client) -> None:
    """The others are told that there is no such response, in the words of this route."""
    racers = 8
    start = Barrier(racers)

    def delete(response: str) -> int:
        start.wait(BOUND)
        answer = client.delete(f"/v1/responses/{response}")
        if answer.status_code != 200:
            refused(answer, 404, "response_not_found", "response_id")
        return answer.status_code

    with ThreadPoolExecutor(racers) as pool:
        for n in range(20):
            response = ask(client, "sleep 600" if n % 2 else "hello", background=bool(n % 2))
            assert sorted(pool.map(delete, [response["id"]] * racers)) == [200, *[404] * (racers - 1)]


def test_a_deleted_item_heads_no_list_and_no_page(fresh_server: Server) -> None:
    """The preview is the first thing that is still seen."""
    talk = conversation_of(ask(fresh_server.client, "reply only fine"))
    first = get(fresh_server.client, f"/v1/conversations/{talk}/items", order="asc")["data"][0]
    ok(fresh_server.client.delete(f"/v1/conversations/{talk}/items/{first['id']}"))
    assert [row["preview"] for row in get(fresh_server.client, "/v1/conversations")["data"]] == ["fine"]
    for form in ("markdown", "html"):
        assert "reply only" not in fresh_server.client.get(f"/v1/conversations/{talk}/export?format={form}").text


@pytest.mark.parametrize("order", ["asc", "desc"])
def test_items_are_deleted_while_they_are_listed(server: Server, order: Literal["asc", "desc"]) -> None:
    """An item that was deleted since still says where the next page begins."""
    given: list[ResponseInputItemParam] = [{"role": "user", "content": str(n)} for n in range(7)]
    with server.sdk() as sdk:
        talk = sdk.conversations.create(items=given)
        for item in sdk.conversations.items.list(talk.id, limit=2, order=order):
            assert item.id is not None
            sdk.conversations.items.delete(item.id, conversation_id=talk.id)
        assert list(sdk.conversations.items.list(talk.id)) == []
        other = sdk.conversations.create(items=given[:1])
        [elsewhere] = sdk.conversations.items.list(other.id)
        with pytest.raises(openai.BadRequestError):  # an item of another conversation has no place here
            sdk.conversations.items.list(talk.id, after=elsewhere.id or "")


def test_conversations_are_deleted_while_they_are_listed(fresh_server: Server) -> None:
    """The same for a list of conversations; what is another's, or was purged, has no place."""
    client = fresh_server.client
    for n in range(5):
        ask(client, f"reply only {n}")
    foreign = conversation_of(ask(fresh_server.stranger, "hello"))
    after: dict[str, str] = {}
    while page := get(client, "/v1/conversations", limit=2, **after)["data"]:
        for row in page:
            ok(client.delete(f"/v1/conversations/{row['id']}"))
        after = {"after": page[-1]["id"]}
    assert conversations(client) == []
    ok(client.delete(f"/v1/trash/{after['after']}"))
    for gone in (foreign, after["after"]):
        refused(client.get("/v1/conversations", params={"after": gone}), 404, "conversation_not_found", "after")


def test_the_trash_is_told_page_by_page(fresh_server: Server) -> None:
    """What is another's, lives, or was purged has no place in it."""
    client = fresh_server.client
    made = [conversation_of(ask(client, f"reply only {n}")) for n in range(5)]
    for conversation in made:
        ok(client.delete(f"/v1/conversations/{conversation}"))
    foreign, living = conversation_of(ask(fresh_server.stranger, "hello")), conversation_of(ask(client, "hello"))
    ok(fresh_server.stranger.delete(f"/v1/conversations/{foreign}"))
    told: list[str] = []
    times: list[int] = []
    more = True
    while more:
        page = get(client, "/v1/trash", limit=2, **({"after": told[-1]} if told else {}))
        assert (page["first_id"], page["last_id"]) == (page["data"][0]["id"], page["data"][-1]["id"])
        told += [row["id"] for row in page["data"]]
        times += [row["deleted_at"] for row in page["data"]]
        more = page["has_more"]
    assert sorted(told) == sorted(made)
    assert times == sorted(times, reverse=True)  # some were deleted in one tick of the clock
    ok(client.delete(f"/v1/trash/{made[0]}"))
    for elsewhere in (foreign, living, made[0], "a-name"):
        refused(client.get("/v1/trash", params={"after": elsewhere}), 404, "conversation_not_found", "after")


def test_an_item_is_deleted_once(client: httpx.Client, stranger: httpx.Client) -> None:
    """Deleting what is not there, or another's, is 404."""
    conversation = conversation_of(ask(client, "hello"))
    item = get(client, f"/v1/conversations/{conversation}/items")["data"][0]["id"]
    path = f"/v1/conversations/{conversation}/items/{item}"
    refused(stranger.delete(path), 404)
    ok(client.delete(path))
    refused(client.delete(path), 404, "item_not_found")
    refused(client.delete(f"/v1/conversations/{conversation}/items/msg_none"), 404, "item_not_found")


def test_a_call_without_its_result_is_no_trouble_for_the_model(client: httpx.Client) -> None:
    """Half of a pair may be deleted; the next turn runs."""
    items = [
        {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "nothing"},
    ]
    conversation = post(client, "/v1/conversations", items=items)["id"]
    call = get(client, f"/v1/conversations/{conversation}/items")["data"][-1]
    ok(client.delete(f"/v1/conversations/{conversation}/items/{call['id']}"))
    assert ask(client, "hello", conversation=conversation)["status"] == "completed"


def found(client: httpx.Client, **query: Any) -> list[str]:
    return [row["id"] for row in get(client, "/v1/conversations", **query)["data"]]


def test_the_list_finds_what_was_said_and_what_it_is_called(fresh_server: Server) -> None:
    """By any part of a text, a slug or a title, in any script, newest first and page by page."""
    client = fresh_server.client
    tokyo = conversation_of(ask(client, "reply only 東京都の天気は晴れ", conversation="weather.japan"))
    paris = conversation_of(ask(client, "reply only Ferme la fenêtre", conversation="weather.paris"))
    ok(client.patch(f"/api/sessions/{paris}", json={"title": "Winter plans"}))
    with fresh_server.sdk() as sdk, pytest.raises(openai.NotFoundError):
        sdk.conversations.retrieve("nothing")

    deadline = time.monotonic() + BOUND
    while not (found(client, q="京都の") and found(client, q="fenêtre")):  # the index is filled behind the turns
        assert time.monotonic() < deadline
    assert found(client, q="京都の") == [tokyo]
    assert found(client, q="FENÊTRE") == [paris]
    assert found(client, q="ther.jap") == [tokyo]
    assert found(client, q="winter") == [paris]
    assert found(client, q="weather") == [paris, tokyo]
    assert found(client, q="weather", limit=1) == [paris]
    assert found(client, q="weather", after=paris) == [tokyo]
    assert found(client, q="weather", kind="chat") == found(client, kind="chat") == [paris, tokyo]
    assert found(client, kind="cron") == found(client, q="no such thing") == []
    assert [row["id"] for row in conversations(fresh_server.stranger)] == []
    assert found(fresh_server.stranger, q="weather") == []
    refused(client.get("/v1/conversations", params={"q": ""}), 400, param="q")
    refused(client.get("/v1/conversations", params={"q": "a\0b"}), 400, param="q")


def requests_without_a_turn(client: httpx.Client, talk: str) -> list[tuple[str, dict[str, Any], dict[str, Any]]]:
    """A path, a body, and another body, for every POST that changes something and runs nothing."""
    last = get(client, f"/v1/conversations/{talk}/items")["data"][0]["id"]
    path = f"/v1/conversations/{talk}"
    item = {"role": "user", "content": "posted"}
    return [
        ("/v1/conversations", {"items": [item]}, {}),
        (path, {"metadata": {"a": "b"}}, {"metadata": {}}),
        (f"{path}/items", {"items": [item]}, {"items": [item, item]}),
        (f"{path}/fork", {}, {"at": 1}),
        (f"{path}/compact", {"summary": "short", "upto": last}, {"summary": "shorter", "upto": last}),
        (f"{path}/rewind", {"to": last}, {"to": 1}),
        ("/api/sessions", {"title": "new"}, {"title": "newer"}),
        (f"/api/sessions/{talk}/fork", {}, {"title": "forked"}),
        ("/v1/keys", {"name": "once"}, {"name": "once", "principal": "another"}),
    ]


def test_a_request_without_a_turn_is_carried_out_once_per_key(fresh_server: Server) -> None:
    """The second answer is the first, before and after `kill -9`; another body under the key is refused."""
    talk = conversation_of(ask(fresh_server.client, "hello"))
    asked = requests_without_a_turn(fresh_server.client, talk)
    first = []
    for number, (path, body, _) in enumerate(asked):

        def send(_: int, path: str = path, body: Any = body, key: str = f"once {number}") -> httpx.Response:
            return fresh_server.client.post(path, json=body, headers={"Idempotency-Key": key})

        with ThreadPoolExecutor(4) as pool:
            racing = list(pool.map(send, range(4)))
        first.append(racing[0].json())
        assert [(a.is_success, a.json()) for a in racing] == [(True, first[-1])] * 4, path
    before = [row["id"] for row in conversations(fresh_server.client)], said_in(fresh_server.client, talk)

    fresh_server.restart()

    for number, (path, body, other) in enumerate(asked):
        key = {"Idempotency-Key": f"once {number}"}
        again = fresh_server.client.post(path, json=body, headers=key)
        assert again.is_success, again.text
        assert again.json() == first[number], path
        assert again.headers["Idempotency-Replayed"] == "true", path
        refused(fresh_server.client.post(path, json=other, headers=key), 409, "idempotency_key_conflict")
        if path == "/v1/conversations":
            assert fresh_server.stranger.post(path, json=body, headers=key).json()["id"] != first[number]["id"]
    assert ([row["id"] for row in conversations(fresh_server.client)], said_in(fresh_server.client, talk)) == before


def test_a_conversation_is_restored_once_per_key(client: httpx.Client) -> None:
    """The same request again is answered as the first one was; without the key there is nothing left to restore."""
    talk = conversation_of(ask(client, "hello", conversation="restored-once"))
    ok(client.delete(f"/v1/conversations/{talk}"))
    path, key = f"/v1/trash/{talk}/restore", {"Idempotency-Key": "restore once"}
    first, again = (client.post(path, headers=key) for _ in range(2))
    assert ok(first) == ok(again)
    assert [answer.headers.get("Idempotency-Replayed") for answer in (first, again)] == [None, "true"]
    refused(client.post(path), 404, "conversation_not_found")


def test_changes_of_a_conversation_that_race_are_all_kept(client: httpx.Client) -> None:
    """Its metadata and who answers in it are changed at once, again and again; neither takes the other back."""
    talk = conversation_of(ask(client, "hello"))
    with ThreadPoolExecutor(2) as pool:
        for number in range(40):
            agent, metadata = ("demo", "default")[number % 2], {"number": str(number)}
            racing = [
                pool.submit(post, client, f"/v1/conversations/{talk}", metadata=metadata),
                pool.submit(post, client, "/v1/commands", text=f"/model {agent}", conversation=talk),
            ]
            for one in racing:
                one.result(BOUND)
            assert get(client, f"/v1/conversations/{talk}")["metadata"] == metadata
            assert get(client, f"/api/sessions/{talk}")["model"] == agent
