"""Who works on the queue, and how many jobs each agent takes at once."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import delete, insert, select, update
from sqlalchemy.dialects import postgresql, sqlite

from quarterdeck.domain.records import WorkerRow, as_dict
from quarterdeck.store.schema import agents, workers
from quarterdeck.store.tx import Tx, record


def _upsert(fresh: Any) -> Any:
    return fresh.on_conflict_do_update(
        index_elements=["id"], set_={"max_concurrent": fresh.excluded.max_concurrent}
    )


_SET_LIMIT = {
    "sqlite": _upsert(sqlite.insert(agents)),
    "postgresql": _upsert(postgresql.insert(agents)),
}


def set_limits(tx: Tx, limits: Mapping[str, int]) -> None:
    """How many jobs each agent takes at once, over all workers. Others stay: another core may have them."""
    tx.write(_SET_LIMIT[tx.dialect], [{"id": agent, "max_concurrent": n} for agent, n in limits.items()])


def add(tx: Tx, worker: WorkerRow) -> None:
    """Tell of a worker that starts; telling it twice changes nothing."""
    remove(tx, worker.id)
    tx.write(insert(workers), as_dict(worker))


def seen(tx: Tx, worker: str, at: int) -> None:
    tx.write(update(workers).where(workers.c.id == worker), {"seen_at": at})


def resize(tx: Tx, worker: str, concurrency: int) -> None:
    tx.write(update(workers).where(workers.c.id == worker), {"concurrency": concurrency})


def remove(tx: Tx, worker: str) -> None:
    tx.write(delete(workers).where(workers.c.id == worker), {})


def remove_of_place(tx: Tx, place: str, alive: list[str]) -> None:
    """Forget the workers of a place but those that live."""
    tx.write(delete(workers).where(workers.c.place == place, workers.c.id.not_in(alive)), {})


def host_of(tx: Tx, place: str) -> str | None:
    """The host of the worker that told of itself last in a place."""
    newest = select(workers.c.host).where(workers.c.place == place).order_by(workers.c.started_at.desc())
    row = tx.one(newest.limit(1))
    return None if row is None else str(row.host)


def listing(tx: Tx) -> list[WorkerRow]:
    """Every worker that told of itself, oldest first."""
    rows = tx.all(select(workers).order_by(workers.c.started_at, workers.c.id))
    return [record(WorkerRow, row) for row in rows]
