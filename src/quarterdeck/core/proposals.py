"""Proposed plans: kept until a person accepts one, which puts its tasks on the board, or dismisses it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, Literal

from quarterdeck.core import plans, projects, settings
from quarterdeck.core.context import Core
from quarterdeck.domain.callers import Caller
from quarterdeck.domain.errors import Conflict, NotFound
from quarterdeck.domain.ids import new_id
from quarterdeck.domain.records import Proposal
from quarterdeck.store import projects as project_rows
from quarterdeck.store import proposals as rows
from quarterdeck.store.tx import Tx

Status = Literal["received", "accepted", "dismissed"]
LISTED: Final = 100
_TITLE: Final = 100


async def propose(
    core: Core, caller: Caller, tasks: Sequence[dict[str, Any]], todos: Sequence[dict[str, Any]]
) -> tuple[Proposal, plans.PlanView | None]:
    """Keep a proposal for the project that the caller has open.

    Where that is the setting it is accepted at once; the plan is what became of it.
    """
    at_once = await settings.get(core, "general.auto_approve")

    def body(tx: Tx) -> tuple[Proposal, plans.PlanView | None]:
        proposal = Proposal(
            id=new_id(),
            user_id=caller.user_id,
            project_id=caller.project_id or project_rows.opened(tx),
            tasks=list(tasks),
            todos=list(todos),
            status="received",
            plan_id=None,
            created_by=caller.actor,
            created_at=tx.now,
            updated_at=tx.now,
        )
        rows.add(tx, proposal)
        tx.emit("proposal.received", proposal.id, tasks=len(proposal.tasks), todos=len(proposal.todos))
        return _accepted(tx, proposal) if at_once else (proposal, None)

    return await core.db.tx(caller, body)


async def listing(core: Core, caller: Caller, status: str | None, limit: int) -> list[Proposal]:
    """The caller's proposals, newest first; `limit` is clamped to 1–100."""
    return await core.db.read(caller, rows.newest, min(max(limit, 1), LISTED), status)


async def accept(
    core: Core, caller: Caller, proposal_id: str, *, title: str | None = None, project_id: str | None = None
) -> tuple[Proposal, plans.PlanView]:
    """Make the proposal a plan of one phase; its tasks are on the board from then on."""

    return await core.db.tx(
        caller, lambda tx: _accepted(tx, _open(tx, proposal_id), title=title, project_id=project_id)
    )


def _accepted(
    tx: Tx, proposal: Proposal, *, title: str | None = None, project_id: str | None = None
) -> tuple[Proposal, plans.PlanView]:
    target = project_id or proposal.project_id or project_rows.opened(tx)
    if target is not None:
        projects.seen(tx, target)
    named = title or str(proposal.tasks[0]["title"])[:_TITLE]
    phase = plans.NewPhase("Tasks", None, [_task(task) for task in proposal.tasks])
    context = {"proposal_id": proposal.id, "todos": proposal.todos}
    new = plans.NewPlan(named, context=context, phases=[phase], status="active", project_id=target)
    view = plans.make(tx, new)
    return _close(tx, proposal, "accepted", view.plan.id), view


def _task(task: dict[str, Any]) -> plans.NewTask:
    return plans.NewTask(
        task["title"],
        task["description"] or None,
        task["priority"],
        task["type"],
        task["acceptance_criteria"],
    )


async def dismiss(core: Core, caller: Caller, proposal_id: str) -> Proposal:
    """Set a proposal aside; it stays readable."""
    return await core.db.tx(caller, lambda tx: _close(tx, _open(tx, proposal_id), "dismissed"))


def _open(tx: Tx, proposal_id: str) -> Proposal:
    """The caller's proposal that nobody has decided on, or why it is none."""
    proposal = rows.held(tx, proposal_id)
    if proposal is None:
        raise NotFound(
            f"proposal {proposal_id} not found", field="proposal_id", hint="proposals_list shows them"
        )
    if proposal.status != "received":
        raise Conflict(f"the proposal was {proposal.status} already", field="proposal_id")
    return proposal


def _close(tx: Tx, proposal: Proposal, status: Status, plan_id: str | None = None) -> Proposal:
    rows.change(tx, proposal.id, {"status": status, "plan_id": plan_id, "updated_at": tx.now})
    tx.emit("proposal.decided", proposal.id, user_id=proposal.user_id, status=status, plan_id=plan_id)
    return replace(proposal, status=status, plan_id=plan_id, updated_at=tx.now)
