"""The audit: who did what, when, and whether it was allowed."""

from quarterdeck.core import audit as log
from quarterdeck.core import trail
from quarterdeck.domain.errors import Invalid
from quarterdeck.server.web.routing import Answer, Request, route
from quarterdeck.server.web.show import page


@route("GET", "/audit")
async def audit(request: Request) -> Answer:
    filters = {name: value[:200] for name in trail.FILTERS if (value := request.asked(name)) is not None}
    if filters.get("ok", "yes") not in ("yes", "no"):
        raise Invalid("ok must be yes or no", field="ok")
    before = request.asked("before")
    if before is not None and not (before.isdecimal() and len(before) < 18):
        raise Invalid("before must be a number", field="before")
    found = await trail.page(
        request.core, request.caller, filters, before=int(before) if before else None, count=100
    )
    verdict = None
    if request.asked("verify") and request.may("maintainer"):
        verdict = await log.verify(request.core)
    return page(request, "audit.html", found=found, filters=filters, verdict=verdict)
