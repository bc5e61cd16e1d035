"""The narrow waist between the store and a database: run a transaction.

`write` returns only after the commit is durable; that is the whole acknowledgement rule, kept in one place. A
transaction may be run more than once (PostgreSQL retries after a deadlock or a lost race), so it has no effect
but its statements.
"""

from collections.abc import Awaitable, Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from msgspec import Struct

from legato.store.statements import Dialect

P = ParamSpec("P")
T = TypeVar("T")
Row = tuple[Any, ...]


class Tx(Protocol):
    """A transaction under way: run named statements."""

    dialect: Dialect

    async def run(self, name: str, /, **params: object) -> list[Row]:
        """Run a statement and return its rows."""
        ...

    async def many(self, name: str, rows: Iterable[dict[str, object]], /) -> None:
        """Run a statement once for each set of parameters."""
        ...

    async def script(self, text: str, /) -> None:
        """Run plain SQL without parameters (migrations)."""
        ...


Transaction = Callable[Concatenate[Tx, P], Coroutine[Any, Any, T]]


class Hint(Struct, frozen=True, array_like=True):
    """Something changed and someone may be waiting for it. Hints are never the truth: losing one costs time only.

    `queued` names a conversation with work that nobody has taken, `admitted` one with a new turn, `events` a turn with
    news, `follow` a turn that someone follows, `cancel` a turn to be stopped.
    """

    kind: str
    id: str


class Database(Protocol):
    """SQLite or PostgreSQL."""

    dialect: Dialect

    async def write(self, transaction: Transaction[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a transaction; when this returns, it is durable."""
        ...

    async def urgent(self, transaction: Transaction[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """The same for what must not stand behind other work, however much of it waits: a lease."""
        ...

    async def read(self, transaction: Transaction[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a transaction that only reads, on one consistent snapshot."""
        ...

    async def scrub(self) -> None:
        """Write the files anew, so that nothing that was deleted is left in them. Writers wait meanwhile."""
        ...

    async def backup(self, path: Path) -> None:
        """Write everything that is true now into one SQLite file, while others go on writing. It has its name when it
        is whole and on the disk; otherwise nothing is left."""
        ...

    def tell(self, hint: Hint) -> None:
        """Pass a hint to the other processes on this database."""
        ...

    def on_hint(self, listener: Callable[[Hint], None]) -> None:
        """Be called with the hints of other processes."""
        ...

    async def close(self) -> None: ...


async def one(rows: Awaitable[list[Row]]) -> Row | None:
    """The first row, if any."""
    found = await rows
    return found[0] if found else None
