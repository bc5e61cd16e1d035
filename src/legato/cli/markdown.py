"""Markdown that comes in pieces, made into rows as early as they are final.

Text is taken line by line and gathered into blocks. A block that ended is rendered once and never again; only the open
one is rendered for every frame, and it is kept short: an endless paragraph, list or table is cut where the cut is not
seen, and code is final line by line. So the work for an answer grows with its length and no faster.
"""

import re

from legato.cli.paint import Paint, bare
from legato.cli.plain import plain

LIMIT = 3_000
"""Characters of a block that is rendered while it grows."""

_FENCE = re.compile(r"( {0,12})(`{3,}|~{3,})\s*([^`\s]*)[^`]*$")
_HEADING = re.compile(r" {0,3}#{1,6}(\s|$)")
_ITEM = re.compile(r" {0,3}(?:[-*+]|(\d{1,9})[.)])(?:\s|$)")
_DELIMITERS = re.compile(r" {0,3}\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$")
_INDENT = "  "


class MarkdownStream:
    """One text that grows."""

    def __init__(self, paint: Paint, style: str = "") -> None:
        self._paint, self._style = paint, style
        self._open: list[str] = []  # pieces of the line that is being written
        self._open_size = 0
        self._block: list[str] = []
        self._size = 0
        self._list = False
        self._fence: tuple[str, str, str] | None = None
        self._begun = False
        self._joined = False  # whether the next rows belong to the ones before

    def feed(self, text: str) -> list[str]:
        """More text; the rows that are final now."""
        rows: list[str] = []
        first, *more = plain(text).split("\n")
        self._add(first)
        for piece in more:
            rows += self._line("".join(self._open))
            self._open, self._open_size = [], 0
            self._add(piece)
        if self._open_size + self._size > LIMIT and self._open_size > LIMIT // 2:
            rows += self._shorten_line()
        return rows

    def close(self) -> list[str]:
        """No more text; the rows that were still open."""
        rows = self._line("".join(self._open)) if self._open_size else []
        self._open, self._open_size = [], 0
        return rows + self._flush()

    def live(self, most: int) -> list[str]:
        """The end of what is not final yet, in at most so many rows."""
        line = "".join(self._open)[-LIMIT:]
        if self._fence is not None:
            return [self._code(line)] if line else []
        rows = self._render("\n".join([*self._block, line]))
        return rows[-most:]

    def _add(self, piece: str) -> None:
        if piece:
            self._open.append(piece)
            self._open_size += len(piece)

    def _line(self, line: str) -> list[str]:
        """A line has ended."""
        if self._fence is not None:
            return self._code_line(line)
        if fence := _FENCE.match(line):
            rows = self._flush()
            self._fence = (fence[1], fence[2], fence[3])
            return rows
        if not line.strip():
            if self._list:
                self._block.append("")
                return []
            return self._flush()
        rows = []
        item = _ITEM.match(line)
        if self._block and self._starts_anew(line, item):
            rows += self._flush()
        if not self._block:
            self._list = item is not None
        elif self._size > LIMIT:
            rows += self._shorten_block(item is not None)
        self._block.append(line)
        self._size += len(line)
        if _HEADING.match(line):
            rows += self._flush()
        return rows

    def _starts_anew(self, line: str, item: re.Match[str] | None) -> bool:
        """Whether this line begins another block than the open one."""
        if _HEADING.match(line):
            return True
        if self._list:
            return self._block[-1] == "" and item is None and not line.startswith("  ")
        return item is not None and item[1] in (None, "1")

    def _flush(self, joined: bool = False) -> list[str]:
        """The open block has ended; when `joined`, what comes next is still part of it."""
        rows = self._render("\n".join(self._block))
        if rows:
            self._begun, self._joined = True, joined
        self._block, self._size, self._list = [], 0, self._list and joined
        return rows

    def _render(self, text: str) -> list[str]:
        if not text.strip():
            return []
        rows = self._paint.markdown(text, self._style)
        return ["", *rows] if self._begun and not self._joined else rows

    # -- what grows without end

    def _shorten_block(self, at_item: bool) -> list[str]:
        """Let go of the lines of a block that is long."""
        if self._list:
            return self._flush(joined=True) if at_item or self._size > 4 * LIMIT else []
        head = self._block[:2] if len(self._block) > 2 and _DELIMITERS.match(self._block[1]) else []
        rows = self._flush(joined=not head)
        self._block, self._size = head, sum(map(len, head))
        return rows

    def _shorten_line(self) -> list[str]:
        """Let go of a line that does not end: of all but the last row that it fills."""
        line = "".join(self._open)
        if self._fence is not None:
            whole = len(line) - len(line) % max(self._paint.width - len(_INDENT), 1)
            self._open, self._open_size = [line[whole:]], len(line) - whole
            return self._code_line(line[:whole])
        rows = self._flush(joined=not self._list) if self._block else []
        made = self._render(line)
        last = bare(made[-1]).strip()
        at = line.rfind(last) if last else -1
        at = at if at > 0 else line.rfind(" ") + 1
        if at > 0:
            rows += made[:-1] if line[at:].strip() == last else self._render(line[:at])
            self._open, self._open_size = [line[at:]], len(line) - at
            self._begun = self._joined = True
        return rows

    # -- code

    def _code_line(self, line: str) -> list[str]:
        assert self._fence is not None
        _, mark, _ = self._fence
        if line.strip().startswith(mark) and not line.strip().strip(mark[0]):
            self._fence = None
            self._joined = False
            return []
        gap = [""] if self._begun and not self._joined else []
        self._begun = self._joined = True
        return [*gap, self._code(line)]

    def _code(self, line: str) -> str:
        assert self._fence is not None
        indent, _, language = self._fence
        return _INDENT + indent + self._paint.code(line.removeprefix(indent), language)
