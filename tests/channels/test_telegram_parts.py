"""What a Telegram bot makes of Markdown, of what people post, and of everything that goes wrong."""

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels.telegram_api import ME, TOKEN, TelegramApi, shown
from engine.waiting import until, within
from legato.channels.telegram import Telegram, Window
from legato.channels.telegram_bot import TelegramBot
from legato.channels.telegram_html import to_html
from legato.channels.telegram_message import Posted, User, heard
from legato.domain.channels import Inbound, Sender
from legato.engine.protocols import Doubtful, NotSent, Rejected
from legato.errors import LegatoError, Unavailable

BOT = User(ME["id"], True, username="legato_bot")
MARKS = st.lists(
    st.sampled_from(["*", "**", "_", "`", "```\n", "\n", "\n\n", "> ", "- ", "1. ", "# ", "[", "](http://x)", "<b>"])
    | st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=5)
).map("".join)


# -- formatted text


@pytest.mark.parametrize(
    ("markdown", "html"),
    [
        ("**bold** *it* ~~no~~ `a<b`", "<b>bold</b> <i>it</i> <s>no</s> <code>a&lt;b</code>"),
        ("# Head\ntext", "<b>Head</b>\n\ntext"),
        ("- one\n- two\n  - three", "• one\n• two\n    • three".replace("    ", "  ")),
        ("3. three\n4. four", "3. three\n4. four"),
        ("[x](https://a.b/?c=1&d=2)", '<a href="https://a.b/?c=1&amp;d=2">x</a>'),
        ("[x](javascript:alert)", "[x](javascript:alert)"),
        ("[x](/local)", "x"),
        ("```python\na < b\n```", '<pre><code class="language-python">a &lt; b</code></pre>'),
        ("> said\n\nanswer", "<blockquote>said</blockquote>\n\nanswer"),
        ("<script>x</script>", "&lt;script&gt;x&lt;/script&gt;"),
        ("snake_case_name and 2 * 3 * 4", "snake_case_name and 2 * 3 * 4"),
        ("one\ntwo", "one\ntwo"),
    ],
)
def test_markdown_becomes_what_telegram_knows(markdown: str, html: str) -> None:
    """And nothing else."""
    assert to_html(markdown) == html


@given(MARKS)
def test_whatever_is_said_the_tags_match(text: str) -> None:
    """Telegram refuses a message for one tag that is not closed."""
    html = to_html(text)
    assert shown(html) is not None, html


# -- what people post


def posted(text: str = "", kind: str = "supergroup", **more: Any) -> Posted:
    told = {
        "message_id": 5,
        "chat": {"id": -9, "type": kind},
        "from": {"id": 7, "first_name": "Ada", "last_name": "L", "username": "ada"},
        "text": text,
        **more,
    }
    return msgspec.convert(told, Posted)


def test_a_mention_is_cut_out_wherever_it_stands() -> None:
    """Also after letters that Telegram counts twice; the mention of another stays."""
    text = "🎺🎺 hey @legato_bot and @other, listen"
    entities = [{"type": "mention", "offset": 9, "length": 11}, {"type": "mention", "offset": 25, "length": 6}]
    meant = heard(posted(text, entities=entities), BOT, "tg", 0)
    assert meant is not None
    assert meant.text == "🎺🎺 hey and @other, listen"
    assert meant.for_us
    assert meant.sender == Sender("telegram", "tg", "7", "Ada L")


@pytest.mark.parametrize(
    ("text", "for_us", "understood"),
    [
        ("/new", True, "/new"),
        ("/new@legato_bot about cats", True, "/new about cats"),
        ("/new@LEGATO_BOT", True, "/new"),
        ("/new@other_bot", False, "/new@other_bot"),
        ("/start", True, "/help"),
        ("just talk", False, "just talk"),
    ],
)
def test_a_command_is_for_us_or_for_nobody_in_particular(text: str, for_us: bool, understood: str) -> None:
    command = [{"type": "bot_command", "offset": 0, "length": len(text.split()[0])}] if text[0] == "/" else []
    meant = heard(posted(text, entities=command), BOT, "tg", 0)
    assert meant is not None
    assert (meant.for_us, meant.text) == (for_us, understood)


@pytest.mark.parametrize(
    "nothing",
    [
        posted("x", kind="channel"),
        posted("x", **{"from": {"id": 1, "is_bot": True}}),
        posted("x", **{"from": None}),
        posted("", new_chat_members=[{"id": 1}]),
    ],
)
def test_what_no_person_says_is_nothing(nothing: Posted) -> None:
    assert heard(nothing, BOT, "tg", 0) is None


def test_the_first_message_of_a_topic_is_answered_by_nobody() -> None:
    """Telegram gives it as what each message in the topic answers; where we made the topic, all would be for us."""
    opening = {"message_id": 1, "chat": {"id": -9, "type": "supergroup"}, "from": ME}
    said = {"message_thread_id": 1, "is_topic_message": True}
    meant = heard(posted("x", reply_to_message={**opening, "forum_topic_created": {}}, **said), BOT, "tg", 0)
    assert meant is not None
    assert not meant.for_us
    assert meant.address.thread == "1"
    answered = heard(posted("x", reply_to_message=opening, **said), BOT, "tg", 0)
    assert answered is not None
    assert answered.for_us


# -- what goes wrong


@pytest.fixture
async def bot(api: TelegramApi) -> AsyncIterator[TelegramBot]:
    bot = TelegramBot("tg", TOKEN, api.url, answer=1.0)
    yield bot
    bot.close()


async def failure_of(bot: TelegramBot) -> LegatoError:
    """How sending fails; whatever is attached to it, the token is not."""
    with pytest.raises(LegatoError) as caught:
        await within(bot.send("7", "", "text", "<b>text</b>", None))
    error: BaseException | None = caught.value
    while error is not None:
        assert "canary" not in f"{error} {error!r} {error.args}"
        error = error.__cause__ or error.__context__
    return caught.value


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ({"status": 429, "retry_after": 3}, NotSent),
        ({"status": 401, "description": "Unauthorized"}, NotSent),
        ({"status": 404, "description": "Not Found"}, NotSent),
        ({"status": 400, "description": f"Bad Request: chat not found bot{TOKEN}"}, Rejected),
        ({"status": 403, "description": "Forbidden: bot was kicked"}, Rejected),
        ({"status": 413, "description": "Request Entity Too Large"}, Rejected),
        ({"status": 418, "description": "whatever"}, Rejected),
        ({"status": 500, "description": "Internal Server Error"}, Doubtful),
        ({"status": 500, "description": "restart"}, Doubtful),
        ({"status": 502, "body": "<html>Bad Gateway</html>"}, Doubtful),
        ({"status": 200, "body": "<html>"}, Doubtful),
        ({"status": 0, "taken": True}, Doubtful),
        ({"status": 0}, Doubtful),
        ({"status": 200, "taken": True, "delay": 3.0}, Doubtful),
    ],
)
async def test_a_failure_says_whether_it_may_be_sent_again(
    api: TelegramApi, bot: TelegramBot, fault: dict[str, Any], kind: type[LegatoError]
) -> None:
    """Only what was surely not taken is sent again by itself."""
    api.fault("sendMessage", **fault)
    error = await failure_of(bot)
    assert type(error) is kind, error
    if isinstance(error, NotSent):
        assert error.retry_after == (3.0 if fault["status"] == 429 else None)
    assert len(api.called("sendMessage")) == 1


async def test_a_message_is_not_sent_again_when_a_kept_connection_breaks(api: TelegramApi, bot: TelegramBot) -> None:
    """Telegram took the second one, and closed instead of answering."""
    await within(bot.send("7", "", "one", "", None))
    api.fault("sendMessage", status=0, taken=True)
    assert type(await failure_of(bot)) is Doubtful
    assert api.texts(7) == ["one", "text"]


@pytest.mark.parametrize("base_url", ["refused", "http://nobody.invalid", "http://a..b", "no url", "ftp://x"])
async def test_what_could_not_be_connected_was_not_sent(base_url: str) -> None:
    """Nobody listens, no such host, no address at all."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    bot = TelegramBot("tg", TOKEN, f"http://127.0.0.1:{port}" if base_url == "refused" else base_url)
    assert type(await failure_of(bot)) is NotSent
    bot.close()


@pytest.mark.parametrize("token", ["", "no token", "canary", "12:canary canary", "١٢:canary"])
async def test_what_is_no_token_is_said_to_be_none(token: str) -> None:
    bot = TelegramBot("tg", token, "http://127.0.0.1:1")
    assert "channels.tg.token" in (await failure_of(bot)).message
    bot.close()


async def test_a_group_that_has_moved_is_followed(api: TelegramApi, bot: TelegramBot) -> None:
    """Telegram tells the new number with the refusal."""
    api.fault("sendMessage", status=400, description="group chat was upgraded", migrate_to_chat_id=-42)
    await within(bot.send("-7", "", "text", "", None))
    assert api.texts(-42) == ["text"]


async def test_a_group_that_moves_for_ever_is_given_up(api: TelegramApi, bot: TelegramBot) -> None:
    api.fault("sendMessage", status=400, description="upgraded", migrate_to_chat_id=-42, times=9)
    with pytest.raises(Rejected):
        await within(bot.send("-7", "", "text", "", None))
    assert len(api.called("sendMessage")) == 2


@pytest.mark.parametrize(("told", "wait"), [(-5, 1.0), (10**12, 3600.0)])
async def test_how_long_telegram_wants_us_to_wait_is_bounded(
    api: TelegramApi, bot: TelegramBot, told: int, wait: float
) -> None:
    api.fault("sendMessage", status=429, retry_after=told)
    error = await failure_of(bot)
    assert isinstance(error, NotSent)
    assert error.retry_after == wait


async def test_a_message_is_changed_as_often_as_one_likes(api: TelegramApi, bot: TelegramBot) -> None:
    """What it says already is no failure; where it is gone, that is said; what cannot be parsed is shown plainly."""
    message = await within(bot.send("7", "", "a", "", None))
    for _ in range(2):
        await within(bot.edit("7", message, "**b**", "<b>b</b>"))
        assert api.texts(7) == ["b"]
    await within(bot.edit("7", message, "**c**", "<b>c"))
    assert api.texts(7) == ["**c**"]
    with pytest.raises(Rejected):
        await within(bot.edit("7", "999", "d", ""))
    api.fault("editMessageText", status=500, description="Internal Server Error")
    with pytest.raises(Doubtful):
        await within(bot.edit("7", message, "e", ""))


# -- asking and acknowledging


class Room:
    """Takes what a channel hears, when the test lets it."""

    def __init__(self) -> None:
        self.commands = [("help", "what there is")]
        self.taken: list[str] = []
        self.trouble: list[LegatoError] = []
        self.open = asyncio.Event()
        self.waiting = 0

    async def knows(self, sender: Sender) -> bool:
        return True

    async def take(self, inbound: Inbound) -> None:
        self.waiting += 1
        if self.trouble:
            raise self.trouble.pop()
        await self.open.wait()
        self.taken.append(inbound.text)

    def up(self) -> None:
        pass


@pytest.fixture
async def room(api: TelegramApi) -> AsyncIterator[Room]:
    """A room into which a bot listens."""
    room, channel = Room(), Telegram("tg", token=TOKEN, base_url=api.url)
    listening = asyncio.create_task(channel.run(room))
    yield room
    listening.cancel()
    await asyncio.wait({listening})
    await channel.close()


async def test_what_is_being_taken_is_not_acknowledged_and_holds_up_nobody(api: TelegramApi, room: Room) -> None:
    """The next ones are heard while the first is not safe; Telegram is asked a few times a second, not more."""
    first = api.write("one", by=1)
    await until(lambda: _true(room.waiting == 1))
    second = api.write("two", by=2)
    await until(lambda: _true(room.waiting == 2))
    asked = len(api.called("getUpdates"))
    await asyncio.sleep(1)
    assert len(api.called("getUpdates")) - asked <= 6
    assert not api.acknowledged(first)
    assert not api.acknowledged(second)
    room.open.set()
    await until(lambda: _true(api.acknowledged()))
    assert sorted(room.taken) == ["one", "two"]
    asked = len(api.called("getUpdates"))
    await asyncio.sleep(0.5)
    assert len(api.called("getUpdates")) - asked <= 1


async def test_what_could_not_be_taken_is_tried_again(api: TelegramApi, room: Room) -> None:
    """The store is away for a moment; the message is not lost, and not acknowledged before."""
    room.open.set()
    room.trouble = [Unavailable()]
    update = api.write("one")
    await until(lambda: _true(room.waiting == 1))
    assert not api.acknowledged(update)
    await until(lambda: _true(api.acknowledged(update)))
    assert room.taken == ["one"]


async def test_an_update_that_cannot_be_read_hides_no_other(api: TelegramApi, room: Room) -> None:
    room.open.set()
    api.write("one")
    api.write("odd", chat_shared=1, entities="these are no entities")
    api.write("two")
    await until(lambda: _true(api.acknowledged()))
    assert room.taken == ["one", "two"]


def test_the_offset_is_the_first_that_is_not_safe() -> None:
    window = Window()
    assert [window.begin(n) for n in (10, 11, 12, 11)] == [True, True, True, False]
    window.safe(11)
    assert (window.offset, window.begin(11)) == (10, False)
    window.safe(10)
    assert (window.offset, window.begin(10)) == (12, False)
    window.safe(12)
    assert (window.offset, window.begin(12), window.begin(13)) == (13, False, True)


async def _true(happened: bool) -> bool:
    return happened
