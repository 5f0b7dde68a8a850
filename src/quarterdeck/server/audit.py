"""The event log over REST, for those who look after the core."""

from typing import Any
from urllib.parse import parse_qsl

from starlette.types import Receive, Scope, Send

from quarterdeck.core import audit
from quarterdeck.core.context import Core
from quarterdeck.domain.callers import Caller
from quarterdeck.domain.errors import Denied, QuarterdeckError
from quarterdeck.server.http import answer, refuse
from quarterdeck.surfaces.board_audit import AuditTail, event_row
from quarterdeck.surfaces.schema import parse

PATH = "/api/audit"


async def serve(core: Core, caller: Caller, scope: Scope, receive: Receive, send: Send) -> None:
    """`GET /api/audit` with the arguments of `audit_tail`, and `GET /api/audit/verify`."""
    if scope["method"] != "GET":
        await answer(send, 405, {"detail": f"{scope['method']} is not served here"}, [(b"allow", b"GET")])
        return
    path = scope["path"].rstrip("/")
    try:
        _check(caller)
        if path == f"{PATH}/verify":
            await answer(send, 200, await _verify(core))
        elif path == PATH:
            await answer(send, 200, await _tail(core, caller, scope))
        else:
            await answer(send, 404, {"detail": f"there are {PATH} and {PATH}/verify"})
    except QuarterdeckError as error:
        await refuse(send, error)


def _check(caller: Caller) -> None:
    if caller.bound or not caller.may("maintainer"):
        raise Denied("the log is for maintainers", hint="audit_tail shows your own events")


async def _verify(core: Core) -> dict[str, Any]:
    found = await audit.verify(core)
    return {
        "ok": found.broken is None,
        "checked": found.checked,
        "broken": found.broken,
        "tip": found.tip,
    }


async def _tail(core: Core, caller: Caller, scope: Scope) -> dict[str, Any]:
    given = dict(parse_qsl(scope["query_string"].decode("latin-1"), errors="surrogateescape"))
    a = parse(AuditTail, dict(given), "docs/board.md lists the arguments of audit_tail")
    wanted = audit.Wanted(tool=a.capability, actor=a.actor, task=a.task_id, ok=a.ok)
    found = await audit.tail(core, caller, wanted, cursor=a.cursor, limit=a.limit)
    return {"events": [event_row(event) for event in found.events], "next_cursor": found.next_cursor}
