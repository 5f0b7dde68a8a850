"""The queue of jobs that agents run: submit, claim, keep alive, end. Every state change is guarded.

A worker holds a job by its own id and the attempt; what it writes after it lost the job is refused.
"""

import asyncio
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from quarterdeck.core import tokens
from quarterdeck.core.context import Core
from quarterdeck.domain import callers
from quarterdeck.domain.callers import Caller
from quarterdeck.domain.errors import Conflict, Invalid, NotFound, QuarterdeckError, RateLimited
from quarterdeck.domain.jobs import KINDS, LIVE, WORKED, fingerprint, new_job_id
from quarterdeck.domain.records import Job, JobArtifact, WorkerRow
from quarterdeck.store import artifacts, jobs, workers
from quarterdeck.store.tx import Tx

SYSTEM = replace(callers.SYSTEM, tool="worker")
LOG = "logs.txt"
_SECOND = 1_000_000
_KEY_US = 24 * 3600 * _SECOND
_SUMMARY = 2000
_SHOWN = 500

# By kind: called in the transaction of a claim, and in the one that ends a job, however it ends.
# A start that is refused ends its job as failed; an end must not be refused, for the job could not end.
STARTING: dict[str, Callable[[Tx, Job], None]] = {}
ENDING: dict[str, Callable[[Tx, Job], None]] = {}


@dataclass(frozen=True, slots=True)
class File:
    """A file that a job leaves."""

    name: str
    media_type: str
    content: bytes


@dataclass(frozen=True, slots=True)
class Ending:
    """How a job ended. `reason` is a code; cost and tokens of None are unknown, not nothing."""

    state: Literal["SUCCEEDED", "FAILED", "CANCELED", "EXPIRED"]
    summary: str
    reason: str | None = None
    result: Mapping[str, Any] = field(default_factory=dict)
    files: Sequence[File] = ()
    cost_usd: float | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Claimed:
    """A job that a worker took, with the plaintext of the job's own token."""

    job: Job
    token: str = field(repr=False)


def submit(
    tx: Tx,
    *,
    kind: str,
    spec: dict[str, Any],
    agent: str | None,
    priority: int = 1,
    task_id: str | None = None,
    project_id: str | None = None,
    session_id: str | None = None,
    key: str | None = None,
    ttl_s: float | None = None,
    timeout_s: int | None = None,
    place: str | None = None,
    user_id: str | None = None,
    told: Mapping[str, Any] | None = None,
) -> Job:
    """Queue a job: priority 0 before 1 before 2. `ttl_s` is how long it may wait for its start.

    `place` names the data directory that its worker must have; `told` is more for the event.
    """
    job = Job(
        id=new_job_id(),
        user_id=user_id or tx.caller.user_id,
        kind=kind,
        task_id=task_id,
        spec=spec,
        state="QUEUED",
        state_version=1,
        priority=priority,
        attempt=0,
        idempotency_key=key,
        worker=None,
        lease_until=None,
        summary=None,
        reason_code=None,
        result=None,
        created_at=tx.now,
        updated_at=tx.now,
        started_at=None,
        finished_at=None,
        agent=agent,
        project_id=project_id,
        session_id=session_id,
        expires_at=None if ttl_s is None else jobs.clock(tx) + int(ttl_s * _SECOND),
        timeout_s=timeout_s,
        place=place,
    )
    if kind not in KINDS:
        raise Invalid(f"there is no kind of job {kind!r}", field="kind")
    jobs.add(tx, job)
    _emit(tx, "job.queued", job, **(told or {}))
    return job


def known(tx: Tx, kind: str, key: str, spec: Mapping[str, Any]) -> Job | None:
    """The job that a key of the caller's user stands for already; None when it makes a new one.

    A live job is returned whatever the specification. For 24 hours after it succeeded, the same one
    returns it and another is Invalid. Holds the key until the transaction ends.
    """
    jobs.hold_key(tx, kind, key)
    last = jobs.latest(tx, kind, key)
    if last is None or last.state in LIVE:
        return last
    if last.state != "SUCCEEDED" or (last.finished_at or 0) + _KEY_US < tx.now:
        return None
    if fingerprint(last.spec) != fingerprint(spec):
        raise Invalid(
            f"the idempotency key stands for {last.id}, which succeeded with another specification",
            field="idempotencyKey",
            hint="use another key, or submit the same specification",
        )
    return last


def check_room(tx: Tx, kind: str, limit: int) -> None:
    """Refuse with RateLimited when the caller's user has so many live jobs of a kind; 0 is no bound."""
    if limit == 0:
        return
    jobs.hold_key(tx, kind, "")
    if jobs.count_live(tx, kind) >= limit:
        raise RateLimited(
            f"there are {limit} {kind} jobs waiting or running",
            hint="wait for one to end, or cancel one",
            retry_after=1,
        )


def cancel(tx: Tx, job: Job, summary: str) -> Job | None:
    """End a job that has not ended; its process is told at once, wherever it runs. None when it had."""
    found = jobs.get(tx, job.id, lock=True)
    if found is None or found.state not in LIVE:
        return None
    return _end(tx, found, Ending("CANCELED", summary))


def finish(tx: Tx, job: Job, ending: Ending) -> Job:
    """End a job that its worker holds; Conflict when the worker lost it."""
    return _end(tx, held(tx, job), ending)


def held(tx: Tx, job: Job) -> Job:
    """The job as a worker claimed it, locked for this transaction; Conflict when it lost it meanwhile."""
    found = jobs.held(tx, job.id, job.worker or "", job.attempt)
    if found is None:
        raise Conflict(f"job {job.id} is not this worker's any more")
    return found


def progress(tx: Tx, job: Job, /, **data: Any) -> None:
    """Tell of a step of a job that its worker holds."""
    _emit(tx, "job.progress", held(tx, job), **{name: clean(value) for name, value in data.items()})


def steps(tx: Tx, job: Job, told: Sequence[Mapping[str, Any]]) -> None:
    """Tell of several, in their order."""
    for data in told:
        progress(tx, job, **data)


def add_files(tx: Tx, job: Job, files: Sequence[File]) -> None:
    """Keep what an attempt left whose job was ended by somebody else, unless another attempt came."""
    found = jobs.get(tx, job.id, lock=True)
    if found is None or found.state in LIVE or (found.worker, found.attempt) != (job.worker, job.attempt):
        return
    new = [file for file in files if artifacts.get(tx, job.id, file.name) is None]
    if new:
        _put(tx, found, new)
        _emit(tx, "job.progress", jobs.change(tx, found, {}), artifact=new[-1].name)


def claim(
    tx: Tx, kinds: Sequence[str], worker: str, lease_seconds: float, place: str | None
) -> Claimed | None:
    """Take the most urgent job that may run; its token is minted and older ones end in the same breath."""
    job = jobs.claim(tx, kinds, worker, int(lease_seconds * _SECOND), place)
    if job is None:
        return None
    tokens.revoke_of_job(tx, job)
    if (started := STARTING.get(job.kind)) is not None:
        try:
            started(tx, job)
        except QuarterdeckError as error:
            # It must not stand in the way of all that wait behind it.
            _end(tx, job, Ending("FAILED", error.message, reason="INTERNAL_ERROR"))
            return claim(tx, kinds, worker, lease_seconds, place)
    _emit(tx, "job.started", job, agent=job.agent)
    return Claimed(job, tokens.mint_for_job(tx, job))


def take_over(tx: Tx, job: Job, worker: str, lease_seconds: float) -> Claimed:
    """Go on with an attempt that an earlier worker began; Conflict when it is not that attempt's any more."""
    values = {"worker": worker, "lease_until": jobs.clock(tx) + int(lease_seconds * _SECOND)}
    taken = jobs.change(tx, held(tx, job), values)
    tokens.revoke_of_job(tx, taken)
    _emit(tx, "job.started", taken, agent=taken.agent, taken_over=True)
    return Claimed(taken, tokens.mint_for_job(tx, taken))


def give_back(tx: Tx, job: Job) -> Job:
    """Let another worker go on at once. It does not count as an attempt."""
    ours = held(tx, job)
    values = {"state": "QUEUED", "worker": None, "lease_until": None, "attempt": ours.attempt - 1}
    queued = jobs.change(tx, ours, values)
    tokens.revoke_of_job(tx, queued)
    _emit(tx, "job.queued", queued)
    return queued


def lose(tx: Tx, job: Job, max_attempts: int) -> Job:
    """A job's attempt came to nothing through no fault of its own: the next one, or the end of patience."""
    return _lost(tx, held(tx, job), max_attempts)


def beat(tx: Tx, worker: str, lease_seconds: float) -> set[tuple[str, int]]:
    """Renew all that a worker runs; what is still its own, by job and attempt."""
    workers.seen(tx, worker, jobs.clock(tx))
    return jobs.extend_all(tx, worker, int(lease_seconds * _SECOND))


def tidy(tx: Tx, max_attempts: int) -> None:
    """Expire what waited too long, and take jobs from workers that went away."""
    for job in jobs.overdue(tx, WORKED):
        _end(tx, job, Ending("EXPIRED", "It did not start within its time to live."))
    for job in jobs.lapsed(tx, WORKED):
        _lost(tx, job, max_attempts)


def seconds_until_due(tx: Tx) -> float | None:
    """When `tidy` has something to do next, as far as is known now."""
    due = [each for each in (jobs.next_lapse(tx, WORKED), jobs.next_expiry(tx, WORKED)) if each is not None]
    return min(due) / _SECOND if due else None


def left_behind(tx: Tx, place: str, alive: Iterable[str]) -> list[Job]:
    """What earlier workers of a place were running; one data directory has one worker process at a time."""
    return jobs.left_behind(tx, WORKED, place, alive)


def arrive(tx: Tx, worker: WorkerRow) -> None:
    now = jobs.clock(tx)
    workers.add(tx, replace(worker, started_at=now, seen_at=now))


def resize(tx: Tx, worker: str, concurrency: int) -> None:
    workers.resize(tx, worker, concurrency)


def leave(tx: Tx, worker: str) -> None:
    workers.remove(tx, worker)


def forget_gone(tx: Tx, place: str, alive: Sequence[str]) -> None:
    """Forget the earlier workers of a place, once nothing of theirs is left."""
    workers.remove_of_place(tx, place, list(alive))


def set_limits(tx: Tx, limits: Mapping[str, int]) -> None:
    workers.set_limits(tx, limits)


async def get(core: Core, caller: Caller, job_id: str) -> Job:
    """The caller's job, or NotFound."""
    job = await core.db.read(caller, jobs.get, job_id)
    if job is None:
        raise NotFound(f"job {job_id} not found", field="job_id")
    return job


async def wait_for_end(core: Core, caller: Caller, job_id: str, timeout: float) -> Job:
    """The job as soon as it has ended, or as it is when the time is over."""
    loop = asyncio.get_running_loop()
    end = loop.time() + timeout
    with core.bus.listen(f"job:{job_id}") as listener:
        while True:
            job = await get(core, caller, job_id)
            left = end - loop.time()
            if job.state not in LIVE or left <= 0 or listener.closed:
                return job
            try:
                async with asyncio.timeout(left):
                    await listener.wait()
            except TimeoutError:
                pass


def clean(value: Any, limit: int = _SHOWN) -> Any:
    """A text as every store takes it, and not too long; anything else as it is."""
    if not isinstance(value, str):
        return value
    text = value.replace("\0", "").encode(errors="replace").decode()
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _lost(tx: Tx, job: Job, max_attempts: int) -> Job:
    if job.attempt >= max_attempts:
        summary = f"It lost its worker {job.attempt} times."
        return _end(tx, job, Ending("FAILED", summary, reason="INTERNAL_ERROR"))
    stale = jobs.change(tx, job, {"state": "STALE", "worker": None, "lease_until": None})
    tokens.revoke_of_job(tx, stale)
    _emit(tx, "job.stale", stale)
    return stale


def _end(tx: Tx, job: Job, ending: Ending) -> Job:
    """End a job that was locked in this transaction and has not ended."""
    values = {
        "state": ending.state,
        "summary": clean(ending.summary, _SUMMARY),
        "reason_code": clean(ending.reason, 32),
        "result": dict(ending.result),
        "lease_until": None,
        "finished_at": tx.now,
        "cost_usd": ending.cost_usd,
        "input_tokens": ending.input_tokens,
        "output_tokens": ending.output_tokens,
    }
    _put(tx, job, ending.files)
    ended = jobs.change(tx, job, values)
    tokens.revoke_of_job(tx, ended)
    if (hook := ENDING.get(ended.kind)) is not None:
        hook(tx, ended)
    _emit(tx, "job.finished", ended, summary=clean(ended.summary), reason=ended.reason_code)
    return ended


def _put(tx: Tx, job: Job, files: Iterable[File]) -> None:
    artifacts.put(
        tx,
        [
            JobArtifact(
                job.id,
                file.name,
                file.media_type,
                file.content,
                hashlib.sha256(file.content).hexdigest(),
                len(file.content),
                tx.now,
            )
            for file in files
        ],
    )


def _emit(tx: Tx, kind: str, job: Job, **data: Any) -> None:
    tx.emit(
        kind,
        job.id,
        task_id=job.task_id,
        user_id=job.user_id,
        ok=job.state != "FAILED",
        job_kind=job.kind,
        state=job.state,
        state_version=job.state_version,
        attempt=job.attempt,
        **data,
    )
