"""Tasks and their transitions."""

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import Any

from sqlalchemy import ColumnElement, Select, bindparam, delete, insert, or_, select, tuple_, update

from quarterdeck.domain.records import Task, Transition, as_dict
from quarterdeck.domain.states import STATUSES
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


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which tasks a list is to hold; None and empty mean all."""

    project_id: str | None = None
    statuses: Sequence[str] = ()
    excluded: Sequence[str] = ()
    plan_id: str | None = None
    agent: str | None = None
    priority: str | None = None
    text: str | None = None


def page(tx: Tx, wanted: Wanted, before: tuple[int, str] | None, count: int) -> list[Task]:
    """The caller's tasks that come after `before` when the newest is first, at most `count`.

    Each state is read on its own, in the order of an index, and the states are merged: so a page costs
    the same however many tasks there are.
    """
    conditions = _conditions(tx, wanted)
    if before is not None:
        conditions.append(tuple_(tasks.c.created_at, tasks.c.id) < tuple_(*before))
    of_project = wanted.project_id is not None or tx.caller.project_id is not None
    states = wanted.statuses or (STATUSES if of_project else ())
    found = [
        tx.all(_newest_ids([*conditions, *(() if state is None else (tasks.c.status == state,))], count))
        for state in (states or (None,))
    ]
    merged = heapq.merge(*found, key=lambda row: (row.created_at, row.id), reverse=True)
    ids = [row.id for row in islice(merged, count)]
    if not ids:
        return []
    rows = {row.id: record(Task, row) for row in tx.all(select(tasks).where(tasks.c.id.in_(ids)))}
    return [rows[each] for each in ids]


def _newest_ids(conditions: Sequence[ColumnElement[bool]], count: int) -> Select[Any]:
    return (
        select(tasks.c.created_at, tasks.c.id)
        .where(*conditions)
        .order_by(tasks.c.created_at.desc(), tasks.c.id.desc())
        .limit(count)
    )


def _conditions(tx: Tx, wanted: Wanted) -> list[ColumnElement[bool]]:
    conditions = within(tasks, tx.shape)
    if wanted.project_id is not None:
        conditions.append(tasks.c.project_id == wanted.project_id)
    if wanted.excluded:
        conditions.append(tasks.c.id.not_in(wanted.excluded))
    if wanted.plan_id is not None:
        conditions.append(tasks.c.plan_id == wanted.plan_id)
    if wanted.agent is not None:
        conditions.append(or_(tasks.c.assigned_agent == wanted.agent, tasks.c.agent_backend == wanted.agent))
    if wanted.priority is not None:
        conditions.append(tasks.c.priority == wanted.priority)
    if wanted.text is not None:
        columns = (tasks.c.title, tasks.c.description)
        conditions.append(or_(*(column.icontains(wanted.text, autoescape=True) for column in columns)))
    return conditions


def some(tx: Tx, task_ids: Sequence[str]) -> dict[str, Task]:
    """Those of the ids that are tasks of the caller."""
    if not task_ids:
        return {}
    mine = select(tasks).where(tasks.c.id.in_(task_ids), *within(tasks, tx.shape, by_ids=True))
    return {row.id: record(Task, row) for row in tx.all(mine)}


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
