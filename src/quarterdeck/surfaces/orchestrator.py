"""The orchestrator dialect: task state machine, decisions, patterns, routing."""

from dataclasses import asdict
from typing import Annotated

from pydantic import Field

from quarterdeck.core import cache, memory, registry, tasks
from quarterdeck.domain.agents import as_row
from quarterdeck.domain.classify import classify
from quarterdeck.domain.errors import QuarterdeckError
from quarterdeck.domain.ids import iso, now_us
from quarterdeck.domain.models import select_model as model_for
from quarterdeck.domain.records import Decision, Pattern, Task, Transition, as_dict
from quarterdeck.domain.states import Action, Priority, Status
from quarterdeck.surfaces.schema import Args, Id, Label, Object, Row, Some, Text, Title
from quarterdeck.surfaces.table import Call, Surface, tool

Tags = Annotated[list[Label], Field(max_length=50)]

SERVER_NAME = "manticscore-orchestrator"


class Nothing(Args):
    pass


@tool("read", "viewer", catalog=True)
async def ping(call: Call, a: Nothing) -> Row:
    """Health probe: server identity and UTC time."""
    return {"pong": True, "server": SERVER_NAME, "ts": iso(now_us())}


class DecisionLog(Args):
    context: Some
    decision: Some
    task_id: Id | None = None
    outcome: Text | None = None
    confidence: Annotated[float, Field(ge=0, le=1)] | None = None
    tags: Tags | None = None


@tool("write", "pair_worker", binds=("task_id",))
async def decision_log(call: Call, a: DecisionLog) -> Row:
    """Append a decision to the log; searchable once embedded."""
    return decision_row(
        await memory.log_decision(
            call.core,
            call.caller,
            context=a.context,
            decision=a.decision,
            task_id=a.task_id,
            outcome=a.outcome,
            confidence=a.confidence,
            tags=a.tags or (),
        )
    )


class DecisionSearch(Args):
    query: Some
    limit: int = 10
    tags: Tags | None = None


@tool("read", "viewer")
async def decision_search(call: Call, a: DecisionSearch) -> list[Row]:
    """Past decisions by meaning, optionally with any of the tags. limit 1-50."""
    found = await memory.search_decisions(call.core, call.caller, a.query, limit=a.limit, tags=a.tags)
    return [_similar(decision_row(decision), similarity) for decision, similarity in found]


class DecisionOutcome(Args):
    decision_id: Id
    outcome: Some


@tool("write", "pair_worker", binds=("decision_id",), addition=True)
async def decision_outcome(call: Call, a: DecisionOutcome) -> Row:
    """Record how a decision turned out."""
    return decision_row(await memory.record_outcome(call.core, call.caller, a.decision_id, a.outcome))


class PatternStore(Args):
    name: Title
    trigger_conditions: Object
    actions: Object
    description: Text | None = None


@tool("write", "pair_worker")
async def pattern_store(call: Call, a: PatternStore) -> Row:
    """Store a reusable pattern: when it applies and what to do."""
    return pattern_row(
        await memory.store_pattern(
            call.core,
            call.caller,
            name=a.name,
            trigger_conditions=a.trigger_conditions,
            actions=a.actions,
            description=a.description,
        )
    )


class PatternMatch(Args):
    situation: Some
    limit: int = 10


@tool("read", "viewer")
async def pattern_match(call: Call, a: PatternMatch) -> list[Row]:
    """Patterns relevant to a situation. limit 1-50."""
    found = await memory.match_patterns(call.core, call.caller, a.situation, limit=a.limit)
    return [_similar(pattern_row(pattern), similarity) for pattern, similarity in found]


class PatternUsed(Args):
    pattern_id: Id
    success: bool


@tool("write", "pair_worker", addition=True)
async def pattern_used(call: Call, a: PatternUsed) -> Row:
    """Count one use of a pattern and whether it worked."""
    return pattern_row(await memory.record_use(call.core, call.caller, a.pattern_id, success=a.success))


class TaskCreate(Args):
    title: Title
    description: Text | None = None
    priority: Priority = "medium"
    source_channel: Label | None = None
    assigned_agent: Label | None = None
    parent_task_id: Id | None = None
    metadata: Object | None = None


@tool("write", "operator", binds=("parent_task_id",))
async def task_create(call: Call, a: TaskCreate) -> Row:
    """Create a task in pending."""
    return task_row(
        await tasks.create(
            call.core,
            call.caller,
            title=a.title,
            description=a.description,
            priority=a.priority,
            source_channel=a.source_channel,
            assigned_agent=a.assigned_agent,
            parent_task_id=a.parent_task_id,
            metadata=a.metadata,
        )
    )


class TaskUpdate(Args):
    task_id: Id
    status: Status | None = None
    action: Action | None = None
    title: Title | None = None
    description: Text | None = None
    priority: Priority | None = None
    assigned_agent: Label | None = None
    metadata: Object | None = None
    reason: Text | None = None
    actor: Label | None = None


@tool("write", "operator", binds=("task_id",))
async def task_update(call: Call, a: TaskUpdate) -> Row:
    """Change a task's fields and, by action (preferred) or status, its state. metadata is merged."""
    changes = tasks.Changes(**a.model_dump(exclude={"task_id"}))
    return task_row(await tasks.update(call.core, call.caller, a.task_id, changes))


class TaskList(Args):
    status: Status | None = None
    priority: Priority | None = None
    assigned_agent: Label | None = None
    limit: int = 50


@tool("read", "viewer")
async def task_list(call: Call, a: TaskList) -> list[Row]:
    """Tasks, newest first. limit 1-200."""
    found = await tasks.listing(
        call.core,
        call.caller,
        limit=a.limit,
        status=a.status,
        priority=a.priority,
        assigned_agent=a.assigned_agent,
    )
    return [task_row(task) for task in found]


class OneTask(Args):
    task_id: Id


@tool("read", "viewer", binds=("task_id",))
async def task_get(call: Call, a: OneTask) -> Row:
    """A task with its transitions and the actions valid next."""
    return _history(await tasks.get(call.core, call.caller, a.task_id))


@tool("read", "viewer", binds=("task_id",))
async def context_for_task(call: Call, a: OneTask) -> Row:
    """All an agent needs: task, transitions, decisions, subtasks, matching patterns, valid actions."""
    found = await tasks.context(call.core, call.caller, a.task_id)
    history = _history(found.history)
    return {
        "task": history["task"],
        "transitions": history["transitions"],
        "related_decisions": [decision_row(decision) for decision in found.decisions],
        "subtasks": [task_row(task) for task in found.subtasks],
        "matching_patterns": [_similar(pattern_row(p), similarity) for p, similarity in found.patterns],
        "valid_actions": history["valid_actions"],
    }


class RouteTask(Args):
    task_id: Id
    assign: bool = False


@tool("write", "operator", binds=("task_id",))
async def route_task(call: Call, a: RouteTask) -> Row:
    """Recommend agent and model for a task; assign=true also writes it to the task and the decision log."""
    routing, task = await tasks.route(call.core, call.caller, a.task_id, assign=a.assign)
    return {
        "routing": {
            "agent": as_row(routing.agent),
            "model": routing.model,
            "confidence": routing.confidence,
            "reasoning": routing.reasoning,
            "alternates": list(routing.alternates),
        },
        "task": task_row(task) if a.assign else {"id": task.id, "title": task.title, "status": task.status},
        "action": "assigned" if a.assign else "recommendation_only",
    }


class SelectModel(Args):
    tier: Label
    context: Text | None = None


@tool("read", "viewer", catalog=True)
async def select_model(call: Call, a: SelectModel) -> Row:
    """The model id for a tier: fast, balanced or powerful."""
    return dict(model_for(a.tier, a.context))


@tool("read", "viewer", catalog=True)
async def list_agents(call: Call, a: Nothing) -> list[Row]:
    """Every registered agent with capabilities, model, transport and cost tier."""
    return [as_row(agent) for agent in registry.listing(call.core)]


class GetAgent(Args):
    agent_id: Label


@tool("read", "viewer", catalog=True)
async def get_agent(call: Call, a: GetAgent) -> Row:
    """One agent of the registry."""
    return as_row(registry.get(call.core, a.agent_id))


class Classify(Args):
    title: Title
    description: Text | None = None
    project: Label | None = None


@tool("read", "viewer", catalog=True)
async def orchestrator_classify(call: Call, a: Classify) -> Row:
    """Category and actionability of a task text, by patterns; changes nothing."""
    return asdict(classify(a.title, a.description, a.project))


@tool("write", "maintainer", catalog=True)
async def orchestrator_reset_cache(call: Call, a: Nothing) -> Row:
    """Clear the in-memory caches; how many keys were dropped."""
    return {"cleared_keys": await cache.reset(call.core, call.caller)}


def task_row(task: Task) -> Row:
    return {
        "id": task.id,
        "user_id": task.user_id,
        "title": task.title,
        "description": task.description,
        "status": task.status,
        "priority": task.priority,
        "source_channel": task.source_channel,
        "assigned_agent": task.assigned_agent,
        "parent_task_id": task.parent_task_id,
        "metadata": task.metadata,
        "created_at": iso(task.created_at),
        "updated_at": iso(task.updated_at),
        "completed_at": iso(task.completed_at),
    }


def transition_row(transition: Transition) -> Row:
    return {**as_dict(transition), "created_at": iso(transition.created_at)}


def decision_row(decision: Decision) -> Row:
    return {**as_dict(decision), "created_at": iso(decision.created_at)}


def pattern_row(pattern: Pattern) -> Row:
    return {
        **as_dict(pattern),
        "created_at": iso(pattern.created_at),
        "updated_at": iso(pattern.updated_at),
    }


def _history(history: tasks.History) -> Row:
    return {
        "task": task_row(history.task),
        "transitions": [transition_row(transition) for transition in history.transitions],
        "valid_actions": history.valid_actions,
    }


def _similar(row: Row, similarity: float | None) -> Row:
    return row if similarity is None else {**row, "similarity": round(similarity, 4)}


def word(error: QuarterdeckError) -> Row:
    """The error body of this surface."""
    body: Row = {"error": error.message, "code": error.code}
    if error.field:
        body["field"] = error.field
    if error.hint:
        body["hint"] = error.hint
    return body | error.data


SURFACE = Surface(
    name="orchestrator",
    server_name=SERVER_NAME,
    instructions=(
        "Tasks with a strict state machine (use action, not status), a memory of decisions and patterns, "
        "and routing to agents. context_for_task gathers what a task needs in one call."
    ),
    tools={
        declared.name: declared
        for declared in (
            ping,
            decision_log,
            decision_search,
            pattern_store,
            pattern_match,
            task_create,
            task_update,
            task_list,
            task_get,
            context_for_task,
            route_task,
            select_model,
            list_agents,
            get_agent,
            orchestrator_classify,
            orchestrator_reset_cache,
            decision_outcome,
            pattern_used,
        )
    },
    word=word,
)
