"""Bearer tokens by their hash, and the sessions of older clients."""

from sqlalchemy import Table, bindparam, delete, insert, or_, select, update
from sqlalchemy.sql import ColumnElement

from quarterdeck.domain.records import McpSession, Token, as_dict
from quarterdeck.store.schema import mcp_sessions, tokens
from quarterdeck.store.tx import Tx, record, within

_COLUMNS = [tokens.c[name] for name in Token.__slots__]
_BY_HASH = select(*_COLUMNS).where(tokens.c.hash == bindparam("digest"), tokens.c.revoked_at.is_(None))


def _own(tx: Tx, table: Table, row_id: str) -> list[ColumnElement[bool]]:
    """One row of the caller's user, bound or not: a bound caller, too, has a token and sessions."""
    return [table.c.id == row_id, *within(table, tx.shape, anchored=True)]


def add(tx: Tx, token: Token, digest: str) -> None:
    tx.write(insert(tokens), {**as_dict(token), "hash": digest})


def by_hash(tx: Tx, digest: str) -> Token | None:
    """The token that is not revoked, of any user: this is how a caller becomes one."""
    row = tx.one(_BY_HASH, digest=digest)
    return None if row is None else record(Token, row)


def newest(tx: Tx, count: int) -> list[Token]:
    """The caller's tokens, newest first, revoked ones too, but not those of jobs that have ended."""
    shown = or_(tokens.c.job_id.is_(None), tokens.c.revoked_at.is_(None))
    statement = (
        select(*_COLUMNS)
        .where(shown, *within(tokens, tx.shape))
        .order_by(tokens.c.created_at.desc())
        .limit(count)
    )
    return [record(Token, row) for row in tx.all(statement)]


def live(tx: Tx, token_id: str) -> Token | None:
    """A token of the caller's user that is not revoked."""
    row = tx.one(select(*_COLUMNS).where(tokens.c.revoked_at.is_(None), *_own(tx, tokens, token_id)))
    return None if row is None else record(Token, row)


def live_of_job(tx: Tx, job_id: str) -> list[str]:
    """The tokens of a job that are not revoked, whatever the caller's user is bound to."""
    own = within(tokens, tx.shape, anchored=True)
    statement = select(tokens.c.id).where(tokens.c.job_id == job_id, tokens.c.revoked_at.is_(None), *own)
    return [row.id for row in tx.all(statement)]


def revoke(tx: Tx, token_id: str) -> None:
    tx.write(update(tokens).where(*_own(tx, tokens, token_id)), {"revoked_at": tx.now})


def touch(tx: Tx, token_id: str) -> None:
    tx.write(update(tokens).where(*_own(tx, tokens, token_id)), {"last_used_at": tx.now})


def add_session(tx: Tx, session: McpSession) -> None:
    tx.write(insert(mcp_sessions), as_dict(session))


def session(tx: Tx, session_id: str) -> McpSession | None:
    row = tx.one(select(mcp_sessions).where(*_own(tx, mcp_sessions, session_id)))
    return None if row is None else record(McpSession, row)


def session_seen(tx: Tx, session_id: str) -> None:
    tx.write(update(mcp_sessions).where(*_own(tx, mcp_sessions, session_id)), {"last_seen_at": tx.now})


def remove_session(tx: Tx, session_id: str) -> None:
    tx.write(delete(mcp_sessions).where(*_own(tx, mcp_sessions, session_id)), {})


def expire_sessions(tx: Tx, before: int) -> int:
    return tx.write(delete(mcp_sessions).where(mcp_sessions.c.last_seen_at < before), {})
