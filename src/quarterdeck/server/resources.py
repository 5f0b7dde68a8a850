"""Resources over MCP: list, read, and both eras' ways to subscribe."""

from typing import Any, cast

from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp.shared.subscriptions import SUBSCRIPTION_ID_META_KEY
from mcp_types import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    DiscoverResult,
    EmptyResult,
    ListResourcesResult,
    ListResourceTemplatesResult,
    Notification,
    PaginatedRequestParams,
    ReadResourceRequestParams,
    ReadResourceResult,
    RequestParams,
    Resource,
    ResourceTemplate,
    ServerNotification,
    SubscribeRequestParams,
    SubscriptionsListenRequestParams,
    SubscriptionsListenResult,
    TextResourceContents,
    UnsubscribeRequestParams,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from quarterdeck.core import subscriptions
from quarterdeck.core.following import following
from quarterdeck.domain.callers import Caller
from quarterdeck.domain.errors import NotFound, QuarterdeckError
from quarterdeck.server.sse import number
from quarterdeck.server.subscriptions import KEEP_ALIVE_SECONDS, Subscriptions, serving
from quarterdeck.surfaces.resources import ResourceError, Resources, Template
from quarterdeck.surfaces.table import Desk

Context = ServerRequestContext[Any, Any]

# What we add to the frames of `subscriptions/listen`, so that who is cut off can go on without a gap.
SEQ = "quarterdeck/seq"
AFTER = "quarterdeck/after"
REASON = "quarterdeck/reason"
NOTICES = "quarterdeck/notices"

_UPDATED = "notifications/resources/updated"
_NOT_FOUND_BEFORE_2026 = -32002
_REFUSED = -32000


def caller_of(ctx: Context) -> Caller:
    """Who sent this message: the gate left it on the HTTP request."""
    caller = ctx.request.scope["caller"] if ctx.request is not None else None
    if not isinstance(caller, Caller):
        raise TypeError("a message came around the gate")
    return caller


class ResourceMethods:
    """The methods of one surface that are about resources."""

    def __init__(self, desk: Desk, hub: Subscriptions, server: Server[Any]) -> None:
        self._desk = desk
        self._core = desk.core
        self._hub = hub
        self._server = server
        self._resources = desk.surface.resources
        templates = [template for each in self._resources for template in each.templates]
        self._fixed = [template for template in templates if "{" not in template.uri_template]
        self._templates = [template for template in templates if "{" in template.uri_template]

    def register(self) -> None:
        add = self._server.add_request_handler
        add("server/discover", RequestParams, self._discover)
        add("resources/list", PaginatedRequestParams, self._list)
        add("resources/templates/list", PaginatedRequestParams, self._list_templates)
        add("resources/read", ReadResourceRequestParams, self._read)
        add("resources/subscribe", SubscribeRequestParams, self._subscribe)
        add("resources/unsubscribe", UnsubscribeRequestParams, self._unsubscribe)
        add("subscriptions/listen", SubscriptionsListenRequestParams, self._listen)

    async def _discover(self, ctx: Context, params: RequestParams) -> DiscoverResult:
        """The SDK's own answer, but that no list ever changes while a core runs."""
        found = self._server.get_capabilities(protocol_version=ctx.protocol_version)
        for part in (found.tools, found.resources):
            if part is not None:
                part.list_changed = False
        return DiscoverResult(
            supported_versions=list(MODERN_PROTOCOL_VERSIONS),
            capabilities=found,
            instructions=self._server.instructions,
        )

    async def _list(self, ctx: Context, params: PaginatedRequestParams) -> ListResourcesResult:
        return ListResourcesResult(
            resources=[Resource(uri=each.uri_template, **_described(each)) for each in self._fixed]
        )

    async def _list_templates(
        self, ctx: Context, params: PaginatedRequestParams
    ) -> ListResourceTemplatesResult:
        return ListResourceTemplatesResult(
            resource_templates=[
                ResourceTemplate(uri_template=each.uri_template, **_described(each))
                for each in self._templates
            ]
        )

    async def _read(self, ctx: Context, params: ReadResourceRequestParams) -> ReadResourceResult:
        try:
            found = await self._desk.read(caller_of(ctx), self._serving(params.uri), params.uri)
        except QuarterdeckError as error:
            raise _refusal(ctx, params.uri, error) from error
        held = TextResourceContents(uri=found.uri, mime_type=found.media_type, text=found.text)
        return ReadResourceResult(contents=[held])

    async def _subscribe(self, ctx: Context, params: SubscribeRequestParams) -> EmptyResult:
        caller = caller_of(ctx)
        try:
            self._desk.meter(caller)
            if not await self._serving(params.uri).visible(self._core, caller, params.uri):
                raise _unknown(params.uri)
            await subscriptions.subscribe(self._core, caller, _session_of(ctx), params.uri)
        except QuarterdeckError as error:
            raise _refusal(ctx, params.uri, error) from error
        return EmptyResult()

    async def _unsubscribe(self, ctx: Context, params: UnsubscribeRequestParams) -> EmptyResult:
        caller = caller_of(ctx)
        try:
            self._desk.meter(caller)
            self._serving(params.uri)
            await subscriptions.unsubscribe(self._core, caller, _session_of(ctx), params.uri)
        except QuarterdeckError as error:
            raise _refusal(ctx, params.uri, error) from error
        return EmptyResult()

    async def _listen(
        self, ctx: Context, params: SubscriptionsListenRequestParams
    ) -> SubscriptionsListenResult:
        """One stream of a 2026 client, open until it leaves, its token ends or the core does."""
        caller = caller_of(ctx)
        try:
            self._desk.meter(caller)
            with self._hub.place(caller):
                return await self._tell(ctx, caller, params)
        except QuarterdeckError as error:
            raise _refusal(ctx, None, error) from error

    async def _tell(
        self, ctx: Context, caller: Caller, params: SubscriptionsListenRequestParams
    ) -> SubscriptionsListenResult:
        wanted = params.notifications.resource_subscriptions or []
        if len(wanted) > subscriptions.MOST:
            raise MCPError(INVALID_PARAMS, f"a stream has at most {subscriptions.MOST:,} subscriptions")
        every = (params.notifications.model_extra or {}).get(NOTICES) is not False
        after = (ctx.meta or {}).get(AFTER)
        stamp = {SUBSCRIPTION_ID_META_KEY: ctx.request_id}
        with following(self._core, caller) as follower:
            await follower.start(number(str(after)))
            since = {uri: follower.seq for uri in wanted if await self._may_hear(caller, uri)}
            accepted = {"resourceSubscriptions": list(since), NOTICES: every} if since else {}
            await _send(
                ctx,
                "notifications/subscriptions/acknowledged",
                {"_meta": {**stamp, SEQ: follower.seq}, "notifications": accepted},
            )
            while (events := await follower.next(KEEP_ALIVE_SECONDS)) is not None:
                for event in events:
                    for seq, notice in await self._hub.told(caller, event, since):
                        if every or notice.method == _UPDATED:
                            stamped = {"_meta": {**stamp, SEQ: seq}, **notice.params}
                            await _send(ctx, notice.method, stamped)
        reason = "revoked" if follower.revoked else "shutdown"
        return SubscriptionsListenResult(_meta={**stamp, REASON: reason})

    async def _may_hear(self, caller: Caller, uri: str) -> bool:
        resources = serving(self._resources, uri)
        return resources is not None and await resources.visible(self._core, caller, uri)

    def _serving(self, uri: str) -> Resources:
        resources = serving(self._resources, uri)
        if resources is None:
            raise _unknown(uri)
        return resources


def _described(template: Template) -> dict[str, Any]:
    return {
        "name": template.name,
        "description": template.description,
        "mime_type": template.media_type,
    }


def _session_of(ctx: Context) -> str:
    """The id of an older client's session, as its client knows it."""
    session_id = ctx.request.scope.get("session_id") if ctx.request is not None else None
    if not isinstance(session_id, str):
        raise MCPError(INVALID_REQUEST, "only a session subscribes")
    return session_id


async def _send(ctx: Context, method: str, params: dict[str, Any]) -> None:
    """Put a notification, of whatever method, on the stream of this request."""
    message = Notification[dict[str, Any], str](method=method, params=params)
    await ctx.session.send_notification(cast(ServerNotification, message), ctx.request_id)


def _unknown(uri: str) -> ResourceError:
    return ResourceError(
        f"there is no resource {uri[:200]!r} here",
        hint="resources/templates/list shows what there is",
        code="RESOURCE_NOT_FOUND",
    )


def _refusal(ctx: Context, uri: str | None, error: QuarterdeckError) -> MCPError:
    """The error of the protocol for a refusal: its code is ours, in `data`."""
    missing = isinstance(error, ResourceError | NotFound)
    modern = ctx.protocol_version in MODERN_PROTOCOL_VERSIONS
    number = (INVALID_PARAMS if modern else _NOT_FOUND_BEFORE_2026) if missing else _REFUSED
    told = {"code": error.code, "uri": uri, "hint": error.hint, **error.data}
    return MCPError(number, error.message, {key: value for key, value in told.items() if value is not None})
