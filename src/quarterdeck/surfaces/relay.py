"""The relay dialect: four tools for JobSpec jobs, and their resources."""

import re
from collections.abc import Sequence
from typing import Annotated, Any, Final

from pydantic import Field, WithJsonSchema

from quarterdeck.core import relay
from quarterdeck.core.context import Core
from quarterdeck.domain.callers import SYSTEM, Caller
from quarterdeck.domain.errors import Invalid, NotFound, QuarterdeckError, RateLimited
from quarterdeck.domain.jobs import State
from quarterdeck.domain.jobspec import JobSpec
from quarterdeck.domain.records import Job
from quarterdeck.events import Event
from quarterdeck.surfaces.resources import Content, Notice, ResourceError, Resources, Template
from quarterdeck.surfaces.schema import Args, Id, Row, brief_schema
from quarterdeck.surfaces.table import Call, Surface, encode, tool

_URI: Final = re.compile(r"mcp://jobs/([A-Za-z0-9_-]{1,100})/(?:status|artifacts/([a-z.]{1,20}))")

JobId = Annotated[Id, Field(alias="jobId")]


class JobsSubmit(Args):
    spec: Annotated[Any, WithJsonSchema(brief_schema(JobSpec))]


@tool("write", "operator")
async def jobs_submit(call: Call, a: JobsSubmit) -> Row:
    """Queue a JobSpec: an agent works on a read-only checkout and answers with a patch."""
    return {"jobId": (await relay.submit(call.core, call.caller, a.spec)).id}


class OneJob(Args):
    job_id: JobId


@tool("read", "viewer", binds=("job_id",))
async def jobs_get(call: Call, a: OneJob) -> Row:
    """A relay job: state, summary, artifacts, pull request."""
    view = await relay.get(call.core, call.caller, a.job_id)
    return job_row(view)


class JobsList(Args):
    state: State | None = None
    limit: int = 20
    offset: int = 0


@tool("read", "viewer")
async def jobs_list(call: Call, a: JobsList) -> Row:
    """Relay jobs, newest first. limit 1-100."""
    found, total = await relay.listing(call.core, call.caller, state=a.state, limit=a.limit, offset=a.offset)
    return {
        "items": [summary_row(job) for job in found],
        "total": total,
        "hasMore": a.offset + len(found) < total,
    }


@tool("write", "operator", binds=("job_id",))
async def jobs_cancel(call: Call, a: OneJob) -> Row:
    """Cancel a relay job that waits or runs."""
    done, job = await relay.cancel(call.core, call.caller, a.job_id)
    answer: Row = {"ok": done, "state": job.state}
    return answer if done else {**answer, "code": "ALREADY_TERMINAL"}


def _given(**fields: Any) -> Row:
    """The fields that have a value: the document's optional ones are absent, not null."""
    return {name: value for name, value in fields.items() if value is not None}


def summary_row(job: Job) -> Row:
    """A JobSummary, as the list shows it."""
    return {
        "id": job.id,
        "state": job.state,
        "summary": job.summary,
        "lastUpdate": relay.ms(job.updated_at),
        "attempt": job.attempt,
        **_given(reasonCode=job.reason_code),
        **relay.pull_request(job),
        "title": job.spec["task"]["title"],
        "createdAt": relay.ms(job.created_at),
    }


def job_row(view: relay.View) -> Row:
    job, sent = view.job, view.delivery
    ran = {key: value for key, value in (job.result or {}).items() if key != "pr"}
    return {
        **summary_row(job),
        "stateVersion": job.state_version,
        **relay.times(job),
        "artifacts": [
            {"name": name, "uri": relay.artifact_uri(job.id, name), "size": size, "sha256": digest}
            for name, (size, digest) in view.artifacts.items()
        ],
        **_given(
            agent=job.agent,
            costUsd=job.cost_usd,
            inputTokens=job.input_tokens,
            outputTokens=job.output_tokens,
            result=ran or None,
            webhook=sent and _given(state=sent.state, tries=sent.tries, error=sent.error),
        ),
    }


def status_row(job: Job) -> Row:
    """What the status resource says."""
    return {
        "state": job.state,
        "stateVersion": job.state_version,
        "createdAt": relay.ms(job.created_at),
        **relay.times(job),
        "attempt": job.attempt,
        **_given(reasonCode=job.reason_code),
        **relay.pull_request(job),
    }


def _parts(uri: str) -> tuple[str, str | None] | None:
    """The job and the artifact that a URI names, or None: names are known ones or nothing."""
    found = _URI.fullmatch(uri)
    if found is None or (found[2] is not None and found[2] not in relay.ARTIFACTS):
        return None
    return found[1], found[2]


def _unknown(uri: str) -> ResourceError:
    return ResourceError(
        f"there is no resource {uri[:200]!r}",
        hint="jobs_get names the resources of a job",
        code="RESOURCE_NOT_FOUND",
    )


async def read(core: Core, caller: Caller, uri: str) -> Content:
    """What a resource holds. Another user's job looks like one that does not exist."""
    parts = _parts(uri)
    if parts is None:
        raise _unknown(uri)
    job_id, name = parts
    try:
        if name is None:
            view = await relay.get(core, caller, job_id)
            return Content(uri, "application/json", encode(status_row(view.job)))
        kept = await relay.artifact(core, caller, job_id, name)
    except NotFound:
        raise _unknown(uri) from None
    if kept is None:
        raise ResourceError(
            f"job {job_id} has left no {name}",
            hint="wait until the job has ended; its state says how",
            code="ARTIFACT_MISSING",
        )
    return Content(uri, kept.media_type, kept.content.decode("utf-8", "replace"))


async def visible(core: Core, caller: Caller, uri: str) -> bool:
    """Whether a caller may hear of a URI: of its own jobs, and of an id that is nobody's yet."""
    parts = _parts(uri)
    if parts is None:
        return False
    try:
        await relay.get(core, caller, parts[0])
    except NotFound:
        return not await relay.exists(core, parts[0])
    return True


async def notices(core: Core, event: Event) -> Sequence[Notice]:
    """What subscribers of a relay job hear of an event: the state, then what it left, then how it ended."""
    told_of, version = event.data.get("artifact"), event.data.get("state_version")
    if event.noun != "job" or event.data.get("job_kind") != relay.KIND or event.entity_id is None:
        return ()
    if version is None or (event.kind == "job.progress" and told_of is None):
        return ()
    told = [_updated(relay.status_uri(event.entity_id), version)]
    if told_of is not None:
        told.append(_updated(relay.artifact_uri(event.entity_id, told_of), version))
    if event.kind != "job.finished":
        return told
    view = await relay.get(core, SYSTEM, event.entity_id)
    told += [_updated(relay.artifact_uri(view.job.id, name), version) for name in view.artifacts]
    return [*told, _end(view)]


def _updated(uri: str, version: int) -> Notice:
    return Notice(uri, "notifications/resources/updated", {"uri": uri, "stateVersion": version})


def _end(view: relay.View) -> Notice:
    """How a job ended, to those who follow its status."""
    how = "finished" if view.job.state == "SUCCEEDED" else "failed"
    return Notice(relay.status_uri(view.job.id), f"notifications/job/{how}", relay.ending(view))


def word(error: QuarterdeckError) -> Row:
    """The error body of this surface: the four codes of its document, and those that every surface has."""
    code = error.code
    if isinstance(error, Invalid) and (error.field or "").startswith("spec"):
        code = "INVALID_SPEC"
    elif isinstance(error, NotFound):
        code = "JOB_NOT_FOUND"
    elif isinstance(error, RateLimited):
        code = "RATE_LIMIT"
    body: Row = {"code": code, "message": error.message}
    return {**body, **_given(path=error.field, hint=error.hint), **error.data}


TOOLS = (jobs_submit, jobs_get, jobs_list, jobs_cancel)

RESOURCES = Resources(
    scheme="mcp://jobs/",
    templates=(
        Template("mcp://jobs/{jobId}/status", "job-status", "State of a relay job.", "application/json"),
        *(
            Template(f"mcp://jobs/{{jobId}}/artifacts/{name}", name, f"What a relay job left: {what}.", kind)
            for (name, kind), what in zip(
                relay.ARTIFACTS.items(),
                ("the patch", "test plan and notes", "the agent's log", "its pull request"),
                strict=True,
            )
        ),
    ),
    read=read,
    visible=visible,
    notices=notices,
)

SURFACE = Surface(
    name="relay",
    server_name="quarterdeck-relay",
    instructions=(
        "Send a JobSpec with jobs_submit; an agent works on a read-only checkout of baselineCommit. "
        "Subscribe to mcp://jobs/{jobId}/status, then read its artifacts patch.diff and out.md beside it."
    ),
    tools={tool.name: tool for tool in TOOLS},
    word=word,
    resources=(RESOURCES,),
)
