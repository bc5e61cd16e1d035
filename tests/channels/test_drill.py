"""Everything that is written is answered, once and in order, though gateways are killed all the time."""

import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from api.server import Server
from api.wire import get
from channels.platform import SECRET, Bridge
from legato.channels.signing import sign

BOUND = 120.0


@pytest.fixture(params=["one process on SQLite", "two processes on PostgreSQL"])
def servers(request: pytest.FixtureRequest, tmp_path: Path, mine: Bridge) -> Iterator[list[Server]]:
    settings = {**mine.settings, "LEGATO_CHANNELS__MINE__GATHER": "0", "LEGATO_WORKER__LEASE": "3"}
    if request.param.startswith("two"):
        settings["LEGATO_DATABASE_URL"] = request.getfixturevalue("pg_url")
    made = [Server(tmp_path / f"home{n}", **settings) for n in range(2 if "two" in request.param else 1)]
    yield made
    try:
        for server in made:
            server.check_log()
    finally:
        for server in made:
            server.stop()


def test_every_message_is_answered_once_though_gateways_are_killed(
    servers: list[Server], mine: Bridge, pytestconfig: pytest.Config
) -> None:
    """Each chat writes one message after the other, repeats it until it was taken, and hears each answer once. The
    kills come as the answers do, so that they are all in the middle of it, however quick that is."""
    chats, messages, kills = (50, 20, 40) if pytestconfig.getoption("--long") else (8, 6, 4)
    chance, killed = random.Random(7), 0

    def write(chat: int) -> None:
        with httpx.Client(verify=False, timeout=10) as client:
            for n in range(messages):
                text = f"reply only {chat}.{n}"
                body = {"id": f"m{n}", "chat": f"chat-{chat}", "sender": {"id": "ann"}, "text": text}
                _post_until_taken(client, servers, body, chat)

    def kill() -> None:
        nonlocal killed
        for n in range(1, kills + 1):
            due = chats * messages * n // (kills + 1)
            mine.wait(lambda: len(mine.posts) >= due, lambda: f"{len(mine.posts)} answers")  # noqa: B023 - of this round
            chance.choice(servers).restart()
            killed += 1

    killer = threading.Thread(target=kill)
    killer.start()
    with ThreadPoolExecutor(chats) as pool:
        list(pool.map(write, range(chats)))
    killer.join(BOUND)
    assert killed == kills
    for chat in range(chats):
        expected = [f"{chat}.{n}" for n in range(messages)]
        assert mine.heard(f"chat-{chat}", messages) == expected
    assert len(mine.posts) == chats * messages
    assert get(servers[0].client, "/v1/deliveries")["data"] == []
    assert len(get(servers[0].client, "/v1/conversations", limit=100)["data"]) == chats


def _post_until_taken(client: httpx.Client, servers: list[Server], body: dict[str, object], chat: int) -> None:
    end = time.monotonic() + BOUND
    attempt = chat
    while time.monotonic() < end:
        attempt += 1
        server = servers[attempt % len(servers)]
        data = httpx.Request("POST", "http://x", json={**body, "nonce": attempt}).content
        try:
            headers = sign(SECRET, int(time.time()), data)
            answer = client.post(f"{server.url}/channels/mine", content=data, headers=headers)
            if answer.status_code == 200:
                return
            assert answer.status_code in (409, 503), answer.text
        except httpx.TransportError:
            time.sleep(0.05)
    raise AssertionError(f"{body} was never taken")
