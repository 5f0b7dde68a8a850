"""The event log as people read it: newest first, by what they look for."""

from collections.abc import Mapping

from sqlalchemy import func, select

from quarterdeck.events import Event
from quarterdeck.store.schema import events
from quarterdeck.store.tx import Tx, record, within


def newest(tx: Tx, filters: Mapping[str, str], before: int | None, count: int) -> list[Event]:
    """The caller's events before a number, newest first.

    The filters are a kind or its noun, an actor, a tool, a task, a row, and `ok` as yes or no.
    """
    conditions = within(events, tx.shape)
    for name, column in (("tool", "tool"), ("task", "task_id"), ("entity", "entity_id")):
        if name in filters:
            conditions.append(events.c[column] == filters[name])
    if "kind" in filters:
        kind = filters["kind"]
        whole = (
            events.c.kind == kind if "." in kind else events.c.kind.startswith(f"{kind}.", autoescape=True)
        )
        conditions.append(whole)
    if "actor" in filters:
        position = func.instr if tx.dialect == "sqlite" else func.strpos
        conditions.append(position(func.lower(events.c.actor), func.lower(filters["actor"])) > 0)
    if "ok" in filters:
        conditions.append(events.c.ok.is_(filters["ok"] == "yes"))
    if before is not None:
        conditions.append(events.c.seq < before)
    statement = select(events).where(*conditions).order_by(events.c.seq.desc()).limit(count)
    return [record(Event, row) for row in tx.all(statement)]


def steps_of(tx: Tx, job_id: str, count: int) -> list[Event]:
    """The newest steps that the caller's job told of, oldest of them first."""
    statement = (
        select(events)
        .where(events.c.entity_id == job_id, events.c.kind == "job.progress", *within(events, tx.shape))
        .order_by(events.c.seq.desc())
        .limit(count)
    )
    return [record(Event, row) for row in reversed(tx.all(statement))]
