"""The webhook channel: only what is proven comes in, what goes out is signed, repeated until it was taken, in order."""

import json
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx

from api.server import LEGATO, Server
from api.wire import ask, get, ok, refused, said_in
from channels.conftest import Serving
from channels.platform import SECRET, Bridge
from legato.channels.signing import SIGNATURE, TIMESTAMP, proven, sign
from legato.domain.attachments import Blob

MESSAGE = {"id": "m-1", "chat": "home", "sender": {"id": "ann", "name": "Ann"}, "text": "reply only hello"}
EXAMPLE = Path(__file__).parents[2] / "examples" / "bridge.py"


def nothing_was_said(server: Server) -> None:
    assert get(server.client, "/v1/conversations")["data"] == []


# -- who is believed


def test_what_is_not_proven_is_refused(mine: Bridge, serving: Serving) -> None:
    server = serving(mine)
    body = json.dumps(MESSAGE).encode()
    now = int(time.time())
    wrong: list[dict[str, str]] = [
        {SIGNATURE: "v1=" + "0" * 64},
        {SIGNATURE: "é"},
        *({TIMESTAMP: text} for text in ("0", str(now - 3600), str(now + 3600), "now", "9" * 400)),
        *(sign(SECRET, then, body) for then in (0, now - 400, now + 400)),
    ]
    for headers in wrong:
        encoded = {name: value.encode() for name, value in {**sign(SECRET, now, body), **headers}.items()}
        refused(httpx.post(f"{server.url}/channels/mine", content=body, headers=encoded), 403)
    refused(httpx.post(f"{server.url}/channels/mine", content=body), 403)
    nothing_was_said(server)


def test_a_body_that_was_changed_is_refused_and_a_replay_too(mine: Bridge, serving: Serving) -> None:
    server = serving(mine)
    body = json.dumps(MESSAGE).encode()
    headers = sign(SECRET, int(time.time()), body)
    at = f"{server.url}/channels/mine"
    refused(httpx.post(at, content=body.replace(b"hello", b"other"), headers=headers), 403)
    assert httpx.post(at, content=body, headers=headers).status_code == 200
    refused(httpx.post(at, content=body, headers=headers), 409)
    assert mine.heard("home") == ["hello"]


def test_without_a_secret_nobody_is_believed(mine: Bridge, serving: Serving) -> None:
    server = serving(mine, secret="")
    body = json.dumps(MESSAGE).encode()
    for secret in ("", SECRET):
        refused(
            httpx.post(f"{server.url}/channels/mine", content=body, headers=sign(secret, int(time.time()), body)), 403
        )
    assert "has no secret" in get(server.client, "/readyz")["channels"]["mine"]
    assert not proven("", str(int(time.time())), sign("", int(time.time()), b"")[SIGNATURE], b"", time.time())


def test_a_channel_that_is_not_there_takes_nothing(mine: Bridge, serving: Serving) -> None:
    server = serving(mine)
    refused(httpx.post(f"{server.url}/channels/other", content=b"{}"), 404)


def test_what_is_proven_and_no_message_is_told_so(mine: Bridge, serving: Serving) -> None:
    server = serving(mine)
    nameless = b'{"id":"","chat":"c","sender":{"id":"a"}}'
    for body in (b"", b"[]", b"{}", b'{"id": 1}', b"\xff", nameless, b"[" * 100_000):
        headers = sign(SECRET, int(time.time()), body)
        refused(httpx.post(f"{server.url}/channels/mine", content=body, headers=headers), 400)


def test_the_secret_is_in_no_log_and_no_answer(mine: Bridge, serving: Serving) -> None:
    """Also when everything goes wrong."""
    server = serving(mine)
    mine.faults = [(500, {}), (404, {})]
    mine.say(server, "home", "reply only hello")
    _settled(server)
    told = server.log + json.dumps(get(server.client, "/readyz")) + json.dumps(get(server.client, "/v1/deliveries"))
    assert SECRET not in told + server.client.get("/metrics").text


# -- what goes out


def test_what_goes_out_is_signed(mine: Bridge, serving: Serving) -> None:
    server = serving(mine)
    mine.say(server, "home", "reply only hello", thread="topic")
    assert mine.heard("home") == ["hello"]
    assert mine.posts[0]["thread"] == "topic"
    assert mine.forged == 0


def test_what_was_not_taken_is_sent_again_in_order(mine: Bridge, serving: Serving) -> None:
    """Unavailable, too many, and a connection that breaks after it was taken: each is said once."""
    server = serving(mine)
    mine.faults = [(503, {}), (429, {"Retry-After": "1"}), None]
    mine.say(server, "home", "reply only one")
    mine.say(server, "home", "reply only two")
    assert mine.heard("home", 2) == ["one", "two"]
    assert get(server.client, "/v1/deliveries")["data"] == []


def test_no_answer_has_the_key_of_one_that_was_purged(mine: Bridge, serving: Serving) -> None:
    server = serving(mine)
    mine.say(server, "home", "reply only one")
    assert mine.heard("home") == ["one"]
    [row] = get(server.client, "/v1/conversations")["data"]
    ok(server.client.delete(f"/v1/conversations/{row['id']}"))
    ok(server.client.delete(f"/v1/trash/{row['id']}"))
    mine.say(server, "home", "reply only two")
    assert mine.heard("home", 2) == ["one", "two"]


def test_what_is_refused_for_good_is_noted_listed_and_sent_again_by_hand(mine: Bridge, serving: Serving) -> None:
    server = serving(mine)
    mine.faults = [(404, {})]
    mine.say(server, "home", "reply only hello")
    [row] = _settled(server)
    assert (row["status"], row["chat"], row["error"]) == ("dead", "home", "The bridge answered 404.")
    refused(server.stranger.post(f"/v1/deliveries/{row['id']}/resend"), 404)
    mine.say(server, "home", "reply only next")
    assert mine.heard("home") == ["next"]
    ok(server.client.post(f"/v1/deliveries/{row['id']}/resend"))
    assert mine.heard("home", 2) == ["next", "hello"]
    assert get(server.client, "/v1/deliveries")["data"] == []


def test_a_bridge_that_is_away_hears_everything_when_it_is_back(serving: Serving, mine: Bridge) -> None:
    """Over a restart of the gateway, too."""
    server = serving(mine, url="http://127.0.0.1:9/")
    mine.say(server, "home", "reply only while you were away")
    server.kill()
    server.settings["LEGATO_CHANNELS__MINE__URL"] = mine.settings["LEGATO_CHANNELS__MINE__URL"]
    server.start()
    assert mine.heard("home") == ["while you were away"]


# -- groups, threads, files


def test_in_a_group_what_is_said_aside_is_kept_and_not_answered(mine: Bridge, serving: Serving) -> None:
    """And who said what is known; a reply goes to the message that asked."""
    server = serving(mine)
    mine.say(server, "club", "the meeting is at noon", group=True, for_us=False)
    asked = mine.say(server, "club", "bot, when is it?", sender="bob", group=True)
    answer = mine.heard("club")[0]
    assert 'seen: 2 messages, first "the meeting is at noon"' in answer
    assert mine.posts[0]["reply_to"] == asked
    mine.say(server, "club", "who am I?", sender="eve", group=True)
    mine.say(server, "club", "reply only done", group=True)
    assert mine.heard("club", 2)[1] == "done"
    assert len(mine.posts) == 2


def test_threads_of_a_chat_are_talks_of_their_own(mine: Bridge, serving: Serving) -> None:
    server = serving(mine)
    mine.say(server, "club", "reply only one", thread="a")
    mine.say(server, "club", "reply only two", thread="b")
    mine.heard("club", 2)
    assert len(get(server.client, "/v1/conversations")["data"]) == 2
    assert {(post["thread"], post["text"]) for post in mine.posts} == {("a", "one"), ("b", "two")}


def test_an_image_is_kept_and_shown_to_the_model(mine: Bridge, serving: Serving) -> None:
    server = serving(mine)
    blob = Blob.of(b"\x89PNG not really", "image/png")
    data = blob.url.partition("base64,")[2]
    mine.say(server, "home", "look", attachments=[{"media_type": "image/png", "data": data, "name": "cat.png"}])
    mine.heard("home")
    [conversation] = get(server.client, "/v1/conversations")["data"]
    items = get(server.client, f"/v1/conversations/{conversation['id']}/items", order="asc")["data"]
    assert items[0]["content"][1]["image_url"] == blob.url


# -- the example


def test_the_example_bridge_works_as_the_guide_says(mine: Bridge, serving: Serving) -> None:
    """A person types; the gateway is killed in between; nothing is lost or doubled."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server = serving(mine, url=f"http://127.0.0.1:{port}/", allow="me")
    command = [sys.executable, EXAMPLE, f"{server.url}/channels/mine", str(port), SECRET]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin
    assert process.stdout
    try:
        process.stdin.write("reply only hello\n")
        process.stdin.flush()
        assert process.stdout.readline() == "[desk] hello\n"
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()
    [conversation] = get(server.client, "/v1/conversations")["data"]
    assert said_in(server.client, conversation["id"]) == ["user: reply only hello", "assistant: hello"]
    said = re.search(r"in (\d+) lines", (EXAMPLE.parents[1] / "docs/guide/webhook.md").read_text())
    assert said
    assert abs(int(said[1]) - len(EXAMPLE.read_text().splitlines())) < 5


def _settled(server: Server) -> list[dict[str, object]]:
    end = time.monotonic() + 60
    while not (rows := get(server.client, "/v1/deliveries")["data"]):
        assert time.monotonic() < end
        time.sleep(0.05)
    return rows  # type: ignore[no-any-return]


def test_the_doctor_tells_what_a_channel_lacks(mine: Bridge, serving: Serving, tmp_path: Path) -> None:
    server = serving(mine)
    mine.say(server, "home", "reply only hello")
    assert _doctor(server, "mine") == (0, ["It is connected."])
    code, told = _doctor(server, "mine", LEGATO_CHANNELS__MINE__SECRET="")
    assert code == 1
    assert "It has no secret. Set channels.mine.secret" in told[0]
    code, told = _doctor(server, "telegram")
    assert code == 1
    assert "No channel 'telegram' is configured" in told[0]
    assert 'kind = "telegram" into' in told[0]
    code, told = _doctor(server, "bridge")
    assert (code, 'kind = "telegram" or "webhook" into' in told[0]) == (1, True)


def _doctor(server: Server, channel: str, **more: str) -> tuple[int, list[str]]:
    environ = {**os.environ, **server.settings, "LEGATO_HOME": str(server.home), **more}
    command = [LEGATO, "doctor", channel, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, env=environ, timeout=60, check=False)
    return done.returncode, [
        f"{check['says']} {check['advice']}".strip() for check in json.loads(done.stdout)["checks"]
    ]


# -- chats, as their owner sees them


def test_a_chat_is_bound_from_outside_and_only_where_its_owner_has_written(mine: Bridge, serving: Serving) -> None:
    """`legato bind --chat` lets a chat go on in any conversation; one where nobody has written is refused."""
    server = serving(mine)
    talk = ask(server.client, "reply only begun over HTTP", conversation="plans")["conversation"]["id"]
    refused(server.client.put("/v1/chats/mine/home", json={"conversation": "plans"}), 404)
    mine.say(server, "home", "reply only hello")
    mine.heard("home")
    command = [LEGATO, "bind", "--home", str(server.home), "--chat"]
    unclear = subprocess.run([*command, "home", "plans"], capture_output=True, text=True, check=False)
    assert "CHANNEL:CHAT" in unclear.stderr
    unknown = subprocess.run([*command, "mine:nowhere", "plans"], capture_output=True, text=True, check=False)
    assert unknown.returncode != 0
    assert "mine:home" in unknown.stderr
    subprocess.run([*command, "mine:home", "plans"], check=True, capture_output=True)
    assert [(c["chat"], c["conversation"]) for c in get(server.client, "/v1/chats")["data"]] == [("home", talk)]
    mine.say(server, "home", "reply only from the chat")
    mine.heard("home", 2)
    assert said_in(server.client, talk)[-2:] == ["user: reply only from the chat", "assistant: from the chat"]


def test_a_paired_person_is_told_with_the_channel_as_it_is_configured(mine: Bridge, serving: Serving) -> None:
    """By the same name as in the file, in `doctor` and in `bind`; what was listed is what --remove takes."""
    server = serving(mine)
    mine.say(server, "lobby", "let me in", sender="eve")
    code = mine.heard("lobby")[0].split("legato pair ")[1].split()[0]
    assert _pair(server, code) == "Eve on mine now speaks for local.\n"
    assert _pair(server) == "mine/eve  Eve  speaks for local\n"
    assert "`legato pair` lists who is" in _pair(server, "--remove", "other/eve")
    assert _pair(server, "--remove", "mine/eve") == "eve is a stranger on mine again.\n"
    assert "Nobody is paired." in _pair(server)


def _pair(server: Server, *what: str) -> str:
    command = [LEGATO, "pair", "--home", str(server.home), *what]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return done.stdout + done.stderr
