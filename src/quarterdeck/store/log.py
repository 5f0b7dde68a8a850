"""The event log: dense numbers and a hash chain, written last in its transaction."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from sqlalchemy import bindparam, func, insert, or_, select

from quarterdeck.events import GENESIS, Draft, Event
from quarterdeck.store.kept import kept
from quarterdeck.store.schema import events, tasks
from quarterdeck.store.tx import Tx, record, within

_INSERT = kept(insert(events))
_TIP = select(events.c.seq, events.c.hash).order_by(events.c.seq.desc()).limit(1)
_AFTER = (
    select(events).where(events.c.seq > bindparam("seq")).order_by(events.c.seq).limit(bindparam("count"))
)


def tip(tx: Tx) -> tuple[int, str]:
    """The number and hash of the newest event."""
    row = tx.one(_TIP)
    return (0, GENESIS) if row is None else (row.seq, row.hash)


def seal(drafts: Sequence[Draft], seq: int, previous: str) -> list[Event]:
    """Number and chain drafts after the event `seq`; the caller holds the lock on the next numbers."""
    sealed = []
    for draft in drafts:
        seq += 1
        event = draft.seal(seq, previous)
        previous = event.hash
        sealed.append(event)
    return sealed


def append(tx: Tx, sealed: Sequence[Event]) -> None:
    if sealed:
        tx.write(_INSERT, [{name: getattr(event, name) for name in Event.__slots__} for event in sealed])


def after(tx: Tx, seq: int, count: int = 500) -> list[Event]:
    """Every event after `seq`, whoever caused it, oldest first: what the bus delivers."""
    return [record(Event, row) for row in tx.all(_AFTER, seq=seq, count=count)]


def newest_of(tx: Tx, entity_id: str, kind: str, count: int) -> list[Event]:
    """The newest events of a kind about a row, among the caller's own."""
    statement = (
        select(events)
        .where(events.c.entity_id == entity_id, events.c.kind == kind, *within(events, tx.shape))
        .order_by(events.c.seq.desc())
        .limit(count)
    )
    return [record(Event, row) for row in tx.all(statement)]


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which events a tail is to hold; None means all. `tool` is a whole name or its end after a dot."""

    tool: str | None = None
    actor: str | None = None
    task: str | None = None
    ok: bool | None = None
    before: int | None = None


def tail(tx: Tx, wanted: Wanted, count: int) -> list[Event]:
    """The caller's own events, newest first; those of everybody for whoever sees everybody."""
    conditions = [] if tx.caller.everyone else [events.c.user_id == tx.caller.user_id]
    if tx.caller.task_id is not None:
        conditions.append(events.c.task_id == tx.caller.task_id)
    elif tx.caller.project_id is not None:
        of_project = select(tasks.c.id).where(tasks.c.project_id == tx.caller.project_id)
        conditions.append(events.c.task_id.in_(of_project))
    if wanted.tool is not None:
        ending = events.c.tool.endswith(f".{wanted.tool}", autoescape=True)
        conditions.append(or_(events.c.tool == wanted.tool, ending))
    if wanted.actor is not None:
        conditions.append(events.c.actor == wanted.actor)
    if wanted.task is not None:
        conditions.append(events.c.task_id == wanted.task)
    if wanted.ok is not None:
        conditions.append(events.c.ok == wanted.ok)
    if wanted.before is not None:
        conditions.append(events.c.seq < wanted.before)
    newest = select(events).where(*conditions).order_by(events.c.seq.desc()).limit(count)
    return [record(Event, row) for row in tx.all(newest)]


def mine(
    tx: Tx, seq: int, count: int, *, kinds: Collection[str] | None = None, task_id: str | None = None
) -> list[Event]:
    """The caller's own events after `seq`, oldest first, perhaps of some kinds or one task only."""
    conditions = [events.c.seq > seq, *within(events, tx.shape)]
    if kinds is not None:
        conditions.append(events.c.kind.in_(kinds))
    if task_id is not None:
        conditions.append(events.c.task_id == task_id)
    statement = select(events).where(*conditions).order_by(events.c.seq).limit(count)
    return [record(Event, row) for row in tx.all(statement)]


def of_entity(tx: Tx, entity_id: str, count: int, offset: int = 0) -> list[Event]:
    """The caller's events of one row, oldest first, from the `offset`th on."""
    statement = (
        select(events)
        .where(events.c.entity_id == entity_id, *within(events, tx.shape, anchored=True))
        .order_by(events.c.seq)
        .limit(count)
        .offset(offset)
    )
    return [record(Event, row) for row in tx.all(statement)]


def count_of_entity(tx: Tx, entity_id: str) -> int:
    """How many events of one row the caller has."""
    found = tx.one(
        select(func.count().label("n")).where(
            events.c.entity_id == entity_id, *within(events, tx.shape, anchored=True)
        )
    )
    return 0 if found is None else int(found.n)
