"""Event streams as a client reads them: every frame as it came, in a thread of its own."""

from __future__ import annotations

import contextlib
import http.client
import json
import queue
import socket
import threading
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import urlsplit

from tests.mcp_client import MODERN, Client, Older

PATIENCE = 60.0


@dataclass(frozen=True, slots=True)
class Frame:
    """One event of a stream; `data` is None where a frame only carries its number."""

    id: str | None
    event: str | None
    data: Any

    @property
    def params(self) -> dict[str, Any]:
        found: dict[str, Any] = self.data["params"]
        return found


class Listening:
    """One open stream. A context manager, which closes the connection."""

    def __init__(self, method: str, url: str, headers: dict[str, str], body: str | None = None) -> None:
        to = urlsplit(url)
        self._connection = http.client.HTTPConnection(to.netloc, timeout=PATIENCE)
        target = f"{to.path}?{to.query}" if to.query else to.path
        self._connection.request(method, target, body, headers)
        self._socket: socket.socket = self._connection.sock
        self._response = self._connection.getresponse()
        self.status = self._response.status
        self._frames: queue.Queue[Frame | None] = queue.Queue()
        self.comments = 0
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._reader.join()
        self._response.close()
        self._connection.close()

    def _read(self) -> None:
        fields: dict[str, str] = {}
        with contextlib.suppress(OSError, ValueError, http.client.HTTPException):
            while line := self._response.readline():
                name, _, value = line.decode().rstrip("\r\n").partition(":")
                if name:
                    fields[name] = value.strip()
                elif value:
                    self.comments += 1
                elif fields:
                    data = fields.get("data")
                    shown = json.loads(data) if data else None
                    self._frames.put(Frame(fields.get("id"), fields.get("event"), shown))
                    fields = {}
        self._frames.put(None)

    def frame(self) -> Frame:
        """The next frame with data."""
        while True:
            found = self._frames.get(timeout=PATIENCE)
            assert found is not None, "the stream has ended"
            if found.data is not None:
                return found

    def frames(self, count: int) -> list[Frame]:
        return [self.frame() for _ in range(count)]

    def first(self) -> Frame:
        """The very next frame, with data or without."""
        found = self._frames.get(timeout=PATIENCE)
        assert found is not None, "the stream has ended"
        return found

    def rest(self) -> list[Frame]:
        """What comes until the stream ends by itself."""
        frames = []
        while (found := self._frames.get(timeout=PATIENCE)) is not None:
            frames.append(found)
        return frames


def listen(client: Client, *uris: str, **meta: Any) -> Listening:
    """The `subscriptions/listen` of a 2026 client; the acknowledgement is its first frame."""
    about = {
        "io.modelcontextprotocol/protocolVersion": MODERN,
        "io.modelcontextprotocol/clientInfo": {"name": "tests", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
        **{f"quarterdeck/{name}": value for name, value in meta.items()},
    }
    params = {"_meta": about, "notifications": {"resourceSubscriptions": list(uris)}}
    body = {"jsonrpc": "2.0", "id": "listening", "method": "subscriptions/listen", "params": params}
    headers = {**client.headers, "Mcp-Method": "subscriptions/listen"}
    return Listening("POST", client.url, headers, json.dumps(body))


def hear(client: Older, last_event_id: str | None = None) -> Listening:
    """The GET stream of an older client's session."""
    resumed = {} if last_event_id is None else {"Last-Event-ID": last_event_id}
    return Listening("GET", client.url, {**client.headers, **resumed})


def events(url: str, token: str, query: str = "", **headers: str) -> Listening:
    """`GET /events`; underscores in the names of headers are dashes."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Listening("GET", f"{url}/events{query}", {"Authorization": f"Bearer {token}", **named})
