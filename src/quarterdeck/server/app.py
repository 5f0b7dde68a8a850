"""Everything behind the socket, put together: core, gate, endpoints and routes."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import structlog
from starlette.types import Receive, Scope, Send

from quarterdeck import __version__
from quarterdeck.config import Settings
from quarterdeck.core import life, pair, sessions, tokens
from quarterdeck.core.context import Core
from quarterdeck.core.limits import RateLimit
from quarterdeck.domain.callers import Caller
from quarterdeck.domain.errors import QuarterdeckError
from quarterdeck.events import ALL
from quarterdeck.paths import read_token, token_file, write_private
from quarterdeck.run.adapters.programs import find
from quarterdeck.run.checks import check
from quarterdeck.run.runners import RUNNERS
from quarterdeck.run.terminal import Tmux
from quarterdeck.run.worker import Worker
from quarterdeck.server import audit, doctor, openapi
from quarterdeck.server.audit import PATH as AUDIT
from quarterdeck.server.auth import Gate
from quarterdeck.server.chat import ChatRoutes
from quarterdeck.server.doctor import PATH as DOCTOR
from quarterdeck.server.http import (
    HostCheck,
    answer,
    header,
    is_loopback,
    names_loopback,
    speaks_openai,
    turn_away,
)
from quarterdeck.server.mcp import Endpoint
from quarterdeck.server.metrics import CONTENT_TYPE, Metrics
from quarterdeck.server.rest import PATH as TOKENS
from quarterdeck.server.rest import TokenRoutes
from quarterdeck.server.sessions import Sessions
from quarterdeck.server.streams import PATH as EVENTS
from quarterdeck.server.streams import EventStreams
from quarterdeck.server.subscriptions import Subscriptions
from quarterdeck.server.web.site import Site
from quarterdeck.server.work import DIFFS, WorkRoutes
from quarterdeck.server.work import PATH as JOBS
from quarterdeck.surfaces.all import SURFACES, UNION
from quarterdeck.surfaces.table import Desk

_SWEEP_SECONDS = 600.0

Route = Callable[[Caller, Scope, Receive, Send], Awaitable[None]]

logger = structlog.get_logger()


class Application:
    """One running core. `run` owns its life; `serve` answers a request."""

    def __init__(self, settings: Settings, data_dir: Path, host: str, url: str | None = None) -> None:
        self._settings = settings
        self._data_dir = data_dir
        self._url = url
        self._hosts = HostCheck(host, settings.server.allowed_hosts, settings.server.allowed_origins)
        # Who has a name to be served under stands behind a proxy.
        self._loopback = names_loopback(host) and not settings.server.allowed_hosts
        self._metrics = Metrics()
        self.ready = asyncio.Event()
        self.entry = ""  # the code of the link that signs the local user in once

    async def run(self, stop: asyncio.Event) -> None:
        """Start, be ready, and when `stop` is set finish what was acknowledged."""
        opened = life.opened(self._settings, self._data_dir, self._url)
        async with opened as core, AsyncExitStack() as lifetime:
            core.terminal, core.find_program = Tmux(core), lambda agent: find(agent, self._settings)
            core.check = partial(check, core)
            pair.watch(core)
            core.loopback = self._loopback
            await self._open(core, lifetime)
            self.ready.set()
            worker = Worker(core, RUNNERS)
            lifetime.push_async_callback(worker.close)
            worker.start()
            await stop.wait()
            self.ready.clear()

    def leave(self) -> None:
        """The end is near: wake whoever waits, end open streams; calls in flight go on."""
        if self.ready.is_set():
            self._core.bus.close()
            self._sessions.close()

    async def _open(self, core: Core, lifetime: AsyncExitStack) -> None:
        body = self._settings.server.max_body_bytes
        limit = RateLimit(self._settings.server.rate_limit_per_minute)
        gatekeeper = tokens.Gatekeeper(core)
        core.caches.append(gatekeeper.clear)
        core.bus.on(ALL, lambda event: self._metrics.event(event.kind))
        self._core, self._gate = core, Gate(gatekeeper)
        self._hub = hub = Subscriptions(core, UNION.resources)
        self._sessions = Sessions(core, body, self._metrics.adopted, hub)
        self._chat, work = ChatRoutes(core, body, limit), WorkRoutes(core)
        self._routes: dict[str, Route] = {
            TOKENS: TokenRoutes(core, gatekeeper, body).serve,
            EVENTS: EventStreams(core, hub).serve,
            AUDIT: partial(audit.serve, core),
            DOCTOR: partial(doctor.serve, core),
            JOBS: work.serve,
            DIFFS: work.serve,
            openapi.SIGNIN: self._link,
        }
        self._endpoints: dict[str, Endpoint] = {}
        for name, surface in {"": UNION, **SURFACES}.items():
            desk = Desk(core, surface, limit, self._metrics.observe)
            self._endpoints[name] = Endpoint(desk, body, hub)
            await self._endpoints[name].run(lifetime)
        self._site = Site(core, gatekeeper, body)
        self.entry = self._site.doorman.new_link(await self._local_token(core, gatekeeper))
        sweeper = asyncio.create_task(self._sweep(), name="sweep")
        lifetime.callback(sweeper.cancel)
        tending = asyncio.create_task(doctor.tend(core), name="ledger")
        lifetime.push_async_callback(_ended, tending)

    async def _local_token(self, core: Core, gatekeeper: tokens.Gatekeeper) -> str:
        """Keep a working maintainer token for the local user in the data directory; its id."""
        kept = read_token(self._data_dir)
        caller = None if kept is None else await gatekeeper.caller(kept)
        if caller is not None:
            return str(caller.token_id)
        minted = await tokens.mint_local(core)
        write_private(token_file(self._data_dir), minted.plaintext + "\n")
        return minted.token.id

    async def _sweep(self) -> None:
        """Now and then, end what nobody uses any more."""
        idle = self._settings.plans.session_idle_hours * 3600
        while True:
            with contextlib.suppress(QuarterdeckError):
                await self._sessions.sweep()
                await sessions.close_idle(self._core, idle)
            await asyncio.sleep(min(_SWEEP_SECONDS, self._settings.server.session_idle_seconds / 2, idle / 2))

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        problem = self._hosts.problem(scope)
        if problem is not None:
            await turn_away(scope, send, *problem, "not_served_here")
        elif "\0" in path or b"%00" in scope["query_string"]:
            await turn_away(scope, send, 400, "no address here has a NUL character in it", "validation_error")
        elif path == "/readyz":
            await self._readiness(send)
        elif path == openapi.PATH:
            await answer(send, 200, openapi.document())
        elif path == "/metrics":
            await self._numbers(scope, send)
        elif path == "/mcp" or path.startswith("/mcp/"):
            await self._mcp(path.removeprefix("/mcp").strip("/"), scope, receive, send)
        elif (route := self._route(path)) is not None:
            caller = await self._gate.admit(scope, send)
            if caller is not None:
                await route(caller, scope, receive, send)
        else:
            await self._site.serve(scope, receive, send)

    async def _link(self, caller: Caller, scope: Scope, receive: Receive, send: Send) -> None:
        """An address that signs the holder of a token in to the board, once."""
        if scope["method"] != "POST":
            await answer(send, 405, {"detail": "POST makes a link"}, [(b"allow", b"POST")])
        elif caller.bound or caller.token_id is None:
            await answer(send, 403, {"detail": "only the token of a person signs in"})
        else:
            base = f"{scope['scheme']}://{header(scope, b'host')}"
            code = self._site.doorman.new_link(caller.token_id)
            await answer(send, 200, {"url": f"{base}/signin?code={code}"})

    def _route(self, path: str) -> Route | None:
        """What serves a path to whoever has a token."""
        if speaks_openai(path):
            return self._chat.serve
        for prefix, route in self._routes.items():
            if path == prefix or path.startswith(prefix + "/"):
                return route
        return None

    async def _mcp(self, surface: str, scope: Scope, receive: Receive, send: Send) -> None:
        caller = await self._gate.admit(scope, send)
        if caller is None:
            return
        endpoint = self._endpoints.get(surface)
        if endpoint is None:
            names = ", ".join(f"/mcp/{name}" if name else "/mcp" for name in self._endpoints)
            await answer(send, 404, {"detail": f"no such surface; there are {names}"})
            return
        # Some HTTP parsers keep white space around a value; the protocol compares values exactly.
        scope = {
            **scope,
            "caller": caller,
            "headers": [(key, value.strip()) for key, value in scope["headers"]],
        }
        if endpoint.is_modern(scope):
            await endpoint.modern(scope, receive, send)
        else:
            await self._sessions.serve(endpoint, surface, scope, receive, send)

    async def _readiness(self, send: Send) -> None:
        report: dict[str, Any] = {"status": "ready", "version": __version__, "database": "ok"}
        try:
            await life.check(self._core)
        except QuarterdeckError as error:
            report |= {"status": "unavailable", "database": error.message}
        memory = self._core.memory
        report["search"] = {"mode": memory.state, "reason": memory.reason}
        await answer(send, 200 if report["status"] == "ready" else 503, report)

    async def _numbers(self, scope: Scope, send: Send) -> None:
        if not is_loopback(scope) and await self._gate.admit(scope, send) is None:
            return
        body = self._metrics.render(
            semantic=self._core.memory.state == "semantic",
            waiting=self._core.waiting,
            streams=self._hub.streams + self._sessions.streams,
        )
        await send(
            {"type": "http.response.start", "status": 200, "headers": [(b"content-type", CONTENT_TYPE)]}
        )
        await send({"type": "http.response.body", "body": body})


async def _ended(task: "asyncio.Task[None]") -> None:
    """Cancel a task and wait until it has let go of what it holds."""
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
