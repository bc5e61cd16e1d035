"""Short words for what a client does over HTTP, and for what it is told."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

Json = dict[str, Any]

SEEN = re.compile(r'seen: (\d+) messages, first "(.*?)", last "(.*)"\Z', re.DOTALL)
TERMINAL = ("response.completed", "response.incomplete", "response.failed")
NOBODY = {"Authorization": ""}


def ask(client: httpx.Client, text: Any, headers: dict[str, str] | None = None, **body: Any) -> Json:
    """One turn, waited for."""
    return ok(client.post("/v1/responses", json={"input": text, **body}, headers=headers))


def chat(client: httpx.Client, text: str, headers: dict[str, str] | None = None, **body: Any) -> Json:
    """One turn of a chat, waited for."""
    body = {"messages": [{"role": "user", "content": text}], **body}
    return ok(client.post("/v1/chat/completions", json=body, headers=headers))


def get(client: httpx.Client, path: str, **query: Any) -> Json:
    return ok(client.get(path, params=query))


def post(client: httpx.Client, path: str, **body: Any) -> Json:
    return ok(client.post(path, json=body))


def ok(answer: httpx.Response) -> Json:
    assert answer.status_code == 200, answer.text
    body: Json = answer.json()
    return body


def refused(answer: httpx.Response, status: int, code: str | None = None, param: str | None = None) -> Json:
    """A refusal in the envelope; returns what it says."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers.get("x-request-id")
    body: Json = answer.json()
    assert list(body) == ["error"]
    error: Json = body["error"]
    assert set(error) == {"message", "type", "param", "code"}, error
    assert isinstance(error["message"], str)
    assert error["message"]
    assert isinstance(error["type"], str)
    if code is not None:
        assert error["code"] == code, error
    if param is not None:
        assert error["param"] == param, error
    return error


# -- streams


@contextmanager
def streaming(
    client: httpx.Client, text: Any, headers: dict[str, str] | None = None, path: str = "/v1/responses", **body: Any
) -> Iterator[httpx.Response]:
    """A turn that is told as it comes. Leaving the block drops the connection."""
    body = {"input": text, "stream": True, **body}
    with client.stream("POST", path, json=body, headers=headers) as answer:
        if answer.status_code != 200:
            answer.read()
        assert answer.status_code == 200, answer.text
        yield answer


def raw_events(answer: httpx.Response) -> Iterator[tuple[str | None, str]]:
    """The server-sent events as they come: the name and the data."""
    name: str | None = None
    for line in answer.iter_lines():
        field, _, value = line.partition(":")
        if field == "event":
            name = value.strip()
        elif field == "data":
            yield name, value.strip()
            name = None


def events(answer: httpx.Response) -> Iterator[Json]:
    """The events of a Responses stream, named as their type says, until it ends as it should."""
    for name, data in raw_events(answer):
        if data == "[DONE]":
            return
        event: Json = json.loads(data)
        assert name == event["type"]
        yield event
    raise AssertionError("the stream ended without [DONE]")


def chunks(answer: httpx.Response) -> Iterator[Json]:
    """The chunks of a chat stream, until it ends as it should."""
    for name, data in raw_events(answer):
        assert name is None
        if data == "[DONE]":
            return
        yield json.loads(data)
    raise AssertionError("the stream ended without [DONE]")


def follow(client: httpx.Client, response_id: str, after: int | None = None) -> list[Json]:
    """Every event of a response after a number, until it has ended."""
    query = {"stream": "true"} | ({"starting_after": after} if after is not None else {})
    with client.stream("GET", f"/v1/responses/{response_id}", params=query) as answer:
        if answer.status_code != 200:
            answer.read()
        assert answer.status_code == 200, answer.text
        return list(events(answer))


def numbers(told: list[Json]) -> list[int]:
    return [event["sequence_number"] for event in told]


# -- what is told


def output_text(response: Json) -> str:
    """The last message of a response."""
    messages = [item for item in response["output"] if item["type"] == "message"]
    return "".join(part["text"] for part in messages[-1]["content"])


def seen(answer: Json | str) -> tuple[int, str, str]:
    """What the demo model says that it saw: how many messages, the first and the last thing that was said."""
    text = answer if isinstance(answer, str) else output_text(answer)
    match = SEEN.search(text)
    assert match, text
    return int(match[1]), match[2], match[3]


def conversation_of(response: Json) -> str:
    conversation_id: str = response["conversation"]["id"]
    return conversation_id


def said_in(client: httpx.Client, conversation: str) -> list[str]:
    """Everything that was said in a conversation, as `role: text`, oldest first."""
    page = get(client, f"/v1/conversations/{conversation}/items", order="asc", limit=100)
    assert not page["has_more"]
    return [
        f"{item['role']}: {''.join(part['text'] for part in item['content'])}"
        for item in page["data"]
        if item["type"] == "message"
    ]


def conversations(client: httpx.Client) -> list[Json]:
    """Every conversation that is listed, page by page."""
    found: list[Json] = []
    while True:
        page = get(client, "/v1/conversations", limit=100, **({"after": found[-1]["id"]} if found else {}))
        found += page["data"]
        if not page["has_more"]:
            return found
