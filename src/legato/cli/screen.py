"""The screen of a chat: rows that are final go to the terminal's own scrollback; below them stand what is live, the
line being typed, and one line of status.

Only that lower part is ever redrawn. Rows are printed by erasing it, writing them, and drawing it again below, a few
times a second at most, so a long answer costs the terminal what printing it would. The terminal is never asked where
its cursor is: an answer that comes late would land in the typed text.
"""

import asyncio
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from prompt_toolkit.application import Application
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, get_common_complete_suffix
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition, has_completions
from prompt_toolkit.formatted_text import ANSI, AnyFormattedText
from prompt_toolkit.history import FileHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.layout import (
    ConditionalContainer,
    Dimension,
    Float,
    FloatContainer,
    FormattedTextControl,
    HSplit,
    Layout,
    VSplit,
    Window,
)
from prompt_toolkit.layout.controls import BufferControl
from prompt_toolkit.layout.menus import CompletionsMenu
from prompt_toolkit.output import ColorDepth
from prompt_toolkit.output.vt100 import Vt100_Output
from prompt_toolkit.styles import Style

FRAME = 0.05
"""Seconds between two drawings."""

MENU = 7
TYPED = 10
"""Rows of a long input that are seen at once."""

STYLE = Style.from_dict(
    {
        "mark": "bold ansicyan",
        "status": "ansibrightblack",
        "completion-menu": "bg:default",
        "completion-menu.completion": "bg:default fg:default",
        "completion-menu.completion.current": "bg:default fg:default bold reverse",
        "completion-menu.meta.completion": "bg:default fg:ansibrightblack",
        "completion-menu.meta.completion.current": "bg:default fg:ansibrightblack",
        "scrollbar.background": "bg:default",
        "scrollbar.button": "bg:default",
    }
)

Offer = tuple[str, str, int]
"""What a word may become, what that means, and how many characters before the cursor it replaces."""


class Talker(Protocol):
    """Who stands behind the screen."""

    def typed(self, text: str) -> None: ...
    def interrupted(self, text: str) -> bool:
        """Ctrl-C; whether it was meant for something else than the typed text."""

    def live(self, most: int) -> list[str]: ...
    def status(self) -> str: ...
    def offers(self, text: str) -> Iterable[Offer]: ...
    def resized(self, width: int) -> None: ...


class Screen:
    """The terminal, while a chat runs on it."""

    def __init__(self, talker: Talker, history: Path) -> None:
        self._talker = talker
        self._rows: list[str] = []
        self._frame: asyncio.TimerHandle | None = None
        self._offered = _Offered(talker)
        self._buffer = Buffer(
            history=FileHistory(_private(history)),
            completer=self._offered,
            complete_while_typing=Condition(lambda: self._buffer.text.startswith("/")),
            accept_handler=self._accepted,
            multiline=True,
        )
        self._app = _App(
            layout=self._layout(),
            key_bindings=self._keys(),
            style=STYLE,
            output=_output(),
            erase_when_done=True,
            before_render=self._measured,
        )
        self._size = (0, 0)

    async def run(self) -> None:
        """Until `leave`."""
        await self._app.run_async(handle_sigint=True)
        self._print()

    def leave(self) -> None:
        self._app.exit()

    def print(self, rows: list[str]) -> None:
        """Rows that are final."""
        self._rows += rows
        self.changed()

    def changed(self) -> None:
        """Something that is shown is different now."""
        if self._frame is None:
            self._frame = asyncio.get_running_loop().call_later(FRAME, self._draw)

    def _draw(self) -> None:
        self._frame = None
        if self._rows and self._app.is_running:
            self._app.renderer.erase(leave_alternate_screen=False)
            self._print()
        self._app.invalidate()

    def _print(self) -> None:
        rows, self._rows = self._rows, []
        if rows:
            self._app.output.write_raw("".join(f"{row}\r\n" for row in rows))
            self._app.output.flush()

    def _measured(self, app: Application[None]) -> None:
        size = app.output.get_size()
        if (size.rows, size.columns) != self._size:
            self._size = (size.rows, size.columns)
            self._talker.resized(size.columns)

    # -- what stands where

    def _layout(self) -> Layout:
        live = Window(FormattedTextControl(self._live), dont_extend_height=True, wrap_lines=False)
        mark = Window(FormattedTextControl([("class:mark", "› ")]), width=2, dont_extend_height=True)
        typed = Window(
            BufferControl(self._buffer),
            height=Dimension(min=1, max=TYPED),
            wrap_lines=True,
            dont_extend_height=True,
        )
        room = ConditionalContainer(Window(height=MENU), has_completions)
        status = Window(FormattedTextControl(self._status), height=1, style="class:status", wrap_lines=False)
        body = HSplit([live, VSplit([mark, typed]), room, status, Window()])
        menu = Float(CompletionsMenu(max_height=MENU), xcursor=True, ycursor=True)
        return Layout(FloatContainer(body, [menu]), focused_element=typed)

    def _live(self) -> AnyFormattedText:
        rows = self._talker.live(max(min(12, self._size[0] // 2), 2))
        return ANSI("\n".join([*rows, ""]))

    def _status(self) -> AnyFormattedText:
        return [("class:status", "  " + self._talker.status())]

    # -- keys

    def _accepted(self, buffer: Buffer) -> bool:
        if text := buffer.text.rstrip():
            self._talker.typed(text)
        return False

    def _keys(self) -> KeyBindings:
        keys = KeyBindings()

        @keys.add("enter")
        def send(event: KeyPressEvent) -> None:
            buffer = event.current_buffer
            if buffer.document.char_before_cursor == "\\":
                buffer.delete_before_cursor()
                buffer.newline(copy_margin=False)
            elif buffer.text.strip():
                buffer.text = buffer.text.encode("utf-8", "replace").decode()  # bytes that were no text
                buffer.validate_and_handle()

        @keys.add("escape", "enter")
        @keys.add("c-j")
        def new_line(event: KeyPressEvent) -> None:
            event.current_buffer.newline(copy_margin=False)

        @keys.add("tab")
        def complete(event: KeyPressEvent) -> None:
            buffer = event.current_buffer
            if buffer.complete_state is None:  # the menu may be on its way; what all offers share is known now
                offered = list(self._offered.get_completions(buffer.document, CompleteEvent()))
                buffer.insert_text(get_common_complete_suffix(buffer.document, offered))
                buffer.start_completion()
            else:
                buffer.complete_next()

        @keys.add("s-tab", filter=has_completions)
        def complete_back(event: KeyPressEvent) -> None:
            event.current_buffer.complete_previous()

        @keys.add("c-c")
        @keys.add(Keys.SIGINT)
        def interrupt(event: KeyPressEvent) -> None:
            if not self._talker.interrupted(event.current_buffer.text):
                event.current_buffer.reset()

        @keys.add("c-d", filter=Condition(lambda: not self._buffer.text))
        def leave(event: KeyPressEvent) -> None:
            event.app.exit()

        @keys.add("c-z")
        def suspend(event: KeyPressEvent) -> None:
            event.app.suspend_to_background()

        @keys.add("c-l")
        def clear(event: KeyPressEvent) -> None:
            event.app.renderer.clear()

        return keys


class _App(Application[None]):
    """Finds its own rows again after the terminal has become narrower and has wrapped them."""

    def _on_resize(self) -> None:
        self.output.cursor_up(self._rows_more())
        super()._on_resize()

    def _rows_more(self) -> int:
        """How many rows the part above the cursor has grown by."""
        screen, width = self.renderer.last_rendered_screen, self.output.get_size().columns
        if screen is None or width <= 0:
            return 0
        cursor = screen.get_cursor_position(self.layout.current_window)
        more = cursor.x // width
        for y in range(cursor.y):
            drawn = [x + char.width for x, char in screen.data_buffer[y].items() if char.char.strip()]
            more += (max(drawn, default=1) - 1) // width
        return more


class _Offered(Completer):
    """What the talker offers for the text before the cursor."""

    def __init__(self, talker: Talker) -> None:
        self._talker = talker

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        for text, meaning, replaced in self._talker.offers(document.text_before_cursor):
            yield Completion(text, -replaced, display_meta=meaning)


class _Output(Vt100_Output):
    """Says that there is room for a row, instead of asking the terminal where its cursor is."""

    def get_rows_below_cursor_position(self) -> int:
        return 1


def _output() -> Vt100_Output:
    term, depth = os.environ.get("TERM"), ColorDepth.from_env()  # which is told of NO_COLOR
    return _Output.from_pty(sys.stdout, term=term, default_color_depth=depth, enable_bell=False)


def _private(path: Path) -> str:
    """The path of a file that only its owner reads."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.close(os.open(path, os.O_CREAT | os.O_APPEND, 0o600))
    return str(path)
