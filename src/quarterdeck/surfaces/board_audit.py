"""The board's view of the event log."""

from quarterdeck.core import audit
from quarterdeck.domain.callers import SYSTEM
from quarterdeck.domain.ids import iso
from quarterdeck.events import Event
from quarterdeck.surfaces.schema import Args, Id, Label, Row
from quarterdeck.surfaces.table import Call, tool


class AuditTail(Args):
    capability: Label | None = None
    limit: int = 50
    cursor: Label | None = None
    actor: Label | None = None
    task_id: Id | None = None
    ok: bool | None = None


@tool("read", "viewer", binds=("task_id",))
async def audit_tail(call: Call, a: AuditTail) -> Row:
    """What was done or refused, newest first. capability: a tool. limit 1-200."""
    wanted = audit.Wanted(tool=a.capability, actor=a.actor, task=a.task_id, ok=a.ok)
    found = await audit.tail(call.core, call.caller, wanted, cursor=a.cursor, limit=a.limit)
    rows = [event_row(event) for event in found.events]
    return {"success": True, "events": rows, "count": len(rows), "next_cursor": found.next_cursor}


def event_row(event: Event) -> Row:
    """An event as the board words it."""
    return {
        "event_id": event.seq,
        "occurred_at": iso(event.at),
        "actor_type": _actor_type(event),
        "actor_id": event.actor,
        "capability": event.tool or None,
        "command_name": event.kind,
        "entity_id": event.entity_id,
        "task_id": event.task_id,
        "success": event.ok,
        "data": event.data,
    }


def _actor_type(event: Event) -> str:
    if event.actor == SYSTEM.actor:
        return "system"
    return "admin" if event.user_id is None else "user"


TOOLS = (audit_tail,)
