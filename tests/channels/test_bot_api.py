"""Our bot beside the library that keeps up with Telegram: the same calls, the same answers.

Neither our client nor the stand-in of the Bot API can be wrong about the API unnoticed: the library sends each call to
the stand-in, too, reads its answer, and what the stand-in heard from both is equal.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from channels.telegram_api import TOKEN, TelegramApi
from engine.waiting import within
from legato.channels.telegram_bot import HEARD, TelegramBot

Call = Callable[[TelegramBot], Awaitable[Any]]
Same = Callable[[Any, Any], Awaitable[Any]]  # of the library's bot, with its types

LONG = "🎺 <b>a & b</b>\nü=1+1&c%20"


@pytest.fixture
async def bots(api: TelegramApi) -> AsyncIterator[tuple[TelegramBot, Any]]:
    """Ours and theirs. The library is loaded by who uses it: it takes seconds, and every test process looks in here."""
    from aiogram import Bot  # noqa: PLC0415
    from aiogram.client.session.aiohttp import AiohttpSession  # noqa: PLC0415
    from aiogram.client.telegram import TelegramAPIServer  # noqa: PLC0415

    ours = TelegramBot("tg", TOKEN, api.url)
    theirs = Bot(TOKEN, AiohttpSession(api=TelegramAPIServer.from_base(api.url)))
    yield ours, theirs
    ours.close()
    await theirs.session.close()


@pytest.fixture
def types() -> Any:
    from aiogram import types  # noqa: PLC0415

    return types


CALLS: dict[str, tuple[Call, Same]] = {
    "getMe": (lambda bot: bot.me(), lambda bot, types: bot.get_me()),
    "setMyCommands": (
        lambda bot: bot.offer([("new", "begin anew"), ("help", LONG)]),
        lambda bot, types: bot.set_my_commands(
            [
                types.BotCommand(command="new", description="begin anew"),
                types.BotCommand(command="help", description=LONG),
            ]
        ),
    ),
    "getUpdates": (
        lambda bot: bot.updates(17, 0),
        lambda bot, types: bot.get_updates(offset=17, timeout=0, allowed_updates=HEARD),
    ),
    "setWebhook": (
        lambda bot: bot.come_to("https://our.host/channels/tg", "s-e_cret"),
        lambda bot, types: bot.set_webhook(
            "https://our.host/channels/tg", secret_token="s-e_cret", allowed_updates=HEARD
        ),
    ),
    "deleteWebhook": (lambda bot: bot.wait_for_us(), lambda bot, types: bot.delete_webhook()),
    "sendMessage": (
        lambda bot: bot.send("-42", "7", "", LONG.replace("&", "&amp;"), "5"),
        lambda bot, types: bot.send_message(
            -42,
            LONG.replace("&", "&amp;"),
            message_thread_id=7,
            parse_mode="HTML",
            reply_parameters=types.ReplyParameters(message_id=5, allow_sending_without_reply=True),
        ),
    ),
    "sendMessage, plainly": (
        lambda bot: bot.send("7", "", LONG, "", None),
        lambda bot, types: bot.send_message(7, LONG),
    ),
    "editMessageText": (
        lambda bot: bot.edit("7", "1", "", "<i>other</i>"),
        lambda bot, types: bot.edit_message_text("<i>other</i>", chat_id=7, message_id=1, parse_mode="HTML"),
    ),
    "sendChatAction": (
        lambda bot: bot.typing("7", "3"),
        lambda bot, types: bot.send_chat_action(7, "typing", message_thread_id=3),
    ),
    "getFile": (lambda bot: bot.fetch("a file", 100), lambda bot, types: bot.get_file("a file")),
}


@pytest.mark.parametrize("call", CALLS)
async def test_we_say_what_the_library_says(
    api: TelegramApi, bots: tuple[TelegramBot, Any], types: Any, call: str
) -> None:
    ours, theirs = bots
    api.files["a file"] = b"bytes"
    await within(ours.send("7", "", "there", "", None))
    for turn in (CALLS[call][0](ours), CALLS[call][1](theirs, types)):
        if call == "editMessageText":  # the same text again is refused
            await within(ours.edit("7", "1", "as it was", ""))
        await within(turn)
    heard = api.called(call.partition(",")[0])[-4:]
    mine, library = (heard[1], heard[3]) if call == "editMessageText" else heard[-2:]
    assert mine == library


async def test_what_the_stand_in_tells_is_what_telegram_tells(
    api: TelegramApi, bots: tuple[TelegramBot, Any], types: Any
) -> None:
    """The library reads it with every type that the API has."""
    ours, theirs = bots
    api.write("hello @legato_bot", by=7)
    [told] = await within(theirs.get_updates())
    [read] = await within(ours.updates(0, 0))
    assert isinstance(told, types.Update)
    assert isinstance(told.message, types.Message)
    assert (told.update_id, told.message.text) == (read["update_id"], "hello @legato_bot")
    sent = await within(theirs.send_message(7, "<b>x</b>", parse_mode="HTML"))
    assert (sent.text, sent.message_id) == ("x", api.sent[-1].id)
    assert (await within(theirs.get_me())).username == (await within(ours.me())).username == "legato_bot"
