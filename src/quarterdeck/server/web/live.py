"""What the pages listen to: the committed events of the reader, as server-sent events."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Final

from quarterdeck.events import ALL, Event
from quarterdeck.server.web.routing import Answer, Request, route

_BEAT_SECONDS: Final = 15.0
_TEXT: Final = 4000


@route("GET", "/live")
async def live(request: Request) -> Answer:
    """Every event of the caller from now on. A page that was away asks for its parts anew."""
    return Answer(media_type="text/event-stream", stream=_told(request))


async def _told(request: Request) -> AsyncIterator[bytes]:
    caller = request.caller
    with request.core.bus.listen(ALL) as listener:
        yield b"retry: 2000\n\nevent: ready\ndata: {}\n\n"
        while not listener.closed:
            try:
                events = await asyncio.wait_for(listener.wait(), _BEAT_SECONDS)
            except TimeoutError:
                yield b": still here\n\n"
                events = []
            if listener.lagged:
                yield b"event: lagged\ndata: {}\n\n"
            if await request.doorman.caller(request.cookie) is None:
                yield b"event: signedout\ndata: {}\n\n"
                return
            heard = [event for event in events if caller.everyone or event.user_id == caller.user_id]
            if heard:
                yield b"".join(_line(event) for event in heard)


def _line(event: Event) -> bytes:
    """One event as a page needs it; long texts are cut, the page asks for the rest."""
    data = {key: _short(value) for key, value in event.data.items()}
    told = {
        "seq": event.seq,
        "at": event.at,
        "kind": event.kind,
        "id": event.entity_id,
        "task": event.task_id,
        "actor": event.actor,
        "data": data,
    }
    return f"id: {event.seq}\nevent: change\ndata: {json.dumps(told)}\n\n".encode()


def _short(value: object) -> object:
    return value[:_TEXT] if isinstance(value, str) else value
