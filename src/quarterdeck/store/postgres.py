"""PostgreSQL: a thread for each pooled connection, and one LISTEN connection that tails the event log."""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Concatenate, ParamSpec, TypeVar

import psycopg
import structlog
from sqlalchemy import create_engine, text
from sqlalchemy.engine import Connection, Engine, make_url
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from quarterdeck.domain.callers import SYSTEM, Caller
from quarterdeck.domain.errors import Unavailable
from quarterdeck.events import Bus
from quarterdeck.store import log
from quarterdeck.store.migrate import migrate
from quarterdeck.store.tx import Tx, with_arguments

P = ParamSpec("P")
T = TypeVar("T")

CHANNEL = "quarterdeck_events"
_CONNECTIONS = 12
_ATTEMPTS = 3
_RECHECK_SECONDS = 10.0
_RECONNECT_SECONDS = 0.5
_ORDER = 0x51444556
# A process that is stopped in mid-transaction must not hold up everybody else's writes for ever.
_OPTIONS = "-c jit=off -c idle_in_transaction_session_timeout=20000"
# Two transactions met: the loser is run again, and sees what the other wrote or removed.
_RETRIED = ("40001", "40P01", "23503", "23505")

logger = structlog.get_logger()


class Postgres:
    """The shared store. Any number of cores and workers may use one database."""

    dialect = "postgresql"

    def __init__(self, url: str, bus: Bus, loop: asyncio.AbstractEventLoop) -> None:
        self._url = make_url(url)
        self._bus = bus
        self._loop = loop
        self._engine: Engine = create_engine(
            self._url,
            pool_size=_CONNECTIONS + 1,  # the tail never waits for a writer
            max_overflow=0,
            pool_timeout=10,
            connect_args={"options": _OPTIONS, "connect_timeout": 5, "application_name": "quarterdeck"},
        )
        self._pool = ThreadPoolExecutor(_CONNECTIONS, thread_name_prefix="store")
        self._stop = threading.Event()
        self._tail: threading.Thread | None = None
        self._delivered = 0

    async def start(self) -> None:
        await self._in_thread(migrate, self._engine)
        self._delivered, _ = await self.read(SYSTEM, log.tip)
        self._tail = threading.Thread(target=self._follow, name="store-listen", daemon=True)
        self._tail.start()

    async def tx(
        self, caller: Caller, body: Callable[Concatenate[Tx, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        return await self._in_thread(self._write, caller, with_arguments(body, *args, **kwargs))

    async def read(
        self, caller: Caller, body: Callable[Concatenate[Tx, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        return await self._in_thread(self._snapshot, caller, with_arguments(body, *args, **kwargs))

    async def close(self) -> None:
        self._stop.set()
        await asyncio.to_thread(self._finish)

    def _finish(self) -> None:
        self._pool.shutdown()
        if self._tail is not None:
            # Without a server the tail is not waiting either.
            with contextlib.suppress(DBAPIError, PoolTimeout, Unavailable):
                self._write(SYSTEM, _ring)
            self._tail.join()
        self._engine.dispose()

    async def _in_thread(self, work: Callable[..., T], *args: Any) -> T:
        if self._stop.is_set():
            raise Unavailable("the database is closed")
        try:
            return await self._loop.run_in_executor(self._pool, work, *args)
        except (DBAPIError, PoolTimeout) as error:
            if not self._away(error):
                raise
            # The driver's text may carry host and user names: it goes to the log, not to the caller.
            logger.error("store.unavailable", error=str(error.__cause__ or error))
            raise Unavailable("the database cannot be reached", hint="try again in a moment") from error

    def _write(self, caller: Caller, body: Callable[[Tx], T]) -> T:
        for attempt in range(1, _ATTEMPTS + 1):
            committing = False
            try:
                with self._engine.connect() as conn, conn.begin() as transaction:
                    tx = Tx(conn, caller, self.dialect)
                    result = body(tx)
                    self._append(conn, tx)
                    committing = True
                    transaction.commit()
                return result
            except DBAPIError as error:
                # A lost COMMIT may have succeeded: only work that was certainly undone is done again.
                if committing and error.connection_invalidated:
                    logger.error("store.commit_lost", error=str(error.__cause__ or error))
                    raise Unavailable(
                        "the connection was lost while the change was committed",
                        hint="look whether it is in place before you try again",
                    ) from error
                if attempt == _ATTEMPTS or not self._again(error):
                    raise
        raise AssertionError("unreachable")

    def _snapshot(self, caller: Caller, body: Callable[[Tx], T]) -> T:
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                with self._engine.connect() as conn:
                    conn.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
                    return body(Tx(conn, caller, self.dialect))
            except DBAPIError as error:
                if attempt == _ATTEMPTS or not self._again(error):
                    raise
        raise AssertionError("unreachable")

    @staticmethod
    def _again(error: DBAPIError) -> bool:
        return error.connection_invalidated or getattr(error.orig, "sqlstate", None) in _RETRIED

    @staticmethod
    def _away(error: DBAPIError | PoolTimeout) -> bool:
        """Whether the server is at fault; any other error is a mistake in a statement."""
        return not isinstance(error, DBAPIError) or (
            error.connection_invalidated or isinstance(error, OperationalError | InterfaceError)
        )

    def _append(self, conn: Connection, tx: Tx) -> None:
        """Events come last and under one lock, so that their numbers have no gaps and no order but this."""
        if not tx.drafts:
            return
        conn.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _ORDER})
        log.append(tx, log.seal(tx.drafts, *log.tip(tx)))
        _ring(tx)

    def _follow(self) -> None:
        """Deliver every committed event, in order; after a lost connection, go on where it stopped."""
        dsn = self._url.set(drivername="postgresql").render_as_string(hide_password=False)
        while not self._stop.is_set():
            try:
                with psycopg.connect(dsn, autocommit=True, connect_timeout=5) as listening:
                    listening.execute(f"LISTEN {CHANNEL}")
                    self._deliver()
                    while not self._stop.is_set():
                        for _ in listening.notifies(timeout=_RECHECK_SECONDS, stop_after=1):
                            pass
                        self._deliver()
            except Exception as error:  # whatever it was, without this thread nobody is woken any more
                if not self._stop.is_set():
                    logger.warning("store.listen_lost", error=type(error).__name__)
                    self._stop.wait(_RECONNECT_SECONDS)

    def _deliver(self) -> None:
        while events := self._snapshot(SYSTEM, lambda tx: log.after(tx, self._delivered)):
            self._delivered = events[-1].seq
            with contextlib.suppress(RuntimeError):  # the loop is gone at the very end
                self._loop.call_soon_threadsafe(self._bus.publish, events)


def _ring(tx: Tx) -> None:
    """Wake the tail of every core once this transaction is committed."""
    tx.conn.execute(text(f"NOTIFY {CHANNEL}"))
