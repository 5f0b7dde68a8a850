"""The board's long poll."""

import json
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema

from quarterdeck.core import waits
from quarterdeck.domain.errors import Invalid
from quarterdeck.domain.ids import iso
from quarterdeck.domain.records import Job, Task
from quarterdeck.domain.states import column_of
from quarterdeck.surfaces.board import JOB_STATUS, Status, envelope, states_of, status_of
from quarterdeck.surfaces.schema import Args, Id, Label, Row
from quarterdeck.surfaces.table import Call, tool


def _listed(value: Any) -> Any:
    """A list as it is; some clients send it as JSON, or with commas, in a string."""
    if not isinstance(value, str):
        return value
    if value.lstrip().startswith("["):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value
    return [entry for entry in value.split(",") if entry.strip()]


Statuses = Annotated[list[Status], BeforeValidator(_listed), Field(max_length=20)]
Ids = Annotated[list[Id], Field(max_length=waits.MOST)]
# Checked by the core, which has its own word for what is wrong with it.
Seconds = Annotated[Any, WithJsonSchema({"type": "number"})]


class TasksWait(Args):
    task_id: Id | None = None
    timeout_seconds: Seconds = None
    wait_for_status: Statuses | None = None
    from_updated_at: Label | None = None
    task_ids: Ids | None = None
    job_ids: Ids | None = None
    mode: Literal["any", "all"] = "any"


@tool("read", "viewer", binds=("task_id", "task_ids", "job_ids"), streams=True)
async def tasks_wait(call: Call, a: TasksWait) -> Row:
    """Wait for a task's status to change (or for any or all of task_ids, and for job_ids to end)."""
    wanted = _wanted(a)
    limit = await waits.limit(call.core, a.timeout_seconds)
    progress = call.progress

    async def beat(seconds: float) -> None:
        if progress is not None:
            await progress(seconds, limit.seconds, "still waiting")

    outcome = await waits.wait(
        call.core, call.caller, wanted, limit.seconds, beat if progress is not None else None
    )
    return _answer(a, limit, outcome)


def _wanted(a: TasksWait) -> waits.Wanted:
    task_ids = list(dict.fromkeys([*([] if a.task_id is None else [a.task_id]), *(a.task_ids or ())]))
    job_ids = list(dict.fromkeys(a.job_ids or ()))
    if not task_ids and not job_ids:
        raise Invalid("task_id is required", field="task_id", hint="or give task_ids, or job_ids")
    if len(task_ids) + len(job_ids) > waits.MOST:
        raise Invalid(f"more than {waits.MOST} cannot be waited for at once", field="task_ids")
    states = {state for name in a.wait_for_status or () for state in states_of(name, "wait_for_status")}
    return waits.Wanted(
        task_ids,
        job_ids,
        frozenset(states),
        waits.read_cursor(a.from_updated_at),
        all_of_them=a.mode == "all",
    )


_MESSAGES = {
    "TASK_CHANGED": "it changed",
    "ALREADY_AT_STATUS": "it was there already",
    "CHANGED_SINCE_CURSOR": "it has changed since the cursor",
    "WAIT_TIMEOUT": "nothing changed in time",
    "WAIT_INTERRUPTED": "the core is stopping; wait again when it is back",
    "TASK_DELETED": "the task was deleted",
}


def _answer(a: TasksWait, limit: waits.Limit, outcome: waits.Outcome) -> Row:
    decisive, message = outcome.decisive, _MESSAGES[outcome.code]
    if limit.capped:
        message += f"; the timeout was capped at {limit.seconds:g} seconds"
    again = outcome.code in ("WAIT_TIMEOUT", "WAIT_INTERRUPTED")
    answer = envelope(
        not again and outcome.code != "TASK_DELETED",
        message,
        outcome.code,
        hint="wait again from where you are" if again else None,
        next_tool="tasks_wait" if again else None,
        next_arguments=_again(a, decisive) if again else None,
        changed=not again,
        timed_out=outcome.code == "WAIT_TIMEOUT",
        **_watched(decisive),
        timeout_seconds=limit.seconds,
        timeout_capped=limit.capped,
    )
    if len(outcome.watches) > 1:
        answer["watched"] = [{**_watched(watch), "code": watch.code} for watch in outcome.watches]
    return answer


def _again(a: TasksWait, watch: waits.Watch) -> Row:
    """The same wait, from the cursor that loses nothing in between."""
    arguments = a.model_dump(mode="json", exclude_unset=True)
    if isinstance(watch.first, Task) and a.task_ids is None and a.job_ids is None:
        arguments["from_updated_at"] = iso(watch.cursor)
    return arguments


def _watched(watch: waits.Watch) -> Row:
    """One task or job of a wait: what it was, what it became, and how it is now."""
    first, latest = watch.first, watch.latest
    if isinstance(first, Job):
        now = latest.state if isinstance(latest, Job) else first.state
        return {
            "job_id": first.id,
            "task_id": first.task_id,
            "previous_status": JOB_STATUS[first.state],
            "current_status": JOB_STATUS[now],
            "changed_at": iso(watch.changed_at),
        }
    return {
        "task_id": first.id,
        "previous_status": column_of(first.status),
        "current_status": None if watch.status is None else column_of(watch.status),
        "changed_at": iso(watch.changed_at),
        "task": snapshot(latest) if isinstance(latest, Task) else None,
    }


def snapshot(task: Task) -> Row:
    """A task without its long texts."""
    return {
        "id": task.id,
        "title": task.title,
        **status_of(task),
        "priority": task.priority.upper(),
        "task_type": task.task_type,
        "project_id": task.project_id,
        "updated_at": iso(task.updated_at),
        "created_at": iso(task.created_at),
    }


TOOLS = (tasks_wait,)
