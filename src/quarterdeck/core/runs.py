"""The queue as people look at it: waiting, running, over; one job with what it left; cancel and retry."""

from collections.abc import Mapping
from dataclasses import dataclass

from quarterdeck.core import auto, queue, relay
from quarterdeck.core.context import Core
from quarterdeck.domain.callers import Caller
from quarterdeck.domain.errors import Conflict, NotFound
from quarterdeck.domain.jobs import CLAIMABLE, LIVE
from quarterdeck.domain.jobspec import parse_spec
from quarterdeck.domain.records import Job, JobArtifact, WorkerRow
from quarterdeck.store import artifacts, jobs, workers
from quarterdeck.store import runs as rows
from quarterdeck.store.runs import Load
from quarterdeck.store.tx import Tx

FILTERS = ("kind", "agent", "state")
_SHOWN = 200


@dataclass(frozen=True, slots=True)
class Overview:
    """The caller's jobs, and the titles of their tasks by id."""

    waiting: list[Job]
    running: list[Job]
    over: list[Job]
    titles: dict[str, str]


@dataclass(frozen=True, slots=True)
class JobView:
    """A job with the title of its task and the names, sizes and digests of its files."""

    job: Job
    title: str | None
    files: dict[str, tuple[int, str]]


async def overview(core: Core, caller: Caller, filters: Mapping[str, str]) -> Overview:
    def body(tx: Tx) -> Overview:
        waiting, running = rows.live(tx, CLAIMABLE, _SHOWN), rows.live(tx, ("RUNNING",), _SHOWN)
        over = rows.over(tx, filters, _SHOWN)
        ids = {job.task_id for job in (*waiting, *running, *over) if job.task_id}
        return Overview(waiting, running, over, rows.titles_of(tx, sorted(ids)))

    return await core.db.read(caller, body)


async def of_task(core: Core, caller: Caller, task_id: str) -> list[Job]:
    """The jobs of a task, newest first."""
    return (await core.db.read(caller, jobs.of_task, task_id, 50))[0]


async def get(core: Core, caller: Caller, job_id: str) -> JobView:
    def body(tx: Tx) -> JobView:
        job = jobs.get(tx, job_id)
        if job is None:
            raise NotFound(f"job {job_id} not found", field="job_id")
        titles = rows.titles_of(tx, [job.task_id] if job.task_id else [])
        return JobView(job, titles.get(job.task_id or ""), artifacts.names_of(tx, job_id))

    return await core.db.read(caller, body)


async def artifact(core: Core, caller: Caller, job_id: str, name: str) -> JobArtifact:
    found = await core.db.read(caller, artifacts.get, job_id, name)
    if found is None:
        raise NotFound(f"job {job_id} has no file {name[:100]!r}", field="name")
    return found


async def cancel(core: Core, caller: Caller, job_id: str) -> Job:
    """End a job that has not ended; Conflict when it had."""

    def body(tx: Tx) -> Job:
        job = jobs.get(tx, job_id)
        if job is None:
            raise NotFound(f"job {job_id} not found", field="job_id")
        ended = queue.cancel(tx, job, f"Cancelled by {caller.actor}.")
        if ended is None:
            raise Conflict(f"the job is {job.state.lower()} already", field="job_id")
        return ended

    return await core.db.tx(caller, body)


async def retry(core: Core, caller: Caller, job_id: str) -> Job:
    """The same work once more, as a new job; Conflict while the old one is not over."""
    job = await queue.get(core, caller, job_id)
    if job.state in LIVE:
        raise Conflict(f"the job is {job.state.lower()}", field="job_id", hint="cancel it first")
    if job.kind == auto.KIND and job.task_id is not None:
        view, _ = await auto.start(core, caller, job.task_id, agent=job.agent, timeout_s=job.timeout_s)
        return view.job
    if job.kind != relay.KIND:
        raise Conflict(f"a {job.kind} job is not run again", field="job_id", hint="ask for the work anew")
    await relay.check_path(core, caller, parse_spec(job.spec))

    def body(tx: Tx) -> Job:
        queue.check_room(tx, relay.KIND, core.settings.relay.max_queued)
        return queue.submit(
            tx,
            kind=job.kind,
            spec=job.spec,
            agent=job.agent,
            priority=job.priority,
            project_id=job.project_id,
            ttl_s=job.spec["execution"]["ttlS"],
            timeout_s=job.timeout_s,
            place=job.place,
            user_id=job.user_id,
        )

    return await core.db.tx(caller, body)


async def load(core: Core, caller: Caller) -> tuple[dict[str, Load], list[WorkerRow]]:
    """How busy each agent is, and the workers with their last heartbeat."""
    return await core.db.read(caller, lambda tx: (rows.load(tx), workers.listing(tx)))
