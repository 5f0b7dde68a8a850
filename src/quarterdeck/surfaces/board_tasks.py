"""The board's tasks: listing, making, changing, moving and deleting them, and their notes."""

from typing import Annotated, Any

from pydantic import AfterValidator, Field

from quarterdeck.config import Terminal
from quarterdeck.core import board
from quarterdeck.domain.errors import Invalid
from quarterdeck.domain.ids import iso
from quarterdeck.domain.jobspec import branch_name
from quarterdeck.domain.records import Task
from quarterdeck.surfaces.board import (
    Priority,
    Status,
    TaskType,
    column,
    envelope,
    states_of,
    status_of,
    task_row,
)
from quarterdeck.surfaces.schema import Args, Id, Label, Row, Some, Text, Title
from quarterdeck.surfaces.table import Call, tool

_SCRATCHPAD_SHOWN = 2_000
_LISTED = 15  # about a thousand tokens


Branch = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(branch_name)]
Criteria = Annotated[list[Annotated[str, Field(min_length=1, max_length=2000)]], Field(max_length=100)]


class TasksList(Args):
    project_id: Id | None = None
    filter: Status | None = None
    exclude_task_ids: Annotated[list[Id], Field(default_factory=list, max_length=500)]
    include_scratchpad: bool = False
    plan: Label | None = None
    agent: Label | None = None
    priority: Priority | None = None
    text: Label | None = None
    cursor: Label | None = None
    limit: int = _LISTED


@tool("read", "viewer", binds=("project_id",))
async def tasks_list(call: Call, a: TasksList) -> Row:
    """Tasks, newest first; go on with next_cursor. filter: a status. plan: a slug. limit 1-50."""
    wanted = board.Wanted(
        project_id=a.project_id,
        statuses=() if a.filter is None else states_of(a.filter, "filter"),
        excluded=a.exclude_task_ids,
        agent=a.agent,
        priority=None if a.priority is None else a.priority.lower(),
        text=a.text,
    )
    page = await board.page(
        call.core,
        call.caller,
        wanted,
        plan=a.plan,
        cursor=a.cursor,
        limit=a.limit,
        with_scratchpads=a.include_scratchpad,
    )
    rows = [task_row(task) for task in page.tasks]
    if a.include_scratchpad:
        rows = [row | _notes(page.scratchpads.get(row["task_id"], "")) for row in rows]
    return {"success": True, "tasks": rows, "count": len(rows), "next_cursor": page.next_cursor}


def _notes(whole: str) -> Row:
    """The end of a task's notes, for a list."""
    shown = whole[-_SCRATCHPAD_SHOWN:]
    return {"scratchpad": shown} | ({"scratchpad_truncated": True} if shown != whole else {})


class TasksCreate(Args):
    title: Title
    description: Text | None = None
    project_id: Id | None = None
    status: Status = "BACKLOG"
    priority: Priority = "MEDIUM"
    task_type: TaskType = "PAIR"
    terminal_backend: Terminal | None = None
    agent_backend: Label | None = None
    parent_id: Id | None = None
    base_branch: Branch | None = None
    acceptance_criteria: Criteria | None = None
    created_by: Label | None = None


@tool("write", "operator", binds=("project_id", "parent_id"))
async def tasks_create(call: Call, a: TasksCreate) -> Row:
    """Create a task, in the open project unless another is named."""
    _no_type(a, "tasks_create")
    new = board.NewTask(
        title=a.title,
        description=a.description,
        project_id=a.project_id,
        column=column(a.status),
        priority=a.priority.lower(),
        task_type=a.task_type,
        terminal_backend=a.terminal_backend,
        agent_backend=a.agent_backend,
        parent_id=a.parent_id,
        base_branch=a.base_branch,
        acceptance_criteria=a.acceptance_criteria or (),
        created_by=a.created_by,
    )
    return _changed("CREATED", "created", await board.create(call.core, call.caller, new))


class TasksUpdate(Args):
    task_id: Id
    title: Title | None = None
    description: Text | None = None
    project_id: Id | None = None
    status: Status | None = None
    priority: Priority | None = None
    task_type: TaskType | None = None
    terminal_backend: Terminal | None = None
    agent_backend: Label | None = None
    parent_id: Id | None = None
    base_branch: Branch | None = None
    acceptance_criteria: Criteria | None = None


@tool("write", "operator", binds=("task_id",))
async def tasks_update(call: Call, a: TasksUpdate) -> Row:
    """Change fields of a task; what is left out stays. status moves it, task_type is AUTO or PAIR."""
    given: dict[str, Any] = a.model_dump(exclude={"task_id", "status"}, exclude_none=True)
    if a.status is not None:
        _no_type(a, "tasks_update")
    elif not given:
        raise Invalid("nothing to change was given", hint="give at least one field beside task_id")
    if "parent_id" in given:
        given["parent_task_id"] = given.pop("parent_id")
    if "priority" in given:
        given["priority"] = given["priority"].lower()
    wanted = None if a.status is None else column(a.status)
    return _changed(
        "UPDATED", "updated", await board.update(call.core, call.caller, a.task_id, given, wanted)
    )


class TasksMove(Args):
    task_id: Id
    status: Annotated[Status, Field(description="BACKLOG, IN_PROGRESS, REVIEW or DONE")]


@tool("write", "operator", binds=("task_id",))
async def tasks_move(call: Call, a: TasksMove) -> Row:
    """Move a task to another column, past the state machine."""
    _no_type(a, "tasks_update")
    wanted = column(a.status)
    task = await board.update(call.core, call.caller, a.task_id, {}, wanted)
    return _changed("MOVED", f"moved to {wanted}", task) | {"new_status": wanted}


class OneTask(Args):
    task_id: Id


@tool("destructive", "maintainer", binds=("task_id",))
async def tasks_delete(call: Call, a: OneTask) -> Row:
    """Delete a task with its jobs, session, worktrees and branches. For ever."""
    task = await board.delete(call.core, call.caller, a.task_id)
    return envelope(True, f"task {task.title[:100]!r} deleted", "DELETED", task_id=task.id)


class UpdateScratchpad(Args):
    task_id: Id
    content: Some


@tool("write", "pair_worker", binds=("task_id",))
async def update_scratchpad(call: Call, a: UpdateScratchpad) -> Row:
    """Append to a task's notes; the newest 50,000 characters are kept."""
    task, notes = await board.append_scratchpad(call.core, call.caller, a.task_id, a.content)
    return envelope(True, "notes added", "UPDATED", task_id=task.id, characters=len(notes))


def _no_type(a: TasksCreate | TasksUpdate | TasksMove, next_tool: str) -> None:
    """Turn the common mistake of AUTO or PAIR for a status into a way to do what was meant."""
    wanted = (a.status or "").strip().upper()
    if wanted in ("AUTO", "PAIR"):
        others = a.model_dump(mode="json", exclude_unset=True, exclude={"status"})
        raise Invalid(
            f"{wanted} is a task_type, not a status",
            field="status",
            hint=f"call {next_tool} with task_type={wanted}",
            code="STATUS_WAS_TASK_TYPE",
            next_tool=next_tool,
            next_arguments={**others, "task_type": wanted},
        )


def _changed(code: str, what: str, task: Task) -> Row:
    return envelope(
        True,
        f"task {what}",
        code,
        task_id=task.id,
        title=task.title,
        **status_of(task),
        task_type=task.task_type,
        project_id=task.project_id,
        updated_at=iso(task.updated_at),
    )


TOOLS = (tasks_list, update_scratchpad, tasks_create, tasks_update, tasks_move, tasks_delete)
