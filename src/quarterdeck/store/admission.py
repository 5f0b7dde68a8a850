"""Why a job still waits: what the next claim will find full, or that nobody is there to claim it."""

from sqlalchemy import func, select

from quarterdeck.domain.jobs import PROMPT, Waiting
from quarterdeck.domain.records import Job
from quarterdeck.store.jobs import clock
from quarterdeck.store.schema import agents, jobs, workers
from quarterdeck.store.tx import Tx

_GONE_US = 300_000_000


def staffed(tx: Tx, place: str) -> bool:
    """Whether a worker of this place was there a few minutes ago."""
    alive = (workers.c.place == place, workers.c.seen_at > clock(tx) - _GONE_US)
    return tx.one(select(workers.c.id).where(*alive).limit(1)) is not None


def waiting_for(tx: Tx, job: Job, patience_us: int) -> Waiting | None:
    """What a waiting job waits for; None when it is next.

    A worker that was not heard of for `patience_us` is gone.
    """
    running = (jobs.c.state == "RUNNING", jobs.c.kind != PROMPT)
    if job.agent is not None:
        limit = tx.one(select(agents.c.max_concurrent).where(agents.c.id == job.agent))
        busy = tx.one(select(func.count().label("n")).where(*running, jobs.c.agent == job.agent))
        if limit is not None and busy is not None and busy.n >= limit.max_concurrent:
            return Waiting(f"{job.agent} runs {busy.n} jobs, which is its limit")
    here = [workers.c.seen_at > clock(tx) - patience_us]
    if job.place is not None:
        here.append(workers.c.place == job.place)
    found = tx.one(select(func.sum(workers.c.concurrency).label("room")).where(*here))
    room = int(found.room or 0) if found else 0
    if not room:
        return Waiting("no worker runs jobs where it belongs", missing=True)
    ours = select(workers.c.id).where(*here)
    taken = tx.one(select(func.count().label("n")).where(*running, jobs.c.worker.in_(ours)))
    if taken is not None and taken.n >= room:
        return Waiting(f"all {room} places for jobs are taken")
    return None
