"""The gate: from a bearer token to a caller, or the documented refusal."""

from dataclasses import replace

from starlette.types import Scope, Send

from quarterdeck.core.tokens import Gatekeeper
from quarterdeck.domain.callers import Caller
from quarterdeck.domain.errors import Invalid, Unavailable
from quarterdeck.server.http import header, is_loopback, turn_away


class Gate:
    """401 without a bearer, 403 with a wrong one, 503 when nobody can tell."""

    def __init__(self, gatekeeper: Gatekeeper) -> None:
        self._gatekeeper = gatekeeper

    async def admit(self, scope: Scope, send: Send) -> Caller | None:
        """The caller of a request; None when the request has been answered with a refusal."""
        given = header(scope, b"authorization") or ""
        if not given.startswith("Bearer "):
            await turn_away(
                scope,
                send,
                401,
                "a bearer token is required",
                "invalid_api_key",
                headers=[(b"www-authenticate", b'Bearer realm="quarterdeck"')],
            )
            return None
        try:
            caller = await self._gatekeeper.caller(given.removeprefix("Bearer ").strip())
        except Unavailable:
            problem = "the database cannot be reached"
            later = [(b"retry-after", b"2")]
            await turn_away(scope, send, 503, problem, Unavailable.code, headers=later)
            return None
        if caller is None:
            await turn_away(
                scope,
                send,
                403,
                "the token is unknown, revoked or expired",
                "invalid_api_key",
                headers=[(b"www-authenticate", b'Bearer realm="quarterdeck", error="invalid_token"')],
            )
            return None
        return await self._narrowed(scope, send, caller)

    async def _narrowed(self, scope: Scope, send: Send, caller: Caller) -> Caller | None:
        """Apply what the client asked to be held to; it can only lose by it."""
        if caller.token_id is not None and caller.unmetered and not is_loopback(scope):
            caller = replace(caller, unmetered=False)
        wanted = [
            header(scope, name)
            for name in (b"quarterdeck-profile", b"quarterdeck-identity", b"quarterdeck-session")
        ]
        if wanted == [None, None, None]:
            return caller
        try:
            return caller.narrow(ceiling=wanted[0], identity=wanted[1], session=wanted[2])
        except Invalid as error:
            await turn_away(scope, send, 400, error.message, error.code, hint=error.hint)
            return None
