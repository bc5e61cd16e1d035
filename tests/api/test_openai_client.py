"""The official `openai` client with only its base URL changed, its own strict validation switched on.

What a client knows from OpenAI it finds here: responses in every form, conversations and their items, background and
resume, chat, models, and tools that the client runs.
"""

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any, get_args

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam
from openai.types.responses import (
    CustomToolParam,
    FunctionToolParam,
    Response,
    ResponseFunctionToolCall,
    ResponseIncludable,
    ResponseInputParam,
)
from pydantic import BaseModel

from api.server import Server
from api.upstream import Upstream
from api.wire import SEEN
from legato.api import unheeded
from legato.api.create_response import ServiceTier

MODEL = "gpt-4o"  # clients hard-code one; the default agent answers
WEATHER: FunctionToolParam = {
    "type": "function",
    "name": "weather",
    "description": "The weather in a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "strict": False,
}
CHAT_WEATHER: ChatCompletionToolParam = {
    "type": "function",
    "function": {"name": "weather", "description": "The weather in a city.", "parameters": WEATHER["parameters"] or {}},
}
CHOSEN = {"type": "function", "function": {"name": "weather"}}
CALL = 'call weather {"city": "Oslo"}'
TWO_CALLS = 'call weather {"city": "Oslo"}\ncall weather {"city": "Rome"}'


@pytest.fixture
def sdk(server: Server) -> Iterator[openai.OpenAI]:
    """The official client, which refuses what its types do not fit."""
    with server.sdk(_strict_response_validation=True, max_retries=0) as sdk:
        yield sdk


@pytest.fixture
async def async_sdk(server: Server) -> AsyncIterator[openai.AsyncOpenAI]:
    """The same, asynchronous."""
    async with server.async_sdk(_strict_response_validation=True, max_retries=0) as sdk:
        yield sdk


def seen(text: str | None) -> tuple[int, str, str]:
    """What the demo model says that it saw."""
    match = SEEN.search(text or "")
    assert match, text
    return int(match[1]), match[2], match[3]


def conversation_of(response: Response) -> str:
    assert response.conversation is not None
    return response.conversation.id


def calls_in(response: Response) -> list[ResponseFunctionToolCall]:
    return [item for item in response.output if item.type == "function_call"]


# -- responses


def test_a_response_is_made_and_retrieved(sdk: openai.OpenAI) -> None:
    """What is made can be read again, the same."""
    made = sdk.responses.create(
        model=MODEL,
        input="reply only Hello there",
        instructions="Be kind.",
        metadata={"topic": "greeting"},
        temperature=0.5,
        max_output_tokens=50,
        user="someone",
    )
    assert made.output_text == "Hello there"
    assert made.status == "completed"
    assert (made.instructions, made.metadata, made.temperature) == ("Be kind.", {"topic": "greeting"}, 0.5)
    assert (made.max_output_tokens, made.user) == (50, "someone")
    assert sdk.responses.retrieve(made.id) == made


def test_the_model_that_answered_is_told_and_a_known_one_can_be_chosen(sdk: openai.OpenAI) -> None:
    """A hard-coded name is answered by the default agent, which says so."""
    assert sdk.responses.create(model="gpt-4o", input="hello").model == "default"
    assert sdk.responses.create(model="demo", input="hello").model == "demo"


def test_a_response_continues_another(sdk: openai.OpenAI) -> None:
    """By `previous_response_id`, in the same conversation."""
    first = sdk.responses.create(model=MODEL, input="one")
    second = sdk.responses.create(model=MODEL, input="two", previous_response_id=first.id)
    assert seen(second.output_text) == (3, "one", "two")
    assert conversation_of(second) == conversation_of(first)


def test_an_unknown_previous_response_is_the_clients_not_found_error(sdk: openai.OpenAI) -> None:
    """With the code and the parameter that the client's users look at."""
    with pytest.raises(openai.NotFoundError) as refusal:
        sdk.responses.create(model=MODEL, input="two", previous_response_id="resp_unknown")
    assert refusal.value.code == "previous_response_not_found"
    assert refusal.value.param == "previous_response_id"
    assert refusal.value.request_id
    with pytest.raises(openai.NotFoundError):
        sdk.responses.retrieve("resp_unknown")


def test_a_wrong_key_is_the_clients_authentication_error(server: Server) -> None:
    """And nothing else."""
    with openai.OpenAI(base_url=server.url + "/v1", api_key="wrong", max_retries=0) as sdk:
        with pytest.raises(openai.AuthenticationError):
            sdk.models.list()


def test_a_response_is_streamed(sdk: openai.OpenAI) -> None:
    """By `stream=True`: every event is of a known type, and the deltas are the text."""
    with sdk.responses.create(model=MODEL, input="hello", stream=True) as stream:
        events = list(stream)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[0].type == "response.created"
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    last = events[-1]
    assert last.type == "response.completed"
    assert last.response.output_text == text
    assert sdk.responses.retrieve(last.response.id) == last.response


def test_the_stream_helper_gathers_the_response(sdk: openai.OpenAI) -> None:
    """`.stream()` keeps its own snapshot; ours must agree with it."""
    with sdk.responses.stream(model=MODEL, input="write 20 words") as stream:
        deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert len(deltas) > 20
    assert final.output_text == "".join(deltas)
    assert sdk.responses.retrieve(final.id).output_text == final.output_text


def test_the_stream_helper_gathers_client_calls(sdk: openai.OpenAI) -> None:
    """Arguments come in pieces and are whole at the end."""
    with sdk.responses.stream(model=MODEL, input=TWO_CALLS, tools=[WEATHER]) as stream:
        final = stream.get_final_response()
    assert [json.loads(call.arguments)["city"] for call in calls_in(final)] == ["Oslo", "Rome"]


def test_the_stream_helper_follows_a_response_from_anywhere(sdk: openai.OpenAI) -> None:
    """By the id of a background response, from its start or after a number."""
    made = sdk.responses.create(model=MODEL, input="write 20 words", background=True)
    with sdk.responses.stream(response_id=made.id) as stream:
        whole = [event.sequence_number for event in stream]
        final = stream.get_final_response()
    with sdk.responses.stream(response_id=made.id, starting_after=10) as stream:
        rest = [event.sequence_number for event in stream]
    assert whole == list(range(len(whole)))
    assert rest == whole[11:]
    assert final.status == "completed"


def test_a_failed_stream_raises_the_clients_error(sdk: openai.OpenAI) -> None:
    """The client raises at the `error` event, with our message."""
    with sdk.responses.create(model=MODEL, input="fail 1 times", stream=True) as stream:
        with pytest.raises(openai.APIError, match="asked to fail"):
            list(stream)


def test_a_failed_response_says_why(sdk: openai.OpenAI) -> None:
    """Not streamed, it is a response whose status is `failed`."""
    failed = sdk.responses.create(model=MODEL, input="fail 1 times")
    assert failed.status == "failed"
    assert failed.error is not None
    assert "asked to fail" in failed.error.message


def test_raw_responses_give_the_headers(sdk: openai.OpenAI) -> None:
    """The conversation and the session header are in each of them, streamed or not."""
    headers = {"X-Hermes-Session-Id": "raw"}
    raw = sdk.responses.with_raw_response.create(model=MODEL, input="hello", extra_headers=headers)
    parsed = raw.parse()
    assert raw.headers["X-Legato-Conversation"] == conversation_of(parsed)
    assert raw.headers["X-Hermes-Session-Id"] == "raw"
    assert raw.request_id == raw.headers["x-request-id"]
    with sdk.responses.with_streaming_response.create(
        model=MODEL, input="again", stream=True, extra_headers=headers
    ) as streamed:
        assert streamed.headers["X-Legato-Conversation"] == conversation_of(parsed)
        streamed.close()
    chat = sdk.chat.completions.with_raw_response.create(
        model=MODEL, messages=[{"role": "user", "content": "and again"}], extra_headers=headers
    )
    assert chat.headers["X-Legato-Conversation"] == conversation_of(parsed)


def test_structured_input_and_input_items(sdk: openai.OpenAI) -> None:
    """Every item that was sent can be listed, page by page, in both orders."""
    given: ResponseInputParam = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "input_text", "text": "one"}]},
        {
            "type": "message",
            "role": "assistant",
            "id": "msg_theirs",
            "status": "completed",
            "content": [{"type": "output_text", "text": "an answer", "annotations": []}],
        },
        {"role": "user", "content": "two"},
    ]
    response = sdk.responses.create(model=MODEL, input=given)
    assert seen(response.output_text) == (3, "one", "two")
    ascending = list(sdk.responses.input_items.list(response.id, order="asc", limit=2))
    descending = list(sdk.responses.input_items.list(response.id, limit=3))
    assert [item.role for item in ascending if item.type == "message"] == ["developer", "user", "assistant", "user"]
    assert descending == ascending[::-1]


def test_items_are_referred_to_by_their_ids(fresh_server: Server) -> None:
    """As those clients do that resend a history of what is kept here: a reference stands for the item, also after a
    restart, and for its own principal alone; where the item stands already, it is not said again."""
    tool: FunctionToolParam = {"type": "function", "name": "look", "parameters": {}, "strict": False}
    sdk = fresh_server.sdk(_strict_response_validation=True)
    first = sdk.responses.create(model=MODEL, input="one", tools=[tool])
    called = sdk.responses.create(model=MODEL, input='call look {"at": 1}', tools=[tool])
    [answer], [call] = first.output, called.output
    assert isinstance(call, ResponseFunctionToolCall)
    history: ResponseInputParam = [
        {"role": "user", "content": "one"},
        {"type": "item_reference", "id": str(answer.id)},
        {"role": "user", "content": "call it"},
        {"type": "item_reference", "id": str(call.id)},
        {"type": "function_call_output", "call_id": call.call_id, "output": "seen"},
        {"role": "user", "content": "and?"},
    ]
    fresh_server.restart()
    sdk = fresh_server.sdk(_strict_response_validation=True)
    again = sdk.responses.create(model=MODEL, input=history, tools=[tool])
    kept = [item.to_dict() for item in sdk.responses.input_items.list(again.id, order="asc")]
    assert conversation_of(again) not in (conversation_of(first), conversation_of(called))
    assert [item["type"] for item in kept] == [
        "message",
        "message",
        "message",
        "function_call",
        "function_call_output",
        "message",
    ]
    assert kept[1]["content"] == answer.to_dict()["content"]
    assert (kept[3]["name"], kept[3]["call_id"]) == ("look", call.call_id)
    with pytest.raises(openai.NotFoundError, match="not found"):
        sdk.with_options(api_key=fresh_server.strangers_key).responses.create(model=MODEL, input=history)

    on = sdk.responses.create(
        model=MODEL,
        previous_response_id=first.id,
        input=[{"type": "item_reference", "id": str(answer.id)}, history[-1]],
    )
    assert seen(on.output_text) == (3, "one", "and?")
    sdk.conversations.items.delete(str(answer.id), conversation_id=conversation_of(first))
    with pytest.raises(openai.NotFoundError):
        sdk.responses.create(model=MODEL, input=history)


def test_what_a_tool_of_the_server_gave_is_referred_to_as_well(sdk: openai.OpenAI) -> None:
    """Every item of an answer may be named."""
    answer = sdk.responses.create(model=MODEL, input="call now {}")
    given: ResponseInputParam = [{"type": "item_reference", "id": str(item.id)} for item in answer.output]
    assert [item.type for item in answer.output] == ["function_call", "function_call_output", "message"]
    after = sdk.responses.create(model=MODEL, input=[*given, {"role": "user", "content": "and?"}])
    kept = [item.type for item in sdk.responses.input_items.list(after.id, order="asc")]
    assert kept == ["function_call", "function_call_output", "message", "message"]


def test_a_call_that_is_said_again_beside_its_result_is_not_said_twice(sdk: openai.OpenAI) -> None:
    """Some clients send a previous response and all of what it answers: only what comes after it is new."""
    tool: FunctionToolParam = {"type": "function", "name": "look", "parameters": {}, "strict": False}
    for name in ({"conversation": "said-again"}, {}):
        called = sdk.responses.create(model=MODEL, input="call look {}", tools=[tool], extra_body=name)
        [call] = called.output
        assert isinstance(call, ResponseFunctionToolCall)
        given: ResponseInputParam = [
            {"role": "user", "content": "call look {}"},
            {"type": "function_call", "call_id": call.call_id, "name": "look", "arguments": call.arguments},
            {"type": "function_call_output", "call_id": call.call_id, "output": "seen"},
        ]
        place = name or {"previous_response_id": called.id}
        ended = sdk.responses.create(model=MODEL, input=given, tools=[tool], extra_body=place)
        items = sdk.conversations.items.list(conversation_of(ended), order="asc")
        assert [item.type for item in items] == ["message", "function_call", "function_call_output", "message"]


def test_what_was_said_before_a_result_is_not_said_again(steered_server: Server, upstream: Upstream) -> None:
    """Some clients send all of a turn again with each result, and leave out the calls. What is new is kept."""
    tool: FunctionToolParam = {"type": "function", "name": "look", "parameters": {}, "strict": False}
    given: ResponseInputParam = [{"role": "user", "content": "look twice"}]
    with steered_server.sdk(_strict_response_validation=True) as sdk:
        for _ in range(2):
            talk = upstream.talk()
            talk.call("look", "{}")
            talk.end("tool_calls")
            asked = sdk.responses.create(model=MODEL, input=given, tools=[tool], conversation="left-out")
            [call] = asked.output
            assert isinstance(call, ResponseFunctionToolCall)
            given.append({"type": "function_call_output", "call_id": call.call_id, "output": "seen"})
        talk = upstream.talk()
        talk.say("Twice.")
        talk.end()
        given.insert(2, {"role": "user", "content": "and mind the step"})
        ended = sdk.responses.create(model=MODEL, input=given, tools=[tool], conversation="left-out")
        items = list(sdk.conversations.items.list(conversation_of(ended), order="asc"))
    result = ["function_call", "function_call_output"]
    assert [item.type for item in items] == [
        "message",
        *result,
        *result[:1],
        "message",
        *result[1:],
        "message",
    ]
    assert [m["role"] for m in upstream.received[-1]["messages"]][:5] == [
        "user",
        "assistant",
        "tool",
        "assistant",
        "tool",
    ]


def test_results_that_stand_between_their_calls_are_all_kept(sdk: openai.OpenAI) -> None:
    """A loop over what a response holds, which appends each call and then its result."""
    tool: FunctionToolParam = {"type": "function", "name": "look", "parameters": {}, "strict": False}
    for place in ({"conversation": "in-between"}, {}):
        asked = sdk.responses.create(model=MODEL, input="call look {}\ncall look {}", tools=[tool], extra_body=place)
        given: ResponseInputParam = [{"role": "user", "content": "call look {}\ncall look {}"}]
        for call in asked.output:
            assert isinstance(call, ResponseFunctionToolCall)
            given.append({"type": "function_call", "call_id": call.call_id, "name": "look", "arguments": "{}"})
            given.append({"type": "function_call_output", "call_id": call.call_id, "output": "seen"})
        given.append({"role": "user", "content": "and?"})
        ended = sdk.responses.create(
            model=MODEL, input=given, tools=[tool], extra_body=place or {"previous_response_id": asked.id}
        )
        kept = [item.type for item in sdk.responses.input_items.list(ended.id, order="asc")]
        assert kept == ["function_call_output", "function_call_output", "message"]


def test_a_reference_to_what_the_model_no_longer_sees_is_said(sdk: openai.OpenAI) -> None:
    """It was taken back, and whoever refers to it wants it seen. What is seen is not said twice, in a fork neither."""
    first = sdk.responses.create(model=MODEL, input="one")
    second = sdk.responses.create(model=MODEL, input="two", previous_response_id=first.id)
    given: ResponseInputParam = [
        {"type": "item_reference", "id": str(first.output[0].id)},
        {"type": "item_reference", "id": str(second.output[0].id)},
        {"role": "user", "content": "and?"},
    ]
    fork = sdk.responses.create(model=MODEL, input="elsewhere", previous_response_id=first.id)
    for before, said in ((second, 1), (fork, 2)):
        after = sdk.responses.create(model=MODEL, input=given, previous_response_id=before.id)
        assert len(list(sdk.responses.input_items.list(after.id))) == said
    sdk.post(f"/conversations/{conversation_of(second)}/rewind", cast_to=object, body={"to": second.output[0].id})
    sdk.post(f"/conversations/{conversation_of(second)}/rewind", cast_to=object, body={"to": first.output[0].id})
    after = sdk.responses.create(model=MODEL, input=given, extra_body={"conversation": conversation_of(second)})
    assert len(list(sdk.responses.input_items.list(after.id))) == 2


def test_a_repeated_request_is_answered_though_what_it_speaks_of_is_gone(sdk: openai.OpenAI) -> None:
    """Under its key: the response that it goes on from was deleted since, and so was what it refers to."""
    tool: FunctionToolParam = {"type": "function", "name": "look", "parameters": {}, "strict": False}
    asked = sdk.responses.create(model=MODEL, input="call look {}", tools=[tool])
    [call] = asked.output
    assert isinstance(call, ResponseFunctionToolCall)
    given: ResponseInputParam = [
        {"type": "item_reference", "id": str(call.id)},
        {"type": "function_call_output", "call_id": call.call_id, "output": "seen"},
    ]
    bodies = [
        {"input": given, "previous_response_id": asked.id},
        {"input": given, "conversation": "speaks-of"},
    ]

    def send(n: int) -> str:
        key = {"headers": {"Idempotency-Key": f"speaks of {n}"}}
        return sdk.post("/responses", cast_to=Response, body=bodies[n], options=key).id

    first = [send(0), send(1)]
    sdk.responses.delete(asked.id)
    assert [send(0), send(1)] == first
    for body in bodies:
        with pytest.raises(openai.NotFoundError):
            sdk.post("/responses", cast_to=Response, body=body)
    sdk.responses.delete(first[1])
    new: ResponseInputParam = [{"role": "user", "content": "and?"}, given[1]]
    assert sdk.responses.create(model=MODEL, input=new, extra_body={"conversation": "speaks-of"}).status == "completed"


def test_what_is_referred_to_counts_as_if_it_had_been_sent(sdk: openai.OpenAI) -> None:
    """A few bytes may stand for many, and a body has its bounds."""
    words = "word " * 20_000
    told = sdk.responses.create(model=MODEL, input=f"reply only {words}")
    reference: ResponseInputParam = [{"type": "item_reference", "id": str(told.output[0].id)}]
    with pytest.raises(openai.APIStatusError) as refused:
        sdk.responses.create(model=MODEL, input=[*(reference * 1_000), {"role": "user", "content": "and?"}])
    assert refused.value.status_code == 413


def test_a_reference_to_what_came_after_the_named_response_is_kept(sdk: openai.OpenAI) -> None:
    """A client that goes on from an earlier response brings what was said since as references: in a fork it is new."""
    first = sdk.responses.create(model=MODEL, input="one")
    second = sdk.responses.create(model=MODEL, input="two", previous_response_id=first.id)
    [answer] = second.output
    given: ResponseInputParam = [
        {"role": "user", "content": "two"},
        {"type": "item_reference", "id": str(answer.id)},
        {"role": "user", "content": "three"},
    ]
    third = sdk.responses.create(model=MODEL, input=given, previous_response_id=first.id)
    assert seen(third.output_text) == (5, "one", "three")


def test_a_background_response_is_polled_to_its_end(sdk: openai.OpenAI) -> None:
    """It is told at once, and read until it has ended."""
    response = sdk.responses.create(model=MODEL, input="write 50 words", background=True)
    assert response.background
    assert response.status in ("queued", "in_progress", "completed")
    with sdk.responses.retrieve(response.id, stream=True) as stream:
        for _ in stream:
            pass
    ended = sdk.responses.retrieve(response.id)
    assert ended.status == "completed"
    assert "word50" in ended.output_text


def test_a_background_stream_is_left_and_resumed(sdk: openai.OpenAI) -> None:
    """`starting_after` gives the rest, and nothing twice."""
    with sdk.responses.create(model=MODEL, input="write 50 words", background=True, stream=True) as stream:
        before = [next(stream) for _ in range(7)]
    begun = before[0]
    assert begun.type == "response.created"
    with sdk.responses.retrieve(begun.response.id, stream=True, starting_after=6) as stream:
        after = list(stream)
    events = before + after
    assert [event.sequence_number for event in events] == list(range(len(events)))
    last = events[-1]
    assert last.type == "response.completed"
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert last.response.output_text == text


def test_a_running_response_is_cancelled(sdk: openai.OpenAI) -> None:
    """Cancelling is the only thing that stops a turn; doing it again changes nothing."""
    response = sdk.responses.create(model=MODEL, input="sleep 600", background=True)
    cancelled = sdk.responses.cancel(response.id)
    assert cancelled.status == "cancelled"
    assert sdk.responses.cancel(response.id) == cancelled
    assert sdk.responses.retrieve(response.id) == cancelled


def test_a_response_is_deleted(sdk: openai.OpenAI) -> None:
    """It cannot be read nor continued; its conversation stays."""
    response = sdk.responses.create(model=MODEL, input="hello")
    sdk.responses.delete(response.id)
    with pytest.raises(openai.NotFoundError):
        sdk.responses.retrieve(response.id)
    with pytest.raises(openai.NotFoundError) as refusal:
        sdk.responses.create(model=MODEL, input="more", previous_response_id=response.id)
    assert refusal.value.code == "previous_response_not_found"
    assert sdk.conversations.retrieve(conversation_of(response)).id == conversation_of(response)


class City(BaseModel):
    name: str
    people: int


def test_a_parsed_response(sdk: openai.OpenAI) -> None:
    """Structured output goes through: the format is echoed and the text is parsed."""
    response = sdk.responses.parse(model=MODEL, input='reply only {"name": "Oslo", "people": 700000}', text_format=City)
    assert response.output_parsed == City(name="Oslo", people=700000)
    assert response.text is not None
    assert response.text.format is not None
    assert response.text.format.type == "json_schema"


def test_every_value_that_the_client_knows_is_taken(sdk: openai.OpenAI) -> None:
    """What asks for something that is not here changes nothing."""
    assert get_args(unheeded.Includable) == get_args(ResponseIncludable)
    for tier in get_args(ServiceTier):
        response = sdk.responses.create(
            model=MODEL,
            input="hello",
            include=list(get_args(ResponseIncludable)),
            service_tier=tier,
            prompt={"id": "pmpt_1", "variables": {"city": "Oslo"}, "version": "2"},
            prompt_cache_retention="24h",
            prompt_cache_options={"mode": "explicit", "ttl": "30m"},
            reasoning={"context": "all_turns", "mode": "pro", "effort": "low"},
            moderation={"model": "omni"},
        )
        assert (response.status, response.service_tier) == ("completed", tier)
    assert list(sdk.responses.input_items.list(response.id, include=["message.input_image.image_url"]))
    assert sdk.responses.retrieve(response.id, include=["reasoning.encrypted_content"]) == response


def test_every_value_that_the_client_knows_is_taken_in_a_chat(sdk: openai.OpenAI) -> None:
    """The same in a chat."""
    completion = sdk.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "reply only fine"}],
        tools=[CHAT_WEATHER],
        tool_choice={"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [CHOSEN]}},
        response_format={"type": "json_schema", "json_schema": {"name": "city", "schema": {"type": "object"}}},
        service_tier="fast",
        logprobs=True,
        top_logprobs=20,
        store=True,
        verbosity="low",
        modalities=["text"],
        prompt_cache_retention="in_memory",
    )
    assert completion.choices[0].message.content == "fine"


# -- conversations


def test_a_conversation_and_its_items(sdk: openai.OpenAI) -> None:
    """Created with items, changed, listed in both orders, read one by one, deleted."""
    conversation = sdk.conversations.create(
        metadata={"topic": "cats"}, items=[{"type": "message", "role": "user", "content": "one"}]
    )
    assert sdk.conversations.retrieve(conversation.id) == conversation
    changed = sdk.conversations.update(conversation.id, metadata={"topic": "dogs"})
    assert changed.metadata == {"topic": "dogs"}
    added = sdk.conversations.items.create(
        conversation.id,
        items=[
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "two"}]},  # type: ignore[list-item,typeddict-item]
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "three"}]},
        ],
    )
    ascending = list(sdk.conversations.items.list(conversation.id, order="asc", limit=2))
    assert list(sdk.conversations.items.list(conversation.id)) == ascending[::-1]
    assert ascending[1:] == added.data
    for item in ascending:
        assert item.id is not None
        assert sdk.conversations.items.retrieve(item.id, conversation_id=conversation.id) == item
    deleted = sdk.conversations.delete(conversation.id)
    assert (deleted.id, deleted.deleted) == (conversation.id, True)
    with pytest.raises(openai.NotFoundError):
        sdk.conversations.retrieve(conversation.id)


def test_responses_in_a_conversation(sdk: openai.OpenAI) -> None:
    """By its id, as a string and as an object; the items are those of its turns."""
    conversation = sdk.conversations.create(items=[{"type": "message", "role": "user", "content": "one"}])
    sdk.responses.create(model=MODEL, input="two", conversation=conversation.id)
    last = sdk.responses.create(model=MODEL, input="three", conversation={"id": conversation.id})
    assert conversation_of(last) == conversation.id
    assert seen(last.output_text) == (4, "one", "three")
    items = list(sdk.conversations.items.list(conversation.id, order="asc"))
    assert [item.role for item in items if item.type == "message"] == ["user", "user", "assistant", "user", "assistant"]
    assert items[-1].id == last.output[0].id


def test_a_named_conversation(sdk: openai.OpenAI) -> None:
    """A slug is made on first use, and stands wherever an id does."""
    first = sdk.responses.create(model=MODEL, input="one", conversation="sdk-project")
    second = sdk.responses.create(model=MODEL, input="two", conversation="sdk-project")
    assert conversation_of(second) == conversation_of(first)
    assert sdk.conversations.retrieve("sdk-project").id == conversation_of(first)
    assert len(list(sdk.conversations.items.list("sdk-project"))) == 4


def test_an_unknown_conversation_is_not_found_and_not_made(sdk: openai.OpenAI) -> None:
    """An id never creates."""
    with pytest.raises(openai.NotFoundError) as refusal:
        sdk.responses.create(model=MODEL, input="one", conversation="conv_" + "0" * 32)
    assert refusal.value.code == "conversation_not_found"
    with pytest.raises(openai.NotFoundError):
        sdk.conversations.items.list("conv_" + "0" * 32)


# -- tools that the client runs


def test_a_client_tool_over_previous_response_id(sdk: openai.OpenAI) -> None:
    """The call is handed to the client; its output goes on in the same conversation."""
    asked = sdk.responses.create(model=MODEL, input=CALL, tools=[WEATHER])
    [call] = calls_in(asked)
    assert (call.name, json.loads(call.arguments), call.status) == ("weather", {"city": "Oslo"}, "completed")
    told = sdk.responses.create(
        model=MODEL,
        tools=[WEATHER],
        previous_response_id=asked.id,
        input=[{"type": "function_call_output", "call_id": call.call_id, "output": "rain"}],
    )
    assert told.output_text.startswith("This is Legato's built-in demo model")
    assert "weather said: rain" in told.output_text
    assert conversation_of(told) == conversation_of(asked)
    assert [tool.type for tool in told.tools] == ["function"]


def test_a_client_tool_over_a_conversation_streamed(sdk: openai.OpenAI) -> None:
    """The same by the conversation's id, in streams."""
    conversation = sdk.conversations.create()
    with sdk.responses.stream(model=MODEL, input=CALL, tools=[WEATHER], conversation=conversation.id) as stream:
        [call] = calls_in(stream.get_final_response())
    output: ResponseInputParam = [{"type": "function_call_output", "call_id": call.call_id, "output": "rain"}]
    with sdk.responses.stream(model=MODEL, input=output, tools=[WEATHER], conversation=conversation.id) as stream:
        told = stream.get_final_response()
    assert "weather said: rain" in told.output_text
    items = list(sdk.conversations.items.list(conversation.id, order="asc"))
    assert [item.type for item in items] == ["message", "function_call", "function_call_output", "message"]


def test_a_custom_tool_over_previous_response_id(sdk: openai.OpenAI) -> None:
    """The helper for streams gathers its text, and an answer in text goes on in the same conversation."""
    patch: CustomToolParam = {"type": "custom", "name": "patch", "format": {"type": "text"}}
    said = 'call patch {"input": "+ \\"one\\"\\n"}'
    with sdk.responses.stream(model=MODEL, input=said, tools=[patch]) as stream:
        deltas = [event.delta for event in stream if event.type == "response.custom_tool_call_input.delta"]
        asked = stream.get_final_response()
    [call] = [item for item in asked.output if item.type == "custom_tool_call"]
    assert (call.name, call.input) == ("patch", '+ "one"\n')
    assert "".join(deltas) == call.input
    assert sdk.responses.retrieve(asked.id).output == asked.output
    told = sdk.responses.create(
        model=MODEL,
        tools=[patch, {"type": "web_search"}],
        previous_response_id=asked.id,
        input=[{"type": "custom_tool_call_output", "call_id": call.call_id, "output": "done"}],
    )
    assert "patch said: done" in told.output_text
    assert [tool.type for tool in told.tools] == ["custom"]


def test_parallel_client_calls(sdk: openai.OpenAI) -> None:
    """Two calls of one step, answered together and in any order."""
    asked = sdk.responses.create(model=MODEL, input=TWO_CALLS, tools=[WEATHER])
    oslo, rome = calls_in(asked)
    assert oslo.call_id != rome.call_id
    told = sdk.responses.create(
        model=MODEL,
        tools=[WEATHER],
        previous_response_id=asked.id,
        input=[
            {"type": "function_call_output", "call_id": rome.call_id, "output": "sun"},
            {
                "type": "function_call_output",
                "call_id": oslo.call_id,
                "output": [{"type": "input_text", "text": "rain"}],
            },
        ],
    )
    assert "weather said: rain\nweather said: sun" in told.output_text


def test_a_server_tool_runs_here_and_is_shown(sdk: openai.OpenAI) -> None:
    """Its call and its result are items of the response, and the answer follows in the same turn."""
    response = sdk.responses.create(model=MODEL, input="call now {}", tools=[WEATHER])
    assert [item.type for item in response.output] == ["function_call", "function_call_output", "message"]
    assert "now said:" in response.output_text


def test_a_client_tool_and_a_server_tool_in_one_step(sdk: openai.OpenAI) -> None:
    """The server's runs at once; the client's is left to the client, and then both are known."""
    asked = sdk.responses.create(model=MODEL, input=f"{CALL}\ncall now {{}}", tools=[WEATHER])
    [call] = [call for call in calls_in(asked) if call.name == "weather"]
    told = sdk.responses.create(
        model=MODEL,
        tools=[WEATHER],
        previous_response_id=asked.id,
        input=[{"type": "function_call_output", "call_id": call.call_id, "output": "rain"}],
    )
    assert "weather said: rain" in told.output_text
    assert "now said: 20" in told.output_text


# -- chat


def test_a_chat_completion(sdk: openai.OpenAI) -> None:
    """Plain: content, reason, usage, and the name of who answered."""
    answer = sdk.chat.completions.create(
        model=MODEL,
        messages=[{"role": "system", "content": "Be kind."}, {"role": "user", "content": "reply only Hello there"}],
    )
    [choice] = answer.choices
    assert (choice.message.content, choice.finish_reason) == ("Hello there", "stop")
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens > 0
    assert answer.model == "default"


def test_a_chat_stream_with_usage(sdk: openai.OpenAI) -> None:
    """The usage comes in a chunk of its own at the end; every chunk before says null."""
    with sdk.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "write 5 words"}],
        stream=True,
        stream_options={"include_usage": True},
    ) as stream:
        *chunks, last = list(stream)
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.completion_tokens > 0
    assert all(chunk.usage is None for chunk in chunks)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text.startswith("word1 word2 word3 word4 word5")
    assert [chunk.choices[0].finish_reason for chunk in chunks][-1] == "stop"
    assert len({chunk.id for chunk in [*chunks, last]}) == 1


def test_a_chat_stream_without_usage_has_none(sdk: openai.OpenAI) -> None:
    """Nobody asked for it."""
    with sdk.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "hello"}], stream=True
    ) as stream:
        chunks = list(stream)
    assert all(chunk.usage is None and len(chunk.choices) == 1 for chunk in chunks)


def test_the_chat_stream_helper_gathers_the_completion(sdk: openai.OpenAI) -> None:
    """`.stream()` keeps its own snapshot."""
    with sdk.chat.completions.stream(model=MODEL, messages=[{"role": "user", "content": "hello"}]) as stream:
        final = stream.get_final_completion()
    assert seen(final.choices[0].message.content) == (1, "hello", "hello")


@pytest.mark.parametrize("streamed", [False, True])
def test_chat_tools_round_trip_with_parallel_calls(sdk: openai.OpenAI, streamed: bool) -> None:
    """The client sends the whole history again, with the results; the model sees each at its call."""
    messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": TWO_CALLS}]
    message = _chatted(sdk, messages, streamed)
    assert [json.loads(call["function"]["arguments"])["city"] for call in message["tool_calls"]] == ["Oslo", "Rome"]
    messages.append(message)  # type: ignore[arg-type]
    for call, weather in zip(message["tool_calls"], ("rain", "sun"), strict=True):
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": weather})
    told = _chatted(sdk, messages, streamed)["content"]
    assert "weather said: rain\nweather said: sun" in told
    assert seen(told)[0] == 1


def test_chat_tools_in_a_session(sdk: openai.OpenAI) -> None:
    """With a session header the results are enough: the calls are in the log."""
    session = {"X-Hermes-Session-Id": "chat tools"}
    asked = sdk.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": CALL}], tools=[CHAT_WEATHER], extra_headers=session
    )
    assert asked.choices[0].finish_reason == "tool_calls"
    [call] = asked.choices[0].message.tool_calls or []
    told = sdk.chat.completions.create(
        model=MODEL,
        messages=[{"role": "tool", "tool_call_id": call.id, "content": "rain"}],
        tools=[CHAT_WEATHER],
        extra_headers=session,
    )
    assert "weather said: rain" in (told.choices[0].message.content or "")


def test_a_failed_chat_is_an_error_of_the_server(sdk: openai.OpenAI) -> None:
    """Which the client may retry; in a stream it is raised where it happens."""
    messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": "fail 1 times"}]
    with pytest.raises(openai.InternalServerError, match="asked to fail"):
        sdk.chat.completions.create(model=MODEL, messages=messages)
    with sdk.chat.completions.create(model=MODEL, messages=messages, stream=True) as stream:
        with pytest.raises(openai.APIError, match="asked to fail"):
            list(stream)


def _chatted(sdk: openai.OpenAI, messages: list[ChatCompletionMessageParam], streamed: bool) -> dict[str, Any]:
    """The assistant's message, ready to be sent again."""
    if streamed:
        with sdk.chat.completions.stream(model=MODEL, messages=messages, tools=[CHAT_WEATHER]) as stream:
            final: Any = stream.get_final_completion()
    else:
        final = sdk.chat.completions.create(model=MODEL, messages=messages, tools=[CHAT_WEATHER])
    choice = final.choices[0]
    assert choice.finish_reason == ("tool_calls" if choice.message.tool_calls else "stop")
    calls = [
        {"id": call.id, "type": "function", "function": call.function.model_dump(include={"name", "arguments"})}
        for call in choice.message.tool_calls or ()
    ]
    message = {"role": "assistant", "content": choice.message.content}
    return {**message, "tool_calls": calls} if calls else message


# -- models


def test_models_are_listed_and_retrieved(sdk: openai.OpenAI) -> None:
    """Agents and models share one list."""
    models = list(sdk.models.list())
    assert {"default", "demo"} <= {model.id for model in models}
    for model in models:
        assert sdk.models.retrieve(model.id) == model
    with pytest.raises(openai.NotFoundError) as refusal:
        sdk.models.retrieve("no/such-model")
    assert refusal.value.code == "model_not_found"


# -- asynchronous


async def test_the_async_client_does_the_same(async_sdk: openai.AsyncOpenAI) -> None:
    """Responses, streams, the helper, chat, conversations and pages."""
    sdk = async_sdk
    first = await sdk.responses.create(model=MODEL, input="one")
    events = []
    async with await sdk.responses.create(
        model=MODEL, input="two", previous_response_id=first.id, stream=True
    ) as stream:
        async for event in stream:
            events.append(event)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    async with sdk.responses.stream(model=MODEL, input="three", conversation=conversation_of(first)) as helper:
        final = await helper.get_final_response()
    assert seen(final.output_text) == (5, "one", "three")
    items = [item async for item in sdk.conversations.items.list(conversation_of(first), order="asc", limit=4)]
    assert len(items) == 6
    raw = await sdk.responses.with_raw_response.retrieve(first.id)
    assert raw.parse() == first
    async with sdk.chat.completions.stream(
        model=MODEL, messages=[{"role": "user", "content": "hello"}], stream_options={"include_usage": True}
    ) as chat:
        completion = await chat.get_final_completion()
    assert completion.usage is not None
    assert "default" in [model.id async for model in sdk.models.list()]


async def test_the_async_client_resumes_in_the_background(async_sdk: openai.AsyncOpenAI) -> None:
    """A stream that was left goes on where it stopped."""
    sdk = async_sdk
    before = []
    async with await sdk.responses.create(model=MODEL, input="write 50 words", background=True, stream=True) as stream:
        async for event in stream:
            before.append(event)
            if event.sequence_number == 9:
                break
    begun = before[0]
    assert begun.type == "response.created"
    async with await sdk.responses.retrieve(begun.response.id, stream=True, starting_after=9) as stream:
        after = [event async for event in stream]
    assert [event.sequence_number for event in before + after] == list(range(len(before + after)))
    assert after[-1].type == "response.completed"
