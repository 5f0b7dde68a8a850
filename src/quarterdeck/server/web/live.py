"""What the pages listen to: the committed events of the reader, as server-sent events."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Final

from quarterdeck.core import trail
from quarterdeck.events import ALL, Event
from quarterdeck.server.web.routing import Answer, Request, route

_BEAT_SECONDS: Final = 15.0
_TEXT: Final = 4000
_MISSED: Final = 300


@route("GET", "/live")
async def live(request: Request) -> Answer:
    """Every event of the caller after the one that the page was made at, or that the browser saw last."""
    return Answer(media_type="text/event-stream", stream=_told(request))


async def _told(request: Request) -> AsyncIterator[bytes]:
    caller, last = request.caller, _number(request.last_event) or _number(request.asked("after"))
    with request.core.bus.listen(ALL) as listener:
        yield b"retry: 2000\n\n"
        missed = await trail.since(request.core, caller, last, _MISSED) if last else []
        if len(missed) == _MISSED:
            yield b"event: lagged\ndata: {}\n\n"
        else:
            yield b"".join(_line(event) for event in missed)
        told = missed[-1].seq if missed else last
        yield b"event: ready\ndata: {}\n\n"
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
            heard = [one for one in events if caller.everyone or one.user_id == caller.user_id]
            if fresh := [one for one in heard if one.seq > told]:
                yield b"".join(_line(event) for event in fresh)


def _number(text: str | None) -> int:
    return int(text) if text and text.isdecimal() and len(text) < 18 else 0


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
