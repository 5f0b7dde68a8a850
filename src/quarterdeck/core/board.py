"""Tasks as the board handles them: whole pages, explicit moves past the state machine, notes, deletion."""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from quarterdeck.core import plans, projects, queue, tasks, worktrees
from quarterdeck.core.context import Core
from quarterdeck.domain.callers import Caller
from quarterdeck.domain.errors import Invalid
from quarterdeck.domain.ids import new_id
from quarterdeck.domain.jobs import KINDS
from quarterdeck.domain.records import Project, Repo, Task, Transition
from quarterdeck.domain.states import status_of
from quarterdeck.store import jobs as job_rows
from quarterdeck.store import projects as project_rows
from quarterdeck.store import scratchpads
from quarterdeck.store import tasks as rows
from quarterdeck.store.tx import Tx

# Called when a task is about to be deleted, before its worktrees and its row go: end its session.
LEAVING: list[Callable[[Core, Caller, Task], Awaitable[None]]] = []
# Called after a task became AUTO or PAIR, with the task as it is now.
RETYPED: list[Callable[[Core, Caller, Task], Awaitable[None]]] = []

Wanted = rows.Wanted

PAGE: Final = 50
SCRATCHPAD: Final = 50_000
_LINKED: Final = 20
_MENTION = re.compile(r"@([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})\b")


@dataclass(frozen=True, slots=True)
class NewTask:
    """A task as somebody puts it on the board."""

    title: str
    description: str | None = None
    project_id: str | None = None
    column: str = "BACKLOG"
    priority: str = "medium"
    task_type: str = "PAIR"
    terminal_backend: str | None = None
    agent_backend: str | None = None
    parent_id: str | None = None
    base_branch: str | None = None
    acceptance_criteria: Sequence[str] = ()
    created_by: str | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """Some tasks, their notes where they were asked for, and where the next page begins."""

    tasks: list[Task]
    scratchpads: dict[str, str]
    next_cursor: str | None


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What belongs to a task: its notes, project, repositories and the tasks that its texts mention."""

    task: Task
    scratchpad: str
    project: Project | None
    repos: list[Repo]
    linked: list[Task] = field(default_factory=list)


async def create(core: Core, caller: Caller, new: NewTask) -> Task:
    """A new task in its column; without a project it goes to the one that the caller's user has open."""

    def body(tx: Tx) -> Task:
        if new.parent_id is not None:
            tasks.seen(tx, new.parent_id, "parent_id")
        project_id = new.project_id or caller.project_id
        if project_id is not None:
            projects.seen(tx, project_id)
        else:
            project_id = project_rows.opened(tx)
        status = status_of(new.column)
        task = Task(
            id=new_id(),
            user_id=caller.user_id,
            title=new.title,
            description=new.description,
            status=status,
            priority=new.priority,
            source_channel="board",
            assigned_agent=None,
            parent_task_id=new.parent_id,
            project_id=project_id,
            metadata={},
            created_at=tx.now,
            updated_at=tx.now,
            completed_at=tx.now if status == "completed" else None,
            task_type=new.task_type,
            acceptance_criteria=list(new.acceptance_criteria),
            agent_backend=new.agent_backend,
            terminal_backend=new.terminal_backend,
            base_branch=new.base_branch,
            created_by=new.created_by or caller.actor,
        )
        rows.add(tx, task)
        rows.add_transition(tx, Transition(new_id(), task.id, None, status, None, "board", tx.now))
        tx.emit("task.created", task.id, task_id=task.id, status=status, title=new.title[:200])
        return task

    return await core.db.tx(caller, body)


async def update(
    core: Core, caller: Caller, task_id: str, values: Mapping[str, Any], column: str | None = None
) -> Task:
    """Set fields, and the column past the state machine: audited as such, in one step or not at all."""

    def body(tx: Tx) -> tuple[Task, Task]:
        task = tasks.held(tx, task_id)
        fresh = {name: value for name, value in values.items() if value != getattr(task, name)}
        if fresh.get("parent_task_id") is not None:
            _check_parent(tx, task, fresh["parent_task_id"])
        if fresh.get("project_id") is not None:
            projects.seen(tx, fresh["project_id"])
        if fresh.get("task_type") == "PAIR":
            stop_jobs(tx, task_id, "the task is for a person now")
            task = tasks.held(tx, task_id)  # the end of a job may have moved it
        return task, tasks.write(tx, task, fresh, **_override(task, column))

    before, task = await core.db.tx(caller, body)
    if before.task_type != task.task_type:
        for react in RETYPED:
            await react(core, caller, task)
    return task


def _override(task: Task, column: str | None) -> dict[str, Any]:
    """What a move writes: nothing when the task is there already."""
    target = None if column is None else status_of(column)
    if target is None or target == task.status:
        return {}
    return {"status": target, "actor": "board", "reason": f"moved to {column} on the board"}


def _check_parent(tx: Tx, task: Task, parent_id: str) -> None:
    """Refuse a parent that the caller has not, or that is the task itself or below it."""
    above: str | None = parent_id
    for _ in range(100):
        if above is None:
            return
        if above == task.id:
            raise Invalid("a task cannot be its own parent", field="parent_id")
        above = tasks.seen(tx, above, "parent_id").parent_task_id
    raise Invalid("the parents of this task are nested too deeply", field="parent_id")


async def delete(core: Core, caller: Caller, task_id: str) -> Task:
    """Delete a task: its jobs are cancelled, what hangs on it is ended and removed, then the row goes."""

    await worktrees.here(core, await worktrees.of(core, caller, task_id))

    def stopped(tx: Tx) -> Task:
        task = tasks.held(tx, task_id)
        stop_jobs(tx, task_id, "the task was deleted")
        return task

    task = await core.db.tx(caller, stopped)
    for leave in LEAVING:
        await leave(core, caller, task)
    await worktrees.remove(core, caller, task_id)

    def body(tx: Tx) -> None:
        gone = tasks.held(tx, task_id)
        rows.remove(tx, task_id)
        tx.emit("task.deleted", task_id, task_id=task_id, user_id=gone.user_id, before=gone.status)

    await core.db.tx(caller, body)
    return task


def stop_jobs(tx: Tx, task_id: str, why: str) -> None:
    """Cancel whatever of a task waits or runs."""
    for job in job_rows.live_of_task(tx, task_id, KINDS):
        queue.cancel(tx, job, why)


def _settled(tx: Tx, task: Task) -> None:
    """Nothing is left to do on a task that is completed or cancelled. Its worktrees stay, with its work."""
    if task.status in ("completed", "cancelled"):
        stop_jobs(tx, task.id, f"the task was {task.status}")


tasks.FOLLOWERS.append(_settled)


async def append_scratchpad(core: Core, caller: Caller, task_id: str, content: str) -> tuple[Task, str]:
    """Add a paragraph to the notes of a task; the newest 50,000 characters are kept."""

    def body(tx: Tx) -> tuple[Task, str]:
        task = tasks.held(tx, task_id)
        kept = scratchpads.get(tx, task_id)
        notes = f"{kept}\n{content}" if kept else content
        notes = notes[-SCRATCHPAD:]
        scratchpads.put(tx, task_id, notes)
        tx.emit("task.noted", task_id, task_id=task_id, user_id=task.user_id, characters=len(content))
        return task, notes

    return await core.db.tx(caller, body)


async def page(
    core: Core,
    caller: Caller,
    wanted: Wanted,
    *,
    plan: str | None = None,
    cursor: str | None = None,
    limit: int = PAGE,
    with_scratchpads: bool = False,
) -> Page:
    """The caller's tasks, newest first, at most `limit` (1–50) from the cursor on."""
    before, count = _read_cursor(cursor), min(max(limit, 1), PAGE)

    def body(tx: Tx) -> Page:
        asked = wanted
        if wanted.project_id is not None:
            projects.seen(tx, wanted.project_id)
        if plan is not None:
            asked = replace(wanted, plan_id=plans.found(tx, plan, field="plan").id)
        found = rows.page(tx, asked, before, count + 1)
        shown = found[:count]
        more = f"{shown[-1].created_at}.{shown[-1].id}" if len(found) > count else None
        notes = scratchpads.of(tx, [task.id for task in shown]) if with_scratchpads else {}
        return Page(shown, notes, more)

    return await core.db.read(caller, body)


def _read_cursor(cursor: str | None) -> tuple[int, str] | None:
    if cursor is None:
        return None
    at, _, task_id = cursor.partition(".")
    if not re.fullmatch(r"[0-9]{1,18}", at) or not task_id:
        raise Invalid("the cursor is none of ours", field="cursor", hint="use next_cursor as it was given")
    return int(at), task_id


async def surroundings(core: Core, caller: Caller, task_id: str) -> Surroundings:
    """A task with its notes, project, repositories and the tasks it mentions as @id."""

    def body(tx: Tx) -> Surroundings:
        task = tasks.seen(tx, task_id)
        notes = scratchpads.get(tx, task_id)
        project = None if task.project_id is None else project_rows.get(tx, task.project_id)
        mentioned = list(dict.fromkeys(_MENTION.findall(f"{task.title}\n{task.description or ''}\n{notes}")))
        linked = rows.some(tx, [each for each in mentioned if each != task_id][:_LINKED])
        return Surroundings(
            task,
            notes,
            project,
            project_rows.repos_of(tx, project.id) if project else [],
            [linked[each] for each in mentioned if each in linked],
        )

    return await core.db.read(caller, body)
