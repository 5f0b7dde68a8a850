"""AUTO: an agent works on a task by itself. Starting and stopping it, and what its job does to the task."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from typing import Any, Final

from quarterdeck.core import board, lineage, queue, settings, task_views, tasks
from quarterdeck.core.context import Core
from quarterdeck.core.registry import named
from quarterdeck.domain.agents import Agent
from quarterdeck.domain.callers import SYSTEM, Caller
from quarterdeck.domain.errors import Conflict, NotFound, QuarterdeckError, Unavailable
from quarterdeck.domain.ids import new_id
from quarterdeck.domain.jobs import LIVE, Waiting
from quarterdeck.domain.records import Job, Review, Task
from quarterdeck.events import Event
from quarterdeck.store import jobs, log
from quarterdeck.store import projects as project_rows
from quarterdeck.store import reviews as review_rows
from quarterdeck.store import tasks as task_rows
from quarterdeck.store import worktrees as worktree_rows
from quarterdeck.store.tx import Tx

KIND: Final = "auto"
ACTIONS: Final = ("start_agent", "stop_agent")
TIMEOUT_SECONDS: Final = 4 * 3600
# Why a job that ended well is no success: the agent left nothing to review.
NO_CHANGES: Final = "NO_CHANGES"
ACCEPTANCE_FAILED: Final = "ACCEPTANCE_FAILED"

_PRIORITY: Final = {"urgent": 0, "high": 0, "medium": 1, "low": 2}
_STARTABLE: Final = ("pending", "approved", "failed", "in_progress")
# What a claim takes to in_progress: a task may have been blocked since its start, or by an attempt before.
_TAKEN: Final = ("pending", "approved", "failed", "blocked")
_REASON: Final = 4000
_REVIEWS: Final = 20
_FACTS: Final[tuple[str, ...]] = ("commits", "files", "insertions", "deletions", "changed_files")
_QUIET_SECONDS: Final = 30.0
_START_TRIES: Final = 3


class NotStarted(Conflict):
    """The agent was not started; `data` has the board's code and the tool that helps."""


@dataclass(frozen=True, slots=True)
class View:
    """A job with its task, what goes on with that, and why the job still waits.

    `behind`: it was started while the last processes of an earlier run were being ended.
    """

    job: Job
    task: Task
    runtime: task_views.Runtime
    waiting: Waiting | None = None
    behind: bool = False

    @property
    def live(self) -> bool:
        return self.job.state in LIVE


async def start(
    core: Core,
    caller: Caller,
    task_id: str,
    *,
    agent: str | None = None,
    model: str | None = None,
    timeout_s: int | None = None,
) -> tuple[View, bool]:
    """Queue the agent of an AUTO task. A task has one live job: a second start returns it, with False."""
    for _ in range(_START_TRIES):
        task = await core.db.read(caller, tasks.seen, task_id)
        check_type(task)
        live = await core.db.read(caller, jobs.live_of_task, task_id, [KIND])
        chosen = None if live else await choose(core, task, agent)
        spec = {"action": "start_agent", "model": model, "by": caller.actor}
        behind = task_id in _turns
        started = await core.db.tx(caller, _submit, core, task_id, chosen, spec, timeout_s)
        if started is not None:
            view, fresh = started
            return replace(view, behind=behind and fresh), fresh
    raise NotStarted(f"the jobs of task {task_id} come and go", code="NOT_STARTED", hint="try again")


def _submit(
    tx: Tx, core: Core, task_id: str, agent: Agent | None, spec: dict[str, Any], timeout_s: int | None
) -> tuple[View, bool] | None:
    """The live job, or a new one for the agent; None when there is neither."""
    task = tasks.held(tx, task_id)
    check_type(task)
    if running := jobs.live_of_task(tx, task_id, [KIND]):
        return _view(tx, core, running[-1], task), False
    _check_startable(tx, task)
    if agent is None:
        return None
    # Where its checkouts lie already, else here: whichever core was asked.
    checkouts = worktree_rows.of_task(tx, task_id)
    job = queue.submit(
        tx,
        kind=KIND,
        spec=spec,
        agent=agent.id,
        priority=_PRIORITY.get(task.priority, 1),
        task_id=task.id,
        project_id=task.project_id,
        timeout_s=timeout_s or TIMEOUT_SECONDS,
        place=checkouts[0].place if checkouts else core.place,
        user_id=task.user_id,
    )
    return _view(tx, core, job, task), True


def check_type(task: Task, wanted: str = "AUTO") -> None:
    """Refuse a task of the other type with the call that changes it."""
    if task.task_type != wanted:
        raise NotStarted(
            f"task {task.id} is {task.task_type}, not {wanted}",
            field="task_id",
            hint=f"set task_type to {wanted} first",
            code="TASK_TYPE_MISMATCH",
            next_tool="tasks_update",
            next_arguments={"task_id": task.id, "task_type": wanted},
            current_task_type=task.task_type,
        )


def _check_startable(tx: Tx, task: Task) -> None:
    if task.status == "blocked":
        blocked = tasks.blocked(tx, task)
        reason = blocked.reason if blocked else None
        # No next tool: who follows it without looking would overrule whoever blocked it.
        raise NotStarted(
            f"task {task.id} is blocked" + (f": {reason}" if reason else ""),
            field="task_id",
            hint="when that is settled, tasks_move it to IN_PROGRESS and start it",
            code="START_BLOCKED",
            blocked_reason=reason,
        )
    if task.status not in _STARTABLE:
        raise NotStarted(
            f"task {task.id} is in {task.status}: there is nothing to start",
            field="task_id",
            hint="move it back, or reject the review with feedback",
            code="NOT_STARTED",
            next_tool="review" if task.status == "review" else "tasks_move",
            next_arguments={"task_id": task.id, "action": "reject"}
            if task.status == "review"
            else {"task_id": task.id, "status": "BACKLOG"},
        )
    check_repos(tx, task)


def check_repos(tx: Tx, task: Task) -> None:
    """Refuse a task that has no repository to work in."""
    if task.project_id is None:
        raise NotStarted(
            f"task {task.id} has no project, so there is no repository to work in",
            field="task_id",
            hint="tasks_update gives it one of your projects, or projects_create makes one with repo_paths",
            code="NOT_STARTED",
            next_tool="projects_list",
            next_arguments={},
        )
    if not project_rows.repos_of(tx, task.project_id):
        raise NotStarted(
            f"the project of task {task.id} has no repository to work in",
            field="task_id",
            hint="tasks_update gives it another project, or projects_create makes one with repo_paths",
            code="NOT_STARTED",
            next_tool="projects_list",
            next_arguments={},
        )


async def choose(core: Core, task: Task, wanted: str | None = None) -> Agent:
    """Who works on a task: the agent asked for, the task's own, its assigned one where it can run, else the
    default. Raises NotStarted for one that cannot run."""
    asked = wanted or task.agent_backend
    if asked is None and task.assigned_agent is not None:
        assigned = named(core, task.assigned_agent)
        if assigned is not None and await cannot_run(core, assigned) is None:
            return assigned
    name = asked or str(await settings.get(core, "general.default_worker_agent"))
    agent = named(core, name)
    if agent is None:
        able = ", ".join(each.id for each in core.agents.values() if each.adapter)
        raise _unable(task, f"there is no agent {name[:100]!r}", f"one of {able}")
    if (problem := await cannot_run(core, agent)) is not None:
        raise _unable(task, problem.message, problem.hint or "choose another agent")
    return agent


async def cannot_run(core: Core, agent: Agent) -> QuarterdeckError | None:
    """Why an agent cannot be run here; None when it can."""
    if agent.adapter is None:
        return Unavailable(
            f"the agent {agent.id} has no adapter, so it cannot be run here", hint="choose another agent"
        )
    if core.find_program is None:
        return None
    try:
        await core.find_program(agent)
    except QuarterdeckError as problem:
        return problem
    return None


async def model_for(core: Core, agent: Agent, asked: str | None = None) -> str | None:
    """The model that was asked for, else the one that the settings name for the agent's kind."""
    key = f"general.default_model_{agent.adapter}"
    if asked is not None or key not in settings.KEYS:
        return asked
    chosen = await settings.get(core, key)
    return None if chosen is None else str(chosen)


def _unable(task: Task, message: str, hint: str) -> NotStarted:
    return NotStarted(
        message,
        hint=hint,
        code="NOT_STARTED",
    )


async def stop(core: Core, caller: Caller, task_id: str) -> tuple[View, bool]:
    """Stop the agent of a task; whether it was running already. NotStarted when there is none."""

    def body(tx: Tx) -> tuple[View, bool]:
        task = tasks.held(tx, task_id)
        live = jobs.live_of_task(tx, task_id, [KIND])
        if not live:
            check_type(task)
            raise NotStarted(
                f"no agent works on task {task_id}",
                field="task_id",
                code="NOT_RUNNING",
                hint="nothing to stop",
            )
        ran = live[-1].state == "RUNNING"
        for job in live:
            ended = queue.cancel(tx, job, f"stopped by {caller.actor}")
        return _view(tx, core, ended or live[-1], tasks.seen(tx, task_id)), ran

    return await core.db.tx(caller, body)


async def cancel(core: Core, caller: Caller, task_id: str, job_id: str) -> tuple[View, bool]:
    """Cancel a job; False when it had ended already."""

    def body(tx: Tx) -> tuple[View, bool]:
        job, task = _found(tx, task_id, job_id)
        ended = queue.cancel(tx, job, f"cancelled by {caller.actor}")
        return _view(tx, core, ended or job, tasks.seen(tx, task.id)), ended is not None

    return await core.db.tx(caller, body)


async def get(core: Core, caller: Caller, task_id: str, job_id: str) -> View:
    """A job of the caller's task, or NotFound naming the argument."""
    return await core.db.read(caller, lambda tx: _view(tx, core, *_found(tx, task_id, job_id)))


async def events(
    core: Core, caller: Caller, task_id: str, job_id: str, *, limit: int, offset: int
) -> tuple[View, list[Event], int]:
    """A page of what happened to a job, oldest first, and how much there is."""

    def body(tx: Tx) -> tuple[View, list[Event], int]:
        view = _view(tx, core, *_found(tx, task_id, job_id))
        return view, log.of_entity(tx, job_id, limit, offset), log.count_of_entity(tx, job_id)

    return await core.db.read(caller, body)


def _found(tx: Tx, task_id: str, job_id: str) -> tuple[Job, Task]:
    task = tasks.seen(tx, task_id)
    job = jobs.get(tx, job_id)
    if job is None or job.kind != KIND or job.task_id != task.id:
        raise NotFound(f"job {job_id} is none of task {task_id}", field="job_id", hint="jobs_submit names it")
    return job, task


def _view(tx: Tx, core: Core, job: Job, task: Task) -> View:
    return View(job, task, task_views.runtime_of(tx, core, task), task_views.waiting_for(tx, core, job))


def _started(tx: Tx, job: Job) -> None:
    """The claim of a job takes its task to in_progress, unless a person moved it elsewhere."""
    task = _task_of(tx, job)
    if task is not None and task.status in _TAKEN:
        reason = f"{job.agent} started as {job.id}"
        tasks.write(tx, task, {}, status="in_progress", reason=reason, actor="engine")


def _ended(tx: Tx, job: Job) -> None:
    """What the end of a job makes of its task. A task that a person moved meanwhile stays where it is."""
    lineage.ended(tx, job)
    task = _task_of(tx, job)
    if task is None or job.started_at is None:
        return
    asked = task.status == "review" and _asked_for_review(tx, task, job)
    if task.status not in ("in_progress", "blocked") and not asked:
        return
    target, reason = _verdict(job)
    if target == "review":
        _report(tx, task, job)
    if target != task.status:
        tasks.write(tx, task, {}, status=target, reason=reason[:_REASON], actor="engine")


def _verdict(job: Job) -> tuple[str, str]:
    said = job.summary or ""
    if job.state == "SUCCEEDED":
        return "review", said
    if job.state == "FAILED" and job.reason_code != NO_CHANGES:
        tail = str((job.result or {}).get("log_tail") or "")
        return "failed", f"{said}\n\n{tail[-(_REASON - len(said) - 2) :]}" if tail else said
    return "pending", said


def _report(tx: Tx, task: Task, job: Job) -> None:
    """The summary of the changes, for whoever reviews them."""
    result = job.result or {}
    facts = {name: result[name] for name in _FACTS if name in result}
    review = Review(
        new_id(), task.id, "requested", "engine", job.summary or "", {"job_id": job.id, **facts}, tx.now
    )
    review_rows.add(tx, review)
    tx.emit(
        "review.added",
        review.id,
        task_id=task.id,
        user_id=task.user_id,
        review=review.kind,
        text=review.text[:200],
    )


def _asked_for_review(tx: Tx, task: Task, job: Job) -> bool:
    """Whether it is in review because the job's own agent asked: its word does not outweigh the facts."""
    asked = [each for each in review_rows.of_task(tx, task.id, _REVIEWS) if each.kind == "requested"]
    return bool(asked) and asked[-1].data.get("job_id") == job.id


async def refusal(core: Core, caller: Caller, job: Job) -> str | None:
    """Why a claimed job has nothing to do any more: a person moved its task before the agent began."""

    def body(tx: Tx) -> str | None:
        task = None if job.task_id is None else task_rows.get(tx, job.task_id)
        if task is None:
            return "The task is gone."
        if task.status in ("in_progress", "blocked") or _asked_for_review(tx, task, job):
            return None
        return f"The task was moved to {task.status} before the agent began."

    return await core.db.read(caller, body)


def _task_of(tx: Tx, job: Job) -> Task | None:
    return None if job.task_id is None else task_rows.get(tx, job.task_id, lock=True)


@dataclass(slots=True)
class _Turn:
    """Who works in a task's checkouts now, and how many are there or wait for it."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0


_turns: dict[str, _Turn] = {}


@contextlib.asynccontextmanager
async def alone(task_id: str) -> AsyncIterator[None]:
    """Wait until no other run of the task is left in this process, and keep others out.

    A cancelled run holds it until its last process is gone.
    """
    turn = _turns.setdefault(task_id, _Turn())
    turn.users += 1
    try:
        async with turn.lock:
            yield
    finally:
        turn.users -= 1
        if not turn.users:
            _turns.pop(task_id, None)


async def end_all(core: Core, caller: Caller, task_id: str, why: str) -> None:
    """Cancel what runs on a task, and wait until nothing of it is left in its checkouts."""

    def body(tx: Tx) -> None:
        for job in jobs.live_of_task(tx, task_id, [KIND]):
            queue.cancel(tx, job, why)

    await core.db.tx(caller, body)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_QUIET_SECONDS), alone(task_id):
            pass


async def _leaving(core: Core, caller: Caller, task: Task) -> None:
    await end_all(core, caller, task.id, "the task was deleted")


async def _retyped(core: Core, caller: Caller, task: Task) -> None:
    if task.task_type == "PAIR":
        await end_all(core, caller, task.id, "the task became PAIR")


def owner(job: Job) -> Caller:
    """The engine on behalf of the user whose job it is."""
    if job.user_id is None:
        return SYSTEM
    return Caller(job.user_id, "maintainer", session="engine", tool="worker", unmetered=True)


def facts_of(result: dict[str, Any] | None) -> str:
    """The size of a change in words."""
    facts = result or {}
    counted = [
        f"{count} {noun}{'' if count == 1 else 's'}"
        for noun, count in (("commit", facts.get("commits", 0)), ("file", facts.get("files", 0)))
    ]
    return f"{', '.join(counted)}, +{facts.get('insertions', 0)} -{facts.get('deletions', 0)}"


queue.STARTING[KIND] = _started
queue.ENDING[KIND] = _ended
board.LEAVING.insert(0, _leaving)
board.RETYPED.append(_retyped)
