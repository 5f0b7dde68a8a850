"""Memory: decisions and patterns by meaning, and how they turned out."""

from quarterdeck.core import memory
from quarterdeck.domain.errors import Invalid
from quarterdeck.server.web.routing import Answer, Request, go, route
from quarterdeck.server.web.show import page
from quarterdeck.surfaces.schema import Args, Some, parse


@route("GET", "/memory")
async def search_memory(request: Request) -> Answer:
    query = (request.asked("q") or "")[:2000]
    tags = [tag.strip() for tag in (request.asked("tags") or "").split(",") if tag.strip()]
    # Without a word to look for, the newest: an empty text is in every other.
    decisions = await memory.search_decisions(
        request.core, request.caller, query, limit=50, tags=tags or None
    )
    patterns = await memory.match_patterns(request.core, request.caller, query, limit=50)
    return page(
        request,
        "memory.html",
        query=query,
        tags=", ".join(tags),
        decisions=decisions,
        patterns=patterns,
        mode=request.core.memory.state,
        reason=request.core.memory.reason,
    )


class OutcomeForm(Args):
    outcome: Some


@route("POST", "/memory/decisions/{id}/outcome", "pair_worker")
async def record_outcome(request: Request) -> Answer:
    form = parse(OutcomeForm, {"outcome": request.given("outcome")})
    await memory.record_outcome(request.core, request.caller, request.params["id"], form.outcome)
    return go(request, "/memory", **({"q": request.given("q")} if request.given("q") else {}))


@route("POST", "/memory/patterns/{id}/use", "pair_worker")
async def record_use(request: Request) -> Answer:
    worked = request.given("success")
    if worked not in ("yes", "no"):
        raise Invalid("say whether it worked", field="success")
    await memory.record_use(request.core, request.caller, request.params["id"], success=worked == "yes")
    return go(request, "/memory", **({"q": request.given("q")} if request.given("q") else {}))
