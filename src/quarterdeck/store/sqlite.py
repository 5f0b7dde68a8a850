"""SQLite in WAL mode: one writer thread with group commit, a few readers, events delivered after COMMIT."""

import asyncio
import contextlib
import queue
import sqlite3
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import structlog
from sqlalchemy import create_engine, event
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from quarterdeck.domain.callers import SYSTEM, Caller
from quarterdeck.domain.errors import Unavailable
from quarterdeck.events import Bus, Event
from quarterdeck.store import log
from quarterdeck.store.migrate import migrate
from quarterdeck.store.tx import Tx, with_arguments

P = ParamSpec("P")
T = TypeVar("T")

_BUSY_SECONDS = 30.0
_READERS = 3
_READS = 8  # at most so many wait for each other
_BATCH = 256
_BATCH_SECONDS = 0.02
# The disk, the file or another process is at fault; any other code is a mistake in a statement.
_AWAY = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_INTERRUPT,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PROTOCOL,
    sqlite3.SQLITE_NOTADB,
}

logger = structlog.get_logger()


@dataclass(slots=True, eq=False)
class _Operation:
    caller: Caller
    body: Callable[[Tx], Any]
    future: asyncio.Future[Any]
    result: Any = None
    error: BaseException | None = None


def _engine(path: Path) -> Engine:
    engine = create_engine(
        f"sqlite:///{path}",
        poolclass=NullPool,
        isolation_level="AUTOCOMMIT",
        connect_args={"check_same_thread": False, "timeout": _BUSY_SECONDS},
    )

    @event.listens_for(engine, "connect")
    def _pragmas(dbapi: sqlite3.Connection, _record: object) -> None:
        _write_ahead(dbapi)
        for pragma in ("synchronous=FULL", "foreign_keys=ON", "temp_store=MEMORY", "cache_size=-16000"):
            dbapi.execute(f"PRAGMA {pragma}").close()
        # SQLite's own knows the letters of ASCII only.
        dbapi.create_function("lower", 1, _lower, deterministic=True)

    return engine


def _write_ahead(dbapi: sqlite3.Connection) -> None:
    """Two that turn a new file to WAL at once: SQLite refuses one of them at once, whatever its timeout."""
    deadline = time.monotonic() + _BUSY_SECONDS
    while True:
        try:
            dbapi.execute("PRAGMA journal_mode=WAL").close()
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
        time.sleep(0.005)


def _lower(value: str | None) -> str | None:
    return None if value is None else str(value).lower()


def _raw(conn: Connection) -> sqlite3.Connection:
    raw = conn.connection.dbapi_connection
    if not isinstance(raw, sqlite3.Connection):
        raise TypeError("the connection is closed")
    return raw


def _worded(error: BaseException) -> BaseException:
    """What the caller of a failed body gets: Unavailable when the database is at fault, else the error."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    if isinstance(cause, sqlite3.Error) and getattr(cause, "sqlite_errorcode", 0) & 0xFF in _AWAY:
        unavailable = Unavailable(f"the database refused: {cause}", hint="check the disk, then try again")
        unavailable.__cause__ = error
        return unavailable
    return error


def _lost(error: BaseException) -> BaseException:
    """What a caller gets whose change was undone because of another's."""
    worded = _worded(error)
    if not isinstance(worded, Unavailable):
        worded = Unavailable("the change was undone with another that failed", hint="try again")
        worded.__cause__ = error
    return worded


class Sqlite:
    """The embedded store. One process owns the file; the data directory's lock sees to that."""

    dialect = "sqlite"

    def __init__(self, path: Path, bus: Bus, loop: asyncio.AbstractEventLoop) -> None:
        self._path = path
        self._bus = bus
        self._loop = loop
        self._writes: queue.SimpleQueue[_Operation | None] = queue.SimpleQueue()
        self._reads: queue.SimpleQueue[list[_Operation] | None] = queue.SimpleQueue()
        self._gathered: list[_Operation] = []
        self._threads: list[threading.Thread] = []
        self._tip = (0, "")

    async def start(self) -> None:
        try:
            writer, *readers = await asyncio.to_thread(self._open)
        except (DBAPIError, sqlite3.Error) as error:
            raise _worded(error) from error
        self._threads = [threading.Thread(target=self._write_loop, args=[writer], name="store-writer")]
        self._threads += [
            threading.Thread(target=self._read_loop, args=[reader], name="store-reader") for reader in readers
        ]
        for thread in self._threads:
            thread.daemon = True
            thread.start()

    def _open(self) -> list[Connection]:
        """Migrate, then connect for every thread: one that cannot would leave its callers waiting."""
        engine = _engine(self._path)
        migrate(engine)
        with contextlib.ExitStack() as opened:
            conns = [opened.enter_context(engine.connect()) for _ in range(1 + _READERS)]
            self._tip = log.tip(Tx(conns[0], SYSTEM, self.dialect))
            for reader in conns[1:]:
                _raw(reader).execute("PRAGMA query_only=ON")
            opened.pop_all()
        return conns

    async def tx(
        self, caller: Caller, body: Callable[Concatenate[Tx, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        operation = self._operation(caller, with_arguments(body, *args, **kwargs))
        self._writes.put(operation)
        result: T = await operation.future
        return result

    async def read(
        self, caller: Caller, body: Callable[Concatenate[Tx, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        operation = self._operation(caller, with_arguments(body, *args, **kwargs))
        self._gathered.append(operation)
        if len(self._gathered) == 1:
            self._loop.call_soon(self._hand_over)
        result: T = await operation.future
        return result

    def _operation(self, caller: Caller, body: Callable[[Tx], Any]) -> _Operation:
        if not self._threads:
            raise Unavailable("the database is closed")
        return _Operation(caller, body, self._loop.create_future())

    def _hand_over(self) -> None:
        """Give the reads of one turn of the loop to a reader together: threads that take turns cost more."""
        reads, self._gathered = self._gathered, []
        for first in range(0, len(reads), _READS):
            self._reads.put(reads[first : first + _READS])

    async def close(self) -> None:
        threads, self._threads = self._threads, []
        self._writes.put(None)
        self._hand_over()
        for _ in range(_READERS):
            self._reads.put(None)
        for thread in threads:
            await asyncio.to_thread(thread.join)

    def _write_loop(self, conn: Connection) -> None:
        with conn:
            raw = _raw(conn)
            while (first := self._writes.get()) is not None:
                self._answer(*self._commit(conn, raw, first))

    def _commit(
        self, conn: Connection, raw: sqlite3.Connection, first: _Operation
    ) -> tuple[list[_Operation], list[Event]]:
        """Run `first` and whatever else is waiting as one transaction on disk."""
        batch: list[_Operation] = []
        events: list[Event] = []
        tip = self._tip
        try:
            raw.execute("BEGIN IMMEDIATE")
            deadline = time.monotonic() + _BATCH_SECONDS
            operation: _Operation | None = first
            while operation is not None:
                batch.append(operation)
                if sealed := self._savepoint(conn, raw, operation, tip):
                    events += sealed
                    tip = (sealed[-1].seq, sealed[-1].hash)
                operation = None
                if len(batch) < _BATCH and time.monotonic() < deadline:
                    operation = self._next()
            log.append(Tx(conn, SYSTEM, self.dialect), events)
            raw.execute("COMMIT")
        except BaseException as error:  # the batch is lost as a whole, and every caller is told
            with contextlib.suppress(sqlite3.Error):
                if raw.in_transaction:
                    raw.execute("ROLLBACK")
            # The file knows best where the log ends: a COMMIT that failed may still be in it.
            with contextlib.suppress(DBAPIError):
                self._tip = log.tip(Tx(conn, SYSTEM, self.dialect))
            logger.error("store.batch_failed", operations=len(batch) or 1, error=str(error))
            for operation in batch or [first]:
                operation.error = operation.error or _lost(error)
            return batch or [first], []
        self._tip = tip
        return batch, events

    def _savepoint(
        self, conn: Connection, raw: sqlite3.Connection, operation: _Operation, tip: tuple[int, str]
    ) -> list[Event]:
        """Run one body; its failure is its own unless SQLite gave up the whole transaction."""
        tx = Tx(conn, operation.caller, self.dialect)
        raw.execute("SAVEPOINT operation")
        try:
            operation.result = operation.body(tx)
            sealed = log.seal(tx.drafts, *tip)
            raw.execute("RELEASE operation")
        except BaseException as error:
            operation.error = _worded(error)
            if not raw.in_transaction:
                raise
            raw.execute("ROLLBACK TO operation")
            raw.execute("RELEASE operation")
            return []
        return sealed

    def _next(self) -> _Operation | None:
        try:
            operation = self._writes.get_nowait()
        except queue.Empty:
            return None
        if operation is None:
            self._writes.put(None)
        return operation

    def _read_loop(self, conn: Connection) -> None:
        with conn:
            raw = _raw(conn)
            while (operations := self._reads.get()) is not None:
                for operation in operations:
                    self._read(conn, raw, operation)
                self._answer(operations, [])

    def _read(self, conn: Connection, raw: sqlite3.Connection, operation: _Operation) -> None:
        try:
            raw.execute("BEGIN")
            try:
                operation.result = operation.body(Tx(conn, operation.caller, self.dialect))
            finally:
                if raw.in_transaction:
                    raw.execute("ROLLBACK")
        except BaseException as error:
            operation.error = _worded(error)

    def _answer(self, operations: list[_Operation], events: list[Event]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is gone, and with it everyone who waits
            self._loop.call_soon_threadsafe(self._settle, operations, events)

    def _settle(self, operations: list[_Operation], events: list[Event]) -> None:
        """On the event loop, after COMMIT: wake the waiters, then answer the callers."""
        self._bus.publish(events)
        for operation in operations:
            if operation.future.done():
                continue
            if operation.error is not None:
                operation.future.set_exception(operation.error)
            else:
                operation.future.set_result(operation.result)
