"""SQLite: one file, one owner, one writer thread with group commit.

A disk syncs a few thousand times a second and writes a hundred times more. So the writer takes every transaction that
waits, runs one after the other, and commits them together: many transactions share one fsync, and nobody hears of
success before it. Each is still atomic alone: where one fails, all run anew with a savepoint around each. Groups form
by themselves while the last sync is under way.

Readers have connections and threads of their own; in WAL mode they never wait for the writer. There are as many as were
needed at once, because each has to learn the schema and every statement for itself. apsw bundles a current SQLite,
because a corruption bug of WAL mode is still in the one many systems ship.
"""

import asyncio
import contextlib
import fcntl
import os
import threading
import time
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar

import apsw

from legato.errors import Defect, StoreUnavailable
from legato.store.database import Hint, P, Row, Transaction
from legato.store.files import writing
from legato.store.migrate import migrate
from legato.store.statements import Dialect, statements

T = TypeVar("T")

MAX_GROUP = 512
READERS = 4
LOOK_EVERY = 0.1  # seconds
APPLICATION_ID = 0x4C676174  # "Lgat": tells our file from any other program's
SETTINGS = (
    "journal_mode = wal",
    "synchronous = full",  # a commit is on the disk before it is acknowledged
    "foreign_keys = on",
    "wal_autocheckpoint = 8000",
    "cache_size = -32000",
    "secure_delete = on",  # what is deleted is overwritten
    "temp_store = memory",  # savepoints keep the pages they may restore in memory, not in a file
)

Job = tuple[Callable[["SqliteTx"], Coroutine[Any, Any, Any]], "asyncio.Future[Any]"]


Outcome = tuple[Any, BaseException | None]


class SqliteTx:
    """A transaction on one connection. Its coroutines never suspend: SQLite answers at once."""

    dialect: Dialect = "sqlite"

    def __init__(self, connection: apsw.Connection) -> None:
        self._cursor = connection.cursor()  # one for all: every statement is read to its end
        self._statements = statements("sqlite")

    async def run(self, name: str, /, **params: object) -> list[Row]:
        statement = self._statements[name]
        return self._cursor.execute(statement.text, statement.bind(params)).fetchall()

    async def many(self, name: str, rows: Iterable[dict[str, object]], /) -> None:
        statement = self._statements[name]
        self._cursor.executemany(statement.text, [statement.bind(row) for row in rows]).fetchall()

    async def script(self, text: str, /) -> None:
        self._cursor.execute(text).fetchall()  # to the end: statements after a row run only when it is fetched


class Sqlite:
    """The database in one file. Open it with `Sqlite.open`."""

    dialect: Dialect = "sqlite"

    def __init__(self, path: Path, lock: int | None, *, vfs: str | None) -> None:
        self._path = path
        self._lock = lock
        self._vfs = vfs
        self._loop = asyncio.get_running_loop()
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._writer = threading.Thread(target=self._write_all, name="legato-writer", daemon=True)
        self._reads: SimpleQueue[Job | None] = SimpleQueue()
        self._readers: list[threading.Thread] = []
        self._reading = 0  # reads that are waited for or under way
        self._opened: list[int] = []  # which files the writer has open
        self._look_at = 0.0  # when it looks again whether they are there
        self._closed = False

    @classmethod
    async def open(cls, path: Path, *, vfs: str | None = None) -> "Sqlite":
        """Own the file, bring its schema up to date, start the writer."""
        lock = own(path)
        with contextlib.suppress(OSError):  # what cannot be made is told when it is opened
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))  # its journals get the same mode
        self = cls(path, lock, vfs=vfs)
        self._writer.start()
        try:
            await self.write(migrate)
        except BaseException:
            await self.close()
            raise
        return self

    @classmethod
    def look(cls, path: Path) -> "Sqlite":
        """Open the file for reading, as it is, whoever owns it."""
        if not path.exists():
            raise StoreUnavailable(f"There is no database in {path.parent}.")
        return cls(path, None, vfs=None)

    async def write(self, transaction: Transaction[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        if self._closed or self._lock is None:
            raise StoreUnavailable("The database is closed, or open for reading only.")
        done: asyncio.Future[T] = self._loop.create_future()
        self._jobs.put((lambda tx: transaction(tx, *args, **kwargs), done))
        return await done

    async def urgent(self, transaction: Transaction[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.write(transaction, *args, **kwargs)  # what waits is committed together

    async def read(self, transaction: Transaction[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        if self._closed:
            raise StoreUnavailable("The database is closed.")
        done: asyncio.Future[T] = self._loop.create_future()
        self._reading += 1
        if len(self._readers) < min(self._reading, READERS):
            reader = threading.Thread(target=self._read_all, name=f"legato-reader-{len(self._readers)}", daemon=True)
            self._readers.append(reader)
            reader.start()
        self._reads.put((lambda tx: transaction(tx, *args, **kwargs), done))
        return await done

    async def scrub(self) -> None:
        if self._closed:
            raise StoreUnavailable("The database is closed.")
        done: asyncio.Future[None] = self._loop.create_future()
        self._jobs.put((_scrubbing, done))
        await done

    async def backup(self, path: Path) -> None:
        if self._closed:
            raise StoreUnavailable("The database is closed.")
        try:
            with contextlib.closing(self._connect(writable=False)) as connection:
                connection.execute("pragma query_only = off")  # it would also refuse to write the other file
                async with writing(path) as part:
                    vacuum = asyncio.ensure_future(asyncio.to_thread(connection.execute, "vacuum into ?", (str(part),)))
                    try:
                        await asyncio.shield(vacuum)
                    except asyncio.CancelledError:
                        connection.interrupt()
                        await asyncio.wait({vacuum})
                        raise
        except apsw.Error as error:
            raise self._translated(error) from error

    def tell(self, hint: Hint) -> None:
        """There is no other process on this file."""

    def on_hint(self, listener: Callable[[Hint], None]) -> None:
        """There is no other process on this file."""

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._jobs.put(None)
        for _ in self._readers:
            self._reads.put(None)
        for thread in (self._writer, *self._readers):
            if thread.ident is not None:
                await self._loop.run_in_executor(None, thread.join)
        if self._lock is not None:
            os.close(self._lock)

    # -- the writer thread

    def _write_all(self) -> None:
        connection: apsw.Connection | None = None
        while group := self._next_group():
            writes = [job for job in group if job[0] is not _scrubbing]
            scrubs = [job for job in group if job[0] is _scrubbing]
            for part, carry_out in ((writes, self._commit), (scrubs, _scrub)):
                if part:
                    try:
                        connection = connection or self._connect(writable=True)
                        outcomes = carry_out(connection, part)
                    except BaseException as error:  # noqa: BLE001 - it is handed to those whose jobs were lost
                        outcomes = [(None, self._translated(error))] * len(part)
                    self._tell(part, outcomes)
        if connection is not None:
            connection.close()

    def _next_group(self) -> list[Job]:
        """Every job that waits, at least one; empty at the end."""
        group: list[Job] = []
        job = self._jobs.get()
        while job is not None:
            group.append(job)
            if len(group) == MAX_GROUP or self._jobs.empty():
                return group
            job = self._jobs.get()
        if group:
            self._jobs.put(None)  # the end comes after this group
        return group

    def _commit(self, connection: apsw.Connection, group: list[Job]) -> list[Outcome]:
        """Run all jobs and commit them with one sync. Where one fails, all are run anew, so that it fails alone."""
        tx = SqliteTx(connection)
        connection.execute("begin immediate")
        try:
            self._check_there()
            try:
                outcomes: list[Outcome] = [(_drive(job(tx)), None) for job, _ in group]
            except BaseException:
                if len(group) == 1 or not connection.in_transaction:  # a full disk ends the whole transaction
                    raise
                connection.execute("rollback")
                connection.execute("begin immediate")
                outcomes = [self._apart(connection, tx, job) for job, _ in group]
            connection.execute("commit")
        except BaseException:
            if connection.in_transaction:
                connection.execute("rollback")
            raise
        return outcomes

    def _check_there(self) -> None:
        """The file and its journal are still those that were opened. Once they are removed, or others stand in their
        place, SQLite writes on into what nobody will ever find again. Each look lets go of the interpreter, which would
        cost a turn a fifth of its time if every commit took one."""
        now = time.monotonic()
        if now < self._look_at:
            return
        try:
            there = [os.stat(path).st_ino for path in (self._path, f"{self._path}-wal")]
        except OSError:
            there = []
        self._opened = self._opened or there
        if not there or there != self._opened:
            raise StoreUnavailable(
                f"The database {self._path} was removed or replaced while Legato ran, so nothing can be kept. Stop "
                f"Legato, put the file back (`legato restore-backup` does it from a backup), and start it again."
            )
        self._look_at = now + LOOK_EVERY

    def _apart(self, connection: apsw.Connection, tx: SqliteTx, job: Callable[[SqliteTx], Any]) -> Outcome:
        """A job that takes nothing with it when it fails."""
        outcome: Outcome
        connection.execute("savepoint job")
        try:
            outcome = _drive(job(tx)), None
        except BaseException as error:
            if not connection.in_transaction:
                raise
            connection.execute("rollback to job")
            outcome = None, self._translated(error)
        connection.execute("release job")
        return outcome

    # -- reader threads

    def _read_all(self) -> None:
        connection: apsw.Connection | None = None
        while (job := self._reads.get()) is not None:
            outcome: Outcome
            try:
                connection = connection or self._connect(writable=False)
                outcome = _read(connection, job), None
            except BaseException as error:  # noqa: BLE001 - it is handed to the caller whose job it is
                outcome = None, self._translated(error)
            self._tell([job], [outcome], reads=1)
        if connection is not None:
            connection.close()

    def _tell(self, group: list[Job], outcomes: list[Outcome], reads: int = 0) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is gone: nobody waits for the outcome
            self._loop.call_soon_threadsafe(self._settle, group, outcomes, reads)

    def _settle(self, group: list[Job], outcomes: list[Outcome], reads: int) -> None:
        self._reading -= reads
        for (_, done), (result, error) in zip(group, outcomes, strict=True):
            if done.done():
                continue  # whoever waited has gone; what was written stays written
            if error is not None:
                done.set_exception(error)
            else:
                done.set_result(result)

    def _connect(self, *, writable: bool) -> apsw.Connection:
        flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
        if self._lock is None:
            flags = apsw.SQLITE_OPEN_READONLY
        connection = apsw.Connection(str(self._path), vfs=self._vfs, flags=flags, statementcachesize=256)
        try:
            connection.set_busy_timeout(10_000)
            connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)  # a plan holds whatever is bound
            if not writable and self._lock is not None:
                connection.execute("pragma query_only = on")
                return connection
            if writable and connection.readonly("main"):
                raise apsw.ReadOnlyError("it opens for reading only")
            [(application,)] = connection.execute("pragma application_id").fetchall()
            [(tables,)] = connection.execute("select count(*) from sqlite_schema").fetchall()
            if tables and application != APPLICATION_ID:
                raise StoreUnavailable(
                    f"{self._path} is a SQLite file of another program. Nothing was changed. Choose another home."
                )
            if not writable:
                return connection
            for setting in SETTINGS:
                connection.execute(f"pragma {setting}").fetchall()
            if not tables:
                connection.execute(f"pragma application_id = {APPLICATION_ID}")
        except BaseException:
            connection.close()
            raise
        return connection

    def _translated(self, error: BaseException) -> BaseException:
        """A driver's error in our words, with what to do. Maybe it comes of a file that is gone, so that is looked at
        before anything else is written."""
        self._look_at = 0.0
        match error:
            case apsw.FullError():
                advice = "The disk is full. Free some space; nothing that was acknowledged is lost."
            case apsw.CorruptError() | apsw.NotADBError():
                advice = "The file is damaged. Stop Legato, keep a copy of the file, and restore a backup."
            case apsw.ReadOnlyError() | apsw.CantOpenError() | apsw.PermissionsError():
                advice = "The file cannot be written. Check the owner and the permissions of its folder."
            case apsw.IOError():
                advice = "The disk refused to read or write. Check its space and its health."
            case apsw.ConstraintError():
                return Defect(f"The schema refused a write: {error}")
            case apsw.Error():
                advice = "Unexpected; see the log."
            case _:
                return error
        return StoreUnavailable(f"The database {self._path} cannot be used: {error}. {advice}")


async def _scrubbing(_: SqliteTx) -> None:
    """Stands in the queue for a scrub, which no transaction can hold."""


def _scrub(connection: apsw.Connection, group: list[Job]) -> list[Outcome]:
    """Write the file anew. Deleted rows were overwritten, but a page that was rearranged may hold older copies."""
    connection.execute("insert into search_grams (search_grams) values ('optimize')").fetchall()
    connection.execute("pragma temp_store = file").fetchall()  # the whole file may be more than memory holds
    try:
        connection.execute("vacuum").fetchall()
    finally:
        connection.execute("pragma temp_store = memory").fetchall()
    [(busy, _, _)] = connection.execute("pragma wal_checkpoint(truncate)").fetchall()
    if busy:
        raise StoreUnavailable("Someone reads for so long that the journal could not be emptied; try again.")
    return [(None, None)] * len(group)


def _read(connection: apsw.Connection, job: Job) -> object:
    """Run a job on one snapshot."""
    connection.execute("begin")
    try:
        return _drive(job[0](SqliteTx(connection)))
    finally:
        connection.execute("commit")


def at_once(connection: apsw.Connection, work: Callable[[SqliteTx], Coroutine[Any, Any, T]]) -> T:
    """Run something on a connection that nobody else uses, in the transaction that it is in."""
    return _drive(work(SqliteTx(connection)))


def _drive(job: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends."""
    try:
        job.send(None)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]  # StopIteration carries the coroutine's own result
    job.close()
    raise Defect("A transaction awaited something other than its own statements.")


def own(path: Path) -> int:
    """Lock the file for this process; a second one is told who holds it."""
    lock_path = path.with_name(path.name + ".lock")
    try:
        lock = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StoreUnavailable(
            f"Cannot write in {path.parent}: {error.strerror}. Check that the folder exists, its owner and its "
            f"permissions, or choose another with --home or LEGATO_HOME."
        ) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.pread(lock, 100, 0).decode(errors="replace").strip()
        os.close(lock)
        raise StoreUnavailable(
            f"Another Legato ({holder or 'unknown process'}) already runs on {path.parent}. Use that one, stop it (a "
            f"`legato` chat may have started it, and ends it when you leave), or choose another home with --home or "
            f"LEGATO_HOME. To run several processes, use PostgreSQL."
        ) from error
    with contextlib.suppress(OSError):  # a full disk cannot take the name; the lock holds all the same
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"process {os.getpid()}".encode(), 0)
    return lock
