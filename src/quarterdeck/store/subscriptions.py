"""What the sessions of older clients want to hear of, and how far each has been told."""

from typing import Any

from sqlalchemy import Select, delete, func, literal, select, update
from sqlalchemy.dialects import postgresql, sqlite

from quarterdeck.store import log
from quarterdeck.store.schema import mcp_sessions, subscriptions
from quarterdeck.store.tx import Tx, within


def _mine(tx: Tx, session_id: str, *columns: Any) -> Select[Any]:
    """The session's id, and more, when it is one of the caller's user; a bound caller has sessions too."""
    own = within(mcp_sessions, tx.shape, anchored=True)
    return select(mcp_sessions.c.id, *columns).where(mcp_sessions.c.id == session_id, *own)


def add(tx: Tx, session_id: str, uri: str) -> bool:
    """Let the caller's session hear of what happens to `uri` from now on; whether that is news."""
    seq, _ = log.tip(tx)
    row = _mine(tx, session_id, literal(uri), literal(seq), literal(tx.now))
    fresh = sqlite.insert(subscriptions) if tx.dialect == "sqlite" else postgresql.insert(subscriptions)
    fresh = fresh.from_select(["session_id", "uri", "seq", "created_at"], row)
    return tx.one(fresh.on_conflict_do_nothing().returning(subscriptions.c.uri)) is not None


def remove(tx: Tx, session_id: str, uri: str) -> int:
    condition = subscriptions.c.session_id.in_(_mine(tx, session_id))
    return tx.write(delete(subscriptions).where(condition, subscriptions.c.uri == uri), {})


def count(tx: Tx, session_id: str) -> int:
    counted = select(func.count()).select_from(subscriptions)
    row = tx.one(counted.where(subscriptions.c.session_id.in_(_mine(tx, session_id))))
    return 0 if row is None else int(row[0])


def of(tx: Tx, session_id: str) -> dict[str, int]:
    """The URIs of the caller's session, each with the event up to which it has been told."""
    statement = select(subscriptions.c.uri, subscriptions.c.seq)
    return {
        row.uri: row.seq
        for row in tx.all(statement.where(subscriptions.c.session_id.in_(_mine(tx, session_id))))
    }


def told(tx: Tx, session_id: str, seq: int) -> None:
    """The caller's session has been told of everything up to `seq`."""
    condition = subscriptions.c.session_id.in_(_mine(tx, session_id))
    tx.write(update(subscriptions).where(condition, subscriptions.c.seq < seq), {"seq": seq})
