"""A way to a core for programs that send no token: every request gets one on its way. On loopback only."""

from __future__ import annotations

import contextlib
import re
import socket
import socketserver
import threading
from collections.abc import Iterator
from urllib.parse import urlsplit

_REPLACED = re.compile(rb"^(?:authorization|connection):[^\n]*\n", re.IGNORECASE | re.MULTILINE)


@contextlib.contextmanager
def token_proxy(url: str, token: str) -> Iterator[str]:
    """Forward to the core at `url` as the owner of `token`; the address to use instead."""
    upstream = urlsplit(url)

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            address = (str(upstream.hostname), int(upstream.port or 80))
            forward(self.request, address, f"Authorization: Bearer {token}\r\n".encode())

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        serving.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            serving.join()


def forward(client: socket.socket, address: tuple[str, int], added: bytes) -> None:
    """Pass one request on, header lines untouched but for the token, and its answer back."""
    head = b""
    while b"\r\n\r\n" not in head:
        part = client.recv(65_536)
        if not part:
            return
        head += part
    head, _, body = head.partition(b"\r\n\r\n")
    line, _, fields = head.partition(b"\r\n")
    # One request a connection: then the end of the answer is the end of the bytes.
    fields = _REPLACED.sub(b"", fields + b"\r\n") + added + b"Connection: close\r\n"
    with socket.create_connection(address) as server:
        server.sendall(line + b"\r\n" + fields + b"\r\n" + body)
        rest = threading.Thread(target=pump, args=(client, server))
        rest.start()
        pump(server, client)
        with contextlib.suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)
        rest.join()


def pump(source: socket.socket, target: socket.socket) -> None:
    """Copy until either side ends, then tell the other."""
    with contextlib.suppress(OSError):
        while part := source.recv(65_536):
            target.sendall(part)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)
