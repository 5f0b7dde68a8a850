"""The words of the board dialect: its envelope, its codes, and a task as the board shows it.

The tools are in `board_tasks`, `board_projects`, `board_settings` and beside them; `all` puts them together.
"""

from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field

from quarterdeck.domain.errors import Invalid, QuarterdeckError
from quarterdeck.domain.ids import iso
from quarterdeck.domain.records import Task
from quarterdeck.domain.states import COLUMN_OF, COLUMNS, STATUSES, column_of
from quarterdeck.surfaces.schema import Row

INSTRUCTIONS: Final = (
    "Kanban tasks (BACKLOG, IN_PROGRESS, REVIEW, DONE), their projects, AUTO jobs, PAIR sessions, review and "
    "merge. When an answer has next_tool, call it exactly once with next_arguments before any retry. "
    "Wait with tasks_wait, do not poll."
)


def _raised(value: Any) -> Any:
    return value.upper() if isinstance(value, str) else value


# A plain string in the schema, since a list of choices would keep the mistake of AUTO for a status from us.
Status = Annotated[str, Field(min_length=1, max_length=50)]
TaskType = Annotated[Literal["AUTO", "PAIR"], BeforeValidator(_raised)]
Priority = Annotated[Literal["LOW", "MEDIUM", "HIGH", "URGENT"], BeforeValidator(_raised)]

# The board's words for the states of a job.
JOB_STATUS: Final = {
    "QUEUED": "queued",
    "STALE": "queued",
    "RUNNING": "running",
    "SUCCEEDED": "succeeded",
    "FAILED": "failed",
    "EXPIRED": "failed",
    "CANCELED": "cancelled",
}


def envelope(
    success: bool,
    message: str,
    code: str,
    hint: str | None = None,
    next_tool: str | None = None,
    next_arguments: Row | None = None,
    **fields: Any,
) -> Row:
    """The frame of every answer that is more than a read."""
    return {
        "success": success,
        "message": message,
        "code": code,
        "hint": hint,
        "next_tool": next_tool,
        "next_arguments": next_arguments,
        **fields,
    }


# The error tree in the board's codes; what the argument at fault is called says more.
_CODES: Final = {
    "validation_error": "INVALID_PARAMS",
    "not_found": "NOT_FOUND",
    "invalid_transition": "ACTION_NOT_ALLOWED",
    "conflict": "ACTION_NOT_ALLOWED",
    "permission_denied": "AUTHORIZATION_DENIED",
    "unknown_tool": "UNKNOWN_METHOD",
    "rate_limited": "RATE_LIMITED",
    "service_unavailable": "NOT_READY",
    "internal_error": "INTERNAL_ERROR",
}
_BY_FIELD: Final = {
    ("validation_error", "task_id"): "INVALID_TASK_ID",
    ("validation_error", "task_ids"): "INVALID_TASK_ID",
    ("validation_error", "job_id"): "INVALID_JOB_ID",
    ("validation_error", "job_ids"): "INVALID_JOB_ID",
    ("validation_error", "limit"): "INVALID_LIMIT",
    ("validation_error", "offset"): "INVALID_OFFSET",
    ("validation_error", "worktree_path"): "INVALID_WORKTREE_PATH",
    ("validation_error", "timeout_seconds"): "INVALID_TIMEOUT",
    ("not_found", "task_id"): "TASK_NOT_FOUND",
    ("not_found", "task_ids"): "TASK_NOT_FOUND",
    ("not_found", "parent_id"): "TASK_NOT_FOUND",
    ("not_found", "job_id"): "JOB_NOT_FOUND",
    ("not_found", "job_ids"): "JOB_NOT_FOUND",
    ("not_found", "project_id"): "PROJECT_NOT_FOUND",
    ("not_found", "proposal_id"): "PROPOSAL_NOT_FOUND",
    ("not_found", "plan"): "PLAN_NOT_FOUND",
}


def word(error: QuarterdeckError) -> Row:
    """The error body of this surface. An error may bring its own `code`, `next_tool` and `next_arguments`."""
    argument = (error.field or "").partition("[")[0]
    if error.code == "permission_denied" and argument:  # a bound token that named nothing of its own
        code = "SESSION_SCOPE_DENIED"
    else:
        code = _BY_FIELD.get((error.code, argument)) or _CODES.get(error.code, "INTERNAL_ERROR")
    fields = {"field": error.field} if error.field else {}
    return envelope(False, error.message, code, error.hint) | fields | error.data


def column(name: str, field: str = "status") -> str:
    """The column of that name, in any case, or Invalid."""
    wanted = name.strip().upper()
    if wanted in COLUMNS:
        return wanted
    raise Invalid(f"{field} must be one of {', '.join(COLUMNS)}", field=field)


def states_of(name: str, field: str) -> tuple[str, ...]:
    """The states that a name stands for: those of a column, or one state of the core."""
    wanted = name.strip()
    if wanted.upper() in COLUMNS:
        return tuple(state for state, its in COLUMN_OF.items() if its == wanted.upper())
    if wanted.lower() in STATUSES:
        return (wanted.lower(),)
    raise Invalid(f"{field} must be of {', '.join(COLUMNS)}, or of {', '.join(STATUSES)}", field=field)


def status_of(task: Task) -> Row:
    """The board's word for a task's state beside the core's own."""
    return {"status": column_of(task.status), "state": task.status}


def task_row(task: Task) -> Row:
    """A task as a list shows it."""
    return {
        "task_id": task.id,
        "title": task.title,
        **status_of(task),
        "priority": task.priority.upper(),
        "task_type": task.task_type,
        "project_id": task.project_id,
        "agent": task.agent_backend or task.assigned_agent,
        "updated_at": iso(task.updated_at),
    }
