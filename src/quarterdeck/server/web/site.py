"""The web board behind the socket: who asks, which page, and what every answer carries."""

import asyncio
import contextlib
import hashlib
import mimetypes
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from importlib import resources
from typing import Final
from urllib.parse import parse_qs, parse_qsl, quote

import structlog
from starlette.types import Receive, Scope, Send

from quarterdeck.core import audit, tokens, trail
from quarterdeck.core.context import Core
from quarterdeck.domain.callers import Caller
from quarterdeck.domain.errors import (
    Conflict,
    Denied,
    IllegalTransition,
    Invalid,
    NotFound,
    QuarterdeckError,
    RateLimited,
    Unavailable,
)
from quarterdeck.server.http import Headers, body_of, header
from quarterdeck.server.web import pages, routing
from quarterdeck.server.web.routing import Answer, Request, Route
from quarterdeck.server.web.show import page
from quarterdeck.server.web.signin import Doorman, same_origin
from quarterdeck.surfaces.schema import normal

_STATUS: Final[dict[type[QuarterdeckError], int]] = {
    Invalid: 422,
    NotFound: 404,
    Denied: 403,
    Conflict: 409,
    IllegalTransition: 409,
    RateLimited: 429,
    Unavailable: 503,
}
# Nothing but our own files runs, no form leads elsewhere, nobody frames us.
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_ALWAYS: Final = [
    (b"content-security-policy", _POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), microphone=(), geolocation=()"),
]
_STATIC: Final = "/static/"
_FIELDS: Final = 500

logger = structlog.get_logger()


class Site:
    """Serves every path that is no part of an API."""

    def __init__(self, core: Core, gatekeeper: tokens.Gatekeeper, max_body: int) -> None:
        self._core = core
        self._max_body = max_body
        self.doorman = Doorman(core, gatekeeper)
        pages.load()

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"].startswith(_STATIC):
            await _send(send, _static(scope), [])
            return
        try:
            answer = await self._answer(scope, receive)
        except QuarterdeckError as error:
            answer = _sorry(None, _STATUS.get(type(error), 400), error)
        if answer.stream is not None:
            await _stream(answer, receive, send)
        else:
            await _send(send, answer, [(b"cache-control", b"no-store")], head=scope["method"] == "HEAD")

    async def _answer(self, scope: Scope, receive: Receive) -> Answer:
        method, path = scope["method"], scope["path"]
        if method == "POST" and not same_origin(scope):
            return _sorry(None, 403, Denied("this form was not sent by a page of this board"))
        if path.rstrip("/") in pages.OPEN:
            return await self._door(scope, receive)
        found = routing.find("GET" if method == "HEAD" else method, path)
        if isinstance(found, set):
            detail = "there is nothing here; the board is at / and MCP at /mcp"
            return routing.as_json({"detail": detail}, 405 if found else 404)
        cookie = self.doorman.cookie_of(scope)
        caller = None if cookie is None else await self.doorman.caller(cookie)
        if cookie is None or caller is None:
            return self._closed(scope)
        query = _query(scope)
        request = Request(
            core=self._core,
            caller=caller,
            path=path,
            csrf=self.doorman.csrf(cookie),
            doorman=self.doorman,
            cookie=cookie,
            params={},
            query=query,
            form={},
            fragment=header(scope, b"x-fragment") is not None,
            seq=0,
            last_event=header(scope, b"last-event-id"),
            wants_json="application/json" in (header(scope, b"accept") or ""),
        )
        return await self._run(found[0], replace(request, params=found[1]), scope, receive)

    async def _run(self, route: Route, request: Request, scope: Scope, receive: Receive) -> Answer:
        caller = replace(request.caller, tool=f"web:{route.handler.__name__}")
        request = replace(request, caller=caller)
        try:
            normal({**request.params, **request.query})  # what no store takes is nobody's id or text
            if not caller.may(route.least):
                raise Denied(f"this needs the profile {route.least}; yours is {caller.profile}")
            if route.method == "POST":
                request = replace(request, form=await self._form(scope, receive))
                if not pages.marked(request, header(scope, b"x-csrf")):
                    raise Denied("the form is out of date", hint="load the page again")
            # Before the page reads anything: what happens after it is told by the stream.
            request = replace(request, seq=await trail.tip(self._core, caller))
            return await route.handler(request)
        except QuarterdeckError as error:
            if route.method == "POST":
                audit.refused(self._core, caller, error)
            return _sorry(request, _STATUS.get(type(error), 400), error)
        except Exception:
            logger.exception("page.broke", page=route.path)
            return _sorry(request, 500, QuarterdeckError("the page broke; the log of the core says why"))

    async def _form(self, scope: Scope, receive: Receive) -> Mapping[str, list[str]]:
        body = await body_of(receive, self._max_body)
        if body is None:
            raise Invalid("the form is too large")
        kind = header(scope, b"content-type") or ""
        if body and not kind.startswith("application/x-www-form-urlencoded"):
            raise Invalid("a form is sent as application/x-www-form-urlencoded")
        try:
            form = parse_qs(body.decode(), keep_blank_values=True, max_num_fields=_FIELDS, errors="replace")
        except ValueError as error:
            raise Invalid("the form cannot be read") from error
        normal(dict(form))
        return form

    def _closed(self, scope: Scope) -> Answer:
        """Nobody is signed in: a page leads to the door, anything else is told so."""
        query = scope["query_string"].decode("latin-1")
        asked = scope["path"] + (f"?{query}" if query else "")
        if scope["method"] in ("GET", "HEAD") and "text/html" in (header(scope, b"accept") or ""):
            where = "/signin" if asked == "/" else f"/signin?next={quote(asked, safe='')}"
            return Answer(status=303, headers=[(b"location", where.encode())])
        return routing.as_json({"detail": "sign in first"}, 401)

    async def _door(self, scope: Scope, receive: Receive) -> Answer:
        """Signing in, by a link or a token, and out."""
        query = _query(scope)
        if scope["method"] == "POST":
            form = await self._form(scope, receive)
            if scope["path"].startswith("/signout"):
                return Answer(
                    status=303,
                    headers=[(b"location", b"/signin"), self.doorman.set_cookie(scope, "")],
                )
            cookie, caller = await self.doorman.enter((form.get("token") or [""])[-1].strip())
            if cookie is None:
                return pages.door(_why(caller), (form.get("next") or [""])[-1], 403)
            return self._enter(scope, cookie, (form.get("next") or ["/"])[-1])
        if "code" in query:
            cookie = await self.doorman.enter_by_link(query["code"])
            if cookie is not None:
                return self._enter(scope, cookie, "/")
            return pages.door("This link was used before, or it is too old. Sign in with a token.", "/", 403)
        return pages.door(None, query.get("next", "/"), 200)

    def _enter(self, scope: Scope, cookie: str, where: str) -> Answer:
        # Only a path of ours: //host and /\host lead away.
        inside = where.startswith("/") and where[1:2] not in ("/", "\\") and where.isprintable()
        location = quote(where, safe="/?&=%+:,;@!~*'()-._") if inside else "/"
        return Answer(
            status=303,
            headers=[(b"location", location.encode()), self.doorman.set_cookie(scope, cookie)],
        )


def _query(scope: Scope) -> dict[str, str]:
    try:
        return dict(parse_qsl(scope["query_string"].decode("latin-1"), max_num_fields=_FIELDS))
    except ValueError as error:
        raise Invalid("the query has too many fields") from error


def _why(caller: Caller | None) -> str:
    if caller is None:
        return "The token is unknown, revoked or expired."
    return "A token that is bound to a project, a task or a job is an agent's. Sign in with one that is not."


def _sorry(request: Request | None, status: int, error: QuarterdeckError) -> Answer:
    worded = {"detail": error.message, "field": error.field, "hint": error.hint, "code": error.code}
    if request is None or request.wants_json:
        return routing.as_json({key: value for key, value in worded.items() if value}, status)
    return page(request, "sorry.html", answer_status=status, error=error, code=status)


async def _send(send: Send, answer: Answer, headers: Headers, *, head: bool = False) -> None:
    fields = [
        (b"content-type", answer.media_type.encode()),
        (b"content-length", str(len(answer.body)).encode()),
        *_ALWAYS,
        *headers,
        *answer.headers,
    ]
    await send({"type": "http.response.start", "status": answer.status, "headers": fields})
    await send({"type": "http.response.body", "body": b"" if head else answer.body})


async def _stream(answer: Answer, receive: Receive, send: Send) -> None:
    """Send the parts as they come, until they end or the reader leaves."""
    assert answer.stream is not None
    fields = [(b"content-type", answer.media_type.encode()), (b"cache-control", b"no-store"), *_ALWAYS]
    await send({"type": "http.response.start", "status": 200, "headers": fields})
    stream = answer.stream

    async def forward() -> None:
        async for part in stream:
            await send({"type": "http.response.body", "body": part, "more_body": True})

    async def gone() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    tasks = [asyncio.ensure_future(forward()), asyncio.ensure_future(gone())]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    with contextlib.suppress(OSError):
        await send({"type": "http.response.body", "body": b""})


def _static(scope: Scope) -> Answer:
    """One of our own files; the browser asks each time whether it is still the same."""
    found = _file(scope["path"].removeprefix(_STATIC))
    if found is None or scope["method"] not in ("GET", "HEAD"):
        return routing.as_json({"detail": "no such file"}, 404)
    body, media_type, tag = found
    headers = [(b"etag", tag), (b"cache-control", b"no-cache")]
    if (header(scope, b"if-none-match") or "").encode() == tag:
        return Answer(status=304, media_type=media_type, headers=headers)
    return Answer(b"" if scope["method"] == "HEAD" else body, 200, media_type, headers)


@cache
def _files() -> dict[str, tuple[bytes, str, bytes]]:
    found = {}
    for file in (resources.files("quarterdeck.server.web") / "static").iterdir():
        body = file.read_bytes()
        kind = {"js": "text/javascript; charset=utf-8", "css": "text/css; charset=utf-8"}.get(
            file.name.rpartition(".")[2], mimetypes.guess_type(file.name)[0] or "application/octet-stream"
        )
        found[file.name] = (body, kind, b'"%s"' % hashlib.sha256(body).hexdigest()[:16].encode())
    return found


def _file(name: str) -> tuple[bytes, str, bytes] | None:
    return _files().get(name)
