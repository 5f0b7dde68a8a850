"""Small ASGI pieces that every route shares: headers, bodies, JSON answers, Host and Origin."""

import json
from collections.abc import Iterable
from functools import lru_cache
from ipaddress import ip_address
from typing import Any

from starlette.types import Message, Receive, Scope, Send

from quarterdeck.domain.errors import (
    Conflict,
    Denied,
    Invalid,
    NotFound,
    QuarterdeckError,
    RateLimited,
    Unavailable,
)

Headers = list[tuple[bytes, bytes]]

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


def header(scope: Scope, name: bytes) -> str | None:
    """The first value of a header, without the white space that some parsers keep around it."""
    for key, value in scope["headers"]:
        if key == name:
            text: str = value.decode("latin-1").strip()
            return text
    return None


async def answer(send: Send, status: int, body: Any, headers: Headers | None = None) -> None:
    """One JSON answer."""
    await answer_text(send, json.dumps(body, separators=(",", ":")), status, headers)


_STATUS: dict[type[QuarterdeckError], int] = {
    Invalid: 422,
    NotFound: 404,
    Denied: 403,
    Conflict: 409,
    RateLimited: 429,
    Unavailable: 503,
}


async def refuse(send: Send, error: QuarterdeckError) -> None:
    """A refusal of a REST route, in the one shape that they share."""
    worded = {"detail": error.message, "code": error.code, "field": error.field, "hint": error.hint}
    status = next((code for kind, code in _STATUS.items() if isinstance(error, kind)), 400)
    await answer(send, status, {key: value for key, value in worded.items() if value is not None})


_OPENAI_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


def speaks_openai(path: str) -> bool:
    """Whether the words of OpenAI are spoken at a path."""
    return f"{path}/".startswith("/v1/")


def openai_error(status: int, message: str, code: str, field: str | None = None) -> dict[str, Any]:
    """A refusal as OpenAI's clients read it."""
    usual = "server_error" if status >= 500 else "invalid_request_error"
    kind = _OPENAI_TYPES.get(status, usual)
    return {"error": {"message": message, "type": kind, "code": code, "param": field}}


async def turn_away(
    scope: Scope,
    send: Send,
    status: int,
    detail: str,
    code: str,
    *,
    hint: str | None = None,
    headers: Headers | None = None,
) -> None:
    """Refuse a request before any route has seen it, in the words of the path that it asked for."""
    if speaks_openai(scope["path"]):
        message = f"{detail} ({hint})" if hint else detail
        await answer(send, status, openai_error(status, message, code), headers)
    else:
        body = {"detail": detail} | ({} if hint is None else {"hint": hint})
        await answer(send, status, body, headers)


async def answer_text(send: Send, text: str, status: int = 200, headers: Headers | None = None) -> None:
    """One answer that is JSON text already."""
    # Half a surrogate pair has no UTF-8; its escape is the same in Python and in JSON.
    content = text.encode(errors="backslashreplace")
    fields = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": fields + (headers or [])})
    await send({"type": "http.response.body", "body": content})


async def body_of(receive: Receive, limit: int) -> bytes | None:
    """The whole request body, or None when it is larger than `limit`."""
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return b"".join(parts)
        part = message.get("body", b"")
        size += len(part)
        if size > limit:
            return None
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)


def replayed(body: bytes, receive: Receive) -> Receive:
    """A receive that gives a body read before, then whatever comes after it."""
    given = False

    async def again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


def is_loopback(scope: Scope) -> bool:
    """Whether the request comes from this machine."""
    client = scope.get("client")
    return client is not None and _is_loopback(client[0])


def names_loopback(host: str) -> bool:
    """Whether who listens on this host is reached from this machine alone."""
    return host == "localhost" or _is_loopback(host)


@lru_cache(maxsize=1024)
def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


class HostCheck:
    """Keeps other sites' pages out: the Host must be ours, and an Origin too when there is one."""

    def __init__(self, host: str, allowed_hosts: Iterable[str], allowed_origins: Iterable[str]) -> None:
        ours = {*LOOPBACK, host.lower(), f"[{host.lower()}]"}
        self._names = ours
        self._hosts = {name.lower() for name in allowed_hosts}
        self._origins = set(allowed_origins)

    def problem(self, scope: Scope) -> tuple[int, str] | None:
        """The status and reason to refuse a request with, or None."""
        host = header(scope, b"host") or ""
        if not self._known(host):
            return 421, "this Host is not served here; add it to server.allowed_hosts"
        origin = header(scope, b"origin")
        if origin is not None and origin not in self._origins and not self._known(origin.partition("://")[2]):
            return 403, "this Origin is not allowed here; add it to server.allowed_origins"
        return None

    def _known(self, host: str) -> bool:
        host = host.lower()
        name, colon, port = host.rpartition(":")
        bare = name if colon and port.isdecimal() else host
        return bare in self._names or host in self._hosts or bare in self._hosts
