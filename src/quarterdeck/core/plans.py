"""Plans: phases, their tasks, checkpoints and shared state. A plan's task is the same row everywhere."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from quarterdeck.core import tasks
from quarterdeck.core.context import Core
from quarterdeck.domain.callers import Caller
from quarterdeck.domain.errors import Invalid, NotFound
from quarterdeck.domain.ids import new_id
from quarterdeck.domain.plans import (
    STATE_OF,
    Progress,
    checked_slug,
    new_slug,
    phase_after,
    plan_after,
    progress,
)
from quarterdeck.domain.records import Checkpoint, Phase, Plan, StateValue, Task, Transition
from quarterdeck.store import plans as rows
from quarterdeck.store import tasks as task_rows
from quarterdeck.store.tx import Tx

_STATE_KEYS = 1000


@dataclass(frozen=True, slots=True)
class NewTask:
    title: str
    description: str | None = None
    priority: str = "medium"
    task_type: str = "PAIR"
    acceptance_criteria: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class NewPhase:
    name: str
    description: str | None = None
    tasks: Sequence[NewTask] = ()


@dataclass(frozen=True, slots=True)
class NewPlan:
    title: str
    slug: str | None = None
    description: str | None = None
    context: dict[str, Any] = field(default_factory=dict)
    phases: Sequence[NewPhase] = ()
    status: str = "draft"
    template: dict[str, Any] | None = None
    project_id: str | None = None


@dataclass(frozen=True, slots=True)
class PhaseView:
    """A phase with what belongs to it."""

    phase: Phase
    tasks: list[Task]
    checkpoints: list[Checkpoint]


@dataclass(frozen=True, slots=True)
class PlanView:
    """A plan with its phases."""

    plan: Plan
    phases: list[PhaseView]

    @property
    def progress(self) -> Progress:
        return progress(task for phase in self.phases for task in phase.tasks)


async def create(
    core: Core,
    caller: Caller,
    *,
    title: str,
    slug: str | None = None,
    description: str | None = None,
    context: dict[str, Any] | None = None,
    phases: Sequence[NewPhase] = (),
    status: str = "draft",
    template: dict[str, Any] | None = None,
) -> PlanView:
    """A new plan with its phases and tasks, all or nothing."""
    new = NewPlan(
        title,
        None if slug is None else checked_slug(slug),
        description,
        context or {},
        phases,
        status,
        template,
    )
    return await core.db.tx(caller, make, new)


def make(tx: Tx, new: NewPlan) -> PlanView:
    """Write a new plan with its phases and tasks."""
    caller = tx.caller
    if new.slug is not None and any(found.user_id == caller.user_id for found in rows.by_slug(tx, new.slug)):
        raise Invalid(f"slug {new.slug} is taken", field="slug", hint="choose another or leave it out")
    plan = Plan(
        id=new_id(),
        user_id=caller.user_id,
        project_id=new.project_id or caller.project_id,
        slug=new.slug or new_slug(new.title),
        title=new.title,
        description=new.description,
        status=new.status,
        context=new.context,
        template=new.template,
        archive_reason=None,
        created_at=tx.now,
        updated_at=tx.now,
        completed_at=None,
    )
    made = [
        Phase(new_id(), plan.id, position, phase.name, phase.description, "pending", None, tx.now)
        for position, phase in enumerate(new.phases, 1)
    ]
    rows.add(tx, plan, made)
    views = [
        PhaseView(phase, _add_tasks(tx, plan, phase, its.tasks), [])
        for phase, its in zip(made, new.phases, strict=True)
    ]
    tx.emit("plan.created", plan.id, slug=plan.slug, status=plan.status, phases=len(made))
    return PlanView(plan, views)


def _add_tasks(tx: Tx, plan: Plan, phase: Phase, new: Sequence[NewTask]) -> list[Task]:
    # A microsecond apart, so that every list shows them in the plan's own order.
    made = [
        Task(
            id=new_id(),
            user_id=plan.user_id,
            title=task.title,
            description=task.description,
            status="pending",
            priority=task.priority,
            source_channel="plans",
            assigned_agent=None,
            parent_task_id=None,
            project_id=plan.project_id,
            metadata={},
            created_at=tx.now + phase.position * 1000 + position,
            updated_at=tx.now + phase.position * 1000 + position,
            completed_at=None,
            plan_id=plan.id,
            phase_id=phase.id,
            position=position,
            task_type=task.task_type,
            acceptance_criteria=list(task.acceptance_criteria),
        )
        for position, task in enumerate(new)
    ]
    for task in made:
        task_rows.add(tx, task)
        task_rows.add_transition(tx, Transition(new_id(), task.id, None, "pending", None, "plans", tx.now))
        tx.emit("task.created", task.id, task_id=task.id, status="pending", title=task.title[:200])
    return made


async def get(core: Core, caller: Caller, slug: str) -> PlanView:
    return await core.db.read(caller, lambda tx: _view(tx, found(tx, slug)))


def _view(tx: Tx, plan: Plan) -> PlanView:
    phases, its_tasks = rows.phases_of(tx, plan.id), rows.tasks_of(tx, plan.id)
    notes = rows.checkpoints_of(tx, [phase.id for phase in phases])
    return PlanView(
        plan,
        [
            PhaseView(
                phase,
                [task for task in its_tasks if task.phase_id == phase.id],
                [note for note in notes if note.phase_id == phase.id],
            )
            for phase in phases
        ],
    )


async def listing(
    core: Core, caller: Caller, *, status: str | None = None, limit: int = 20, include_archived: bool = False
) -> list[tuple[Plan, Progress]]:
    """The caller's plans, newest first; `limit` is clamped to 1–100."""

    def body(tx: Tx) -> list[tuple[Plan, Progress]]:
        plans = rows.newest(tx, min(max(limit, 1), 100), status, archived=include_archived)
        done = rows.progress_of(tx, [plan.id for plan in plans])
        return [(plan, done.get(plan.id, Progress(0, 0))) for plan in plans]

    return await core.db.read(caller, body)


async def set_status(
    core: Core, caller: Caller, slug: str, status: str, *, reason: str | None = None
) -> PlanView:
    """Set a plan's status by hand; `reason` is kept when it is archived."""

    def body(tx: Tx) -> PlanView:
        plan = found(tx, slug, lock=True)
        _set_plan(tx, plan, status, reason)
        return _view(tx, found(tx, slug))

    return await core.db.tx(caller, body)


def _set_plan(tx: Tx, plan: Plan, status: str, reason: str | None = None) -> None:
    stamp = max(tx.now, plan.updated_at + 1)
    values: dict[str, Any] = {"status": status, "updated_at": stamp}
    values["archive_reason"] = reason if status == "archived" else None
    if status != "archived":
        values["completed_at"] = stamp if status == "completed" else None
    rows.change(tx, plan.id, values)
    tx.emit("plan.updated", plan.id, user_id=plan.user_id, slug=plan.slug, before=plan.status, after=status)


async def get_phase(core: Core, caller: Caller, slug: str, which: int | str) -> PhaseView:
    def body(tx: Tx) -> PhaseView:
        view = _view(tx, found(tx, slug))
        return next(
            phase for phase in view.phases if phase.phase == _phase([p.phase for p in view.phases], which)
        )

    return await core.db.read(caller, body)


async def set_phase(
    core: Core, caller: Caller, slug: str, which: int | str, status: str, *, reason: str | None = None
) -> PhaseView:
    """Set a phase's status by hand; when it was the last one open, the plan is completed."""

    def body(tx: Tx) -> PhaseView:
        plan = found(tx, slug, lock=True)
        phase = _phase(rows.phases_of(tx, plan.id, lock=True), which)
        _set_phase(tx, plan, phase, status, reason)
        _reflect_plan(tx, plan)
        return next(view for view in _view(tx, plan).phases if view.phase.id == phase.id)

    return await core.db.tx(caller, body)


def _set_phase(tx: Tx, plan: Plan, phase: Phase, status: str, reason: str | None = None) -> None:
    rows.change_phase(tx, phase.id, {"status": status, "reason": reason, "updated_at": tx.now})
    tx.emit(
        "phase.updated",
        phase.id,
        user_id=plan.user_id,
        plan=plan.slug,
        order=phase.position,
        before=phase.status,
        after=status,
    )


async def add_checkpoint(
    core: Core, caller: Caller, slug: str, which: int | str, note: str, context: dict[str, Any] | None
) -> tuple[Phase, Checkpoint]:
    def body(tx: Tx) -> tuple[Phase, Checkpoint]:
        plan = found(tx, slug)
        phase = _phase(rows.phases_of(tx, plan.id), which)
        checkpoint = Checkpoint(new_id(), phase.id, note, context, tx.now)
        rows.add_checkpoint(tx, checkpoint)
        tx.emit("phase.checkpoint", phase.id, user_id=plan.user_id, plan=plan.slug, order=phase.position)
        return phase, checkpoint

    return await core.db.tx(caller, body)


async def update_task(
    core: Core,
    caller: Caller,
    slug: str,
    which: int | str,
    identifier: int | str,
    *,
    status: str | None = None,
    notes: str | None = None,
    toggle: bool = False,
) -> tuple[Task, PlanView]:
    """Move a plan's task, past the state machine and audited as such; or flip it with `toggle`."""

    def body(tx: Tx) -> tuple[Task, PlanView]:
        plan = found(tx, slug, lock=True)
        phase = _phase(rows.phases_of(tx, plan.id), which)
        named = _task([task for task in rows.tasks_of(tx, plan.id) if task.phase_id == phase.id], identifier)
        task = tasks.held(tx, named.id)
        wanted = STATE_OF[status] if status is not None else None
        if toggle:
            wanted = "pending" if task.status == "completed" else "completed"
        values = {} if notes is None else {"notes": notes}
        changed = wanted if wanted != task.status else None
        task = tasks.write(tx, task, values, status=changed, reason=notes, actor="plans")
        return task, _view(tx, found(tx, slug))

    return await core.db.tx(caller, body)


def reflect(tx: Tx, task: Task) -> None:
    """A plan's task changed its state, on whatever surface: its phase and plan follow."""
    if task.plan_id is None or task.phase_id is None:
        return
    plan = rows.by_id(tx, task.plan_id)
    if plan is None:
        return
    phase = next(p for p in rows.phases_of(tx, plan.id, lock=True) if p.id == task.phase_id)
    after = phase_after(phase.status, rows.states_in(tx, phase.id))
    if after != phase.status:
        _set_phase(tx, plan, phase, after)
    _reflect_plan(tx, plan)


tasks.FOLLOWERS.append(reflect)


def _reflect_plan(tx: Tx, plan: Plan) -> None:
    after = plan_after(plan.status, [phase.status for phase in rows.phases_of(tx, plan.id)])
    if after != plan.status:
        _set_plan(tx, plan, after)


async def set_state(
    core: Core, caller: Caller, slug: str, key: str, value: Any, category: str = "general"
) -> StateValue:
    """Put any JSON value under a key of a plan."""

    def body(tx: Tx) -> StateValue:
        plan = found(tx, slug)
        kept = rows.get_state(tx, plan.id, key)
        fresh = StateValue(plan.id, key, value, category, kept.created_at if kept else tx.now, tx.now)
        rows.put_state(tx, fresh)
        tx.emit("state.set", plan.id, user_id=plan.user_id, plan=plan.slug, key=key, category=category)
        return fresh

    return await core.db.tx(caller, body)


async def get_state(core: Core, caller: Caller, slug: str, key: str) -> StateValue:
    def body(tx: Tx) -> StateValue:
        value = rows.get_state(tx, found(tx, slug).id, key)
        if value is None:
            raise NotFound(f"plan {slug} has no state {key!r}", field="key", hint="state_list shows the keys")
        return value

    return await core.db.read(caller, body)


async def list_state(core: Core, caller: Caller, slug: str, category: str | None) -> list[StateValue]:
    return await core.db.read(
        caller, lambda tx: rows.list_state(tx, found(tx, slug).id, category, _STATE_KEYS)
    )


def found(tx: Tx, slug: str, *, lock: bool = False, field: str = "plan_slug") -> Plan:
    """The caller's plan of that slug, or NotFound."""
    plans = rows.by_slug(tx, slug, lock=lock)
    if not plans:
        raise NotFound(f"plan {slug} not found", field=field, hint="plan_list shows your plans")
    if len(plans) > 1:
        raise Invalid(f"several users have a plan {slug}", field=field, hint="use a user's own token")
    return plans[0]


def _phase(phases: Sequence[Phase], which: int | str) -> Phase:
    """A phase by its order, counted from 1, or by its name."""
    if isinstance(which, str) and which.strip().isdecimal():
        which = int(which)
    if isinstance(which, int):
        named = [phase for phase in phases if phase.position == which]
    else:
        named = [phase for phase in phases if phase.name.casefold() == which.strip().casefold()]
    if len(named) == 1:
        return named[0]
    if named:
        raise Invalid(f"several phases are named {which!r}", field="phase_order", hint="use the order")
    known = ", ".join(f"{phase.position} {phase.name}" for phase in phases[:20])
    raise NotFound(f"there is no phase {which!r}", field="phase_order", hint=f"there are: {known or 'none'}")


def _task(its_tasks: Sequence[Task], identifier: int | str) -> Task:
    """A task by its index, counted from 0, its id or its title."""
    if isinstance(identifier, int):
        if 0 <= identifier < len(its_tasks):
            return its_tasks[identifier]
        raise NotFound(
            f"the phase has no task {identifier}",
            field="task_identifier",
            hint=f"it has {len(its_tasks)}, counted from 0",
        )
    named = [task for task in its_tasks if task.id == identifier]
    named = named or [task for task in its_tasks if task.title == identifier]
    named = named or [task for task in its_tasks if task.title.casefold() == identifier.strip().casefold()]
    if len(named) == 1:
        return named[0]
    if named:
        raise Invalid(
            f"several tasks are named {identifier!r}", field="task_identifier", hint="use the index or the id"
        )
    raise NotFound(
        f"the phase has no task {identifier!r}", field="task_identifier", hint="phase_get lists them"
    )
