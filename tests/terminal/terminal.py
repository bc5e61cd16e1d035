"""A person's terminal: a chat in a real pseudo-terminal, and the screen as a person sees it.

`pyte` draws what the chat writes, so a test reads rows of text, those that have scrolled away included; it does not
know by which escapes they came there. The bytes are kept too, for tests of exactly that.
"""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pexpect
import pyte

from serve.process import BOUND, LEGATO, Env, environment

ENTER, ALT_ENTER, CTRL_C, CTRL_D, CTRL_J, CTRL_Z = "\r", "\x1b\r", "\x03", "\x04", "\n", "\x1a"
TAB, UP = "\t", "\x1b[A"


class Terminal:
    """A `legato chat` on a screen, or another program."""

    def __init__(
        self,
        home: Path,
        *options: str,
        size: tuple[int, int] = (24, 80),
        env: Env | None = None,
        program: str = LEGATO,
    ) -> None:
        rows, columns = size
        self.screen = pyte.HistoryScreen(columns, rows, history=100_000, ratio=0.5)
        self._stream = pyte.ByteStream(self.screen)
        self.written = bytearray()
        settings = {"TERM": "xterm-256color", "LEGATO_HOME": str(home), **(env or {})}
        environ = environment(settings)
        environ.pop("NO_COLOR", None)
        self._child = pexpect.spawn(program, list(options), env={**environ, **settings}, dimensions=size, timeout=BOUND)

    # -- what a person does

    def type(self, keys: str | bytes) -> None:
        self._child.send(keys)

    def say(self, text: str) -> None:
        """Type a line once the prompt is there, and send it."""
        self.ready()
        self.type(text)
        self.until(lambda: text[-40:] in "".join(self.screen.display).replace("  ", ""))
        self.type(ENTER)

    def resize(self, rows: int, columns: int) -> None:
        self.screen.resize(rows, columns)
        self._child.setwinsize(rows, columns)

    def kill(self) -> None:
        self._child.kill(signal.SIGKILL)
        self.end()

    # -- what a person sees

    def until(self, seen: str | Callable[[], bool]) -> str:
        """Look until something is seen (in all that was shown); returns all that was shown."""
        deadline = time.monotonic() + BOUND
        while not (seen in self.shown if isinstance(seen, str) else seen()):
            assert time.monotonic() < deadline, f"not seen: {seen}\n{self.shown[-4000:]}"
            self._look(1.0)
        return self.shown

    def idle(self) -> str:
        """Look until nothing runs."""
        return self.until(lambda: "· idle" in "\n".join(self.screen.display))

    def ready(self) -> str:
        """Look until something can be typed."""
        return self.until(lambda: any(row.startswith("› ") for row in self.screen.display))

    def answered(self, text: str) -> str:
        """Look until a row says this and nothing else."""
        return self.until(lambda: text in self.rows)

    @property
    def rows(self) -> list[str]:
        """Every row, those that have scrolled away first."""
        gone = ["".join(line[x].data for x in range(self.screen.columns)) for line in self.screen.history.top]
        return [row.rstrip() for row in (*gone, *self.screen.display)]

    @property
    def shown(self) -> str:
        return "\n".join(self.rows)

    def style_of(self, text: str) -> pyte.screens.Char:
        """How the first cell of a text on the screen looks."""
        for y, row in enumerate(self.screen.display):
            if text in row:
                return self.screen.buffer[y][row.index(text)]
        raise AssertionError(f"{text!r} is not on the screen")

    def end(self) -> int:
        """Wait until the chat has ended; its exit code."""
        deadline = time.monotonic() + BOUND
        while self._look(1.0):
            assert time.monotonic() < deadline, self.shown
        self._child.wait()
        self._child.close()
        return self._child.exitstatus if self._child.exitstatus is not None else -(self._child.signalstatus or 0)

    def close(self) -> None:
        """End it, however it stands."""
        if not self._child.closed:
            if self._child.isalive():
                os.kill(self._child.pid, signal.SIGKILL)
            self.end()

    def _look(self, seconds: float) -> bool:
        """Take what was written; False when nothing more will come."""
        try:
            got = self._child.read_nonblocking(65536, seconds)
        except pexpect.TIMEOUT:
            return True
        except pexpect.EOF:
            return False
        self.written += got
        self._stream.feed(got)
        return True
