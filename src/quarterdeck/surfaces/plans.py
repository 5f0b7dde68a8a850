"""The plans dialect: plans, phases, their tasks, and the state that agents share."""

from typing import Annotated, Any

from pydantic import AfterValidator, AliasChoices, Field, StrictInt, StrictStr

from quarterdeck.core import plans
from quarterdeck.domain.errors import Invalid, QuarterdeckError, Unavailable
from quarterdeck.domain.ids import iso
from quarterdeck.domain.plans import PhaseStatus, PlanStatus, PlanTaskStatus, Progress, progress, shown_status
from quarterdeck.domain.records import Plan, StateValue, Task
from quarterdeck.surfaces.schema import Args, Label, Object, Row, Text, Title, bounded
from quarterdeck.surfaces.table import Call, tool

Slug = Annotated[str, Field(min_length=1, max_length=200)]
Ref = StrictInt | Annotated[StrictStr, Field(min_length=1, max_length=500)]
Note = Annotated[str, Field(min_length=1, max_length=20_000)]

_CHECKPOINTS = 20


class PlannedTask(Args):
    name: Title = Field(validation_alias=AliasChoices("name", "title"))
    description: Text | None = None


class PlannedPhase(Args):
    name: Title
    description: Text | None = None
    tasks: Annotated[list[Title | PlannedTask], Field(default_factory=list, max_length=200)]


class PlanCreate(Args):
    title: Title
    slug: Slug | None = None
    description: Text | None = None
    context: Object | None = None
    phases: Annotated[list[PlannedPhase], Field(default_factory=list, max_length=50)]


@tool("write", "planner")
async def plan_create(call: Call, a: PlanCreate) -> Row:
    """Create a work plan with phases and tasks."""
    view = await plans.create(
        call.core,
        call.caller,
        title=a.title,
        slug=a.slug,
        description=a.description,
        context=a.context,
        phases=[_new_phase(phase) for phase in a.phases],
    )
    return {"success": True, "plan": created_row(view)}


def created_row(view: plans.PlanView) -> Row:
    return {
        "slug": view.plan.slug,
        "title": view.plan.title,
        "status": view.plan.status,
        "phases": len(view.phases),
    }


def _new_phase(phase: PlannedPhase) -> plans.NewPhase:
    tasks = [
        plans.NewTask(task) if isinstance(task, str) else plans.NewTask(task.name, task.description)
        for task in phase.tasks
    ]
    return plans.NewPhase(phase.name, phase.description, tasks)


class PlanGet(Args):
    slug: Slug = Field(validation_alias=AliasChoices("slug", "plan_slug"))
    format: Annotated[str, Field(pattern="^(json|markdown)$")] = "json"


@tool("read", "viewer", binds=("slug",))
async def plan_get(call: Call, a: PlanGet) -> Row:
    """A plan with progress, phases, tasks and checkpoints. format: json or markdown."""
    view = await plans.get(call.core, call.caller, a.slug)
    if a.format == "markdown":
        return {"success": True, "markdown": _markdown(view)}
    return {"success": True, "plan": plan_row(view)}


class PlanList(Args):
    status: PlanStatus | None = None
    limit: int = 20
    include_archived: bool = False


@tool("read", "viewer")
async def plan_list(call: Call, a: PlanList) -> Row:
    """Plans, newest first. limit 1-100."""
    found = await plans.listing(
        call.core, call.caller, status=a.status, limit=a.limit, include_archived=a.include_archived
    )
    rows = [{**_summary(plan), "progress": _progress(done)} for plan, done in found]
    return {"success": True, "plans": rows, "count": len(rows)}


class PlanUpdateStatus(Args):
    slug: Slug = Field(validation_alias=AliasChoices("slug", "plan_slug"))
    status: PlanStatus


@tool("write", "planner", binds=("slug",))
async def plan_update_status(call: Call, a: PlanUpdateStatus) -> Row:
    """Set a plan's status."""
    return _changed(await plans.set_status(call.core, call.caller, a.slug, a.status))


class PlanArchive(Args):
    slug: Slug = Field(validation_alias=AliasChoices("slug", "plan_slug"))
    reason: Text | None = None


@tool("write", "planner", binds=("slug",))
async def plan_archive(call: Call, a: PlanArchive) -> Row:
    """Archive a plan."""
    return _changed(await plans.set_status(call.core, call.caller, a.slug, "archived", reason=a.reason))


class OnPhase(Args):
    plan_slug: Slug
    phase_order: Ref = Field(validation_alias=AliasChoices("phase_order", "phase"))


@tool("read", "viewer", binds=("plan_slug",))
async def phase_get(call: Call, a: OnPhase) -> Row:
    """A phase by its order (from 1) or name."""
    view = await plans.get_phase(call.core, call.caller, a.plan_slug, a.phase_order)
    return {"success": True, "phase": phase_row(view)}


class PhaseUpdateStatus(OnPhase):
    status: PhaseStatus
    reason: Text | None = Field(default=None, validation_alias=AliasChoices("reason", "notes"))


@tool("write", "pair_worker", binds=("plan_slug",))
async def phase_update_status(call: Call, a: PhaseUpdateStatus) -> Row:
    """Set a phase's status, with a reason when blocked or skipped."""
    view = await plans.set_phase(
        call.core, call.caller, a.plan_slug, a.phase_order, a.status, reason=a.reason
    )
    return {"success": True, "phase": phase_row(view)}


class PhaseAddCheckpoint(OnPhase):
    note: Note
    context: Object | None = None


@tool("write", "pair_worker", binds=("plan_slug",))
async def phase_add_checkpoint(call: Call, a: PhaseAddCheckpoint) -> Row:
    """Add a checkpoint note to a phase."""
    phase, checkpoint = await plans.add_checkpoint(
        call.core, call.caller, a.plan_slug, a.phase_order, a.note, a.context
    )
    shown = {"note": checkpoint.note, "context": checkpoint.context, "created_at": iso(checkpoint.created_at)}
    return {"success": True, "checkpoint": {"phase_order": phase.position, "phase": phase.name, **shown}}


class OnTask(OnPhase):
    task_identifier: Ref = Field(validation_alias=AliasChoices("task_identifier", "task_index"))


class TaskUpdate(OnTask):
    status: PlanTaskStatus | None = None
    notes: Text | None = None


@tool("write", "pair_worker", binds=("plan_slug",))
async def task_update(call: Call, a: TaskUpdate) -> Row:
    """Set the status or notes of a plan's task, by index (from 0), id or title."""
    if a.status is None and a.notes is None:
        raise Invalid("status or notes is required", field="status")
    task, view = await plans.update_task(
        call.core,
        call.caller,
        a.plan_slug,
        a.phase_order,
        a.task_identifier,
        status=a.status,
        notes=a.notes,
    )
    return _task_changed(task, view)


@tool("write", "pair_worker", binds=("plan_slug",))
async def task_toggle(call: Call, a: OnTask) -> Row:
    """Flip a plan's task between completed and pending."""
    task, view = await plans.update_task(
        call.core, call.caller, a.plan_slug, a.phase_order, a.task_identifier, toggle=True
    )
    return _task_changed(task, view)


class StateSet(Args):
    plan_slug: Slug
    key: Label
    value: Annotated[Any, AfterValidator(bounded), Field(description="any JSON")]
    category: Label = "general"


@tool("write", "pair_worker", binds=("plan_slug",))
async def state_set(call: Call, a: StateSet) -> Row:
    """Put any JSON value under a key of a plan."""
    return {
        "success": True,
        "state": state_row(
            await plans.set_state(call.core, call.caller, a.plan_slug, a.key, a.value, a.category)
        ),
    }


class StateGet(Args):
    plan_slug: Slug
    key: Label


@tool("read", "viewer", binds=("plan_slug",))
async def state_get(call: Call, a: StateGet) -> Row:
    """A plan's value under a key."""
    value = await plans.get_state(call.core, call.caller, a.plan_slug, a.key)
    return {"success": True, "state": state_row(value)}


class StateList(Args):
    plan_slug: Slug
    category: Label | None = None


@tool("read", "viewer", binds=("plan_slug",))
async def state_list(call: Call, a: StateList) -> Row:
    """A plan's values by key."""
    found = [state_row(v) for v in await plans.list_state(call.core, call.caller, a.plan_slug, a.category)]
    return {"success": True, "state": found, "count": len(found)}


def plan_row(view: plans.PlanView) -> Row:
    plan = view.plan
    return {
        **_summary(plan),
        "description": plan.description,
        "context": plan.context,
        "progress": _progress(view.progress),
        "phases": [phase_row(phase) for phase in view.phases],
        "template": (plan.template or {}).get("slug"),
        "archive_reason": plan.archive_reason,
        "completed_at": iso(plan.completed_at),
    }


def _summary(plan: Plan) -> Row:
    return {
        "slug": plan.slug,
        "title": plan.title,
        "status": plan.status,
        "created_at": iso(plan.created_at),
        "updated_at": iso(plan.updated_at),
    }


def phase_row(view: plans.PhaseView) -> Row:
    return {
        "order": view.phase.position,
        "name": view.phase.name,
        "description": view.phase.description,
        "status": view.phase.status,
        "reason": view.phase.reason,
        "progress": _progress(progress(view.tasks)),
        "tasks": [task_row(index, task) for index, task in enumerate(view.tasks)],
        "checkpoints": [
            {"note": note.note, "context": note.context, "created_at": iso(note.created_at)}
            for note in view.checkpoints[-_CHECKPOINTS:]
        ],
    }


def task_row(index: int | None, task: Task) -> Row:
    """A task as a plan words it, beside the core's own state."""
    return {
        "index": task.position if index is None else index,
        "id": task.id,
        "name": task.title,
        "description": task.description,
        "status": shown_status(task.status),
        "state": task.status,
        "notes": task.notes,
    }


def state_row(value: StateValue) -> Row:
    return {
        "key": value.key,
        "value": value.value,
        "category": value.category,
        "updated_at": iso(value.updated_at),
    }


def _progress(done: Progress) -> Row:
    return {"total": done.total, "completed": done.completed, "percentage": done.percentage}


def _changed(view: plans.PlanView) -> Row:
    shown = {**_summary(view.plan), "progress": _progress(view.progress)}
    if view.plan.archive_reason is not None:
        shown["archive_reason"] = view.plan.archive_reason
    return {"success": True, "plan": shown}


def _task_changed(task: Task, view: plans.PlanView) -> Row:
    phase = next(phase for phase in view.phases if phase.phase.id == task.phase_id)
    return {
        "success": True,
        "task": task_row(None, task),
        "phase": {"order": phase.phase.position, "name": phase.phase.name, "status": phase.phase.status},
        "plan": {
            "slug": view.plan.slug,
            "status": view.plan.status,
            "progress": _progress(view.progress),
        },
    }


def _markdown(view: plans.PlanView) -> str:
    plan, done = view.plan, view.progress
    lines = [f"# {plan.title}", "", f"**{plan.status}**, {done.completed} of {done.total} tasks", ""]
    lines += [plan.description, ""] if plan.description else []
    for phase in view.phases:
        lines += [f"## {phase.phase.position}. {phase.phase.name} ({phase.phase.status})", ""]
        lines += [phase.phase.description, ""] if phase.phase.description else []
        for task in phase.tasks:
            mark = "x" if task.status == "completed" else "-" if task.status == "cancelled" else " "
            lines.append(f"- [{mark}] {task.title}" + (f" ({task.notes})" if task.notes else ""))
        lines += ["", *(f"> {note.note}" for note in phase.checkpoints[-_CHECKPOINTS:])]
        lines += [""] if phase.checkpoints else []
    return "\n".join(lines).rstrip() + "\n"


# This document knows five codes; every refusal is one of them.
_CODES = {
    "validation_error": "validation_error",
    "invalid_transition": "validation_error",
    "conflict": "validation_error",
    "unknown_tool": "not_found",
    "not_found": "not_found",
    "permission_denied": "permission_denied",
    "rate_limited": "rate_limited",
}


def word(error: QuarterdeckError) -> Row:
    """The error body of this surface."""
    message = "Agentic service temporarily unavailable" if type(error) is Unavailable else error.message
    body: Row = {"error": message, "code": _CODES.get(error.code, "service_unavailable")}
    if error.field:
        body["field"] = error.field
    if error.hint:
        body["hint"] = error.hint
    return body | error.data


TOOLS = (
    plan_create,
    plan_get,
    plan_list,
    plan_update_status,
    plan_archive,
    phase_get,
    phase_update_status,
    phase_add_checkpoint,
    state_set,
    state_get,
    state_list,
    task_update,
    task_toggle,
)
