"""Records `docs/terminal.svg`: a real chat with a real gateway, which is killed in the middle of an answer.

    python docs/recording.py

A chat runs in a pseudo-terminal, `pyte` draws its screen, and each moment worth seeing becomes a frame of one SVG that
a browser plays by itself. Nothing is fetched, and nothing of this machine is in it.
"""

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from itertools import groupby, pairwise
from pathlib import Path

import pexpect
import pyte

ROWS, COLUMNS = 28, 84
LEGATO = str(Path(sys.executable).with_name("legato"))
HERE = Path(__file__).parent
CELL, LINE, MARGIN = 8.4, 18, 16
INK = {"default": "#d8dee9", "cyan": "#88c0d0", "green": "#a3be8c", "red": "#bf616a", "magenta": "#b48ead"}
INK |= {"yellow": "#ebcb8b", "brightblack": "#7b8494", "blue": "#81a1c1"}
PAPER, FRAME = "#1f2430", "#3b4252"
BOUND = 60.0

Cell = tuple[int, str, str, bool]
Frame = list[list[Cell]]


class Recorder:
    """A chat, and the frames that were taken of it."""

    def __init__(self, env: dict[str, str]) -> None:
        self.frames: list[tuple[float, Frame]] = []
        self._screen = pyte.Screen(COLUMNS, ROWS)
        self._stream = pyte.ByteStream(self._screen)
        self._child = pexpect.spawn(LEGATO, ["chat"], env=env, dimensions=(ROWS, COLUMNS))

    def until(self, seen: str) -> None:
        deadline = time.monotonic() + BOUND
        while seen not in "\n".join(self._screen.display):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{seen!r} was not seen:\n" + "\n".join(self._screen.display))
            self._look()

    def say(self, text: str) -> None:
        """Type, in three frames."""
        thirds = (0, len(text) // 3, 2 * len(text) // 3, len(text))
        for begin, end in pairwise(thirds):
            self._child.send(text[begin:end])
            self.until(text[:end].rstrip()[-20:])
            self.frame(0.35)
        self._child.send("\r")

    def frame(self, seconds: float) -> None:
        """What is on the screen now, for so long."""
        while self._look():
            pass
        buffer = self._screen.buffer
        rows = [[_cell(x, buffer[y][x]) for x in range(COLUMNS)] for y in range(ROWS)]
        self.frames.append((seconds, rows))

    def leave(self) -> None:
        self._child.send("\x04")
        self._child.expect(pexpect.EOF, timeout=BOUND)

    def _look(self) -> bool:
        """Take what was drawn; False when the screen is at rest."""
        try:
            got = self._child.read_nonblocking(65536, 0.2)
        except pexpect.TIMEOUT:
            return False
        self._stream.feed(re.sub(rb"\x1b\[(0;)?2m", b"\x1b[\\g<1>90m", got))  # pyte knows no dim
        return True


def _cell(x: int, char: pyte.screens.Char) -> Cell:
    given = f"#{char.fg}" if re.fullmatch("[0-9a-f]{6}", char.fg) else INK["default"]
    return x, char.data, INK.get(char.fg, given), char.bold


@contextmanager
def gateway(home: Path, port: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [LEGATO, "serve", "--home", str(home), "--port", port]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.kill()


def address(process: subprocess.Popen[bytes]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().decode().split()[-1]


def record(home: Path) -> list[tuple[float, Frame]]:
    """The story: say something, lose the gateway, go on."""
    with gateway(home, "0") as first:
        url = address(first)
        env = {**os.environ, "LEGATO_HOME": str(home), "LEGATO_URL": url, "TERM": "xterm-256color"}
        env["LEGATO_API_KEY"] = (home / "key").read_text().strip()
        chat = Recorder(env)
        chat.until("idle")
        chat.frame(1.0)
        _told(chat, "My cat is called Miso.", "seen: 1", 2.0)
        _told(chat, "call now {}", "now said", 2.0)
        chat.say("sleep 4")
        chat.until("answering 1s")
        chat.frame(1.2)
        first.kill()
        chat.until("connection lost")
        chat.frame(2.0)
    with gateway(home, url.rsplit(":", 1)[1]) as second:
        address(second)
        chat.until('last "sleep 4"')
        chat.until("idle")
        chat.frame(2.0)
        _told(chat, "What did I tell you first?", 'last "What did', 4.0)
        chat.leave()
        return chat.frames


def _told(chat: Recorder, text: str, answer: str, seconds: float) -> None:
    chat.say(text)
    chat.until(answer)
    chat.until("idle")
    chat.frame(seconds)


def svg(frames: list[tuple[float, Frame]]) -> str:
    """One picture; frames take turns by CSS, and who wants no motion sees the last."""
    width, height = COLUMNS * CELL + 2 * MARGIN, ROWS * LINE + 2 * MARGIN
    total = sum(seconds for seconds, _ in frames)
    styles, groups, at = [], [], 0.0
    for n, (seconds, rows) in enumerate(frames):
        begin, end = 100 * at / total, 100 * (at + seconds) / total
        until = f"{end:.3f}%{{visibility:hidden}}" if n < len(frames) - 1 else ""
        styles.append(f"@keyframes k{n}{{0%{{visibility:hidden}}{begin:.3f}%{{visibility:visible}}{until}}}")
        styles.append(f".f{n}{{visibility:hidden;animation:k{n} {total:.2f}s step-end infinite}}")
        groups.append(f'<g class="f{n}">' + "".join(_row(y, row) for y, row in enumerate(rows)) + "</g>")
        at += seconds
    still = f"@media (prefers-reduced-motion){{g{{animation:none!important}}.f{len(frames) - 1}{{visibility:visible}}}}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img">'
        f"<title>A chat with Legato</title><style>text{{font:14px ui-monospace,Menlo,Consolas,monospace;"
        f"white-space:pre}}{''.join(styles)}{still}</style>"
        f'<rect width="100%" height="100%" rx="8" fill="{PAPER}" stroke="{FRAME}"/>{"".join(groups)}</svg>\n'
    )


def _row(y: int, row: list[Cell]) -> str:
    """The runs of a row that look the same."""
    made = []
    for (ink, bold), run in groupby(row, lambda cell: cell[2:]):
        cells = list(run)
        text = "".join(cell[1] for cell in cells)
        if not text.strip():
            continue
        kept = text.rstrip()
        x, top = MARGIN + cells[0][0] * CELL, MARGIN + (y + 0.75) * LINE
        weight = ' style="font-weight:bold"' if bold else ""
        size = f'textLength="{len(kept) * CELL:g}" lengthAdjust="spacingAndGlyphs"'
        made.append(f'<text x="{x:g}" y="{top:g}" fill="{ink}"{weight} {size}>{escape(kept, quote=False)}</text>')
    return "".join(made)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="legato-recording-") as folder:
        (HERE / "terminal.svg").write_text(svg(record(Path(folder) / "home")), "utf-8")
