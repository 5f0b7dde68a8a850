"""Opening a store in a test, and looking at it from outside."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool

from quarterdeck.domain.callers import SYSTEM, Caller
from quarterdeck.domain.ids import new_id
from quarterdeck.domain.records import Task
from quarterdeck.events import GENESIS, Bus, Draft, Event
from quarterdeck.store import log, tasks
from quarterdeck.store.db import Database, open_database
from quarterdeck.store.tx import Tx

ANN = Caller("ann", "maintainer")
BOB = Caller("bob", "maintainer")


@contextlib.asynccontextmanager
async def opened(url: str, bus: Bus | None = None) -> AsyncIterator[Database]:
    db = open_database(url, bus or Bus())
    try:
        await db.start()
        yield db
    finally:
        await db.close()


def ask(url: str, question: str, **values: Any) -> list[tuple[Any, ...]]:
    """What a connection of its own sees."""
    engine = create_engine(url.replace("postgresql:", "postgresql+psycopg:"), poolclass=NullPool)
    with engine.connect() as connection:
        return [tuple(row) for row in connection.execute(text(question), values)]


def new_task(user_id: str | None = "ann", **fields: Any) -> Task:
    filled: dict[str, Any] = dict.fromkeys(Task.__slots__)
    filled |= {"id": new_id(), "user_id": user_id, "title": "t", "status": "pending", "priority": "medium"}
    filled |= {"metadata": {}, "created_at": 1, "updated_at": 1}
    filled |= {"task_type": "PAIR", "acceptance_criteria": []}
    return Task(**filled | fields)


def add(tx: Tx, task: Task | None = None) -> str:
    """A body that leaves one row and one event."""
    task = task or new_task()
    tasks.add(tx, task)
    tx.emit("task.created", task.id, task_id=task.id, user_id=task.user_id)
    return task.id


async def whole_log(db: Database) -> list[Event]:
    return await db.read(SYSTEM, log.after, 0, 1_000_000)


def is_chained(events: Sequence[Event]) -> bool:
    """Whether the numbers are 1, 2, 3, … and each hash follows from the row and the hash before it."""
    previous = GENESIS
    for number, event in enumerate(events, 1):
        fields = {name: getattr(event, name) for name in Event.__slots__ if name not in ("seq", "hash")}
        if event.seq != number or event != Draft(**fields).seal(number, previous):
            return False
        previous = event.hash
    return True


async def until(condition: Callable[[], bool | Awaitable[bool]]) -> None:
    """Wait for what must come; a test that waits in vain fails after a minute."""
    async with asyncio.timeout(60):
        while True:
            met = condition()
            if met if isinstance(met, bool) else await met:
                return
            await asyncio.sleep(0.01)
