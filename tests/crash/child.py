"""The process that starts lives: it has everything loaded, and forks one process for each job.

Jobs come as JSON lines on standard input; what becomes of them goes out as lines `[job, word, number]`: `started` with
the pid, `stopped` with the signal, `ended` with the exit code. Each life is a process of its own; forking only saves
the half second of loading.
"""

import asyncio
import os
import selectors
import signal
import sys
import traceback

import msgspec

from crash.life import Job, live
from legato.engine import tokens


def main() -> None:
    """Start lives until standard input ends, then end those that are left."""
    tokens.count("o" * 50)  # loads the vocabulary, and what takes words apart that are not in it
    alive: dict[int, int] = {}  # pid → job
    bell = _bell()
    selector = selectors.DefaultSelector()
    selector.register(sys.stdin.fileno(), selectors.EVENT_READ)
    selector.register(bell, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.fd == bell:
                os.read(bell, 4096)
                _look_after(alive)
            elif line := _line():
                number, job = msgspec.json.decode(line, type=tuple[int, Job])
                pid = _fork(job)
                alive[pid] = number
                _tell(number, "started", pid)
            else:
                for pid in alive:
                    os.kill(pid, signal.SIGKILL)
                return


def _bell() -> int:
    """A file descriptor with news whenever a child stops or ends."""
    bell, striker = os.pipe()
    os.set_blocking(striker, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(striker)
    return bell


def _look_after(alive: dict[int, int]) -> None:
    for pid, number in list(alive.items()):
        found, status = os.waitpid(pid, os.WNOHANG | os.WUNTRACED)
        if found and os.WIFSTOPPED(status):
            _tell(number, "stopped", os.WSTOPSIG(status))
        elif found:
            del alive[pid]
            _tell(number, "ended", os.waitstatus_to_exitcode(status))


def _fork(job: Job) -> int:
    if pid := os.fork():
        return pid
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    log = os.open(job.file(f"log.{job.life}"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    code = 1
    try:
        asyncio.run(live(job))
        code = 0
    except BaseException:  # noqa: BLE001 - the log is where the test looks
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _line() -> bytes:
    """A whole line, unbuffered, so that the selector knows of every one that waits."""
    line = b""
    while not line.endswith(b"\n"):
        piece = os.read(sys.stdin.fileno(), 1)
        if not piece:
            return b""
        line += piece
    return line


def _tell(number: int, word: str, value: int) -> None:
    os.write(1, msgspec.json.encode([number, word, value]) + b"\n")


if __name__ == "__main__":
    main()
