"""The database behind its circuit breaker: while it is away, callers hear so at once."""

from collections.abc import Awaitable, Callable
from typing import Concatenate, ParamSpec, TypeVar

from quarterdeck.domain.breaker import Breaker
from quarterdeck.domain.callers import Caller
from quarterdeck.domain.errors import QuarterdeckError, Unavailable
from quarterdeck.store.db import Database
from quarterdeck.store.tx import Tx

P = ParamSpec("P")
T = TypeVar("T")


class Guarded:
    """A database that refuses at once after repeated failures, until a trial has succeeded."""

    def __init__(self, database: Database, breaker: Breaker) -> None:
        self._database = database
        self._breaker = breaker
        self.dialect = database.dialect

    async def start(self) -> None:
        await self._database.start()

    async def close(self) -> None:
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
            raise
        except QuarterdeckError:
            self._breaker.succeeded()
            raise
        self._breaker.succeeded()
        return result
