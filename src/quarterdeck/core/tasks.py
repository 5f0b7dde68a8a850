"""Tasks: create, change through the state machine, read, route."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from quarterdeck.core.context import Core
from quarterdeck.domain import routing, states
from quarterdeck.domain.callers import SYSTEM, Caller
from quarterdeck.domain.errors import Invalid, NotFound
from quarterdeck.domain.ids import iso, new_id
from quarterdeck.domain.records import Decision, Pattern, Task, Transition
from quarterdeck.store import memory as memory_rows
from quarterdeck.store import tasks as rows
from quarterdeck.store.tx import Tx

# Called in the transaction that changed a task's state: whatever must change with it.
FOLLOWERS: list[Callable[[Tx, Task], None]] = []
SUBTASKS = 200
PATTERNS = 10


@dataclass(frozen=True, slots=True)
class History:
    """A task and how it came to its state."""

    task: Task
    transitions: list[Transition]

    @property
    def valid_actions(self) -> list[str]:
        return states.valid_actions(self.task.status)


@dataclass(frozen=True, slots=True)
class Context:
    """Everything an agent needs to act on a task."""

    history: History
    decisions: list[Decision]
    subtasks: list[Task]
    patterns: list[tuple[Pattern, float | None]]


@dataclass(frozen=True, slots=True)
class Changes:
    """What an update sets; None leaves a field as it is. `action` and `status` obey the state machine."""

    action: str | None = None
    status: str | None = None
    title: str | None = None
    description: str | None = None
    priority: str | None = None
    assigned_agent: str | None = None
    metadata: dict[str, Any] | None = None
    reason: str | None = None
    actor: str | None = None


async def create(
    core: Core,
    caller: Caller,
    *,
    title: str,
    description: str | None = None,
    priority: str = "medium",
    source_channel: str | None = None,
    assigned_agent: str | None = None,
    parent_task_id: str | None = None,
    metadata: dict[str, Any] | None = None,
) -> Task:
    """A new task in `pending`, with its first transition."""

    def body(tx: Tx) -> Task:
        if parent_task_id is not None:
            seen(tx, parent_task_id, "parent_task_id")
        task = Task(
            id=new_id(),
            user_id=caller.user_id,
            title=title,
            description=description,
            status="pending",
            priority=priority,
            source_channel=source_channel,
            assigned_agent=assigned_agent,
            parent_task_id=parent_task_id,
            project_id=caller.project_id,
            metadata=metadata or {},
            created_at=tx.now,
            updated_at=tx.now,
            completed_at=None,
        )
        rows.add(tx, task)
        rows.add_transition(
            tx, Transition(new_id(), task.id, None, task.status, None, source_channel or "mcp", tx.now)
        )
        tx.emit("task.created", task.id, task_id=task.id, status=task.status, title=title[:200])
        return task

    return await core.db.tx(caller, body)


async def update(core: Core, caller: Caller, task_id: str, changes: Changes) -> Task:
    """Change the state by the machine and fields beside it, in one step or not at all."""
    return await core.db.tx(caller, _update, task_id, changes)


def _update(tx: Tx, task_id: str, changes: Changes) -> Task:
    task = held(tx, task_id)
    values: dict[str, Any] = {
        name: value
        for name in ("title", "description", "priority", "assigned_agent")
        if (value := getattr(changes, name)) is not None
    }
    if changes.metadata is not None:
        values["metadata"] = {**task.metadata, **changes.metadata}
    target = _target(task.status, changes)
    return write(tx, task, values, status=target, reason=changes.reason, actor=changes.actor)


def _target(status: str, changes: Changes) -> str | None:
    """The state that an update leads to, or None when it names none."""
    if changes.action is None and changes.status is None:
        return None
    action = changes.action
    if action is None:
        if changes.status == status:
            return None
        action = states.action_for(status, str(changes.status))
    target = states.apply(status, action)
    if changes.status is not None and changes.status != target:
        raise Invalid(
            f"action {action} leads to {target}, not to {changes.status}",
            field="status",
            hint="give either action or status",
        )
    return target


def write(
    tx: Tx,
    task: Task,
    values: dict[str, Any],
    *,
    status: str | None = None,
    reason: str | None = None,
    actor: str | None = None,
) -> Task:
    """Set fields of a held task and, when `status` is given, its state with a transition. One event."""
    if not values and status is None:
        return task
    # Strictly rising, so that it serves as a cursor.
    stamp = max(tx.now, task.updated_at + 1)
    values = {**values, "updated_at": stamp}
    if status is not None:
        values["status"] = status
        values["completed_at"] = stamp if status == "completed" else None
        rows.add_transition(tx, Transition(new_id(), task.id, task.status, status, reason, actor, stamp))
    rows.change(tx, task.id, values)
    changed = sorted(values.keys() - {"updated_at", "completed_at"})
    tx.emit(
        "task.updated",
        task.id,
        task_id=task.id,
        user_id=task.user_id,
        before=task.status,
        after=status or task.status,
        changed=changed,
        updated_at=stamp,
    )
    task = Task(**{name: values.get(name, getattr(task, name)) for name in Task.__slots__})
    if status is not None:
        for follow in FOLLOWERS:
            follow(tx, task)
    return task


async def listing(core: Core, caller: Caller, *, limit: int = 50, **filters: str | None) -> list[Task]:
    """The caller's tasks, newest first; `limit` is clamped to 1–200."""
    given = {name: value for name, value in filters.items() if value is not None}
    return await core.db.read(caller, rows.newest, min(max(limit, 1), 200), given)


async def get(core: Core, caller: Caller, task_id: str) -> History:
    return await core.db.read(caller, _history, task_id)


async def may_hear(core: Core, caller: Caller, task_id: str) -> bool:
    """Whether a caller may be told of a task: of its own, and of one that does not exist yet."""
    if caller.task_id not in (None, task_id):
        return False
    if await core.db.read(caller, rows.get, task_id) is not None:
        return True
    return await core.db.read(SYSTEM, rows.get, task_id) is None


def _history(tx: Tx, task_id: str) -> History:
    return History(seen(tx, task_id), rows.history(tx, task_id))


async def context(core: Core, caller: Caller, task_id: str) -> Context:
    """The task with its history, decisions, subtasks and the patterns that match its text."""

    def body(tx: Tx) -> tuple[History, list[Decision], list[Task]]:
        history = _history(tx, task_id)
        return history, memory_rows.decisions_of(tx, task_id), rows.children(tx, task_id, SUBTASKS)

    history, decisions, subtasks = await core.db.read(caller, body)
    text = f"{history.task.title}\n{history.task.description or ''}".strip()
    patterns = await core.memory.patterns(caller, text, PATTERNS) if text else []
    return Context(history, decisions, subtasks, patterns)


async def route(core: Core, caller: Caller, task_id: str, *, assign: bool) -> tuple[routing.Routing, Task]:
    """Recommend an agent for a task; with `assign` write it to the task and the decision log in one step."""
    if not assign:
        task = (await get(core, caller, task_id)).task
        return _route(core, task), task

    def body(tx: Tx) -> tuple[routing.Routing, Task, Decision]:
        task = held(tx, task_id)
        chosen = _route(core, task)
        block = {
            "agent_id": chosen.agent.id,
            "model": chosen.model,
            "confidence": chosen.confidence,
            "reasoning": chosen.reasoning,
            "routed_at": iso(tx.now),
        }
        values = {"assigned_agent": chosen.agent.id, "metadata": {**task.metadata, "routing": block}}
        task = write(tx, task, values)
        decision = memory_rows.add_decision(
            tx,
            Decision(
                id=new_id(),
                user_id=task.user_id,
                task_id=task.id,
                context=f"Routing task: {task.title}",
                decision=f"Assigned to {chosen.agent.id} ({chosen.model}). {chosen.reasoning}",
                outcome=None,
                confidence=chosen.confidence,
                tags=["routing", "auto-assign", chosen.agent.id],
                created_at=tx.now,
            ),
        )
        return chosen, task, decision

    chosen, task, _ = await core.db.tx(caller, body)
    return chosen, task


def _route(core: Core, task: Task) -> routing.Routing:
    return routing.route(
        task.title, task.description, task.priority, task.source_channel, core.agents.values()
    )


def blocked(tx: Tx, task: Task) -> Transition | None:
    """When and why a task was blocked; None when it is not."""
    if task.status != "blocked":
        return None
    return next((each for each in reversed(rows.history(tx, task.id)) if each.to_status == "blocked"), None)


def held(tx: Tx, task_id: str) -> Task:
    """The caller's task, locked for this transaction, or NotFound."""
    return seen(tx, task_id, lock=True)


def seen(tx: Tx, task_id: str, field: str = "task_id", *, lock: bool = False) -> Task:
    """The caller's task, or NotFound naming the argument."""
    task = rows.get(tx, task_id, lock=lock)
    if task is None:
        raise NotFound(f"task {task_id} not found", field=field, hint="list your tasks to see their ids")
    return task
