"""Malformed bodies, headers, paths and queries: refused in the envelope, naming the parameter; nothing is written.

One table, each row sent to a server on SQLite and to one on PostgreSQL. After each row the conversations are what they
were, and in the end the process is still there and has stumbled over nothing.
"""

import http.client
import json
import socket
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from urllib.parse import urlsplit

import httpx
import pytest

from api.malformed import HELLO, LONE, MAX_BODY, TABLE, TEXTS, Bad
from api.server import BOUND, Server
from api.wire import Json, ask, conversation_of, conversations, events, get, ok, post, refused
from conftest import pg_database

LONGEST_REFUSAL = 5_000
# -- the servers


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with a small limit for bodies, on each database in turn."""
    settings = {"LEGATO_SERVER__MAX_BODY": str(MAX_BODY)}
    with ExitStack() as stack:
        if request.param == "postgres":
            settings["LEGATO_DATABASE_URL"] = stack.enter_context(pg_database(request.getfixturevalue("pg_server")))
        server = Server(tmp_path_factory.mktemp("bad") / "home", **settings)
        stack.callback(server.stop)
        yield server


@dataclass
class Known:
    """What a row may name."""

    conversation: str
    response: str


@pytest.fixture(scope="module")
def known(both: Server) -> Known:
    """A conversation with a response, and a name that another has taken."""
    response = ask(both.client, "reply only hello")
    other = conversation_of(ask(both.client, "reply only other"))
    ok(both.client.put(f"/v1/conversations/{other}/aliases/taken"))
    return Known(conversation_of(response), response["id"])


def state(client: httpx.Client, known: Known) -> tuple[list[Json], str, list[Json]]:
    """Everything that could have been written."""
    return (
        conversations(client),
        client.get(f"/v1/conversations/{known.conversation}/export").text,
        [get(client, f"/v1/conversations/{known.conversation}"), get(client, "/v1/conversations/taken")],
    )


def send(server: Server, bad: Bad, known: Known) -> httpx.Response:
    """Send it as it is: no library may put it right."""
    address = urlsplit(server.url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=BOUND)
    path = bad.path.replace("{conversation}", known.conversation).replace("{response}", known.response)
    data = bad.body if isinstance(bad.body, bytes) else b"" if bad.body is None else json.dumps(bad.body).encode()
    headers: dict[str, str | bytes] = {
        "Host": address.netloc,
        "Authorization": f"Bearer {server.key}",
        "Content-Type": "application/json",
        "Content-Length": str(len(data)),
        **bad.headers,
    }
    try:
        connection.putrequest(bad.method, path, skip_host=True, skip_accept_encoding=True)
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders(data)
        answer = connection.getresponse()
        stream = (answer.getheader("Content-Type") or "").startswith("text/event-stream")  # which may have no end
        return httpx.Response(answer.status, headers=answer.getheaders(), content=b"" if stream else answer.read())
    finally:
        connection.close()


def complaint(answer: httpx.Response, bad: Bad) -> str | None:
    """What is wrong with a refusal, if anything."""
    wrong = []
    if answer.status_code not in bad.ok:
        wrong.append(f"{answer.status_code} instead of {bad.ok}")
    if len(answer.content) > LONGEST_REFUSAL:
        wrong.append(f"{len(answer.content)} bytes long")
    if bad.in_envelope:
        if "x-request-id" not in answer.headers:
            wrong.append("no request id")
        error = _error(answer)
        if error is None:
            wrong.append("not in the envelope")
        elif bad.code is not None and error["code"] != bad.code:
            wrong.append(f"code {error['code']!r} instead of {bad.code!r}")
        elif bad.param is not None and not (error["param"] or "").startswith(bad.param):
            wrong.append(f"param {error['param']!r} instead of {bad.param!r}")
    return f"{bad.name[:100]}: {', '.join(wrong)}: {answer.text[:150]}" if wrong else None


def _error(answer: httpx.Response) -> Json | None:
    """What the envelope says, if it is one."""
    try:
        body = answer.json()
    except ValueError:
        return None
    error = body.get("error") if isinstance(body, dict) and list(body) == ["error"] else None
    return error if isinstance(error, dict) and set(error) == {"message", "type", "param", "code"} else None


def complaints(server: Server, known: Known, rows: Iterable[Bad]) -> list[str]:
    """Send every row; returns what is wrong with the answers, and which of them wrote something."""
    found = []
    newest = get(server.client, "/v1/conversations", limit=1)
    for bad in rows:
        found.append(complaint(send(server, bad, known), bad))
        assert server.alive, bad.name
        if (after := get(server.client, "/v1/conversations", limit=1)) != newest:
            found.append(f"{bad.name}: wrote something")
            newest = after
    return [wrong for wrong in found if wrong is not None]


def test_the_table_is_long_enough() -> None:
    """And every row has a name of its own."""
    names = [bad.name for rows in TABLE.values() for bad in rows]
    assert len(names) >= 60
    assert [name for name, times in Counter(names).items() if times > 1] == []


@pytest.mark.parametrize("part", TABLE)
def test_a_malformed_request_is_refused_and_writes_nothing(both: Server, known: Known, part: str) -> None:
    """In the envelope, with a status of the client's fault, naming what is wrong, in few words."""
    before = state(both.client, known)
    if wrong := complaints(both, known, TABLE[part]):
        pytest.fail("\n".join(wrong), pytrace=False)
    assert state(both.client, known) == before


def test_half_a_character_is_refused_in_every_text(both: Server, known: Known) -> None:
    """A lone surrogate is no text, wherever it is."""
    rows = [
        Bad(f"{place}: {text}", path, body.replace("T", text).encode())
        for place, (path, body) in TEXTS.items()
        for text in LONE
    ]
    before = state(both.client, known)
    if wrong := complaints(both, known, rows):
        pytest.fail("\n".join(wrong), pytrace=False)
    assert state(both.client, known) == before


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "empty"),
        (b" \n", "empty"),
        (rb'{"input": "\ud800"}', "half a character"),
        (rb'{"input": "x\udc00x"}', "half a character"),
        (b'{"input": "x', "truncated"),
    ],
)
def test_a_body_that_is_no_json_is_told_why(both: Server, body: bytes, says: str) -> None:
    """What a person would call it, not what the reader of JSON does."""
    assert says in refused(both.client.post("/v1/responses", content=body), 400)["message"]


@pytest.mark.parametrize("more", [{}, {"store": False}, {"stream": True}])
def test_what_is_deep_is_refused_or_can_be_told_again(both: Server, more: Json) -> None:
    """Whatever is taken is answered, and read later; the deepest that is taken, too."""

    def tried(depth: int) -> httpx.Response:
        tool = {"type": "function", "name": "f", "parameters": {"deep": "DEEP"}}
        body = json.dumps({"input": "reply only x", "tools": [tool], **more})
        return both.client.post("/v1/responses", content=body.replace('"DEEP"', "[" * depth + "]" * depth))

    deepest, taken, too_deep = tried(1), 1, 200_000
    while too_deep - taken > 1:
        depth = (taken + too_deep) // 2
        answer = tried(depth)
        assert answer.status_code in (200, 400), (depth, answer.text[:200])
        if answer.status_code == 200:
            deepest, taken = answer, depth
        else:
            too_deep = depth
    assert taken > 100
    if not more:
        assert get(both.client, f"/v1/responses/{deepest.json()['id']}")["status"] == "completed"
    elif "stream" in more:
        assert list(events(deepest))[-1]["type"] == "response.completed"


def test_a_name_that_cannot_be_is_told_what_names_are(both: Server, known: Known) -> None:
    """All of the rule, not only how it begins."""
    answer = both.client.put(f"/v1/conversations/{known.conversation}/aliases/a b")
    assert "any of '._:@+-'" in refused(answer, 400, param="name")["message"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": 7}, "input"),
        ({"input": "x", "truncation": 2}, "truncation"),
        ({"input": [{"role": 7, "content": "x"}]}, "input[0].role"),
        ({"input": "x", "metadata": {"a": 1}}, "metadata"),
        ({"input": "x", "metadata": {"a": "v" * 513}}, "metadata"),
        ({"input": "x", "metadata": {"k" * 65: "v"}}, "metadata"),
    ],
)
def test_what_does_not_fit_is_named_in_words_too(both: Server, body: Json, param: str) -> None:
    """Some clients show nothing but the message."""
    error = refused(both.client.post("/v1/responses", json=body), 400, "invalid_value")
    assert error["param"] == param
    assert error["message"].startswith(f"Invalid value for '{param}': ")


@pytest.mark.parametrize("place", TEXTS)
def test_nul_in_a_text_is_kept_or_refused(both: Server, known: Known, place: str) -> None:
    """Never a failure, on neither database; and what is taken is taken whole."""
    path, body = TEXTS[place]
    answer = send(both, Bad(place, path, body.replace("T", r"a\u0000b").encode()), known)
    assert answer.status_code in (200, 201, 202, 400), answer.text
    if answer.status_code == 400:
        refused(answer, 400)
    elif place in ("input", "content", "text"):
        [given] = get(both.client, f"/v1/responses/{answer.json()['id']}/input_items")["data"]
        assert given["content"] == [{"type": "input_text", "text": "a\0b"}]


@pytest.mark.parametrize(
    "text",
    [
        *("\u202e right to left", "👩‍👩‍👧", "\ufeff", "\uffff", "\x7f\x85", "e\u0301", "'; drop table turns; --"),
        *("\\u0000", "%s %d {x}", "<script>"),
    ],
    ids=lambda text: text.encode("ascii", "backslashreplace").decode(),
)  # fmt: skip
def test_strange_text_is_kept_as_it_is(both: Server, text: str) -> None:
    """Nothing that people write is changed, or means anything to us."""
    response = ask(both.client, text, metadata={text[:10]: text}, instructions=text)
    [given] = get(both.client, f"/v1/responses/{response['id']}/input_items")["data"]
    assert given["content"] == [{"type": "input_text", "text": text}]
    assert (response["metadata"], response["instructions"]) == ({text[:10]: text}, text)


def test_numbers_beyond_every_machine_are_taken_or_refused(both: Server) -> None:
    """A seed or a limit of thirty digits is no reason to stumble."""
    for number in (10**30, -(10**30), 2**63, 2**64):
        bodies = [
            ("/v1/responses", {"input": "x", "max_output_tokens": number}),
            ("/v1/responses", {"input": "x", "max_tool_calls": number}),
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "seed": number}),
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "max_tokens": number}),
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "logit_bias": {"1": number}}),
            (
                "/v1/responses",
                {"input": "x", "tools": [{"type": "function", "name": "f", "parameters": {"a": number}}]},
            ),
        ]
        for path, body in bodies:
            answer = both.client.post(path, json=body)
            assert answer.status_code in (200, 400), (body, answer.text)


def test_a_retry_count_of_many_digits_is_no_reason_to_stumble(both: Server, known: Known) -> None:
    """Headers that only hint are read with care."""
    for value in ("9" * 5000, "abc", "-1", "٣".encode(), b"\xff"):
        answer = send(both, Bad("retry", body=HELLO, headers={"x-stainless-retry-count": value}), known)
        assert answer.status_code in (200, 400), answer.text


def test_a_busy_conversation_that_is_to_reject_says_409(both: Server) -> None:
    """And the second turn is not there later."""
    first = ask(both.client, "sleep 600", conversation="busy", background=True)
    answer = both.client.post(
        "/v1/responses", json={"input": "x", "conversation": "busy"}, headers={"X-Legato-Busy": "reject"}
    )
    refused(answer, 409, "conversation_locked")
    post(both.client, f"/v1/responses/{first['id']}/cancel")
    assert len(get(both.client, "/v1/conversations/busy/items")["data"]) == 1


def test_a_body_without_a_length_is_cut_off_at_the_limit(both: Server) -> None:
    """A body sent in pieces is counted as it comes; nobody reads the rest of it, so the connection is closed."""
    pieces = [b"x" * 65536] * (4 * MAX_BODY // 65536)
    try:
        answer = both.client.post("/v1/responses", content=iter([b'{"input": "', *pieces]))
    except httpx.WriteError:
        return  # the server hung up on us at once, as it may
    refused(answer, 413, "request_too_large")
    assert answer.headers["connection"] == "close"


def test_a_client_that_hangs_up_in_mid_body_writes_nothing(both: Server, known: Known) -> None:
    """And the process takes no notice: its log is checked below."""
    before = state(both.client, known)
    address = urlsplit(both.url)
    for route in ("/v1/responses", "/v1/chat/completions", "/v1/conversations"):
        with socket.create_connection((address.hostname, address.port), BOUND) as leaver:
            head = f"POST {route} HTTP/1.1\r\nHost: {address.netloc}\r\nAuthorization: Bearer {both.key}\r\n"
            leaver.sendall(head.encode() + b'Content-Length: 1000\r\n\r\n{"input": "hel')
    assert state(both.client, known) == before


def test_an_origin_of_our_own_is_served(both: Server, known: Known) -> None:
    """The page that this gateway itself serves may call it, by any name of loopback."""
    port = urlsplit(both.url).port
    for host in (f"127.0.0.1:{port}", f"localhost:{port}", f"LOCALHOST:{port}", f"[::1]:{port}"):
        for headers in ({"Host": host}, {"Host": host, "Origin": f"http://{host}"}):
            good = Bad("own", "/v1/models", method="GET", headers=dict(headers))
            assert send(both, good, known).status_code == 200


def test_no_page_may_read_us_from_elsewhere(both: Server, known: Known) -> None:
    """CORS is closed: no answer says that another site may read it."""
    for method in ("OPTIONS", "GET", "POST"):
        asked = {"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
        answer = send(both, Bad("cors", "/v1/responses", method=method, headers=dict(asked)), known)
        assert answer.status_code in (400, 403, 405)
        assert not [name for name in answer.headers if name.startswith("access-control-")]


def test_nothing_of_all_this_made_the_process_stumble(both: Server) -> None:
    """It is up, it can write, and its log holds no failure. (Runs last.)"""
    assert both.alive
    assert both.client.get("/readyz").status_code == 200
    assert ask(both.client, "reply only fine")["status"] == "completed"
    both.check_log()
