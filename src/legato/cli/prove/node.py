"""One gateway of the drill: `legato serve` as everywhere, and one tool more, whose every run leaves a line in a file.
SIGUSR1 lets its clock jump, as far as Python tells it the time.

Run as `python -m legato.cli.prove.node HOME NOTES`. It ends with whoever started it: when its standard input closes.
"""

import asyncio
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path

from legato.cli.serve import run_server
from legato.domain.entries import Tool
from legato.engine.protocols import Invocation, ToolOutput

DAY = 86_400.0


class Notes:
    """A tool with an effect that the store knows nothing of. To run it twice is not harmless."""

    tools = (
        Tool(
            name="note",
            description="Write a line into a file.",
            parameters={
                "type": "object",
                "properties": {"key": {"type": "string"}, "seconds": {"type": "number"}},
                "required": ["key"],
            },
        ),
    )

    def __init__(self, path: Path) -> None:
        self._path = path

    async def call(self, invocation: Invocation) -> ToolOutput:
        key = str(invocation.arguments.get("key", ""))
        self._write(f"begun {key} {os.getpid()}")
        await asyncio.sleep(float(invocation.arguments.get("seconds", 0)))
        self._write(f"ended {key} {os.getpid()}")
        return ToolOutput(f"noted {key}")

    def _write(self, line: str) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")


def _let_clock_jump() -> None:
    chance, right, off = random.Random(os.getpid()), time.time, 0.0

    def jump(number: int, frame: object) -> None:
        nonlocal off
        off = chance.uniform(-DAY, DAY)

    signal.signal(signal.SIGUSR1, jump)
    time.time = lambda: right() + off


def _end_with_parent() -> None:
    while os.read(0, 1024):  # not by sys.stdin: its lock, held here, would be an error when Python leaves
        pass
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Serve until told to stop."""
    home, notes = Path(sys.argv[1]), Path(sys.argv[2])
    _let_clock_jump()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    run_server(home, {"server.host": "127.0.0.1", "server.port": 0}, toolsets={"notes": Notes(notes)})


if __name__ == "__main__":
    main()
