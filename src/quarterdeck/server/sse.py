"""Server-sent events: how a frame looks, and where a client that comes back left off."""

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


async def gone(receive: Receive) -> None:
    """Return when the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass
