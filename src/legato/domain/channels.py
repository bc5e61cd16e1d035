"""What comes in and goes out on channels, whatever the platform.

`split` cuts a long answer into messages that a platform takes: at the end of a paragraph, a line, a sentence or a word,
and never so that a block of code is left open.
"""

import re
from collections.abc import Callable

from msgspec import Struct

from legato.domain.attachments import Blob
from legato.domain.handles import Address


class MessageKey(Struct, frozen=True):
    """A platform's own name of a message: what tells a redelivery."""

    channel: str
    account: str
    message: str


class Sender(Struct, frozen=True):
    """Who speaks: by the platform's id of the person, which never changes. The name is for people."""

    channel: str
    account: str
    id: str
    name: str = ""


class Attached(Struct, frozen=True):
    """Bytes that came along."""

    blob: Blob
    name: str | None = None


class Inbound(Struct, frozen=True, kw_only=True):
    """A message on a channel. In a group it is `for_us` when we are named, answered or alone with the person."""

    address: Address
    sender: Sender
    message: str
    text: str = ""
    attached: tuple[Attached, ...] = ()
    group: bool = False
    for_us: bool = True

    @property
    def key(self) -> MessageKey:
        return MessageKey(self.address.channel, self.address.account, f"{self.address.chat}/{self.message}")


_FENCE = re.compile(r"^(```+|~~~+)(.*)$")
_ENDS = (re.compile(r"\n\n+"), re.compile(r"\n"), re.compile(r"(?<=[.!?。！？])\s*"), re.compile(r"\s+"))


def split(text: str, limit: int, size: Callable[[str], int] = len) -> list[str]:
    """The text as messages of at most `limit`, as the platform measures. Blocks of code are closed and opened again."""
    parts: list[str] = []
    opened = ""  # the fence of a block of code that the last part left open
    rest = text.strip("\n")
    while rest:
        room = limit - size(f"{opened}\n") - size("\n```") if opened or "```" in rest or "~~~" in rest else limit
        if size(rest) <= room:
            piece, rest = rest, ""
        else:
            piece, rest = _cut(rest, max(room, 1), size)
        shown = f"{opened}\n{piece}" if opened else piece
        opened = _left_open(shown)
        parts.append(shown + (f"\n{_closing(opened)}" if opened else ""))
        rest = rest.lstrip("\n") if not opened else rest
    return parts


def _cut(text: str, room: int, size: Callable[[str], int]) -> tuple[str, str]:
    """The longest beginning that fits and ends well, and the rest."""
    upto = min(len(text), room)
    while size(text[:upto]) > room:
        upto -= max(1, (size(text[:upto]) - room) // 2)
    for ends in _ENDS:
        places = [match.end() for match in ends.finditer(text, 0, upto) if match.end() > upto // 4]
        if places and size(text[: places[-1]].rstrip()) > 0:
            return text[: places[-1]].rstrip("\n "), text[places[-1] :]
    return text[:upto], text[upto:]


def _left_open(text: str) -> str:
    """The fence that a text leaves open, with its language; empty when none is."""
    opened = ""
    for line in text.split("\n"):
        if match := _FENCE.match(line.strip()):
            if not opened:
                opened = line.strip()
            elif line.strip().startswith(_closing(opened)) and not match[2].strip():
                opened = ""
    return opened


def _closing(fence: str) -> str:
    match = _FENCE.match(fence)
    return match[1] if match else "```"
