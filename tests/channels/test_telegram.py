"""Telegram, on a real gateway, over a real socket, with the real client library, against a stand-in of the Bot API."""

import asyncio
import base64
import collections
import itertools
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from channels.telegram_api import BOUND, LIMIT, ME, TOKEN, TelegramApi
from legato.channels.telegram import Telegram
from legato.domain.channels import Inbound, Sender
from legato.errors import Unavailable
from serve.process import Answer, Env, Server

PEOPLE = itertools.count(100)
GROUPS = itertools.count(-1000, -1)
ALLOWED = ",".join(str(number) for number in range(100, 400))
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
)

Start = Callable[..., Server]


def settings(api: TelegramApi, **more: str) -> Env:
    """A gateway with this bot, as an operator sets it up in the environment."""
    told = {"kind": "telegram", "token": TOKEN, "base_url": api.url, "allow": ALLOWED, "gather": "0.3", **more}
    return {f"LEGATO_CHANNELS__TG__{name.upper()}": value for name, value in told.items()}


def state_of(server: Server) -> str:
    """How the channel is."""
    return str(server.get("/readyz").json["channels"]["tg"])


def until(condition: Callable[[], Any]) -> Any:
    """What a condition says, once it holds; for what nobody announces."""
    deadline = time.monotonic() + BOUND
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found


def up(server: Server) -> Server:
    until(lambda: state_of(server) == "up")
    return server


def ask(server: Server, method: str, path: str, body: Any = None) -> Answer:
    return server._request(method, path, body, {"authorization": f"Bearer {server.key}"})


def undelivered(server: Server) -> list[dict[str, Any]]:
    data: list[dict[str, Any]] = ask(server, "GET", "/v1/deliveries?limit=100").json["data"]
    return data


@pytest.fixture(scope="module")
def shared_api() -> Iterator[TelegramApi]:
    api = TelegramApi()
    yield api
    api.stop()


@pytest.fixture(scope="module")
def server(shared_api: TelegramApi, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One gateway for those tests that need no other; each has people and groups of its own."""
    server = up(Server(tmp_path_factory.mktemp("telegram") / "home", env=settings(shared_api)))
    yield server
    server.kill()


@pytest.fixture
def api(request: pytest.FixtureRequest) -> Iterator[TelegramApi]:
    """The platform: the one of the shared gateway where the test uses that, else one of its own."""
    if "server" in request.fixturenames:
        yield request.getfixturevalue("shared_api")
        return
    api = TelegramApi()
    yield api
    api.stop()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a gateway on the test's home; it is killed when the test ends."""
    started: list[Server] = []

    def start(env: Env, home: str = "home") -> Server:
        started.append(Server(tmp_path / home, env=env))
        return started[-1]

    yield start
    for server in started:
        server.kill()


@pytest.fixture
def ada() -> int:
    return next(PEOPLE)


@pytest.fixture
def group() -> int:
    return next(GROUPS)


# -- in


def test_a_message_is_answered(api: TelegramApi, server: Server, ada: int) -> None:
    """And the one after it knows it; Telegram hears that both were taken."""
    api.write("reply only hello", by=ada)
    assert api.answers(ada, 1) == ["hello"]
    api.write("what did I say?", by=ada)
    assert 'first "reply only hello"' in api.answers(ada, 2)[1]
    api.wait_for(api.acknowledged)
    assert [call for call in api.called("sendChatAction") if call["chat_id"] == ada]


def test_what_is_typed_quickly_is_one_turn(api: TelegramApi, server: Server, ada: int) -> None:
    """Three messages, one answer, in the order in which they were written."""
    for text in ("one", "two", "three"):
        api.write(text, by=ada)
    [answer] = api.answers(ada, 1)
    assert 'seen: 3 messages, first "one", last "three"' in answer
    api.write("reply only four", by=ada)
    assert api.answers(ada, 2)[1:] == ["four"]


def test_a_command_comes_after_what_was_said_before_it(api: TelegramApi, server: Server, ada: int) -> None:
    """Typed in one breath: the first message belongs to the old talk, the last to the new one."""
    for text in ("reply only one", "/new", "what did I say?"):
        api.write(text, by=ada)
    answers = api.answers(ada, 3)
    assert "one" in answers
    assert [text for text in answers if 'seen: 1 messages, first "what did I say?"' in text], answers


def test_a_message_that_comes_again_after_a_crash_acts_once(api: TelegramApi, start: Start) -> None:
    """Killed after it answered, and Telegram has forgotten that it knows: one turn, one entry, one answer."""
    first = up(start(settings(api)))
    api.write("reply only once", by=100)
    assert api.answers(100, 1) == ["once"]
    counted = 'legato_deliveries_total{channel="tg",status="sent"} 1.0'
    until(lambda: counted in first.get("/metrics").body.decode())
    first.kill()
    api.redeliver()
    second = up(start(settings(api)))
    api.wait_for(api.acknowledged)
    api.write("how many?", by=100)
    assert "seen: 3 messages" in api.answers(100, 2)[1]
    assert len(api.texts(100)) == 2
    assert not undelivered(second)


class Refusing:
    """Takes the first message when it is handed over the third time, the second the second time."""

    def __init__(self, api: TelegramApi) -> None:
        self.commands: list[tuple[str, str]] = []
        self.api, self.tries, self.taken = api, collections.Counter[str](), list[str]()
        self.both = asyncio.Event()

    async def knows(self, sender: Sender) -> bool:
        return True

    async def take(self, inbound: Inbound) -> None:
        self.tries[inbound.text] += 1
        if self.tries["one"] == 2 and not self.tries["two"]:
            self.api.write("two", by=100)
        if self.tries[inbound.text] < {"one": 3, "two": 2}[inbound.text]:
            raise Unavailable("The database is away.")
        self.taken.append(inbound.text)
        if len(self.taken) == 2:
            self.both.set()

    def up(self) -> None:
        pass


async def test_messages_that_cannot_be_kept_at_once_are_heard_in_their_order_later(api: TelegramApi) -> None:
    """The first is tried more and more seldom; the second, which came later, does not overtake it."""
    channel, inlet = Telegram("tg", token=TOKEN, base_url=api.url), Refusing(api)
    api.write("one", by=100)
    listening = asyncio.create_task(channel.run(inlet))
    try:
        async with asyncio.timeout(BOUND):
            await inlet.both.wait()
        assert inlet.taken == ["one", "two"]
    finally:
        listening.cancel()
        await channel.close()


def test_a_photo_is_seen_and_a_file_that_is_too_large_is_named(api: TelegramApi, server: Server, ada: int) -> None:
    """The largest size that may be taken; what was not taken is said in its place."""
    api.files["photos/big.png"] = PNG
    sizes = [
        {"file_id": "photos/small.png", "file_unique_id": "s", "width": 1, "height": 1, "file_size": 10},
        {"file_id": "photos/big.png", "file_unique_id": "b", "width": 2, "height": 2, "file_size": len(PNG)},
        {"file_id": "photos/huge.png", "file_unique_id": "h", "width": 9, "height": 9, "file_size": 30_000_000},
    ]
    api.write("", by=ada, photo=sizes, caption=f"reply only a dot for person {ada}")
    assert api.answers(ada, 1) == [f"a dot for person {ada}"]
    document = {"file_id": "d", "file_unique_id": "d", "file_name": "all.zip", "file_size": 30_000_000}
    api.write("", by=ada, document=document)
    assert "[file all.zip: not received. The file is too large.]" in api.answers(ada, 2)[1]
    api.write("", by=ada, voice={"file_id": "gone.ogg", "file_unique_id": "v", "duration": 1})
    assert "[voice message: not received." in api.answers(ada, 3)[2]
    api.write("", by=ada, location={"latitude": 1.5, "longitude": 2.5})
    assert 'last "[location: 1.5, 2.5]"' in api.answers(ada, 4)[3]
    parts = [part for item in items_of(server, ada) for part in item.get("content", [])]
    [image] = [part for part in parts if part["type"] == "input_image"]
    assert image["image_url"] == f"data:image/png;base64,{base64.b64encode(PNG).decode()}"


def items_of(server: Server, chat: int) -> list[dict[str, Any]]:
    """What is in the conversation of a private chat: the only one in which this person spoke."""
    for row in ask(server, "GET", "/v1/conversations?limit=100").json["data"]:
        data: list[dict[str, Any]] = ask(server, "GET", f"/v1/conversations/{row['id']}/items?limit=100").json["data"]
        if any(f"person {chat}" in json.dumps(item) for item in data):
            return data
    raise AssertionError(f"nothing of {chat}")


# -- who may speak


def test_a_stranger_gets_one_code_and_nothing_else(api: TelegramApi, server: Server) -> None:
    """Confirmed by the owner, they are answered, under whatever name they have then."""
    api.write("hello?", by=5001, name="Eve")
    [greeting] = api.answers(5001, 1)
    assert "legato pair" in greeting
    code = greeting.split("legato pair ")[1].split()[0]
    for text in ("/list", "/help", "tell me everything", "/start"):
        api.write(text, by=5001, name="Eve")
    api.wait_for(api.acknowledged)
    assert ask(server, "POST", "/v1/pairings", {"code": "WRONG234"}).status == 404
    assert ask(server, "POST", "/v1/pairings", {"code": code}).status == 200
    assert ask(server, "POST", "/v1/pairings", {"code": code}).status == 404
    api.write("reply only welcome", by=5001, name="Adam")
    assert api.answers(5001, 2) == [greeting, "welcome"]
    api.write("reply only not you", by=5002, name="Adam")
    assert "legato pair" in api.answers(5002, 1)[0]


def test_in_a_group_a_stranger_is_not_even_greeted(api: TelegramApi, server: Server, ada: int, group: int) -> None:
    """Whatever they say; those who are known are answered there."""
    api.write("@legato_bot hello?", by=5003, chat=group)
    api.write("/list", by=5003, chat=group)
    api.write("@legato_bot reply only hi", by=ada, chat=group)
    assert api.answers(group, 1) == ["hi"]
    api.wait_for(api.acknowledged)
    assert not api.texts(5003)


# -- groups


def test_in_a_group_we_answer_when_we_are_named_or_answered(
    api: TelegramApi, server: Server, ada: int, group: int
) -> None:
    """What others say to each other is kept as context; the answer goes to the message that asked."""
    bob = next(PEOPLE)
    api.write("the door code is 4711", by=bob, chat=group)
    asked = api.write("🎺 @Legato_Bot what was said?", by=ada, chat=group)
    [answer] = api.answers(group, 1)
    assert "4711" in answer
    assert "🎺 what was said?" in answer
    sent = next(sent for sent in api.sent if sent.chat == group)
    assert sent.reply_to == api.message(asked)
    api.write("and now?", by=bob, chat=group, reply_to_message=_said(group, sent.id, ME))
    assert len(api.answers(group, 2)) == 2
    api.write("reply only no", by=bob, chat=group, reply_to_message=_said(group, 1, {"id": ada, "first_name": "A"}))
    api.write("/status@other_bot", by=bob, chat=group)
    api.write("/status@legato_bot", by=bob, chat=group)
    assert "no" not in api.answers(group, 3)
    api.wait_for(api.acknowledged)
    assert len(api.texts(group)) == 3


def _said(chat: int, id: int, by: dict[str, Any]) -> dict[str, Any]:
    return {"message_id": id, "date": 0, "chat": {"id": chat, "type": "supergroup"}, "from": by, "text": "x"}


def test_a_group_that_becomes_a_supergroup_goes_on(api: TelegramApi, server: Server, ada: int, group: int) -> None:
    """It has another number then; the talk is the same, and is answered at the new one only."""
    there = next(GROUPS)
    api.write("@Legato_Bot reply only before", by=ada, chat=group)
    api.answers(group, 1)
    api.write("", by=ada, chat=there, migrate_from_chat_id=group)
    api.write("@Legato_Bot What did I say?", by=ada, chat=there)
    assert "reply only before" in api.answers(there, 1)[0]
    api.redeliver()
    api.write("@Legato_Bot reply only after", by=ada, chat=there)
    assert api.answers(there, 2)[1] == "after"
    assert api.texts(group) == ["before"]


def test_topics_of_a_group_are_talks_apart(api: TelegramApi, server: Server, ada: int, group: int) -> None:
    """Each is answered where it was asked, and knows nothing of the other."""
    for topic in (11, 12):
        api.write(f"@legato_bot topic {topic}", by=ada, chat=group, message_thread_id=topic, is_topic_message=True)
    api.answers(group, 2)
    said = {sent.thread: sent.text for sent in api.sent if sent.chat == group}
    assert 'seen: 1 messages, first "topic 11"' in said[11]
    assert 'seen: 1 messages, first "topic 12"' in said[12]


def test_bots_and_channels_are_not_heard(api: TelegramApi, server: Server, ada: int, group: int) -> None:
    """Two bots would never stop."""
    api.write("reply only one", by=ada, chat=group, **{"from": {"id": ada, "is_bot": True, "first_name": "B"}})
    api.write("reply only two", by=ada, chat=group, kind="channel")
    api.write("@legato_bot reply only three", by=ada, chat=group)
    assert api.answers(group, 1) == ["three"]


# -- commands


def test_commands_are_in_the_menu_and_work(api: TelegramApi, server: Server, ada: int) -> None:
    """A new talk begins, and the old one is taken up again."""
    menu = [entry["command"] for entry in api.called("setMyCommands")[0]["commands"]]
    assert {"new", "resume", "title", "undo", "help"} <= set(menu)
    api.write("the word is heron", by=ada)
    api.answers(ada, 1)
    api.write("/new@legato_bot", by=ada)
    assert "new conversation" in api.answers(ada, 2)[1]
    api.write("anything?", by=ada)
    assert "heron" not in api.answers(ada, 3)[2]
    api.write("/resume", by=ada)
    assert "Back in" in api.answers(ada, 4)[3]
    api.write("and now?", by=ada)
    assert "heron" in api.answers(ada, 5)[4]
    api.write("/start", by=ada)
    assert "/resume" in api.answers(ada, 6)[5]


# -- out


def test_a_long_answer_is_split_where_it_may_be(api: TelegramApi, server: Server, ada: int) -> None:
    """Within the limit as Telegram counts, nothing lost, in order, with code in code."""
    api.write("write 1200 words", by=ada)
    api.wait_for(lambda: any("seen:" in text for text in api.texts(ada)))
    parts = api.texts(ada)
    assert len(parts) > 1
    assert all(len(part) <= LIMIT for part in parts)
    assert [word for part in parts for word in part.split()][:1200] == [f"word{n}" for n in range(1, 1201)]
    lines = [f"line_{n} = '🎺' * {n}" for n in range(300)]
    bob = next(PEOPLE)
    api.write("reply only ```python\n" + "\n".join(lines) + "\n```\nend", by=bob)
    api.wait_for(lambda: any(text.endswith("end") for text in api.texts(bob)))
    sent = [message for message in api.sent if message.chat == bob]
    assert len(sent) > 1
    assert all('<pre><code class="language-python">' in message.formatted for message in sent)
    assert "\n".join(message.text for message in sent).split("\n")[: len(lines)] == lines


def test_formatting_that_telegram_refuses_is_sent_plainly(api: TelegramApi, server: Server, ada: int) -> None:
    """An answer arrives, if need be as it was written."""
    api.write("reply only **bold** & <b>not</b>", by=ada)
    assert api.answers(ada, 1) == ["bold & <b>not</b>"]
    assert "<b>bold</b> &amp; &lt;b&gt;not" in next(sent for sent in api.sent if sent.chat == ada).formatted
    said = "Bad Request: can't parse entities: whatever"
    api.fault("sendMessage", chat=ada, status=400, description=said, only_formatted=True)
    api.write("reply only **bold** again", by=ada)
    assert api.answers(ada, 2)[1] == "**bold** again"
    assert not [row for row in undelivered(server) if row["chat"] == str(ada)]


def test_when_telegram_asks_to_wait_we_wait(api: TelegramApi, server: Server, ada: int) -> None:
    """The answer arrives once, after that, and before the next one."""
    api.fault("sendMessage", chat=ada, status=429, description="Too Many Requests", retry_after=2)
    began = time.monotonic()
    api.write("reply only one", by=ada)
    api.wait_for(lambda: [call for call in api.called("sendMessage") if call["chat_id"] == ada])
    api.write("reply only two", by=ada)
    assert api.answers(ada, 2) == ["one", "two"]
    assert time.monotonic() - began >= 2


def test_what_a_command_says_waits_as_well(api: TelegramApi, server: Server, ada: int) -> None:
    """It is owed to nobody, but what was surely not taken is said again; what may have been is not."""
    api.fault("sendMessage", chat=ada, status=429, description="Too Many Requests", retry_after=1)
    api.write("/help", by=ada)
    assert "/resume" in api.answers(ada, 1)[0]
    api.fault("sendMessage", chat=ada, status=500, description="Internal Server Error", taken=True)
    api.write("/status", by=ada)
    api.write("reply only on we go", by=ada)
    assert api.answers(ada, 3)[2] == "on we go"
    assert len(api.texts(ada)) == 3


@pytest.mark.parametrize(
    "fault",
    [
        {"status": 500, "description": "Internal Server Error", "taken": True},
        {"status": 502, "description": "Bad Gateway"},
        {"status": 0, "taken": True},
        {"status": 0},
    ],
)
def test_what_may_have_arrived_is_marked_and_not_sent_again(
    api: TelegramApi, server: Server, ada: int, fault: dict[str, Any]
) -> None:
    """It is listed, said in the conversation, and what comes after it goes out; a person may send it again."""
    api.fault("sendMessage", chat=ada, **fault)
    api.write("reply only perhaps", by=ada)
    [row] = until(lambda: [row for row in undelivered(server) if row["chat"] == str(ada)])
    assert row["status"] == "unknown"
    assert row["attempts"] == 1
    api.write("reply only surely", by=ada)
    api.wait_for(lambda: "surely" in api.texts(ada))
    taken = ["perhaps"] if fault.get("taken") else []
    assert api.texts(ada) == [*taken, "surely"]
    assert ask(server, "POST", f"/v1/deliveries/{row['id']}/resend").status == 200
    assert api.answers(ada, len(taken) + 2) == [*taken, "surely", "perhaps"]


def test_who_has_blocked_the_bot_is_not_tried_again(api: TelegramApi, server: Server, ada: int) -> None:
    """The answer is dead, and says why."""
    api.fault("sendMessage", chat=ada, status=403, description="Forbidden: bot was blocked by the user", times=100)
    api.write("reply only in vain", by=ada)
    [row] = until(lambda: [row for row in undelivered(server) if row["chat"] == str(ada)])
    assert row["status"] == "dead"
    assert "blocked by the user" in row["error"]


def test_order_is_kept_in_a_chat_though_telegram_is_slow(api: TelegramApi, server: Server, ada: int) -> None:
    """The first is held for a while; the second waits for it."""
    api.fault("sendMessage", chat=ada, delay=1.0, status=429, description="Too Many Requests", retry_after=1)
    for count in range(1, 4):
        api.write(f"reply only {count}", by=ada)
        api.wait_for(api.acknowledged)
    assert api.answers(ada, 3) == ["1", "2", "3"]


# -- the bot itself


def test_a_bot_without_a_token_is_down_and_says_so(api: TelegramApi, start: Start) -> None:
    server = start(settings(api, token=""))
    until(lambda: "has no token" in state_of(server))
    assert server.get("/readyz").status == 200


def test_a_bad_token_stops_nothing_else_and_is_shown_nowhere(api: TelegramApi, start: Start) -> None:
    """The channel is down and says what to set; the gateway is ready, and answers others."""
    wrong = TOKEN.replace("canary", "canary-wrong")
    server = start({**settings(api, token=wrong), "LEGATO_LOG__LEVEL": "debug"})
    until(lambda: "token" in state_of(server))
    ready = server.get("/readyz")
    assert ready.status == 200
    assert "down: Telegram does not know the bot's token. Set channels.tg.token" in state_of(server)
    assert server.say("reply only yes").text == "yes"
    metrics = server.get("/metrics").body.decode()
    assert 'legato_channel_up{channel="tg"} 0.0' in metrics
    server.kill()
    lines = [*server.stdout.lines, *server.stderr.lines, ready.body.decode(), metrics]
    assert not [line for line in lines if "canary" in line]


def test_the_token_is_in_no_log_and_no_error_whatever_goes_wrong(api: TelegramApi, start: Start) -> None:
    """Every fault once, then the platform is gone altogether."""
    server = up(start({**settings(api), "LEGATO_LOG__LEVEL": "debug"}))
    for chat, fault in enumerate(({"status": 0}, {"status": 500}, {"status": 400}, {"status": 403}), start=100):
        api.fault("sendMessage", chat=chat, description=f"no /bot{TOKEN}/sendMessage", **fault)
        api.fault("sendChatAction", chat=chat, **fault)
        api.write("reply only x", by=chat)
    rows = until(lambda: len(found := undelivered(server)) == 4 and found)
    api.fault("getUpdates", status=0, times=1)
    api.write("reply only y", by=110)
    until(lambda: state_of(server) != "up")
    up(server)
    api.stop_listening()
    until(lambda: "cannot be reached" in state_of(server) or "broke" in state_of(server))
    ready = server.get("/readyz").body.decode()
    server.kill()
    seen = [*server.stdout.lines, *server.stderr.lines, ready, json.dumps(rows)]
    assert len(seen) > 10
    assert not [line for line in seen if "canary" in line or TOKEN.split(":")[1] in line]


def test_a_webhook_takes_what_telegram_posts_and_nothing_else(api: TelegramApi, start: Start) -> None:
    """The secret is told to Telegram, and proves each update."""
    more = {"mode": "webhook", "url": "https://bots.example/channels/tg", "secret": "hook-secret_1"}
    server = up(start(settings(api, **more)))
    assert api.webhook["url"] == more["url"]
    assert api.webhook["secret_token"] == more["secret"]
    api.write("reply only posted", by=100)
    update = api.unheard()[0]
    post = lambda **headers: server._request("POST", "/channels/tg", update, headers)  # noqa: E731
    assert post().status == 403
    assert post(**{"X-Telegram-Bot-Api-Secret-Token": "hook-secret_2"}).status == 403
    assert not api.texts(100)
    for _ in range(2):
        assert post(**{"X-Telegram-Bot-Api-Secret-Token": "hook-secret_1"}).status == 200
    assert api.answers(100, 1) == ["posted"]
    api.write("reply only again", by=100)
    update = api.unheard()[1]
    assert post(**{"X-Telegram-Bot-Api-Secret-Token": "hook-secret_1"}).status == 200
    assert api.answers(100, 2) == ["posted", "again"]
    assert not api.called("getUpdates")


def test_a_webhook_without_a_secret_takes_nothing(api: TelegramApi, start: Start) -> None:
    """It fails closed, and says what is missing."""
    server = start(settings(api, mode="webhook", url="https://bots.example/channels/tg"))
    until(lambda: "channels.tg.secret" in state_of(server))
    assert server._request("POST", "/channels/tg", {"update_id": 1}, {}).status == 403


# -- the drill


def test_every_message_is_answered_once_though_the_gateway_is_killed(
    api: TelegramApi, start: Start, request: pytest.FixtureRequest
) -> None:
    """Killed again and again: each message is answered once, or its answer is marked; in order, and in its chat."""
    long = request.config.getoption("--long")
    messages, chats, kills = (1000, 50, 25) if long else (60, 10, 2)
    env = settings(api, gather="0")
    written = iter(range(messages))
    doubted: set[str] = set()

    def write(count: int) -> None:
        for n in itertools.islice(written, count):
            api.write(f"reply only answer {n} to {100 + n % chats}", by=100 + n % chats)

    for kill in range(kills):
        server = up(start(env))
        doubted |= _doubted(server)
        some = len(api.sent) + 2 + 3 * kill % 7
        write(messages // (kills + 1))
        api.wait_for(lambda: len(api.sent) >= some)  # noqa: B023 - in the middle of it
        server.kill()
    server = up(start(env))
    write(messages)
    _check_answers(api, server, messages, chats, doubted)


def test_two_processes_share_a_bot_and_each_of_them_is_killed(
    api: TelegramApi, start: Start, pg_url: str, request: pytest.FixtureRequest
) -> None:
    """One asks for messages at a time; when it dies the other goes on, and nothing is lost, doubled or overtaken."""
    long = request.config.getoption("--long")
    messages, chats, kills = (1000, 50, 12) if long else (30, 6, 1)
    env = {**settings(api, gather="0"), "LEGATO_DATABASE_URL": pg_url, "LEGATO_WORKER__LEASE": "3"}
    homes = {home: start(env, home) for home in ("one", "two")}
    doubted: set[str] = set()
    written = iter(range(messages))

    def listening() -> str:
        return str(until(lambda: next((home for home, server in homes.items() if state_of(server) == "up"), None)))

    for kill in range(kills + 1):
        home = listening()
        doubted |= _doubted(homes[home])
        some = len(api.sent) + 2
        for n in itertools.islice(written, messages // (kills + 1)):
            api.write(f"reply only answer {n} to {100 + n % chats}", by=100 + n % chats)
        api.wait_for(lambda: len(api.sent) >= some)  # noqa: B023 - in the middle of it
        if kill < kills:
            homes[home].kill()
            other = next(name for name in homes if name != home)
            until(lambda: state_of(homes[other]) == "up")  # noqa: B023 - of this round
            homes[home] = start(env, home)
    for n in written:
        api.write(f"reply only answer {n} to {100 + n % chats}", by=100 + n % chats)
    _check_answers(api, homes[listening()], messages, chats, doubted)


def _check_answers(api: TelegramApi, server: Server, messages: int, chats: int, doubted: set[str]) -> None:
    """Each message was answered once, or its answer is in doubt; in order, and in its chat."""
    expected = {f"answer {n} to {100 + n % chats}": 100 + n % chats for n in range(messages)}

    def settled() -> bool:
        doubted.update(_doubted(server))
        return set(expected) <= {sent.text for sent in api.sent} | doubted

    until(settled)
    for chat in range(100, 100 + chats):
        texts = api.texts(chat)
        mine = [text for text, where in expected.items() if where == chat]
        assert len(texts) == len(set(texts)), texts
        assert texts == [text for text in mine if text in texts], "order, and nothing of another chat"
        assert set(mine) - set(texts) <= doubted


def _doubted(server: Server) -> set[str]:
    """The answers of which nobody knows whether they arrived."""
    rows = [row for row in undelivered(server) if row["status"] == "unknown"]
    return {ask(server, "GET", f"/v1/responses/{row['response']}").text for row in rows}
