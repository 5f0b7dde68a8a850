"""The event log: dense numbers and a hash chain, written last in its transaction."""

from collections.abc import Sequence

from sqlalchemy import bindparam, func, insert, select

from quarterdeck.events import GENESIS, Draft, Event
from quarterdeck.store.kept import kept
from quarterdeck.store.schema import events
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


def mine(tx: Tx, seq: int, count: int) -> list[Event]:
    """The caller's own events after `seq`, oldest first."""
    statement = (
        select(events)
        .where(events.c.seq > seq, *within(events, tx.shape))
        .order_by(events.c.seq)
        .limit(count)
    )
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
