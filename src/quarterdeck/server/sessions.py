"""Older clients' sessions, kept in the store: any core adopts one it does not know, after any restart."""

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from starlette.types import Message, Receive, Scope, Send

from quarterdeck.core import mcp_sessions as sessions
from quarterdeck.core.context import Core
from quarterdeck.domain.callers import Caller
from quarterdeck.domain.errors import Unavailable
from quarterdeck.events import Event
from quarterdeck.server import sse
from quarterdeck.server.http import answer, body_of, header, replayed
from quarterdeck.server.mcp import Endpoint
from quarterdeck.server.session_stream import SessionStream, Shared
from quarterdeck.server.subscriptions import Subscriptions

SESSION = b"mcp-session-id"
_TELL_SECONDS = 60.0


@dataclass(slots=True)
class _Local:
    """What this process knows of a session: whose it is, and the SDK's own id while it has one."""

    user_id: str | None
    surface: str
    initialize: dict[str, Any]
    inner: str | None = None
    streams: int = 0
    stream: Shared | None = None
    used: float = field(default_factory=time.monotonic)
    told: float = float("-inf")
    adopting: asyncio.Lock = field(default_factory=asyncio.Lock)


@dataclass(frozen=True, slots=True)
class _Request:
    """One HTTP request whose body has been read."""

    scope: Scope
    receive: Receive
    send: Send
    body: bytes

    async def to(self, endpoint: Endpoint, send: Send, scope: Scope | None = None) -> None:
        receive = replayed(self.body, self.receive) if self.body else self.receive
        await endpoint.older(scope or self.scope, receive, send)


class Sessions:
    """Serves the older eras of every endpoint. A client's session id is ours; the SDK's never leaves."""

    def __init__(self, core: Core, max_body: int, adopted: Callable[[], None], hub: Subscriptions) -> None:
        self._core = core
        self._hub = hub
        self._adopted = adopted
        self._max_body = max_body
        self._idle = core.settings.server.session_idle_seconds
        self._local: dict[str, _Local] = {}
        self._closing = asyncio.Event()
        core.bus.on("mcp_session.closed", self._closed)

    @property
    def streams(self) -> int:
        """How many streams of sessions are open."""
        return sum(local.streams for local in self._local.values())

    def close(self) -> None:
        """End the open streams: their clients find another core, or this one after its restart."""
        self._closing.set()

    def _closed(self, event: Event) -> None:
        self._local.pop(str(event.entity_id), None)

    async def sweep(self) -> None:
        """Forget the sessions that nobody used for too long; an open stream is a use."""
        for session_id, local in list(self._local.items()):
            if local.streams:
                local.used = time.monotonic()
                await sessions.seen(self._core, session_id)
            elif self._expired(local):
                self._local.pop(session_id, None)
        await sessions.expire(self._core)

    def _expired(self, local: _Local) -> bool:
        return not local.streams and time.monotonic() - local.used > self._idle

    async def serve(
        self, endpoint: Endpoint, surface: str, scope: Scope, receive: Receive, send: Send
    ) -> None:
        body = await body_of(receive, self._max_body) if scope["method"] == "POST" else b""
        if body is None:
            await answer(send, 413, {"detail": "the request body is too large"})
            return
        request, session_id = _Request(scope, receive, send, body), header(scope, SESSION)
        try:
            if session_id is None:
                await self._open(endpoint, surface, request)
                return
            local = await self._find(session_id, surface, scope["caller"])
            if local is None:
                await answer(send, 404, _not_found())
                return
            if scope["method"] == "GET":
                await self._listen(endpoint, session_id, local, request)
            else:
                await self._go_on(endpoint, session_id, local, request)
        except Unavailable:
            await _away(send)

    async def _open(self, endpoint: Endpoint, surface: str, request: _Request) -> None:
        """Pass the opening request on; when it opened a session, keep it before the client hears of it."""
        caller: Caller = request.scope["caller"]
        refused = False

        async def watch(message: Message) -> None:
            nonlocal refused
            session_id, inner = None, _session_of(message)
            if inner is not None:
                initialize = json.loads(request.body)
                try:
                    session_id = await sessions.keep(self._core, caller, surface, initialize)
                except Unavailable:  # raised from here it would be lost inside the SDK
                    refused = True
                    await _away(request.send)
                    return
                local = _Local(caller.user_id, surface, initialize, inner, told=time.monotonic())
                self._local[session_id] = local
            if not refused:
                await request.send(_renamed(message, session_id))

        await request.to(endpoint, watch)

    async def _find(self, session_id: str, surface: str, caller: Caller) -> _Local | None:
        """The session, if it is this caller's on this surface."""
        local = self._local.get(session_id)
        if local is None or self._expired(local):  # another core may have seen it since
            self._local.pop(session_id, None)
            row = await sessions.find(self._core, session_id)
            if row is None:
                return None
            local = self._local.setdefault(session_id, _Local(row.user_id, row.surface, row.initialize))
        if local.user_id != caller.user_id or local.surface != surface:
            return None
        local.used = time.monotonic()
        if local.used - local.told > min(_TELL_SECONDS, self._idle / 4):
            local.told = local.used
            self._core.spawn(sessions.seen(self._core, session_id))
        return local

    async def _listen(self, endpoint: Endpoint, session_id: str, local: _Local, request: _Request) -> None:
        """Serve a stream of what the server has to say, until its client or this process leaves."""
        shared, left_off = Shared(request.send), sse.left_off(request.scope)
        if left_off is not None and local.stream is not None:
            # Who comes again has lost the stream before, whether or not that was noticed here.
            await local.stream.end()

        async def tell() -> None:
            """What the client subscribed to, in between what the SDK has to say."""
            await shared.begun.wait()
            local.stream = shared
            stream = SessionStream(self._core, self._hub, request.scope["caller"], session_id, shared.write)
            try:
                await stream.run(left_off, primes=_primed(request.scope))
            except Unavailable:
                pass  # the client comes again
            finally:
                shared.over.set()

        # The numbers of events are ours: the SDK keeps none and would not answer to one.
        fields = [(key, value) for key, value in request.scope["headers"] if key != sse.LAST_EVENT_ID]
        receive = _until(request.receive, self._closing, shared.over)
        inner = replace(
            request, scope={**request.scope, "headers": fields}, receive=receive, send=shared.send
        )
        teller = self._core.spawn(tell())
        local.streams += 1
        try:
            await self._go_on(endpoint, session_id, local, inner)
        finally:
            teller.cancel()
            await asyncio.wait([teller])
            local.streams -= 1
            local.used = time.monotonic()
            if local.stream is shared:
                local.stream = None
            shared.ended.set()
        await shared.finish()

    async def _go_on(self, endpoint: Endpoint, session_id: str, local: _Local, request: _Request) -> None:
        """Forward a request under the SDK's id; adopt the session first when this process has none of it."""
        if request.scope["method"] == "DELETE":  # before the client hears that it is gone
            await sessions.drop(self._core, request.scope["caller"], session_id)
            self._local.pop(session_id, None)
        for attempt in (1, 2):
            inner = await self._adopt(endpoint, local, request.scope)
            gone = False

            async def watch(message: Message, last: bool = attempt == 2) -> None:
                nonlocal gone
                if message["type"] == "http.response.start" and message["status"] == 404 and not last:
                    gone = True
                if not gone:
                    await request.send(_renamed(message, session_id))

            scope = {**_with_session(request.scope, inner), "session_id": session_id}
            await request.to(endpoint, watch, scope)
            if not gone:
                break
            local.inner = None  # it sat idle for too long inside: adopt it anew

    async def _adopt(self, endpoint: Endpoint, local: _Local, scope: Scope) -> str:
        async with local.adopting:
            if local.inner is None:
                opened: list[str] = []
                await _inside(
                    endpoint, scope, None, local.initialize, lambda m: opened.append(_session_of(m) or "")
                )
                inner = next((found for found in opened if found), None)
                if inner is None:
                    raise Unavailable("the session could not be taken over")
                ready = {"jsonrpc": "2.0", "method": "notifications/initialized"}
                await _inside(endpoint, scope, inner, ready, lambda _: None)
                local.inner = inner
                self._adopted()
            return local.inner


async def _inside(
    endpoint: Endpoint,
    scope: Scope,
    inner: str | None,
    message: dict[str, Any],
    see: Callable[[Message], None],
) -> None:
    """Send the endpoint a message of our own, on behalf of the client whose request is `scope`."""
    waiting = asyncio.Event()

    async def receive() -> Message:
        await waiting.wait()
        return {"type": "http.disconnect"}

    async def send(sent: Message) -> None:
        see(sent)
        if sent["type"] == "http.response.body" and not sent.get("more_body", False):
            waiting.set()

    posted = {**scope, "method": "POST"}
    fields = [
        (b"content-type", b"application/json"),
        (b"accept", b"application/json, text/event-stream"),
        (b"host", b"127.0.0.1"),
    ]
    posted["headers"] = [*fields, (SESSION, inner.encode())] if inner else fields
    await endpoint.older(posted, replayed(json.dumps(message).encode(), receive), send)


def _session_of(message: Message) -> str | None:
    if message["type"] != "http.response.start" or message["status"] >= 400:
        return None
    return next((value.decode() for key, value in message["headers"] if key.lower() == SESSION), None)


def _renamed(message: Message, session_id: str | None) -> Message:
    """The message with the SDK's session id replaced by ours, or left out."""
    if message["type"] != "http.response.start":
        return message
    fields = []
    for key, value in message["headers"]:
        if key.lower() != SESSION:
            fields.append((key, value))
        elif session_id is not None:
            fields.append((key, session_id.encode()))
    return {**message, "headers": fields}


def _with_session(scope: Scope, inner: str) -> Scope:
    fields = [(key, inner.encode() if key == SESSION else value) for key, value in scope["headers"]]
    return {**scope, "headers": fields}


def _until(receive: Receive, *ends: asyncio.Event) -> Receive:
    """A receive that also reports a disconnect once one of `ends` is set."""

    async def either() -> Message:
        heard = asyncio.ensure_future(receive())
        waiting = [heard, *(asyncio.ensure_future(end.wait()) for end in ends)]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            return heard.result() if heard.done() else {"type": "http.disconnect"}
        finally:
            for each in waiting:
                each.cancel()

    return either


def _primed(scope: Scope) -> bool:
    """Whether the client takes an event without data, which older versions did not know."""
    return (header(scope, b"mcp-protocol-version") or "") >= "2025-11-25"


async def _away(send: Send) -> None:
    await answer(send, 503, {"detail": "the database cannot be reached"}, [(b"retry-after", b"2")])


def _not_found() -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": None, "error": {"code": -32600, "message": "Session not found"}}
