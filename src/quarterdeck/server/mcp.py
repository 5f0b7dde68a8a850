"""One surface over Streamable HTTP, both protocol eras. The only module that touches the SDK's insides."""

from contextlib import AsyncExitStack
from typing import Any

from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp_types import (
    SERVER_INFO_META_KEY,
    CallToolRequestParams,
    ListToolsResult,
    PaginatedRequestParams,
    Tool,
)
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, MODERN_PROTOCOL_VERSIONS
from starlette.types import Receive, Scope, Send

from quarterdeck import __version__
from quarterdeck.domain.callers import Caller
from quarterdeck.server.http import header
from quarterdeck.surfaces.table import Desk

Context = ServerRequestContext[Any, Any]


class Endpoint:
    """Serves one surface: JSON to 2026 clients, event streams to older ones and for tools that stream."""

    def __init__(self, desk: Desk, max_body: int) -> None:
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
        self._server.middleware.append(self._shortcut)
        self._stamp = {SERVER_INFO_META_KEY: self._server.server_info_stamp}
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
        manager = self._stream if tool is not None and tool.streams else self._plain
        await manager.handle_request(scope, receive, send)

    async def older(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._stream.handle_request(scope, receive, send)

    def _input_schema(self, name: str) -> dict[str, Any] | None:
        tool = self._desk.surface.tools.get(name)
        return None if tool is None else tool.input_schema

    async def _list_tools(self, ctx: Context, params: PaginatedRequestParams | None) -> ListToolsResult:
        visible = self._desk.surface.visible(_caller(ctx))
        return ListToolsResult(tools=[Tool.model_validate(tool.listing) for tool in visible])

    async def _call_tool(self, ctx: Context, params: CallToolRequestParams) -> Any:
        return await self._desk.call(_caller(ctx), params.name, params.arguments or {})

    async def _shortcut(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        """Serve a well-formed `tools/call` without the SDK's second and third validation of it."""
        params = ctx.params or {}
        name, arguments = params.get("name"), params.get("arguments")
        if ctx.method != "tools/call" or not isinstance(name, str) or not isinstance(arguments, dict | None):
            return await call_next(ctx)
        result = await self._desk.call(_caller(ctx), name, arguments or {})
        if ctx.protocol_version in MODERN_PROTOCOL_VERSIONS:
            result |= {"resultType": "complete", "_meta": self._stamp}
        return result


def _caller(ctx: Context) -> Caller:
    """Who sent this message: the gate left it on the HTTP request."""
    caller = ctx.request.scope["caller"] if ctx.request is not None else None
    if not isinstance(caller, Caller):
        raise TypeError("a message came around the gate")
    return caller
