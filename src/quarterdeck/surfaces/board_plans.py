"""Proposing a plan, and deciding on what was proposed."""

from typing import Annotated, Literal

from pydantic import AliasChoices, BeforeValidator, Field

from quarterdeck.core import proposals
from quarterdeck.core.plans import PlanView
from quarterdeck.domain.ids import iso
from quarterdeck.domain.records import Proposal
from quarterdeck.surfaces.board import TaskType, envelope, task_row
from quarterdeck.surfaces.board_tasks import Criteria
from quarterdeck.surfaces.schema import Args, Id, Label, Row
from quarterdeck.surfaces.table import Call, tool


def _lowered(value: object) -> object:
    return value.lower() if isinstance(value, str) else value


class ProposedTask(Args):
    title: Label
    type: TaskType = Field(default="PAIR", validation_alias=AliasChoices("type", "task_type"))
    description: Annotated[str, Field(max_length=10_000)] = ""
    acceptance_criteria: Annotated[Criteria, Field(default_factory=list)]
    priority: Annotated[Literal["low", "medium", "high"], BeforeValidator(_lowered)] = "medium"


class Todo(Args):
    content: Label
    status: Literal["pending", "in_progress", "completed", "failed"] = "completed"


class ProposePlan(Args):
    tasks: Annotated[list[ProposedTask], Field(min_length=1, max_length=100)]
    todos: Annotated[list[Todo], Field(default_factory=list, max_length=200)]


@tool("write", "planner")
async def propose_plan(call: Call, a: ProposePlan) -> Row:
    """Propose a plan; a person turns it into tasks on the board. todos: how you got there."""
    tasks, todos = ([each.model_dump() for each in given] for given in (a.tasks, a.todos))
    proposal, view = await proposals.propose(call.core, call.caller, tasks, todos)
    kept: Row = {
        "status": proposal.status,
        "proposal_id": proposal.id,
        "task_count": len(tasks),
        "todo_count": len(todos),
        "todos": todos,
    }
    if view is None:
        said = "proposal received; it waits for a person"
        return envelope(True, said, "PROPOSAL_RECEIVED", **kept, tasks=tasks)
    return envelope(True, _on_the_board(view), "PROPOSAL_ACCEPTED", **kept, **_made(view))


def _on_the_board(view: PlanView) -> str:
    return f"plan {view.plan.slug} with {view.progress.total} tasks is on the board"


def _made(view: PlanView) -> Row:
    """What a proposal became."""
    return {
        "plan": view.plan.slug,
        "tasks": [task_row(task) for phase in view.phases for task in phase.tasks],
    }


class ProposalsList(Args):
    status: proposals.Status | None = None
    limit: int = 10


@tool("read", "viewer", addition=True)
async def proposals_list(call: Call, a: ProposalsList) -> Row:
    """Proposed plans, newest first. limit 1-100."""
    found = await proposals.listing(call.core, call.caller, a.status, a.limit)
    rows = [_row(proposal) for proposal in found]
    return {"success": True, "proposals": rows, "count": len(rows)}


class ProposalAccept(Args):
    proposal_id: Id
    title: Label | None = None
    project_id: Id | None = None


@tool("write", "operator", addition=True)
async def proposal_accept(call: Call, a: ProposalAccept) -> Row:
    """Make a proposal a plan, with its tasks on the board."""
    proposal, view = await proposals.accept(
        call.core, call.caller, a.proposal_id, title=a.title, project_id=a.project_id
    )
    return envelope(True, _on_the_board(view), "ACCEPTED", proposal_id=proposal.id, **_made(view))


class ProposalDismiss(Args):
    proposal_id: Id


@tool("write", "operator", addition=True)
async def proposal_dismiss(call: Call, a: ProposalDismiss) -> Row:
    """Set a proposal aside."""
    proposal = await proposals.dismiss(call.core, call.caller, a.proposal_id)
    return envelope(True, "proposal dismissed", "DISMISSED", proposal_id=proposal.id)


def _row(proposal: Proposal) -> Row:
    return {
        "proposal_id": proposal.id,
        "status": proposal.status,
        "project_id": proposal.project_id,
        "created_by": proposal.created_by,
        "created_at": iso(proposal.created_at),
        "tasks": [
            {"title": task["title"], "type": task["type"], "priority": task["priority"]}
            for task in proposal.tasks
        ],
        "todo_count": len(proposal.todos),
    }


TOOLS = (propose_plan, proposals_list, proposal_accept, proposal_dismiss)
