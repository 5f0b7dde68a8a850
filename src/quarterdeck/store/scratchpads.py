"""Scratchpads: the long notes of a task, apart from its row."""

from collections.abc import Sequence

from sqlalchemy import insert, select, update

from quarterdeck.store.schema import scratchpads, tasks
from quarterdeck.store.tasks import seen
from quarterdeck.store.tx import Tx, within


def get(tx: Tx, task_id: str) -> str:
    """The notes of the caller's task; empty without any."""
    statement = select(scratchpads.c.content).where(scratchpads.c.task_id.in_(seen(tx.shape)))
    row = tx.one(statement, task_id=task_id)
    return "" if row is None else str(row.content)


def of(tx: Tx, task_ids: Sequence[str]) -> dict[str, str]:
    """The notes of several of the caller's tasks, where there are any."""
    if not task_ids:
        return {}
    mine = select(tasks.c.id).where(tasks.c.id.in_(task_ids), *within(tasks, tx.shape, by_ids=True))
    statement = select(scratchpads.c.task_id, scratchpads.c.content).where(scratchpads.c.task_id.in_(mine))
    return {row.task_id: row.content for row in tx.all(statement)}


def put(tx: Tx, task_id: str, content: str) -> None:
    """Replace the notes of the caller's task."""
    values = {"content": content, "updated_at": tx.now}
    mine = select(tasks.c.id).where(tasks.c.id == task_id, *within(tasks, tx.shape))
    if not tx.write(update(scratchpads).where(scratchpads.c.task_id.in_(mine)), values) and tx.one(mine):
        tx.write(insert(scratchpads), {"task_id": task_id, **values})
