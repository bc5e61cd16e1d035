"""The Open Responses specification as a second judge, beside the types of the `openai` package.

It knows 24 types of events and no others, and for each what it must carry; and it names more fields of a Response that
may not be null. What is ours goes into further fields, never into event types of our own.
"""

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from api.server import BOUND, Server
from api.upstream import Talk, Upstream
from api.wire import Json, ask, chat, events, follow, get, ok, post, streaming

LIFE = ("created", "queued", "in_progress", "completed", "failed", "incomplete")
EVENTS: dict[str, set[str]] = {
    **{f"response.{state}": {"response"} for state in LIFE},
    **{f"response.output_item.{state}": {"output_index", "item"} for state in ("added", "done")},
    "response.content_part.added": {"item_id", "output_index", "content_index", "part"},
    "response.content_part.done": {"item_id", "output_index", "content_index", "part"},
    "response.output_text.delta": {"item_id", "output_index", "content_index", "delta"},
    "response.output_text.done": {"item_id", "output_index", "content_index", "text"},
    "response.output_text.annotation.added": {"item_id", "output_index", "content_index", "annotation_index"},
    "response.refusal.delta": {"item_id", "output_index", "content_index", "delta"},
    "response.refusal.done": {"item_id", "output_index", "content_index", "refusal"},
    "response.reasoning.delta": {"item_id", "output_index", "content_index", "delta"},
    "response.reasoning.done": {"item_id", "output_index", "content_index", "text"},
    "response.reasoning_summary_part.added": {"item_id", "output_index", "summary_index", "part"},
    "response.reasoning_summary_part.done": {"item_id", "output_index", "summary_index", "part"},
    "response.reasoning_summary_text.delta": {"item_id", "output_index", "summary_index", "delta"},
    "response.reasoning_summary_text.done": {"item_id", "output_index", "summary_index", "text"},
    "response.function_call_arguments.delta": {"item_id", "output_index", "delta"},
    "response.function_call_arguments.done": {"item_id", "output_index", "arguments"},
    "error": {"error"},
}
ITEMS: dict[str, set[str]] = {
    "message": {"id", "status", "role", "content"},
    "function_call": {"id", "status", "call_id", "name", "arguments"},
    "function_call_output": {"id", "status", "call_id", "output"},
    "reasoning": {"id", "summary"},
    "compaction": {"id", "encrypted_content"},
}
NEVER_NULL = {
    *("id", "object", "created_at", "status", "model", "output", "tools", "tool_choice", "truncation", "text"),
    *("parallel_tool_calls", "top_p", "presence_penalty", "frequency_penalty", "top_logprobs", "temperature"),
    *("store", "background", "service_tier", "metadata"),
}
MAYBE_NULL = {
    *("completed_at", "incomplete_details", "previous_response_id", "instructions", "error", "reasoning", "usage"),
    *("max_output_tokens", "max_tool_calls", "safety_identifier", "prompt_cache_key"),
}
WEATHER = {"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {}}}


def lacks(value: Json, fields: set[str]) -> set[str]:
    """The fields that are missing or null."""
    return {field for field in fields if value.get(field) is None}


def is_response(body: Json) -> None:
    assert lacks(body, NEVER_NULL) == set()
    assert MAYBE_NULL - set(body) == set()
    assert body["text"]["format"]["type"] in ("text", "json_object", "json_schema")
    for tool in body["tools"]:
        assert {"type", "name", "description", "parameters", "strict"} <= set(tool)
    if isinstance(body["tool_choice"], dict):
        assert body["tool_choice"]["type"] in ("function", "allowed_tools")
    if body["reasoning"] is not None:
        assert {"effort", "summary"} <= set(body["reasoning"])
    if body["usage"] is not None:
        assert lacks(body["usage"], {"input_tokens", "output_tokens", "total_tokens"}) == set()
        assert lacks(body["usage"]["input_tokens_details"], {"cached_tokens"}) == set()
        assert lacks(body["usage"]["output_tokens_details"], {"reasoning_tokens"}) == set()
    for item in body["output"]:
        is_item(item)


def is_item(item: Json) -> None:
    assert item["type"] in ITEMS
    assert lacks(item, ITEMS[item["type"]]) == set()
    for part in item.get("content", []):
        needed = {"output_text": {"type", "text", "annotations"}, "refusal": {"type", "refusal"}}
        assert lacks(part, needed.get(part["type"], {"type"})) == set()


def is_event(event: Json) -> None:
    assert event["type"] in EVENTS
    assert lacks(event, {"sequence_number", *EVENTS[event["type"]]}) == set()
    if "response" in event:
        is_response(event["response"])
    if "item" in event:
        is_item(event["item"])
    if "part" in event:
        said = "refusal" if event["part"].get("type") == "refusal" else "text"
        assert lacks(event["part"], {"type", said}) == set()
    if event["type"] == "error":
        assert lacks(event["error"], {"type", "message"}) == set()
        assert {"code", "param"} <= set(event["error"])


def test_the_events_are_as_many_as_the_specification_has() -> None:
    """The table is whole."""
    assert len(EVENTS) == 24


@pytest.mark.parametrize(
    "body",
    [
        {"input": "hello"},
        {"input": "hello", "store": False},
        {"input": "call now {}"},
        {"input": "call weather {}", "tools": [WEATHER], "tool_choice": {"type": "function", "name": "weather"}},
        {
            "input": "hello",
            "tools": [WEATHER],
            "tool_choice": {
                "type": "allowed_tools",
                "mode": "auto",
                "tools": [{"type": "function", "name": "weather"}],
            },
        },
        {"input": "hello", "text": {"verbosity": "high"}},
        {"input": "hello", "text": {"format": None}},
        {"input": "hello", "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}}},
        {"input": "hello", "reasoning": {"effort": "low"}, "metadata": {"a": "b"}, "max_output_tokens": 16},
        {"input": [{"role": "user", "content": ""}]},
    ],
    ids=str,
)
def test_a_plain_response_has_every_field(client: httpx.Client, body: Json) -> None:
    """When it is made, when it is read again, and wherever it occurs in its stream."""
    response = ok(client.post("/v1/responses", json=body))
    is_response(response)
    if body.get("store", True):
        is_response(get(client, f"/v1/responses/{response['id']}"))
        for event in follow(client, response["id"]):
            is_event(event)


def test_a_response_that_waits_or_was_cancelled_has_every_field(client: httpx.Client) -> None:
    """In the background: one runs, the next waits, both are cancelled."""
    first = ask(client, "sleep 600", conversation="waits", background=True)
    second = ask(client, "sleep 600", conversation="waits", background=True)
    for response in (second, first):
        is_response(response)
        cancelled = post(client, f"/v1/responses/{response['id']}/cancel")
        is_response(cancelled)
        told = follow(client, response["id"])
        for event in told:
            is_event(event)
        assert (cancelled["status"], told[-1]["type"]) == ("cancelled", "response.incomplete")


def _tells(*steps: Callable[[Talk], Any]) -> Callable[[Talk], None]:
    def tell(talk: Talk) -> None:
        for step in steps:
            step(talk)

    return tell


STREAMS: dict[str, tuple[Callable[[Talk], None], str]] = {
    "text": (_tells(lambda t: t.say("Hello."), lambda t: t.end()), "completed"),
    "reasoning": (_tells(lambda t: t.think("Hm."), lambda t: t.say("Hello."), lambda t: t.end()), "completed"),
    "a call": (_tells(lambda t: t.call("weather", '{"city": "Oslo"}'), lambda t: t.end("tool_calls")), "completed"),
    "a refusal": (_tells(lambda t: t.refuse("I will"), lambda t: t.refuse(" not."), lambda t: t.end()), "completed"),
    "cut": (_tells(lambda t: t.say("And so"), lambda t: t.end("length")), "incomplete"),
    "failure": (_tells(lambda t: t.say("Half"), lambda t: t.fail("the provider fell over")), "failed"),
}


def test_every_event_of_every_stream_is_known(steered_server: Server, upstream: Upstream) -> None:
    """Text, reasoning, a call, a refusal, an answer that is cut, and a failure, stored and not."""
    for tell, end in STREAMS.values():
        for store in (True, False):
            tell(upstream.talk())
            with streaming(steered_server.client, "hello", tools=[WEATHER], store=store) as answer:
                told = list(events(answer))
            for event in told:
                is_event(event)
            assert told[-1]["type"] == f"response.{end}"


def test_every_event_of_a_cancelled_stream_is_known(steered_server: Server, upstream: Upstream) -> None:
    """What was being told is closed with the same words."""
    talk = upstream.talk()
    with streaming(steered_server.client, "hello") as answer:
        talk.say("What was")
        stream = events(answer)
        before = [next(stream) for _ in range(5)]
        post(steered_server.client, f"/v1/responses/{before[0]['response']['id']}/cancel")
        told = [*before, *stream]
    talk.end()
    for event in told:
        is_event(event)
    assert told[-1]["type"] == "response.incomplete"


def test_a_choice_of_tools_reaches_the_provider_in_its_words(steered_server: Server, upstream: Upstream) -> None:
    """One function, or those that are allowed."""
    one = {"type": "function", "name": "weather"}
    given = [one, {"type": "allowed_tools", "mode": "required", "tools": [one]}]
    for choice in given:
        STREAMS["text"][0](upstream.talk())
        assert ask(steered_server.client, "hello", tools=[WEATHER], tool_choice=choice)["tool_choice"] == choice
    theirs = {"type": "function", "function": {"name": "weather"}}
    assert [body["tool_choice"] for body in upstream.received] == [
        theirs,
        {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [theirs]}},
    ]


def test_a_response_that_joined_another_is_still_its_own(steered_server: Server, upstream: Upstream) -> None:
    """Both have one output, and each what it came with: whenever one asks, and however."""
    client, first, second = steered_server.client, upstream.talk(), upstream.talk()
    about: Json = {"conversation": "joined", "background": True, "metadata": {"said": "how late is it?"}}
    host = post(client, "/v1/responses", input="how late is it?", **about)
    assert first.asked.wait(BOUND)
    body = {**about, "input": "in Oslo", "metadata": {"said": "in Oslo"}}
    steered = ok(client.post("/v1/responses", json=body, headers={"X-Legato-Busy": "steer"}))
    with client.stream("GET", f"/v1/responses/{steered['id']}?stream=true") as answer:
        live = events(answer)
        told = [next(live)]
        first.call("now", "{}")
        first.end("tool_calls")
        second.say("Nine.")
        second.end()
        told += live
    assert follow(client, steered["id"]) == told
    for response, words in ((host, "how late is it?"), (steered, "in Oslo")):
        ended = follow(client, response["id"])[-1]["response"]
        assert ended == get(client, f"/v1/responses/{response['id']}")
        assert ended["output"][-1]["content"][0]["text"] == "Nine."
        assert (ended["id"], ended["metadata"]) == (response["id"], {"said": words})
        [given] = get(client, f"/v1/responses/{response['id']}/input_items")["data"]
        assert given["content"][0]["text"] == words


@pytest.mark.parametrize("words", ["", " \n", [{"role": "user", "content": []}]])
def test_who_begins_with_silence_is_answered(steered_server: Server, upstream: Upstream, words: Any) -> None:
    """A request without any message would be refused by the provider."""
    STREAMS["text"][0](upstream.talk())
    assert ask(steered_server.client, words)["status"] == "completed"
    assert upstream.received[0]["messages"] == [{"role": "user", "content": ""}]


def test_what_is_asked_for_reaches_the_provider_and_is_told_back(steered_server: Server, upstream: Upstream) -> None:
    """Penalties, verbosity, strict tools, and a schema with all that was said about it; on both routes."""
    client, strict = steered_server.client, {**WEATHER, "strict": True}
    penalties = {"presence_penalty": 0.5, "frequency_penalty": -0.5}
    schema = {"name": "n", "schema": {"type": "object"}, "strict": True, "description": "An answer."}
    STREAMS["text"][0](upstream.talk())
    text = {"verbosity": "low", "format": {"type": "json_schema", **schema}}
    response = post(client, "/v1/responses", input="hello", tools=[strict], text=text, **penalties)
    assert {name: response[name] for name in penalties} == penalties
    assert (response["text"]["verbosity"], response["tools"][0]["strict"]) == ("low", True)
    STREAMS["text"][0](upstream.talk())
    function = {"name": "weather", "parameters": WEATHER["parameters"], "strict": True}
    wanted = {"type": "json_schema", "json_schema": schema}
    body = {"tools": [{"type": "function", "function": function}], "response_format": wanted, "verbosity": "low"}
    chat(client, "hello", **body, **penalties)
    for sent in upstream.received:
        assert {name: sent[name] for name in penalties} == penalties
        assert (sent["verbosity"], sent["response_format"]) == ("low", wanted)
        assert [tool["function"].get("strict") for tool in sent["tools"]] == [None, True]


@pytest.mark.parametrize("store", [True, False], ids=["stored", "not stored"])
def test_no_more_tools_run_here_than_the_client_allows(steered_server: Server, upstream: Upstream, store: bool) -> None:
    """In all steps together; the model is told."""
    looking = [upstream.talk(), upstream.talk()]
    for talk in looking:
        talk.call("now", "{}")
        talk.call("now", "{}", 1)
        talk.end("tool_calls")
    STREAMS["text"][0](upstream.talk())
    response = ask(steered_server.client, "hello", max_tool_calls=3, store=store)
    assert (response["status"], response["max_tool_calls"]) == ("completed", 3)
    results = [item for item in response["output"] if item["type"] == "function_call_output"]
    assert [item.get("legato", {}).get("is_error", False) for item in results] == [False, False, False, True]
    assert upstream.received[-1]["messages"][-1]["content"] == "It was not carried out: 3 calls are allowed in all."


@pytest.mark.parametrize("store", [True, False], ids=["stored", "not stored"])
def test_calls_without_arguments_have_none_in_json(steered_server: Server, upstream: Upstream, store: bool) -> None:
    """Many servers say nothing where there are none; who is told of the call reads an object all the same."""
    client, function = steered_server.client, {"name": "weather", "parameters": {}}

    def call_twice() -> None:
        talk = upstream.talk()
        talk.call("weather", "", 0)
        talk.call("weather", "", 1)
        talk.end("tool_calls")

    call_twice()
    with streaming(client, "hello", tools=[WEATHER], store=store) as answer:
        told = list(events(answer))
    done = [event for event in told if event["type"] == "response.function_call_arguments.done"]
    assert [event["arguments"] for event in done] == ["{}", "{}"]
    calls = told[-1]["response"]["output"]
    assert [call["arguments"] for call in calls] == ["{}", "{}"]
    assert "".join(event.get("delta", "") for event in told) == "{}{}"
    call_twice()
    message = chat(client, "hello", tools=[{"type": "function", "function": function}], store=store)["choices"][0]
    assert [call["function"]["arguments"] for call in message["message"]["tool_calls"]] == ["{}", "{}"]
    STREAMS["text"][0](upstream.talk())
    results = [{"type": "function_call_output", "call_id": call["call_id"], "output": "rain"} for call in calls]
    ask(client, [*calls, *results], tools=[WEATHER])
    sent = [call["function"] for said in upstream.received[-1]["messages"] for call in said.get("tool_calls", [])]
    assert [call["arguments"] for call in sent] == ["{}", "{}"]
