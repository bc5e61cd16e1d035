"""The tools that a client brings: custom ones, which speak plain text, those that OpenAI's servers would run, and those
that are called as a tool here is.

The provider only ever hears of functions, each name once.
"""

import json
from pathlib import Path
from typing import Any, get_args

import httpx
import openai.types.responses.tool as openai_tools
import pytest
from openai.types.conversations import ConversationItem, ConversationItemList
from openai.types.responses import ResponseItemList, ToolChoiceTypes

from api.server import Server
from api.test_wire_types import fits, is_response, is_stream
from api.upstream import Talk, Upstream
from api.wire import Json, ask, conversation_of, events, follow, get, ok, post, refused, streaming

GRAMMAR = 'start: "*** Begin Patch" /(.|\\n)+/'
PATCH: Json = {
    "type": "custom",
    "name": "patch",
    "description": "Changes files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": GRAMMAR},
}
PLAIN: Json = {"type": "custom", "name": "patch", "format": {"type": "text"}}
WEATHER: Json = {"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {}}}
NOW: Json = {"type": "function", "name": "now", "parameters": {}}
TEXT = '*** Begin Patch\n+"é\\n"\t\U0001f600\n*** End Patch'
ARGUMENTS = json.dumps({"input": TEXT})
CALL = f"call patch {ARGUMENTS}"
HOSTED: dict[str, Json] = {
    "apply_patch": {},
    "code_interpreter": {"container": {"type": "auto"}},
    "computer": {},
    "computer_use_preview": {"display_height": 1, "display_width": 1, "environment": "linux"},
    "file_search": {"vector_store_ids": ["vs_1"]},
    "image_generation": {},
    "local_shell": {},
    "mcp": {"server_label": "docs", "server_url": "https://example.com"},
    "namespace": {"name": "agents", "description": "More.", "tools": [{"type": "function", "name": "weather"}]},
    "programmatic_tool_calling": {},
    "shell": {},
    "tool_search": {},
    "web_search": {"external_web_access": False},
    "web_search_2025_08_26": {},
    "web_search_preview": {},
    "web_search_preview_2025_03_11": {},
}
ALL_HOSTED = [{"type": kind, **fields} for kind, fields in HOSTED.items()]


def call_patch(talk: Talk, arguments: str = ARGUMENTS, reason: str = "tool_calls") -> None:
    talk.call("patch", arguments)
    talk.end(reason)


def say(talk: Talk, text: str = "Done.") -> None:
    talk.say(text)
    talk.end()


def types_of(items: list[Json]) -> list[str]:
    return [item["type"] for item in items]


# -- custom tools


def test_a_call_of_a_custom_tool_is_its_text_and_is_answered_with_text(client: httpx.Client) -> None:
    """Over `previous_response_id`; the tool is told back as it was sent, and the model has the answer."""
    asked = is_response(ask(client, CALL, tools=[PATCH, WEATHER]))
    [call] = asked["output"]
    assert call["id"].startswith("ctc_")
    assert {key: call[key] for key in ("type", "name", "input", "status")} == {
        **{"type": "custom_tool_call", "name": "patch", "input": TEXT},
        "status": "completed",
    }
    assert asked["tools"][0] == PATCH
    output = {"type": "custom_tool_call_output", "call_id": call["call_id"], "output": "two files"}
    told = is_response(ask(client, [output], tools=[PATCH], previous_response_id=asked["id"]))
    assert "patch said: two files" in told["output"][-1]["content"][0]["text"]
    [item] = get(client, f"/v1/responses/{told['id']}/input_items")["data"]
    assert item["id"].startswith("ctco_")
    assert {key: item[key] for key in output} == output


def test_a_custom_tool_over_a_conversation_is_shown_wherever_items_are(client: httpx.Client) -> None:
    """Streamed, with an answer in parts: in the list, one by one, and on a page to read."""
    conversation = post(client, "/v1/conversations")["id"]
    with streaming(client, CALL, tools=[PLAIN], conversation=conversation) as answer:
        [call] = is_stream(list(events(answer)))["output"]
    parts = [{"type": "input_text", "text": "two"}, {"type": "input_image", "image_url": "https://example.com/a.png"}]
    output = {"type": "custom_tool_call_output", "call_id": call["call_id"], "output": parts}
    with streaming(client, [output], tools=[PLAIN], conversation=conversation) as answer:
        last = is_stream(list(events(answer)))
    fits(get(client, f"/v1/responses/{last['id']}/input_items"), ResponseItemList)
    at = f"/v1/conversations/{conversation}/items"
    page = get(client, at, order="asc")
    fits(page, ConversationItemList)
    assert types_of(page["data"]) == ["message", "custom_tool_call", "custom_tool_call_output", "message"]
    assert page["data"][1] == call
    for item in page["data"]:
        fits(get(client, f"{at}/{item['id']}"), ConversationItem)
    for form in ("markdown", "html"):
        shown = client.get(f"/v1/conversations/{conversation}/export", params={"format": form}).text
        assert "*** Begin Patch\n" in shown


@pytest.mark.parametrize("store", [True, False], ids=["stored", "not stored"])
def test_the_provider_is_told_of_a_function_with_one_text(
    steered_server: Server, upstream: Upstream, store: bool
) -> None:
    """The tool, its grammar, and a history of calls that a client sends again."""
    client = steered_server.client
    call_patch(upstream.talk())
    asked = is_response(ask(client, "mend it", tools=[PATCH, PLAIN | {"name": "note"}], store=store))
    [call] = asked["output"]
    say(upstream.talk())
    output = {"type": "custom_tool_call_output", "call_id": call["call_id"], "output": "two files"}
    ask(client, [{"role": "user", "content": "mend it"}, call, output], tools=[PATCH], store=store)
    patch, note = [tool["function"] for tool in upstream.received[0]["tools"] if tool["function"]["name"] != "now"]
    parameters = patch["parameters"]
    assert (parameters["required"], list(parameters["properties"])) == (["input"], ["input"])
    assert parameters["properties"]["input"]["type"] == "string"
    assert patch["description"].startswith("Changes files.\n")
    assert f"lark grammar:\n{GRAMMAR}" in patch["description"]
    assert (note["parameters"], note["description"]) == (parameters, "")
    user, said, result = upstream.received[1]["messages"]
    [sent] = said["tool_calls"]
    assert (user["content"], sent["function"]["name"], result["content"]) == ("mend it", "patch", "two files")
    assert json.loads(sent["function"]["arguments"]) == {"input": TEXT}
    assert sent["id"] == result["tool_call_id"] == call["call_id"]


@pytest.mark.parametrize("store", [True, False], ids=["stored", "not stored"])
@pytest.mark.parametrize(
    "arguments", ["*** Begin Patch", '"text"', "[]", '{"patch": "x"}', '{"input": 7}', '{"input": "x"', "{}"]
)
def test_a_model_that_does_not_call_it_as_a_function_is_taken_at_its_word(
    steered_server: Server, upstream: Upstream, arguments: str, store: bool
) -> None:
    """All that it said is the input."""
    call_patch(upstream.talk(), arguments)
    with streaming(steered_server.client, "mend it", tools=[PATCH], store=store) as answer:
        [call] = is_stream(list(events(answer)))["output"]
    assert call["input"] == arguments


@pytest.mark.parametrize("store", [True, False], ids=["stored", "not stored"])
@pytest.mark.parametrize("arguments", [ARGUMENTS, ARGUMENTS[:20]], ids=["whole", "half"])
def test_nothing_of_a_custom_call_that_was_cut_is_handed_over(
    steered_server: Server, upstream: Upstream, arguments: str, store: bool
) -> None:
    """Text that is cut looks like text that is whole."""
    call_patch(upstream.talk(), arguments, "length")
    with streaming(steered_server.client, "mend it", tools=[PATCH], store=store) as answer:
        told = list(events(answer))
    last = is_stream(told)
    assert (last["status"], last["output"]) == ("incomplete", [])
    assert "Begin Patch" not in json.dumps([event for event in told if "custom_tool_call" in event["type"]])
    assert [event["item"]["input"] for event in told if event["type"] == "response.output_item.done"] == [""]


def test_a_custom_call_is_the_same_after_a_restart_and_where_it_is_imported(fresh_server: Server) -> None:
    """Read, listed, replayed; exported, purged and taken in again."""

    def seen() -> list[Any]:
        client = fresh_server.client
        return [
            get(client, f"/v1/responses/{asked['id']}"),
            get(client, f"/v1/responses/{told['id']}/input_items"),
            get(client, f"/v1/conversations/{conversation}/items"),
        ]

    client = fresh_server.client
    with streaming(client, CALL, tools=[PATCH]) as answer:
        stream = list(events(answer))
    asked = stream[-1]["response"]
    conversation = conversation_of(asked)
    output = {"type": "custom_tool_call_output", "call_id": asked["output"][0]["call_id"], "output": "done"}
    told = ask(client, [output], tools=[PATCH], previous_response_id=asked["id"])
    before = seen()
    fresh_server.restart()
    client = fresh_server.client
    assert seen() == before
    assert follow(client, asked["id"]) == stream
    lines = client.get(f"/v1/conversations/{conversation}/export").text
    ok(client.delete(f"/v1/conversations/{conversation}"))
    ok(client.delete(f"/v1/trash/{conversation}"))
    [row] = ok(client.post("/v1/import", content=lines))["conversations"]
    assert row["outcome"] == "imported"
    assert seen() == before
    assert is_stream(follow(client, asked["id"])) == asked  # made again from its items
    assert json.loads(client.post("/v1/verify").text.splitlines()[-1])["findings"] == 0


def test_a_custom_tool_can_be_chosen(steered_server: Server, upstream: Upstream) -> None:
    """Alone or among those that are allowed; the provider knows it as a function."""
    one = {"type": "custom", "name": "patch"}
    both = [one, {"type": "function", "name": "weather"}]
    given = [one, {"type": "allowed_tools", "mode": "required", "tools": both}]
    for choice in given:
        say(upstream.talk())
        response = is_response(ask(steered_server.client, "hello", tools=[PATCH, WEATHER], tool_choice=choice))
        assert response["tool_choice"] == choice
    patch, weather = ({"type": "function", "function": {"name": name}} for name in ("patch", "weather"))
    assert [body["tool_choice"] for body in upstream.received] == [
        patch,
        {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [patch, weather]}},
    ]


# -- tools that OpenAI's servers run


def test_the_tools_of_openai_are_those_that_its_package_knows() -> None:
    """Each is a function, a custom tool, or one that is left out."""
    union, _ = get_args(openai_tools.Tool)
    known = {kind for tool in get_args(union) for kind in get_args(tool.model_fields["type"].annotation)}
    assert known == {"function", "custom", *HOSTED}


@pytest.mark.parametrize("store", [True, False], ids=["stored", "not stored"])
def test_a_tool_that_is_not_run_here_is_not_offered(steered_server: Server, upstream: Upstream, store: bool) -> None:
    """The request is answered as if it were not there, and the response says what the model was offered."""
    for tool in ALL_HOSTED:
        fits(tool, openai_tools.Tool)
    say(upstream.talk())
    response = is_response(ask(steered_server.client, "hello", tools=[*ALL_HOSTED, WEATHER, PATCH], store=store))
    assert [tool["name"] for tool in response["tools"]] == ["weather", "patch"]
    [sent] = upstream.received
    assert [tool["function"]["name"] for tool in sent["tools"]] == ["now", "weather", "patch"]


@pytest.mark.parametrize("tool", ALL_HOSTED, ids=lambda tool: tool["type"])
def test_each_of_them_may_stand_alone_and_be_counted(client: httpx.Client, tool: Json) -> None:
    """Where there is nothing else, and where tokens are asked for."""
    assert is_response(ask(client, "reply only hi", tools=[tool]))["tools"] == []
    bare = post(client, "/v1/responses/input_tokens", input="hi")["input_tokens"]
    assert post(client, "/v1/responses/input_tokens", input="hi", tools=[tool])["input_tokens"] == bare
    assert post(client, "/v1/responses/input_tokens", input="hi", tools=[tool, PATCH])["input_tokens"] > bare


def test_where_nothing_is_offered_the_provider_is_not_told_how_to_choose(tmp_path: Path, upstream: Upstream) -> None:
    """It would refuse that, unless the client insists: then it should."""
    server = Server(tmp_path / "home", **upstream.settings, LEGATO_AGENTS__BARE__MODEL="upstream")
    try:
        for choice in ("auto", "none", "required"):
            say(upstream.talk())
            body = {"tools": [{"type": "web_search"}], "tool_choice": choice, "parallel_tool_calls": True}
            assert ask(server.client, "hello", model="bare", **body)["tool_choice"] == choice
    finally:
        server.stop()
    assert [body.get("tool_choice") for body in upstream.received] == [None, None, "required"]
    assert all("tools" not in body and "parallel_tool_calls" not in body for body in upstream.received)


CHOSEN = sorted({*HOSTED, *get_args(ToolChoiceTypes.model_fields["type"].annotation)})


@pytest.mark.parametrize("kind", CHOSEN)
def test_a_tool_that_is_not_run_here_cannot_be_chosen(client: httpx.Client, kind: str) -> None:
    """Alone or among others; the refusal says which, and why."""
    allowed = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}, {"type": kind}]}
    for choice in ({"type": kind, "server_label": "docs"}, allowed):
        body = {"input": "hello", "tools": ALL_HOSTED, "tool_choice": choice}
        told = refused(client.post("/v1/responses", json=body), 400, param="tool_choice")
        assert f"The tool '{kind}' is not run here" in told["message"]


# -- tools in other places

FUNCTIONS = {"type": "namespace", "name": "functions", "description": "", "tools": [PATCH, WEATHER]}


@pytest.mark.parametrize("store", [True, False], ids=["stored", "not stored"])
def test_tools_that_stand_among_what_is_said_are_offered_and_are_not_said(
    steered_server: Server, upstream: Upstream, store: bool
) -> None:
    """As Codex sends them, each time; those of the namespace `functions` are plain functions and custom tools."""
    client = steered_server.client
    more = {"type": "additional_tools", "role": "developer", "id": "at_1", "tools": [*ALL_HOSTED, FUNCTIONS]}
    said = [more, {"role": "user", "content": "mend it"}]
    call_patch(upstream.talk())
    with streaming(client, said, tools=[NOW], store=store) as answer:
        last = is_stream(list(events(answer)))
    [call] = last["output"]
    assert (call["type"], call["input"]) == ("custom_tool_call", TEXT)
    assert [tool["name"] for tool in last["tools"]] == ["now"]
    [sent] = upstream.received
    assert [tool["function"]["name"] for tool in sent["tools"]] == ["now", "patch", "weather"]
    assert [message["content"] for message in sent["messages"]] == ["mend it"]
    say(upstream.talk())
    output = {"type": "custom_tool_call_output", "call_id": call["call_id"], "output": "done"}
    goes_on = {"conversation": conversation_of(last)} if store else {}
    before = [more, {"type": "item_reference", "id": call["id"]}] if store else [*said, call]
    told = ask(client, [*before, output], store=store, **goes_on)
    assert [message["role"] for message in upstream.received[1]["messages"]] == ["user", "assistant", "tool"]
    if store:
        page = get(client, f"/v1/conversations/{conversation_of(last)}/items", order="asc")
        assert types_of(page["data"]) == ["message", "custom_tool_call", "custom_tool_call_output", "message"]
        say(upstream.talk())
        said = [more, {"type": "item_reference", "id": told["output"][0]["id"]}, {"role": "user", "content": "thanks"}]
        ask(client, said, **goes_on)
        assert [message["role"] for message in upstream.received[2]["messages"]][2:] == ["tool", "assistant", "user"]


def test_tools_of_the_namespace_of_functions_are_tools_like_any_other(client: httpx.Client) -> None:
    """In `tools`, too; what is counted is what is offered, wherever it stands."""
    response = is_response(ask(client, CALL, tools=[FUNCTIONS]))
    assert types_of(response["output"]) == ["custom_tool_call"]
    assert [tool["name"] for tool in response["tools"]] == ["patch", "weather"]
    hi = {"role": "user", "content": "hi"}
    among = {"type": "additional_tools", "role": "developer", "tools": [FUNCTIONS]}
    counted = [
        post(client, "/v1/responses/input_tokens", **body)["input_tokens"]
        for body in ({"input": "hi", "tools": [PATCH, WEATHER]}, {"input": [among, hi]}, {"input": [hi]})
    ]
    assert counted[0] == counted[1] > counted[2]


# -- tools of one name


@pytest.mark.parametrize("store", [True, False], ids=["stored", "not stored"])
def test_a_clients_tool_takes_the_place_of_one_that_runs_here(
    steered_server: Server, upstream: Upstream, store: bool
) -> None:
    """For that request: the provider hears the name once, and the call is the client's to answer."""
    client = steered_server.client
    talk = upstream.talk()
    talk.call("now", "{}")
    talk.end("tool_calls")
    response = is_response(ask(client, "how late is it?", tools=[{**NOW, "description": "Theirs."}], store=store))
    assert types_of(response["output"]) == ["function_call"]
    [sent] = upstream.received
    assert [tool["function"]["description"] for tool in sent["tools"]] == ["Theirs."]
    if store:
        assert get(client, f"/v1/responses/{response['id']}/context")["tools"] == ["now"]
    talk = upstream.talk()
    talk.call("now", "{}")
    talk.end("tool_calls")
    say(upstream.talk())
    response = ask(client, "and now?", store=store)
    assert types_of(response["output"]) == ["function_call", "function_call_output", "message"]


def test_of_two_tools_of_a_client_that_are_called_the_same_the_last_is_meant(
    steered_server: Server, upstream: Upstream
) -> None:
    """The provider hears of that one."""
    call_patch(upstream.talk())
    response = is_response(ask(steered_server.client, "hi", tools=[{**WEATHER, "name": "patch"}, PATCH]))
    assert types_of(response["output"]) == ["custom_tool_call"]
    functions = [tool["function"] for tool in upstream.received[0]["tools"]]
    assert [function["name"] for function in functions] == ["now", "patch"]
    assert functions[1]["description"].startswith("Changes files.")
