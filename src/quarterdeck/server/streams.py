"""`GET /events`: the caller's own events as a stream that can be taken up again anywhere."""

import asyncio
import json
from collections.abc import Collection
from dataclasses import dataclass
from urllib.parse import parse_qs

from starlette.types import Receive, Scope, Send

from quarterdeck.core.context import Core
from quarterdeck.core.following import following, within
from quarterdeck.domain.callers import Caller
from quarterdeck.domain.errors import Invalid, RateLimited, Unavailable
from quarterdeck.domain.ids import iso
from quarterdeck.events import KINDS, Event
from quarterdeck.server import sse
from quarterdeck.server.http import answer
from quarterdeck.server.subscriptions import KEEP_ALIVE_SECONDS, Subscriptions

PATH = "/events"
_FIELDS = ("after", "kinds", "task_id")


@dataclass(frozen=True, slots=True)
class Wish:
    """What a client wants to see of its events."""

    after: int | None
    kinds: Collection[str] | None
    task_id: str | None


class EventStreams:
    """Serves one stream a request, until its client leaves, its token ends or the core does."""

    def __init__(self, core: Core, hub: Subscriptions) -> None:
        self._core = core
        self._hub = hub

    async def serve(self, caller: Caller, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != "GET":
            await answer(send, 405, {"detail": f"{scope['method']} is not served here"}, [(b"allow", b"GET")])
            return
        try:
            wish = _wish(scope)
            with self._hub.place(caller):
                await sse.while_there(receive, self._tell(caller, wish, send))
        except Invalid as error:
            await answer(send, 422, {"detail": error.message, "field": error.field, "hint": error.hint})
        except RateLimited as error:
            await answer(send, 429, {"detail": error.message, "hint": error.hint})
        except Unavailable:
            await answer(send, 503, {"detail": "the database cannot be reached"}, [(b"retry-after", b"2")])

    async def _tell(self, caller: Caller, wish: Wish, send: Send) -> None:
        async def write(frame: bytes, more: bool = True) -> None:
            await send({"type": "http.response.body", "body": frame, "more_body": more})

        with following(self._core, caller, wish.kinds, wish.task_id) as follower:
            await follower.start(wish.after)
            await send({"type": "http.response.start", "status": 200, "headers": sse.HEADERS})
            # No data, so no event; but who is cut off before the first one knows where to go on.
            await write(f"retry: 1000\nid: {follower.seq}\n\n".encode())
            while (events := await follower.next(KEEP_ALIVE_SECONDS)) is not None:
                for event in events:
                    if not caller.bound or await self._within(caller, event):
                        await write(sse.frame(event.seq, _shown(event), event.kind))
                if not events:
                    await write(sse.KEEP_ALIVE)
        await write(b"", more=False)

    async def _within(self, caller: Caller, event: Event) -> bool:
        while True:
            try:
                return await within(self._core, caller, event)
            except Unavailable:  # the stream has begun: it waits
                await asyncio.sleep(1.0)


def _shown(event: Event) -> str:
    row = {
        "seq": event.seq,
        "at": iso(event.at),
        "kind": event.kind,
        "entity_id": event.entity_id,
        "task_id": event.task_id,
        "actor": event.actor,
        "tool": event.tool,
        "ok": event.ok,
        "data": event.data,
    }
    return json.dumps(row, ensure_ascii=False, separators=(",", ":"))


def _wish(scope: Scope) -> Wish:
    """What the query and the header ask for. A client that comes again knows better than its first URL."""
    given = parse_qs(scope["query_string"].decode("latin-1"), keep_blank_values=True)
    for name in given:
        if name not in _FIELDS:
            raise Invalid(f"there is no parameter {name[:100]!r}", field=name[:100], hint=", ".join(_FIELDS))
    after, kinds, task_id = (given.get(name, [None])[-1] for name in _FIELDS)
    if after is not None and sse.number(after) is None:
        raise Invalid("after is the number of an event", field="after", hint="a whole number, 0 for all")
    if task_id is not None and not 0 < len(task_id) <= 100:
        raise Invalid("task_id is the id of a task", field="task_id")
    named = None if kinds is None else _kinds(kinds)
    left_off = sse.left_off(scope)
    return Wish(
        after=sse.number(after) if left_off is None else left_off,
        kinds=named,
        task_id=task_id,
    )


def _kinds(text: str) -> frozenset[str]:
    """The kinds of a list with commas. One that never happens would be waited for in vain."""
    named = frozenset(filter(None, (kind.strip() for kind in text.split(","))))
    known = ", ".join(sorted(KINDS))
    if not named:
        raise Invalid("kinds names no kind of event", field="kinds", hint=known)
    if unknown := sorted(named - KINDS):
        raise Invalid(f"there is no kind of event {unknown[0][:100]!r}", field="kinds", hint=known)
    return named
