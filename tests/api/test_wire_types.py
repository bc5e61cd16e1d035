"""Everything that is sent fits the types of the `openai` package, strictly; and a stream is told in its order.

Each test makes bodies or events of one kind, from the demo model or from a provider that says what is needed, and puts
all of them through pydantic's strict validation of the types that clients are built on.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from openai.pagination import SyncConversationCursorPage, SyncCursorPage, SyncPage
from openai.types import Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.conversations import (
    Conversation,
    ConversationDeletedResource,
    ConversationItem,
    ConversationItemList,
)
from openai.types.responses import Response, ResponseItem, ResponseItemList, ResponseStreamEvent
from pydantic import TypeAdapter

from api.server import Server
from api.upstream import Talk, Upstream, open_upstream
from api.wire import (
    TERMINAL,
    Json,
    ask,
    chunks,
    conversation_of,
    events,
    follow,
    get,
    numbers,
    ok,
    output_text,
    post,
    raw_events,
    refused,
    streaming,
)

NEVER_NULL = {
    *("id", "object", "created_at", "status", "model", "output", "tools", "tool_choice", "truncation"),
    *("parallel_tool_calls", "text", "top_p", "presence_penalty", "frequency_penalty", "top_logprobs"),
    *("temperature", "store", "background", "service_tier", "metadata"),
}
MAYBE_NULL = {
    *("completed_at", "incomplete_details", "previous_response_id", "instructions", "error", "reasoning", "usage"),
    *("max_output_tokens", "max_tool_calls", "safety_identifier", "prompt_cache_key", "conversation"),
}
ID = re.compile(r"(conv|resp|msg|fc|fco|ctc|ctco|rs|cmp|call)_[0-9a-zA-Z_-]{22,}\Z")
WEATHER = {"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {}}}
PATCH = {"type": "custom", "name": "patch", "description": "Changes files.", "format": {"type": "text"}}
PIXEL = "data:image/gif;base64,R0lGODlhAQABAAAAACwAAAAAAQABAAA="

_response = TypeAdapter(Response)
_event = TypeAdapter(ResponseStreamEvent)
_chunk = TypeAdapter(ChatCompletionChunk)


def fits(body: Any, kind: Any) -> None:
    """The body is exactly of this type."""
    TypeAdapter(kind).validate_python(body, strict=True)


def is_response(body: Json) -> Json:
    """A Response of the SDK, with every field that is promised."""
    _response.validate_python(body, strict=True)
    assert {name for name in NEVER_NULL if body.get(name) is None} == set()
    assert MAYBE_NULL - set(body) == set()
    if body["usage"] is not None:
        usage = body["usage"]
        assert set(usage["input_tokens_details"]) >= {"cached_tokens", "cache_write_tokens"}
        assert set(usage["output_tokens_details"]) >= {"reasoning_tokens"}
        assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    assert ID.match(body["id"])
    assert ID.match(body["conversation"]["id"])
    assert all(ID.match(item["id"]) for item in body["output"])
    assert (body["completed_at"] is not None) == (body["status"] == "completed")
    assert (body["error"] is not None) == (body["status"] == "failed")
    return body


def is_stream(told: list[Json]) -> Json:
    """A whole stream in its order; returns the last response."""
    for event in told:
        _event.validate_python(event, strict=True)
    assert numbers(told) == list(range(len(told)))
    types = [event["type"] for event in told]
    assert types[:2] == ["response.created", "response.in_progress"]
    assert [kind for kind in types if kind in TERMINAL] == types[-1:]
    for event in (told[0], told[1], told[-1]):
        is_response(event["response"])
    for begun in told[:2]:
        assert begun["response"]["status"] in ("queued", "in_progress")
        assert begun["response"]["output"] == []
    last: Json = told[-1]["response"]
    inner = told[2:-1]
    if types[-1] == "response.failed":
        *inner, error = inner
        assert error["type"] == "error"
        assert error["error"] == last["error"]
        assert last["error"].items() >= {key: error[key] for key in ("code", "message", "param")}.items()
        assert last["status"] == "failed"
    done = [_is_item(item) for item in _by_item(inner)]
    if last["status"] == "completed":
        assert done == last["output"]
    return last


def _by_item(told: list[Json]) -> list[list[Json]]:
    """The events of each item; they come in the order of their places, and each ends before the next begins."""
    items: list[list[Json]] = []
    for event in told:
        if event["type"] == "response.output_item.added":
            items.append([])
        assert event["output_index"] == len(items) - 1
        items[-1].append(event)
    return items


_TELLS = {"text": "output_text", "refusal": "refusal"}


def _is_item(told: list[Json]) -> Json:
    """The events of one item in their order; returns the item as it was when it was done."""
    first, *inner, last = told
    item: Json = last["item"]
    assert (first["type"], last["type"]) == ("response.output_item.added", "response.output_item.done")
    assert {key: first["item"][key] for key in ("id", "type")} == {key: item[key] for key in ("id", "type")}
    assert all(event["item_id"] == item["id"] for event in inner)
    kinds = [event["type"].removeprefix("response.") for event in inner]
    deltas = "".join(event.get("delta", "") for event in inner)
    match item["type"]:
        case "message":
            assert (first["item"]["status"], first["item"]["content"]) == ("in_progress", [])
            head, middle, tail = kinds[0], kinds[1:-2], kinds[-2:]
            [part] = item["content"]
            said = "refusal" if part["type"] == "refusal" else "text"
            assert (head, tail) == ("content_part.added", [f"{_TELLS[said]}.done", "content_part.done"])
            assert set(middle) <= {f"{_TELLS[said]}.delta"}
            assert inner[0]["part"] == {**part, said: ""}
            assert inner[-2][said] == inner[-1]["part"][said] == part[said] == deltas
        case "reasoning":
            head, middle, tail = kinds[0], kinds[1:-2], kinds[-2:]
            assert head == "reasoning_summary_part.added"
            assert tail == ["reasoning_summary_text.done", "reasoning_summary_part.done"]
            assert set(middle) <= {"reasoning_summary_text.delta"}
            assert inner[-2]["text"] == inner[-1]["part"]["text"] == item["summary"][0]["text"] == deltas
        case "function_call":
            assert (first["item"]["status"], first["item"]["arguments"]) == ("in_progress", "")
            assert kinds[-1] == "function_call_arguments.done"
            assert set(kinds[:-1]) <= {"function_call_arguments.delta"}
            assert inner[-1]["arguments"] == item["arguments"] == deltas
        case "custom_tool_call":
            assert (first["item"]["status"], first["item"]["input"]) == ("in_progress", "")
            assert kinds[-1] == "custom_tool_call_input.done"
            assert set(kinds[:-1]) <= {"custom_tool_call_input.delta"}
            assert inner[-1]["input"] == item["input"] == deltas
        case "function_call_output":
            assert inner == []
        case kind:
            raise AssertionError(f"nobody expected an item of type {kind}")
    return item


# -- a provider that says what is needed


@pytest.fixture(scope="module")
def steered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Upstream]]:
    """A server whose model is a provider of ours."""
    with open_upstream() as upstream:
        server = Server(tmp_path_factory.mktemp("steered") / "home", **upstream.settings)
        yield server, upstream
        server.check_log()
        server.stop()


@contextmanager
def talking(steered: tuple[Server, Upstream]) -> Iterator[tuple[httpx.Client, Talk]]:
    """A client, and what its next turn is answered."""
    server, upstream = steered
    yield server.client, upstream.talk()


# -- responses


@pytest.mark.parametrize(
    "body",
    [
        {"input": "hello"},
        {"input": "call now {}"},
        {"input": "call weather {}\ncall weather {}", "tools": [WEATHER]},
        {"input": "call weather {}", "tools": [{**WEATHER, "strict": True, "description": "Weather."}]},
        {"input": 'call patch {"input": "x"}\ncall weather {}\ncall patch {}', "tools": [WEATHER, PATCH]},
        {"input": "reply only hi", "tool_choice": {"type": "custom", "name": "patch"}, "tools": [PATCH]},
        {"input": "reply only hi", "tool_choice": {"type": "function", "name": "weather"}, "tools": [WEATHER]},
        {"input": "reply only hi", "tool_choice": "required", "tools": [WEATHER], "parallel_tool_calls": False},
        {"input": "hi", "instructions": "Be kind.", "metadata": {"a": "b"}, "user": "u", "safety_identifier": "s"},
        {"input": "hi", "temperature": 0, "top_p": 0.5, "top_logprobs": 2, "max_output_tokens": 99},
        {"input": "hi", "temperature": 1, "top_p": 1, "max_tool_calls": 3, "prompt_cache_key": "k"},
        {"input": "hi", "text": {"format": {"type": "json_object"}, "verbosity": "low"}},
        {"input": "hi", "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}}},
        {"input": "hi", "text": {"format": {"type": "text"}}, "truncation": "auto", "service_tier": "auto"},
        {"input": "hi", "text": {"verbosity": "high"}},
        {"input": "hi", "reasoning": {"effort": "low", "summary": "auto"}, "service_tier": "flex"},
        {"input": "hi", "model": "gpt-4o"},
        {"input": "fail 1 times"},
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": PIXEL, "detail": "low"}]}]},
        {"input": [{"role": "user", "content": [{"type": "input_file", "file_data": "data:,x", "filename": "x"}]}]},
    ],
    ids=lambda body: " ".join(str(value) for value in list(body.values())[:3])[:60],
)
def test_a_response_and_its_stream_fit(client: httpx.Client, body: Json) -> None:
    """Plain, streamed, read again and replayed: the same object, of the right type."""
    plain = is_response(ok(client.post("/v1/responses", json=body)))
    assert is_response(get(client, f"/v1/responses/{plain['id']}")) == plain
    assert is_stream(follow(client, plain["id"])) == plain
    with client.stream("POST", "/v1/responses", json={**body, "stream": True}) as answer:
        told = list(events(answer))
    last = is_stream(told)
    assert is_response(get(client, f"/v1/responses/{last['id']}")) == last
    fits(get(client, f"/v1/responses/{last['id']}/input_items"), ResponseItemList)
    fits(get(client, f"/v1/responses/{last['id']}/input_items"), SyncCursorPage[ResponseItem])


def test_a_response_fits_while_it_waits_runs_and_is_cancelled(client: httpx.Client) -> None:
    """In the background: one runs, the next of the conversation waits, both are cancelled."""
    first = is_response(ask(client, "sleep 600", conversation="waits", background=True))
    second = is_response(ask(client, "sleep 600", conversation="waits", background=True))
    assert is_response(get(client, f"/v1/responses/{first['id']}"))["status"] == "in_progress"
    assert is_response(get(client, f"/v1/responses/{second['id']}"))["status"] == "queued"
    for response in (second, first):
        cancelled = is_response(post(client, f"/v1/responses/{response['id']}/cancel"))
        assert cancelled["status"] == "cancelled"
        told = follow(client, response["id"])
        assert told[-1]["type"] == "response.incomplete"
        assert is_stream(told) == cancelled


def test_a_cancelled_stream_keeps_what_was_said_and_ends_incomplete(steered: tuple[Server, Upstream]) -> None:
    """The item that was being told is closed as incomplete."""
    with talking(steered) as (client, talk):
        with streaming(client, "hello") as answer:
            talk.say("What was")
            talk.say(" said")
            told = events(answer)
            before = [next(told) for _ in range(6)]
            cancelled = post(client, f"/v1/responses/{before[0]['response']['id']}/cancel")
            whole = [*before, *told]
        talk.end()
    assert whole[-1]["type"] == "response.incomplete"
    assert is_stream(whole) == is_response(cancelled)
    [item] = cancelled["output"]
    assert item["status"] == "incomplete"
    assert output_text(cancelled) == "What was said"


CUTS = {"length": "max_output_tokens", "content_filter": "content_filter"}
HALVES: dict[str, Callable[[Talk], None]] = {
    "text": lambda talk: talk.say("And so on and"),
    "reasoning": lambda talk: talk.think("Let me"),
    "a call": lambda talk: talk.call("weather", '{"city": "Os'),
    "nothing": lambda talk: None,
}


@pytest.mark.parametrize("store", [True, False], ids=["stored", "not stored"])
@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("reason", CUTS)
def test_an_answer_that_is_cut_is_incomplete(
    steered: tuple[Server, Upstream], reason: str, half: str, store: bool
) -> None:
    """With the reason that clients know; half a call is not handed over."""
    with talking(steered) as (client, talk):
        HALVES[half](talk)
        talk.end(reason)
        with streaming(client, "hello", max_output_tokens=16, tools=[WEATHER], store=store) as answer:
            told = list(events(answer))
        last = is_stream(told)
        assert told[-1]["type"] == "response.incomplete"
        assert (last["status"], last["incomplete_details"]) == ("incomplete", {"reason": CUTS[reason]})
        assert [(item["type"], item["status"]) for item in last["output"]] == {
            "text": [("message", "incomplete")],
            "reasoning": [("reasoning", "incomplete")],
        }.get(half, [])
        if store:
            assert is_response(get(client, f"/v1/responses/{last['id']}")) == last
            assert follow(client, last["id"]) == told


@pytest.mark.parametrize("store", [True, False], ids=["stored", "not stored"])
def test_a_refusal_is_told_as_one(steered: tuple[Server, Upstream], store: bool) -> None:
    """In a message of its own, streamed, read again, and told to the model when the talk goes on."""
    with talking(steered) as (client, talk):
        talk.say("Well. ")
        talk.refuse("That I")
        talk.refuse(" will not do.")
        talk.end()
        with streaming(client, "hello", store=store) as answer:
            told = list(events(answer))
    last = is_stream(told)
    assert [part["type"] for item in last["output"] for part in item["content"]] == ["output_text", "refusal"]
    assert last["output"][-1]["content"] == [{"type": "refusal", "refusal": "That I will not do."}]
    if store:
        assert is_response(get(client, f"/v1/responses/{last['id']}")) == last
        assert follow(client, last["id"]) == told
        with talking(steered) as (client, talk):
            talk.say("Fine.")
            talk.end()
            ask(client, "go on", previous_response_id=last["id"])
        sent = steered[1].received[-1]["messages"]
        assert [message["content"] for message in sent] == ["hello", "Well. ", "That I will not do.", "go on"]


@pytest.mark.parametrize("said", ["", "Half an ans"])
def test_a_failed_turn_tells_an_error_and_then_that_it_failed(steered: tuple[Server, Upstream], said: str) -> None:
    """Before the first word, and in the middle of the answer, which stays."""
    with talking(steered) as (client, talk):
        if said:
            talk.say(said)
        talk.fail("the provider fell over")
        with streaming(client, "hello") as answer:
            told = list(events(answer))
        last = is_stream(told)
        assert [event["type"] for event in told[-2:]] == ["error", "response.failed"]
        assert "the provider fell over" in last["error"]["message"]
        assert [item["status"] for item in last["output"]] == (["incomplete"] if said else [])
        assert follow(client, last["id"]) == told


def test_reasoning_text_and_calls_in_one_stream_fit(steered: tuple[Server, Upstream]) -> None:
    """Reasoning, prose, and two calls whose pieces are mixed."""
    with talking(steered) as (client, talk):
        talk.think("Let me")
        talk.think(" see.")
        talk.say("I look")
        talk.say(" it up.")
        talk.delta(tool_calls=[{"index": 0, "id": "call_a", "function": {"name": "weather", "arguments": "{"}}])
        talk.delta(tool_calls=[{"index": 1, "id": "call_b", "function": {"name": "weather", "arguments": ""}}])
        talk.delta(tool_calls=[{"index": 1, "function": {"arguments": "{}"}}])
        talk.delta(tool_calls=[{"index": 0, "function": {"arguments": "}"}}])
        talk.end("tool_calls")
        with streaming(client, "hello", tools=[WEATHER]) as answer:
            last = is_stream(list(events(answer)))
        assert [item["type"] for item in last["output"]] == ["reasoning", "message", "function_call", "function_call"]
        assert last["usage"]["input_tokens_details"]["cached_tokens"] == 3
        fits(
            get(client, f"/v1/conversations/{conversation_of(last)}/items"),
            SyncConversationCursorPage[ConversationItem],
        )


@pytest.mark.parametrize("thought", [False, True], ids=["prose", "reasoning and prose"])
def test_a_stream_taken_over_by_an_heir_fits(steered_server: Server, upstream: Upstream, thought: bool) -> None:
    """After kill -9 in mid text the cut item is closed as incomplete and the heir opens the next place; what had been
    told as complete stays so."""
    talk, told_before = upstream.talk(), 10 if thought else 5
    with streaming(steered_server.client, "hello") as answer:
        if thought:
            talk.think("Hm.")
        talk.say("Half an ans")
        told = events(answer)
        before = [next(told) for _ in range(told_before)]
        steered_server.kill()
    talk.end()
    heir = upstream.talk()
    heir.say("A whole answer.")
    heir.end()
    steered_server.start()
    whole = follow(steered_server.client, before[0]["response"]["id"])
    assert whole[: len(before)] == before
    last = is_stream(whole)
    statuses = [item["status"] for item in last["output"]]
    assert statuses == [*(["completed"] if thought else []), "incomplete", "completed"]


def test_a_stream_is_written_as_the_contract_says(client: httpx.Client) -> None:
    """`event` equals `type`, the end is `[DONE]`, and the headers say what it is."""
    with streaming(client, "hello") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["cache-control"] == "no-cache"
        assert answer.headers["x-request-id"]
        *told, last = list(raw_events(answer))
    assert last == (None, "[DONE]")
    assert all(name and f'"type":"{name}"' in data.replace(" ", "") for name, data in told)


def test_the_stream_of_a_turn_that_another_joined_fits(client: httpx.Client) -> None:
    """`steer`: both ids answer with the same output, each under its own name."""
    steer = {"X-Legato-Busy": "steer"}
    first = ask(client, "sleep 1", conversation="steered", background=True)
    second = ok(
        client.post(
            "/v1/responses",
            json={"input": "reply only joined", "conversation": "steered", "background": True},
            headers=steer,
        )
    )
    ends = [is_stream(follow(client, response["id"])) for response in (first, second)]
    assert [end["id"] for end in ends] == [first["id"], second["id"]]
    assert {end["status"] for end in ends} == {"completed"}


# -- conversations


def _every_kind_of_item(client: httpx.Client) -> str:
    given = [
        {"role": "system", "content": "Be brief."},
        {"role": "developer", "content": [{"type": "input_text", "text": "Be kind."}]},
        {
            "role": "user",
            "content": [
                {"type": "input_text", "text": "look"},
                {"type": "input_image", "image_url": PIXEL},
                {"type": "input_image", "image_url": "https://example.com/a.png", "detail": "high"},
                {"type": "input_file", "file_url": "https://example.com/a.pdf", "filename": "a.pdf"},
            ],
        },
        {"type": "reasoning", "id": "rs_theirs", "summary": [{"type": "summary_text", "text": "hm"}]},
        {"type": "reasoning", "summary": [], "encrypted_content": "secret"},
        {"type": "function_call", "call_id": "call_1", "name": "weather", "arguments": "{}"},
        {
            "type": "function_call_output",
            "call_id": "call_1",
            "output": [{"type": "input_text", "text": "rain"}, {"type": "input_image", "image_url": PIXEL}],
        },
        {"type": "custom_tool_call", "call_id": "call_2", "name": "patch", "input": "x"},
        {"type": "custom_tool_call_output", "call_id": "call_2", "output": "changed"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "ok", "annotations": []}]},
        {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
    ]
    conversation: str = post(client, "/v1/conversations", items=given)["id"]
    return conversation


def test_every_kind_of_item_fits_wherever_it_is_told(client: httpx.Client) -> None:
    """In the list, one by one, when it is created, and in what a response was given."""
    conversation = _every_kind_of_item(client)
    at = f"/v1/conversations/{conversation}/items"
    page = get(client, at, limit=100, order="asc")
    fits(page, ConversationItemList)
    assert [item["type"] for item in page["data"]] == [
        *["message"] * 3, *["reasoning"] * 2, "function_call", "function_call_output",
        *("custom_tool_call", "custom_tool_call_output"), *["message"] * 2,
    ]  # fmt: skip
    assert page["data"][-1]["content"] == [{"type": "refusal", "refusal": "no"}]
    for item in page["data"]:
        fits(get(client, f"{at}/{item['id']}"), ConversationItem)
        fits(post(client, at, items=[item]), ConversationItemList)
    given = ask(client, page["data"])
    fits(get(client, f"/v1/responses/{given['id']}/input_items", limit=100), ResponseItemList)


def test_a_compaction_is_an_item_that_fits(client: httpx.Client) -> None:
    """It is told where it stands, and everything before it is still there."""
    response = ask(client, "hello")
    conversation = conversation_of(response)
    post(client, f"/v1/conversations/{conversation}/compact", upto=response["id"], summary="They said hello.")
    page = get(client, f"/v1/conversations/{conversation}/items", order="asc")
    fits(page, ConversationItemList)
    assert [item["type"] for item in page["data"]] == ["message", "message", "compaction"]


@pytest.mark.parametrize(
    ("path", "body", "kind"),
    [
        ("/v1/conversations", {}, Conversation),
        ("/v1/conversations", {"metadata": {"a": "b"}, "items": [{"role": "user", "content": "x"}]}, Conversation),
        ("/v1/conversations/{id}", {"metadata": {"a": "c"}}, Conversation),
        ("/v1/conversations/{id}/items", {"items": [{"role": "user", "content": "x"}]}, ConversationItemList),
        ("/v1/conversations/{id}/fork", {}, Conversation),
        ("/v1/conversations/{id}/rewind", {"to": 1}, Conversation),
        ("/v1/conversations/{id}/compact", {"upto": 1, "summary": "s"}, Conversation),
    ],
)
def test_what_conversation_routes_answer_fits(client: httpx.Client, path: str, body: Json, kind: Any) -> None:
    """Each POST on conversations."""
    conversation = conversation_of(ask(client, "hello"))
    fits(post(client, path.format(id=conversation), **body), kind)


def test_conversations_that_are_read_listed_renamed_and_deleted_fit(client: httpx.Client) -> None:
    """Each GET, PUT and DELETE on conversations."""
    conversation = conversation_of(ask(client, "hello"))
    at = f"/v1/conversations/{conversation}"
    fits(get(client, at), Conversation)
    fits(get(client, "/v1/conversations")["data"], list[Conversation])
    fits(get(client, "/v1/conversations"), SyncCursorPage[Conversation])
    fits(ok(client.put(f"{at}/aliases/fitting")), Conversation)
    fits(ok(client.delete(f"{at}/aliases/fitting")), Conversation)
    fits(ok(client.delete(at)), ConversationDeletedResource)


def test_an_empty_list_fits_the_page_that_clients_read(client: httpx.Client) -> None:
    """There is no first and no last."""
    conversation = post(client, "/v1/conversations")["id"]
    page = get(client, f"/v1/conversations/{conversation}/items")
    fits(page, SyncConversationCursorPage[ConversationItem])
    assert (page["data"], page["has_more"]) == ([], False)


# -- chat and models


CHATS: dict[str, Callable[[Talk], None]] = {
    "prose": lambda talk: talk.say("Hello."),
    "nothing": lambda _: None,
    "reasoning": lambda talk: (talk.think("Hm."), talk.say("Hello."))[1],
    "calls": lambda talk: (talk.call("weather", '{"city": "Oslo"}'), talk.call("weather", "{}", 1))[1],
    "a refusal": lambda talk: talk.refuse("I will not."),
    "prose and a call": lambda talk: (talk.say("I look it up."), talk.call("weather", "{}"))[1],
}


@pytest.mark.parametrize("said", CHATS)
def test_a_chat_completion_and_its_chunks_fit(steered: tuple[Server, Upstream], said: str) -> None:
    """Plain, streamed, and streamed with usage say the same."""
    tools = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
    body = {"messages": [{"role": "user", "content": f"{said}, please"}], "tools": tools}
    with talking(steered) as (client, talk):
        CHATS[said](talk)
        talk.end("tool_calls" if "call" in said else "stop")
        answer = client.post("/v1/chat/completions", json=body)
        plain = ok(answer)
    fits(plain, ChatCompletion)
    assert plain["legato"]["conversation"] == answer.headers["X-Legato-Conversation"]
    for include_usage in (False, True):
        with talking(steered) as (client, talk):
            CHATS[said](talk)
            talk.end("tool_calls" if "call" in said else "stop")
            options = {"stream": True, "stream_options": {"include_usage": include_usage}}
            with client.stream("POST", "/v1/chat/completions", json={**body, **options}) as streamed:
                told = list(chunks(streamed))
        for chunk in told:
            _chunk.validate_python(chunk, strict=True)
        assert told[0]["choices"][0]["delta"]["role"] == "assistant"
        assert told[-1]["legato"]["conversation"] == streamed.headers["X-Legato-Conversation"]
        reasons = [choice["finish_reason"] for chunk in told for choice in chunk["choices"]]
        assert [reason for reason in reasons if reason] == [plain["choices"][0]["finish_reason"]]
        usages = [chunk["usage"] for chunk in told if chunk.get("usage")]
        assert usages == ([plain["usage"]] if include_usage else [])


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("reason", CUTS)
def test_a_chat_that_is_cut_says_so(steered: tuple[Server, Upstream], reason: str, half: str) -> None:
    """By its `finish_reason`, streamed and not; half a call is not handed over."""
    tools = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
    body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 3, "tools": tools}
    with talking(steered) as (client, talk):
        HALVES[half](talk)
        talk.end(reason)
        plain = ok(client.post("/v1/chat/completions", json=body))
    fits(plain, ChatCompletion)
    [choice] = plain["choices"]
    assert choice["finish_reason"] == reason
    assert (choice["message"]["content"] or "") == ("And so on and" if half == "text" else "")
    assert "tool_calls" not in choice["message"]
    with talking(steered) as (client, talk):
        HALVES[half](talk)
        talk.end(reason)
        with client.stream("POST", "/v1/chat/completions", json={**body, "stream": True}) as streamed:
            told = list(chunks(streamed))
    reasons = [choice["finish_reason"] for chunk in told for choice in chunk["choices"]]
    assert [reason for reason in reasons if reason] == [reason]


def test_a_chat_that_is_refused_says_so_and_goes_on(steered: tuple[Server, Upstream]) -> None:
    """In `refusal`, streamed and not; the client that sends it again is in the same conversation."""
    first = {"role": "user", "content": "do it"}
    with talking(steered) as (client, talk):
        talk.refuse("I will not.")
        talk.end()
        plain = ok(client.post("/v1/chat/completions", json={"messages": [first]}))
    message = plain["choices"][0]["message"]
    assert (message["content"], message["refusal"]) == (None, "I will not.")
    with talking(steered) as (client, talk):
        talk.say("Fine.")
        talk.end()
        again = ok(client.post("/v1/chat/completions", json={"messages": [first, message, first]}))
    assert again["legato"]["conversation"] == plain["legato"]["conversation"]
    with talking(steered) as (client, talk):
        talk.refuse("I will not.")
        talk.end()
        body = {"messages": [first], "stream": True}
        with client.stream("POST", "/v1/chat/completions", json=body) as streamed:
            told = list(chunks(streamed))
    deltas = [choice["delta"] for chunk in told for choice in chunk["choices"]]
    assert [delta["refusal"] for delta in deltas if "refusal" in delta] == ["I will not."]


TURNED_DOWN: dict[
    int, tuple[int, str, str, int, str]
] = {  # our status, type, code; how often it is asked; a Response's code
    400: (400, "invalid_request_error", "invalid_value", 1, "invalid_prompt"),
    422: (400, "invalid_request_error", "invalid_value", 1, "invalid_prompt"),
    401: (503, "server_error", "model_unavailable", 1, "server_error"),
    429: (429, "rate_limit_error", "rate_limit_exceeded", 4, "rate_limit_exceeded"),
    503: (503, "server_error", "model_unavailable", 4, "server_error"),
}


@pytest.mark.parametrize("status", TURNED_DOWN)
def test_what_a_provider_turns_down_is_told_as_whose_fault_it_is(steered: tuple[Server, Upstream], status: int) -> None:
    """A bad request is the client's, and not to be sent again; too many are told as such, with the time to wait."""
    server, upstream = steered
    client = server.client
    ours, kind, code, tries, known = TURNED_DOWN[status]
    body: Json = {"messages": [{"role": "user", "content": "hello"}]}

    def turn_down() -> None:
        for _ in range(tries):
            upstream.talk().turn_down(status, "the provider said no", Retry_After="0.01")

    turn_down()
    answer = client.post("/v1/chat/completions", json=body)
    error = refused(answer, ours, code)
    assert error["type"] == kind
    assert "the provider said no" in error["message"]
    assert answer.headers.get("retry-after") == ("1" if tries > 1 else None)
    turn_down()
    with client.stream("POST", "/v1/chat/completions", json={**body, "stream": True}) as streamed:
        [told] = [chunk["error"] for chunk in chunks(streamed) if "error" in chunk]
    assert (told["type"], told["code"]) == (kind, code)
    turn_down()
    response = is_response(ask(client, "hello"))
    assert response["status"] == "failed"
    turn_down()
    with streaming(client, "hello") as answer:
        last = is_stream(list(events(answer)))
    for failed in (response, get(client, f"/v1/responses/{response['id']}"), last):
        assert failed["error"] == {"code": known, "message": error["message"], "type": kind, "param": None}


@pytest.mark.parametrize("stored", [True, False])
def test_a_failed_chat_stream_tells_the_error_and_finishes_nothing(
    steered: tuple[Server, Upstream], stored: bool
) -> None:
    """In the envelope, with all four keys; half an answer is not told as a whole one."""
    body = {"messages": [{"role": "user", "content": "hello"}], "stream": True, "store": stored}
    with talking(steered) as (client, talk):
        talk.say("Half")
        talk.fail("the provider fell over")
        with client.stream("POST", "/v1/chat/completions", json=body) as answer:
            told = list(chunks(answer))
    [error] = [chunk["error"] for chunk in told if "error" in chunk]
    assert set(error) == {"message", "type", "param", "code"}
    assert "the provider fell over" in error["message"]
    assert [
        choice["finish_reason"] for chunk in told for choice in chunk.get("choices", []) if choice["finish_reason"]
    ] == []
    assert told[-1]["legato"]["conversation"] == answer.headers["X-Legato-Conversation"]


def test_a_failed_chat_is_refused_in_the_envelope(steered: tuple[Server, Upstream]) -> None:
    """As an error of the server, which may be tried again."""
    with talking(steered) as (client, talk):
        talk.fail("the provider fell over")
        answer = client.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "hello"}]})
    assert refused(answer, 503, "model_unavailable")["type"] == "server_error"


def test_models_fit(client: httpx.Client) -> None:
    """The list and each of them."""
    models = get(client, "/v1/models")
    fits(models, SyncPage[Model])
    for model in models["data"]:
        fits(get(client, f"/v1/models/{model['id']}"), Model)


# -- every answer


def test_every_answer_has_a_request_id_of_its_own(server: Server, client: httpx.Client) -> None:
    """Served, refused, unknown, without a key, in a stream, and the operations."""
    answers = [
        client.get("/v1/models"),
        client.get("/v1/models/none"),
        client.post("/v1/responses", content=b"{"),
        client.get("/nowhere"),
        client.patch("/v1/models"),
        client.get("/v1/models", headers={"Authorization": ""}),
        client.get("/healthz"),
        client.get("/readyz"),
        client.get("/metrics"),
    ]
    ids = [answer.headers.get("x-request-id") for answer in answers]
    assert None not in ids, [str(answer.url) for answer in answers if "x-request-id" not in answer.headers]
    assert len(set(ids)) == len(answers)


def test_ids_are_random_and_their_own(client: httpx.Client) -> None:
    """The same request twice gives nothing twice; what a client called its items is not used as a name here."""
    body = {"input": [{"type": "message", "id": "msg_chosen", "role": "user", "content": "call now {}"}]}
    told = [ok(client.post("/v1/responses", json=body)) for _ in range(2)]
    ids = [response["id"] for response in told] + [conversation_of(response) for response in told]
    for response in told:
        ids += [item["id"] for item in response["output"]]
        ids += [item["id"] for item in get(client, f"/v1/responses/{response['id']}/input_items")["data"]]
    assert len(set(ids)) == len(ids)
    assert all(ID.match(name) for name in ids), ids


def test_a_waiting_stream_is_kept_alive(steered: tuple[Server, Upstream], request: pytest.FixtureRequest) -> None:
    """A comment comes when nothing else does."""
    if not request.config.getoption("--long"):
        pytest.skip("takes the 15 seconds of silence; run with --long")
    with talking(steered) as (client, talk):
        with streaming(client, "hello") as answer:
            lines = answer.iter_lines()
            assert any(line.startswith(":") for line in lines)
            talk.end()
            assert "data: [DONE]" in list(lines)
