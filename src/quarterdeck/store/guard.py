"""The database behind its circuit breaker: while it is away, callers hear so at once."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Concatenate, ParamSpec, TypeVar

from quarterdeck.domain.breaker import Breaker
from quarterdeck.domain.callers import SYSTEM, Caller
from quarterdeck.domain.errors import QuarterdeckError, Unavailable
from quarterdeck.store import log
from quarterdeck.store.db import Database
from quarterdeck.store.tx import Tx

P = ParamSpec("P")
T = TypeVar("T")

_HEALTH_SECONDS = 1.0


class Guarded:
    """A database that refuses at once after repeated failures, until a health check or a trial succeeds."""

    def __init__(self, database: Database, breaker: Breaker) -> None:
        self._database = database
        self._breaker = breaker
        self._checking: asyncio.Task[None] | None = None
        self.dialect = database.dialect

    async def start(self) -> None:
        await self._database.start()

    async def close(self) -> None:
        if self._checking is not None:
            self._checking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._checking
        await self._database.close()

    async def tx(
        self, caller: Caller, body: Callable[Concatenate[Tx, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        self._breaker.enter()
        return await self._heard(self._database.tx(caller, body, *args, **kwargs))

    async def read(
        self, caller: Caller, body: Callable[Concatenate[Tx, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        self._breaker.enter()
        return await self._heard(self._database.read(caller, body, *args, **kwargs))

    async def _heard(self, call: Awaitable[T]) -> T:
        """Pass the outcome on, and to the breaker: only a database that is away is a failure of it."""
        try:
            result = await call
        except Unavailable:
            self._breaker.failed()
            if self._breaker.state != "closed" and self._checking is None:
                self._checking = asyncio.create_task(self._check(), name="database-health")
            raise
        except QuarterdeckError:
            self._breaker.succeeded()
            raise
        self._breaker.succeeded()
        return result

    async def _check(self) -> None:
        """Look after the database while the breaker is open, so that nobody waits longer than it is away."""
        while self._breaker.state != "closed":
            await asyncio.sleep(_HEALTH_SECONDS)
            with contextlib.suppress(Unavailable):
                await self._database.read(SYSTEM, log.tip)
                self._breaker.reset()
        self._checking = None
