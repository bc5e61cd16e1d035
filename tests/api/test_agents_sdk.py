"""`openai-agents` against a live server: its sessions, its continuations, its tools, its streams.

The demo model obeys `call TOOL {json}` and says what it saw, so each test knows what the agent's next turn contains.
"""

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import openai
import pytest
from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIConversationsSession,
    OpenAIResponsesModel,
    RunConfig,
    Runner,
    RunResult,
    function_tool,
    set_tracing_disabled,
)

from api.server import Server
from api.wire import SEEN

asked: list[str] = []


@function_tool
def weather(city: str) -> str:
    """The weather in a city."""
    asked.append(city)
    return f"rain in {city}"


@pytest.fixture(autouse=True)
def _no_tracing() -> Iterator[None]:
    set_tracing_disabled(True)
    asked.clear()
    yield
    set_tracing_disabled(False)


@pytest.fixture
async def sdk(server: Server) -> AsyncIterator[openai.AsyncOpenAI]:
    async with server.async_sdk(_strict_response_validation=True, max_retries=0) as sdk:
        yield sdk


@pytest.fixture
def agent(sdk: openai.AsyncOpenAI) -> Agent[Any]:
    """An agent on the Responses API, with a tool that runs here, at the client."""
    model = OpenAIResponsesModel(model="gpt-4o", openai_client=sdk)
    return Agent(name="Assistant", instructions="Be kind.", model=model, tools=[weather])


QUIET = RunConfig(tracing_disabled=True)


def seen(result: RunResult) -> tuple[int, str, str]:
    """What the demo model says that it saw."""
    match = SEEN.search(result.final_output)
    assert match, result.final_output
    return int(match[1]), match[2], match[3]


async def roles(sdk: openai.AsyncOpenAI, conversation: str) -> list[str]:
    """The items of a conversation, oldest first."""
    return [
        item.role if item.type == "message" else item.type
        async for item in sdk.conversations.items.list(conversation, order="asc", limit=100)
    ]


# -- OpenAIConversationsSession


async def test_a_conversations_session_remembers(agent: Agent[Any], sdk: openai.AsyncOpenAI) -> None:
    """Each run sees the ones before; everything is in the conversation once."""
    session = OpenAIConversationsSession(openai_client=sdk)
    first = await Runner.run(agent, "my cat is called Miso", session=session, run_config=QUIET)
    second = await Runner.run(agent, "what is my cat called?", session=session, run_config=QUIET)
    assert seen(first) == (1, "my cat is called Miso", "my cat is called Miso")
    assert seen(second) == (3, "my cat is called Miso", "what is my cat called?")
    assert await roles(sdk, session.session_id) == ["user", "assistant", "user", "assistant"]
    assert len(await session.get_items()) == 4
    assert [item["role"] for item in await session.get_items(limit=2)] == ["user", "assistant"]  # type: ignore[typeddict-item]


async def test_a_conversations_session_is_resumed_by_its_id(agent: Agent[Any], sdk: openai.AsyncOpenAI) -> None:
    """Another process, or another day: the id is enough."""
    session = OpenAIConversationsSession(openai_client=sdk)
    await Runner.run(agent, "one", session=session, run_config=QUIET)
    resumed = OpenAIConversationsSession(conversation_id=session.session_id, openai_client=sdk)
    assert seen(await Runner.run(agent, "two", session=resumed, run_config=QUIET)) == (3, "one", "two")


async def test_a_conversations_session_keeps_tool_calls(agent: Agent[Any], sdk: openai.AsyncOpenAI) -> None:
    """The call and its result are items, and go to the model again in the next run."""
    session = OpenAIConversationsSession(openai_client=sdk)
    result = await Runner.run(agent, 'call weather {"city": "Oslo"}', session=session, run_config=QUIET)
    assert asked == ["Oslo"]
    assert "weather said: rain in Oslo" in result.final_output
    assert await roles(sdk, session.session_id) == ["user", "function_call", "function_call_output", "assistant"]
    after = await Runner.run(agent, "thank you", session=session, run_config=QUIET)
    assert seen(after)[0] == 3


async def test_a_conversations_session_takes_many_items_and_is_cleared(sdk: openai.AsyncOpenAI) -> None:
    """More than one page and more than one call; then it begins anew."""
    session = OpenAIConversationsSession(openai_client=sdk)
    await session.add_items([{"role": "user", "content": f"message {n}"} for n in range(45)])
    items: list[Any] = list(await session.get_items())
    assert [item["content"][0]["text"] for item in items] == [f"message {n}" for n in range(45)]
    first = session.session_id
    await session.clear_session()
    assert await session.get_items() == []
    assert session.session_id != first
    with pytest.raises(openai.NotFoundError):
        await sdk.conversations.retrieve(first)


# -- conversation_id and previous_response_id


async def test_runs_in_a_conversation(agent: Agent[Any], sdk: openai.AsyncOpenAI) -> None:
    """The server keeps the history; a tool's round trip stays in it."""
    conversation = await sdk.conversations.create()
    await Runner.run(agent, "one", conversation_id=conversation.id, run_config=QUIET)
    called = await Runner.run(agent, 'call weather {"city": "Rome"}', conversation_id=conversation.id, run_config=QUIET)
    assert asked == ["Rome"]
    assert "weather said: rain in Rome" in called.final_output
    last = await Runner.run(agent, "two", conversation_id=conversation.id, run_config=QUIET)
    assert seen(last) == (5, "one", "two")
    assert await roles(sdk, conversation.id) == [
        *("user", "assistant"),
        *("user", "function_call", "function_call_output", "assistant"),
        *("user", "assistant"),
    ]


async def test_runs_in_a_named_conversation(agent: Agent[Any], sdk: openai.AsyncOpenAI) -> None:
    """A slug does where an id does."""
    for text in ("one", "two"):
        result = await Runner.run(agent, text, conversation_id="agents-project", run_config=QUIET)
    assert seen(result) == (3, "one", "two")


async def test_runs_that_continue_a_response(agent: Agent[Any]) -> None:
    """By `previous_response_id`; a run with a tool is continued after its last response."""
    first = await Runner.run(agent, "one", run_config=QUIET)
    called = await Runner.run(
        agent, 'call weather {"city": "Oslo"}', previous_response_id=first.last_response_id, run_config=QUIET
    )
    assert "weather said: rain in Oslo" in called.final_output
    last = await Runner.run(agent, "two", previous_response_id=called.last_response_id, run_config=QUIET)
    assert seen(last) == (5, "one", "two")
    fork = await Runner.run(agent, "other", previous_response_id=first.last_response_id, run_config=QUIET)
    assert seen(fork) == (3, "one", "other")


async def test_a_run_that_continues_its_own_responses(agent: Agent[Any], sdk: openai.AsyncOpenAI) -> None:
    """`auto_previous_response_id`: only the tool's result is sent for the second step."""
    result = await Runner.run(agent, 'call weather {"city": "Oslo"}', auto_previous_response_id=True, run_config=QUIET)
    assert "weather said: rain in Oslo" in result.final_output
    assert result.last_response_id is not None
    response = await sdk.responses.retrieve(result.last_response_id)
    assert response.conversation is not None
    assert await roles(sdk, response.conversation.id) == ["user", "function_call", "function_call_output", "assistant"]


# -- streams and parallel tools


async def test_a_streamed_run_with_parallel_tools(agent: Agent[Any], sdk: openai.AsyncOpenAI) -> None:
    """Both calls of one step run at the client; the answer comes as it is told."""
    conversation = await sdk.conversations.create()
    text = 'call weather {"city": "Oslo"}\ncall weather {"city": "Rome"}'
    result = Runner.run_streamed(agent, text, conversation_id=conversation.id, run_config=QUIET)
    deltas = [
        event.data.delta
        async for event in result.stream_events()
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta"
    ]
    assert sorted(asked) == ["Oslo", "Rome"]
    assert "".join(deltas) == result.final_output
    assert "weather said: rain in Oslo\nweather said: rain in Rome" in result.final_output


async def test_an_agent_with_settings_and_metadata(agent: Agent[Any], sdk: openai.AsyncOpenAI) -> None:
    """What the SDK sends along is taken and echoed."""
    settings = ModelSettings(
        temperature=0.3, metadata={"run": "1"}, store=True, parallel_tool_calls=False, max_tokens=99
    )
    result = await Runner.run(agent.clone(model_settings=settings), "hello", run_config=QUIET)
    response = await sdk.responses.retrieve(result.last_response_id or "")
    assert (response.temperature, response.metadata, response.max_output_tokens) == (0.3, {"run": "1"}, 99)
    assert response.parallel_tool_calls is False
    assert response.instructions == "Be kind."
    assert [json.loads(tool.model_dump_json())["name"] for tool in response.tools] == ["weather"]


async def test_an_agent_on_chat_completions(sdk: openai.AsyncOpenAI) -> None:
    """The older API with a tool's round trip: the history is resent and recognised."""
    model = OpenAIChatCompletionsModel(model="gpt-4o", openai_client=sdk)
    agent = Agent(name="Assistant", instructions="Be kind.", model=model, tools=[weather])
    result = await Runner.run(agent, 'call weather {"city": "Oslo"}', run_config=QUIET)
    assert asked == ["Oslo"]
    assert "weather said: rain in Oslo" in result.final_output
