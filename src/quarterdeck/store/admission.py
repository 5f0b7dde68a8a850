"""Why a job still waits: what the next claim will find full."""

from sqlalchemy import func, select

from quarterdeck.domain.jobs import PROMPT
from quarterdeck.domain.records import Job
from quarterdeck.store.jobs import clock
from quarterdeck.store.schema import agents, jobs, workers
from quarterdeck.store.tx import Tx

_GONE_US = 300_000_000


def staffed(tx: Tx, place: str) -> bool:
    """Whether a worker of this place was there a few minutes ago."""
    alive = (workers.c.place == place, workers.c.seen_at > clock(tx) - _GONE_US)
    return tx.one(select(workers.c.id).where(*alive).limit(1)) is not None


def waiting_for(tx: Tx, job: Job) -> str | None:
    """What a waiting job waits for, in words without other users' names; None when it is next."""
    running = (jobs.c.state == "RUNNING", jobs.c.kind != PROMPT)
    if job.agent is not None:
        limit = tx.one(select(agents.c.max_concurrent).where(agents.c.id == job.agent))
        busy = tx.one(select(func.count().label("n")).where(*running, jobs.c.agent == job.agent))
        if limit is not None and busy is not None and busy.n >= limit.max_concurrent:
            return f"{job.agent} runs {busy.n} jobs, which is its limit"
    places = select(func.count().label("n"), func.sum(workers.c.concurrency).label("room"))
    if job.place is not None:
        places = places.where(workers.c.place == job.place)
    found = tx.one(places)
    if found is None or not found.n or (job.place is not None and not staffed(tx, job.place)):
        return "no worker runs where the job belongs"
    here = select(workers.c.id)
    if job.place is not None:
        here = here.where(workers.c.place == job.place)
    taken = tx.one(select(func.count().label("n")).where(*running, jobs.c.worker.in_(here)))
    if taken is not None and taken.n >= int(found.room or 0):
        return f"all {found.room} places for jobs are taken"
    return None
