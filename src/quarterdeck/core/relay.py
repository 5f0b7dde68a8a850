"""Relay jobs: a JobSpec goes into the queue, a patch comes out."""

import asyncio
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from quarterdeck.core import queue, registry
from quarterdeck.core.context import Core
from quarterdeck.domain.callers import SYSTEM, Caller
from quarterdeck.domain.errors import Invalid, NotFound
from quarterdeck.domain.jobspec import JobSpec, parse_spec
from quarterdeck.domain.records import Delivery, Job, JobArtifact
from quarterdeck.store import artifacts, jobs
from quarterdeck.store import relay as rows
from quarterdeck.store.tx import Tx

KIND: Final = "relay"
ARTIFACTS: Final = {
    "patch.diff": "text/plain",
    "out.md": "text/markdown",
    "logs.txt": "text/plain",
    "pr.json": "application/json",
}
MAX_PAGE: Final = 100

# The names under which a message lists artifacts.
_SHORT: Final = {"patch.diff": "patch", "out.md": "out", "logs.txt": "logs", "pr.json": "pr"}
_PRIORITIES: Final = {"P0": 0, "P1": 1, "P2": 2}


@dataclass(frozen=True, slots=True)
class View:
    """A job with what it left (size and SHA-256 by name) and the message to its webhook, if any."""

    job: Job
    artifacts: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    delivery: Delivery | None = None


def status_uri(job_id: str) -> str:
    return f"mcp://jobs/{job_id}/status"


def artifact_uri(job_id: str, name: str) -> str:
    return f"mcp://jobs/{job_id}/artifacts/{name}"


def ms(us: int | None) -> int | None:
    """A time as the relay shows it."""
    return None if us is None else us // 1000


def times(job: Job) -> dict[str, int]:
    """When a job started and ended, as far as it has."""
    started, finished = ms(job.started_at), ms(job.finished_at)
    found = {"startedAt": started, "finishedAt": finished}
    if started is not None and finished is not None:
        found["durationMs"] = finished - started
    return {name: value for name, value in found.items() if value is not None}


def ending(view: View) -> dict[str, Any]:
    """How a job ended, as notifications and webhooks tell it."""
    job = view.job
    told: dict[str, Any] = {"jobId": job.id, "state": job.state, "summary": job.summary or ""}
    if job.state != "SUCCEEDED":
        told |= {"reasonCode": job.reason_code} if job.reason_code else {}
        return told | {"stateVersion": job.state_version, "attempt": job.attempt}
    uris = {_SHORT[name]: artifact_uri(job.id, name) for name in view.artifacts if name in _SHORT}
    return told | {
        "artifacts": uris,
        "stateVersion": job.state_version,
        **times(job),
        "attempt": job.attempt,
    }


def pull_request(job: Job) -> dict[str, Any]:
    """The field `pr` of a job that opened one, else nothing."""
    found = (job.result or {}).get("pr")
    return {"pr": found} if found else {}


def spec_of(job: Job) -> JobSpec:
    """The spec of a job that was accepted before."""
    return JobSpec.load(json.dumps(job.spec))


async def submit(core: Core, caller: Caller, value: Any) -> Job:
    """The job for a spec: a new one, or that which its idempotency key already names."""
    spec = parse_spec(value)
    await check_path(core, caller, spec)
    relay, stored = core.settings.relay, json.loads(spec.dump())
    timeout = spec.execution.timeout_s or relay.default_timeout_seconds
    usual = core.settings.defaults.relay_agent
    agent = registry.named(core, usual)

    def body(tx: Tx) -> Job:
        if (known := _known(tx, spec, stored)) is not None:
            return known
        queue.check_room(tx, KIND, relay.max_queued)
        return queue.submit(
            tx,
            kind=KIND,
            spec=stored,
            agent=agent.id if agent else usual,
            priority=_PRIORITIES[spec.execution.priority],
            key=spec.idempotency_key,
            ttl_s=spec.execution.ttl_s,
            timeout_s=math.ceil(timeout),
            # A folder is of this host alone.
            place=core.place if spec.repo.type == "local" else None,
        )

    return await core.db.tx(caller, body)


def _known(tx: Tx, spec: JobSpec, stored: dict[str, Any]) -> Job | None:
    try:
        return queue.known(tx, KIND, spec.idempotency_key, stored)
    except Invalid as error:
        raise Invalid(error.message, field="spec.idempotencyKey", hint=error.hint) from None


async def check_path(core: Core, caller: Caller, spec: JobSpec) -> None:
    """Refuse a folder of this host that the caller has no business in. The data directory is nobody's."""
    if spec.repo.type != "local":
        return
    found, data = await asyncio.to_thread(_real, [spec.repo.path or "", str(core.data_dir)])
    folders = await local_folders(core, caller)
    if found.is_relative_to(data) or not any(found.is_relative_to(folder) for folder in folders):
        raise Invalid(
            "spec.repo.path is neither a repository of one of your projects nor within relay.local_roots",
            field="spec.repo.path",
            hint="add the repository to a project, or its folder to relay.local_roots",
        )


async def local_folders(core: Core, caller: Caller) -> list[Path]:
    """The folders that a local repository of this caller may lie in, by their real names."""
    given = core.settings.relay.local_roots
    if given is None:
        given = ["~"] if core.loopback else []
    return await asyncio.to_thread(_real, [*given, *await core.db.read(caller, rows.repo_paths)])


def _real(folders: Iterable[str]) -> list[Path]:
    paths = [Path(folder).expanduser() for folder in folders]
    return [path.resolve() for path in paths if path.is_absolute()]


def _job(tx: Tx, job_id: str) -> Job:
    job = jobs.get(tx, job_id)
    if job is None or job.kind != KIND:
        raise NotFound(f"there is no relay job {job_id!r}", field="jobId", hint="jobs_list names yours")
    return job


async def get(core: Core, caller: Caller, job_id: str) -> View:
    def body(tx: Tx) -> View:
        job = _job(tx, job_id)
        return View(job, artifacts.names_of(tx, job_id), rows.delivery_of(tx, job_id))

    return await core.db.read(caller, body)


async def exists(core: Core, job_id: str) -> bool:
    """Whether there is a job of that id, of whatever user and kind."""
    return await core.db.read(SYSTEM, jobs.get, job_id) is not None


async def artifact(core: Core, caller: Caller, job_id: str, name: str) -> JobArtifact | None:
    """One file that a job left; None while it is not there."""

    def body(tx: Tx) -> JobArtifact | None:
        return artifacts.get(tx, _job(tx, job_id).id, name)

    return await core.db.read(caller, body)


async def listing(
    core: Core, caller: Caller, *, state: str | None = None, limit: int = 20, offset: int = 0
) -> tuple[list[Job], int]:
    """A page of jobs, newest first, and how many there are."""
    if not 1 <= limit <= MAX_PAGE:
        raise Invalid(f"limit must be from 1 to {MAX_PAGE}", field="limit")
    if offset < 0:
        raise Invalid("offset must be at least 0", field="offset")
    return await core.db.read(caller, rows.page, KIND, state, limit, offset)


async def cancel(core: Core, caller: Caller, job_id: str) -> tuple[bool, Job]:
    """End a job that waits or runs; whether this call did it, and the job as it is then."""

    def body(tx: Tx) -> tuple[bool, Job]:
        job = _job(tx, job_id)
        ended = queue.cancel(tx, job, f"canceled by {caller.actor}")
        return (True, ended) if ended is not None else (False, _job(tx, job_id))

    return await core.db.tx(caller, body)
