"""What the rows say that other rows, or the disk, may contradict."""

from collections.abc import Sequence

from sqlalchemy import exists, func, select

from quarterdeck.domain.jobs import LIVE
from quarterdeck.domain.records import Job, Task
from quarterdeck.store.schema import jobs, tasks, transitions, worktrees
from quarterdeck.store.tx import Tx, record, within


def jobs_of_finished_tasks(tx: Tx, count: int) -> list[Job]:
    """AUTO jobs that wait or run although their task is completed or cancelled."""
    statement = (
        select(jobs)
        .join(tasks, tasks.c.id == jobs.c.task_id)
        .where(
            jobs.c.kind == "auto",
            jobs.c.state.in_(LIVE),
            tasks.c.status.in_(("completed", "cancelled")),
        )
        .limit(count)
    )
    return [record(Job, row) for row in tx.all(statement)]


def tasks_without_job(tx: Tx, count: int) -> list[Task]:
    """Tasks that the engine started and of which no job is left."""
    last = (
        select(func.max(transitions.c.created_at))
        .where(transitions.c.task_id == tasks.c.id)
        .correlate(tasks)
        .scalar_subquery()
    )
    started = exists().where(
        transitions.c.task_id == tasks.c.id,
        transitions.c.created_at == last,
        transitions.c.to_status == "in_progress",
        transitions.c.actor == "engine",
    )
    at_work = exists().where(jobs.c.task_id == tasks.c.id, jobs.c.kind == "auto", jobs.c.state.in_(LIVE))
    statement = select(tasks).where(tasks.c.status == "in_progress", started, ~at_work).limit(count)
    return [record(Task, row) for row in tx.all(statement)]


def live_jobs(tx: Tx, ids: Sequence[str]) -> set[str]:
    """Which of these jobs wait or run, as far as the caller sees them."""
    wanted = (jobs.c.id.in_(list(ids)), jobs.c.state.in_(LIVE), *within(jobs, tx.shape))
    return {row.id for row in tx.all(select(jobs.c.id).where(*wanted))}


def known_branches(tx: Tx) -> set[tuple[str, str]]:
    """Every branch that a worktree of whatever place is on, with its repository."""
    rows = tx.all(select(worktrees.c.repo_path, worktrees.c.branch))
    return {(row.repo_path, row.branch) for row in rows}
