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
from quarterdeck.domain.errors import QuarterdeckError, Unavailable
from quarterdeck.events import Bus, Event
from quarterdeck.store import log
from quarterdeck.store.migrate import migrate
from quarterdeck.store.tx import Tx

P = ParamSpec("P")
T = TypeVar("T")

_READERS = 3
_BATCH = 256
_BATCH_SECONDS = 0.02

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
        connect_args={"check_same_thread": False, "timeout": 30},
    )

    @event.listens_for(engine, "connect")
    def _pragmas(dbapi: sqlite3.Connection, _record: object) -> None:
        for pragma in (
            "journal_mode=WAL",
            "synchronous=FULL",
            "foreign_keys=ON",
            "temp_store=MEMORY",
            "cache_size=-16000",
        ):
            dbapi.execute(f"PRAGMA {pragma}").close()

    return engine


def _raw(conn: Connection) -> sqlite3.Connection:
    raw = conn.connection.dbapi_connection
    if not isinstance(raw, sqlite3.Connection):
        raise TypeError("the connection is closed")
    return raw


def _worded(error: BaseException) -> BaseException:
    """What the caller of a failed body gets: our own errors as they are, the driver's as Unavailable."""
    if isinstance(error, QuarterdeckError):
        return error
    cause = error.orig if isinstance(error, DBAPIError) else error
    if isinstance(cause, sqlite3.OperationalError | sqlite3.DatabaseError) and not isinstance(
        cause, sqlite3.IntegrityError | sqlite3.ProgrammingError
    ):
        unavailable = Unavailable(f"the database refused: {cause}", hint="check the disk, then try again")
        unavailable.__cause__ = error
        return unavailable
    return error


class Sqlite:
    """The embedded store. One process owns the file; the data directory's lock sees to that."""

    dialect = "sqlite"

    def __init__(self, path: Path, bus: Bus, loop: asyncio.AbstractEventLoop) -> None:
        self._path = path
        self._bus = bus
        self._loop = loop
        self._writes: queue.SimpleQueue[_Operation | None] = queue.SimpleQueue()
        self._reads: queue.SimpleQueue[_Operation | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._seq, self._hash = 0, ""

    async def start(self) -> None:
        engine = _engine(self._path)
        try:
            self._seq, self._hash = await asyncio.to_thread(self._prepare, engine)
        finally:
            engine.dispose()
        self._threads = [threading.Thread(target=self._write_loop, name="store-writer", daemon=True)]
        self._threads += [
            threading.Thread(target=self._read_loop, name=f"store-reader-{n}", daemon=True)
            for n in range(_READERS)
        ]
        for thread in self._threads:
            thread.start()

    def _prepare(self, engine: Engine) -> tuple[int, str]:
        migrate(engine)
        with engine.connect() as conn:
            return log.tip(Tx(conn, SYSTEM, self.dialect))

    async def tx(
        self, caller: Caller, body: Callable[Concatenate[Tx, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        return await self._submit(self._writes, caller, lambda tx: body(tx, *args, **kwargs))

    async def read(
        self, caller: Caller, body: Callable[Concatenate[Tx, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        return await self._submit(self._reads, caller, lambda tx: body(tx, *args, **kwargs))

    def _submit(
        self, to: "queue.SimpleQueue[_Operation | None]", caller: Caller, body: Callable[[Tx], T]
    ) -> "asyncio.Future[T]":
        if not self._threads:
            raise Unavailable("the database is closed")
        future: asyncio.Future[T] = self._loop.create_future()
        to.put(_Operation(caller, body, future))
        return future

    async def close(self) -> None:
        threads, self._threads = self._threads, []
        self._writes.put(None)
        for _ in range(_READERS):
            self._reads.put(None)
        for thread in threads:
            await asyncio.to_thread(thread.join)

    def _write_loop(self) -> None:
        engine = _engine(self._path)
        with engine.connect() as conn:
            raw = _raw(conn)
            while (first := self._writes.get()) is not None:
                done, events = self._commit(conn, raw, first)
                self._loop.call_soon_threadsafe(self._settle, done, events)
        engine.dispose()

    def _commit(
        self, conn: Connection, raw: sqlite3.Connection, first: _Operation
    ) -> tuple[list[_Operation], list[Event]]:
        """Run `first` and whatever else is waiting as one transaction on disk."""
        batch: list[_Operation] = []
        events: list[Event] = []
        try:
            raw.execute("BEGIN IMMEDIATE")
            ledger = Tx(conn, SYSTEM, self.dialect)
            deadline = time.monotonic() + _BATCH_SECONDS
            operation: _Operation | None = first
            while operation is not None:
                batch.append(operation)
                drafts = self._savepoint(conn, raw, operation)
                ledger.drafts += drafts
                operation = None
                if len(batch) < _BATCH and time.monotonic() < deadline:
                    operation = self._next(self._writes)
            events = log.append(ledger, ledger.drafts, self._seq, self._hash)
            raw.execute("COMMIT")
        except BaseException as error:  # the batch is lost as a whole, and every caller is told
            with contextlib.suppress(sqlite3.Error):
                if raw.in_transaction:
                    raw.execute("ROLLBACK")
            logger.error("store.batch_failed", operations=len(batch) or 1, error=str(error))
            for operation in batch or [first]:
                operation.result, operation.error = None, operation.error or _worded(error)
            return batch or [first], []
        if events:
            self._seq, self._hash = events[-1].seq, events[-1].hash
        return batch, events

    def _savepoint(self, conn: Connection, raw: sqlite3.Connection, operation: _Operation) -> list[Any]:
        """Run one body; its failure is its own unless SQLite gave up the whole transaction."""
        tx = Tx(conn, operation.caller, self.dialect)
        raw.execute("SAVEPOINT operation")
        try:
            operation.result = operation.body(tx)
            raw.execute("RELEASE operation")
        except BaseException as error:
            if not raw.in_transaction:
                raise
            raw.execute("ROLLBACK TO operation")
            raw.execute("RELEASE operation")
            operation.error = _worded(error)
            return []
        return tx.drafts

    def _next(self, waiting: "queue.SimpleQueue[_Operation | None]") -> _Operation | None:
        try:
            operation = waiting.get_nowait()
        except queue.Empty:
            return None
        if operation is None:
            self._writes.put(None)
        return operation

    def _read_loop(self) -> None:
        engine = _engine(self._path)
        with engine.connect() as conn:
            raw = _raw(conn)
            raw.execute("PRAGMA query_only=ON")
            while (operation := self._reads.get()) is not None:
                try:
                    raw.execute("BEGIN")
                    operation.result = operation.body(Tx(conn, operation.caller, self.dialect))
                except BaseException as error:
                    operation.error = _worded(error)
                finally:
                    if raw.in_transaction:
                        raw.execute("ROLLBACK")
                self._loop.call_soon_threadsafe(self._settle, [operation], [])
        engine.dispose()

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
