"""Subscriptions of older MCP clients: kept with their session, so that any core goes on telling it."""

from quarterdeck.core.context import Core
from quarterdeck.domain.callers import Caller
from quarterdeck.domain.errors import Conflict
from quarterdeck.store import subscriptions as rows
from quarterdeck.store.tx import Tx

MOST = 1000
LONGEST_URI = 500


async def subscribe(core: Core, caller: Caller, session_id: str, uri: str) -> None:
    """Tell the caller's session of what happens to `uri` from now on."""

    def body(tx: Tx) -> None:
        if rows.add(tx, session_id, uri):
            if rows.count(tx, session_id) > MOST:
                raise Conflict(f"a session has at most {MOST:,} subscriptions", hint="end some of them first")
            tx.emit("mcp_session.subscribed", session_id, uri=uri)

    await core.db.tx(caller, body)


async def unsubscribe(core: Core, caller: Caller, session_id: str, uri: str) -> None:
    def body(tx: Tx) -> None:
        if rows.remove(tx, session_id, uri):
            tx.emit("mcp_session.unsubscribed", session_id, uri=uri)

    await core.db.tx(caller, body)


async def of(core: Core, caller: Caller, session_id: str) -> dict[str, int]:
    """The URIs of the caller's session, each with the event up to which it has been told."""
    return await core.db.read(caller, rows.of, session_id)


async def told(core: Core, caller: Caller, session_id: str, seq: int) -> None:
    """Remember how far the caller's session has been told, for a client that does not itself."""
    await core.db.tx(caller, rows.told, session_id, seq)
