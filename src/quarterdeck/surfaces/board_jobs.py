"""The board's AUTO jobs: starting and stopping agents, and following what they do."""

from typing import Annotated, Any, Final

from pydantic import Field, WithJsonSchema

from quarterdeck.core import auto, waits
from quarterdeck.core.auto import View
from quarterdeck.domain.errors import Invalid
from quarterdeck.domain.ids import iso
from quarterdeck.domain.jobs import Waiting
from quarterdeck.domain.records import Job, as_dict
from quarterdeck.events import Event
from quarterdeck.surfaces.board import JOB_STATUS, envelope
from quarterdeck.surfaces.board_wait import Seconds
from quarterdeck.surfaces.schema import Args, Id, Label, Object, Row, parse
from quarterdeck.surfaces.table import Call, tool

_WAIT_SECONDS: Final = 1.5
_PAGE: Final = 50
_MOST: Final = 100
_LONGEST_SECONDS: Final = 7 * 24 * 3600
_NO_RUNNER: Final = "it begins when the core of its data directory runs with worker.concurrency above 0"
# Checked by hand, since each has a code of its own for what is wrong.
Number = Annotated[Any, WithJsonSchema({"type": "integer"})]
Word = Annotated[str, Field(max_length=200)]


class JobsListActions(Args):
    pass


@tool("read", "viewer", catalog=True)
async def jobs_list_actions(call: Call, a: JobsListActions) -> Row:
    """The actions of jobs_submit."""
    return {"success": True, "actions": list(auto.ACTIONS), "count": len(auto.ACTIONS)}


class StartArguments(Args):
    agent: Label | None = None
    model: Label | None = None
    timeout_seconds: Annotated[int, Field(ge=1, le=_LONGEST_SECONDS)] | None = None
    task_id: Id | None = None


class StopArguments(Args):
    task_id: Id | None = None


class JobsSubmit(Args):
    task_id: Id
    action: Word
    arguments: Object | None = None


@tool("write", "pair_worker", binds=("task_id",))
async def jobs_submit(call: Call, a: JobsSubmit) -> Row:
    """Start (start_agent) or stop (stop_agent) the agent of an AUTO task. arguments: agent, model,
    timeout_seconds."""
    action = a.action.strip()
    if action not in auto.ACTIONS:
        raise Invalid(
            f"there is no action {action[:100]!r}",
            field="action",
            hint=f"one of {', '.join(auto.ACTIONS)}",
            code="UNSUPPORTED_ACTION",
            next_tool="jobs_list_actions",
            next_arguments={},
        )
    model: type[StartArguments | StopArguments] = StartArguments if action == "start_agent" else StopArguments
    given = parse(model, a.arguments or {}, f"the arguments of {action}")
    if given.task_id not in (None, a.task_id):
        raise Invalid("arguments cannot name another task", field="arguments.task_id")
    if isinstance(given, StartArguments):
        view, fresh = await auto.start(
            call.core,
            call.caller,
            a.task_id,
            agent=given.agent,
            model=given.model,
            timeout_s=given.timeout_seconds,
        )
        return _submitted(view, fresh)
    view, ran = await auto.stop(call.core, call.caller, a.task_id)
    said = "its process is being ended" if ran else "it had not started"
    return envelope(
        True,
        f"job {view.job.id} was stopped; {said}",
        "STOP_QUEUED" if ran else "JOB_CANCELLED",
        **job_row(view),
    )


def _submitted(view: View, fresh: bool) -> Row:
    """A start as it stands: accepted, waiting, or running since an earlier call."""
    job = view.job
    hint = "jobs_wait tells how it ends"
    if job.state == "RUNNING":
        message, code = f"job {job.id} runs already", "STARTED"
    elif view.waiting is not None:
        message = f"job {job.id} is accepted and waits: {view.waiting.words}"
        code = _waiting_code(view.waiting)
        hint = _NO_RUNNER if view.waiting.missing else hint
    elif view.behind:
        message = f"job {job.id} is accepted; it begins when the last process of the run before it is gone"
        code = "START_QUEUED"
    elif fresh:
        message, code = f"job {job.id} is submitted to {job.agent}", "JOB_SUBMITTED"
    else:
        message, code = f"job {job.id} is queued already", "JOB_QUEUED"
    return envelope(
        True,
        message,
        code,
        hint=hint,
        next_tool="jobs_wait",
        next_arguments={"job_id": job.id, "task_id": view.task.id},
        **job_row(view),
    )


class OnJob(Args):
    # First, since by it the union tells this shape from the relay's.
    task_id: Id
    job_id: Word


@tool("read", "viewer", binds=("task_id",))
async def jobs_get(call: Call, a: OnJob) -> Row:
    """A job of a task: status and result. success means that the work succeeded."""
    return _told(await auto.get(call.core, call.caller, a.task_id, _job_id(a.job_id)))


class JobsWait(OnJob):
    timeout_seconds: Seconds = _WAIT_SECONDS


@tool("read", "viewer", binds=("task_id",), streams=True)
async def jobs_wait(call: Call, a: JobsWait) -> Row:
    """Wait until a job has ended, at most timeout_seconds. success means that the work succeeded."""
    limit = await waits.limit(call.core, _WAIT_SECONDS if a.timeout_seconds is None else a.timeout_seconds)
    await auto.get(call.core, call.caller, a.task_id, _job_id(a.job_id))
    progress = call.progress

    async def beat(seconds: float) -> None:
        if progress is not None:
            await progress(seconds, limit.seconds, "still running")

    outcome = await waits.wait(
        call.core,
        call.caller,
        waits.Wanted(job_ids=[a.job_id]),
        limit.seconds,
        beat if progress is not None else None,
    )
    view = await auto.get(call.core, call.caller, a.task_id, a.job_id)
    answer = _told(view)
    if view.live:
        answer["timed_out"] = outcome.code == "WAIT_TIMEOUT"
        if outcome.code == "WAIT_INTERRUPTED":
            answer["code"], answer["message"] = (
                "WAIT_INTERRUPTED",
                "the core is stopping; wait again when it is back",
            )
        answer |= {"next_tool": "jobs_wait", "next_arguments": {"job_id": a.job_id, "task_id": a.task_id}}
    asked = limit.seconds if not limit.capped else a.timeout_seconds
    answer["timeout_metadata"] = {
        "timeout_seconds": limit.seconds,
        "requested_seconds": asked,
        "capped": limit.capped,
    }
    if limit.capped:
        answer["message"] += f"; the timeout was capped at {limit.seconds:g} seconds"
    return answer


class JobsEvents(OnJob):
    limit: Number = _PAGE
    offset: Number = 0


@tool("read", "viewer", binds=("task_id",))
async def jobs_events(call: Call, a: JobsEvents) -> Row:
    """What happened to a job, oldest first. limit 1-100."""
    limit = _whole(a.limit, "limit", 1, _MOST)
    offset = _whole(a.offset, "offset", 0, 2**31)
    view, found, total = await auto.events(
        call.core, call.caller, a.task_id, _job_id(a.job_id), limit=limit, offset=offset
    )
    end = offset + len(found)
    return {
        "success": True,
        "job_id": view.job.id,
        "task_id": view.task.id,
        "events": [_event_row(view, event) for event in found],
        "total_events": total,
        "returned_events": len(found),
        "offset": offset,
        "limit": limit,
        "has_more": end < total,
        "next_offset": end if end < total else None,
    }


@tool("write", "pair_worker", binds=("task_id",))
async def jobs_cancel(call: Call, a: OnJob) -> Row:
    """Cancel a job; a running agent is stopped."""
    view, done = await auto.cancel(call.core, call.caller, a.task_id, _job_id(a.job_id))
    if not done:
        return envelope(
            False,
            f"job {view.job.id} has ended already: {JOB_STATUS[view.job.state]}",
            "ALREADY_TERMINAL",
            hint="start it anew with jobs_submit",
            ok=False,
            **job_row(view),
        )
    return envelope(True, f"job {view.job.id} is cancelled", "JOB_CANCELLED", **job_row(view))


def _job_id(given: str) -> str:
    if not given.startswith("job_") or not given[4:].isalnum():
        raise Invalid(f"{given[:50]!r} is no job id", field="job_id", hint="jobs_submit gives it: job_…")
    return given


def _whole(given: Any, field: str, least: int, most: int) -> int:
    if type(given) is not int or not least <= given <= most:
        raise Invalid(f"{field} must be a whole number from {least} to {most}", field=field)
    return given


def _told(view: View) -> Row:
    """A job as a read or a wait tells of it."""
    job = view.job
    code = code_of(job, view.waiting)
    waits = f"it waits: {view.waiting.words}" if view.waiting else ""
    message = job.summary or {
        "START_PENDING": waits,
        "JOB_RUNNER_MISSING": waits,
        "JOB_QUEUED": "it is queued",
        "JOB_RUNNING": f"{job.agent} is at work, attempt {job.attempt}",
        "JOB_RECOVERED_INTERRUPTED": "its worker was lost; it goes on with the next attempt",
    }.get(code, JOB_STATUS[job.state])
    hint = None
    if view.live:
        hint = _NO_RUNNER if view.waiting and view.waiting.missing else "jobs_wait tells how it ends"
    elif job.state == "FAILED":
        hint = "result has the end of the log; jobs_submit starts it again"
    return envelope(job.state == "SUCCEEDED", message, code, hint, **job_row(view), timed_out=False)


def _waiting_code(waiting: Waiting) -> str:
    return "JOB_RUNNER_MISSING" if waiting.missing else "START_PENDING"


def code_of(job: Job, waiting: Waiting | None = None) -> str:
    """The board's code for where a job is."""
    match job.state:
        case "QUEUED":
            return "JOB_QUEUED" if waiting is None else _waiting_code(waiting)
        case "EXPIRED":
            return "JOB_TIMEOUT"
        case "FAILED":
            return "JOB_TIMEOUT" if job.reason_code == "TIMEOUT" else "JOB_EXECUTION_ERROR"
    return {
        "RUNNING": "JOB_RUNNING",
        "STALE": "JOB_RECOVERED_INTERRUPTED",
        "CANCELED": "JOB_CANCELLED",
        "SUCCEEDED": "JOB_SUCCEEDED",
    }[job.state]


def job_row(view: View) -> Row:
    job, task = view.job, view.task
    return {
        "job_id": job.id,
        "task_id": task.id,
        "action": job.spec.get("action", "start_agent"),
        "status": JOB_STATUS[job.state],
        "state": job.state,
        "agent": job.agent,
        "attempt": job.attempt,
        "reason": job.reason_code,
        "created_at": iso(job.created_at),
        "updated_at": iso(job.updated_at),
        "started_at": iso(job.started_at),
        "finished_at": iso(job.finished_at),
        "cost_usd": job.cost_usd,
        "input_tokens": job.input_tokens,
        "output_tokens": job.output_tokens,
        "result": job.result or None,
        "runtime": as_dict(view.runtime),
        "current_task_type": task.task_type,
    }


_EVENT_CODES: Final = {
    "job.queued": "JOB_QUEUED",
    "job.started": "STARTED",
    "job.progress": "JOB_RUNNING",
    "job.stale": "JOB_RECOVERED_INTERRUPTED",
}


def _event_row(view: View, event: Event) -> Row:
    code = _EVENT_CODES.get(event.kind) or code_of(view.job)
    said = event.data.get("text") or event.data.get("summary") or event.kind.replace(".", " ")
    tool_name = event.data.get("tool")
    return {
        "job_id": view.job.id,
        "task_id": view.task.id,
        "status": JOB_STATUS.get(str(event.data.get("state")), JOB_STATUS[view.job.state]),
        "timestamp": iso(event.at),
        "message": f"{tool_name}: {said}" if tool_name else str(said),
        "code": code,
        "attempt": event.data.get("attempt"),
        "step": event.data.get("step"),
    }


TOOLS = (jobs_list_actions, jobs_submit, jobs_get, jobs_wait, jobs_events, jobs_cancel)
