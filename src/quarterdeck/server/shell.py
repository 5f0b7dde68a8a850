"""The first thing behind the socket: answers `/healthz` while the rest is still being imported."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quarterdeck.config import Settings
    from quarterdeck.server.app import Application

Message = dict[str, Any]


class Shell:
    """An ASGI application that becomes the whole core as soon as it is loaded."""

    def __init__(
        self, settings: "Settings", data_dir: Path, host: str, url: str, ready: Callable[[str], None]
    ) -> None:
        self._settings = settings
        self._data_dir = data_dir
        self._host = host
        self._url = url
        self._announce = ready
        self._stop = asyncio.Event()
        self._life: asyncio.Task[None] | None = None
        self._application: Application | None = None
        self.failure: BaseException | None = None
        self.failed: Callable[[], None] = lambda: None

    async def __call__(self, scope: Message, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] != "http":
            return
        elif scope["path"] == "/healthz":
            await _answer(send, 200, {"status": "ok"})
        elif self._application is not None and self._application.ready.is_set():
            await self._application.serve(scope, receive, send)
        else:
            await _answer(send, 503, _starting(scope["path"]), [(b"retry-after", b"1")])

    def leave(self) -> None:
        """Say that the end is near, while calls in flight still have their time."""
        if self._application is not None:
            self._application.leave()

    async def _lifespan(self, receive: Any, send: Any) -> None:
        await receive()
        self._life = asyncio.create_task(self._live(), name="core")
        await send({"type": "lifespan.startup.complete"})
        await receive()
        self._stop.set()
        await asyncio.wait([self._life])
        await send({"type": "lifespan.shutdown.complete"})

    async def _live(self) -> None:
        """Import, run, and end the process when the core cannot go on."""
        try:
            given = (self._settings, self._data_dir, self._host, self._url)
            application = await asyncio.to_thread(_load, *given)
            self._application = application
            running = asyncio.create_task(application.run(self._stop))
            started = asyncio.create_task(application.ready.wait())
            await asyncio.wait([running, started], return_when=asyncio.FIRST_COMPLETED)
            started.cancel()
            if not running.done():
                self._announce(application.entry)
            await running
        except BaseException as error:
            self.failure = error
            self.failed()


def _load(settings: "Settings", data_dir: Path, host: str, url: str) -> "Application":
    from quarterdeck.server.app import Application

    return Application(settings, data_dir, host, url)


def _starting(path: str) -> dict[str, Any]:
    if not path.startswith("/v1/"):
        return {"status": "starting"}
    said = {"message": "the core is starting", "type": "server_error"}
    return {"error": {**said, "code": "service_unavailable", "param": None}}


async def _answer(
    send: Any, status: int, body: Any, headers: list[tuple[bytes, bytes]] | None = None
) -> None:
    content = json.dumps(body).encode()
    fields = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": fields + (headers or [])})
    await send({"type": "http.response.body", "body": content})
