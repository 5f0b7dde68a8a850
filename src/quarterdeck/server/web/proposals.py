"""Proposed plans: accept one, or set it aside."""

from quarterdeck.core import proposals
from quarterdeck.server.web.routing import Answer, Request, go, route


@route("POST", "/proposals/{id}/accept", "operator")
async def accept_proposal(request: Request) -> Answer:
    title = request.given("title")[:200] or None
    _, view = await proposals.accept(request.core, request.caller, request.params["id"], title=title)
    return go(request, f"/plans/{view.plan.slug}")


@route("POST", "/proposals/{id}/dismiss", "operator")
async def dismiss_proposal(request: Request) -> Answer:
    await proposals.dismiss(request.core, request.caller, request.params["id"])
    return go(request, "/plans")
