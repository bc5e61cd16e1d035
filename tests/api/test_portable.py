"""Export and import over HTTP: all there is to a conversation, and pages to read that nothing said in it can break."""

import json
from html.parser import HTMLParser

import httpx
import pytest

from api.server import Server
from api.wire import Json, ask, conversation_of, get, ok, post, refused, said_in
from legato.api import portable

PICTURE = "data:image/png;base64,iVBORw0KGgo="
NOTE = {"kind": "note", "text": "x", "reason": "y"}
HOSTILE = "<script>alert(1)</script> [x](javascript:alert(1)) <img src=x onerror=alert(1)> **bold**\n\n```\n# code\n```"


def take_in(client: httpx.Client, text: str | bytes) -> Json:
    return ok(client.post("/v1/import", content=text))


def exported(client: httpx.Client, conversation: str) -> str:
    answer = client.get(f"/v1/conversations/{conversation}/export")
    assert answer.headers["content-type"] == "application/jsonl"
    return answer.text


def purge(client: httpx.Client, conversation: str) -> None:
    ok(client.delete(f"/v1/conversations/{conversation}"))
    ok(client.delete(f"/v1/trash/{conversation}"))


def test_what_was_exported_and_purged_goes_on_where_it_was(fresh_server: Server) -> None:
    """Names, session headers, response ids, pictures and forks: everything means what it meant."""
    client = fresh_server.client
    picture = [{"role": "user", "content": [{"type": "input_image", "image_url": PICTURE, "detail": "auto"}]}]
    first = ask(client, picture, {"X-Hermes-Session-Id": "old world"})
    conversation = conversation_of(first)
    second = ask(client, "call now {}", conversation=conversation)
    ok(client.put(f"/v1/conversations/{conversation}/aliases/cats"))
    fork = conversation_of(ask(client, "elsewhere", previous_response_id=first["id"]))
    everything = client.get("/v1/export").text
    items = client.get(f"/v1/conversations/{conversation}/items").content
    for gone in (conversation, fork):
        purge(client, gone)
    refused(client.get(f"/v1/responses/{second['id']}"), 404)
    report = take_in(client, everything)
    assert [row["outcome"] for row in report["conversations"]] == ["imported", "imported"]
    assert (report["damaged"], report["lines"]) == ([], len(everything.splitlines()))
    assert client.get("/v1/export").text == everything
    assert client.get(f"/v1/conversations/{conversation}/items").content == items
    assert get(client, f"/v1/responses/{second['id']}")["output"] == second["output"]
    assert conversation_of(ask(client, "and on", previous_response_id=second["id"])) == conversation
    assert conversation_of(ask(client, "and on", conversation="cats")) == conversation
    assert conversation_of(ask(client, "and on", {"X-Hermes-Session-Id": "old world"})) == conversation
    assert [row["outcome"] for row in take_in(client, everything)["conversations"]] == ["present", "present"]


def test_a_damaged_line_is_told_by_its_number_and_the_rest_comes_in(client: httpx.Client) -> None:
    first = conversation_of(ask(client, "one"))
    second = conversation_of(ask(client, "two"))
    lines = (exported(client, first) + exported(client, second)).splitlines()
    answered = next(n for n, line in enumerate(lines) if '"role":"assistant"' in line)
    unread = {answered: lines[answered][:40], len(lines) - 3: "not json at all"}
    for place, text in unread.items():
        lines[place] = text
    for conversation in (first, second):
        purge(client, conversation)
    report = take_in(client, "\n".join(lines))
    assert [row["line"] for row in report["damaged"]] == [place + 1 for place in unread]
    assert [row["outcome"] for row in report["conversations"]] == ["imported", "imported"]
    assert "user: one" in said_in(client, first)
    assert "user: two" in said_in(client, second)
    assert "seen: 2 messages" in str(ask(client, "and?", conversation=first)["output"])


@pytest.mark.parametrize("text", ["", "\n\n", "{}", "[]", "null", "\x00", '{"type":"entry"}', "é" * 100, "[" * 100_000])
def test_what_is_no_export_imports_nothing_and_says_so(client: httpx.Client, text: str) -> None:
    report = take_in(client, text)
    assert report["conversations"] == []
    assert len(report["damaged"]) == (1 if text.strip() else 0)


OURS = "conv_" + "a" * 32


@pytest.mark.parametrize(
    "line",
    [
        {"type": "end", "conversation": "any text!"},
        {"type": "end", "conversation": "conv_x"},
        {"type": "end", "conversation": OURS + "\n"},
        {"type": "conversation", "id": "conv_x"},
        {"type": "entry", "conversation": OURS, "seq": 1, "id": "a", "turn": "any text!", "body": NOTE},
    ],
)
def test_an_id_that_no_path_would_reach_is_damage(client: httpx.Client, line: Json) -> None:
    """It is told by the field it stands in, and nothing is imported."""
    report = take_in(client, json.dumps(line))
    assert report["conversations"] == []
    [damage] = report["damaged"]
    assert damage["why"].startswith(tuple(f"Invalid value for '{name}': " for name in ("conversation", "id", "turn")))


def test_a_conversation_of_which_only_the_end_came_is_refused(client: httpx.Client) -> None:
    [row] = take_in(client, json.dumps({"type": "end", "conversation": OURS}))["conversations"]
    assert (row["id"], row["outcome"]) == (OURS, "refused")
    assert "nothing" in row["why"]
    refused(client.get(f"/v1/conversations/{OURS}"), 404)


def test_a_conversation_that_claims_to_be_endless_ends_where_its_lines_end(client: httpx.Client) -> None:
    """Numbers in a file are claims: what is done for them is bounded by what is there."""
    conversation = conversation_of(ask(client, "hello"))
    head, *rest = [json.loads(line) for line in exported(client, conversation).splitlines()]
    purge(client, conversation)
    text = "\n".join(json.dumps(line) for line in ({**head, "head_seq": 912_345_678}, *rest))
    [row] = take_in(client, text)["conversations"]
    assert (row["outcome"], row["lost_entries"]) == ("imported", 0)
    assert said_in(client, conversation)[0] == "user: hello"
    purge(client, conversation)
    for line in rest:
        if line["type"] == "turn":
            line["last_seq"] = 912_345_678
    text = "\n".join(json.dumps(line) for line in ({**head, "head_seq": 912_345_678}, *rest))
    [row] = take_in(client, text)["conversations"]
    assert (row["id"], row["outcome"]) == (conversation, "refused")
    assert "are missing" in row["why"]


def test_a_stranger_cannot_bring_in_what_is_mine_already(client: httpx.Client, stranger: httpx.Client) -> None:
    conversation = conversation_of(ask(client, "mine"))
    text = exported(client, conversation)
    [row] = take_in(stranger, text)["conversations"]
    assert (row["outcome"], row["why"]) == ("refused", f"{conversation} is in use.")
    assert said_in(client, conversation)[0] == "user: mine"
    purge(client, conversation)
    assert [row["outcome"] for row in take_in(stranger, text)["conversations"]] == ["imported"]
    refused(client.get(f"/v1/conversations/{conversation}"), 404)


def test_more_damaged_lines_than_anybody_reads_are_counted(client: httpx.Client) -> None:
    report = take_in(client, "no\n" * (portable.TOLD + 7))
    assert (len(report["damaged"]), report["omitted"]) == (portable.TOLD, 7)


def test_pages_to_read_show_the_talk_and_run_nothing_of_it(client: httpx.Client) -> None:
    conversation = conversation_of(ask(client, HOSTILE))
    ask(client, "call now {}", conversation=conversation)
    post(client, "/v1/commands", text="/title <b>x</b>", conversation=conversation)
    at = f"/v1/conversations/{conversation}/export"
    markdown = client.get(at, params={"format": "markdown"})
    assert markdown.headers["content-type"].startswith("text/markdown")
    assert "# code" in markdown.text
    assert "**now**" in markdown.text
    page = client.get(at, params={"format": "html"})
    assert page.headers["content-type"].startswith("text/html")
    assert "<strong>bold</strong>" in page.text
    seen = _Tags()
    seen.feed(page.text)
    assert "script" not in seen.tags
    assert not [name for name in seen.attributes if name.startswith("on")]
    assert not [url for url in seen.links if url.startswith("javascript")]
    refused(client.get(at, params={"format": "pdf"}), 400, param="format")


class _Tags(HTMLParser):
    """What a browser would make of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [name for name, _ in attrs]
        self.links += [value or "" for name, value in attrs if name in ("href", "src")]


def test_every_line_of_an_export_says_whose_it_is(client: httpx.Client) -> None:
    conversation = conversation_of(ask(client, "hello"))
    lines = [json.loads(line) for line in exported(client, conversation).splitlines()]
    assert [line["type"] for line in (lines[0], lines[-1])] == ["conversation", "end"]
    assert {line.get("conversation", line.get("id")) for line in lines} == {conversation}
