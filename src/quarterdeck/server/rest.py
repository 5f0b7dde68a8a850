"""Tokens over REST."""

import json
from typing import Annotated, Any

from pydantic import Field
from starlette.types import Receive, Scope, Send

from quarterdeck.core import tokens
from quarterdeck.core.context import Core
from quarterdeck.domain.callers import Caller, Profile
from quarterdeck.domain.errors import Invalid, QuarterdeckError
from quarterdeck.domain.ids import iso
from quarterdeck.domain.records import Token
from quarterdeck.server.http import answer, body_of, refuse
from quarterdeck.surfaces.schema import Args, Id, Label, parse

PATH = "/profile/mcp/tokens"
_TEN_YEARS = 10 * 366 * 86_400


class Mint(Args):
    """The body of a minting request."""

    name: Label
    profile: Profile
    user_id: Label | None = None
    project_id: Id | None = None
    task_id: Id | None = None
    expires_in_s: Annotated[int, Field(ge=1, le=_TEN_YEARS)] | None = None


class TokenRoutes:
    """`POST` and `GET` on the collection, `DELETE` on one."""

    def __init__(self, core: Core, gatekeeper: tokens.Gatekeeper, max_body: int) -> None:
        self._core = core
        self._gatekeeper = gatekeeper
        self._max_body = max_body

    async def serve(self, caller: Caller, scope: Scope, receive: Receive, send: Send) -> None:
        method, rest = scope["method"], scope["path"].removeprefix(PATH).strip("/")
        try:
            if method == "POST" and not rest:
                body = await body_of(receive, self._max_body)
                if body is None:
                    await answer(send, 413, {"detail": "the request body is too large"})
                else:
                    await answer(send, 201, await self._mint(caller, body))
            elif method == "GET" and not rest:
                found = await tokens.listing(self._core, caller)
                await answer(send, 200, {"tokens": [shown(token) for token in found]})
            elif method == "DELETE" and rest:
                await tokens.revoke(self._core, caller, rest[:100])
                self._gatekeeper.forget(rest)  # a shared database tells of it a moment later
                await answer(send, 200, {"id": rest, "revoked": True})
            else:
                allowed = b"DELETE" if rest else b"GET, POST"
                await answer(send, 405, {"detail": f"{method} is not served here"}, [(b"allow", allowed)])
        except QuarterdeckError as error:
            await refuse(send, error)

    async def _mint(self, caller: Caller, raw: bytes) -> dict[str, Any]:
        try:
            body = json.loads(raw or b"null")
        except (ValueError, RecursionError):
            body = None
        if not isinstance(body, dict):
            raise Invalid("the body must be a JSON object")
        wanted = parse(Mint, body, "docs/tokens.md lists the fields")
        minted = await tokens.mint(self._core, caller, **wanted.model_dump())
        return {**shown(minted.token), "token": minted.plaintext}


def shown(token: Token) -> dict[str, Any]:
    """A token without its secret."""
    return {
        "id": token.id,
        "user_id": token.user_id,
        "name": token.name,
        "profile": token.profile,
        "project_id": token.project_id,
        "task_id": token.task_id,
        "created_at": iso(token.created_at),
        "expires_at": iso(token.expires_at),
        "last_used_at": iso(token.last_used_at),
        "revoked_at": iso(token.revoked_at),
    }
