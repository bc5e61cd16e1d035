"""Paint: what is shown, as rows of text for this terminal.

A row is one line without an end, with its colours opened and closed in itself, so rows can be printed, shown live or
thrown away in any number. Whatever comes from a model, a tool or another person passes `plain` first: no control
character of theirs reaches the terminal. Rows carry no trailing blanks, so that a narrower terminal does not wrap them.
"""

import io
import re
from collections.abc import Iterable
from typing import ClassVar

from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.markdown import Heading, Markdown, MarkdownElement
from rich.segment import Segment, Segments
from rich.styled import Styled
from rich.syntax import Syntax
from rich.text import Text
from rich.theme import Theme

from legato.cli.plain import plain

THEME = Theme(
    {
        "markdown.h1": "bold underline",
        "markdown.h2": "bold",
        "markdown.h3": "bold",
        "markdown.h4": "bold dim",
        "markdown.code": "cyan",
        "markdown.code_block": "default",
        "markdown.block_quote": "dim",
        "markdown.item.bullet": "dim",
        "markdown.item.number": "dim",
        "markdown.hr": "dim",
        "markdown.link_url": "dim underline",
        "markdown.table.border": "dim",
    }
)
CODE_THEME = "ansi_dark"
LEAST = 20
"""Narrower than this, rows are not made; the terminal wraps them."""

_PARSER = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"]).disable("reference")


def short(text: str, width: int) -> str:
    """The beginning of a text, in one line of at most so many cells."""
    line = " ".join(plain(text[: width * 4]).split())
    if cell_len(line) <= width and len(text) <= width * 4:
        return line
    while cell_len(line) > width - 1:
        line = line[: len(line) - max(1, (cell_len(line) - width) // 2)]
    return line.rstrip() + "…"


class Paint:
    """The terminal's colours and width."""

    def __init__(self) -> None:
        self._console = Console(file=io.StringIO(), force_terminal=True, theme=THEME, width=80, legacy_windows=False)
        self.width = 80

    def markdown(self, text: str, style: str = "") -> list[str]:
        page = _Page(text)
        rows = self._rows(Styled(page, style) if style else page)
        shown = [n for n, row in enumerate(rows) if bare(row).strip()]
        return rows[shown[0] : shown[-1] + 1] if shown else []

    def text(self, *pieces: tuple[str, str], indent: int = 0) -> list[str]:
        """Pieces of text, each in a style; lines after the first are indented."""
        line = Text.assemble(*pieces)
        if not indent:
            return self._rows(line)
        width = max(self.width - indent, LEAST)
        wrapped = [row for part in line.split("\n", allow_blank=True) for row in part.wrap(self._console, width)]
        return [
            row if n == 0 else " " * indent + row
            for n, row in enumerate(self._rows(Text("\n").join(wrapped) or Text()))
        ]

    def code(self, line: str, language: str) -> str:
        """One line of code, however long: the terminal wraps it, so that it can be copied."""
        painted = Syntax("", language or "text", theme=CODE_THEME).highlight(line)
        painted.rstrip()
        [row] = self._rows(painted, width=max(len(line) * 2, self.width)) or [""]
        return row

    def dim(self, text: str) -> list[str]:
        return self.text((text, "dim"))

    def _rows(self, what: RenderableType, width: int | None = None) -> list[str]:
        console = self._console
        lines = console.render_lines(what, console.options.update(width=max(width or self.width, LEAST)), pad=False)
        with console.capture() as captured:
            for line in lines:
                console.print(Segments([*_trimmed(line), Segment.line()]), end="", crop=False, overflow="ignore")
        return captured.get().split("\n")[:-1]


def _trimmed(line: list[Segment]) -> list[Segment]:
    """Without blanks at the end, as long as nothing is seen of them."""
    kept = list(line)
    while kept:
        text, style, _ = kept[-1]
        if style is not None and (style.bgcolor or style.underline) and text.strip():
            return kept
        text = text.rstrip(" ")
        if text:
            kept[-1] = Segment(text, style)
            return kept
        kept.pop()
    return kept


class _Heading(Heading):
    """On the left, like everything else."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        self.text.justify = "left"
        yield self.text


class _Page(Markdown):
    """Markdown of which nothing is dropped: HTML is text, and a line that ended ends."""

    elements: ClassVar[dict[str, type[MarkdownElement]]] = {**Markdown.elements, "heading_open": _Heading}

    def __init__(self, text: str) -> None:
        super().__init__("", code_theme=CODE_THEME, hyperlinks=False)
        self.parsed = _PARSER.parse(text)
        for token in _inside(self.parsed):
            if token.type == "softbreak":
                token.type = "hardbreak"


def _inside(tokens: Iterable[Token]) -> Iterable[Token]:
    for token in tokens:
        yield from token.children or ()


ANSI = re.compile(r"\x1b\[[0-9;]*m")


def bare(row: str) -> str:
    """A row without its colours."""
    return ANSI.sub("", row)
