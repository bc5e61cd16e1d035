"""What comes in and goes out on channels, whatever the platform.

`split` cuts a long answer into messages that a platform takes: at the end of a paragraph, a line, a sentence or a word,
and never so that a block of code is left open.
"""

import re
from bisect import bisect_left
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


LONGEST_LANGUAGE = 20
LONGEST_FENCE = 8

_FENCE = re.compile(r"^[^\S\n]*(([`~])\2{2,7})((?:(?!\2).)*)$", re.MULTILINE)
_ENDS = (re.compile(r"\n\n+"), re.compile(r"\n"), re.compile(r"(?<=[.!?。！？])\s*"), re.compile(r"\s+"))


class _Fence(Struct, frozen=True):
    """A line of the text that opens a block of code, or, without a `mark`, closes one."""

    start: int = -1
    end: int = -1
    mark: str = ""
    language: str = ""

    @property
    def opening(self) -> str:
        return f"{self.mark}{self.language}\n" if self.mark else ""

    @property
    def closing(self) -> str:
        return f"\n{self.mark}" if self.mark else ""


def split(text: str, limit: int, size: Callable[[str], int] = len) -> list[str]:
    """The text as messages of at most `limit`, as the platform measures. Blocks of code are closed and opened again.
    What is blank is left out."""
    text = text.strip("\n")
    fences = _fences(text, min(LONGEST_LANGUAGE, limit // 8))
    reserved = 1 + LONGEST_FENCE if len(fences) > 1 else 0
    parts: list[str] = []
    place, opened = 0, fences[0]
    while place < len(text):
        room = max(limit - size(opened.opening) - reserved, 1)
        if len(text) - place <= limit and size(opened.opening + text[place:] + fences[-1].closing) <= limit:
            room = limit
        end = _end(text, place, room, size)
        known = bisect_left(fences, end, key=lambda fence: fence.start)
        piece, before, opened = text[place:end].rstrip("\n "), opened, fences[known - 1]
        if piece.strip():
            parts.append(before.opening + piece + opened.closing)
        if opened.mark and known < len(fences) and not text[end : fences[known].start].strip():
            end, opened = fences[known].end, fences[known]  # the block ends here anyway
        place = end if opened.mark else _past_newlines(text, end)
    return parts


def _end(text: str, start: int, room: int, size: Callable[[str], int]) -> int:
    """Where the longest part that begins there, fits and ends well has its end: after one character at least."""
    end = min(len(text), start + room)
    while (excess := size(text[start:end]) - room) > 0 and end > start + 1:
        end = max(end - max(1, excess // 2), start + 1)
    if end == len(text):
        return end
    least = start + (end - start) // 4
    for ends in _ENDS:
        places = [match.end() for match in ends.finditer(text, start, end) if match.end() > least]
        if places and text[start : places[-1]].strip():
            return places[-1]
    return end


def _past_newlines(text: str, place: int) -> int:
    while text.startswith("\n", place):
        place += 1
    return place


def _fences(text: str, longest_language: int) -> list[_Fence]:
    """The lines that open or close a block of code, after one that stands for the beginning. A line that has more of
    its mark behind it is none: it ends what it begins."""
    found = [_Fence()]
    for match in _FENCE.finditer(text):
        mark, told, opened = match[1], match[3].split(), found[-1].mark
        if not opened:
            language = told[0][:longest_language] if told else ""
            found.append(_Fence(match.start(), match.end(), mark, language))
        elif mark.startswith(opened) and not told:
            found.append(_Fence(match.start(), match.end()))
    return found
