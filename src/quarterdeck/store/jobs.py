"""The queue. A worker holds a job by its id and attempt; what it writes later than that is refused."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from sqlalchemy import Select, bindparam, func, insert, select, text, update

from quarterdeck.domain.jobs import CLAIMABLE
from quarterdeck.domain.records import Job, as_dict
from quarterdeck.store.schema import jobs
from quarterdeck.store.tx import Shape, Tx, record, within

_INSERT = insert(jobs)


def add(tx: Tx, job: Job) -> None:
    tx.write(_INSERT, as_dict(job))


@cache
def _get(shape: Shape) -> Select[Any]:
    return select(jobs).where(jobs.c.id == bindparam("job_id"), *within(jobs, shape))


def get(tx: Tx, job_id: str) -> Job | None:
    """The caller's job of that id."""
    row = tx.one(_get(tx.shape), job_id=job_id)
    return None if row is None else record(Job, row)


def newest(tx: Tx, kind: str, count: int) -> list[Job]:
    """The caller's jobs of a kind, newest first."""
    statement = (
        select(jobs)
        .where(jobs.c.kind == kind, *within(jobs, tx.shape))
        .order_by(jobs.c.created_at.desc(), jobs.c.id.desc())
        .limit(count)
    )
    return [record(Job, row) for row in tx.all(statement)]


def latest(tx: Tx, kind: str, key: str) -> Job | None:
    """The newest job of the caller's own user under an idempotency key."""
    statement = (
        select(jobs)
        .where(
            jobs.c.kind == kind,
            jobs.c.idempotency_key == key,
            jobs.c.user_id.is_not_distinct_from(tx.caller.user_id),
        )
        .order_by(jobs.c.created_at.desc(), jobs.c.id.desc())
        .limit(1)
    )
    row = tx.one(statement)
    return None if row is None else record(Job, row)


def hold_key(tx: Tx, kind: str, key: str) -> None:
    """Let no other transaction make a job of this user under this key until this one has ended."""
    if tx.dialect == "postgresql":
        name = f"{tx.caller.user_id}\n{kind}\n{key}"
        tx.all(text("SELECT pg_advisory_xact_lock(hashtextextended(:name, 0))"), name=name)


def claim(tx: Tx, kind: str, worker: str, lease_until: int) -> Job | None:
    """Take the most urgent waiting job of a kind, of whatever user, for one attempt more."""
    waiting = (
        select(jobs)
        .where(jobs.c.kind == kind, jobs.c.state.in_(CLAIMABLE))
        .order_by(jobs.c.priority, jobs.c.created_at, jobs.c.id)
        .limit(1)
        .with_for_update(skip_locked=True)
    )
    row = tx.one(waiting)
    if row is None:
        return None
    job: Job = record(Job, row)
    values = {
        "state": "RUNNING",
        "attempt": job.attempt + 1,
        "worker": worker,
        "lease_until": lease_until,
        "started_at": job.started_at or tx.now,
    }
    return change(tx, job, values)


def held(tx: Tx, job_id: str, worker: str, attempt: int) -> Job | None:
    """The job, locked for this transaction, if that worker still holds it in that attempt."""
    statement = select(jobs).where(
        jobs.c.id == job_id,
        jobs.c.worker == worker,
        jobs.c.attempt == attempt,
        jobs.c.state == "RUNNING",
        *within(jobs, tx.shape),
    )
    row = tx.one(statement.with_for_update())
    return None if row is None else record(Job, row)


def extend(tx: Tx, job: Job, lease_until: int) -> None:
    """Set the lease of a job that `held` returned in this transaction."""
    tx.write(update(jobs).where(jobs.c.id == job.id), {"lease_until": lease_until})


def lapsed(tx: Tx, kind: str, before: int | None) -> Sequence[Job]:
    """Running jobs whose lease ended before a time, or all of them, locked for this transaction."""
    statement = select(jobs).where(jobs.c.kind == kind, jobs.c.state == "RUNNING")
    if before is not None:
        statement = statement.where(jobs.c.lease_until < before)
    return [record(Job, row) for row in tx.all(statement.with_for_update(skip_locked=True))]


def next_lapse(tx: Tx, kind: str) -> int | None:
    """When the first lease of a running job of a kind ends."""
    row = tx.one(
        select(func.min(jobs.c.lease_until).label("at")).where(jobs.c.kind == kind, jobs.c.state == "RUNNING")
    )
    return None if row is None or row.at is None else int(row.at)


def change(tx: Tx, job: Job, values: Mapping[str, Any]) -> Job:
    """Set the state and more of a job that was locked in this transaction."""
    fresh = {**values, "state_version": job.state_version + 1, "updated_at": max(tx.now, job.updated_at + 1)}
    tx.write(update(jobs).where(jobs.c.id == job.id), fresh)
    return Job(**{name: fresh.get(name, getattr(job, name)) for name in Job.__slots__})
