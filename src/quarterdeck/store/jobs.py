"""The queue. A worker holds a job by its id and attempt; what it writes later than that is refused."""

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from sqlalchemy import Select, bindparam, exists, func, insert, or_, select, text, update
from sqlalchemy.sql import ColumnElement

from quarterdeck.domain.ids import now_us
from quarterdeck.domain.jobs import CLAIMABLE, LIVE, PROMPT
from quarterdeck.domain.records import Job, as_dict
from quarterdeck.store.schema import agents, jobs, workers
from quarterdeck.store.tx import Shape, Tx, record, within

_INSERT = insert(jobs)
_CLOCK = text("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now")
_ORDER = (jobs.c.priority, jobs.c.created_at, jobs.c.id)
# Others may take what we looked at, time and again; who loses so often comes back with the next event.
_TRIES = 100


def clock(tx: Tx) -> int:
    """The time that leases and expiries are compared with: the database's own, whatever hosts think."""
    if tx.dialect != "postgresql":
        return now_us()
    row = tx.one(_CLOCK)
    return now_us() if row is None else int(row.now)


def add(tx: Tx, job: Job) -> None:
    tx.write(_INSERT, as_dict(job))


@cache
def _get(shape: Shape, lock: bool) -> Select[Any]:
    statement = select(jobs).where(jobs.c.id == bindparam("job_id"), *within(jobs, shape))
    return statement.with_for_update() if lock else statement


def get(tx: Tx, job_id: str, *, lock: bool = False) -> Job | None:
    """The caller's job of that id; `lock` holds the row until the transaction ends."""
    row = tx.one(_get(tx.shape, lock), job_id=job_id)
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


def costs_of(tx: Tx, session_id: str) -> list[float | None]:
    """What each prompt of a session cost, among the caller's own."""
    statement = select(jobs.c.cost_usd).where(
        jobs.c.kind == PROMPT,
        jobs.c.session_id == session_id,
        jobs.c.finished_at.is_not(None),
        *within(jobs, tx.shape),
    )
    return [row.cost_usd for row in tx.all(statement)]


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


def _count_live(kind: str, user: str | None) -> Select[Any]:
    # The function keeps the planner from the user's index, where every job lies that ever ended.
    own = func.coalesce(jobs.c.user_id, "") == (user or "")
    return select(func.count().label("n")).where(jobs.c.state.in_(LIVE), jobs.c.kind == kind, own)


def count_live(tx: Tx, kind: str) -> int:
    """How many jobs of a kind the caller's own user has that have not ended."""
    row = tx.one(_count_live(kind, tx.caller.user_id))
    return 0 if row is None else int(row.n)


def live_of_task(tx: Tx, task_id: str, kinds: Iterable[str]) -> list[Job]:
    """The jobs of a task that have not ended, oldest first."""
    statement = (
        select(jobs)
        .where(
            jobs.c.task_id == task_id,
            jobs.c.kind.in_(list(kinds)),
            jobs.c.state.in_(LIVE),
            *within(jobs, tx.shape),
        )
        .order_by(jobs.c.created_at, jobs.c.id)
    )
    return [record(Job, row) for row in tx.all(statement)]


def of_task(tx: Tx, task_id: str, count: int) -> tuple[list[Job], int]:
    """The newest jobs of a task, newest first, and how many it has had."""
    mine = (jobs.c.task_id == task_id, *within(jobs, tx.shape))
    newest = select(jobs).where(*mine).order_by(jobs.c.created_at.desc(), jobs.c.id.desc()).limit(count)
    total = tx.one(select(func.count().label("n")).where(*mine))
    return [record(Job, row) for row in tx.all(newest)], int(total.n) if total else 0


def claim(tx: Tx, kinds: Sequence[str], worker: str, lease_us: int, place: str | None = None) -> Job | None:
    """Take the most urgent waiting job that may run now, of whatever user, for one attempt more.

    An agent takes no more jobs than its limit over all workers, and a user's prompts run one at a time.
    """
    now, full, busy = clock(tx), _full_agents(tx), list[str | None]()
    for _ in range(_TRIES):
        waiting = [
            found
            for state in CLAIMABLE
            if (found := tx.one(_waiting(state, kinds, place, now, full, busy))) is not None
        ]
        if not waiting:
            return None
        first = min(waiting, key=lambda row: (row.priority, row.created_at, row.id))
        if first.kind == PROMPT:
            if not _prompt_admitted(tx, first.user_id):
                busy.append(first.user_id)
                continue
        elif first.agent is not None and not _agent_admitted(tx, first.agent):
            full.append(first.agent)
            continue
        row = tx.one(select(jobs).where(jobs.c.id == first.id, jobs.c.state.in_(CLAIMABLE)).with_for_update())
        if row is not None:
            return _taken(tx, record(Job, row), worker, now + lease_us)
    return None


def _taken(tx: Tx, job: Job, worker: str, lease_until: int) -> Job:
    values = {
        "state": "RUNNING",
        "attempt": job.attempt + 1,
        "worker": worker,
        "lease_until": lease_until,
        "started_at": job.started_at or tx.now,
    }
    return change(tx, job, values)


def _waiting(
    state: str,
    kinds: Sequence[str],
    place: str | None,
    now: int,
    full: Sequence[str],
    busy: Sequence[str | None],
) -> Select[Any]:
    """The first waiting job in one state: by that state's index, so that ended jobs cost nothing."""
    running = jobs.alias("running")
    conditions: list[ColumnElement[bool]] = [
        jobs.c.state == state,
        jobs.c.kind.in_(kinds),
        or_(jobs.c.place.is_(None), jobs.c.place == place),
        or_(jobs.c.expires_at.is_(None), jobs.c.expires_at > now),
    ]
    if full:
        conditions.append(or_(jobs.c.agent.is_(None), jobs.c.kind == PROMPT, jobs.c.agent.not_in(full)))
    if PROMPT in kinds:
        one_at_a_time = exists().where(
            running.c.state == "RUNNING",
            running.c.kind == PROMPT,
            running.c.user_id.is_not_distinct_from(jobs.c.user_id),
        )
        conditions.append(or_(jobs.c.kind != PROMPT, ~one_at_a_time))
        conditions += [or_(jobs.c.kind != PROMPT, jobs.c.user_id.is_distinct_from(user)) for user in busy]
    columns = (jobs.c.id, jobs.c.kind, jobs.c.agent, jobs.c.user_id, jobs.c.priority, jobs.c.created_at)
    return select(*columns).where(*conditions).order_by(*_ORDER).limit(1)


_COUNTED = (jobs.c.state == "RUNNING", jobs.c.kind != PROMPT)


def _full_agents(tx: Tx) -> list[str]:
    statement = (
        select(agents.c.id)
        .join(jobs, jobs.c.agent == agents.c.id)
        .where(*_COUNTED)
        .group_by(agents.c.id, agents.c.max_concurrent)
        .having(func.count() >= agents.c.max_concurrent)
    )
    return [row.id for row in tx.all(statement)]


def _agent_admitted(tx: Tx, agent: str) -> bool:
    """Hold the agent's row, so that no other worker counts meanwhile, and count again."""
    limit = tx.one(select(agents.c.max_concurrent).where(agents.c.id == agent).with_for_update())
    if limit is None:
        return True
    running = tx.one(select(func.count().label("n")).where(*_COUNTED, jobs.c.agent == agent))
    return running is None or bool(running.n < limit.max_concurrent)


def _prompt_admitted(tx: Tx, user: str | None) -> bool:
    if tx.dialect == "postgresql":
        name = f"prompt of {user}"
        tx.all(text("SELECT pg_advisory_xact_lock(hashtextextended(:name, 0))"), name=name)
    running = (jobs.c.state == "RUNNING", jobs.c.kind == PROMPT, jobs.c.user_id.is_not_distinct_from(user))
    return tx.one(select(jobs.c.id).where(*running).limit(1)) is None


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


def extend(tx: Tx, job: Job, lease_us: int) -> None:
    """Renew the lease of a job that `held` returned in this transaction."""
    tx.write(update(jobs).where(jobs.c.id == job.id), {"lease_until": clock(tx) + lease_us})


def extend_all(tx: Tx, worker: str, lease_us: int) -> set[tuple[str, int]]:
    """Renew the lease of all that a worker runs; which attempts of which jobs these are."""
    running = (jobs.c.worker == worker, jobs.c.state == "RUNNING")
    tx.write(update(jobs).where(*running), {"lease_until": clock(tx) + lease_us})
    return {(row.id, row.attempt) for row in tx.all(select(jobs.c.id, jobs.c.attempt).where(*running))}


def lapsed(tx: Tx, kinds: Sequence[str], *, everyone: bool = False) -> Sequence[Job]:
    """Running jobs whose lease has ended, or all that run, locked for this transaction."""
    statement = select(jobs).where(jobs.c.kind.in_(kinds), jobs.c.state == "RUNNING")
    if not everyone:
        statement = statement.where(jobs.c.lease_until < clock(tx))
    return [record(Job, row) for row in tx.all(statement.with_for_update(skip_locked=True))]


def left_behind(tx: Tx, kinds: Sequence[str], place: str, alive: Iterable[str]) -> list[Job]:
    """What earlier workers of a place were running."""
    of_place = select(workers.c.id).where(workers.c.place == place, workers.c.id.not_in(list(alive)))
    statement = select(jobs).where(
        jobs.c.kind.in_(kinds), jobs.c.state == "RUNNING", jobs.c.worker.in_(of_place)
    )
    return [record(Job, row) for row in tx.all(statement)]


def overdue(tx: Tx, kinds: Sequence[str]) -> list[Job]:
    """Waiting jobs whose time to start has passed, locked for this transaction."""
    statement = select(jobs).where(
        jobs.c.state.in_(CLAIMABLE), jobs.c.kind.in_(kinds), jobs.c.expires_at <= clock(tx)
    )
    return [record(Job, row) for row in tx.all(statement.with_for_update(skip_locked=True))]


def next_lapse(tx: Tx, kinds: Sequence[str]) -> int | None:
    """Microseconds until the first lease of a running job ends."""
    return _until(tx, select(func.min(jobs.c.lease_until).label("at")), kinds, ["RUNNING"])


def next_expiry(tx: Tx, kinds: Sequence[str]) -> int | None:
    """Microseconds until the first waiting job must have started."""
    return _until(tx, select(func.min(jobs.c.expires_at).label("at")), kinds, CLAIMABLE)


def _until(tx: Tx, first: Select[Any], kinds: Sequence[str], states: Sequence[str]) -> int | None:
    row = tx.one(first.where(jobs.c.state.in_(states), jobs.c.kind.in_(kinds)))
    return None if row is None or row.at is None else int(row.at) - clock(tx)


def change(tx: Tx, job: Job, values: Mapping[str, Any]) -> Job:
    """Set the state and more of a job that was locked in this transaction."""
    fresh = {**values, "state_version": job.state_version + 1, "updated_at": max(tx.now, job.updated_at + 1)}
    tx.write(update(jobs).where(jobs.c.id == job.id), fresh)
    return Job(**{name: fresh.get(name, getattr(job, name)) for name in Job.__slots__})
