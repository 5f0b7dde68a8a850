"""Work sessions: what agents logged, and what they left to the next one."""

from typing import get_args

from quarterdeck.core import sessions
from quarterdeck.domain.errors import Invalid
from quarterdeck.domain.sessions import SessionStatus
from quarterdeck.server.web.routing import Answer, Request, route
from quarterdeck.server.web.show import page


@route("GET", "/sessions")
async def all_sessions(request: Request) -> Answer:
    status = request.asked("status")
    statuses = get_args(SessionStatus)
    if status is not None and status not in statuses:
        raise Invalid(f"there is no status {status[:40]!r}", field="status")
    found = await sessions.listing(request.core, request.caller, status=status, limit=100)
    return page(request, "sessions.html", sessions=found, status=status, statuses=statuses)


@route("GET", "/sessions/{id}")
async def one_session(request: Request) -> Answer:
    replay = await sessions.replay(request.core, request.caller, request.params["id"])
    return page(request, "session.html", replay=replay, session=replay.session)
