"""Server-sent events: how a frame looks, and where a client that comes back left off."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from starlette.types import Receive, Scope

from quarterdeck.server.http import Headers, header

LAST_EVENT_ID = b"last-event-id"
HEADERS: Headers = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]
KEEP_ALIVE = b": keep-alive\n\n"


def frame(seq: int, data: str, event: str = "message") -> bytes:
    """One frame. JSON text has no line ends, so its data is one line."""
    return f"id: {seq}\nevent: {event}\ndata: {data}\n\n".encode(errors="backslashreplace")


def left_off(scope: Scope) -> int | None:
    """The number of the last event that a client says it has seen; anything but a number is none."""
    return number(header(scope, LAST_EVENT_ID))


def number(given: str | None) -> int | None:
    return (
        int(given) if given is not None and given.isascii() and given.isdigit() and len(given) < 19 else None
    )


async def while_there(receive: Receive, telling: Coroutine[Any, Any, None]) -> None:
    """Tell a client something, until all is told or it has left."""
    tasks = [asyncio.create_task(telling), asyncio.create_task(_gone(receive))]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if tasks[0].done():
            tasks[0].result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
