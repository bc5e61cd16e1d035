"""Starts `legato` without having it read anew each time: a process that has loaded all of it forks.

What comes of it is a process like any other, with its own id, files, environment and exit code; only the third of a
second is saved that loading takes, and the tests start it a thousand times. That it also starts from nothing is for
the tests of starting, of terminals and of `legato prove`.
"""

import atexit
import gc
import json
import os
import pkgutil
import selectors
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from importlib import import_module
from typing import IO, NamedTuple

BOUND = 60.0
SIZE = struct.Struct("=q")
PARTS = ("legato.api", "legato.channels", "legato.cli", "legato.engine", "legato.models", "legato.store")
LEAVE = ("legato.store.postgres",)
"""Loaded by whoever needs it, as in a process that starts from nothing."""


# -- the test's side


class Process:
    """A `legato` command that runs. Files are given, or made where `subprocess.PIPE` is."""

    def __init__(
        self,
        command: list[str],
        *,
        env: dict[str, str],
        stdin: IO[bytes] | int = subprocess.DEVNULL,
        stdout: IO[bytes] | int = subprocess.DEVNULL,
        stderr: IO[bytes] | int = subprocess.DEVNULL,
    ) -> None:
        self.returncode: int | None = None
        self.stdout, out = _opened(stdout)
        self.stderr, err = _opened(stderr)
        _, given = _opened(stdin)
        self._told, telling = os.pipe()
        job = json.dumps([command, env, os.getcwd()]).encode()
        nursery = _nursery()
        socket.send_fds(nursery, [SIZE.pack(len(job))], [given.fileno(), out.fileno(), err.fileno(), telling])
        nursery.sendall(job)
        os.close(telling)
        for ours, theirs, wanted in ((None, given, stdin), (self.stdout, out, stdout), (self.stderr, err, stderr)):
            if ours is not None or isinstance(wanted, int):
                theirs.close()
        self.pid = self._hear(BOUND)

    def poll(self) -> int | None:
        return self.wait(0) if self.returncode is None and self._is_told(0) else self.returncode

    def wait(self, timeout: float) -> int:
        if self.returncode is None:
            self.returncode = self._hear(timeout)
            os.close(self._told)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _hear(self, timeout: float) -> int:
        if not self._is_told(timeout):
            raise subprocess.TimeoutExpired("legato", timeout)
        number: int = SIZE.unpack(os.read(self._told, SIZE.size))[0]
        return number

    def _is_told(self, timeout: float) -> bool:
        with selectors.DefaultSelector() as selector:
            selector.register(self._told, selectors.EVENT_READ)
            return bool(selector.select(timeout))


def run(command: list[str], *, env: dict[str, str], given: str = "") -> "subprocess.CompletedProcess[str]":
    """A whole command: what it said, and its exit code."""
    with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        stdin.write(given.encode())
        stdin.seek(0)
        process = Process(command, env=env, stdin=stdin, stdout=stdout, stderr=stderr)
        try:
            code = process.wait(BOUND)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        stdout.seek(0)
        stderr.seek(0)
        return subprocess.CompletedProcess(command, code, stdout.read().decode(), stderr.read().decode())


def _opened(file: IO[bytes] | int) -> tuple[IO[bytes] | None, IO[bytes]]:
    """Our end of a pipe, and what the process is given."""
    if not isinstance(file, int):
        return None, file
    if file == subprocess.DEVNULL:
        return None, open(os.devnull, "r+b", buffering=0)
    ours, theirs = os.pipe()
    return os.fdopen(ours, "rb"), os.fdopen(theirs, "wb", buffering=0)


_open: list[socket.socket] = []


def _nursery() -> socket.socket:
    """The way to the process that forks, which is started on first use and ends when we do."""
    if not _open:
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-m", "forked", str(theirs.fileno())]
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=environ, stdin=subprocess.DEVNULL)
        theirs.close()
        atexit.register(process.wait)
        atexit.register(ours.close)
        _open.append(ours)
    return _open[0]


# -- the side of the process that forks


class Job(NamedTuple):
    command: list[str]
    env: dict[str, str]
    folder: str


def _next(nursery: socket.socket) -> Job | None:
    """In a process of its own, the command to run; in the one that forks, nothing once the tests are over."""
    bell, striker = os.pipe()
    os.set_blocking(striker, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(striker)
    telling: dict[int, int] = {}  # by process
    with selectors.DefaultSelector() as selector:
        selector.register(nursery, selectors.EVENT_READ)
        selector.register(bell, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fd == bell:
                    os.read(bell, 4096)
                    _tell_the_end(telling)
                    continue
                size, files, _, _ = socket.recv_fds(nursery, SIZE.size, 4)
                if not size:
                    return None
                job = Job(*json.loads(_whole(nursery, *SIZE.unpack(size))))
                if pid := os.fork():
                    for file in files[:3]:
                        os.close(file)
                    telling[pid] = files[3]
                    os.write(files[3], SIZE.pack(pid))
                    continue
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for number, file in enumerate(files[:3]):
                    os.dup2(file, number)
                for file in {bell, striker, *files, *telling.values()} - {0, 1, 2}:
                    os.close(file)
                return job


def _tell_the_end(telling: dict[int, int]) -> None:
    for pid, file in list(telling.items()):
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            os.write(file, SIZE.pack(os.waitstatus_to_exitcode(status)))
            os.close(telling.pop(pid))


def _whole(nursery: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        found += nursery.recv(size - len(found))
    return found


def _load() -> None:
    for part in PARTS:
        package = import_module(part)
        for module in pkgutil.walk_packages(package.__path__, f"{part}."):
            if module.name not in LEAVE:
                import_module(module.name)
    gc.freeze()


def main() -> None:
    _load()
    with socket.socket(fileno=int(sys.argv[1])) as nursery:
        job = _next(nursery)
    if job is not None:
        os.environ.clear()
        os.environ.update(job.env)
        time.tzset()
        os.chdir(job.folder)
        sys.argv = job.command
        import_module("legato.cli.main").cli()


if __name__ == "__main__":
    main()
