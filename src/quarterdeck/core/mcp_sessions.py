"""Sessions of older MCP clients: kept so that a restart, or another core, does not end them."""

import secrets
from typing import Any

from quarterdeck.core.context import Core
from quarterdeck.domain.callers import SYSTEM, Caller
from quarterdeck.domain.ids import now_us
from quarterdeck.domain.records import McpSession
from quarterdeck.store import tokens as rows
from quarterdeck.store.tx import Tx


async def keep(core: Core, caller: Caller, surface: str, initialize: dict[str, Any]) -> str:
    """Write down a session that was opened; its id."""
    now = now_us()
    session = McpSession(secrets.token_hex(16), caller.user_id, surface, initialize, now, now)
    await core.db.tx(SYSTEM, rows.add_session, session)
    return session.id


async def find(core: Core, session_id: str) -> McpSession | None:
    """A session that is not idle for too long."""
    session = await core.db.read(SYSTEM, rows.session, session_id)
    idle = core.settings.server.session_idle_seconds * 1_000_000
    return session if session is not None and session.last_seen_at > now_us() - idle else None


async def seen(core: Core, session_id: str) -> None:
    await core.db.tx(SYSTEM, rows.session_seen, session_id)


async def drop(core: Core, caller: Caller, session_id: str) -> None:
    """End a session on every core."""

    def body(tx: Tx) -> None:
        rows.remove_session(tx, session_id)
        tx.emit("mcp_session.closed", session_id)

    await core.db.tx(caller, body)


async def expire(core: Core) -> int:
    """Forget the sessions that were idle for too long; how many there were."""
    idle = core.settings.server.session_idle_seconds * 1_000_000
    return await core.db.tx(SYSTEM, rows.expire_sessions, now_us() - idle)
