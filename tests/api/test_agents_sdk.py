"""`openai-agents` against a live server: its sessions, its continuations, its tools, its streams.

The demo model obeys `call TOOL {json}` and says what it saw, so each test knows what the agent's next turn contains.
"""

import importlib
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import openai
import pytest

from api.server import Server
from api.wire import SEEN

asked: list[str] = []


def weather(city: str) -> str:
    """The weather in a city."""
    asked.append(city)
    return f"rain in {city}"


@pytest.fixture(scope="module")
def agents() -> ModuleType:
    """The library. It is loaded by whoever uses it, not by every process that collects tests: that takes seconds."""
    return importlib.import_module("agents")


@pytest.fixture(autouse=True)
def _no_tracing(agents: ModuleType) -> Iterator[None]:
    agents.set_tracing_disabled(True)
    asked.clear()
    yield
    agents.set_tracing_disabled(False)


@pytest.fixture
async def sdk(server: Server) -> AsyncIterator[openai.AsyncOpenAI]:
    async with server.async_sdk(_strict_response_validation=True, max_retries=0) as sdk:
        yield sdk


@pytest.fixture
def agent(agents: ModuleType, sdk: openai.AsyncOpenAI) -> Any:
    """An agent on the Responses API, with a tool that runs here, at the client."""
    model = agents.OpenAIResponsesModel(model="gpt-4o", openai_client=sdk)
    return agents.Agent(name="Assistant", instructions="Be kind.", model=model, tools=[agents.function_tool(weather)])


def seen(result: Any) -> tuple[int, str, str]:
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


async def test_a_conversations_session_remembers(agents: ModuleType, agent: Any, sdk: openai.AsyncOpenAI) -> None:
    """Each run sees the ones before; everything is in the conversation once."""
    session = agents.OpenAIConversationsSession(openai_client=sdk)
    first = await agents.Runner.run(agent, "my cat is called Miso", session=session)
    second = await agents.Runner.run(agent, "what is my cat called?", session=session)
    assert seen(first) == (1, "my cat is called Miso", "my cat is called Miso")
    assert seen(second) == (3, "my cat is called Miso", "what is my cat called?")
    assert await roles(sdk, session.session_id) == ["user", "assistant", "user", "assistant"]
    assert len(await session.get_items()) == 4
    assert [item["role"] for item in await session.get_items(limit=2)] == ["user", "assistant"]  # type: ignore[typeddict-item]


async def test_a_conversations_session_is_resumed_by_its_id(
    agents: ModuleType, agent: Any, sdk: openai.AsyncOpenAI
) -> None:
    """Another process, or another day: the id is enough."""
    session = agents.OpenAIConversationsSession(openai_client=sdk)
    await agents.Runner.run(agent, "one", session=session)
    resumed = agents.OpenAIConversationsSession(conversation_id=session.session_id, openai_client=sdk)
    assert seen(await agents.Runner.run(agent, "two", session=resumed)) == (3, "one", "two")


async def test_a_conversations_session_keeps_tool_calls(
    agents: ModuleType, agent: Any, sdk: openai.AsyncOpenAI
) -> None:
    """The call and its result are items, and go to the model again in the next run."""
    session = agents.OpenAIConversationsSession(openai_client=sdk)
    result = await agents.Runner.run(agent, 'call weather {"city": "Oslo"}', session=session)
    assert asked == ["Oslo"]
    assert "weather said: rain in Oslo" in result.final_output
    assert await roles(sdk, session.session_id) == ["user", "function_call", "function_call_output", "assistant"]
    after = await agents.Runner.run(agent, "thank you", session=session)
    assert seen(after)[0] == 3


async def test_a_conversations_session_takes_many_items_and_is_cleared(
    agents: ModuleType, sdk: openai.AsyncOpenAI
) -> None:
    """More than one page and more than one call; then it begins anew."""
    session = agents.OpenAIConversationsSession(openai_client=sdk)
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


async def test_runs_in_a_conversation(agents: ModuleType, agent: Any, sdk: openai.AsyncOpenAI) -> None:
    """The server keeps the history; a tool's round trip stays in it."""
    conversation = await sdk.conversations.create()
    await agents.Runner.run(agent, "one", conversation_id=conversation.id)
    called = await agents.Runner.run(agent, 'call weather {"city": "Rome"}', conversation_id=conversation.id)
    assert asked == ["Rome"]
    assert "weather said: rain in Rome" in called.final_output
    last = await agents.Runner.run(agent, "two", conversation_id=conversation.id)
    assert seen(last) == (5, "one", "two")
    assert await roles(sdk, conversation.id) == [
        *("user", "assistant"),
        *("user", "function_call", "function_call_output", "assistant"),
        *("user", "assistant"),
    ]


async def test_runs_in_a_named_conversation(agents: ModuleType, agent: Any, sdk: openai.AsyncOpenAI) -> None:
    """A slug does where an id does."""
    for text in ("one", "two"):
        result = await agents.Runner.run(agent, text, conversation_id="agents-project")
    assert seen(result) == (3, "one", "two")


async def test_runs_that_continue_a_response(agents: ModuleType, agent: Any) -> None:
    """By `previous_response_id`; a run with a tool is continued after its last response."""
    first = await agents.Runner.run(agent, "one")
    called = await agents.Runner.run(
        agent, 'call weather {"city": "Oslo"}', previous_response_id=first.last_response_id
    )
    assert "weather said: rain in Oslo" in called.final_output
    last = await agents.Runner.run(agent, "two", previous_response_id=called.last_response_id)
    assert seen(last) == (5, "one", "two")
    fork = await agents.Runner.run(agent, "other", previous_response_id=first.last_response_id)
    assert seen(fork) == (3, "one", "other")


async def test_a_run_that_continues_its_own_responses(agents: ModuleType, agent: Any, sdk: openai.AsyncOpenAI) -> None:
    """`auto_previous_response_id`: only the tool's result is sent for the second step."""
    result = await agents.Runner.run(agent, 'call weather {"city": "Oslo"}', auto_previous_response_id=True)
    assert "weather said: rain in Oslo" in result.final_output
    assert result.last_response_id is not None
    response = await sdk.responses.retrieve(result.last_response_id)
    assert response.conversation is not None
    assert await roles(sdk, response.conversation.id) == ["user", "function_call", "function_call_output", "assistant"]


# -- streams and parallel tools


async def test_a_streamed_run_with_parallel_tools(agents: ModuleType, agent: Any, sdk: openai.AsyncOpenAI) -> None:
    """Both calls of one step run at the client; the answer comes as it is told."""
    conversation = await sdk.conversations.create()
    text = 'call weather {"city": "Oslo"}\ncall weather {"city": "Rome"}'
    result = agents.Runner.run_streamed(agent, text, conversation_id=conversation.id)
    deltas = [
        event.data.delta
        async for event in result.stream_events()
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta"
    ]
    assert sorted(asked) == ["Oslo", "Rome"]
    assert "".join(deltas) == result.final_output
    assert "weather said: rain in Oslo\nweather said: rain in Rome" in result.final_output


async def test_an_agent_with_settings_and_metadata(agents: ModuleType, agent: Any, sdk: openai.AsyncOpenAI) -> None:
    """What the SDK sends along is taken and echoed."""
    settings = agents.ModelSettings(
        temperature=0.3, metadata={"run": "1"}, store=True, parallel_tool_calls=False, max_tokens=99
    )
    result = await agents.Runner.run(agent.clone(model_settings=settings), "hello")
    response = await sdk.responses.retrieve(result.last_response_id or "")
    assert (response.temperature, response.metadata, response.max_output_tokens) == (0.3, {"run": "1"}, 99)
    assert response.parallel_tool_calls is False
    assert response.instructions == "Be kind."
    assert [json.loads(tool.model_dump_json())["name"] for tool in response.tools] == ["weather"]


async def test_an_agent_on_chat_completions(agents: ModuleType, sdk: openai.AsyncOpenAI) -> None:
    """The older API with a tool's round trip: the history is resent and recognised."""
    model = agents.OpenAIChatCompletionsModel(model="gpt-4o", openai_client=sdk)
    agent = agents.Agent(name="Assistant", instructions="Be kind.", model=model, tools=[agents.function_tool(weather)])
    result = await agents.Runner.run(agent, 'call weather {"city": "Oslo"}')
    assert asked == ["Oslo"]
    assert "weather said: rain in Oslo" in result.final_output


async def test_a_compaction_session_replaces_its_history_and_goes_on(
    agents: ModuleType, server: Server, tmp_path: Path
) -> None:
    """It keeps its own history, and lets us make less of it."""
    async with server.async_sdk() as sdk:  # not strict: what is compacted holds messages of users, which no output does
        session = importlib.import_module("agents.memory").OpenAIResponsesCompactionSession(
            "talk",
            agents.SQLiteSession("talk", tmp_path / "session.db"),
            client=sdk,
            model="gpt-4.1",
            should_trigger_compaction=lambda context: len(context["compaction_candidate_items"]) >= 3,
        )
        agent = agents.Agent(name="helper", model=agents.OpenAIResponsesModel("demo", sdk))
        for n in range(6):
            result = await agents.Runner.run(agent, f"message {n}", session=session)
        assert "compaction" in [item.get("type") for item in await session.get_items()]
        assert seen(result)[1:] == ("message 0", "message 5")
