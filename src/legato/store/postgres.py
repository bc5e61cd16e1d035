"""PostgreSQL: any number of identical processes over one database.

Row locks order what races (conversation, then turn); what a schema rule or a deadlock refuses is run again from
the start, because a transaction has no effect but its statements. Leases use the database's clock. Hints travel
by LISTEN/NOTIFY, sent after the commit and gathered for a few milliseconds; the tables are the truth.

Whatever is locked, and by whom, holds up only what needs it. Who waits longer than a moment gives its connection back
and stands in line for one of a few; the node's lease is renewed on a connection of its own.
"""

import asyncio
import contextlib
import random
import re
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from itertools import count, islice
from pathlib import Path
from typing import Any, TypeVar

import asyncpg
from msgspec import json

from legato.domain.ids import new_id
from legato.errors import Defect, StoreAway, StoreUnavailable
from legato.logs import logger
from legato.store import copying
from legato.store.database import Hint, P, Row, Transaction, Tx
from legato.store.files import writing
from legato.store.migrate import migrate
from legato.store.statements import Dialect, statements

T = TypeVar("T")

CHANNEL = "legato"
MAX_TRIES = 8
PATIENCE = 40.0  # seconds that a transaction waits for what others have locked
BUSY = 30.0  # seconds that it waits for a connection
SCRUBBED = (
    *("conversations", "aliases", "freed_aliases", "turns", "entries", "turn_events", "deliveries", "blobs"),
    *("search_documents", "requests", "previews"),
)
MANY = 1000  # rows in one statement, so that none takes long
GATHER = 0.015
AT_ONCE = 20  # hints in a message, which may have 8,000 bytes; an id has at most 255
MIGRATION_LOCK = 0x4C676174

_NAME = "legato"


def _setting(**wanted: str) -> str:
    """A statement that sets these for a session, whatever its role or database has; what the server is too old to know
    is left out."""
    rows = ", ".join(f"('{name}', '{value}')" for name, value in wanted.items())
    return f"""
        select set_config(name, value, false) from (values {rows}) wanted (name, value)
        where current_setting(name, true) is not null
    """


_OURS = {"default_transaction_isolation": "read committed", "idle_session_timeout": "0", "transaction_timeout": "0"}

# A transaction awaits nothing but its statements. A process that stands still in one (stopped, cut off) must not hold
# its locks: others go on after this time, or look what it is that they wait for.
_SHORT = _setting(**_OURS, idle_in_transaction_session_timeout="5s", lock_timeout="500ms", statement_timeout="30s")
_IN_LINE = "set local lock_timeout = '5s'"
_LONG = _setting(**_OURS, idle_in_transaction_session_timeout="0", lock_timeout="0", statement_timeout="0")

_END_STALLED = f"""
    select pg_terminate_backend(pid) from pg_stat_activity
    where datname = current_database() and usename = current_user and application_name = '{_NAME}'
        and state = 'active' and wait_event = 'ClientRead' and state_change < now() - interval '4 seconds'
"""

_LOST_RACE = (
    asyncpg.UniqueViolationError,  # someone made it first: the second run finds it
    asyncpg.DeadlockDetectedError,
    asyncpg.SerializationError,
)
_ENDED = (
    asyncpg.AdminShutdownError,
    asyncpg.ConnectionDoesNotExistError,
    asyncpg.CrashShutdownError,
    asyncpg.IdleInTransactionSessionTimeoutError,
    asyncpg.IdleSessionTimeoutError,
)
_UNREACHABLE = (
    *_ENDED,
    OSError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # the server went away between two messages
    asyncpg.PostgresConnectionError,
    asyncpg.CannotConnectNowError,
)
_NO_ENTRY = (*_UNREACHABLE, asyncpg.PostgresError, TimeoutError, ValueError, OverflowError)
_ADVICE = "Check that the role may read and write the tables of its schema, and that the database is Legato's own."


class PostgresTx:
    """A transaction on one connection."""

    dialect: Dialect = "postgres"

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._statements = statements("postgres")

    async def run(self, name: str, /, **params: object) -> list[Row]:
        statement = self._statements[name]
        return await self._connection.fetch(statement.text, *statement.bind(params))  # type: ignore[no-any-return]

    async def many(self, name: str, rows: Iterable[dict[str, object]], /) -> None:
        statement, left = self._statements[name], iter(rows)
        while some := [statement.bind(row) for row in islice(left, MANY)]:
            await self._connection.executemany(statement.text, some)

    async def script(self, text: str, /) -> None:
        await self._connection.execute(text)


class Postgres:
    """The database on a server. Open it with `Postgres.open`."""

    dialect: Dialect = "postgres"

    def __init__(self, pool: Any, url: str, own: Any = None) -> None:
        self._pool = pool
        self._own = own  # the one connection that nothing waits on but what is urgent
        self._url = url
        self._line = asyncio.Semaphore(max(1, pool.get_max_size() // 4) if pool is not None else 1)
        self._origin = new_id("")
        self._listeners: list[Callable[[Hint], None]] = []
        self._hints: set[Hint] = set()
        self._sender: asyncio.Task[None] | None = None
        self._ear: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, url: str, *, connections: int = 10, look: bool = False) -> "Postgres":
        """Connect, bring the schema up to date, listen for hints. Who only wants to look leaves it as it is."""
        self = cls(await _pool_of(url, connections), url)
        if look:
            return self
        try:
            self._own = await _pool_of(url, 1)
            async with self._alone() as connection:  # an index of a large store takes its time
                await _migrate_among_others(connection)
        except BaseException:
            await self.close()
            raise
        self._ear = asyncio.create_task(self._listen(), name="postgres-listen")
        return self

    async def write(self, transaction: Transaction[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._run(self._pool, {}, transaction, *args, **kwargs)

    async def urgent(self, transaction: Transaction[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._run(self._own, {}, transaction, *args, **kwargs)

    async def read(self, transaction: Transaction[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        how = {"isolation": "repeatable_read", "readonly": True}
        return await self._run(self._pool, how, transaction, *args, **kwargs)

    async def _run(
        self, pool: Any, how: dict[str, Any], transaction: Transaction[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """A transaction that lost a race is run again: the loser of two writers, or who stood in a migration's way."""
        until = asyncio.get_running_loop().time() + PATIENCE
        held: asyncpg.LockNotAvailableError | None = None
        for attempt in count(1):
            try:
                async with (
                    self._in_line(held, until) if held and pool is self._pool else contextlib.nullcontext(),
                    self._connection(pool) as connection,
                    connection.transaction(**how),
                ):
                    if held:
                        await connection.execute(_IN_LINE)
                    return await transaction(PostgresTx(connection), *args, **kwargs)
            except _LOST_RACE as error:
                if attempt >= MAX_TRIES:
                    raise Defect(f"PostgreSQL refused a transaction {attempt} times: {error}") from error
            except asyncpg.LockNotAvailableError as error:
                if asyncio.get_running_loop().time() > until:
                    raise _locked(error) from error
                if held:
                    await self._end_stalled()
                held = error
            except asyncpg.IntegrityConstraintViolationError as error:
                raise Defect(f"The schema refused a write: {error}") from error
            except (*_UNREACHABLE, TimeoutError) as error:
                raise self._gone(error) from error
            except asyncpg.PostgresError as error:
                raise _refused(error) from error
            await asyncio.sleep(random.uniform(0, 0.005 * min(attempt, MAX_TRIES)))
        raise AssertionError("unreachable")

    @asynccontextmanager
    async def _in_line(self, held: asyncpg.LockNotAvailableError, until: float) -> AsyncIterator[None]:
        """Wait again for what others hold, a few at a time: the rest of the connections is for everybody else."""
        try:
            async with asyncio.timeout_at(until):
                await self._line.acquire()
        except TimeoutError as error:
            raise _locked(held) from error
        try:
            yield
        finally:
            self._line.release()

    @asynccontextmanager
    async def _connection(self, pool: Any) -> AsyncIterator[Any]:
        """One of the node's connections. Where the server has room for no more, those that are there must do."""
        clock = asyncio.get_running_loop().time
        until, pause, full = clock() + BUSY, 0.02, None
        while True:
            try:
                connection = await pool.acquire(timeout=max(0.0, until - clock()))
                break
            except asyncpg.TooManyConnectionsError as error:
                full = error
            except TimeoutError as error:
                raise (_refused(full) if full else self._busy(pool, error)) from error
            await asyncio.sleep(random.uniform(0, pause))
            pause = min(1.0, 2 * pause)
        try:
            yield connection
        finally:
            await pool.release(connection)

    def _busy(self, pool: Any, error: TimeoutError) -> StoreUnavailable:
        if pool.get_idle_size() or pool.get_size() < pool.get_max_size():
            return self._gone(error)  # there was room for another
        return StoreUnavailable(
            f"All {pool.get_max_size()} connections of this node to PostgreSQL have been busy for {BUSY:.0f} s. "
            f"Try again; if it stays so, see in pg_stat_activity what they wait for, or raise database.connections."
        )

    async def _end_stalled(self) -> None:
        """End the sessions of processes that stand still between the messages of one statement (stopped, cut off):
        the server's own timeouts do not see them, and they hold their locks for as long as they stand."""
        with contextlib.suppress(*_UNREACHABLE, asyncpg.PostgresError, TimeoutError):  # whoever waits tries again
            async with (self._own or self._pool).acquire(timeout=10) as connection:
                if ended := await connection.fetch(_END_STALLED):
                    logger.warning("sessions that stood still with locks were ended", sessions=len(ended))

    async def scrub(self) -> None:
        async with self._alone() as connection:
            await connection.execute("set lock_timeout = '60s'")
            for table in SCRUBBED:
                await connection.execute(f"vacuum (full, analyze) {table}")

    async def backup(self, path: Path) -> None:
        async with writing(path) as part, self._alone() as connection:
            async with connection.transaction(isolation="repeatable_read", readonly=True):
                await copying.dump(connection, part)

    @classmethod
    async def restore(cls, url: str, path: Path) -> None:
        """Load a backup of our newest schema, in one transaction, where nobody has talked yet."""
        async with cls(None, url)._alone() as connection, connection.transaction():
            tx = PostgresTx(connection)
            await _migrate_alone(tx)
            if await tx.run("living_nodes"):
                raise StoreUnavailable(f"A gateway runs on {_shown(url)}. Nothing was changed. Stop it first.")
            [[occupied]] = await tx.run("occupied")
            if occupied:
                raise StoreUnavailable(
                    f"{_shown(url)} holds conversations already. Nothing was changed. Restore into an empty database."
                )
            await copying.load(connection, path)

    @asynccontextmanager
    async def _alone(self) -> AsyncIterator[Any]:
        """A connection for something that may take long."""
        try:
            connection = await _connect(self._url)
        except _NO_ENTRY as error:
            raise _cannot_reach(self._url, error) from error
        try:
            yield connection
        except (*_UNREACHABLE, TimeoutError) as error:
            raise self._gone(error) from error
        except asyncpg.PostgresError as error:
            raise _refused(error) from error
        finally:
            connection.terminate()

    def tell(self, hint: Hint) -> None:
        self._hints.add(hint)
        if self._sender is None or self._sender.done():
            self._sender = asyncio.create_task(self._send(), name="postgres-notify")

    def on_hint(self, listener: Callable[[Hint], None]) -> None:
        self._listeners.append(listener)

    async def close(self) -> None:
        for task in (self._sender, self._ear):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        for pool in (self._own, self._pool):
            if pool is not None:
                with contextlib.suppress(*_UNREACHABLE, TimeoutError):
                    await asyncio.wait_for(pool.close(), 10)

    async def _send(self) -> None:
        """Gather hints for a moment and send them together."""
        while self._hints:
            await asyncio.sleep(GATHER)
            hints, self._hints = list(self._hints), set()
            batches = [hints[start : start + AT_ONCE] for start in range(0, len(hints), AT_ONCE)]
            with contextlib.suppress(*_UNREACHABLE, asyncpg.PostgresError, TimeoutError, StoreUnavailable):
                async with self._connection(self._pool) as connection:  # a lost hint costs time only
                    for batch in batches:
                        payload = json.encode([self._origin, batch]).decode()
                        await connection.execute("select pg_notify($1, $2)", CHANNEL, payload)

    async def _listen(self) -> None:
        """One listening connection a process; when it breaks, polling goes on until it is back."""
        deaf = False
        while True:
            why = "the connection has ended"
            try:
                connection = await _connect(self._url)
                broken = asyncio.Event()
                connection.add_termination_listener(lambda _, broken=broken: broken.set())
                try:
                    await connection.add_listener(CHANNEL, self._heard)
                    if deaf:
                        logger.warning("hints of other nodes arrive again")
                    deaf = False
                    await broken.wait()
                finally:
                    connection.terminate()
            except (*_UNREACHABLE, asyncpg.PostgresError, TimeoutError) as error:
                why = str(error) or type(error).__name__
            if not deaf:
                logger.warning("no hints of other nodes arrive; the tables are looked at until they do", error=why)
            deaf = True
            await asyncio.sleep(1)

    def _heard(self, _connection: object, _pid: int, _channel: str, payload: object) -> None:
        origin, hints = json.decode(str(payload), type=tuple[str, list[Hint]])
        if origin != self._origin:
            for hint in hints:
                for listener in self._listeners:
                    listener(hint)

    def _gone(self, error: BaseException) -> StoreAway:
        if isinstance(error.__context__, _ENDED):
            error = error.__context__  # what came of it says nothing
        did = "has ended a connection" if isinstance(error, _ENDED) else "does not answer"
        return StoreAway(
            f"PostgreSQL at {_shown(self._url)} {did}: {str(error) or type(error).__name__}. "
            f"Check that the server runs; what was acknowledged is safe."
        )


def _refused(error: asyncpg.PostgresError) -> StoreUnavailable:
    advice = _ADVICE
    if isinstance(error, asyncpg.TooManyConnectionsError):
        advice = "Try again. If it stays so, raise max_connections there, or lower database.connections on the nodes."
    elif isinstance(error, asyncpg.QueryCanceledError):
        advice = "It took too long, or somebody stopped it; nothing was changed. Try again."
    return StoreUnavailable(f"PostgreSQL refused: {error}. {advice}")


def _locked(error: asyncpg.LockNotAvailableError) -> StoreUnavailable:
    return StoreUnavailable(f"PostgreSQL keeps locked what is needed: {error}. Try again.")


def _cannot_reach(url: str, error: BaseException) -> StoreUnavailable:
    if isinstance(error, asyncpg.TooManyConnectionsError):
        return _refused(error)
    quotable = isinstance(error, OSError | asyncpg.PostgresError | TimeoutError)  # others may quote the password
    why = str(error) if quotable and str(error) else type(error).__name__
    return StoreUnavailable(
        f"PostgreSQL at {_shown(url)} cannot be reached: {why}. Check that the server runs, and "
        f"LEGATO_DATABASE_URL (or --database-url); special characters in a password are written %XX."
    )


async def _migrate_alone(tx: Tx) -> list[str]:
    """Several processes may start at once: one migrates, the others wait and find it done."""
    await tx.script(f"select pg_advisory_xact_lock({MIGRATION_LOCK})")
    await tx.script("set local lock_timeout = '3s'")
    return await migrate(tx)


async def _migrate_among_others(connection: Any) -> None:
    """While older nodes work on. A migration takes tables in another order than they do, and what it waits for, all
    of them wait for: so it waits briefly, gives everything back, and tries again."""
    for attempt in range(1, MAX_TRIES + 1):
        try:
            async with connection.transaction():
                await _migrate_alone(PostgresTx(connection))
            return
        except (asyncpg.DeadlockDetectedError, asyncpg.LockNotAvailableError) as error:
            if attempt == MAX_TRIES:
                raise StoreUnavailable(
                    f"The schema could not be brought up to date, {attempt} times: {error}. Nothing was changed. "
                    f"Something holds the tables (a backup, a console with an open transaction); start again after it."
                ) from error
        await asyncio.sleep(random.uniform(0, 0.1 * attempt))


async def _pool_of(url: str, connections: int) -> Any:
    try:
        return await asyncpg.create_pool(
            url,
            min_size=1,
            max_size=connections,
            timeout=10,
            command_timeout=60,
            reset=_no_reset,
            init=_as_ours,
            server_settings={"application_name": _NAME},
        )
    except _NO_ENTRY as error:
        raise _cannot_reach(url, error) from error


async def _as_ours(connection: Any) -> None:
    await connection.execute(_SHORT)


async def _connect(url: str) -> Any:
    """A connection that is not of the pool, for something that may take long."""
    connection = await asyncpg.connect(url, timeout=10)
    try:
        await connection.execute(_LONG)
    except BaseException:
        connection.terminate()
        raise
    return connection


async def _no_reset(_connection: object) -> None:
    """Our transactions leave nothing behind on a connection, so there is nothing to reset (1.4 times the rate)."""


def _shown(url: str) -> str:
    """A database URL as it may be shown: where it leads, and nothing of who goes there."""
    match = re.match(r"(?:postgres(?:ql)?://)(?:.*@)?([^@?#]*)", url, re.DOTALL)
    return f"postgresql://{match[1]}" if match else "the given address"
