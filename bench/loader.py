"""A small HTTP client that costs little: ready-made bytes over kept-alive sockets, one thread."""

import contextlib
import itertools
import json
import selectors
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

VERSION = "2026-07-28"
_META = {
    "io.modelcontextprotocol/protocolVersion": VERSION,
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": {"name": "bench", "version": "1"},
}
_TIMEOUT = 60.0

Address = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Run:
    """What one round of requests took, as the client saw it."""

    seconds: float
    latencies: list[float]

    @property
    def rate(self) -> float:
        return len(self.latencies) / self.seconds

    def quantile(self, share: float) -> float:
        """The latency in ms below which this share of the requests lies."""
        ordered = sorted(self.latencies)
        return ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1000


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()


def tool_call(token: str, name: str, surface: str = "orchestrator", **arguments: Any) -> bytes:
    """The bytes of one `tools/call` as a 2026-07-28 client sends it."""
    params = {"name": name, "arguments": arguments, "_meta": _META}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
    head = (
        f"POST /mcp/{surface} HTTP/1.1\r\n"
        "Host: 127.0.0.1\r\n"
        f"Authorization: Bearer {token}\r\n"
        "Content-Type: application/json\r\n"
        "Accept: application/json, text/event-stream\r\n"
        f"MCP-Protocol-Version: {VERSION}\r\n"
        "Mcp-Method: tools/call\r\n"
        f"Mcp-Name: {name}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def ask(address: Address, request: bytes) -> tuple[int, bytes]:
    """Send one request on a connection of its own: the status and the body."""
    with socket.create_connection(address, timeout=_TIMEOUT) as connection:
        exchange = _Exchange(connection)
        exchange.send(request)
        while not exchange.receive():
            pass
    head, _, body = exchange.received.partition(b"\r\n\r\n")
    return int(head[9:12]), body


def drive(address: Address, requests: Iterator[bytes], count: int, concurrency: int) -> Run:
    """Send the next `count` of the requests, with so many in flight at any time."""
    waiting = itertools.islice(requests, count)
    latencies: list[float] = []
    with contextlib.ExitStack() as stack, selectors.DefaultSelector() as selector:
        for _ in range(concurrency):
            connection = stack.enter_context(socket.create_connection(address, timeout=_TIMEOUT))
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            selector.register(connection, selectors.EVENT_READ, _Exchange(connection))
        begun = time.perf_counter()
        for key in list(selector.get_map().values()):
            key.data.send(next(waiting, None))
        while len(latencies) < count:
            ready = selector.select(_TIMEOUT)
            if not ready:
                raise TimeoutError(f"no answer for {_TIMEOUT} s")
            for key, _ in ready:
                if key.data.receive():
                    latencies.append(time.perf_counter() - key.data.sent)
                    _check(key.data.received)
                    key.data.send(next(waiting, None))
        return Run(time.perf_counter() - begun, latencies)


@dataclass(slots=True)
class _Exchange:
    """One connection with the request in flight on it."""

    connection: socket.socket
    received: bytes = b""
    sent: float = 0.0

    def send(self, request: bytes | None) -> None:
        if request is not None:
            self.received, self.sent = b"", time.perf_counter()
            self.connection.sendall(request)

    def receive(self) -> bool:
        """Read what is there; whether the answer is complete."""
        part = self.connection.recv(262_144)
        if not part:
            raise ConnectionError("the server hung up")
        self.received += part
        return _end(self.received) is not None


def _end(received: bytes) -> int | None:
    """Where the answer ends; None while it is not all there."""
    head = received.find(b"\r\n\r\n")
    if head < 0:
        return None
    start = received.lower().find(b"content-length: ", 0, head)
    if start < 0:
        raise ValueError(f"an answer without a length: {received[:200]!r}")
    end = head + 4 + int(received[start + 16 : received.index(b"\r", start)])
    return end if len(received) >= end else None


def _check(received: bytes) -> None:
    if not received.startswith(b"HTTP/1.1 200") or b'"isError":true' in received:
        raise RuntimeError(f"refused: {received[:2000]!r}")
