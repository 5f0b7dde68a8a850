"""Jobs as people look at them: what waits, what runs, what is over, and who is busy."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import func, select

from quarterdeck.domain.jobs import LIVE
from quarterdeck.domain.records import Job
from quarterdeck.store.schema import jobs, tasks
from quarterdeck.store.tx import Tx, record, within


@dataclass(frozen=True, slots=True)
class Load:
    """How much an agent has to do, for all users together."""

    running: int = 0
    waiting: int = 0


def live(tx: Tx, states: Sequence[str], count: int) -> list[Job]:
    """The caller's jobs in some states, in the order in which they are taken."""
    statement = (
        select(jobs)
        .where(jobs.c.state.in_(states), *within(jobs, tx.shape))
        .order_by(jobs.c.priority, jobs.c.created_at, jobs.c.id)
        .limit(count)
    )
    return [record(Job, row) for row in tx.all(statement)]


def over(tx: Tx, filters: Mapping[str, str], count: int) -> list[Job]:
    """The caller's jobs that have ended, the last to end first."""
    conditions = [jobs.c.state.not_in(LIVE), *within(jobs, tx.shape)]
    conditions += [jobs.c[name] == filters[name] for name in ("kind", "agent", "state") if name in filters]
    statement = (
        select(jobs).where(*conditions).order_by(jobs.c.finished_at.desc(), jobs.c.id.desc()).limit(count)
    )
    return [record(Job, row) for row in tx.all(statement)]


def titles_of(tx: Tx, ids: Sequence[str]) -> dict[str, str]:
    """The titles of the caller's tasks."""
    if not ids:
        return {}
    statement = select(tasks.c.id, tasks.c.title).where(tasks.c.id.in_(ids), *within(tasks, tx.shape))
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
