"""What the board's columns show: tasks by column and filter, with what their jobs cost."""

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from sqlalchemy import func, or_, select
from sqlalchemy.sql import ColumnElement

from quarterdeck.domain.jobs import LIVE
from quarterdeck.domain.records import Plan, Project, Task
from quarterdeck.store.schema import jobs, plans, projects, tasks
from quarterdeck.store.tx import Tx, record, within

_NEWEST: Final = 5000


@dataclass(frozen=True, slots=True)
class Runs:
    """What a task's jobs came to; `live` is the state of the one that is not over."""

    count: int
    cost_usd: float | None
    tokens: int
    live: str | None
    agent: str | None
    job_id: str | None
    started_at: int | None


def _matching(tx: Tx, filters: Mapping[str, str], *, by_ids: bool = False) -> list[ColumnElement[bool]]:
    """The conditions of the filters: project, plan, agent, priority, and a text in title or description."""
    conditions: list[ColumnElement[bool]] = [*within(tasks, tx.shape, by_ids=by_ids)]
    for name, column in (("project", "project_id"), ("plan", "plan_id"), ("priority", "priority")):
        if name in filters:
            conditions.append(tasks.c[column] == filters[name])
    if "agent" in filters:
        wanted = filters["agent"]
        conditions.append(or_(tasks.c.assigned_agent == wanted, tasks.c.agent_backend == wanted))
    if "text" in filters:
        position = func.instr if tx.dialect == "sqlite" else func.strpos
        words = func.lower(filters["text"])
        found = [position(func.lower(tasks.c[name]), words) > 0 for name in ("title", "description")]
        conditions.append(or_(*found, tasks.c.id == filters["text"]))
    return conditions


def in_column(
    tx: Tx, statuses: Sequence[str], filters: Mapping[str, str], count: int, after: int = 0
) -> list[Task]:
    """The caller's tasks in some statuses, newest first.

    Each status is read on its own, in the order of an index: what other columns hold costs nothing.
    """
    newest = (
        select(tasks.c.created_at, tasks.c.id)
        .where(*_matching(tx, filters))
        .order_by(tasks.c.created_at.desc(), tasks.c.id.desc())
        .limit(after + count)
    )
    found = [tx.all(newest.where(tasks.c.status == status)) for status in statuses]
    merged = heapq.merge(*found, key=lambda row: (row.created_at, row.id), reverse=True)
    ids = [row.id for row in islice(merged, after, after + count)]
    rows = {task.id: task for task in some(tx, ids, {})}
    return [rows[each] for each in ids]


def some(tx: Tx, ids: Sequence[str], filters: Mapping[str, str]) -> list[Task]:
    """Those of the caller's tasks that pass the filters."""
    statement = select(tasks).where(tasks.c.id.in_(ids), *_matching(tx, filters, by_ids=True))
    return [record(Task, row) for row in tx.all(statement)]


def tally(tx: Tx, filters: Mapping[str, str]) -> dict[str, int]:
    """How many of the caller's tasks are in each status."""
    statement = (
        select(tasks.c.status, func.count().label("tally"))
        .where(*_matching(tx, filters))
        .group_by(tasks.c.status)
    )
    return {row.status: row.tally for row in tx.all(statement)}


def runs_of(tx: Tx, ids: Sequence[str]) -> dict[str, Runs]:
    """What the jobs of the caller's tasks came to."""
    if not ids:
        return {}
    mine = (jobs.c.task_id.in_(ids), *within(jobs, tx.shape, by_ids=True))
    sums = (
        select(
            jobs.c.task_id,
            func.count().label("tally"),
            func.sum(jobs.c.cost_usd).label("cost"),
            func.sum(func.coalesce(jobs.c.input_tokens, 0) + func.coalesce(jobs.c.output_tokens, 0)).label(
                "tokens"
            ),
        )
        .where(*mine)
        .group_by(jobs.c.task_id)
    )
    running = (
        select(jobs.c.task_id, jobs.c.id, jobs.c.state, jobs.c.agent, jobs.c.started_at)
        .where(*mine, jobs.c.state.in_(LIVE))
        .order_by(jobs.c.created_at)
    )
    live: dict[str, Any] = {row.task_id: row for row in tx.all(running)}
    found = {}
    for row in tx.all(sums):
        job = live.get(row.task_id)
        found[row.task_id] = Runs(
            count=row.tally,
            cost_usd=row.cost,
            tokens=int(row.tokens or 0),
            live=job.state if job else None,
            agent=job.agent if job else None,
            job_id=job.id if job else None,
            started_at=job.started_at if job else None,
        )
    return found


def plans_by_id(tx: Tx, ids: Sequence[str]) -> dict[str, Plan]:
    """The caller's plans of these ids."""
    if not ids:
        return {}
    statement = select(plans).where(plans.c.id.in_(ids), *within(plans, tx.shape, by_ids=True))
    return {row.id: record(Plan, row) for row in tx.all(statement)}


def all_projects(tx: Tx, count: int) -> list[Project]:
    """The caller's projects by name."""
    statement = (
        select(projects)
        .where(*within(projects, tx.shape))
        .order_by(projects.c.name, projects.c.id)
        .limit(count)
    )
    return [record(Project, row) for row in tx.all(statement)]


def agents_named(tx: Tx, count: int) -> list[str]:
    """The agents that the caller's newest tasks name."""
    newest = (
        select(tasks.c.assigned_agent)
        .where(*within(tasks, tx.shape))
        .order_by(tasks.c.created_at.desc(), tasks.c.id.desc())
        .limit(_NEWEST)
        .subquery()
    )
    named = select(newest.c.assigned_agent).where(newest.c.assigned_agent.is_not(None)).distinct()
    return [row.assigned_agent for row in tx.all(named.order_by(newest.c.assigned_agent).limit(count))]
