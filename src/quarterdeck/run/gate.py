"""The one way out of a sandbox without a network: a unix socket, and what may be reached through it.

The other side is `forward.py`. A connection begins with a line `host:port`; the answer is a line with a
status as in HTTP and some words. After 200 the bytes of both sides are passed on.
"""

import asyncio
import os
import socket
from asyncio import StreamReader, StreamWriter
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

from quarterdeck.domain import hosts
from quarterdeck.domain.hosts import Allowed, Door
from quarterdeck.run.forward import IDLE_SECONDS, joined

CONNECTIONS: Final = 64
REFUSED: Final = 20
LINE_SECONDS: Final = 30.0
CONNECT_SECONDS: Final = 30.0


class _No(Exception):
    def __init__(self, status: int, words: str) -> None:
        super().__init__(words)
        self.status = status
        self.words = words


class Gate:
    """Open within `async with`; all that went through it is closed at its end.

    `refused` holds some of what was asked for in vain.
    """

    def __init__(self, path: Path, allowed: Allowed, *, idle: float = IDLE_SECONDS) -> None:
        self.path = path
        self.allowed = allowed
        self.refused: set[str] = set()
        self._idle = idle
        self._passing: set[asyncio.Task[None]] = set()
        self._folder = -1
        self._closed = False
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        listener = await asyncio.to_thread(self._bound)
        self._server = await asyncio.start_unix_server(self._accept, sock=listener)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._closed = True
        if self._server is not None:
            self._server.close()
        os.close(self._folder)
        for task in (passing := list(self._passing)):
            task.cancel()
        await asyncio.gather(*passing, return_exceptions=True)
        await asyncio.to_thread(self.path.unlink, missing_ok=True)

    def _bound(self) -> socket.socket:
        self.path.unlink(missing_ok=True)
        self._folder = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # By way of the descriptor: the path of a socket may have no more than 107 bytes.
            listener.bind(f"/proc/self/fd/{self._folder}/{self.path.name}")
        except OSError:
            listener.close()
            os.close(self._folder)
            raise
        return listener

    def _accept(self, reader: StreamReader, writer: StreamWriter) -> None:
        # Those beyond the limit are told so, but not without one either.
        if self._closed or len(self._passing) >= 2 * CONNECTIONS:
            writer.transport.abort()
            return
        task = asyncio.ensure_future(self._pass(reader, writer))
        self._passing.add(task)
        task.add_done_callback(self._passing.discard)

    async def _pass(self, reader: StreamReader, writer: StreamWriter) -> None:
        try:
            with suppress(OSError):
                try:
                    ends = await self._opened(reader)
                except _No as no:
                    writer.write(f"{no.status} {no.words}\n".encode())
                    await writer.drain()
                    writer.close()
                    return
                writer.write(b"200\n")
                await joined((reader, writer), ends, self._idle)
        finally:
            if not writer.is_closing():
                writer.transport.abort()

    async def _opened(self, reader: StreamReader) -> tuple[StreamReader, StreamWriter]:
        """The connection that somebody asks for."""
        try:
            async with asyncio.timeout(LINE_SECONDS):
                line = await reader.readline()
            door = hosts.parse(line.decode("ascii").strip())
        except (ValueError, TimeoutError):
            raise _No(400, "This is no host and port.") from None
        if len(self._passing) > CONNECTIONS:
            raise _No(503, f"There are {CONNECTIONS} connections already.")
        if door not in self.allowed:
            if len(self.refused) < REFUSED:
                self.refused.add(str(door))
            raise _No(403, f"{door} is not among the hosts of this sandbox. worker.sandbox_hosts lists more.")
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                return await self._connected(door)
        except OSError as error:
            raise _No(502, f"{door} cannot be reached: {error.strerror or 'no answer'}") from error

    async def _connected(self, door: Door) -> tuple[StreamReader, StreamWriter]:
        """Look it up once, and go to the address that was found good."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(door.host, door.port, type=socket.SOCK_STREAM)
        addresses = [str(entry[4][0]) for entry in found]
        if not self.allowed.reaches(door, addresses):
            raise _No(403, f"{door} has a private address. worker.sandbox_hosts would allow it.")
        for address in addresses[:-1]:
            with suppress(OSError):
                return await asyncio.open_connection(address, door.port)
        return await asyncio.open_connection(addresses[-1], door.port)
