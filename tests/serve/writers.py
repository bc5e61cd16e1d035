"""Clients that write without pause, each with its own list of what it said and what was acknowledged."""

import threading
from collections import Counter
from collections.abc import Callable

from serve.process import BOUND, Server

TURNS = 12
"""What is said in a conversation before its client begins another."""


def said(name: str, count: int) -> list[tuple[str, str]]:
    """What a conversation holds after so many turns."""
    return [line for n in range(count) for line in (("user", f"reply only {name} {n}"), ("assistant", f"{name} {n}"))]


class Writers:
    """Some clients of a gateway, each in a thread of its own, until the block ends."""

    def __init__(self, server: Server, count: int) -> None:
        self._server = server
        self._news = threading.Condition()
        self._stop = False
        self._faults: list[BaseException] = []
        self._threads = [threading.Thread(target=self._write, args=(n,), daemon=True) for n in range(count)]
        self.sent: Counter[str] = Counter()
        self.acknowledged: Counter[str] = Counter()

    def __enter__(self) -> "Writers":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop = True
        for thread in self._threads:
            thread.join(BOUND)
        assert self._faults == []

    def go_on(self, turns: int) -> None:
        """Wait until so many more turns are acknowledged."""
        with self._news:
            wanted = self.acknowledged.total() + turns
            self._until(lambda: self.acknowledged.total() >= wanted)

    def _until(self, there: Callable[[], bool]) -> None:
        assert self._news.wait_for(lambda: there() or bool(self._faults), BOUND), self.acknowledged
        assert self._faults == []

    def _write(self, number: int) -> None:
        try:
            turn = 0
            while not self._stop:
                name, place = f"writer-{number}-{turn // TURNS}", turn % TURNS
                self.sent[name] += 1
                answer = self._server.say(f"reply only {name} {place}", name)
                assert answer.status == 200, answer
                assert answer.text == f"{name} {place}"
                with self._news:
                    self.acknowledged[name] += 1
                    self._news.notify_all()
                turn += 1
        except BaseException as fault:  # noqa: BLE001 - it is told where the test waits
            with self._news:
                self._faults.append(fault)
                self._news.notify_all()
