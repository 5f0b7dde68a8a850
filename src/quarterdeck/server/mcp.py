"""One surface over Streamable HTTP, both protocol eras. Only this and `resources` know the SDK."""

import asyncio
import contextlib
import json
from collections.abc import Coroutine, Mapping
from contextlib import AsyncExitStack
from typing import Any, cast

import anyio
from mcp.server.context import CallNext, HandlerResult
from mcp.server.lowlevel import Server
from mcp.server.session import ServerSession
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.inbound import InboundModernRoute, classify_inbound_request
from mcp_types import (
    PROTOCOL_VERSION_META_KEY,
    SERVER_INFO_META_KEY,
    CallToolRequestParams,
    ListToolsResult,
    PaginatedRequestParams,
    Tool,
)
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, MODERN_PROTOCOL_VERSIONS
from starlette.requests import Request
from starlette.types import Message, Receive, Scope, Send

from quarterdeck import __version__
from quarterdeck.server.http import answer, answer_text, body_of, header, replayed
from quarterdeck.server.resources import Context, ResourceMethods, caller_of
from quarterdeck.server.subscriptions import Subscriptions
from quarterdeck.surfaces.table import Desk, Progress, encode, encoded

_ROUTING = (b"mcp-protocol-version", b"mcp-method", b"mcp-name")


class Endpoint:
    """Serves one surface: JSON to 2026 clients, event streams to older ones and for tools that stream."""

    def __init__(self, desk: Desk, max_body: int, hub: Subscriptions) -> None:
        self._desk = desk
        surface = desk.surface
        self._server: Server[Any] = Server(
            surface.server_name,
            version=__version__,
            instructions=surface.instructions,
            get_tool_input_schema=self._input_schema,
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
        )
        if surface.resources:
            ResourceMethods(desk, hub, self._server).register()
        self._telemetry = self._server.middleware[0]
        self._server.middleware.append(self._shortcut)
        self._stamp = {SERVER_INFO_META_KEY: self._server.server_info_stamp}
        self._trailer = f',"resultType":"complete","_meta":{encode(self._stamp)}}}}}'
        self._max_body = max_body
        self._plain = StreamableHTTPSessionManager(
            self._server, json_response=True, max_request_body_size=max_body
        )
        self._stream = StreamableHTTPSessionManager(self._server, max_request_body_size=max_body)

    async def run(self, lifetime: AsyncExitStack) -> None:
        """Serve until `lifetime` ends; it must end in the task that calls this."""
        await lifetime.enter_async_context(self._plain.run())
        await lifetime.enter_async_context(self._stream.run())

    @staticmethod
    def is_modern(scope: Scope) -> bool:
        version = header(scope, b"mcp-protocol-version")
        return version is not None and version not in HANDSHAKE_PROTOCOL_VERSIONS

    async def modern(self, scope: Scope, receive: Receive, send: Send) -> None:
        tool = self._desk.surface.tools.get(header(scope, b"mcp-name") or "")
        if tool is None:
            await self._plain.handle_request(scope, receive, send)
        elif tool.streams:
            await self._stream.handle_request(scope, receive, send)
        else:
            await self._call(scope, receive, send)

    async def _call(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a well-formed `tools/call` at half the cost of the SDK's way; the SDK words every refusal."""
        body = await body_of(receive, self._max_body)
        if body is None:
            await answer(send, 413, {"detail": "the request body is too large"})
            return
        call = _read_call(scope, body)
        if call is None:
            await self._plain.handle_request(scope, replayed(body, receive), send)
            return
        params = call["params"]
        context = Context(
            session=cast(ServerSession, None),  # nothing is sent beside the answer
            lifespan_context=None,
            protocol_version=params["_meta"][PROTOCOL_VERSION_META_KEY],
            method="tools/call",
            params=params,
            request_id=call["id"],
            meta=params["_meta"],
            request=Request(scope),
        )
        result = cast(dict[str, Any], await self._telemetry(context, self._run))
        start = f'{{"jsonrpc":"2.0","id":{encode(call["id"])},"result":{encoded(result)}'
        await answer_text(send, start.removesuffix("}") + self._trailer)

    async def _run(self, ctx: Context) -> dict[str, Any]:
        params = ctx.params or {}
        name, arguments = params["name"], params.get("arguments") or {}
        tool = self._desk.surface.tools.get(name)
        if tool is None or not tool.streams:
            return await self._desk.call(caller_of(ctx), name, arguments)
        listens = "progress_token" in (ctx.meta or {})
        progress = ctx.session.report_progress if listens else None
        call = self._desk.call(caller_of(ctx), name, arguments, progress, _later(ctx) if listens else None)
        return await (_while_there(ctx, call) if tool.kind == "read" else call)

    async def older(self, scope: Scope, receive: Receive, send: Send) -> None:
        gone = asyncio.Event()

        async def hear() -> Message:
            message = await receive()
            if message["type"] == "http.disconnect":
                gone.set()
            return message

        await self._stream.handle_request({**scope, "gone": gone}, hear, send)

    def _input_schema(self, name: str) -> dict[str, Any] | None:
        tool = self._desk.surface.tools.get(name)
        return None if tool is None else tool.input_schema

    async def _list_tools(self, ctx: Context, params: PaginatedRequestParams | None) -> ListToolsResult:
        visible = self._desk.surface.visible(caller_of(ctx))
        return ListToolsResult(tools=[Tool.model_validate(tool.listing) for tool in visible])

    async def _call_tool(self, ctx: Context, params: CallToolRequestParams) -> Any:
        return await self._desk.call(caller_of(ctx), params.name, params.arguments or {})

    async def _shortcut(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        """Serve a well-formed `tools/call` without the SDK's second and third validation of it."""
        params = ctx.params or {}
        if ctx.method != "tools/call" or not _well_formed(params):
            return await call_next(ctx)
        result = await self._run(ctx)
        if ctx.protocol_version in MODERN_PROTOCOL_VERSIONS:
            result |= {"resultType": "complete", "_meta": self._stamp}
        return result


def _later(ctx: Context) -> Progress | None:
    """Tells of progress after the answer of this call, on the stream of an older client's session."""
    if ctx.protocol_version in MODERN_PROTOCOL_VERSIONS:
        return None
    session, token = ctx.session, (ctx.meta or {})["progress_token"]

    async def tell(progress: float, total: float | None, message: str | None) -> None:
        # The session may have ended, and with it whoever listened.
        with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            await session.send_progress_notification(token, progress, total, message)

    return tell


async def _while_there(ctx: Context, call: Coroutine[Any, Any, dict[str, Any]]) -> dict[str, Any]:
    """The result of a call that nobody need finish once its client has gone; the SDK would let it go on."""
    gone: asyncio.Event | None = ctx.request.scope.get("gone") if ctx.request is not None else None
    if gone is None:
        return await call
    work, left = asyncio.ensure_future(call), asyncio.ensure_future(gone.wait())
    try:
        await asyncio.wait((work, left), return_when=asyncio.FIRST_COMPLETED)
        return work.result() if work.done() else {"content": [], "isError": True}
    finally:
        work.cancel()
        left.cancel()


def _well_formed(params: Mapping[str, Any]) -> bool:
    return isinstance(params.get("name"), str) and isinstance(params.get("arguments"), dict | None)


def _read_call(scope: Scope, body: bytes) -> dict[str, Any] | None:
    """The request in a body, when it is a `tools/call` that breaks no rule of the protocol; else None."""
    headers: dict[bytes, bytes] = dict(scope["headers"])
    if (
        scope["method"] != "POST"
        or len(headers) != len(scope["headers"])
        or not headers.get(b"content-type", b"").startswith(b"application/json")
        or b"application/json" not in headers.get(b"accept", b"").replace(b" ", b"").split(b",")
        or any(name.startswith(b"mcp-param-") for name in headers)
    ):
        return None
    try:
        request = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if (
        not isinstance(request, dict)
        or request.get("jsonrpc") != "2.0"
        or type(request.get("id")) not in (int, str)
        or request.get("method") != "tools/call"
    ):
        return None
    routing = {name.decode(): headers[name].decode("latin-1") for name in _ROUTING if name in headers}
    route = classify_inbound_request(request, headers=routing)
    return request if isinstance(route, InboundModernRoute) and _well_formed(request["params"]) else None
