"""Tokens: minted here and shown once, listed, revoked."""

from typing import Any

from quarterdeck.core import tokens
from quarterdeck.domain.callers import PROFILES
from quarterdeck.domain.ids import now_us
from quarterdeck.server.rest import Mint
from quarterdeck.server.web.routing import Answer, Request, go, route
from quarterdeck.server.web.show import page
from quarterdeck.surfaces.schema import parse


@route("GET", "/tokens")
async def all_tokens(request: Request) -> Answer:
    return await _page(request, None)


async def _page(request: Request, minted: tokens.Minted | None) -> Answer:
    found = await tokens.listing(request.core, request.caller)
    mine = [name for name in PROFILES if request.caller.may(name)]
    return page(request, "tokens.html", tokens=found, minted=minted, profiles=mine, now=now_us())


@route("POST", "/tokens")
async def mint_token(request: Request) -> Answer:
    """A new token. The page that answers is the only place where its secret is ever shown."""
    wanted: dict[str, Any] = {
        name: request.given(name)
        for name in ("name", "profile", "user_id", "project_id", "task_id")
        if request.given(name)
    }
    days = request.given("days")
    if days:
        wanted["expires_in_s"] = int(days) * 86_400 if days.isdecimal() and len(days) < 6 else days
    form = parse(Mint, wanted, "correct the form and send it again")
    return await _page(request, await tokens.mint(request.core, request.caller, **form.model_dump()))


@route("POST", "/tokens/{id}/revoke")
async def revoke_token(request: Request) -> Answer:
    await tokens.revoke(request.core, request.caller, request.params["id"])
    return go(request, "/tokens")
