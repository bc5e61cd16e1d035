"""What a model is sent, over the wire: counted, compacted, expanded, receipted, and byte by byte as it was."""

import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from api.server import BOUND, Server
from api.upstream import Upstream
from api.wire import ask, chat, conversation_of, get, ok, post, refused, said_in, seen, streaming
from legato.engine import tokens

LONG = "a rather long thing to say about cats and their many habits " * 8


def talk(client: httpx.Client, name: str, turns: int = 4) -> str:
    for n in range(turns):
        answer = ask(client, f"reply only answer {n} {LONG}", conversation=name)
    return conversation_of(answer)


# -- how much it is


def test_the_tokens_of_a_request_are_counted(server: Server, client: httpx.Client) -> None:
    """Those of the conversation before it included, and nothing is written."""
    with server.sdk() as sdk:
        alone = sdk.responses.input_tokens.count(model="demo", input=LONG).input_tokens
        assert tokens.count(LONG) < alone < tokens.count(LONG) + 100
        response = ask(client, LONG, conversation="counted")
        after = sdk.responses.input_tokens.count(input=LONG, previous_response_id=response["id"]).input_tokens
        within = post(client, "/v1/responses/input_tokens", input=LONG, conversation="counted")["input_tokens"]
        assert after == within > 2 * tokens.count(LONG)
        told = sdk.responses.input_tokens.count(input=LONG, instructions="Be brief. " * 100).input_tokens
        assert told > alone + 150
    assert len(said_in(client, "counted")) == 2
    body = {"input": "hi", "previous_response_id": "resp_none"}
    refused(client.post("/v1/responses/input_tokens", json=body), 404, "previous_response_not_found")


def test_what_a_conversation_has_cost_is_counted_from_its_log(client: httpx.Client) -> None:
    """Each turn, and the summaries."""
    total = sum(ask(client, f"one two three {n}", conversation="cost")["usage"]["total_tokens"] for n in range(3))
    counted = get(client, "/v1/conversations/cost/usage")
    assert counted["total_tokens"] == total > 0
    ok(client.post("/v1/conversations/cost/compact"))
    assert get(client, "/v1/conversations/cost/usage")["total_tokens"] > total


# -- a shorter way to say it


def test_a_history_is_compacted_for_a_client_that_keeps_its_own(server: Server, client: httpx.Client) -> None:
    """What people said, and a summary that can be sent as an item."""
    items: Any = []
    for n in range(3):
        items += [{"role": "user", "content": f"question {n}"}, {"role": "assistant", "content": f"{n} {LONG}"}]
    with server.sdk() as sdk:
        compacted = sdk.responses.compact(model="demo", input=items)
        assert compacted.object == "response.compaction"
        kinds = [item.type for item in compacted.output]
        assert kinds == ["message"] * 3 + ["compaction"]
        short = [item.model_dump(exclude_unset=True, warnings=False) for item in compacted.output]
        before = sdk.responses.input_tokens.count(input=items).input_tokens
        assert sdk.responses.input_tokens.count(input=short).input_tokens < before / 2
        answer = sdk.responses.create(model="demo", input=[*short, {"role": "user", "content": "and now?"}])
        assert seen(answer.output_text)[1:] == ("question 0", "and now?")
        response = ask(client, "hello")
        again = sdk.responses.compact(model="demo", previous_response_id=response["id"])
        assert [item.type for item in again.output] == ["message", "compaction"]
        with pytest.raises(openai.NotFoundError):
            sdk.responses.compact(model="demo", previous_response_id="resp_none")
    refused(client.post("/v1/responses/compact", json={"model": "demo"}), 400, param="input")


def test_a_conversation_is_compacted_by_hand_and_expanded_again(client: httpx.Client) -> None:
    """The model sees less and then everything; people see everything all the time; the id stays."""
    conversation = talk(client, "by-hand")
    before = said_in(client, "by-hand")
    full = seen(ask(client, "how many?", conversation="by-hand"))[0]
    compacted = ok(client.post("/v1/conversations/by-hand/compact", json={"focus": "cats"}))
    assert compacted["id"] == conversation
    assert seen(ask(client, "and now?", conversation="by-hand"))[0] < full
    assert said_in(client, "by-hand")[: len(before)] == before
    [item] = [i for i in get(client, "/v1/conversations/by-hand/items")["data"] if i["type"] == "compaction"]
    assert "Demo summary" in item["encrypted_content"]
    assert item["created_by"] == "default"
    assert item["legato"]["why"] == "by hand"
    assert item["legato"]["tokens_before"] > item["legato"]["tokens_after"] > 0

    post(client, "/v1/conversations/by-hand/expand", of=item["id"])
    assert seen(ask(client, "and again?", conversation="by-hand"))[0] == full + 4
    ok(client.post("/v1/conversations/by-hand/compact"))


def test_what_to_expand_need_not_be_said(client: httpx.Client) -> None:
    """It is the summary that is in force; where there is none, that is told. What is sent again is the same."""
    talk(client, "unsaid")
    path, once = "/v1/conversations/unsaid/expand", {"Idempotency-Key": "unsaid"}
    refused(client.post(path), 400, "invalid_value", "of")
    for send in (lambda: client.post(path, headers=once), lambda: client.post(path, json={})):
        full = seen(ask(client, "how many?", conversation="unsaid"))[0]
        ok(client.post("/v1/conversations/unsaid/compact"))
        assert seen(ask(client, "and now?", conversation="unsaid"))[0] < full
        ok(send())
        assert seen(ask(client, "and again?", conversation="unsaid"))[0] == full + 4
    assert client.post(path, headers=once).headers["Idempotency-Replayed"] == "true"


def test_a_session_goes_on_through_its_compaction(client: httpx.Client) -> None:
    """The same header before and after, streamed and not; one row in the list of sessions."""
    header = {"X-Hermes-Session-Id": "compacted-session"}
    for n in range(4):
        chat(client, f"reply only {n} {LONG}", header)
    conversation = client.get("/api/sessions/compacted-session").json()["session"]["id"]
    ok(client.post(f"/v1/conversations/{conversation}/compact", json={}))
    with streaming(client, "streamed", header) as answer:
        assert answer.headers["X-Legato-Conversation"] == conversation
        answer.read()
    answer = client.post(
        "/v1/chat/completions", json={"messages": [{"role": "user", "content": "still here?"}]}, headers=header
    )
    assert answer.headers["X-Legato-Conversation"] == conversation
    rows = [row["id"] for row in client.get("/api/sessions").json()["data"]]
    assert rows.count(conversation) == 1


def test_a_session_goes_on_while_its_past_is_summarised(tmp_path: Path, upstream: Upstream) -> None:
    """The same header, plain and streamed, while the summary is being written and after it was."""
    small = {"LEGATO_MODELS__UPSTREAM__CONTEXT_WINDOW": "2000", "LEGATO_COMPACTION__SHARE": "0.3"}
    server = Server(tmp_path / "home", **upstream.settings, **small)
    header = {"X-Hermes-Session-Id": "the same"}
    places = set()

    def say(text: str, **more: Any) -> None:
        answer = upstream.talk()
        answer.say("I see.")
        answer.end()
        body = {"messages": [{"role": "user", "content": text}], **more}
        told = server.client.post("/v1/chat/completions", json=body, headers=header)
        assert told.status_code == 200, told.text
        places.add(told.headers["X-Legato-Conversation"])

    try:
        summary = upstream.summary()
        say(LONG * 7)
        say("short")
        assert summary.asked.wait(BOUND)
        say("meanwhile")
        say("meanwhile, streamed", stream=True)
        summary.say("In short: cats.")
        summary.end()
        [conversation] = places
        path = f"/v1/conversations/{conversation}/items"
        deadline = time.monotonic() + BOUND
        while all(item["type"] != "compaction" for item in get(server.client, path)["data"]):
            assert time.monotonic() < deadline
        say("afterwards")
        assert "In short: cats." in str(upstream.received[-1]["messages"][0])
        assert places == {conversation}
        assert [row["id"] for row in server.client.get("/api/sessions").json()["data"]] == [conversation]
        server.check_log()
    finally:
        server.stop()


# -- what it was


def test_a_response_has_a_receipt_of_what_the_model_was_sent(client: httpx.Client) -> None:
    """Verbatim, folded, and by which summary; for ever as it was then."""
    talk(client, "receipts")
    early = ask(client, "early", conversation="receipts", instructions="Be kind.")
    ok(client.post("/v1/conversations/receipts/compact", json={}))
    late = ask(client, "late", conversation="receipts")

    before = get(client, f"/v1/responses/{early['id']}/context")
    after = get(client, f"/v1/responses/{late['id']}/context")
    assert before["instructions"] == "Be kind."
    assert (before["summary"], before["folded"]) == (None, [])
    assert [entry["item"]["role"] for entry in before["verbatim"]] == ["user", "assistant"] * 4 + ["user"]
    assert after["summary"]["tokens_before"] > after["summary"]["tokens_after"]
    assert after["summary"]["why"] == "by hand"
    assert [e["item"]["content"][0]["text"] for e in after["verbatim"]][-1] == "late"
    assert after["folded"][0][0] == 1
    assert after["folded"][-1][1] == after["summary"]["upto"]
    refused(client.get("/v1/responses/resp_none/context"), 404)


def test_a_threshold_of_the_request_compacts_while_it_is_answered(client: httpx.Client) -> None:
    """The compaction is an item of the output, streamed like the others."""
    talk(client, "threshold", turns=12)
    management = [{"type": "compaction", "compact_threshold": 1000}]
    with streaming(client, "now", conversation="threshold", context_management=management) as answer:
        answer.read()
    events = [line for line in answer.text.splitlines() if line.startswith("data: {")]
    assert sum('"type":"compaction"' in line and "output_item.added" in line for line in events) == 1
    final = [i["type"] for i in get(client, "/v1/conversations/threshold/items", limit=3)["data"]]
    assert final == ["message", "compaction", "message"]
    bad = {"input": "hi", "context_management": [{"type": "compaction", "compact_threshold": 3}]}
    refused(client.post("/v1/responses", json=bad), 400, param="context_management[0].compact_threshold")


# -- the prompt cache


def test_the_prompt_only_grows_at_its_end_across_a_restart(steered_server: Server, upstream: Upstream) -> None:
    """Consecutive requests are the same bytes up to what is new."""
    for n in range(6):
        answer = upstream.talk()
        answer.say(f"answer {n}")
        answer.end()
        ask(steered_server.client, f"message {n}", conversation="cached")
        if n == 2:
            steered_server.restart()
    for earlier, later in pairwise(upstream.received):
        kept = len(earlier["messages"])
        assert later["messages"][:kept] == earlier["messages"]
        assert {**later, "messages": None} == {**earlier, "messages": None}
        assert list(later) == list(earlier)
