"""Bearer tokens by their hash, and the sessions of older clients."""

from typing import Any

from sqlalchemy import bindparam, delete, insert, select, update

from quarterdeck.domain.records import McpSession, Token
from quarterdeck.store.schema import mcp_sessions, tokens
from quarterdeck.store.tx import Tx, record, within

_COLUMNS = [tokens.c[name] for name in Token.__slots__]
_BY_HASH = select(*_COLUMNS).where(tokens.c.hash == bindparam("digest"), tokens.c.revoked_at.is_(None))
_TOUCH = update(tokens).where(tokens.c.id == bindparam("token_id")).values(last_used_at=bindparam("used_at"))
_SESSION = select(mcp_sessions).where(mcp_sessions.c.id == bindparam("session_id"))
_SEEN = (
    update(mcp_sessions)
    .where(mcp_sessions.c.id == bindparam("session_id"))
    .values(last_seen_at=bindparam("seen_at"))
)


def add(tx: Tx, token: Token, digest: str) -> None:
    tx.write(insert(tokens), {**{name: getattr(token, name) for name in Token.__slots__}, "hash": digest})


def by_hash(tx: Tx, digest: str) -> Token | None:
    """The token that is not revoked, of any user: this is how a caller becomes one."""
    row = tx.one(_BY_HASH, digest=digest)
    return None if row is None else record(Token, row)


def newest(tx: Tx, count: int) -> list[Token]:
    """The caller's tokens, newest first, revoked ones too."""
    statement = (
        select(*_COLUMNS).where(*within(tokens, tx.shape)).order_by(tokens.c.created_at.desc()).limit(count)
    )
    return [record(Token, row) for row in tx.all(statement)]


def revoke(tx: Tx, token_id: str) -> bool:
    """Whether a live token of the caller was revoked now."""
    conditions: list[Any] = [tokens.c.id == token_id, tokens.c.revoked_at.is_(None)]
    if not tx.caller.everyone:
        conditions.append(tokens.c.user_id == tx.caller.user_id)
    return tx.write(update(tokens).where(*conditions), {"revoked_at": tx.now}) == 1


def touch(tx: Tx, token_id: str) -> None:
    tx.write(_TOUCH, {"token_id": token_id, "used_at": tx.now})


def add_session(tx: Tx, session: McpSession) -> None:
    tx.write(insert(mcp_sessions), {name: getattr(session, name) for name in McpSession.__slots__})


def session(tx: Tx, session_id: str) -> McpSession | None:
    row = tx.one(_SESSION, session_id=session_id)
    return None if row is None else record(McpSession, row)


def session_seen(tx: Tx, session_id: str) -> None:
    tx.write(_SEEN, {"session_id": session_id, "seen_at": tx.now})


def remove_session(tx: Tx, session_id: str) -> None:
    tx.write(delete(mcp_sessions).where(mcp_sessions.c.id == session_id), {})


def expire_sessions(tx: Tx, before: int) -> int:
    return tx.write(delete(mcp_sessions).where(mcp_sessions.c.last_seen_at < before), {})
