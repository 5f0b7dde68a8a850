"""Tasks and their transitions."""

from collections.abc import Mapping
from functools import cache
from typing import Any

from sqlalchemy import Select, bindparam, delete, insert, select, update

from quarterdeck.domain.records import Task, Transition, as_dict
from quarterdeck.store.kept import kept
from quarterdeck.store.schema import projects, tasks, transitions
from quarterdeck.store.tx import Shape, Tx, record, within

_INSERT = kept(insert(tasks))
_INSERT_TRANSITION = kept(insert(transitions))


def seen(shape: Shape) -> Select[Any]:
    """The id `task_id` when it is a task of the caller, for the IN of rows that hang on it."""
    mine = (tasks.c.id == bindparam("task_id"), *within(tasks, shape))
    return select(tasks.c.id).where(*mine).correlate(None)


@cache
def _get(shape: Shape, lock: bool) -> Select[Any]:
    statement = select(tasks).where(tasks.c.id == bindparam("task_id"), *within(tasks, shape))
    return kept(statement.with_for_update() if lock else statement)


@cache
def _list(shape: Shape, filters: tuple[str, ...]) -> Select[Any]:
    return kept(
        select(tasks)
        .where(*within(tasks, shape), *(tasks.c[name] == bindparam(name) for name in filters))
        .order_by(tasks.c.created_at.desc(), tasks.c.id.desc())
        .limit(bindparam("count"))
    )


@cache
def _children(shape: Shape) -> Select[Any]:
    return (
        select(tasks)
        .where(tasks.c.parent_task_id.in_(seen(shape)), *within(tasks, shape, anchored=True))
        .order_by(tasks.c.created_at.desc(), tasks.c.id.desc())
        .limit(bindparam("count"))
    )


@cache
def _history(shape: Shape) -> Select[Any]:
    return kept(
        select(transitions)
        .where(transitions.c.task_id.in_(seen(shape)))
        .order_by(transitions.c.created_at, transitions.c.id)
    )


def add(tx: Tx, task: Task) -> None:
    tx.write(_INSERT, as_dict(task))


def get(tx: Tx, task_id: str, *, lock: bool = False) -> Task | None:
    """The caller's task of that id; `lock` holds the row until the transaction ends."""
    row = tx.one(_get(tx.shape, lock), task_id=task_id)
    return None if row is None else record(Task, row)


def change(tx: Tx, task_id: str, values: Mapping[str, Any]) -> None:
    """Set columns of the caller's task."""
    tx.write(update(tasks).where(tasks.c.id == task_id, *within(tasks, tx.shape)), values)


def remove(tx: Tx, task_id: str) -> None:
    """Delete the caller's task; its children lose their parent."""
    tx.write(delete(tasks).where(tasks.c.id == task_id, *within(tasks, tx.shape)), {})


def newest(tx: Tx, count: int, filters: Mapping[str, str]) -> list[Task]:
    """The caller's tasks, newest first, with each given column equal to its value."""
    return [record(Task, row) for row in tx.all(_list(tx.shape, tuple(filters)), count=count, **filters)]


def children(tx: Tx, task_id: str, count: int) -> list[Task]:
    """The subtasks of the caller's task, newest first."""
    return [record(Task, row) for row in tx.all(_children(tx.shape), task_id=task_id, count=count)]


def add_transition(tx: Tx, transition: Transition) -> None:
    tx.write(_INSERT_TRANSITION, as_dict(transition))


def history(tx: Tx, task_id: str) -> list[Transition]:
    """Every transition of the caller's task, oldest first."""
    return [record(Transition, row) for row in tx.all(_history(tx.shape), task_id=task_id)]


def project_exists(tx: Tx, project_id: str) -> bool:
    return (
        tx.one(select(projects.c.id).where(projects.c.id == project_id, *within(projects, tx.shape)))
        is not None
    )
