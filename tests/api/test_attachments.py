"""Images and files: kept once as blobs, in the log by reference, and whole again for the model and for any client."""

import base64
from typing import Any

import httpx
import pytest

from api.server import Server
from api.upstream import Upstream
from api.wire import ask, chat, get, ok, post, refused

DATA = bytes(range(256)) * 40
PICTURE = "data:image/png;base64," + base64.b64encode(DATA).decode()
PAPER = "data:application/pdf;base64," + base64.b64encode(b"a paper" * 500).decode()
REMOTE = "https://example.com/cat.png"


def shown(*parts: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [{"type": "input_text", "text": "what is this?"}, *parts]}]


def answered(upstream: Upstream, text: str = "a cat") -> None:
    talk = upstream.talk()
    talk.say(text)
    talk.end()


def test_an_image_reaches_the_model_and_later_turns_and_is_not_in_the_log(
    steered_server: Server, upstream: Upstream
) -> None:
    """After `kill -9` as well; the database holds its bytes once, and never as text."""
    image = {"type": "input_image", "image_url": PICTURE, "detail": "low"}
    file = {"type": "input_file", "file_data": PAPER, "filename": "paper.pdf"}
    answered(upstream)
    ask(steered_server.client, shown(image, image, file), conversation="pictures")
    steered_server.restart()
    answered(upstream)
    ask(steered_server.client, "and what colour?", conversation="pictures")

    for sent in upstream.received:
        assert sent["messages"][0] == {
            "role": "user",
            "content": [
                {"type": "text", "text": "what is this?"},
                {"type": "image_url", "image_url": {"url": PICTURE, "detail": "low"}},
                {"type": "image_url", "image_url": {"url": PICTURE, "detail": "low"}},
                {"type": "file", "file": {"filename": "paper.pdf", "file_data": PAPER}},
            ],
        }
    files = b"".join(path.read_bytes() for path in steered_server.home.glob("legato.db*"))
    assert PICTURE[40:200].encode() not in files
    assert PAPER[40:200].encode() not in files


def test_an_image_of_a_chat_reaches_the_model(steered_server: Server, upstream: Upstream) -> None:
    """In the words of Chat Completions, with a header that names the conversation and without."""
    content: Any = [
        {"type": "text", "text": "what is this?"},
        {"type": "image_url", "image_url": {"url": PICTURE}},
        {"type": "file", "file": {"file_data": PAPER, "filename": "paper.pdf"}},
    ]
    for headers in ({}, {"X-Hermes-Session-Id": "pictures"}):
        answered(upstream)
        chat(steered_server.client, content, headers)
        assert upstream.received[-1]["messages"][-1]["content"] == content


def test_a_web_address_is_for_the_models_server_to_fetch(steered_server: Server, upstream: Upstream) -> None:
    answered(upstream)
    ask(steered_server.client, shown({"type": "input_image", "image_url": REMOTE}))
    [_, image] = upstream.received[-1]["messages"][-1]["content"]
    assert image == {"type": "image_url", "image_url": {"url": REMOTE}}


def test_a_client_is_shown_what_it_sent(client: httpx.Client) -> None:
    """By the items of the conversation, by the input of the response, and in the export."""
    parts = [
        {"type": "input_image", "image_url": PICTURE, "detail": "high"},
        {"type": "input_image", "image_url": REMOTE, "detail": "auto"},
        {"type": "input_file", "file_data": PAPER, "filename": "paper.pdf"},
    ]
    response = ask(client, shown(*parts))
    conversation = response["conversation"]["id"]
    post(client, f"/v1/conversations/{conversation}/items", items=shown(*parts))

    posted, _, said = get(client, f"/v1/conversations/{conversation}/items")["data"]
    [given] = get(client, f"/v1/responses/{response['id']}/input_items")["data"]
    for item in (posted, said, given):
        assert item["content"][1:] == [{**part, "file_id": None} for part in parts]
    assert PICTURE.partition("base64,")[2] in client.get(f"/v1/conversations/{conversation}/export").text


def test_the_same_bytes_are_shown_as_what_they_were_sent_each_time(client: httpx.Client) -> None:
    """First as a file of no known kind, then as a picture."""
    data = PICTURE.partition("base64,")[2]
    ask(client, shown({"type": "input_file", "file_data": data, "filename": "first"}))
    response = ask(client, shown({"type": "input_image", "image_url": PICTURE}))
    [given] = get(client, f"/v1/responses/{response['id']}/input_items")["data"]
    assert given["content"][1]["image_url"] == PICTURE


def test_an_image_that_a_tool_of_the_client_gave_is_kept_and_shown_to_the_model(
    steered_server: Server, upstream: Upstream
) -> None:
    """A server takes only text as a result; the image follows the last of them, in this turn and after `kill -9`."""
    image = {"type": "input_image", "image_url": PICTURE, "detail": "low"}
    output = [{"type": "input_text", "text": "here it is"}, image]
    call = {"type": "function_call", "name": "camera", "arguments": "{}"}
    given = [
        {"role": "user", "content": "take a picture, twice"},
        *({**call, "call_id": f"call_{n}"} for n in range(2)),
        {"type": "function_call_output", "call_id": "call_0", "output": output},
        {"type": "function_call_output", "call_id": "call_1", "output": "no film"},
    ]
    answered(upstream)
    response = ask(steered_server.client, given, conversation="pictures")
    steered_server.restart()
    answered(upstream)
    ask(steered_server.client, "and what colour?", conversation="pictures")
    for sent in upstream.received:
        first, second, shown_after = sent["messages"][2:5]
        assert (first["content"], second["content"]) == ("here it is\n[an attachment]", "no film")
        assert shown_after["role"] == "user"
        assert shown_after["content"][1:] == [{"type": "image_url", "image_url": {"url": PICTURE, "detail": "low"}}]
    kept = [{**part, "file_id": None} if part is image else part for part in output]
    for path in (f"/v1/responses/{response['id']}/input_items", "/v1/conversations/pictures/items"):
        data = get(steered_server.client, path, order="asc")["data"]
        assert [item["output"] for item in data if item["type"] == "function_call_output"] == [kept, "no film"]
    files = b"".join(path.read_bytes() for path in steered_server.home.glob("legato.db*"))
    assert PICTURE[40:200].encode() not in files


def test_an_image_in_a_tool_message_of_a_chat_is_kept_as_well(steered_server: Server, upstream: Upstream) -> None:
    """It was dropped without a word; text alone stays text."""
    image = {"type": "image_url", "image_url": {"url": PICTURE, "detail": "low"}}
    text = [{"type": "text", "text": "here "}, {"type": "text", "text": "it is"}]
    calls = [{"id": f"call_{n}", "type": "function", "function": {"name": "camera", "arguments": "{}"}} for n in (0, 1)]
    messages = [
        {"role": "user", "content": "take a picture, twice"},
        {"role": "assistant", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "call_0", "content": [*text, image]},
        {"role": "tool", "tool_call_id": "call_1", "content": text},
    ]
    answered(upstream)
    ok(steered_server.client.post("/v1/chat/completions", json={"messages": messages}))
    first, second, shown_after = upstream.received[-1]["messages"][-3:]
    assert (first["content"], second["content"]) == ("here it is[an attachment]", "here it is")
    assert shown_after["content"][1:] == [image]


def test_the_unstored_turn_sees_the_images_of_the_conversation(steered_server: Server, upstream: Upstream) -> None:
    answered(upstream)
    ask(steered_server.client, shown({"type": "input_image", "image_url": PICTURE}), conversation="pictures")
    answered(upstream)
    ask(steered_server.client, "what colour?", conversation="pictures", store=False)
    assert upstream.received[-1]["messages"][0]["content"][1]["image_url"] == {"url": PICTURE}


@pytest.mark.parametrize("url", ["data:image/png;base64,%%%", "data:image/png", "data:", "ftp://host/a", "file:///x"])
def test_what_is_no_attachment_is_refused_by_its_place(client: httpx.Client, url: str) -> None:
    body = {"input": shown({"type": "input_image", "image_url": url})}
    refused(client.post("/v1/responses", json=body), 400, param="input[0].content[1].image_url")
    content = [{"type": "image_url", "image_url": {"url": url}}]
    body = {"messages": [{"role": "user", "content": content}]}
    refused(client.post("/v1/chat/completions", json=body), 400, param="messages[0].content[0].image_url.url")
