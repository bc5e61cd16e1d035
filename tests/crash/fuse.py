"""The fuse: ends its own process at a chosen commit point, stops it there, or lets the database fail there.

A point is a transaction, named by its function and counted, and a moment: `before`, when the transaction's function
has returned and nothing is committed, or `after`, when it is durable and nobody has heard of it.
"""

import os
from collections import Counter
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

from crash.script import note
from legato.errors import LegatoError, StoreUnavailable

Moment = Literal["before", "after"]
BY_THE_CLOCK = frozenset({"renew", "_add"})
"""Chores that write when time has passed: how often differs from run to run, so only the first is a point."""


class Point(Struct, frozen=True):
    """The `nth` commit of a transaction, and which side of it."""

    name: str
    nth: int
    moment: Moment

    def __str__(self) -> str:
        return f"{self.name} #{self.nth}, {self.moment} its commit"


OUTAGE = 0
"""In the place of a signal: the database does not answer, once."""


class Fuse:
    """Counts commits by name and burns at one of them. Until it is armed it counts nothing."""

    def __init__(self, point: Point | None, signal: int, *, commits: Path, refused: Path, armed: bool) -> None:
        self._point, self._signal, self._commits, self._refused = point, signal, commits, refused
        self._counted: Counter[str] = Counter()
        self.armed = armed

    def moment(self, name: str) -> Moment | None:
        """Count a commit that begins; returns the moment at which to burn, if this is the one."""
        if not self.armed:
            return None
        self._counted[name] += 1
        note(self._commits, [name, self._counted[name]])
        point = self._point
        return point.moment if point and (point.name, point.nth) == (name, self._counted[name]) else None

    def burn(self) -> None:
        if self._signal == OUTAGE:
            raise StoreUnavailable("The database did not answer.")
        os.kill(os.getpid(), self._signal)

    def refuse(self, name: str, code: str) -> None:
        """Note a write that was refused."""
        note(self._refused, [name, code])


def fused(database: type, fuse: Fuse) -> type:
    """A database of ours with a fuse in it, from its first write on."""

    class Fused(database):  # type: ignore[misc]  # either of two classes
        async def write(self, transaction: Any, /, *args: Any, **kwargs: Any) -> Any:
            moment = fuse.moment(transaction.__name__)

            async def doomed(tx: Any) -> Any:
                result = await transaction(tx, *args, **kwargs)
                if moment == "before":
                    fuse.burn()
                return result

            try:
                result = await super().write(doomed)
                if moment == "after":
                    fuse.burn()
            except LegatoError as error:
                fuse.refuse(transaction.__name__, error.code)
                raise
            return result

    return Fused
