"""One task: what it says, how it came to its state, what was decided, and what its runs did."""

from quarterdeck.core import cards, tasks
from quarterdeck.domain.errors import Invalid
from quarterdeck.domain.states import ACTIONS
from quarterdeck.server.web.routing import Answer, Request, go, route
from quarterdeck.server.web.show import page


@route("GET", "/tasks/{id}")
async def task(request: Request) -> Answer:
    context = await tasks.context(request.core, request.caller, request.params["id"])
    found, _ = await cards.some(request.core, request.caller, [context.history.task.id], {})
    return page(request, "task.html", context=context, task=context.history.task, card=found[0])


@route("POST", "/tasks/{id}/act", "operator")
async def act(request: Request) -> Answer:
    """An action of the state machine."""
    action = request.given("action")
    if action not in ACTIONS:
        raise Invalid(f"there is no action {action[:40]!r}", field="action")
    changes = tasks.Changes(
        action=action, reason=request.given("reason")[:2000] or None, actor=request.caller.actor
    )
    changed = await tasks.update(request.core, request.caller, request.params["id"], changes)
    return go(request, f"/tasks/{changed.id}")


@route("POST", "/tasks/{id}/route", "operator")
async def assign(request: Request) -> Answer:
    """Let the router choose the agent."""
    _, changed = await tasks.route(request.core, request.caller, request.params["id"], assign=True)
    return go(request, f"/tasks/{changed.id}")
