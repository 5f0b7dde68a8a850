"""Jobs as people look at them: what waits, what runs, what is over, and who is busy."""

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import func, select

from quarterdeck.domain.jobs import KINDS, LIVE
from quarterdeck.domain.records import Job
from quarterdeck.store.schema import jobs, tasks
from quarterdeck.store.tx import Tx, record, within

_NEWEST: Final = 1000


@dataclass(frozen=True, slots=True)
class Load:
    """How much an agent has to do, for all users together."""

    running: int = 0
    waiting: int = 0


def live(tx: Tx, states: Sequence[str], count: int) -> list[Job]:
    """The caller's jobs in some states that are not final, in the order in which they are taken.

    Each state is read by its own index, where no job lies that has ended.
    """
    order = (jobs.c.priority, jobs.c.created_at, jobs.c.id)
    mine = select(jobs).where(*within(jobs, tx.shape)).order_by(*order).limit(count)
    found = [record(Job, row) for state in states for row in tx.all(mine.where(jobs.c.state == state))]
    return sorted(found, key=lambda job: (job.priority, job.created_at, job.id))[:count]


def over(tx: Tx, filters: Mapping[str, str], count: int) -> list[Job]:
    """The caller's jobs that have ended, the last to end first, among the newest thousand of each kind."""
    conditions = [jobs.c.state.not_in(LIVE), *within(jobs, tx.shape)]
    conditions += [jobs.c[name] == filters[name] for name in ("agent", "state") if name in filters]
    newest = (
        select(jobs.c.finished_at, jobs.c.id)
        .where(*conditions)
        .order_by(jobs.c.created_at.desc(), jobs.c.id.desc())
        .limit(_NEWEST)
    )
    kinds = [filters["kind"]] if "kind" in filters else KINDS
    found = [row for kind in kinds for row in tx.all(newest.where(jobs.c.kind == kind))]
    ids = [row.id for row in heapq.nlargest(count, found, key=lambda row: (row.finished_at or 0, row.id))]
    rows = {row.id: record(Job, row) for row in tx.all(select(jobs).where(jobs.c.id.in_(ids)))} if ids else {}
    return [rows[each] for each in ids]


def titles_of(tx: Tx, ids: Sequence[str]) -> dict[str, str]:
    """The titles of the caller's tasks."""
    if not ids:
        return {}
    statement = select(tasks.c.id, tasks.c.title).where(
        tasks.c.id.in_(ids), *within(tasks, tx.shape, by_ids=True)
    )
    return {row.id: row.title for row in tx.all(statement)}


def load(tx: Tx) -> dict[str, Load]:
    """What each agent runs and what waits for it: numbers alone, of all users."""
    statement = (
        select(jobs.c.agent, jobs.c.state, func.count().label("tally"))
        .where(jobs.c.state.in_(LIVE), jobs.c.agent.is_not(None))
        .group_by(jobs.c.agent, jobs.c.state)
    )
    found: dict[str, Load] = {}
    for row in tx.all(statement):
        known = found.get(row.agent, Load())
        if row.state == "RUNNING":
            found[row.agent] = Load(known.running + row.tally, known.waiting)
        else:
            found[row.agent] = Load(known.running, known.waiting + row.tally)
    return found
