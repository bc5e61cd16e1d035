"""Handles: the typed outside names of a conversation.

Clients know a conversation by many names. Each becomes a conversation in one place, the store's directory, and
only for the principal who owns it. A stored handle has a scheme and a value; ids are handles that need no storing.
"""

import difflib
import re
import sys
from collections.abc import Sequence
from typing import ClassVar

from msgspec import Struct, json

from legato.domain.ids import CONVERSATION_PREFIX, ConversationId
from legato.errors import BadInput

MAX_NAME = 255
_SLUG = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@+-]{0,254}\Z")
SLUG_RULE = "A name begins with a letter or digit, followed by up to 254 letters, digits or any of '._:@+-'."
_VISIBLE = re.compile(r"[^\x00-\x1f\x7f-\x9f\ud800-\udfff]{1,255}\Z")


class ById(Struct, frozen=True):
    """A conversation's own id: never creates."""

    id: ConversationId


class Slug(Struct, frozen=True):
    """A name the client chose: continued, or made on first use."""

    scheme: ClassVar[str] = "slug"
    value: str

    @property
    def creatable(self) -> bool:
        return _SLUG.match(self.value) is not None


class External(Struct, frozen=True):
    """Another system's id for the conversation, such as a session header."""

    scheme: ClassVar[str] = "external"
    value: str
    creatable: ClassVar[bool] = True


class Address(Struct, frozen=True):
    """A place on a channel. Stored as a JSON array, so that no part can imitate another."""

    scheme: ClassVar[str] = "address"
    channel: str
    account: str
    chat: str
    thread: str = ""
    creatable: ClassVar[bool] = True

    @property
    def value(self) -> str:
        return json.encode([self.channel, self.account, self.chat, self.thread]).decode()

    @staticmethod
    def beginning(channel: str, account: str) -> str:
        """How the value of every address of one account begins."""
        return json.encode([channel, account]).decode().removesuffix("]") + ","

    @classmethod
    def parse(cls, value: str) -> "Address":
        return cls(*json.decode(value, type=tuple[str, str, str, str]))


Name = Slug | External | Address
"""The handles that the directory stores as aliases."""

Handle = ById | Name


def parse_name(text: str, *, param: str = "conversation") -> ById | Slug:
    """What a client wrote where a conversation is named: an id, or a slug."""
    text = _visible(text, param)
    return ById(ConversationId(text)) if text.startswith(CONVERSATION_PREFIX) else Slug(text)


def parse_external(text: str, *, param: str) -> ById | External:
    """What a client wrote in a session header: an id, or another system's name."""
    text = _visible(text, param)
    return ById(ConversationId(text)) if text.startswith(CONVERSATION_PREFIX) else External(text)


def nearest(what: str, known: Sequence[Sequence[str]], most: int = 3) -> list[int]:
    """The places of those that are called nearly so; each may have several names."""
    places = {name.casefold(): place for place, names in reversed([*enumerate(known)]) for name in names if name}
    return list(dict.fromkeys(places[name] for name in difflib.get_close_matches(what.casefold(), places, most, 0.4)))


def past_all_beginning(what: str) -> str:
    """The first text, in the order of code points, after all that begin so."""
    stem = what.rstrip(chr(sys.maxunicode))
    if not stem:
        return what + chr(sys.maxunicode)
    following = ord(stem[-1]) + 1
    return stem[:-1] + chr(0xE000 if following == 0xD800 else following)  # past the surrogates, which are no text


def _visible(text: str, param: str) -> str:
    if not _VISIBLE.match(text):
        raise BadInput(f"'{param}' must be 1 to {MAX_NAME} visible characters.", param=param)
    return text
